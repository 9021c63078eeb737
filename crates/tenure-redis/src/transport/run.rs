//! Which run of a server answers.

use tenure::Error;

use crate::transport::commands::Commands;
use crate::transport::failure::unexpected;
use crate::transport::reply::{Answers, read};

/// Number of the commands that ask for it.
const ASKS: usize = 2;

/// A process of a server, and what it says of the time when it was a replica: then it had the data of another server. A server that
/// was a master for long enough says nothing any more.
pub(crate) struct Run {
    pub(crate) process: String,
    pub(crate) past: String,
}

impl Run {
    /// Adds the commands that ask for it.
    pub(crate) fn ask(commands: &mut Commands) {
        commands.add(&[b"INFO", b"server"]);
        commands.add(&[b"INFO", b"replication"]);
    }

    /// Reads the answers to the last commands. The others stay.
    pub(crate) fn read_last(answers: &mut Answers) -> Result<Self, Error> {
        let said = answers.split_off(answers.len().saturating_sub(ASKS)).into_iter().map(read::<String>);
        let info = said.collect::<Result<String, Error>>()?;
        let said = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
        let process = said("run_id").ok_or_else(|| unexpected("no run_id in INFO server"))?.to_owned();
        let past = match (said("master_replid2"), said("second_repl_offset")) {
            (Some(id), Some(offset)) if offset != "-1" => format!("/{id}/{offset}"),
            _ => "/".to_owned(),
        };
        Ok(Self { process, past })
    }

    /// Identifies the run.
    pub(crate) fn id(&self) -> String {
        format!("{}{}", self.process, self.past)
    }
}
