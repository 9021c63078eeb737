//! One physical connection, from its handshake to its end.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::RedisResult;
use redis::aio::ConnectionLike;
use tokio::time::{Instant, timeout_at};

use crate::transport::commands::Commands;
use crate::transport::contact::{Contact, Moment, now_ms};
use crate::transport::failure::doubts_counter;
use crate::transport::form::Form;
use crate::transport::multiplex::Multiplexed;
use crate::transport::reply::Answers;

/// How long a link may be silent, whatever the timeout of those who ask.
pub(crate) const DEAD_AFTER: Duration = Duration::from_millis(100);

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
    /// Sends commands and waits for their answers.
    pub(crate) async fn send(&self, commands: &Commands) -> RedisResult<Answers> {
        match self {
            Self::Ours(wire) => wire.send(commands).await,
            Self::Theirs(wire) => wire.send(commands).await,
        }
    }
}

/// What deletes a key if it holds a value, without a script: the words in front of the key and between it and the value.
pub(crate) const DELETES: [(&[u8], &[&[u8]]); 2] = [(b"DELEX", &[b"IFEQ"]), (b"DELIFEQ", &[])];

/// How a server names one of its connections, so that another can end it. The address guards against a server that has restarted
/// and given the number to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) addr: String,
}

/// One connection, and what is known about its far end.
pub(crate) struct Link {
    wire: Wire,
    pub(crate) identity: Option<Identity>,
    /// As far as is known, functions are to be had.
    functions: AtomicBool,
    /// Which of [`DELETES`] is to be had, as far as is known; none where there are not so many.
    delete: AtomicUsize,
    /// Whether pushes come through here; not set while nobody has asked for any.
    hears: OnceLock<bool>,
    lift: Mutex<Lift>,
    contact: Arc<Contact>,
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
    pub(crate) fn external(wire: impl Carries + 'static) -> Self {
        let link = Self::new(Wire::Theirs(Box::new(wire)), None);
        link.set_hears(false);
        link
    }

    pub(crate) fn new(wire: Wire, identity: Option<Identity>) -> Self {
        let (hears, lift) = (OnceLock::new(), Mutex::default());
        let contact = match &wire {
            Wire::Ours(wire) => Arc::clone(wire.contact()),
            Wire::Theirs(_) => Arc::default(),
        };
        // The client library takes it for a broken answer when a server repeats, cut, what it does not know.
        let delete = AtomicUsize::new(if matches!(wire, Wire::Theirs(_)) { usize::MAX } else { 0 });
        Self { wire, identity, functions: AtomicBool::new(true), delete, hears, lift, contact }
    }

    /// Whether it is known that nothing more can be sent here.
    pub(crate) fn has_ended(&self) -> bool {
        self.contact.has_ended()
    }

    /// Whether pushes come through here, if that is known.
    pub(crate) fn hears(&self) -> Option<bool> {
        self.hears.get().copied()
    }

    pub(crate) fn set_hears(&self, hears: bool) {
        // The first to find out is right: a subscription is never given up.
        let _ = self.hears.set(hears);
    }

    /// How scripts are called here.
    pub(crate) fn form(&self) -> Form {
        if self.functions.load(Ordering::Relaxed) { Form::Function } else { Form::Digest }
    }

    pub(crate) fn lost_functions(&self) {
        self.functions.store(false, Ordering::Relaxed);
    }

    /// Which of [`DELETES`] to try here.
    pub(crate) fn delete(&self) -> usize {
        self.delete.load(Ordering::Relaxed)
    }

    pub(crate) fn has_no_delete(&self, tried: usize) {
        self.delete.fetch_max(tried + 1, Ordering::Relaxed);
    }

    /// Sends commands and waits for their answers; none where they have not come by `end`, or where nothing was heard for
    /// `patience`, and by nobody for [`DEAD_AFTER`].
    pub(crate) async fn send(
        &self,
        commands: &Commands,
        asked: Moment,
        patience: Duration,
        end: Instant,
    ) -> RedisResult<Option<Answers>> {
        self.contact.asked(asked.ms);
        let mut sending = pin!(self.wire.send(commands));
        let mut now = asked;
        let answers = loop {
            let more = patience.saturating_sub(self.contact.quiet(asked.ms, now.ms));
            let more = more.max(DEAD_AFTER.saturating_sub(self.contact.silence(asked.ms, now.ms)));
            let until = now.instant.checked_add(more).map_or(end, |until| until.min(end));
            // The timer is ours and not the wire's: that one's runtime may be gone.
            match timeout_at(until, sending.as_mut()).await {
                Ok(answers) => break answers,
                Err(_) if more.is_zero() || until >= end => return Ok(None),
                Err(_) => now = Moment::now(),
            }
        };
        if matches!(self.wire, Wire::Theirs(_)) {
            self.contact.heard();
        }
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

    /// For how long nothing was heard of what was asked at `asked_at` by us, and before by others, and has no answer.
    pub(crate) fn silence(&self, asked_at: u64) -> Duration {
        self.contact.silence(asked_at, now_ms())
    }

    /// The call of the lifting script that has to go before a grant at `now`, if one has to: also where something was heard since, at
    /// `pushed_at`, that no reply has told.
    pub(crate) fn due_lift(&self, now: u64, pushed_at: u64) -> Option<Form> {
        let Lift { at, known, .. } = *self.lift();
        let fresh = at.is_some_and(|at| now.saturating_sub(at) < LIFT_EVERY_MS && at > pushed_at);
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
