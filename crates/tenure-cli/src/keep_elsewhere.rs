//! The keeper on a system that does not report the end of a process: there is none.

use tenure::{Name, Owner, ReleaseOutcome};

use crate::args::Acquire;
use crate::config::Settings;
use crate::exit::Failure;

/// First argument of a keeper.
pub(crate) const WORD: &str = "__keep";

/// Says that there is none.
pub(crate) fn start(_pid: i32, _args: &Acquire) -> Result<u8, Failure> {
    Err(Failure::usage("--watch-pid needs Linux; use `tenure run`, or `tenure renew` now and then"))
}

/// Says that there is none.
pub(crate) fn main(_args: std::env::ArgsOs) -> Result<u8, Failure> {
    Err(Failure::usage("__keep needs Linux"))
}

/// Result of asking the keeper of a lease.
#[derive(Debug)]
#[allow(dead_code, reason = "there is never one here")]
pub(crate) enum Asked {
    /// There is none.
    Nobody,
    /// It has released the lease, or found it gone.
    Answered(ReleaseOutcome),
    /// The keeper was not asked; the text says why.
    Unheard(String),
}

/// There is none to ask.
#[allow(clippy::unused_async, reason = "as where there are keepers")]
pub(crate) async fn ask_release(_name: &Name, _token: &Owner, _settings: &Settings) -> Asked {
    Asked::Nobody
}
