//! Where the data and the locks are.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::Commands as _;
use rusqlite::{Connection, ErrorCode};
use tempfile::TempDir;
use tenure::Locker;
use tenure::store::Features;
use tenure_testkit::{RedisServer, guardian, patiently};

use crate::Error;

/// A temporary folder for files, and a store: one of the user, or a Redis that ends with the program.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    /// The store, unless it is a file of the folder.
    url: Option<String>,
    server: Option<RedisServer>,
    /// Random, because process ids of containers are alike.
    run: u64,
}

impl Place {
    /// Finds a place. `redis` starts a server in the folder, and a URL names any store. `embedded`, or nothing, is files.
    ///
    /// # Errors
    /// For a URL of no store, or if a server cannot be started or the folder be made.
    pub fn new(store: Option<&str>) -> Result<Self, Error> {
        guardian::watch_over_us()?;
        let folder = TempDir::with_prefix("tenure-jobs-")?;
        if store == Some("redis") {
            has_redis_server()?;
        }
        let server = (store == Some("redis")).then(RedisServer::start);
        let url = match (store, &server) {
            (_, Some(server)) => Some(server.url()),
            (Some("embedded") | None, None) => None,
            (Some(url), None) => {
                let bad = |error| format!("--store: {error}. Or give embedded, or redis, which starts one");
                tenure_stores::Options::parse(url).map_err(bad)?;
                Some(url.to_owned())
            }
        };
        Ok(Self { folder, url, server, run: RandomState::new().hash_one(std::process::id()) })
    }

    /// URL of the store that was named.
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// URL of the store, if it is one Redis server. It keeps data as well then.
    pub fn redis(&self) -> Option<&str> {
        self.url().filter(|url| ["redis://", "valkey://"].iter().any(|scheme| url.starts_with(scheme)))
    }

    /// Whether the URL of the store has a scheme of locks.
    pub fn has_scheme(&self) -> bool {
        let parameters = self.url().and_then(|url| url.split_once('?')).map_or("", |(_, parameters)| parameters);
        parameters.split('&').any(|parameter| parameter.starts_with("scheme="))
    }

    /// URL of locks: those of the store, or of this file of the folder.
    pub fn locks(&self, file: &str) -> String {
        self.url.clone().unwrap_or_else(|| format!("sqlite:{}", self.file(file).display()))
    }

    /// Features of the store.
    ///
    /// # Errors
    /// The store's.
    pub async fn features(&self) -> Result<Features, Error> {
        Ok(tenure_stores::connect(self.locks("features.db")).await?.store().features())
    }

    /// Opens a connection that asks what the examples ask of a store.
    ///
    /// # Errors
    /// The server's.
    pub fn probe(&self) -> Result<Probe, Error> {
        let connect = |url: &str| redis::Client::open(url)?.get_connection();
        Ok(Probe(self.redis().map(connect).transpose()?))
    }

    /// Prefix of the names of this run, which no other run at the same store has.
    pub fn prefix(&self, program: &str) -> String {
        format!("{program}/{}-{:016x}/", std::process::id(), self.run)
    }

    /// Deletes the keys of this run from a Redis of the user.
    ///
    /// # Errors
    /// The server's.
    pub fn forget(&self, prefix: &str) -> Result<(), Error> {
        let (Some(url), None) = (self.redis(), &self.server) else { return Ok(()) };
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let keys: Vec<Vec<u8>> = connection.scan_match(format!("*{prefix}*"))?.collect::<Result<_, _>>()?;
        for key in keys {
            connection.del::<_, ()>(key)?;
        }
        Ok(())
    }

    /// Path of a file that ends with the program.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Longest time for which a dead holder may keep a name, with this ttl or the shortest of the store.
pub fn longest_lease(features: &Features, ttl: Duration) -> Duration {
    ttl.max(features.min_ttl) + features.late_end
}

/// A connection to the Redis of a [`Place`], if it has one.
pub struct Probe(Option<redis::Connection>);

impl Probe {
    /// Waits for an answer.
    ///
    /// # Errors
    /// The server's.
    pub fn touch(&mut self) -> Result<(), Error> {
        if let Some(connection) = &mut self.0 {
            redis::cmd("PING").query::<()>(connection)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Probe").field(&self.0.is_some()).finish()
    }
}

/// Whether a server can be started here.
///
/// # Errors
/// Says why not.
pub fn has_redis_server() -> Result<(), Error> {
    let program = std::env::var("TENURE_REDIS_SERVER").ok().filter(|path| !path.is_empty());
    let program = program.unwrap_or_else(|| "redis-server".to_owned());
    match std::process::Command::new(&program).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program} --version: {}", output.status).into()),
        Err(error) => Err(format!("{program}: {error}").into()),
    }
}

/// Longest wait for another writer of the database. It may be one that is stopped.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait of the process that stops others.
const MOMENT: Duration = Duration::from_millis(100);

/// Runs a statement that writes, as the processes of an example do. If another one is writing, it waits for a moment
/// only: that one may be stopped, and only the caller lets it go on.
///
/// # Errors
/// The database's.
pub fn touch(connection: &Connection, statement: &str) -> Result<(), Error> {
    connection.busy_timeout(MOMENT)?;
    let touched = connection.execute(statement, []);
    connection.busy_timeout(PATIENCE)?;
    match touched {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
        touched => Ok(touched.map(drop)?),
    }
}

/// Opens the database that the locks guard.
///
/// # Errors
/// The database's.
pub fn open_database(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    // The examples kill processes, not machines.
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")?;
    Ok(connection)
}

/// Opens the locks of a URL, with this ttl or the shortest of the store. A process that is stopped while it opens them
/// tries again.
///
/// # Errors
/// The store's.
pub async fn open_locks(url: &str, ttl: Duration) -> Result<Locker, Error> {
    let store = patiently(async || tenure_stores::Options::parse(url)?.open().await).await?;
    let ttl = ttl.max(store.features().min_ttl);
    Ok(Locker::builder(store).ttl(ttl).build()?)
}

#[cfg(test)]
mod tests {
    use tenure_testkit::MemcachedServer;

    use super::*;

    /// Who waited for a stopped process would never let it go on.
    #[test]
    fn a_writer_that_is_stopped_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let (stopped, ours) = (open_database(&path).unwrap(), open_database(&path).unwrap());
        stopped.execute_batch("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1); BEGIN IMMEDIATE").unwrap();
        touch(&ours, "UPDATE t SET n = 2").unwrap();
        stopped.execute_batch("COMMIT").unwrap();
        touch(&ours, "UPDATE t SET n = n + 1").unwrap();
        assert_eq!(ours.query_row("SELECT n FROM t", [], |row| row.get::<_, i64>(0)).unwrap(), 2);
        assert!(touch(&ours, "UPDATE u SET n = 2").is_err(), "another error is one");
    }

    /// Containers that start at once have equal process ids.
    #[test]
    fn runs_with_the_same_process_id_have_keys_of_their_own() {
        let [one, other] = [(); 2].map(|()| Place::new(None).unwrap());
        assert_ne!(one.prefix("x"), other.prefix("x"));
        assert_eq!(one.prefix("x"), one.prefix("x"));
    }

    /// As for a process that was stopped meanwhile, whose call has timed out.
    #[tokio::test]
    async fn locks_are_opened_though_the_first_try_has_timed_out() {
        let server = MemcachedServer::start();
        let url = format!("{}?timeout=100ms", server.url());
        server.stop();
        let woken = async {
            tenure_stores::connect(&url).await.unwrap_err();
            server.cont();
        };
        let (opened, ()) = tokio::join!(open_locks(&url, Duration::from_secs(1)), woken);
        opened.unwrap();
    }
}
