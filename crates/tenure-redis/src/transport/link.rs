//! One physical connection, from its handshake to its end.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::RedisResult;
use redis::aio::ConnectionLike;
use tenure::store::Refusals;
use tokio::time::{Instant, timeout_at};

use crate::transport::commands::Commands;
use crate::transport::contact::{Contact, Moment, now_ms};
use crate::transport::failure::{away, doubts_counter, is_senseless};
use crate::transport::form::Form;
use crate::transport::multiplex::{Multiplexed, ended};
use crate::transport::reply::Answers;

/// Time for which any link may be silent, even if a caller's timeout is shorter.
pub(crate) const DEAD_AFTER: Duration = Duration::from_millis(100);

/// The connection below a link.
pub(crate) enum Wire {
    Ours(Multiplexed),
    /// A connection of the client library's.
    Theirs(Box<dyn Carries>, Arc<Contact>),
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
            Self::Theirs(wire, contact) => {
                let answers = wire.send(commands).await;
                // They may be about other data.
                if contact.has_ended() { Err(ended()) } else { answers }
            }
        }
    }
}

/// When a caller asked, and how long it waits. By reference, because each call down to the wire keeps its arguments twice.
pub(crate) struct Limits {
    pub(crate) asked: Moment,
    /// Time without contact after which the caller gives up.
    pub(crate) patience: Duration,
    pub(crate) end: Instant,
}

/// Commands that delete a key if it holds a value: the words before the key, and between key and
/// value.
pub(crate) const DELETES: [(&[u8], &[&[u8]]); 2] = [(b"DELEX", &[b"IFEQ"]), (b"DELIFEQ", &[])];

/// The server's name for a connection, by which another can end it. The address guards against a
/// server that has restarted and given the number to another client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) addr: String,
    /// Where the server is: no other can end the connection.
    pub(crate) server: String,
}

/// One connection, and what is known about the server's end of it.
pub(crate) struct Link {
    wire: Wire,
    pub(crate) identity: Option<Identity>,
    /// The server sees the address of this end: the connection ends with the server.
    pub(crate) is_direct: bool,
    /// Functions can be called, as far as is known.
    functions: AtomicBool,
    /// Index of the entry of [`DELETES`] that the server has, as far as is known. Beyond the end if
    /// it has none.
    delete: AtomicUsize,
    /// Whether pushes come through here. Not set until the first subscription.
    hears: OnceLock<bool>,
    /// Whether the server reports changes of keys here. Not set until somebody has asked for it.
    tracks: OnceLock<bool>,
    /// Run id of the server, where somebody has asked for it.
    pub(crate) run_id: OnceLock<String>,
    raised: Mutex<Raised>,
    contact: Arc<Contact>,
    senseless: Refusals,
    /// The task that finds out whether the server is still the one to use.
    followed: Option<Task>,
}

/// A task that ends with its link.
struct Task(tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// State of the grant counter at the server's end, as seen through one connection.
#[derive(Clone, Copy, Default)]
struct Raised {
    /// When the counter was last raised through here, ms since boot.
    at: Option<u64>,
    /// The server knows the script that raises it by its digest.
    script_known: bool,
    /// Number of times when the server may have become one with another counter.
    doubts: u64,
}

/// Time for which a raised counter is trusted.
const RAISE_EVERY_MS: u64 = 1_000;

impl Link {
    /// An external connection.
    #[cfg(feature = "redis-1")]
    pub(crate) fn external(wire: impl Carries + 'static) -> Self {
        let link = Self::new(Wire::Theirs(Box::new(wire), Arc::default()), None);
        link.set_hears(false);
        link.set_tracks(false);
        link
    }

    pub(crate) fn new(wire: Wire, identity: Option<Identity>) -> Self {
        let (hears, tracks, raised) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        let contact = match &wire {
            Wire::Ours(wire) => Arc::clone(wire.contact()),
            Wire::Theirs(_, contact) => Arc::clone(contact),
        };
        // If a server repeats, cut, a command that it does not know, the client library reads a
        // broken answer.
        let delete = AtomicUsize::new(if matches!(wire, Wire::Theirs(..)) { usize::MAX } else { 0 });
        let (functions, run_id, followed) = (AtomicBool::new(true), OnceLock::new(), None);
        let senseless = Refusals::default();
        Self { wire, identity, is_direct: false, functions, delete, hears, tracks, run_id, raised, contact, senseless, followed }
    }

    /// The same with what is known about senseless answers of its server.
    pub(crate) fn judged_by(self, senseless: &Refusals) -> Self {
        Self { senseless: senseless.clone(), ..self }
    }

    /// Starts a task that ends the use of the link, by its contact.
    pub(crate) fn followed<F: Future<Output = ()> + Send + 'static>(&mut self, task: impl FnOnce(Arc<Contact>) -> F) {
        self.followed = Some(Task(tokio::spawn(task(Arc::clone(&self.contact)))));
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
        // The first to find out is right: nothing unsubscribes.
        let _ = self.hears.set(hears);
    }

    /// Whether the server reports changes of keys here, if that is known.
    pub(crate) fn tracks(&self) -> Option<bool> {
        self.tracks.get().copied()
    }

    pub(crate) fn set_tracks(&self, tracks: bool) {
        // The first to find out is right: nothing turns it off.
        let _ = self.tracks.set(tracks);
    }

    /// The form in which scripts are called here.
    pub(crate) fn form(&self) -> Form {
        if self.functions.load(Ordering::Relaxed) { Form::Function } else { Form::Digest }
    }

    pub(crate) fn lost_functions(&self) {
        self.functions.store(false, Ordering::Relaxed);
    }

    /// Index of the entry of [`DELETES`] to try.
    pub(crate) fn delete(&self) -> usize {
        self.delete.load(Ordering::Relaxed)
    }

    pub(crate) fn has_no_delete(&self, tried: usize) {
        self.delete.fetch_max(tried + 1, Ordering::Relaxed);
    }

    /// Sends commands and waits for their answers. None if they have not come by the end, or if this
    /// caller heard nothing for its patience and nobody did for [`DEAD_AFTER`].
    pub(crate) async fn send(
        &self,
        commands: &Commands,
        &Limits { asked, patience, end }: &Limits,
    ) -> RedisResult<Option<Answers>> {
        self.contact.asked(asked.ms);
        let mut sending = pin!(self.wire.send(commands));
        let mut now = asked;
        let answers = loop {
            let more = patience.saturating_sub(self.contact.quiet(asked.ms, now.ms));
            let more = more.max(DEAD_AFTER.saturating_sub(self.contact.silence(asked.ms, now.ms)));
            let until = now.instant.checked_add(more).map_or(end, |until| until.min(end));
            // The timer runs on the caller's runtime: that of the connection may be gone.
            match timeout_at(until, sending.as_mut()).await {
                Ok(answers) => break answers,
                Err(_) if more.is_zero() || until >= end => return Ok(None),
                Err(_) => now = Moment::now(),
            }
        };
        if matches!(self.wire, Wire::Theirs(..)) {
            self.contact.heard();
        }
        // An external connection that failed may come back as one to another server.
        let doubtful =
            answers.as_ref().map_or(true, |answers| answers.iter().filter_map(|a| a.as_ref().err()).any(doubts_counter));
        if doubtful {
            let mut state = self.state();
            state.at = None;
            state.doubts += 1;
        }
        answers.map(|answers| Some(self.judge(answers)))
    }

    /// Answers that make no sense are an outage for a while, if others made sense before.
    fn judge(&self, mut answers: Answers) -> Answers {
        let mut senseless =
            answers.iter_mut().filter_map(|answer| answer.as_mut().err()).filter(|error| is_senseless(error)).peekable();
        if senseless.peek().is_none() {
            self.senseless.accepted();
        } else if self.senseless.is_for_now() {
            senseless.for_each(|error| *error = away(error));
        }
        answers
    }

    /// Time for which nothing was heard, since this caller asked at `asked_at` or others asked
    /// before.
    pub(crate) fn silence(&self, asked_at: u64) -> Duration {
        self.contact.silence(asked_at, now_ms())
    }

    /// Returns how to call the script that raises the counter, if a grant at `now` needs it. It
    /// does if anything was pushed at `pushed_at` that no reply has confirmed.
    pub(crate) fn due_raise(&self, now: u64, pushed_at: u64) -> Option<Form> {
        let Raised { at, script_known, .. } = *self.state();
        let fresh = at.is_some_and(|at| now.saturating_sub(at) < RAISE_EVERY_MS && at > pushed_at);
        (!fresh).then_some(if script_known { Form::Digest } else { Form::Text })
    }

    /// Whether the counter was never raised through here.
    pub(crate) fn is_new(&self) -> bool {
        !self.state().script_known
    }

    pub(crate) fn doubts(&self) -> u64 {
        self.state().doubts
    }

    /// Notes that the counter was raised by a request that left at `sent_at`, when there were so
    /// many `doubts`.
    pub(crate) fn raised(&self, sent_at: u64, doubts: u64) {
        let mut state = self.state();
        state.script_known = true;
        if state.doubts == doubts {
            state.at = state.at.max(Some(sent_at));
        }
    }

    /// The server has forgotten the script.
    pub(crate) fn forgot_script(&self) {
        self.state().script_known = false;
    }

    fn state(&self) -> MutexGuard<'_, Raised> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
