//! The table of the schemes that lock a row.

use std::path::{Path, PathBuf};

use super::PATIENCE;
use crate::broken::command::{Command, Value};
use crate::broken::program::Tick;
use crate::broken::wire::Scale;

/// The table, and its last answer.
pub(crate) struct Table {
    file: PathBuf,
    answered: Option<Value>,
}

impl Table {
    pub(super) fn at(file: &Path) -> Self {
        Self { file: file.to_owned(), answered: None }
    }

    pub(super) fn ask(&mut self, scale: &Scale, command: Command) {
        self.answered = Some(self.run(scale, command).expect("the table answers"));
    }

    pub(super) fn answer(&mut self) -> Value {
        self.answered.take().expect("it was asked")
    }

    fn run(&self, scale: &Scale, command: Command) -> rusqlite::Result<Value> {
        let table = rusqlite::Connection::open(&self.file)?;
        table.busy_timeout(PATIENCE)?;
        table.execute_batch("CREATE TABLE IF NOT EXISTS lock (version INTEGER, ends INTEGER)")?;
        if let Command::Update { version, ends, .. } = command {
            if version == 0 {
                table.execute("INSERT INTO lock SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM lock)", [])?;
            }
            let update = "UPDATE lock SET version = version + 1, ends = ?1 WHERE version = ?2";
            let rows = table.execute(update, (scale.milliseconds(ends), version))?;
            return Ok(Value::Int(Tick::try_from(rows).unwrap_or(Tick::MAX)));
        }
        let row = table.query_row("SELECT version, ends FROM lock", [], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)));
        match row {
            Ok((version, ends)) => Ok(Value::Row { version, ends: scale.ticks(ends) }),
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(Value::Row { version: 0, ends: -1 }),
            Err(error) => Err(error),
        }
    }
}
