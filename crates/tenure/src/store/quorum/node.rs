//! A store that votes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use crate::{Entry, Error, ErrorKind, Fence, Lease, Name};

/// A store that votes in a [`Quorum`](super::Quorum).
///
/// Any store can vote, as [`Plain`]. One that implements this itself can do more: the quorum then
/// has fences, and does not count the vote of a node that has lost its data.
#[async_trait]
pub trait Node: Store {
    /// Whether the node counts the grants of each name by itself, so that nodes which saw the same
    /// grants return the same fence.
    fn counts_names(&self) -> bool;

    /// Has the node count on from `fence`, if the owner of `lease` still holds there and the
    /// counter of the name is not above it.
    ///
    /// For a share that others may hold beside it, the counter has to be below the fence: at the fence, it
    /// may be that of another. Then the node counts on, and returns where it stands.
    async fn confirm(&self, lease: &Lease, fence: Fence) -> Result<Confirmed, Error>;

    /// Releases what an attempt took that was not granted. Nobody has to be notified: the name is
    /// as busy as before.
    async fn withdraw(&self, lease: &Lease) -> Result<ReleaseReply, Error> {
        self.release(lease, Duration::ZERO).await
    }

    /// Returns what the node remembers of the leases that it has granted.
    async fn memory(&self) -> Result<Memory, Error>;

    /// Keeps a node that has lost its data from voting for so long.
    ///
    /// `loss` is the one of [`Vote::Lost`]. After another loss this does nothing.
    async fn keep_out(&self, loss: &str, wait: Duration) -> Result<(), Error>;

    /// Lets a node vote again that has waited. It counts on from `counter` at least.
    ///
    /// `loss` is the one of [`Vote::Waiting`]. After another loss this does nothing.
    async fn admit(&self, loss: &str, counter: u64) -> Result<(), Error>;
}

/// Answer to [`Node::confirm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// Later grants of the name have larger fences.
    Taken,
    /// The counter is above it already.
    Above(Fence),
    /// The owner does not hold there.
    NotHeld,
}

/// A node's memory of the leases that it has granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Whether it votes.
    pub vote: Vote,
    /// Time until the latest end of a lease, or of a linger, that it remembers.
    pub latest_end: Duration,
    /// Nobody was ever granted anything there, as far as it remembers.
    pub is_new: bool,
}

/// Whether a node votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It remembers all of its leases.
    Given {
        /// The largest counter of any of them.
        counter: u64,
    },
    /// It may have lost its data, and nobody knows how long a lease from before can stand.
    Lost {
        /// Identifies this loss.
        loss: String,
        /// Time since the loss was found.
        since: Duration,
    },
    /// It may have lost its data, and waits until no lease from before can stand.
    Waiting {
        /// Identifies this loss.
        loss: String,
        /// Time that is left.
        left: Duration,
    },
}

/// Time after which a node that lost its data asks the others: what is under way has arrived there by then.
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// How long a node stays out if all nodes of its quorum are new.
pub(super) const NEW: Duration = Duration::from_secs(30);

impl Memory {
    /// Why a node does not vote, as the end of a sentence about it, and the time after which that may have changed.
    /// None if it votes.
    pub fn kept_out(&self) -> Option<(Duration, String)> {
        match &self.vote {
            Vote::Given { .. } => None,
            Vote::Lost { since, .. } if self.is_new => {
                let votes = NEW.saturating_sub(*since);
                let why = format!("is new, or has lost its data: it votes in {votes:.0?} if all servers of the quorum are new");
                Some((SETTLED.saturating_sub(*since), why))
            }
            Vote::Lost { since, .. } => {
                let asks = SETTLED.saturating_sub(*since);
                let why = format!(
                    "has restarted or lost its data: in {asks:.0?} it asks the others how long leases from before can stand"
                );
                Some((asks, why))
            }
            Vote::Waiting { left, .. } => {
                Some((*left, format!("has lost its data: it waits for {left:.0?} until no lease from before can stand")))
            }
        }
    }
}

/// Any store as a node without fences. Nobody notices if it loses its data.
///
/// If it loses its data while leases stand, a name may have two holders.
pub struct Plain<S>(pub S);

#[async_trait]
impl<S: Store> Node for Plain<S> {
    fn counts_names(&self) -> bool {
        false
    }

    async fn confirm(&self, _: &Lease, _: Fence) -> Result<Confirmed, Error> {
        Err(Error::new(ErrorKind::Unsupported, "the store does not count the grants of a name"))
    }

    async fn memory(&self) -> Result<Memory, Error> {
        Ok(Memory { vote: Vote::Given { counter: 0 }, latest_end: Duration::ZERO, is_new: false })
    }

    async fn keep_out(&self, _: &str, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    async fn admit(&self, _: &str, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

#[async_trait]
impl<S: Store> Store for Plain<S> {
    fn features(&self) -> Features {
        self.0.features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.0.acquire(request).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.0.acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.0.release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.0.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.0.inspect(name).await
    }
}

impl<S: Store> fmt::Display for Plain<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<S: Store> fmt::Debug for Plain<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The nodes of a quorum, in their order.
pub(super) type Nodes = Arc<[Arc<dyn Node>]>;
