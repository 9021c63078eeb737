//! Wake and retry: what locks do that neither poll nor queue, on sockets without a library and without a thought for failures.
//!
//! A free name is taken by `SET NX PX`; who finds it taken waits to be woken and tries again. A release is a script that deletes
//! the key if it is still the holder's own and wakes: by `PUBLISH` every waiter (Redisson's plain lock), or by a signal in a list the one
//! that has blocked on it for longest (python-redis-lock). There is no fence, no order and no renewal.
//!
//! Two holders of a name cannot go unnoticed: one of them would find another's value at its release, and that ends the comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::Failure;
use crate::drive::{Case, HANDED_OVER, Peer};
use crate::resp::{AsyncSocket, Socket};

/// How long a waiter waits if nobody wakes it: a holder that dies wakes nobody.
const TTL: Duration = Duration::from_secs(30);

const DELETE_AND_PUBLISH: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '0')
return 1";

const SIGNAL_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('LPUSH', KEYS[2], 1)
redis.call('PEXPIRE', KEYS[2], 1000)
redis.call('DEL', KEYS[1])
return 1";

/// Wakes all: the connection of each waiter is subscribed from before its first try.
#[derive(Clone)]
pub struct WakeRetry(Line);

/// Wakes one.
#[derive(Clone)]
pub struct WakeOne(Line);

/// A waiter's connection, and the script that releases.
#[derive(Clone)]
struct Line {
    socket: Arc<Mutex<AsyncSocket>>,
    release: Arc<[u8]>,
}

/// A name that a waiter asks for or has, by a token of its own.
pub struct Claim {
    line: Line,
    name: String,
    token: String,
}

impl Peer for WakeRetry {
    type Held = Claim;

    fn runs(case: Case) -> Result<(), &'static str> {
        waits(case)
    }

    async fn connect(url: &str, _: Case) -> Result<Self, Failure> {
        let line = Line::connect(url, DELETE_AND_PUBLISH).await?;
        // Pushes on the connection of the commands: a second one would cost both ends more.
        line.ask(&[b"HELLO", b"3"]).await?;
        line.ask(&[b"SUBSCRIBE", beside(HANDED_OVER).as_bytes()]).await?;
        Ok(Self(line))
    }

    async fn acquire(&self, name: &str) -> Result<Claim, Failure> {
        let claim = self.0.claim(name);
        while !claim.take().await? {
            // What was pushed before the answer is about releases that the try has seen, and was passed over; what comes behind it
            // is not. So no wake-up is lost, and none leads to a try in vain.
            if let Ok(pushed) = timeout(TTL, self.0.socket.lock().await.next()).await {
                pushed?;
            }
        }
        Ok(claim)
    }

    async fn release(held: Claim) -> Result<(), Failure> {
        held.release().await
    }
}

impl Peer for WakeOne {
    type Held = Claim;

    fn runs(case: Case) -> Result<(), &'static str> {
        waits(case)
    }

    async fn connect(url: &str, _: Case) -> Result<Self, Failure> {
        Ok(Self(Line::connect(url, SIGNAL_AND_DELETE).await?))
    }

    async fn acquire(&self, name: &str) -> Result<Claim, Failure> {
        let claim = self.0.claim(name);
        let (signal, limit) = (beside(name), TTL.as_secs().to_string());
        while !claim.take().await? {
            // A signal that was given since the try is still in the list.
            self.0.ask(&[b"BLPOP", signal.as_bytes(), limit.as_bytes()]).await?;
        }
        Ok(claim)
    }

    async fn release(held: Claim) -> Result<(), Failure> {
        held.release().await
    }
}

impl Line {
    async fn connect(url: &str, release: &str) -> Result<Self, Failure> {
        let mut loader = Socket::connect(url)?;
        loader.ask(&[b"SCRIPT", b"LOAD", release.as_bytes()])?;
        // Its digest, behind a line that says how long that is.
        let mut lines = Vec::new();
        while lines.len() < 2 {
            match loader.line() {
                Some(line) => lines.push(line.to_vec()),
                None => loader.fill()?,
            }
        }
        let socket = AsyncSocket::open(url).await?;
        Ok(Self { socket: Arc::new(Mutex::new(socket)), release: lines.remove(1).into() })
    }

    fn claim(&self, name: &str) -> Claim {
        static CLAIMS: AtomicU64 = AtomicU64::new(0);
        // Of the length of tenure's.
        let token = format!("{:032x}", CLAIMS.fetch_add(1, Ordering::Relaxed));
        Claim { line: self.clone(), name: name.to_owned(), token }
    }

    /// The shape of the answer to a command.
    async fn ask(&self, words: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        let mut socket = self.socket.lock().await;
        socket.ask(words).await?;
        loop {
            let answer = socket.next().await?;
            if !is_message(&answer) {
                return Ok(answer);
            }
        }
    }
}

impl Claim {
    async fn take(&self) -> Result<bool, Failure> {
        let ttl = TTL.as_millis().to_string();
        let answer = self.line.ask(&[b"SET", self.name.as_bytes(), self.token.as_bytes(), b"NX", b"PX", ttl.as_bytes()]).await?;
        Ok(answer == b"+")
    }

    async fn release(self) -> Result<(), Failure> {
        let (name, beside) = (self.name.as_bytes(), beside(&self.name));
        let words = [&b"EVALSHA"[..], &*self.line.release, b"2", name, beside.as_bytes(), self.token.as_bytes()];
        if self.line.ask(&words).await? != b":" {
            return Err("the name was another's at the release".into());
        }
        // Lets the woken waiters go first. Otherwise the task that has released mostly takes the name again at once.
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// A cycle would be that of rslock.
fn waits(case: Case) -> Result<(), &'static str> {
    match case {
        Case::Handover => Ok(()),
        Case::Cycle => Err("a way to wait"),
        Case::HandoverFast => Err("waiters are woken: there is no retry to set"),
    }
}

/// The channel, or the list of signals, of a name.
fn beside(name: &str) -> String {
    format!("{name}:released")
}

/// A push that is not the answer to a subscription, which has a number in it.
fn is_message(shape: &[u8]) -> bool {
    shape == b">$$$"
}
