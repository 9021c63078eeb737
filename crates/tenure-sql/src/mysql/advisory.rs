//! Session locks of MariaDB and MySQL: those of `GET_LOCK`.
//!
//! The session of a lease ends when it was idle for the ttl: `wait_timeout`, in whole seconds. It has a
//! second lock, named by a digest of the name and the owner token. So others who know the token can see
//! that this session is the owner's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::{Row, Value};
use tenure::{Error, ErrorKind, Holder, Name, Owner, Share};

use super::failure::read_only;
use super::read::column;
use super::server::How;
use super::statements::VERSION;
use super::text;
use super::work::{Done, Statement, Work};
use crate::advisory::{HolderSession, Live, Locks, hex_digest};
use crate::table::failure::unexpected;
use crate::table::{Failed, Server, Session, no_end};

/// Looks at a fresh connection, as the statement of the same name of a table does.
pub(super) fn hello() -> String {
    format!(
        "SELECT @@global.read_only <> 0, CONNECTION_ID(),
  (SELECT host FROM information_schema.processlist WHERE id = CONNECTION_ID()), {VERSION}"
    )
}

/// Looks at the server. Reply: its version. And whether it is one of a Galera cluster, in which each
/// has locks of its own, or refuses them.
const CHECK: &str = "SHOW VARIABLES WHERE variable_name IN ('version', 'wsrep_on')";

/// Has the server end this session when it was idle so many seconds, which are put behind it.
const IDLE_TIME: &str = "SET SESSION wait_timeout = ";

/// The reply of a server that is read-only.
const READ_ONLY: i64 = -1;

/// Takes a lock if it is free, and the one that marks its owner.
///
/// Arguments: the lock, the mark. Reply: 1 if it was taken, 0 if it is busy, or [`READ_ONLY`]. NULL after an error, or if
/// the mark alone is busy: then the session has the lock, and is not to be used any more.
const TAKE: &str = "SELECT CASE WHEN @@global.read_only <> 0 THEN -1
  ELSE CASE GET_LOCK(?, 0) WHEN 1 THEN NULLIF(GET_LOCK(?, 0), 0) WHEN 0 THEN 0 END END";

/// Arguments: the lock. Reply: 1 if this session holds it, or [`READ_ONLY`].
const KEEP: &str = "SELECT CASE WHEN @@global.read_only <> 0 THEN -1 ELSE IS_USED_LOCK(?) = CONNECTION_ID() END";

/// Frees a lock and its mark.
///
/// Arguments: the lock, the mark. Reply: 1 if this session held the lock, 0 if another does, NULL if
/// nobody does.
const FREE: &str = "SELECT RELEASE_LOCK(?), RELEASE_LOCK(?)";

/// Marks a lock with another owner.
///
/// Arguments: the mark of the old owner, that of the new one.
const PASS: &str = "SELECT RELEASE_LOCK(?), GET_LOCK(?, 0)";

/// Arguments: the lock. Reply: the session that holds it, its client's address and its user, if this
/// user may see them. The `LIMIT` has MySQL ask for the lock once, and not wherever the number is used.
const HOLDER: &str = "SELECT u.id, p.host, p.user FROM (SELECT IS_USED_LOCK(?) AS id LIMIT 1) u
  LEFT JOIN information_schema.processlist p ON p.id = u.id WHERE u.id IS NOT NULL";

/// Arguments: the lock, the mark. Reply: the session that holds both, and its client's address.
const SESSION_OF: &str = "SELECT p.id, p.host FROM (SELECT IS_USED_LOCK(?) AS id, IS_USED_LOCK(?) AS marked LIMIT 1) u
  JOIN information_schema.processlist p ON p.id = u.id WHERE u.id = u.marked";

/// Longest name of a lock, in characters.
pub(super) const LONGEST: usize = 64;

type Client = <How as Server>::Client;

/// Session locks of one server.
pub(super) struct Advisory {
    pub(super) how: How,
    /// Put in front of each name: the locks of a server are those of all its databases.
    pub(super) prefix: String,
    /// The server compares names without case. MySQL does, and MariaDB does not.
    pub(super) folds_case: AtomicBool,
}

/// A lock.
#[derive(Clone, Debug)]
pub(super) struct Key(String);

impl Key {
    fn owner_lock(&self, owner: &Owner) -> Value {
        text(&format!("tenure:{}", hex_digest::<20>(&[self.0.as_bytes(), b"\0", owner.as_bytes()].concat())))
    }
}

/// Refuses a name that the server does not keep apart from others. MySQL compares without case. The
/// bytes of a letter that is not ASCII depend on the client's character set.
pub(super) fn check(name: &str, folds_case: bool) -> Result<(), Error> {
    if name.len() > LONGEST {
        let what = format!("the name of a lock of GET_LOCK has {LONGEST} characters at most, and {name:?} has {}", name.len());
        return Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"));
    }
    if !name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') || name.trim() != name {
        let what = format!("GET_LOCK does not tell {name:?} apart from other names on every server");
        return Err(Error::invalid(what).with_hint("use ASCII, without spaces at the ends"));
    }
    if folds_case && name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let what = format!("MySQL does not tell {name:?} apart from other names: GET_LOCK compares without case");
        return Err(Error::invalid(what).with_hint("write it in lower case, which is the same lock"));
    }
    Ok(())
}

impl Advisory {
    async fn ask(&self, live: &Live<Client>, sql: &str, arguments: Vec<Value>) -> Result<Done, Failed> {
        let answer = self.how.run(&live.client, Work::One(&Statement { sql: sql.to_owned(), arguments }), no_end()).await;
        answer.map_err(|failed| if failed.answered && !failed.is_over { refused(failed) } else { failed })
    }

    /// Asks for one number, which may be NULL.
    async fn number(&self, live: &Live<Client>, sql: &str, arguments: Vec<Value>) -> Result<Option<i64>, Failed> {
        let done = self.ask(live, sql, arguments).await?;
        let row = done.rows.first().ok_or_else(|| answered(unexpected("it has no row")))?;
        column(row, 0).map_err(answered)
    }

    /// Sets the time for which the session may be idle: whole seconds, and one more, because some servers
    /// count in steps of half a second.
    async fn set_idle_time(&self, live: &Live<Client>, ttl: Duration) -> Result<(), Failed> {
        let seconds = ttl.as_secs() + 1 + u64::from(ttl.subsec_nanos() > 0);
        // Noted before it is sent: it runs also if this call is dropped.
        if live.idle_time.swap(seconds, Ordering::Relaxed) == seconds {
            return Ok(());
        }
        let set = self.ask(live, &format!("{IDLE_TIME}{seconds}"), Vec::new()).await;
        set.map(drop).inspect_err(|_| live.idle_time.store(0, Ordering::Relaxed))
    }
}

/// The session of a row, if this user may see it, and its number.
fn session(live: &Live<Client>, row: &Row) -> Result<(i64, Option<Session>), Error> {
    let (id, began): (i64, Option<String>) = (column(row, 0)?, column(row, 1)?);
    Ok((id, began.map(|began| Session { server: live.session.server.clone(), id, began })))
}

fn answered(error: Error) -> Failed {
    Failed { error, answered: true, is_over: false }
}

/// Whether `GET_LOCK` gave the lock. Its NULL is no answer to that.
fn taken(answer: Option<i64>) -> Result<bool, Failed> {
    if answer == Some(READ_ONLY) {
        // Another server may be in charge, so this session is left.
        return Err(Failed { is_over: true, ..answered(read_only()) });
    }
    answer.map(|taken| taken == 1).ok_or_else(|| {
        let what = "the server did not say whether it gave the lock: it is short of memory, or the call was killed";
        answered(Error::unavailable(what).maybe_applied())
    })
}

/// Whether a session can hold several locks. On older servers the second frees the first.
fn holds_several(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version_is = [(); 3].map(|()| numbers.next().unwrap_or_default());
    version_is >= if version.contains("MariaDB") { [10, 0, 2] } else { [5, 7, 5] }
}

fn too_old(version: &str) -> Error {
    let what = format!("the server is {version}, on which a session holds one lock: MariaDB 10.0.2 and MySQL 5.7.5 hold several");
    Error::new(ErrorKind::Unsupported, what).with_hint("leave scheme=advisory out, or use a newer server")
}

/// A server of a cluster refuses the functions as not supported yet.
fn refused(failed: Failed) -> Failed {
    if failed.error.to_string().contains("yet support") { answered(in_a_cluster()) } else { failed }
}

fn in_a_cluster() -> Error {
    let what = "the server is one of a Galera cluster, in which each has locks of its own";
    Error::new(ErrorKind::Unsupported, what).with_hint(
        "leave scheme=advisory out: a table needs clocks of all servers that are equal, or writers=one in the store URL",
    )
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
        check(&lock, self.folds_case.load(Ordering::Relaxed))?;
        Ok(Key(lock))
    }

    fn max_name(&self) -> usize {
        LONGEST.saturating_sub(self.prefix.len())
    }

    fn min_ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn check(&self, live: &Live<Client>) -> Result<(), Failed> {
        for row in self.ask(live, CHECK, Vec::new()).await?.rows {
            let (variable, value): (String, String) = (column(&row, 0).map_err(answered)?, column(&row, 1).map_err(answered)?);
            match &*variable {
                "version" if !holds_several(&value) => return Err(answered(too_old(&value))),
                "version" => self.folds_case.store(!value.contains("MariaDB"), Ordering::Relaxed),
                _ if value.eq_ignore_ascii_case("on") => return Err(answered(in_a_cluster())),
                _ => {}
            }
        }
        Ok(())
    }

    async fn take(&self, live: &Live<Client>, key: &Key, owner: &Owner, ttl: Duration) -> Result<bool, Failed> {
        // Before the lock: else a client that dies in between would keep it for hours.
        self.set_idle_time(live, ttl).await?;
        taken(self.number(live, TAKE, vec![text(&key.0), key.owner_lock(owner)]).await?)
    }

    async fn keep(&self, live: &Live<Client>, key: &Key, _: &Owner, ttl: Duration) -> Result<bool, Failed> {
        self.set_idle_time(live, ttl).await?;
        match self.number(live, KEEP, vec![text(&key.0)]).await? {
            Some(READ_ONLY) => Err(answered(read_only())),
            answer => Ok(answer == Some(1)),
        }
    }

    async fn free(&self, live: &Live<Client>, key: &Key, owner: &Owner) -> Result<bool, Failed> {
        Ok(self.number(live, FREE, vec![text(&key.0), key.owner_lock(owner)]).await? == Some(1))
    }

    async fn pass(&self, live: &Live<Client>, key: &Key, from: &Owner, to: &Owner) -> Result<(), Failed> {
        self.number(live, PASS, vec![key.owner_lock(from), key.owner_lock(to)]).await.map(|_| ())
    }

    async fn holder(&self, live: &Live<Client>, key: &Key) -> Result<Option<HolderSession>, Failed> {
        let done = self.ask(live, HOLDER, vec![text(&key.0)]).await?;
        let found = |row: &Row| {
            let (user, (id, session)): (Option<String>, _) = (column(row, 2)?, session(live, row)?);
            let seen = session.as_ref().zip(user).map_or(String::new(), |(session, user)| format!(", {user}@{}", session.began));
            let owner = Owner::from_bytes(format!("connection {id}{seen}").into_bytes());
            Ok(HolderSession { session, id, holder: Holder::new(owner, Share::MUTEX).with_of_session(true) })
        };
        done.rows.first().map(found).transpose().map_err(answered)
    }

    async fn session_of(&self, live: &Live<Client>, key: &Key, owner: &Owner) -> Result<Option<Session>, Failed> {
        let done = self.ask(live, SESSION_OF, vec![text(&key.0), key.owner_lock(owner)]).await?;
        let found = done.rows.first().map(|row| session(live, row)).transpose().map_err(answered)?;
        Ok(found.and_then(|(_, session)| session))
    }

    async fn list(&self, _: &Live<Client>) -> Result<Vec<(Name, HolderSession)>, Failed> {
        let what = "the server does not list the locks of GET_LOCK";
        Err(answered(Error::new(ErrorKind::Unsupported, what).with_hint("ask for one name")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_server_would_mix_up_are_refused() {
        for name in ["door", "door 1", "app.db/door-7:x", &"n".repeat(64)] {
            check(name, true).unwrap();
        }
        check("Door", false).unwrap();
        assert_eq!(check("Door", true).unwrap_err().kind(), ErrorKind::Invalid);
        for name in ["t\u{fc}r", "door ", " door", "\u{212a}", &"n".repeat(65)] {
            assert_eq!(check(name, false).unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
        }
    }

    #[test]
    fn a_server_on_which_the_mark_would_free_the_lock_is_refused() {
        for version in ["10.11.6-MariaDB-0+deb12u1", "10.0.2-MariaDB", "5.7.5", "5.7.44-log", "8.0.33", "9.7.4"] {
            assert!(holds_several(version), "{version}");
        }
        for version in ["10.0.1-MariaDB", "5.5.68-MariaDB", "5.7.4-m14", "5.6.51", "5.1", "", "odd"] {
            assert!(!holds_several(version), "{version}");
        }
    }

    #[test]
    fn null_is_neither_taken_nor_busy() {
        assert!(taken(Some(1)).unwrap() && !taken(Some(0)).unwrap());
        let failed = taken(None).unwrap_err();
        assert!(failed.error.kind() == ErrorKind::Unavailable && failed.error.may_have_been_applied());
    }

    #[test]
    fn a_server_of_a_cluster_is_told() {
        // Code 1235.
        let said = "This version of MariaDB doesn't yet support 'GET_LOCK in cluster (WSREP_ON=ON)'";
        let error = refused(answered(Error::refused(format!("the server answered: {said} (1235)")))).error;
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("Galera"), "{error}");
    }
}
