//! A connection that is replaced when replies stop coming.
//!
//! The client library reports a timeout and keeps a dead connection. If the server has stopped or
//! the link drops everything, each command would fail until the kernel gives up after a quarter of
//! an hour. Here a command without a reply after half its time is sent again on a second
//! connection, which replaces the first. Before that, the second connection has the server end the
//! first. So nothing that was sent on the first one runs later.

mod attempt;
mod hearing;
mod sending;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure::{Error, ErrorKind};
use tokio::time::{Instant, timeout_at};

use self::attempt::{Attempt, Connected, Dial, Source, no_connection};
use crate::transport::address::Address;
use crate::transport::dial::Peer;
use crate::transport::exchange::OtherNodes;
pub(crate) use crate::transport::exchange::{Exchange, Repeat};
use crate::transport::link::{Identity, Link};
use crate::transport::push::Pushes;
use crate::transport::sentinel::Sentinels;

/// Timeout of the first contact.
pub(crate) const FIRST_CONTACT: Duration = Duration::from_secs(5);

pub(crate) struct Connection {
    source: Source,
    state: Mutex<State>,
    /// The connection that is being made, if any.
    replacing: tokio::sync::Mutex<Option<Attempt>>,
    pushes: Arc<Pushes>,
    subscribing: tokio::sync::Mutex<()>,
    /// The cluster that this is a node of, and where in it.
    cluster: Option<(Weak<dyn OtherNodes>, Address)>,
    /// A connection was abandoned whose commands may still run.
    loose: AtomicBool,
    /// The server was asked about its settings.
    advised: AtomicBool,
    /// To a node of a cluster: a second connection, for other channels alone. To leave one of them is to end
    /// it: the answer to `SUNSUBSCRIBE` is a push, which comes unasked as well when a slot moves, or it is an
    /// error. On the first connection nobody could tell whose answer comes next.
    ears: Option<Box<Self>>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// Abandoned connections that the server may not have ended yet.
    predecessors: Vec<Identity>,
}

impl Connection {
    /// Connects for the first time. Messages come on a channel whose name begins with `prefix`.
    pub(crate) async fn open(peer: Peer, prefix: &str) -> Result<Self, Error> {
        let connection = Self::later(peer, prefix)?;
        connection.replace(Instant::now() + FIRST_CONTACT).await?;
        Ok(connection)
    }

    /// Connects for the first time to the master that the sentinels name.
    pub(crate) async fn open_led(sentinels: Arc<Sentinels>, prefix: &str) -> Result<Self, Error> {
        let connection = Self::new(Source::Sentinels(sentinels), None, Pushes::new(prefix)?);
        connection.replace(Instant::now() + FIRST_CONTACT).await?;
        Ok(connection)
    }

    /// Connects with the first call.
    pub(crate) fn later(peer: Peer, prefix: &str) -> Result<Self, Error> {
        Ok(Self::new(Source::Peer(Box::new(peer)), None, Pushes::new(prefix)?))
    }

    /// As [`later`](Self::later). A connection ends when its server drops all data, if the server tells so.
    pub(crate) fn until_data_is_lost(peer: Peer, prefix: &str) -> Result<Self, Error> {
        Ok(Self::new(Source::Peer(Box::new(peer)), None, Pushes::until_data_is_lost(prefix)?))
    }

    /// Connects to a node of a cluster with the first call.
    pub(crate) fn of_node(peer: Peer, pushes: &Arc<Pushes>, nodes: Weak<dyn OtherNodes>, address: Address) -> Self {
        let new = |peer| Self::new(Source::Peer(Box::new(peer)), None, Arc::clone(pushes));
        Self { cluster: Some((nodes, address)), ears: Some(Box::new(new(peer.clone()))), ..new(peer) }
    }

    /// Uses an external connection. What was sent on it when it broke may run later.
    #[cfg(feature = "redis-1")]
    pub(crate) fn external(link: Link) -> Self {
        Self::new(Source::External, Some(link), Pushes::deaf())
    }

    fn new(source: Source, link: Option<Link>, pushes: Arc<Pushes>) -> Self {
        let loose = !source.is_ours();
        let state = State { link: link.map(Arc::new), predecessors: Vec::new() };
        Self {
            source,
            state: Mutex::new(state),
            replacing: tokio::sync::Mutex::default(),
            pushes,
            subscribing: tokio::sync::Mutex::default(),
            cluster: None,
            loose: AtomicBool::new(loose),
            advised: AtomicBool::new(false),
            ears: None,
        }
    }

    /// Whether commands that nobody waits for may still run after later ones.
    pub(crate) fn has_late_commands(&self) -> bool {
        self.loose.load(Ordering::Relaxed)
    }

    /// Whether the counter was never raised through the link in use.
    pub(crate) fn is_new(&self) -> bool {
        self.link().is_none_or(|link| link.is_new())
    }

    /// Whether this link is still in use.
    pub(crate) fn uses(&self, link: &Arc<Link>) -> bool {
        self.link().is_some_and(|current| Arc::ptr_eq(&current, link))
    }

    /// Whether the server was not asked about its settings yet. From now on it was.
    pub(crate) fn is_unadvised(&self) -> bool {
        !self.advised.swap(true, Ordering::Relaxed)
    }

    /// The node of a cluster, for messages.
    pub(crate) fn shown(&self) -> String {
        self.cluster.as_ref().map(|(_, address)| address.to_string()).unwrap_or_default()
    }

    /// The error with the node that it came from.
    pub(crate) fn told(&self, error: Error) -> Error {
        match &self.cluster {
            Some((_, address)) => error.context(address),
            None => error,
        }
    }

    /// Index of the entry of [`DELETES`](crate::transport::link::DELETES) to try.
    pub(crate) fn delete(&self) -> usize {
        self.link().map_or(0, |link| link.delete())
    }

    /// The link in use: one that another task has made, or a new one made before `end`.
    async fn replace(&self, end: Instant) -> Result<Arc<Link>, Error> {
        #[cfg(feature = "redis-1")]
        if !self.source.is_ours() {
            return self.link().ok_or_else(|| Error::unreachable("the external connection is gone"));
        }
        let Ok(mut attempt) = timeout_at(end, self.replacing.lock()).await else { return Err(no_connection()) };
        if let Some(link) = self.link() {
            return Ok(link);
        }
        let predecessors = self.state().predecessors.clone();
        let limit = end.saturating_duration_since(Instant::now());
        let is_worth = attempt.as_ref().is_some_and(|earlier| earlier.is_worth(limit));
        let earlier = if is_worth { Some(Attempt::ended(&mut attempt, end).await) } else { None };
        let connected = match earlier {
            Some(Ok(connected)) if !connected.link.has_ended() => Ok(connected),
            // It goes on for the next caller.
            Some(Err(error)) if attempt.is_some() => return Err(error),
            earlier => {
                // It says before the caller's end why there is none.
                *attempt = Some(self.begin(&predecessors, end - limit / 20));
                let connected = Attempt::ended(&mut attempt, end).await;
                // The earlier one may have had an answer, and this one no time.
                let told = earlier.and_then(Result::err).filter(|error| error.kind() != ErrorKind::Unreachable);
                connected.map_err(|error| told.filter(|_| error.kind() == ErrorKind::Unreachable).unwrap_or(error))
            }
        };
        let Connected { link, here, ended } = connected?;
        if !ended || here.len() < predecessors.len() {
            self.loose.store(true, Ordering::Relaxed);
        }
        let link = Arc::new(link);
        let mut state = self.state();
        state.predecessors.retain(|identity| !here.contains(identity));
        state.link = Some(Arc::clone(&link));
        drop(state);
        self.pushes.missed();
        Ok(link)
    }

    /// Begins to make a connection, which takes until `end` at most.
    fn begin(&self, predecessors: &[Identity], end: Instant) -> Attempt {
        let dial = Dial { pushes: Arc::clone(&self.pushes), predecessors: predecessors.to_vec() };
        match &self.source {
            Source::Peer(peer) => {
                let peer = peer.clone();
                Attempt::new(async move { dial.connect(&peer, false, end).await })
            }
            Source::Sentinels(sentinels) => {
                let sentinels = Arc::clone(sentinels);
                Attempt::new(async move { dial.connect_led(&sentinels, end).await })
            }
            #[cfg(feature = "redis-1")]
            Source::External => Attempt::new(async { Err(no_connection()) }),
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        self.state().link.clone()
    }

    /// The link in use. None if it ended while idle: nothing was in flight, so nothing needs a
    /// retry.
    fn link_to_ask(&self) -> Option<Arc<Link>> {
        let link = self.link()?;
        if link.has_ended() {
            self.drop_link(&link);
            return None;
        }
        Some(link)
    }

    /// Drops a link that has failed. An external connection stays: the application replaces it.
    pub(crate) fn drop_link(&self, failed: &Arc<Link>) {
        let mut state = self.state();
        let current = state.link.as_ref().is_some_and(|link| Arc::ptr_eq(link, failed));
        if current && self.source.is_ours() {
            state.link = None;
            match &failed.identity {
                Some(identity) => state.predecessors.push(identity.clone()),
                None => self.loose.store(true, Ordering::Relaxed),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Connection");
        shown.field("connected", &self.link().is_some()).field("channel", &self.channel());
        shown.finish_non_exhaustive()
    }
}
