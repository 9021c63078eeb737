//! The holder's side of a lease.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::lease::{Current, EndReason, ReleaseOutcome, State, Terms};
use crate::store::{AcquireReply, Enqueue, Request};
use crate::wait::Guard;
use crate::{Error, ErrorKind, Fence, Holder, Lease, Name, Owner, Share};

impl Guard {
    /// Another guard of the same tenure, for code that locks what its caller has locked. The name is given up with the last one.
    pub fn reenter(&self) -> Self {
        self.lease.enter();
        Self { core: Arc::clone(&self.core), lease: Arc::clone(&self.lease), id: self.id, others: None }
    }

    /// How many guards stand for the tenure, this one among them; see [`reenter`](Guard::reenter). No round trip.
    pub fn holds(&self) -> usize {
        self.lease.guards()
    }

    /// What is held.
    pub fn name(&self) -> &Name {
        &self.lease.name
    }

    /// How much of the name is held. A [downgrade](Guard::downgrade) lowers it when it begins, whatever comes of it.
    pub fn share(&self) -> Share {
        self.lease.current().share
    }

    /// The number to hand to the guarded resource; `None` where the store does not count.
    pub fn fence(&self) -> Option<Fence> {
        self.lease.current().fence
    }

    /// The owner token that names this claim at the store.
    pub fn token(&self) -> &Owner {
        &self.lease.owner
    }

    /// How long the tenure can be believed from now if no renewal is answered; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        let now = self.core.session.clock.now();
        if self.lease.end_reason(now).is_some() {
            return Duration::ZERO;
        }
        self.lease.valid_until().since(now)
    }

    /// How long until the lease ends at the store if no renewal is answered. Longer than [`remaining`](Guard::remaining) by
    /// the guard time, in which nobody else can hold.
    pub fn lease_remaining(&self) -> Duration {
        self.lease.store_until().since(self.core.session.clock.now())
    }

    /// Held, in jeopardy or lost, by the clock. No round trip.
    pub fn state(&self) -> State {
        self.lease.state(self.core.session.clock.now())
    }

    /// Why the tenure ended; `None` while it stands.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.lease.end_reason(self.core.session.clock.now())
    }

    /// Asks the store whether the tenure stands. One round trip.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when it does not; the guard is lost from then on. Without an answer, the store's error:
    /// the guard is believed as before.
    ///
    /// # Cancel safety
    /// Nothing has changed when the future is dropped.
    pub async fn verify(&self) -> Result<(), Error> {
        self.core.session.watchdog.ensure_running();
        self.check()?;
        let entries = self.core.session.call_without_lease(self.core.session.store.inspect(Some(self.name()))).await?;
        // What the guard claims only shrinks, so what it claims now was the store's when it answered.
        let for_handoff = self.share();
        let ours = |holder: &Holder| holder.owner == *self.token() && holder.share.weight() >= for_handoff.weight();
        if !entries.iter().flat_map(|entry| &entry.holders).any(ours) {
            self.core.session.watchdog.end(self.id, EndReason::Gone);
        }
        self.check()
    }

    /// Resolves when the tenure ends, with the reason. It stays useful after the guard is gone.
    pub fn lost(&self) -> impl Future<Output = EndReason> + Send + use<> {
        let (held, clock) = (Arc::clone(&self.lease), Arc::clone(&self.core.session.clock));
        async move { held.until_end(&*clock).await }
    }

    /// A token that is cancelled when the tenure ends. It is told by the task that renews: where the runtime of that task has
    /// ended, [`lost`](Guard::lost) and [`run`](Guard::run) still tell.
    pub fn cancellation(&self) -> CancellationToken {
        self.lease.ended.clone()
    }

    /// Runs `work` for as long as the tenure stands.
    ///
    /// The clock is looked at before each step of `work`, so a process that was stopped does not go on with it.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) the moment the tenure ends; `work` is dropped then, wherever it was. Also when it ended
    /// during the last step: what that step did was not covered.
    ///
    /// # Cancel safety
    /// `work` is dropped with the future, and the guard goes on.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.core.session.watchdog.ensure_running();
        run_until(self.lease.until_end(&*self.core.session.clock), || self.check(), work).await
    }

    /// Renews now, for `ttl` from now on. A shorter ttl counts from the next renewals: no renewal shortens a lease.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when the tenure has ended, [`Invalid`](crate::ErrorKind::Invalid) for a ttl too short for
    /// its timeouts. After any other error the lease goes on as before.
    ///
    /// # Cancel safety
    /// The renewal is sent and counted even if the future is dropped, unless another extend takes its place before it is sent.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.check()?;
        Terms { ttl, ..self.lease.terms }.check(&self.core.session.store.features())?;
        self.core.session.watchdog.extend(self.id, ttl).await
    }

    /// Keeps a smaller share of what it holds: a writer becomes a reader ([`Share::READ`]), a holder of permits gives some back.
    /// Those who wait and fit are served. One round trip; none for the share that it has.
    ///
    /// The guard claims the smaller share from the moment the request leaves; see [`share`](Guard::share). Act by it from then on.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when the tenure has ended, [`Invalid`](crate::ErrorKind::Invalid) for a larger share or a
    /// share of another kind: nothing has changed then. After any other error the guard claims the smaller share, and the store may
    /// keep the larger one, which keeps others out. Call it again, or release.
    ///
    /// # Cancel safety
    /// A dropped future counts as an error whose outcome is unknown: the guard claims the smaller share, the store keeps that or
    /// more. The lease does not pass to another task of this process any more.
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
        // As a heartbeat, which takes nothing that the owner does not hold: one that runs after the release finds nothing.
        let request = Request::new(name.clone(), self.token().clone(), share, ttl).with_enqueue(Enqueue::Heartbeat);
        // Before anything is sent: the store may shrink the share, and nobody may be left to hear of it.
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

    /// Gives the name up. One round trip, none where it goes to another task of this process.
    ///
    /// # Errors
    /// When the store refuses the release, e.g. because a permission was withdrawn: the name is free when its ttl has passed.
    ///
    /// # Cancel safety
    /// A dropped future leaves the release to the background.
    pub async fn release(mut self) -> Result<ReleaseOutcome, Error> {
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

    /// Ends this guard's belief without releasing, so that the lease can be [adopted](crate::Locker::adopt) elsewhere within its
    /// ttl. Nobody renews it meanwhile. Other guards of the tenure are lost.
    #[must_use = "the lease is all that can renew or release the name from now on"]
    pub fn into_lease(self) -> Lease {
        self.core.session.watchdog.forget(self.id);
        self.lease.claim_release();
        self.lease.end(EndReason::Released);
        self.lease.snapshot()
    }

    /// It is only kept until its holder has all that its work needs.
    pub(crate) fn keep_idle(&self) {
        self.lease.set_idle(true);
    }

    /// Work begins under it, and is to end after `max_hold`.
    pub(crate) fn begin(&self, max_hold: Option<Duration>) {
        self.lease.set_idle(false);
        if let Some(max) = max_hold {
            self.core.session.watchdog.end_at(self.id, self.core.session.clock.now() + max);
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.state() == State::Lost { Err(self.lost_error()) } else { Ok(()) }
    }

    fn lost_error(&self) -> Error {
        let name = self.name();
        match self.end_reason() {
            Some(reason) => Error::new(ErrorKind::Lost, format!("{name:?} was lost: {reason}")),
            None => Error::lost().context(format_args!("{name:?}")),
        }
    }
}

/// Runs `work` until `over` resolves; `stands` is asked before and after each step.
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
