//! What stands for the keeper where the system cannot tell that a process has ended.

use tenure::{Name, Owner, Released};

use crate::args::{Acquire, Cli};
use crate::config::Settings;
use crate::exit::Failure;

/// What stands in front of a keeper's arguments.
pub(crate) const WORD: &str = "__keep";

/// Says that there is none.
pub(crate) fn start(_pid: i32, _args: &Acquire) -> Result<u8, Failure> {
    Err(Failure::usage("--watch-pid needs Linux; use `tenure run`, or `tenure renew` now and then"))
}

/// Says that there is none.
pub(crate) fn main(_cli: Cli, _starter: Option<&std::ffi::OsStr>) -> Result<u8, Failure> {
    Err(Failure::usage("__keep needs Linux"))
}

/// There is none to ask.
pub(crate) fn ask_release(_name: &Name, _token: &Owner, _settings: &Settings) -> Option<Released> {
    None
}
