//! Session locks of PostgreSQL: those of `pg_advisory_lock`.
//!
//! The session of a lease ends when it was idle for the ttl: `idle_session_timeout`. Its
//! `application_name` is the owner token and the ttl in milliseconds, so that others see who holds.

use std::time::Duration;

use async_trait::async_trait;
use tenure::{Error, Holder, Name, Owner, Share};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::Argument;
use super::failure::read_only;
use super::read::column;
use super::source::{Client, How};
use crate::advisory::locks::digest;
use crate::advisory::{HolderSession, Live, Locks, hex_digest};
use crate::table::failure::unexpected;
use crate::table::{Failed, Server, Session, no_end};

/// Makes sure that the server can end an idle session: it cannot before PostgreSQL 14. No row if not.
const CHECK: &str = "SELECT 1 FROM pg_settings WHERE name = 'idle_session_timeout'";

/// Calls a function on the lock of `$1` and `$2`: its key, and whether that is a pair.
macro_rules! on_key {
    ($function:literal) => {
        concat!("CASE WHEN $2 THEN ", $function, "(($1 >> 32)::int, (($1 << 32) >> 32)::int) ELSE ", $function, "($1) END")
    };
}

/// A lock of this database that is held, in `pg_locks l`.
macro_rules! ours {
    () => {
        "l.locktype = 'advisory' AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    };
}

/// The row of the lock of `$1` and `$2` in `pg_locks l`.
macro_rules! is_key {
    () => {
        concat!(
            ours!(),
            " AND l.classid = (($1 >> 32) & 4294967295)::oid AND l.objid = ($1 & 4294967295)::oid
  AND l.objsubid = CASE WHEN $2 THEN 2 ELSE 1 END"
        )
    };
}

/// Who holds, from `pg_locks l`: its process and when that began, its name for itself, its user, and
/// for how long it was idle, in milliseconds.
macro_rules! found {
    () => {
        "l.pid, extract(epoch FROM a.backend_start)::text, coalesce(a.application_name, ''), coalesce(a.usename::text, ''),
  (extract(epoch FROM clock_timestamp() - a.state_change) * 1000)::bigint"
    };
}

/// An answer of a server that is read-only is NULL.
macro_rules! of_primary {
    ($($answer:expr),+) => {
        concat!("CASE WHEN current_setting('transaction_read_only') = 'off' THEN ", $($answer,)+ " END")
    };
}

/// Takes a lock if it is free.
///
/// Arguments: the key; the ttl in milliseconds; the name of the session for itself. Reply: whether it
/// was taken. NULL if the server is read-only.
const TAKE: &str = concat!(
    "WITH tried AS MATERIALIZED (SELECT ",
    of_primary!(on_key!("pg_try_advisory_lock")),
    " AS taken)
SELECT taken, set_config('idle_session_timeout', CASE WHEN taken THEN $3 ELSE '0' END, false),
  set_config('application_name', CASE WHEN taken THEN $4 ELSE 'tenure' END, false)
FROM tried"
);

/// Begins the ttl anew.
///
/// Arguments: as of [`TAKE`]. Reply: whether this session holds the lock. NULL if the server is read-only.
const KEEP: &str = concat!(
    "SELECT ",
    of_primary!(
        "EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.mode = 'ExclusiveLock' AND ",
        is_key!(),
        ")"
    ),
    ", set_config('idle_session_timeout', $3, false), set_config('application_name', $4, false)"
);

/// Frees a lock.
///
/// Arguments: the key. Reply: whether this session held it.
const FREE: &str = concat!("SELECT ", on_key!("pg_advisory_unlock"));

/// Arguments: the key. Reply: who holds it.
const HOLDER: &str =
    concat!("SELECT ", found!(), " FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid) WHERE ", is_key!(), " LIMIT 1");

/// Arguments: the key, the owner's mark. Reply: the process that holds it with that mark, and when it
/// began.
const SESSION_OF: &str = concat!(
    "SELECT l.pid, extract(epoch FROM a.backend_start)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE ",
    is_key!(),
    " AND starts_with(a.application_name, $3 || ' ')"
);

/// Reply: who holds each key, the key, and whether that is a pair.
const LIST: &str = concat!(
    "SELECT ",
    found!(),
    ", (l.classid::bigint << 32) | l.objid::bigint, l.objsubid = 2 FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid) WHERE ",
    ours!(),
    " ORDER BY l.classid, l.objid"
);

/// Longest mark of an owner: the rest of an `application_name` is for the ttl.
const MARK: usize = 50;

/// A key of 64 bits, or a pair of 32 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    bits: i64,
    is_pair: bool,
}

impl Key {
    /// The lock of a name: a decimal integer is the key itself, two with a comma between them are the
    /// pair, and of all else it is the first 64 bits of the SHA-256.
    fn of(name: &str) -> Self {
        let hashed = || i64::from_be_bytes(digest(name.as_bytes()));
        let pair = || name.split_once(',').and_then(|(high, low)| Some((canonical::<i32>(high)?, canonical::<i32>(low)?)));
        match pair() {
            Some((high, low)) => Self { bits: i64::from(high) << 32 | i64::from(low) & 0xffff_ffff, is_pair: true },
            None => Self { bits: canonical(name).unwrap_or_else(hashed), is_pair: false },
        }
    }

    /// A name of this key.
    fn name(self) -> String {
        let Self { bits, is_pair } = self;
        if is_pair { format!("{},{}", bits >> 32, bits << 32 >> 32) } else { bits.to_string() }
    }

    fn arguments(&self) -> [Argument<'_>; 2] {
        [(&self.bits, Type::INT8), (&self.is_pair, Type::BOOL)]
    }
}

/// A number that is written as it is printed: `07` and `+7` are names like any other.
fn canonical<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

/// The part of an owner token that fits into an `application_name`. It tells tokens apart.
fn mark(owner: &Owner) -> String {
    let text = std::str::from_utf8(owner.as_bytes()).unwrap_or_default();
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.len().checked_sub(MARK) {
        None | Some(0) if is_plain => text.to_owned(),
        // The random digits are at the end.
        Some(cut) if is_plain && owner.is_generated() => text[cut..].to_owned(),
        _ => format!("sha256:{}", hex_digest::<20>(owner.as_bytes())),
    }
}

fn millis(ttl: Duration) -> String {
    ttl.as_millis().max(1).to_string()
}

/// Session locks in one database.
pub(super) struct Advisory(pub(super) How);

impl Advisory {
    async fn ask(&self, live: &Live<Client>, sql: &str, arguments: &[Argument<'_>]) -> Result<Vec<Row>, Failed> {
        self.0.run(&live.client, (sql, arguments), no_end()).await
    }

    /// Asks a question that has yes or no for an answer. `None`: NULL.
    async fn is(&self, live: &Live<Client>, sql: &str, arguments: &[Argument<'_>]) -> Result<Option<bool>, Failed> {
        let rows = self.ask(live, sql, arguments).await?;
        rows.first().ok_or_else(|| unexpected("it has no row")).and_then(|row| column(row, 0)).map_err(answered)
    }

    /// Runs [`TAKE`] or [`KEEP`].
    async fn holds(
        &self,
        live: &Live<Client>,
        sql: &str,
        key: &Key,
        owner: &Owner,
        ttl: Duration,
    ) -> Result<Option<bool>, Failed> {
        let ttl = millis(ttl);
        let shown = format!("{} {ttl}", mark(owner));
        self.is(live, sql, &[&key.arguments()[..], &[(&ttl, Type::TEXT), (&shown, Type::TEXT)]].concat()).await
    }
}

fn answered(error: Error) -> Failed {
    Failed { error, answered: true, is_over: false }
}

fn found(live: &Live<Client>, row: &Row) -> Result<HolderSession, Error> {
    let (name, user, idle): (String, String, Option<i64>) = (column(row, 2)?, column(row, 3)?, column(row, 4)?);
    let (id, session) = session(live, row)?;
    let marked = name.rsplit_once(' ').and_then(|(mark, ttl)| Some((mark, canonical::<u64>(ttl)?)));
    let ours = marked.map(|(mark, ttl)| (Owner::from_bytes(mark.as_bytes()), ttl)).filter(|(owner, _)| owner.is_generated());
    let holder = if let Some((owner, ttl)) = ours {
        let left = ttl.saturating_sub(idle.and_then(|idle| u64::try_from(idle).ok()).unwrap_or_default());
        Holder::new(owner, Share::MUTEX).with_ttl(Duration::from_millis(left))
    } else {
        let owner = Owner::from_bytes(format!("pid {id}, {user}, {name}").into_bytes());
        Holder::new(owner, Share::MUTEX).with_of_session(true)
    };
    Ok(HolderSession { session, id, holder })
}

/// The process of a row, and its session if this user may see it.
fn session(live: &Live<Client>, row: &Row) -> Result<(i64, Option<Session>), Error> {
    let (id, began): (i32, Option<String>) = (column(row, 0)?, column(row, 1)?);
    let id = i64::from(id);
    Ok((id, began.map(|began| Session { server: live.session.server.clone(), id, began })))
}

#[async_trait]
impl Locks for Advisory {
    type Server = How;
    type Key = Key;

    fn server(&self) -> &How {
        &self.0
    }

    fn key(&self, name: &Name) -> Result<Key, Error> {
        Ok(Key::of(name.as_str()))
    }

    fn max_name(&self) -> usize {
        Name::MAX_BYTES
    }

    fn min_ttl(&self) -> Duration {
        Duration::from_millis(10)
    }

    async fn check(&self, live: &Live<Client>) -> Result<(), Failed> {
        if self.ask(live, CHECK, &[]).await?.is_empty() {
            let what = "the server is older than PostgreSQL 14, so it cannot end the session of a holder that is gone";
            let error = Error::new(tenure::ErrorKind::Unsupported, what).with_hint("leave scheme=advisory out");
            return Err(answered(error));
        }
        Ok(())
    }

    async fn take(&self, live: &Live<Client>, key: &Key, owner: &Owner, ttl: Duration) -> Result<bool, Failed> {
        // Another server may be in charge, so this session is left.
        let read_only = || Failed { is_over: true, ..answered(read_only()) };
        self.holds(live, TAKE, key, owner, ttl).await?.ok_or_else(read_only)
    }

    async fn keep(&self, live: &Live<Client>, key: &Key, owner: &Owner, ttl: Duration) -> Result<bool, Failed> {
        self.holds(live, KEEP, key, owner, ttl).await?.ok_or_else(|| answered(read_only()))
    }

    async fn free(&self, live: &Live<Client>, key: &Key, _: &Owner) -> Result<bool, Failed> {
        Ok(self.is(live, FREE, &key.arguments()).await? == Some(true))
    }

    /// The next renewal marks it.
    async fn pass(&self, _: &Live<Client>, _: &Key, _: &Owner, _: &Owner) -> Result<(), Failed> {
        Ok(())
    }

    async fn holder(&self, live: &Live<Client>, key: &Key) -> Result<Option<HolderSession>, Failed> {
        let rows = self.ask(live, HOLDER, &key.arguments()).await?;
        rows.first().map(|row| found(live, row)).transpose().map_err(answered)
    }

    async fn session_of(&self, live: &Live<Client>, key: &Key, owner: &Owner) -> Result<Option<Session>, Failed> {
        let mark = mark(owner);
        let rows = self.ask(live, SESSION_OF, &[&key.arguments()[..], &[(&mark, Type::TEXT)]].concat()).await?;
        Ok(rows.first().map(|row| session(live, row)).transpose().map_err(answered)?.and_then(|(_, session)| session))
    }

    async fn list(&self, live: &Live<Client>) -> Result<Vec<(Name, HolderSession)>, Failed> {
        let rows = self.ask(live, LIST, &[]).await?;
        let entry = |row: &Row| {
            let key = Key { bits: column(row, 5)?, is_pair: column(row, 6)? };
            Ok((Name::new(key.name())?, found(live, row)?))
        };
        rows.iter().map(entry).collect::<Result<_, Error>>().map_err(answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_own_key_and_other_names_have_one_of_64_bits() {
        let key = |bits, is_pair| Key { bits, is_pair };
        for (name, key) in [
            ("0", key(0, false)),
            ("123", key(123, false)),
            ("-1", key(-1, false)),
            ("9223372036854775807", key(i64::MAX, false)),
            ("7,42", key((7 << 32) + 42, true)),
            ("7,-42", key((8 << 32) - 42, true)),
            ("-7,-42", key(-(6 << 32) - 42, true)),
        ] {
            assert_eq!((Key::of(name), key.name()), (key, name.to_owned()));
        }
        // SELECT ('x' || substr(encode(sha256('door'), 'hex'), 1, 16))::bit(64)::bigint
        for name in ["door", "", "007", "+7", "-0", " 7", "7, 42", "7,4294967296", "9223372036854775808", "1,2,3"] {
            let hashed = i64::from_be_bytes(digest(name.as_bytes()));
            assert_eq!(Key::of(name), key(hashed, false), "{name:?}");
        }
    }

    #[test]
    fn a_mark_fits_and_tells_tokens_apart() {
        let long = Owner::generate(&"host-".repeat(20)).unwrap();
        let given = |text: &str| Owner::from_bytes(text.as_bytes());
        let owners =
            [Owner::generate("web-1.42").unwrap(), long, given("mine"), given("ours mine"), given(&"m".repeat(51)), given("\n")];
        let marks: Vec<String> = owners.iter().map(mark).collect();
        for (at, mark) in marks.iter().enumerate() {
            assert!(mark.len() <= MARK && !mark.contains(' ') && !marks[..at].contains(mark), "{marks:?}");
        }
        assert_eq!((&*marks[0], &*marks[2]), (&*owners[0].to_string(), "mine"));
    }
}
