//! Session locks of MariaDB and MySQL: those of `GET_LOCK`.
//!
//! The session of a lease ends when it was idle for the ttl: `wait_timeout`, in whole seconds. It has a
//! second lock, named by a digest of the name and the owner token. So others who know the token can see
//! that this session is the owner's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::{Row, Value};
use tenure::{Error, ErrorKind, Holder, Name, Owner, Share};

use super::read::column;
use super::server::{Done, How, Jobs, Statement, Work};
use super::statements::VERSION;
use super::text;
use crate::advisory::{Found, Live, Locks, hex_digest};
use crate::table::failure::unexpected;
use crate::table::{Failed, Server, Session};

/// Looks at a fresh connection, as the statement of the same name of a table does.
pub(super) fn hello() -> String {
    format!(
        "SELECT @@global.read_only <> 0, CONNECTION_ID(),
  (SELECT host FROM information_schema.processlist WHERE id = CONNECTION_ID()), {VERSION}"
    )
}

/// Whether the server is one of a Galera cluster, where each keeps locks of its own, or refuses.
const CLUSTER: &str = "SHOW VARIABLES LIKE 'wsrep_on'";

/// Has the server end this session when it was idle so many seconds, which are put behind it.
const IDLE_TIME: &str = "SET SESSION wait_timeout = ";

/// Takes a lock if it is free, and the one that marks its owner.
///
/// Arguments: the lock, the mark. Reply: 1 if it was taken, 0 if it is busy, NULL after an error.
const TAKE: &str = "SELECT CASE GET_LOCK(?, 0) WHEN 1 THEN GET_LOCK(?, 0) WHEN 0 THEN 0 END";

/// Arguments: the lock. Reply: 1 if this session holds it.
const KEEP: &str = "SELECT IS_USED_LOCK(?) = CONNECTION_ID()";

/// Frees a lock and its mark.
///
/// Arguments: the lock, the mark. Reply: 1 if this session held the lock, 0 if another does, NULL if
/// nobody does.
const FREE: &str = "SELECT RELEASE_LOCK(?), RELEASE_LOCK(?)";

/// Marks a lock with another owner.
///
/// Arguments: the mark of the old owner, that of the new one.
const PASS: &str = "SELECT RELEASE_LOCK(?), GET_LOCK(?, 0)";

/// Arguments: the lock. Reply: the session that holds it, its user and its client's address, if this
/// user may see them.
const HOLDER: &str = "SELECT u.id, p.user, p.host FROM (SELECT IS_USED_LOCK(?) AS id) u
  LEFT JOIN information_schema.processlist p ON p.id = u.id WHERE u.id IS NOT NULL";

/// Arguments: the lock, the mark. Reply: the session that holds both, and its client's address.
const SESSION_OF: &str = "SELECT p.id, p.host FROM (SELECT IS_USED_LOCK(?) AS id, IS_USED_LOCK(?) AS marked) u
  JOIN information_schema.processlist p ON p.id = u.id WHERE u.id = u.marked";

/// Longest name of a lock, in characters.
pub(super) const LONGEST: usize = 64;

/// Session locks of one server.
pub(super) struct Advisory {
    pub(super) how: How,
    /// Put in front of each name: the locks of a server are those of all its databases.
    pub(super) prefix: String,
}

/// A lock.
#[derive(Clone, Debug)]
pub(super) struct Key(String);

impl Key {
    fn mark(&self, owner: &Owner) -> Value {
        text(&format!("tenure:{}", hex_digest::<20>(&[self.0.as_bytes(), b"\0", owner.as_bytes()].concat())))
    }
}

/// Refuses a name that the server does not keep apart from others: it compares without case, some
/// versions without accents and without spaces at the end, and some cut what is too long.
pub(super) fn check(name: &str) -> Result<(), Error> {
    let is_plain = |b: u8| (b.is_ascii_graphic() || b == b' ') && !b.is_ascii_uppercase();
    if name.len() > LONGEST {
        let what = format!("the name of a lock of GET_LOCK has {LONGEST} characters at most, and {name:?} has {}", name.len());
        return Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"));
    }
    if !name.bytes().all(is_plain) || name.trim() != name {
        let what = format!("GET_LOCK does not tell {name:?} apart from other names: it compares without case");
        return Err(Error::invalid(what).with_hint("write it in lower case and in ASCII, without spaces at its ends"));
    }
    Ok(())
}

impl Advisory {
    async fn ask(&self, live: &Live<Jobs>, sql: &str, arguments: Vec<Value>) -> Result<Done, Failed> {
        let answer = self.how.run(&live.client, Work::One(&Statement { sql: sql.to_owned(), arguments })).await;
        answer.map_err(|failed| if failed.answered && !failed.is_over { refused(failed) } else { failed })
    }

    /// Asks for one number, which may be NULL.
    async fn number(&self, live: &Live<Jobs>, sql: &str, arguments: Vec<Value>) -> Result<Option<i64>, Failed> {
        let done = self.ask(live, sql, arguments).await?;
        let row = done.rows.first().ok_or_else(|| answered(unexpected("it has no row")))?;
        column(row, 0).map_err(answered)
    }

    /// Sets the time for which the session may be idle.
    async fn set_idle_time(&self, live: &Live<Jobs>, ttl: Duration) -> Result<(), Failed> {
        let seconds = self.kept(ttl).as_secs();
        if live.idle_time.load(Ordering::Relaxed) != seconds {
            self.ask(live, &format!("{IDLE_TIME}{seconds}"), Vec::new()).await?;
            live.idle_time.store(seconds, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn answered(error: Error) -> Failed {
    Failed { error, answered: true, is_over: false }
}

/// A server of a cluster refuses the functions as not supported yet.
fn refused(failed: Failed) -> Failed {
    if failed.error.to_string().contains("yet support") { answered(in_a_cluster()) } else { failed }
}

fn in_a_cluster() -> Error {
    let what = "the server is one of a Galera cluster, in which each has locks of its own";
    Error::new(ErrorKind::Unsupported, what).with_hint("leave scheme=advisory out: a table is the same on all servers")
}

#[async_trait]
impl Locks for Advisory {
    type Server = How;
    type Key = Key;

    fn server(&self) -> &How {
        &self.how
    }

    fn key(&self, name: &Name) -> Result<Key, Error> {
        let lock = format!("{}{name}", self.prefix);
        check(&lock)?;
        Ok(Key(lock))
    }

    fn max_name(&self) -> usize {
        LONGEST.saturating_sub(self.prefix.len())
    }

    fn min_ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// In whole seconds, and one more: some servers count in steps of half a second.
    fn kept(&self, ttl: Duration) -> Duration {
        Duration::from_secs(ttl.as_secs() + 1 + u64::from(ttl.subsec_nanos() > 0))
    }

    async fn check(&self, live: &Live<Jobs>) -> Result<(), Failed> {
        let done = self.ask(live, CLUSTER, Vec::new()).await?;
        let value = done.rows.first().map(|row| column::<String>(row, 1)).transpose().map_err(answered)?;
        if value.is_some_and(|value| value.eq_ignore_ascii_case("on")) { Err(answered(in_a_cluster())) } else { Ok(()) }
    }

    async fn take(&self, live: &Live<Jobs>, key: &Key, owner: &Owner, ttl: Duration) -> Result<bool, Failed> {
        // Before the lock: else a client that dies in between would keep it for hours.
        self.set_idle_time(live, ttl).await?;
        match self.number(live, TAKE, vec![text(&key.0), key.mark(owner)]).await? {
            Some(taken) => Ok(taken == 1),
            None => {
                let what = "the server could not say whether it gave the lock: it is short of memory, or the call was killed";
                Err(answered(Error::unavailable(what).maybe_applied()))
            }
        }
    }

    async fn keep(&self, live: &Live<Jobs>, key: &Key, _: &Owner, ttl: Duration) -> Result<bool, Failed> {
        self.set_idle_time(live, ttl).await?;
        Ok(self.number(live, KEEP, vec![text(&key.0)]).await? == Some(1))
    }

    async fn free(&self, live: &Live<Jobs>, key: &Key, owner: &Owner) -> Result<bool, Failed> {
        Ok(self.number(live, FREE, vec![text(&key.0), key.mark(owner)]).await? == Some(1))
    }

    async fn pass(&self, live: &Live<Jobs>, key: &Key, from: &Owner, to: &Owner) -> Result<(), Failed> {
        self.number(live, PASS, vec![key.mark(from), key.mark(to)]).await.map(|_| ())
    }

    async fn holder(&self, live: &Live<Jobs>, key: &Key) -> Result<Option<Found>, Failed> {
        let done = self.ask(live, HOLDER, vec![text(&key.0)]).await?;
        let found = |row: &Row| {
            let (id, user, host): (i64, Option<String>, Option<String>) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
            let seen = user.zip(host).map_or(String::new(), |(user, host)| format!(", {user}@{host}"));
            let owner = Owner::from_bytes(format!("connection {id}{seen}").into_bytes());
            Ok(Found { id, holder: Holder::new(owner, Share::MUTEX) })
        };
        done.rows.first().map(found).transpose().map_err(answered)
    }

    async fn session_of(&self, live: &Live<Jobs>, key: &Key, owner: &Owner) -> Result<Option<Session>, Failed> {
        let done = self.ask(live, SESSION_OF, vec![text(&key.0), key.mark(owner)]).await?;
        let session = |row: &Row| {
            let (id, began): (i64, String) = (column(row, 0)?, column(row, 1)?);
            Ok(Session { server: live.session.server.clone(), id, began })
        };
        done.rows.first().map(session).transpose().map_err(answered)
    }

    async fn list(&self, _: &Live<Jobs>) -> Result<Vec<(Name, Found)>, Failed> {
        let what = "the server does not list the locks of GET_LOCK";
        Err(answered(Error::new(ErrorKind::Unsupported, what).with_hint("ask for one name")))
    }
}
