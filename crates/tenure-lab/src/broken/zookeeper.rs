//! Commands of ZooKeeper at the lock, in words.

use std::fmt;

use super::command::{Command, LOCK, Value};

/// One request. The story has the words of ZooKeeper's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ZooKeeper {
    /// Makes an ephemeral sequential node below the lock. The node.
    Create,
    /// The nodes below the lock.
    Children,
    Delete(Value),
}

/// The answer about a node that is gone.
pub(crate) const NO_NODE: Value = Value::Word("no node");

impl ZooKeeper {
    pub(crate) const fn command(self) -> Command {
        Command::ZooKeeper(self)
    }
}

impl fmt::Display for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => write!(f, "create -s -e /{LOCK}/n"),
            Self::Children => write!(f, "ls /{LOCK}"),
            Self::Delete(node) => write!(f, "delete /{LOCK}/{node}"),
        }
    }
}
