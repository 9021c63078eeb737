//! The queue: a list at a Redis, or a table.

use std::path::Path;

use jobs::{Error, open_database};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, AsyncConnectionConfig};
use rusqlite::{Connection, OptionalExtension as _};

/// Number of tasks at the head that a worker looks at.
const HEAD: i64 = 16;

/// Tasks in the order in which they were put in.
pub(crate) enum Queue {
    /// The list, and its key.
    Redis(MultiplexedConnection, String),
    File(Connection),
}

impl Queue {
    pub(crate) async fn open(redis: Option<&str>, key: &str, path: &Path) -> Result<Self, Error> {
        let Some(url) = redis else { return Ok(Self::File(open_database(path)?)) };
        // A worker that was stopped is no reason to give up an answer that has come meanwhile.
        let patient = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await?;
        Ok(Self::Redis(connection, key.to_owned()))
    }

    pub(crate) async fn put(&mut self, task: i64) -> Result<(), Error> {
        match self {
            Self::Redis(list, key) => list.rpush(&*key, task).await?,
            Self::File(file) => drop(file.execute("INSERT OR IGNORE INTO queue (task) VALUES (?1)", [task])?),
        }
        Ok(())
    }

    /// The first tasks. They stay in the queue.
    pub(crate) async fn head(&mut self) -> Result<Vec<i64>, Error> {
        match self {
            Self::Redis(list, key) => Ok(list.lrange(&*key, 0, isize::try_from(HEAD)? - 1).await?),
            Self::File(file) => {
                let mut statement = file.prepare_cached("SELECT task FROM queue ORDER BY seq LIMIT ?1")?;
                Ok(statement.query_map([HEAD], |row| row.get(0))?.collect::<Result<_, _>>()?)
            }
        }
    }

    /// All tasks.
    pub(crate) async fn all(&mut self) -> Result<Vec<i64>, Error> {
        match self {
            Self::Redis(list, key) => Ok(list.lrange(&*key, 0, -1).await?),
            Self::File(file) => {
                let mut statement = file.prepare_cached("SELECT task FROM queue")?;
                Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
            }
        }
    }

    pub(crate) async fn remove(&mut self, task: i64) -> Result<(), Error> {
        match self {
            Self::Redis(list, key) => list.lrem(&*key, 0, task).await?,
            Self::File(file) => drop(file.execute("DELETE FROM queue WHERE task = ?1", [task])?),
        }
        Ok(())
    }

    /// Takes the first task out.
    pub(crate) async fn pop(&mut self) -> Result<Option<i64>, Error> {
        match self {
            Self::Redis(list, key) => Ok(list.lpop(&*key, None).await?),
            Self::File(file) => {
                let pop = "DELETE FROM queue WHERE seq = (SELECT min(seq) FROM queue) RETURNING task";
                Ok(file.query_row(pop, [], |row| row.get(0)).optional()?)
            }
        }
    }
}
