//! Calls of a session to its task, and the state that both see.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use tenure::store::{Credentials, Host};
use tokio::sync::{oneshot, watch};

use crate::failure::Failed;
use crate::wire::Frame;

/// Longest wait for a server that says nothing, if the operation timeout is not longer.
pub(crate) const SILENT: Duration = Duration::from_secs(1);

/// An answer without an error.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) body: Vec<u8>,
    /// Fires, or ends, when a read of the watched path is useful.
    pub(crate) watch: Option<oneshot::Receiver<()>>,
}

pub(super) struct Call {
    pub(super) frame: Frame,
    pub(super) reply: oneshot::Sender<Result<Reply, Failed>>,
}

impl Call {
    pub(super) fn is_unwanted(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, answer: Result<Reply, Failed>) {
        let _ = self.reply.send(answer);
    }
}

pub(super) enum Command {
    Calls(Vec<Call>),
    /// Connects anew, with another timeout; a shorter one only if that is meant.
    Retime {
        timeout: Duration,
        shortens: bool,
        done: oneshot::Sender<()>,
    },
}

/// Where the servers are, and how to log in.
#[derive(Debug)]
pub(crate) struct How {
    pub(crate) hosts: Vec<Host>,
    pub(crate) credentials: Credentials,
    /// Longest wait for a server that says nothing.
    pub(crate) silent: Duration,
    /// The shortest timeout that the ensemble gives, when that is known.
    pub(crate) shortest: OnceLock<Duration>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) timeout: AtomicU64,
    /// All servers were tried in vain.
    pub(super) is_adrift: AtomicBool,
    /// Why nothing more is asked in it.
    pub(super) over: watch::Sender<Option<Failed>>,
}

impl Shared {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout: AtomicU64::new(millis(timeout)), is_adrift: AtomicBool::new(false), over: watch::Sender::new(None) }
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
