//! The confirmations that a store waits for, of all its callers at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::{Durable, RenewReply};
use tenure::{Error, Lease};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::native::durability::Durability;
use crate::transport::commands::{Commands, Digits, millis};
use crate::transport::connection::{Connection, Exchange, Repeat};
use crate::transport::failure::{is_no_command, translate, unexpected};
use crate::transport::link::Link;

/// The confirmations of one store.
pub(crate) struct Confirmations {
    pub(super) level: Durability,
    pub(super) connection: Connection,
    /// The most replicas that the server has shown at once.
    pub(super) replicas: AtomicU32,
    /// The server can wait as it has to.
    pub(super) checked: AtomicBool,
    pub(super) waiting: Mutex<Vec<Waiting>>,
    /// Held by the caller that asks for all.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// Leases that one caller wants confirmed.
pub(super) struct Waiting {
    pub(super) leases: Vec<Lease>,
    pub(super) end: Instant,
    pub(super) caller: oneshot::Sender<Result<Round, Error>>,
}

/// The outcome of one `WAIT` for one caller.
#[derive(Clone)]
pub(super) struct Round {
    pub(super) replies: Vec<RenewReply>,
    pub(super) reached: Durable,
    pub(super) met: bool,
}

impl Confirmations {
    pub(crate) fn new(level: Durability, connection: Connection) -> Self {
        let (replicas, checked, waiting, turn) = Default::default();
        Self { level, connection, replicas, checked, waiting, turn }
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of replicas that have to confirm.
    pub(super) fn needed(&self) -> u32 {
        match self.level {
            Durability::Replicas(number) => number,
            // With the server itself they are more than half of all.
            Durability::Majority => self.replicas.load(Ordering::Relaxed).div_ceil(2),
            Durability::None | Durability::Aof => 0,
        }
    }

    /// Makes sure that the server can wait, before anything is taken that would have to go back.
    pub(super) async fn check(&self, end: Instant) -> Result<(), Error> {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ask = |_: &Link| self.wait(Duration::from_millis(1), 0);
        let Exchange { answers, .. } = self.connection.exchange(end, Repeat::Freely, ask).await?;
        match answers.into_iter().next() {
            Some(Ok(_)) => {
                self.checked.store(true, Ordering::Relaxed);
                Ok(())
            }
            Some(Err(error)) => Err(self.cannot_wait(&error)),
            None => Err(unexpected("no reply to WAIT")),
        }
    }

    /// The command that waits for so many replicas, or for the disk.
    pub(super) fn wait(&self, limit: Duration, replicas: u32) -> Commands {
        let (limit, replicas) = (Digits::of(millis(limit)), Digits::of(u64::from(replicas)));
        match self.level {
            Durability::Aof => Commands::of(&[b"WAITAOF", b"1", b"0", limit.as_bytes()]),
            _ => Commands::of(&[b"WAIT", replicas.as_bytes(), limit.as_bytes()]),
        }
    }

    pub(super) fn cannot_wait(&self, error: &redis::RedisError) -> Error {
        let told = error.detail().unwrap_or_default();
        let level = self.level;
        if is_no_command(error) && error.code() != Some("NOPERM") {
            return Error::refused(format!("durability={level} needs WAITAOF, which this server does not have"))
                .with_hint("use Redis 7.2 or newer, or durability=replicas:1");
        }
        if told.contains("appendonly") {
            return Error::refused(format!("durability={level} needs an append-only file, and the server keeps none"))
                .with_hint("set appendonly yes at the server");
        }
        translate(error).context(format_args!("durability={level}"))
    }

    /// The error of a grant of which too few copies were confirmed in time.
    pub(super) fn too_few(&self, reached: Option<Durable>) -> Error {
        let level = self.level;
        let Some(Durable { replicas, .. }) = reached else {
            return Error::unavailable(format!("no answer in time to whether durability={level} is reached"))
                .with_hint("look at the server and its replicas, or raise timeout=");
        };
        if level == Durability::Aof {
            return Error::unavailable("the server's disk has not confirmed it in time (durability=aof)")
                .with_hint("set appendfsync always at the server, or raise timeout= above 2s; and look at its disk");
        }
        Error::unavailable(format!("{replicas} of {} replicas have confirmed it in time (durability={level})", self.needed()))
            .with_hint("look at the server's replicas, or ask for fewer with durability=")
    }
}
