//! What stands for the keeper where the system cannot tell that a process has ended.

use tenure::{Name, Owner, ReleaseOutcome};

use crate::args::Acquire;
use crate::config::Settings;
use crate::exit::Failure;

/// What stands in front of a keeper's arguments.
pub(crate) const WORD: &str = "__keep";

/// Says that there is none.
pub(crate) fn start(_pid: i32, _args: &Acquire) -> Result<u8, Failure> {
    Err(Failure::usage("--watch-pid needs Linux; use `tenure run`, or `tenure renew` now and then"))
}

/// Says that there is none.
pub(crate) fn main(_args: std::env::ArgsOs) -> Result<u8, Failure> {
    Err(Failure::usage("__keep needs Linux"))
}

/// What came of looking for a keeper.
#[derive(Debug)]
#[allow(dead_code, reason = "there is never one here")]
pub(crate) enum Asked {
    /// There is none.
    Nobody,
    /// It has released the lease, or found it gone.
    Answered(ReleaseOutcome),
    /// What is there was not asked, or gave no answer, for this reason.
    Unheard(String),
}

/// There is none to ask.
#[allow(clippy::unused_async, reason = "as where there are keepers")]
pub(crate) async fn ask_release(_name: &Name, _token: &Owner, _settings: &Settings) -> Asked {
    Asked::Nobody
}
