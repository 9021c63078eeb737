//! Our own side of two dialects, as commands of the modelled server: what is asked of the scripts, and their rules.

use std::fmt;

use super::command::Value;
use super::program::Tick;

/// Our client in the dialects of others, rule by rule. Each is one that can be left out, to see what it is there for.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent rules")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rules {
    /// A key without ttl is not taken before the end that its writer computed.
    pub value_passed: bool,
    /// Nor before it was seen without ttl for a while.
    pub seen_long: bool,
    /// The owner stands beside the value. Otherwise the value is all there is.
    pub owner_beside: bool,
    /// What stands beside counts only as long as the values agree.
    pub changed_is_lost: bool,
    /// The look and the write are one step.
    pub one_step: bool,
    /// Nothing is taken while the clocks of host and server are apart.
    pub clocks_agree: bool,
    /// A transaction whose connection was replaced since its look writes nothing, and looks again.
    pub looks_again: bool,
}

impl Rules {
    /// As it stands.
    pub const TENURE: Self = Self {
        value_passed: true,
        seen_long: true,
        owner_beside: true,
        changed_is_lost: true,
        one_step: true,
        clocks_agree: true,
        looks_again: true,
    };
}

/// What the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// What tells leases apart; the lease is a ttl.
    Php,
    /// The end of the lease; the key has no ttl.
    End,
}

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Takes the name if it is nobody's, or finds it its own.
    Take,
    /// Takes the name, whoever has it.
    Put,
    /// Prolongs its own.
    Renew,
    /// Gives its own up.
    Release,
}

/// One call of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// What it does.
    pub task: Task,
    /// What the value is.
    pub unit: Unit,
    /// For whom.
    pub owner: Value,
    /// The client's wall clock.
    pub clock: Tick,
    /// What the script minds.
    pub rules: Rules,
}

impl fmt::Display for Stamp {
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
