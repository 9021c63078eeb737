//! The guardian on a system where there is none.

use std::env::ArgsOs;

use rustix::process::Pid;
use tenure::BootTime;

/// First argument of a guardian.
pub(crate) const WORD: &str = "__guard";

/// Nobody.
#[derive(Debug, Default)]
pub(crate) struct Guardian;

impl Guardian {
    /// Starts none.
    pub(crate) fn start() -> Self {
        Self
    }

    /// There is none to wait for.
    pub(crate) fn wait(&mut self) {}

    /// There is none to arm.
    pub(crate) fn arm(&self, _group: Pid, _until: Option<BootTime>) {}

    /// There is none to disarm.
    pub(crate) fn disarm(&self) {}
}

/// There is none to be.
pub(crate) fn main(_: ArgsOs) -> u8 {
    crate::exit::USAGE
}
