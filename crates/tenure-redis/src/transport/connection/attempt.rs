//! A connection that is being made.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Error, ErrorKind};
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::transport::dial::Peer;
use crate::transport::handshake::{Established, establish, unanswered};
use crate::transport::link::{Identity, Link};
use crate::transport::push::Pushes;
use crate::transport::sentinel::{ONE_TRY, PACE, Sentinels};

pub(super) enum Source {
    /// This crate connects.
    Peer(Box<Peer>),
    /// This crate connects to the master that the sentinels name.
    Sentinels(Arc<Sentinels>),
    /// The application connects, and replaces its connection.
    #[cfg(feature = "redis-1")]
    External,
}

impl Source {
    /// Whether this crate connects.
    pub(super) const fn is_ours(&self) -> bool {
        matches!(self, Self::Peer(_) | Self::Sentinels(_))
    }
}

/// A connection that is being made. It goes on when the call that began it is dropped: else a server
/// that hangs gets a connection for each such call.
pub(super) struct Attempt {
    task: JoinHandle<Result<Connected, Error>>,
    /// Nobody may drive another runtime than the caller's.
    runtime: Id,
    begun: Instant,
}

pub(super) struct Connected {
    pub(super) link: Link,
    /// The predecessors at this server.
    pub(super) here: Vec<Identity>,
    /// None of them can send anything more.
    pub(super) ended: bool,
}

impl Attempt {
    pub(super) fn new(connect: impl Future<Output = Result<Connected, Error>> + Send + 'static) -> Self {
        Self { task: tokio::spawn(connect), runtime: Handle::current().id(), begun: Instant::now() }
    }

    /// Whether a caller with so much time waits for it. An older attempt may be slow to notice that a
    /// partition is over, and an older connection may have ended unseen.
    pub(super) fn is_worth(&self, limit: Duration) -> bool {
        self.runtime == Handle::current().id() && self.begun.elapsed() < limit
    }

    /// The connection, if it comes before `end`. If it does not, the attempt stays, and goes on for the next caller.
    pub(super) async fn ended(attempt: &mut Option<Self>, end: Instant) -> Result<Connected, Error> {
        let task = &mut attempt.as_mut().ok_or_else(no_connection)?.task;
        let ended = timeout_at(end, task).await.map_err(|_| no_connection())?;
        *attempt = None;
        ended.unwrap_or_else(|_| Err(no_connection()))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The way to a new connection.
pub(super) struct Dial {
    pub(super) pushes: Arc<Pushes>,
    pub(super) predecessors: Vec<Identity>,
}

impl Dial {
    /// Connects once, and ends those of the predecessors that are at this server.
    pub(super) async fn connect(&self, peer: &Peer, asks_role: bool, end: Instant) -> Result<Connected, Error> {
        let limit = end.saturating_duration_since(Instant::now());
        let establishing = establish(peer, limit, &self.predecessors, &self.pushes, asks_role);
        let Ok(established) = timeout_at(end, establishing).await else {
            return Err(unanswered(peer));
        };
        let Established { link, here, predecessors_ended, is_replica } = established?;
        if is_replica {
            let what = "it is a replica, and the sentinels have not named another master yet";
            return Err(Error::unavailable(what).with_hint("wait until they have"));
        }
        Ok(Connected { link, here, ended: predecessors_ended })
    }

    /// Connects to the master, which is looked for until `end`.
    pub(super) async fn connect_led(&self, sentinels: &Arc<Sentinels>, end: Instant) -> Result<Connected, Error> {
        let mut told = None;
        loop {
            let until = end.min(Instant::now() + ONE_TRY);
            let connected = async {
                let master = sentinels.master(until).await?;
                let connected = self.connect(&master.peer, true, until).await;
                connected.map(|connected| (master.clone(), connected)).map_err(|error| sentinels.about(&master, error))
            };
            match connected.await {
                Ok((master, mut connected)) => {
                    let (sentinels, pushes) = (Arc::clone(sentinels), Arc::clone(&self.pushes));
                    connected.link.followed(|contact| sentinels.follow(master, contact, pushes));
                    return Ok(connected);
                }
                Err(error) if error.is_transient() && Instant::now() + PACE < end => {
                    debug!(%error, "no master");
                    told = Some(error);
                    tokio::time::sleep(PACE).await;
                }
                // The last try may have had no time, and an earlier one an answer.
                Err(error) => return Err(told.filter(|_| error.kind() == ErrorKind::Unreachable).unwrap_or(error)),
            }
        }
    }
}

pub(super) fn no_connection() -> Error {
    Error::unreachable("no connection in time").with_hint("make sure that the server runs and can be reached from here")
}
