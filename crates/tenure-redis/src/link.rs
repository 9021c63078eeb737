//! One physical connection, from its handshake to its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};
use tenure::BootTime;
use tokio::time::{Instant, timeout_at};

use crate::commands::Commands;
use crate::failure::doubts_counter;
use crate::handshake::Identity;
use crate::multiplex::Multiplexed;
use crate::script::Form;
use crate::server::Server;

/// The answers to commands, one for each.
pub(crate) type Answers = Vec<RedisResult<Value>>;

/// What carries commands to a server and brings the answers.
pub(crate) enum Wire {
    Ours(Multiplexed),
    /// A connection of the client library's.
    Theirs(Box<dyn Carries>),
}

#[async_trait]
pub(crate) trait Carries: Send + Sync {
    async fn send(&self, commands: &Commands) -> RedisResult<Answers>;
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Carries for C {
    async fn send(&self, commands: &Commands) -> RedisResult<Answers> {
        commands.to_pipeline().query_async(&mut self.clone()).await
    }
}

impl Wire {
    /// Sends commands and waits for their answers, none where they have not come by `until`.
    pub(crate) async fn send(&self, commands: &Commands, until: Instant) -> RedisResult<Option<Answers>> {
        match self {
            Self::Ours(wire) => wire.send(commands, until).await,
            Self::Theirs(wire) => timeout_at(until, wire.send(commands)).await.ok().transpose(),
        }
    }
}

/// One connection, and what is known about its far end.
pub(crate) struct Link {
    wire: Wire,
    pub(crate) identity: Option<Identity>,
    pub(crate) server: Server,
    /// Whether pushes come through here; not set while nobody has asked for any.
    hears: OnceLock<bool>,
    lift: Mutex<Lift>,
    /// When the first command was sent since the last reply, and when that came; ms since boot.
    asked_at: AtomicU64,
    heard_at: AtomicU64,
}

/// What this connection has seen of the grant counter.
#[derive(Clone, Copy, Default)]
struct Lift {
    /// When the counter was last lifted through here, ms since boot.
    at: Option<u64>,
    /// The server knows the script by its digest.
    known: bool,
    /// How often there was reason to doubt that the counter is the one that was lifted.
    doubts: u64,
}

/// For how long a lifted counter is trusted.
const LIFT_EVERY_MS: u64 = 1_000;

impl Link {
    /// A connection that the application made.
    #[cfg(feature = "redis-1")]
    pub(crate) fn brought(wire: impl Carries + 'static) -> Self {
        let link = Self::new(Wire::Theirs(Box::new(wire)), None, Server::default());
        link.set_hears(false);
        link
    }

    pub(crate) fn new(wire: Wire, identity: Option<Identity>, server: Server) -> Self {
        let (hears, lift) = (OnceLock::new(), Mutex::default());
        let (asked_at, heard_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { wire, identity, server, hears, lift, asked_at, heard_at }
    }

    /// Whether pushes come through here, if that is known.
    pub(crate) fn hears(&self) -> Option<bool> {
        self.hears.get().copied()
    }

    pub(crate) fn set_hears(&self, hears: bool) {
        // The first to find out is right: a subscription is never given up.
        let _ = self.hears.set(hears);
    }

    /// Sends commands and waits for their answers, none where they have not come by `until`.
    pub(crate) async fn send(&self, commands: &Commands, until: Instant) -> RedisResult<Option<Answers>> {
        if self.asked_at.load(Ordering::Relaxed) <= self.heard_at.load(Ordering::Relaxed) {
            self.asked_at.store(now_ms(), Ordering::Relaxed);
        }
        let Some(answers) = self.wire.send(commands, until).await.transpose() else { return Ok(None) };
        self.heard_at.store(now_ms(), Ordering::Relaxed);
        // A brought connection that failed may come back as a connection to another server.
        let doubtful =
            answers.as_ref().map_or(true, |answers| answers.iter().filter_map(|a| a.as_ref().err()).any(doubts_counter));
        if doubtful {
            let mut lift = self.lift();
            lift.at = None;
            lift.doubts += 1;
        }
        answers.map(Some)
    }

    /// For how long something was asked and nothing heard.
    pub(crate) fn silence(&self) -> Duration {
        let (asked, heard) = (self.asked_at.load(Ordering::Relaxed), self.heard_at.load(Ordering::Relaxed));
        if asked <= heard { Duration::ZERO } else { Duration::from_millis(now_ms().saturating_sub(asked)) }
    }

    /// The call of the lifting script that has to go before a grant now, if one has to.
    pub(crate) fn due_lift(&self) -> Option<Form> {
        let Lift { at, known, .. } = *self.lift();
        let fresh = at.is_some_and(|at| now_ms().saturating_sub(at) < LIFT_EVERY_MS);
        (!fresh).then_some(if known { Form::Digest } else { Form::Text })
    }

    /// Whether the counter was never lifted through here.
    pub(crate) fn is_new(&self) -> bool {
        !self.lift().known
    }

    pub(crate) fn doubts(&self) -> u64 {
        self.lift().doubts
    }

    /// The counter was lifted by a request that left at `sent_at`, when there had been so many `doubts`.
    pub(crate) fn lifted(&self, sent_at: u64, doubts: u64) {
        let mut lift = self.lift();
        lift.known = true;
        if lift.doubts == doubts {
            lift.at = lift.at.max(Some(sent_at));
        }
    }

    /// The server has forgotten the script.
    pub(crate) fn forgot_script(&self) {
        self.lift().known = false;
    }

    fn lift(&self) -> MutexGuard<'_, Lift> {
        self.lift.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since boot.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(BootTime::now().since_boot().as_millis()).unwrap_or(u64::MAX)
}
