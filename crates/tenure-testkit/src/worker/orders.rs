//! Messages between a controller and its worker, a line of JSON each.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Lease, Share};

use super::load::{Load, Tally};
use super::probe::Probe;
use crate::history::{At, What};

/// Orders to a worker, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Acquire { acquisition: u32, name: String, terms: Terms },
    Adopt { acquisition: u32, lease: Lease },
    To { acquisition: u32, order: ClaimOrder },
    ByHand { what: ByHand, name: String, token: String },
    Visits { name: String, dir: PathBuf, times: u64 },
    Load(Load),
    Arm(Probe),
    Block { ms: u64 },
    Jump { ms: u64 },
    WallClock,
    Settle,
}

/// Call that a worker makes with an owner token alone, without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ByHand {
    /// Renews it for ten seconds.
    Renew,
    /// Gives it up.
    Release,
}

/// Orders about one acquisition.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ClaimOrder {
    /// Give up what is held, or stop asking for it.
    Drop,
    HandOver,
    Extend {
        ttl: Duration,
    },
    State,
    Release,
    /// Read and write the resource without asking the guard.
    Work {
        who: String,
        register: PathBuf,
    },
    /// Read and write the resource for as long as the guard allows.
    Run {
        who: String,
        register: PathBuf,
    },
    Rest,
}

/// Messages of a worker, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Ready,
    Event { at: At, what: What },
    Lease(Lease),
    State(String),
    Answer(String),
    Tally(Tally),
    Done,
}

/// How a worker asks for a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Terms {
    pub(super) ttl: Duration,
    pub(super) share: Share,
    pub(super) wait: Option<Duration>,
    pub(super) poll_interval: Option<Duration>,
    pub(super) fixed: bool,
    pub(super) min_hold: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) token: Option<String>,
}

impl Terms {
    /// The mutex for `ttl`, renewed, waiting as long as it takes.
    pub fn new(ttl: Duration) -> Self {
        let (min_hold, share) = (Duration::ZERO, Share::MUTEX);
        Self { ttl, share, wait: None, poll_interval: None, fixed: false, min_hold, max_hold: None, token: None }
    }

    /// Asks for another kind of lock.
    #[must_use]
    pub fn share(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// Gives up after this long.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Polls this often, instead of as often as the store says.
    #[must_use]
    pub fn poll_interval(self, poll_interval: Duration) -> Self {
        Self { poll_interval: Some(poll_interval), ..self }
    }

    /// Is not renewed.
    #[must_use]
    pub fn fixed(self) -> Self {
        Self { fixed: true, ..self }
    }

    /// Keeps the name taken for at least this long.
    #[must_use]
    pub fn min_hold(self, min: Duration) -> Self {
        Self { min_hold: min, ..self }
    }

    /// Holds it for this long at most.
    #[must_use]
    pub fn max_hold(self, max: Duration) -> Self {
        Self { max_hold: Some(max), ..self }
    }

    /// Uses this value as the owner.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }
}
