//! Calls of a lease's holder.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::lease::{Current, EndReason, ReleaseOutcome, State, Terms};
use crate::store::{AcquireReply, Durable, Enqueue, Request, check_certain};
use crate::wait::Guard;
use crate::{Error, ErrorKind, Fence, Holder, Lease, Name, Owner, Share};

impl Guard {
    /// Returns another guard of the same lease, for code that locks what its caller has locked. The
    /// last guard releases the name.
    pub fn reenter(&self) -> Self {
        self.lease.enter();
        Self { core: Arc::clone(&self.core), lease: Arc::clone(&self.lease), id: self.id, others: None }
    }

    /// Number of guards of the lease, this one included; see [`reenter`](Guard::reenter). No round
    /// trip.
    pub fn holds(&self) -> usize {
        self.lease.guards()
    }

    /// Name of the lock.
    pub fn name(&self) -> &Name {
        &self.lease.name
    }

    /// Share of the name that is held. A [downgrade](Guard::downgrade) lowers it when it begins,
    /// whatever its outcome.
    pub fn share(&self) -> Share {
        self.lease.current().share
    }

    /// Fencing token for the guarded resource; `None` if the store does not count grants.
    pub fn fence(&self) -> Option<Fence> {
        self.lease.current().fence
    }

    /// Copies of the grant that the store has confirmed. `None` if it was not asked to.
    pub fn durability(&self) -> Option<Durable> {
        self.lease.durability
    }

    /// Owner token of this lease at the store.
    pub fn token(&self) -> &Owner {
        &self.lease.owner
    }

    /// Time for which the holder may go on if no renewal is answered; zero once the lease is lost.
    pub fn remaining(&self) -> Duration {
        let now = self.core.session.clock.now();
        if self.lease.end_reason(now).is_some() {
            return Duration::ZERO;
        }
        self.lease.valid_until().since(now)
    }

    /// Time until the lease ends at the store if no renewal is answered. It exceeds
    /// [`remaining`](Guard::remaining) by the safety margin, in which nobody else can hold.
    pub fn lease_remaining(&self) -> Duration {
        self.lease.store_until().since(self.core.session.clock.now())
    }

    /// State by the clock: held, in jeopardy or lost. No round trip.
    pub fn state(&self) -> State {
        if !self.core.session.is_ours() {
            return State::Lost;
        }
        self.lease.state(self.core.session.clock.now())
    }

    /// Reason why the lease ended; `None` while it stands.
    pub fn end_reason(&self) -> Option<EndReason> {
        if !self.core.session.is_ours() {
            return Some(EndReason::Gone);
        }
        self.lease.end_reason(self.core.session.clock.now())
    }

    /// Error of the last renewal, if it failed: why a lease in jeopardy is not renewed, or why it
    /// [expired](EndReason::Expired). `None` if no renewal was answered since with an error. No round trip.
    pub fn renewal_error(&self) -> Option<Error> {
        self.lease.renewal_error()
    }

    /// Asks the store whether the lease stands. One round trip.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it does not; the guard is lost from then on. Without an
    /// answer, the store's error: the guard stays as it was.
    ///
    /// # Cancel safety
    /// A dropped future changes nothing.
    pub async fn verify(&self) -> Result<(), Error> {
        self.core.session.check_process()?;
        self.core.session.watchdog.ensure_running();
        self.check()?;
        let entries = self.core.session.call_without_lease(self.core.session.store.inspect(Some(self.name()))).await?;
        // The share of a guard only shrinks, so the store had at least this much when it answered.
        let claimed = self.share();
        let is_ours = |holder: &&Holder| holder.owner == *self.token() && holder.share.covers(claimed);
        match entries.iter().flat_map(|entry| &entry.holders).find(is_ours) {
            None => self.core.session.watchdog.end(self.id, EndReason::Gone),
            Some(holder) => check_certain(holder, self.name())?,
        }
        self.check()
    }

    /// Resolves when the lease ends, with the reason. Outlives the guard.
    pub fn lost(&self) -> impl Future<Output = EndReason> + Send + use<> {
        let (held, clock) = (Arc::clone(&self.lease), Arc::clone(&self.core.session.clock));
        let is_ours = self.core.session.is_ours();
        async move { if is_ours { held.until_end(&*clock).await } else { EndReason::Gone } }
    }

    /// Returns a token that is cancelled when the lease ends. The watchdog task cancels it. If the
    /// runtime of that task has ended, [`lost`](Guard::lost) and [`run`](Guard::run) still report
    /// the end.
    pub fn cancellation(&self) -> CancellationToken {
        if !self.core.session.is_ours() {
            let lost = CancellationToken::new();
            lost.cancel();
            return lost;
        }
        self.lease.ended().clone()
    }

    /// Runs `work` for as long as the lease stands.
    ///
    /// The clock is read before each step of `work`, so a process that was stopped does not go on
    /// with it.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) as soon as the lease ends; `work` is dropped then, wherever
    /// it was. Also if the lease ended during the last step, which it did not cover.
    ///
    /// # Cancel safety
    /// `work` is dropped with the future. The guard goes on.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.core.session.check_process()?;
        self.core.session.watchdog.ensure_running();
        run_until(self.lease.until_end(&*self.core.session.clock), || self.check(), work).await
    }

    /// Renews now, for `ttl` from now on. No renewal shortens a lease: a shorter ttl counts from
    /// the next renewals.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lease has ended,
    /// [`Invalid`](crate::ErrorKind::Invalid) for a ttl too short for its timeouts. After any other
    /// error the lease goes on as before.
    ///
    /// # Cancel safety
    /// A renewal is sent and counted even if the future is dropped, unless another extend replaces
    /// it before it is sent.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.check()?;
        Terms { ttl, ..self.lease.terms }.check(&self.core.session.store.features())?;
        self.core.session.watchdog.extend(self.id, ttl).await
    }

    /// Keeps a smaller share: a writer becomes a reader ([`Share::READ`]), a holder of permits
    /// returns some. Waiters that fit are served. One round trip; none for the present share.
    ///
    /// The guard claims the smaller share as soon as the request leaves; see
    /// [`share`](Guard::share). Act by it from then on.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lease has ended,
    /// [`Invalid`](crate::ErrorKind::Invalid) for a larger share or one of another kind: nothing
    /// has changed then. After any other error the guard claims the smaller share. The store may
    /// keep the larger one, which keeps others out. Call it again, or release.
    ///
    /// # Cancel safety
    /// A dropped future counts as an unknown outcome: the guard claims the smaller share, and the
    /// store keeps that or more. The lease is not handed to another task of this process any more.
    pub async fn downgrade(&self, share: Share) -> Result<(), Error> {
        self.check()?;
        let (name, Current { share: held, ttl, .. }) = (self.name(), self.lease.current());
        if !self.lease.generated {
            let what = format!("the owner token of {name:?} was supplied, and another client may hold with the same one");
            return Err(Error::invalid(what).with_hint("release it, and take the smaller share"));
        }
        if share.kind() != held.kind() || share.weight() > held.weight() {
            let what = format!("{share:?} of {name:?} is not a part of {held:?}");
            return Err(Error::invalid(what).with_hint("take a larger share with an acquisition of its own"));
        }
        if share == held && !self.lease.is_shrinking() {
            return self.check();
        }
        // As a heartbeat, which takes nothing that the owner does not hold: one that runs after the
        // release finds nothing.
        let request = Request::new(name.clone(), self.token().clone(), share, ttl).with_enqueue(Enqueue::Heartbeat);
        // Before the request is sent: the store may shrink the share, and the future may be dropped
        // before the answer.
        self.lease.shrink(share);
        match self.core.session.attempt(&request).await? {
            AcquireReply::Granted(grant) => {
                self.lease.set_fence(grant.fence);
                self.lease.shrunk(share);
                self.check()
            }
            AcquireReply::Busy(_) => {
                self.core.session.watchdog.end(self.id, EndReason::Gone);
                Err(self.lost_error())
            }
            AcquireReply::Refused { why, .. } => Err(Error::unavailable(why)),
        }
    }

    /// Releases the lease. One round trip; none if another task of this process takes it over.
    ///
    /// # Errors
    /// If the store refuses the release, e.g. because a permission was withdrawn: the name is free
    /// after its ttl.
    ///
    /// # Cancel safety
    /// A dropped future leaves the release to the background.
    pub async fn release(mut self) -> Result<ReleaseOutcome, Error> {
        self.core.session.check_process()?;
        match self.leave() {
            0 if !self.lease.claim_release() => Ok(ReleaseOutcome::WasLost),
            0 if self.hand_on() => Ok(ReleaseOutcome::Released),
            0 => {
                self.core.session.watchdog.forget(self.id);
                self.core.session.release(Arc::clone(&self.lease)).await
            }
            others => Ok(ReleaseOutcome::StillHeld(others)),
        }
    }

    /// Ends this guard without a release, so that another process can [adopt](crate::Locker::adopt)
    /// the lease within its ttl. Nobody renews it meanwhile. Other guards of the lease are lost.
    #[must_use = "the lease is all that can renew or release the name from now on"]
    pub fn into_lease(self) -> Lease {
        if self.core.session.is_ours() {
            self.core.session.watchdog.forget(self.id);
            self.lease.claim_release();
            self.lease.end(EndReason::Released);
        }
        self.lease.snapshot()
    }

    /// Marks that no work has begun: the lease waits for others that the work needs.
    pub(crate) fn keep_idle(&self) {
        self.lease.set_idle(true);
    }

    /// Marks that work begins, and has to end after `max_hold`.
    pub(crate) fn begin(&self, max_hold: Option<Duration>) {
        self.lease.set_idle(false);
        if let Some(max) = max_hold {
            self.core.session.watchdog.end_at(self.id, self.core.session.clock.now() + max);
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.core.session.check_process()?;
        if self.state() == State::Lost { Err(self.lost_error()) } else { Ok(()) }
    }

    fn lost_error(&self) -> Error {
        let name = self.name();
        match self.end_reason() {
            Some(reason) => {
                let why = reason.because_of(self.renewal_error().as_ref());
                Error::new(ErrorKind::Lost, format!("{name:?} was lost: {why}"))
            }
            None => Error::lost().context(format_args!("{name:?}")),
        }
    }
}

/// Runs `work` until `over` resolves. Calls `stands` before and after each step.
pub(crate) async fn run_until<T, L>(
    over: impl Future<Output = L>,
    stands: impl Fn() -> Result<(), Error> + Sync,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let (mut over, mut work) = (pin!(over), pin!(work));
    poll_fn(|context| {
        let over = over.as_mut().poll(context).is_ready();
        if let Err(lost) = stands() {
            return Poll::Ready(Err(lost));
        }
        if over {
            return Poll::Ready(Err(Error::lost()));
        }
        work.as_mut().poll(context).map(|done| stands().map(|()| done))
    })
    .await
}
