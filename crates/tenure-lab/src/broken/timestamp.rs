//! Our own side of two schemes, as commands of the modelled server: what is asked of the scripts,
//! and their rules.

use std::fmt;

use super::command::Value;
use super::program::Tick;
use crate::tables::settings;

settings! {
    /// Our client in the schemes of others, rule by rule. Each is one that can be left out, to see
    /// what it is there for.
    Rules::TENURE {
        /// A key without ttl is not taken before the end that its writer computed.
        value_passed: bool = true,
        /// Nor before it was seen without ttl for a while.
        seen_long: bool = true,
        /// The owner stands beside the value. Otherwise the value is all there is.
        owner_beside: bool = true,
        /// The note beside the lock counts only as long as the values agree.
        changed_is_lost: bool = true,
        /// The look and the write are one step.
        one_step: bool = true,
        /// Nothing is taken while the clocks of host and server are apart.
        clocks_agree: bool = true,
        /// A transaction whose connection was replaced since its look writes nothing, and reads
        /// anew.
        looks_again: bool = true,
    }
}

/// The kind of value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    /// It tells leases apart; the lease is a ttl.
    Php,
    /// The end of the lease; the key has no ttl.
    End,
}

/// The task of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Takes the name if it is nobody's, or finds it its own.
    Take,
    /// Takes the name, without a comparison.
    Put,
    /// Prolongs its own.
    Renew,
    /// Gives its own up.
    Release,
}

/// One call of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Timestamp {
    pub(crate) task: Task,
    pub(crate) unit: Unit,
    /// For whom.
    pub(crate) owner: Value,
    /// The client's wall clock.
    pub(crate) clock: Tick,
    /// The rules of the script.
    pub(crate) rules: Rules,
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner;
        match self.task {
            Task::Take => write!(f, "script: take lock for {owner} if it is nobody's"),
            Task::Put => write!(f, "script: take lock for {owner}"),
            Task::Renew => write!(f, "script: prolong lock if it is of {owner}"),
            Task::Release => write!(f, "script: delete lock if it is of {owner}"),
        }
    }
}
