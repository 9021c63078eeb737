//! The names that the tasks of a run take.

use serde::{Deserialize, Serialize};

/// The names, and what is taken of each.
pub(super) const MUTEXES: [&str; 2] = ["m", "n"];
pub(super) const SHARED: &str = "rw";
pub(super) const PERMITS: &str = "sem";

/// Which names the tasks of a run take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::soak) enum Takes {
    /// A few of every kind, in every way.
    EveryKind,
    /// Many mutexes, one after the other, for the order of the fences.
    Many,
    /// A few mutexes, which others hold in most cases. Each answer that a call got none is reported.
    Contended,
    /// Mutexes, of which one task of each locker holds one to the end, while passwords change.
    Several,
}

/// Fewer than there are grants, and more than tasks.
pub(super) const MANY: u32 = 300;
/// More than are held to the end.
pub(super) const SEVERAL: u32 = 40;
/// Fewer than tasks.
pub(super) const FEW: u32 = 6;

impl Takes {
    /// All names of a run.
    pub(in crate::soak) fn names(self, prefix: &str) -> Vec<String> {
        match self {
            Self::EveryKind => MUTEXES.into_iter().chain([SHARED, PERMITS]).map(|name| format!("{prefix}{name}")).collect(),
            Self::Many => (0..MANY).map(|number| numbered(prefix, number)).collect(),
            Self::Several => (0..SEVERAL).map(|number| numbered(prefix, number)).collect(),
            Self::Contended => (0..FEW).map(|number| numbered(prefix, number)).collect(),
        }
    }

    /// Number of tasks of each locker.
    pub(in crate::soak) fn tasks(self) -> usize {
        if self == Self::Contended { 2 } else { 6 }
    }
}

pub(super) fn numbered(prefix: &str, number: u32) -> String {
    format!("{prefix}n{number}")
}
