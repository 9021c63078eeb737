//! How more nodes come to hold a lease that a majority has granted.
//!
//! A node may take it in the background while its holder releases it. If the release found nothing there, it is released once
//! more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::admission::Admission;
use super::node::Nodes;
use super::round::MOMENT;
use crate::store::{AcquireReply, ReleaseReply, Request};
use crate::{Entry, Error, Lease, Owner};

/// Pause before a node that is busy is asked again. Each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(5);

/// Begins a call here, so that it is sent before what this client sends later, and lets it go on in
/// the background.
pub(super) fn begin(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    if call.as_mut().now_or_never().is_none() {
        tokio::spawn(call);
    }
}

/// Owners of whom something is under way, and whether they want their leases.
#[derive(Clone, Default)]
pub(super) struct Wanted(Arc<Mutex<HashMap<Owner, Weak<Want>>>>);

/// Whether an owner still wants its lease. Tasks that ask nodes for it in the background look here.
pub(super) struct Want {
    owner: Owner,
    all: Wanted,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// No release follows.
    is_left: bool,
    /// Nodes that have granted it after the majority.
    granted: Vec<usize>,
    /// Nodes at which the release found nothing, or may have.
    missed: Vec<usize>,
}

impl Wanted {
    pub(super) fn by(&self, owner: &Owner) -> Arc<Want> {
        let mut all = self.all();
        if let Some(want) = all.get(owner).and_then(Weak::upgrade) {
            return want;
        }
        let want = Arc::new(Want { owner: owner.clone(), all: self.clone(), state: Mutex::default() });
        all.insert(owner.clone(), Arc::downgrade(&want));
        want
    }

    /// The owner releases its lease. That stays known until the last who asks is dropped.
    pub(super) fn end(&self, owner: &Owner) -> Arc<Want> {
        let want = self.by(owner);
        want.state().is_over = true;
        want
    }

    /// The same where no release follows: another owner has taken over, or a majority has lost it.
    pub(super) fn end_without_release(&self, owner: &Owner) -> Arc<Want> {
        let want = self.end(owner);
        want.state().is_left = true;
        want
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Owner, Weak<Want>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Want {
    fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// A node has granted the lease, after the majority. Returns whether it has to be released there.
    fn granted(&self, at: usize) -> bool {
        let mut state = self.state();
        state.granted.push(at);
        state.is_left || state.is_over && state.missed.contains(&at)
    }

    /// The release found nothing at a node, or may have. Returns whether the node has granted it meanwhile.
    fn missed(&self, at: usize) -> bool {
        let mut state = self.state();
        state.missed.push(at);
        state.granted.contains(&at)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Want {
    fn drop(&mut self) {
        let mut all = self.all.all();
        // Another may stand there by now.
        if all.get(&self.owner).is_some_and(|want| want.strong_count() == 0) {
            all.remove(&self.owner);
        }
    }
}

/// Asks nodes for one lease in the background, while it is wanted.
#[derive(Clone)]
pub(super) struct Planting {
    pub(super) nodes: Nodes,
    pub(super) admission: Arc<Admission>,
    pub(super) lease: Arc<Lease>,
    /// When the majority had it.
    pub(super) began: Instant,
    /// The owner from whom it was taken over.
    pub(super) from: Option<Owner>,
    /// None for a supplied token, which another client may use: it is asked for once, by its holder.
    pub(super) want: Option<Arc<Want>>,
    /// Time that a call may take.
    pub(super) limit: Duration,
    /// Number of nodes that have to have it.
    pub(super) need: usize,
    /// A program that ends waits for it.
    pub(super) under_way: Option<TaskTrackerToken>,
}

impl Planting {
    /// Has a node take the lease. A majority holds it, so nobody else does. The node may be busy for a moment, by the release of the
    /// last holder, which comes late, or by the try of a client that was refused. Or it may be away for a moment.
    pub(super) fn plant(&self, at: usize) {
        let mut me = self.clone();
        begin(async move {
            let Lease { name, owner, share, ttl, .. } = &*me.lease;
            let (mut pause, mut from) = (PAUSE, me.from.clone());
            // At a third of the ttl the lease is renewed, and the nodes that lack it are found again.
            while me.began.elapsed() < *ttl / 3 && me.want.as_ref().is_some_and(|want| !want.is_over()) {
                // It ends there when it ends at the majority.
                let left = ttl.saturating_sub(me.began.elapsed());
                let mut request = Request::new(name.clone(), owner.clone(), *share, left);
                request.from.clone_from(&from);
                let answer = timeout(me.limit, me.nodes[at].acquire(&request)).await;
                let silent = |_| Err(Error::unreachable(format!("no answer within {:?}", me.limit)).maybe_applied());
                let answer = answer.unwrap_or_else(silent);
                let (lacks, is_busy) = (Self::lacks(&answer), matches!(answer, Ok(AcquireReply::Busy(_))));
                me.look(at, answer).await;
                if !lacks {
                    return;
                }
                me.under_way = None;
                sleep(pause).await;
                pause *= 2;
                if is_busy {
                    // The node does not have the former owner's lease, or it has another's.
                    from = me.from.clone().filter(|_| from.is_none());
                }
            }
        });
    }

    /// Whether a node that answers so is to be asked again.
    pub(super) fn lacks(answer: &Result<AcquireReply, Error>) -> bool {
        match answer {
            Ok(AcquireReply::Busy(_)) => true,
            Ok(_) => false,
            Err(error) => error.is_transient(),
        }
    }

    /// Whether a majority may still have the lease: too few of the other nodes say that they lack it. Another client may have taken it
    /// over, and nobody tells this one.
    async fn may_stand(&self, at: usize) -> bool {
        let Lease { name, owner, .. } = &*self.lease;
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at);
        let asked = join_all(others.map(|(_, node)| timeout(self.limit, node.inspect(Some(name))))).await;
        let lacks = |answer: &Result<Result<Vec<Entry>, Error>, Elapsed>| match answer {
            Ok(Ok(entries)) => !entries.iter().flat_map(|entry| &entry.holders).any(|holder| holder.owner == *owner),
            _ => false,
        };
        asked.iter().filter(|answer| lacks(answer)).count() <= self.nodes.len() - self.need
    }

    /// Looks at the answer of a node to the release.
    pub(super) fn released(&self, at: usize, answer: &Result<ReleaseReply, Error>) {
        let is_released = matches!(answer, Ok(ReleaseReply::Released));
        if !is_released && self.want.as_ref().is_some_and(|want| want.missed(at)) {
            let me = self.clone();
            begin(async move { me.release(at).await });
        }
    }

    /// Looks at an answer to an acquisition that comes after the majority's. If it comes late, another client may have taken the lease
    /// over or released it meanwhile.
    pub(super) async fn look(&self, at: usize, answer: Result<AcquireReply, Error>) {
        let may_hold = match &answer {
            Ok(AcquireReply::Granted(_)) => true,
            Ok(AcquireReply::Busy(_)) => false,
            Ok(AcquireReply::Refused { .. }) => {
                drop(self.admission.begin(at));
                false
            }
            Err(error) => error.may_have_been_applied(),
        };
        let Some(want) = self.want.as_ref().filter(|_| may_hold) else { return };
        let is_late = answer.is_ok() && self.began.elapsed() > MOMENT;
        if want.granted(at) || is_late && !self.may_stand(at).await {
            self.release(at).await;
        }
    }

    /// Releases the lease at a node once more. If this is lost, the ttl ends the lease.
    async fn release(&self, at: usize) {
        let _ = timeout(self.limit, self.nodes[at].release(&self.lease, Duration::ZERO)).await;
    }
}
