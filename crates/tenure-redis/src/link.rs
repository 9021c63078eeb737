//! One physical connection, from its handshake to its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisResult, Value, cmd, pipe};
use tenure::{BootTime, Error};

use crate::failure::{doubts_counter, translate};

/// The answers to a pipeline, one for each command.
pub(crate) type Answers = Vec<RedisResult<Value>>;

/// Something that carries a pipeline to a server and brings the answers.
#[async_trait]
pub(crate) trait Wire: Send + Sync {
    async fn send(&self, pipeline: &Pipeline) -> RedisResult<Answers>;
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Wire for C {
    async fn send(&self, pipeline: &Pipeline) -> RedisResult<Answers> {
        pipeline.query_async(&mut self.clone()).await
    }
}

/// How a server names one of its connections, so that another can end it. The address guards against a server that has restarted
/// and given the number to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    id: String,
    addr: String,
}

/// One connection, and what is known about the grant counter at its far end.
pub(crate) struct Link {
    wire: Box<dyn Wire>,
    pub(crate) identity: Option<Identity>,
    /// When the counter was last lifted through this connection, ms since boot; 0 is never.
    lifted_at: AtomicU64,
    /// The server knows the lifting script by its digest.
    pub(crate) lift_known: AtomicBool,
}

/// What the handshake found.
pub(crate) struct Met {
    pub(crate) link: Link,
    /// The predecessors can no longer send anything.
    pub(crate) predecessors_ended: bool,
}

/// For how long a lifted counter is trusted.
const LIFT_EVERY_MS: u64 = 1_000;

impl Link {
    /// A connection that the application made.
    #[cfg(feature = "redis-1")]
    pub(crate) fn brought(wire: impl Wire + 'static) -> Self {
        Self::new(Box::new(wire), None)
    }

    fn new(wire: Box<dyn Wire>, identity: Option<Identity>) -> Self {
        Self { wire, identity, lifted_at: AtomicU64::new(0), lift_known: AtomicBool::new(false) }
    }

    /// Connects, ends the predecessors and learns the own identity, in two round trips.
    ///
    /// What a predecessor still had under way has run before this returns, or never will.
    pub(crate) async fn establish(client: &Client, limit: Duration, predecessors: &[Identity]) -> Result<Met, Error> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
        let wire: MultiplexedConnection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(|e| refused_or_unreachable(&e))?;
        let mut handshake = pipe();
        for Identity { id, addr } in predecessors {
            handshake.cmd("CLIENT").arg("KILL").arg("ID").arg(id).arg("ADDR").arg(addr);
        }
        handshake.cmd("CLIENT").arg("INFO");
        // CLIENT may be forbidden; a command that every user of locks may send tells whether the server serves us at all.
        handshake.add_command(cmd("PING"));
        handshake.ignore_errors();
        let mut answers = wire.send(&handshake).await.map_err(|e| translate(&e))?;
        answers.pop().transpose().map_err(|e| refused_or_unreachable(&e))?;
        let identity = answers.pop().and_then(Result::ok).and_then(|info| identity(&info));
        // Each kill answers how many it ended: none is as good, the predecessor was gone.
        let predecessors_ended = answers.iter().all(Result::is_ok);
        Ok(Met { link: Self::new(Box::new(wire), identity), predecessors_ended })
    }

    pub(crate) async fn send(&self, pipeline: &Pipeline) -> RedisResult<Answers> {
        let answers = self.wire.send(pipeline).await?;
        if answers.iter().filter_map(|answer| answer.as_ref().err()).any(doubts_counter) {
            self.lifted_at.store(0, Ordering::Relaxed);
        }
        Ok(answers)
    }

    pub(crate) fn needs_lift(&self) -> bool {
        let lifted_at = self.lifted_at.load(Ordering::Relaxed);
        lifted_at == 0 || now_ms().saturating_sub(lifted_at) >= LIFT_EVERY_MS
    }

    /// The counter was lifted by a request that left at `sent_at`.
    pub(crate) fn lifted(&self, sent_at: u64) {
        self.lifted_at.fetch_max(sent_at, Ordering::Relaxed);
        self.lift_known.store(true, Ordering::Relaxed);
    }
}

/// Milliseconds since boot.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(BootTime::now().since_boot().as_millis()).unwrap_or(u64::MAX)
}

fn identity(info: &Value) -> Option<Identity> {
    let text: String = redis::from_redis_value(info.clone()).ok()?;
    let field =
        |name: &str| text.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
    Some(Identity { id: field("id")?, addr: field("addr")? })
}

/// Nothing but the handshake was sent: whatever failed, no lock was touched.
fn refused_or_unreachable(error: &redis::RedisError) -> Error {
    let translated = translate(error);
    if translated.is_transient() && error.code().is_none() {
        let fix = "make sure that the server runs and can be reached from here";
        return Error::unreachable(format!("no connection: {error}")).fix(fix);
    }
    translated
}
