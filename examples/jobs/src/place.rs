//! Where the data and the locks are.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::Commands as _;
use rusqlite::Connection;
use tempfile::TempDir;
use tenure::Locker;
use tenure_testkit::{RedisServer, guardian};

use crate::Error;

/// A temporary folder for files, and a Redis: one of the user, or one that ends with the program.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    redis: Option<String>,
    server: Option<RedisServer>,
    /// Random, because process ids of containers are alike.
    run: u64,
}

impl Place {
    /// Finds a place. `redis` starts a server in the folder; a URL of one uses it; without either
    /// there is none.
    ///
    /// # Errors
    /// For a URL of another kind, or if a server cannot be started or the folder be made.
    pub fn new(store: Option<&str>) -> Result<Self, Error> {
        guardian::watch_over_us()?;
        let folder = TempDir::with_prefix("tenure-jobs-")?;
        if store == Some("redis") {
            has_redis_server()?;
        }
        let server = (store == Some("redis")).then(RedisServer::start);
        let redis = match (store, &server) {
            (_, Some(server)) => Some(server.url()),
            (Some(url), None) if ["redis://", "valkey://"].iter().any(|scheme| url.starts_with(scheme)) => Some(url.to_owned()),
            (Some("embedded") | None, None) => None,
            (Some(other), None) => return Err(format!("--store {other}: give embedded, redis, or redis://HOST").into()),
        };
        Ok(Self { folder, redis, server, run: RandomState::new().hash_one(std::process::id()) })
    }

    /// URL of the Redis.
    pub fn redis(&self) -> Option<&str> {
        self.redis.as_deref()
    }

    /// Opens a connection that asks what the examples ask of a store.
    ///
    /// # Errors
    /// The server's.
    pub fn probe(&self) -> Result<Probe, Error> {
        let connect = |url: &String| redis::Client::open(url.as_str())?.get_connection();
        Ok(Probe(self.redis.as_ref().map(connect).transpose()?))
    }

    /// Prefix of the keys of this run, which no other run at the same Redis has.
    pub fn prefix(&self, program: &str) -> String {
        format!("{program}/{}-{:016x}/", std::process::id(), self.run)
    }

    /// Deletes the keys of this run from a Redis of the user.
    ///
    /// # Errors
    /// The server's.
    pub fn forget(&self, prefix: &str) -> Result<(), Error> {
        let (Some(url), None) = (&self.redis, &self.server) else { return Ok(()) };
        let mut connection = redis::Client::open(url.as_str())?.get_connection()?;
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

/// Opens the database that the locks guard.
///
/// # Errors
/// The database's.
pub fn open_database(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    // The examples kill processes, not machines.
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")?;
    Ok(connection)
}

/// Opens the locks of a Redis URL, or those of a file.
///
/// # Errors
/// The store's.
pub async fn open_locks(store: &str, ttl: Duration) -> Result<Locker, Error> {
    let store = match store.strip_prefix("sqlite:") {
        Some(path) => std::sync::Arc::new(tenure_sql::sqlite::Options::new(path).open()?),
        None => tenure_redis::Options::parse(store)?.open().await?,
    };
    Ok(Locker::builder(store).ttl(ttl).build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Containers that start at once have equal process ids.
    #[test]
    fn runs_with_the_same_process_id_have_keys_of_their_own() {
        let [one, other] = [(); 2].map(|()| Place::new(None).unwrap());
        assert_ne!(one.prefix("x"), other.prefix("x"));
        assert_eq!(one.prefix("x"), one.prefix("x"));
    }
}
