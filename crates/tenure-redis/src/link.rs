//! One physical connection, from its handshake to its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, Pipeline, RedisResult, Value, cmd, pipe};
use tenure::{BootTime, Error};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::failure::{doubts_counter, translate, translate_answer};
use crate::script::Form;

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

/// One connection, and what is known about its far end.
pub(crate) struct Link {
    wire: Box<dyn Wire>,
    pub(crate) identity: Option<Identity>,
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
        let (lift, asked_at, heard_at) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Self { wire, identity, lift, asked_at, heard_at }
    }

    /// Connects, ends the predecessors and learns the own identity, in two round trips.
    ///
    /// What a predecessor still had under way has run before this returns, or never will.
    pub(crate) async fn establish(client: &Client, limit: Duration, predecessors: &[Identity]) -> Result<Met, Error> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
        let wire: MultiplexedConnection = match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(wire) => wire,
            Err(error) => return Err(not_let_in(client, limit, &error).await),
        };
        let mut handshake = pipe();
        for Identity { id, addr } in predecessors {
            handshake.cmd("CLIENT").arg("KILL").arg("ID").arg(id).arg("ADDR").arg(addr);
        }
        handshake.cmd("CLIENT").arg("INFO");
        // CLIENT may be forbidden; a command that every user of locks may send tells whether the server serves us at all.
        handshake.add_command(cmd("PING"));
        handshake.ignore_errors();
        let mut answers = match wire.send(&handshake).await {
            Ok(answers) => answers,
            Err(error) => return Err(not_let_in(client, limit, &error).await),
        };
        answers.pop().transpose().map_err(|e| refused_or_unreachable(client, &e))?;
        let identity = answers.pop().and_then(Result::ok).and_then(|info| identity(&info));
        // Each kill answers how many it ended: none is as good, the predecessor was gone.
        let predecessors_ended = answers.iter().all(Result::is_ok);
        Ok(Met { link: Self::new(Box::new(wire), identity), predecessors_ended })
    }

    pub(crate) async fn send(&self, pipeline: &Pipeline) -> RedisResult<Answers> {
        if self.asked_at.load(Ordering::Relaxed) <= self.heard_at.load(Ordering::Relaxed) {
            self.asked_at.store(now_ms(), Ordering::Relaxed);
        }
        let answers = self.wire.send(pipeline).await;
        self.heard_at.store(now_ms(), Ordering::Relaxed);
        // A brought connection that failed may come back as a connection to another server.
        let doubtful =
            answers.as_ref().map_or(true, |answers| answers.iter().filter_map(|a| a.as_ref().err()).any(doubts_counter));
        if doubtful {
            let mut lift = self.lift();
            lift.at = None;
            lift.doubts += 1;
        }
        answers
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

fn identity(info: &Value) -> Option<Identity> {
    let text: String = redis::from_redis_value(info.clone()).ok()?;
    let id = text.split_whitespace().find_map(|field| field.strip_prefix("id="))?;
    // The path of a unix socket may have spaces.
    let addr = text.split_once(" addr=")?.1.split_once(" laddr=")?.0;
    Some(Identity { id: id.to_owned(), addr: addr.to_owned() })
}

/// Nothing but the handshake was sent: whatever failed, no lock was touched.
fn refused_or_unreachable(client: &Client, error: &redis::RedisError) -> Error {
    let translated = translate(error);
    if translated.is_transient() && error.code().is_none() {
        if error.to_string().contains("certificate") {
            let fix = "renew the server's certificate, or name the authority that signed it with ca=";
            return Error::unreachable(format!("no connection: {error}")).fix(fix);
        }
        // The two look alike from here: a server that waits for more of what it takes for a command, or hangs up on it.
        let tls = match client.get_connection_info().addr() {
            ConnectionAddr::TcpTls { .. } => " and speaks TLS on this port (redis:// is without)",
            ConnectionAddr::Tcp(..) => " and speaks no TLS on this port (rediss:// is with)",
            _ => "",
        };
        let fix = format!("make sure that the server runs, can be reached from here{tls}");
        return Error::unreachable(format!("no connection: {error}")).fix(fix);
    }
    translated
}

/// Why there is no connection, in the server's own words where it had some.
async fn not_let_in(client: &Client, limit: Duration, error: &redis::RedisError) -> Error {
    let said = if error.is_connection_dropped() { parting_word(client, limit).await } else { None };
    said.unwrap_or_else(|| refused_or_unreachable(client, error))
}

/// Why a server hung up at once, e.g. because it has too many clients: it says so unasked, and the client library tells of its own
/// broken write instead.
async fn parting_word(client: &Client, limit: Duration) -> Option<Error> {
    const AT_ONCE: Duration = Duration::from_millis(100);
    let ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr() else { return None };
    let said = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        let mut said = [0; 256];
        let length = stream.read(&mut said).await.ok()?;
        Some(String::from_utf8_lossy(&said[..length]).trim_end().strip_prefix('-')?.to_owned())
    };
    let answer = tokio::time::timeout(limit.min(AT_ONCE), said).await.ok()??;
    Some(translate_answer(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_number_and_address() {
        for (addr, info) in [
            ("127.0.0.1:40202", "id=7 addr=127.0.0.1:40202 laddr=127.0.0.1:6379 fd=8 name= age=0"),
            ("/tmp/two words/r.sock:0", "id=7 addr=/tmp/two words/r.sock:0 laddr=/tmp/two words/r.sock:0 fd=8 name= age=0"),
        ] {
            let known = identity(&Value::BulkString(info.into())).unwrap();
            assert_eq!((&*known.id, &*known.addr), ("7", addr));
        }
        assert_eq!(identity(&Value::Nil), None);
    }
}
