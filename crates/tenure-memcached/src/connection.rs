//! The connection of a store to one server. One at a time: the server runs commands of one connection
//! in the order in which they were sent, so a release comes behind the acquisition that it takes back.
//!
//! A silent connection is dropped and replaced. Commands that it was given may still run, on a server
//! that was stopped. [`Connection::has_late_commands`] says so until none can take a name any more.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::Credentials;
use tenure::{Error, ErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock::ServerClock;
use crate::link::{Answers, Failed, Link};
use crate::list;
use crate::protocol::{Commands, Reply};

/// Pause before a server that was busy is asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the commands of a connection that was given up are reckoned with. On a server that was
/// stopped for longer they may still run. But each write carries the end of its lease as a point in
/// time, so it takes a name for no longer than the lease would have lasted.
const LATE: Duration = Duration::from_secs(10);

/// The way to one server.
pub(crate) struct Connection {
    host: String,
    port: u16,
    pub(crate) credentials: Credentials,
    state: Mutex<State>,
    /// One caller connects, and the others wait for it.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    late_until: Option<Instant>,
    /// The server's clock, as the connections before this one saw it.
    clock: Option<ServerClock>,
}

impl Connection {
    pub(crate) fn new(host: &str, port: u16, credentials: Credentials) -> Self {
        Self { host: host.to_owned(), port, credentials, state: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    pub(crate) fn has_late_commands(&self) -> bool {
        let state = self.state();
        state.late_until.is_some_and(|until| Instant::now() < until)
            || state.link.as_ref().is_some_and(|link| link.lost().is_some())
    }

    /// The connection that there is, or a new one. Its view of the server's clock is fresh. After `half` a silent
    /// connection is given up.
    pub(crate) async fn link(&self, half: Instant, end: Instant) -> Result<Arc<Link>, Error> {
        let limit = end.saturating_duration_since(Instant::now());
        let in_time = timeout_at(end, self.fresh_link(half, end)).await.unwrap_or_else(|_| {
            // It did not even tell its time.
            if let Some(link) = self.present().filter(|link| link.is_silent()) {
                self.drop_link(&link);
            }
            Err(self.credentials.unanswered().unwrap_or_else(|| no_answer(limit)))
        });
        in_time.map_err(|error| error.context(self))
    }

    async fn fresh_link(&self, half: Instant, end: Instant) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.present() {
            if !link.clock().is_stale(tenure::BootTime::now()) {
                return Ok(link);
            }
            match self.read_clock(&link, half, end).await {
                Ok(()) => return Ok(link),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => self.drop_link(&link),
            }
        }
        self.open().await
    }

    async fn open(&self) -> Result<Arc<Link>, Error> {
        let _one = self.opening.lock().await;
        if let Some(link) = self.present() {
            return Ok(link);
        }
        let clock = self.state().known_clock();
        let link = Arc::new(Link::open(&self.host, self.port, &self.credentials, clock).await?);
        let mut state = self.state();
        if let Some(before) = state.link.replace(Arc::clone(&link)) {
            state.note_lost(&before);
        }
        Ok(link)
    }

    /// Sends commands that may take a name for `ttl`, and waits until `end`. After `half` a silent
    /// connection is given up.
    pub(crate) async fn ask(
        &self,
        link: &Arc<Link>,
        commands: &Commands,
        ttl: Option<Duration>,
        half: Instant,
        end: Instant,
    ) -> Result<Answers, Failed> {
        let answer = self.in_time(link, link.ask(commands, ttl), half, end).await;
        answer.map_err(|failed| Failed { error: failed.error.context(self), ..failed })
    }

    /// Asks for the server's time, as [`ask`](Self::ask) does.
    pub(crate) async fn read_clock(&self, link: &Arc<Link>, half: Instant, end: Instant) -> Result<(), Error> {
        self.in_time(link, link.read_clock(), half, end).await.map(drop).map_err(|failed| failed.error)
    }

    async fn in_time<T>(
        &self,
        link: &Arc<Link>,
        answer: impl Future<Output = Result<T, Failed>>,
        half: Instant,
        end: Instant,
    ) -> Result<T, Failed> {
        let (mut answer, began) = (std::pin::pin!(answer), Instant::now());
        let silent = |until: Instant| Failed { error: no_answer(until.saturating_duration_since(began)), sent: true };
        let outcome = match timeout_at(half, &mut answer).await {
            Ok(outcome) => outcome,
            Err(_) if link.is_silent() || half >= end => Err(silent(half)),
            Err(_) => timeout_at(end, answer).await.unwrap_or_else(|_| Err(silent(end))),
        };
        if outcome.is_err() && (link.is_closed() || link.is_silent()) {
            self.drop_link(link);
        }
        outcome
    }

    /// Sends commands that change nothing, and waits for their answers.
    pub(crate) async fn read(&self, commands: &Commands, end: Instant) -> Result<Vec<Reply>, Error> {
        let link = self.link(half_way(end), end).await?;
        let answers = self.ask(&link, commands, None, end, end).await;
        answers.map(|answers| answers.replies).map_err(|failed| failed.error)
    }

    /// All keys that the server has, on a connection of its own: they may be many.
    pub(crate) async fn keys(&self, end: Instant) -> Result<Vec<String>, Error> {
        let listed = async {
            loop {
                match list::keys(&self.host, self.port, &self.credentials).await {
                    // It lists them for one client at a time, and only for a moment.
                    Err(error) if error.kind() == ErrorKind::Unavailable => sleep(PAUSE).await,
                    listed => return listed,
                }
            }
        };
        let keys = timeout_at(end, listed).await;
        let keys = keys.unwrap_or_else(|_| {
            let error = Error::unreachable("the server did not answer in time with all of its keys");
            Err(error.with_hint("give it more time, with timeout= in the store URL"))
        });
        keys.map_err(|error| error.context(self))
    }

    fn present(&self) -> Option<Arc<Link>> {
        self.state().link.clone().filter(|link| !link.is_closed())
    }

    /// Gives a connection up. Another caller may have replaced it already.
    fn drop_link(&self, link: &Arc<Link>) {
        link.give_up();
        let mut state = self.state();
        state.note_lost(link);
        if state.link.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            state.link = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn known_clock(&self) -> Option<ServerClock> {
        self.link.as_ref().map(|link| link.clock()).or(self.clock)
    }

    /// Keeps what is known by a closed connection. Its commands without an answer may run late.
    fn note_lost(&mut self, link: &Link) {
        self.clock = Some(link.clock());
        let until = link.lost().map(|ttl| Instant::now() + ttl.min(LATE));
        self.late_until = self.late_until.max(until);
    }
}

pub(crate) fn half_way(end: Instant) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now) / 2
}

fn no_answer(limit: Duration) -> Error {
    Error::unreachable(format!("the server did not answer within {limit:?}"))
}

/// Address of the server.
impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({self})")
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::{MemcachedServer, Proxy};

    use super::*;

    /// A stopped server may run what it was sent when it goes on, and a proxy may keep it. A second later is too early to count on
    /// the opposite.
    #[tokio::test]
    async fn what_was_sent_counts_as_late_for_some_seconds() {
        let server = MemcachedServer::start();
        let proxy = Proxy::start_opaque(server.addr());
        let connection = Connection::new("127.0.0.1", proxy.addr().port(), Credentials::default());
        let after = |seconds| Instant::now() + Duration::from_secs(seconds);
        let link = connection.link(after(5), after(5)).await.unwrap();
        proxy.hold_requests();
        let mut commands = Commands::default();
        commands.stats();
        let (ttl, soon) = (Some(Duration::from_secs(60)), after(1));
        assert!(connection.ask(&link, &commands, ttl, soon, soon).await.unwrap_err().sent);
        let until = connection.state().late_until.unwrap();
        assert!(until > soon + Duration::from_secs(5), "{:?} after the end", until.duration_since(soon));
    }

    /// A firewall forgets a connection that idles. It is asked for the time first, and another is made in what is left.
    #[tokio::test]
    async fn a_connection_that_died_while_it_idled_is_replaced_in_time() {
        let server = MemcachedServer::start();
        let proxy = Proxy::start_opaque(server.addr());
        let connection = Connection::new("127.0.0.1", proxy.addr().port(), Credentials::default());
        let after = |seconds| Instant::now() + Duration::from_secs(seconds);
        let link = connection.link(after(5), after(5)).await.unwrap();
        link.age();
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.hold_present_requests();
        let next = connection.link(after(1), after(10)).await.unwrap();
        assert!(!Arc::ptr_eq(&link, &next) && link.is_closed() && !connection.has_late_commands());
    }
}
