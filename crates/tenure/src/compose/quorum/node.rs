//! A store that votes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::absence::{Clock, NEW, Noted, SETTLED};
use crate::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use crate::{Entry, Error, ErrorKind, Fence, Lease, Name};

/// A store that votes in a [`Quorum`](super::Quorum).
///
/// Any store can vote, as [`Plain`]. One that implements this itself can do more: the quorum then
/// has fences, and does not count the vote of a node that has lost its data.
///
/// A node renews leases only while it votes, and only those that it has granted since it began to vote. Any other
/// lease that stands there may be the copy of one that has ended. While it does not vote, a renewal is [`Unavailable`](ErrorKind::Unavailable).
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

    /// Inspects names, and tells whether the node votes. One that does not vote may have forgotten leases, or show copies.
    async fn inspect_and_vote(&self, name: Option<&Name>) -> Result<(Vec<Entry>, bool), Error> {
        Ok((self.inspect(name).await?, true))
    }

    /// Returns what the node remembers of the leases that it has granted.
    async fn memory(&self) -> Result<Memory, Error>;

    /// Replaces the note about a loss, if it still says `before`. The node only keeps it.
    ///
    /// `loss` and `before` are those of [`Vote::Lost`]. After another loss this does nothing.
    async fn note(&self, loss: &str, before: &str, note: &str) -> Result<(), Error>;

    /// Lets a node vote again. It counts on from `counter` at least, and keeps `new_beside` for [`Vote::Given`] until it grants something.
    ///
    /// `loss` is the one of [`Vote::Lost`]. After another loss this does nothing.
    async fn admit(&self, loss: &str, counter: u64, new_beside: &[&str]) -> Result<(), Error>;
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
    /// Time until the latest end of a lease in the data with which the node has come back. The lease may have ended since the copy
    /// was made. Zero if the node votes.
    pub copy_end: Duration,
    /// Time of its clock. None for a node that never loses its data.
    pub clock: Option<Clock>,
}

/// Whether a node votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It remembers all of its leases.
    Given {
        /// The largest counter of any of them.
        counter: u64,
        /// The losses of the other nodes that were new as well when this one began to vote. Empty once it has granted anything.
        new_beside: Vec<String>,
    },
    /// It may have lost its data, and does not vote until no lease from before can stand.
    Lost {
        /// Identifies this loss.
        loss: String,
        /// How long it has waited, and has to, as clients of the quorum [noted](Node::note) it. Empty at first.
        note: String,
        /// Nobody was ever granted anything there, as far as it remembers.
        is_new: bool,
    },
}

impl Memory {
    /// How far the node knows that names were counted.
    pub(super) fn counted(&self) -> u64 {
        match &self.vote {
            Vote::Given { counter, .. } => *counter,
            Vote::Lost { note, .. } => Noted::read(note).counter,
        }
    }

    pub(super) fn loss(&self) -> Option<(&str, &str)> {
        if let Vote::Lost { loss, note, .. } = &self.vote { Some((loss, note)) } else { None }
    }

    /// Time until the latest end of a lease that may stand, as far as anything at the node says. An admission before that needs
    /// somebody who knows better.
    pub fn end_of_all(&self) -> Duration {
        let noted = self.loss().map(|(_, note)| Noted::read(note)).filter(|noted| !noted.knows_no_end());
        let left = noted.and_then(|noted| Some(noted.wait?.saturating_sub(noted.waited + noted.passed(self.clock.clone(), 1))));
        self.latest_end.max(self.copy_end).max(left.unwrap_or_default())
    }

    /// Why a node does not vote, as the end of a sentence about it, and the time after which that may have changed.
    /// None if it votes.
    ///
    /// The time is by its own clock. It votes when a majority of the nodes has measured it.
    pub fn kept_out(&self) -> Option<(Duration, String)> {
        let Vote::Lost { note, is_new, .. } = &self.vote else { return None };
        let noted = Noted::read(note);
        let waited = noted.waited + noted.passed(self.clock.clone(), 1);
        let asks = SETTLED.saturating_sub(waited);
        Some(match noted.wait {
            None if *is_new && waited < NEW => {
                let votes = NEW.saturating_sub(waited);
                (asks, format!("is new, or has lost its data: it votes in {votes:.0?} if all servers of the quorum are new"))
            }
            None => {
                let why = format!(
                    "has restarted or lost its data: in {asks:.0?} it asks the others how long leases from before can stand"
                );
                (asks, why)
            }
            Some(wait) => {
                let left = wait.saturating_sub(waited);
                (left, format!("has lost its data: it waits for {left:.0?} until no lease from before can stand"))
            }
        })
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
        Ok(Memory {
            vote: Vote::Given { counter: 0, new_beside: Vec::new() },
            latest_end: Duration::ZERO,
            copy_end: Duration::ZERO,
            clock: None,
        })
    }

    async fn note(&self, _: &str, _: &str, _: &str) -> Result<(), Error> {
        Ok(())
    }

    async fn admit(&self, _: &str, _: u64, _: &[&str]) -> Result<(), Error> {
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

    async fn settled(&self) {
        self.0.settled().await;
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
