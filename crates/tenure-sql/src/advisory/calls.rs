//! Calls about one lease, each on a session that answers or that is ended by another.

use std::sync::Arc;

use tenure::store::{AcquireReply, Busy, ReleaseReply, RenewReply, Request};
use tenure::{Error, ErrorKind, Lease, Owner};
use tokio::time::{Instant, timeout_at};

use super::session::Sessions;
use super::{AdvisoryStore, Held, LiveOf, Locks, granted};
use crate::table::failure::no_answer;
use crate::table::{Failed, Session};

impl<L: Locks> AdvisoryStore<L> {
    pub(super) async fn busy(&self, live: &LiveOf<L>, key: &L::Key, end: Instant) -> Result<AcquireReply, Error> {
        let found = self.sessions.on(live, end, self.locks().holder(live, key)).await.map_err(|failed| failed.error)?;
        let holder = found.map(|found| self.shown(found));
        Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval).with_holder(holder)))
    }

    /// Repeats an acquisition that may have been granted. `None` if it was not, and can be made anew.
    pub(super) async fn repeat(&self, request: &Request, held: Held<L>, end: Instant) -> Result<Option<AcquireReply>, Error> {
        if self.sessions.is_buried(&held.live.session) {
            self.sessions.end_session(&held.live.session, end).await?;
            self.forget(&request.owner, &held);
            return Ok(None);
        }
        if held.released || !request.generated {
            let live = self.sessions.get(end).await?;
            let busy = self.busy(&live, &held.key, end).await;
            self.sessions.give_back(live);
            return busy.map(Some);
        }
        match self.keep(&request.lease(), &held, end).await {
            Ok(RenewReply::Renewed) => Ok(Some(granted(request))),
            Ok(RenewReply::Gone) => Ok(None),
            Err(error) => {
                // The next repetition is not to wait for it again.
                if held.until.is_none() {
                    self.sessions.bury(&held.live, false);
                }
                Err(error)
            }
        }
    }

    /// Takes a lock on a fresh session. A supplied token is not repeated, so without an answer its session is given up.
    pub(super) async fn take(&self, request: &Request, held: &Held<L>, end: Instant) -> Result<bool, Failed> {
        let mut unanswered = Unanswered { sessions: &self.sessions, live: &held.live, matters: !request.generated };
        let taken = self.locks().take(&held.live, &held.key, &request.owner, request.ttl);
        let answer = self.sessions.on(&held.live, end, taken).await;
        unanswered.matters &= answer.as_ref().is_err_and(|failed| !failed.answered);
        answer
    }

    /// Takes over a lease of this store: its session goes on with it.
    pub(super) async fn adopt(&self, request: &Request, from: &Owner, end: Instant) -> Result<AcquireReply, Error> {
        let key = self.locks().key(&request.name)?;
        let Some(held) = self.held(from, &request.name).filter(|held| !held.released) else {
            let live = self.sessions.get(end).await?;
            self.check_elsewhere(&live, &key, from, end).await?;
            let busy = self.busy(&live, &key, end).await;
            self.sessions.give_back(live);
            return busy;
        };
        {
            let (mut leases, key) = (self.leases(), (from.clone(), held.name.clone()));
            if leases.get(&key).is_none_or(|present| !Arc::ptr_eq(&present.live, &held.live)) {
                return Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval)));
            }
            leases.remove(&key);
            leases.insert((request.owner.clone(), held.name.clone()), Held { since: Instant::now(), ..held.clone() });
        }
        let passed = self.sessions.on(&held.live, end, self.locks().pass(&held.live, &key, from, &request.owner)).await;
        passed.map_err(|failed| failed.error)?;
        match self.keep(&request.lease(), &held, end).await? {
            RenewReply::Renewed => Ok(granted(request)),
            RenewReply::Gone => Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval))),
        }
    }

    /// Fails if the lease is that of another process, or of another store of this one.
    async fn check_elsewhere(&self, live: &LiveOf<L>, key: &L::Key, owner: &Owner, end: Instant) -> Result<(), Error> {
        let found = self.sessions.on(live, end, self.locks().session_of(live, key, owner)).await;
        let found = found.map_err(|failed| failed.error)?;
        // It is being passed on by another call of this store.
        let is_ours = |session: &Session| self.leases().values().any(|held| held.live.session == *session);
        if found.is_none_or(|session| is_ours(&session)) {
            return Ok(());
        }
        let what = "the lock is held by a session of another process, which alone can renew it or pass it on";
        Err(Error::new(ErrorKind::Unsupported, what).with_hint("release it, or leave scheme=advisory out"))
    }

    /// The session that holds with this owner token, or that was shown as this owner.
    pub(super) async fn elsewhere(
        &self,
        live: &LiveOf<L>,
        key: &L::Key,
        owner: &Owner,
        end: Instant,
    ) -> Result<Option<Session>, Error> {
        let marked = self.sessions.on(live, end, self.locks().session_of(live, key, owner)).await;
        if let Some(session) = marked.map_err(|failed| failed.error)? {
            return Ok(Some(session));
        }
        let found = self.sessions.on(live, end, self.locks().holder(live, key)).await.map_err(|failed| failed.error)?;
        let Some(found) = found.filter(|found| found.holder.owner == *owner) else { return Ok(None) };
        found.session.map(Some).ok_or_else(|| {
            Error::refused("this user may not end the session that holds the lock")
                .with_hint("end it as its own user, or as an administrator")
        })
    }

    /// Renews on the session that holds.
    pub(super) async fn keep(&self, lease: &Lease, held: &Held<L>, end: Instant) -> Result<RenewReply, Error> {
        let began = Instant::now();
        let silent = |_| no_answer(end.saturating_duration_since(began));
        let _turn = timeout_at(end, held.live.renewing.lock()).await.map_err(silent)?;
        let (sent_at, mut ttl) = (Instant::now(), lease.ttl);
        self.change(&lease.owner, held, |present| {
            present.asked = present.asked.max(sent_at + ttl);
            ttl = present.asked - sent_at;
        });
        match self.sessions.on(&held.live, end, self.locks().keep(&held.live, &held.key, &lease.owner, ttl)).await {
            Ok(true) => {
                self.change(&lease.owner, held, |present| present.until = present.until.max(Some(sent_at + ttl)));
                Ok(RenewReply::Renewed)
            }
            Ok(false) => {
                self.forget(&lease.owner, held);
                Ok(RenewReply::Gone)
            }
            Err(failed) if failed.is_over => {
                self.forget(&lease.owner, held);
                self.sessions.bury(&held.live, failed.answered);
                Ok(RenewReply::Gone)
            }
            Err(failed) => Err(failed.error),
        }
    }

    /// Renews a lease that this store does not have.
    pub(super) async fn keep_elsewhere(&self, lease: &Lease, end: Instant) -> Result<RenewReply, Error> {
        let key = self.locks().key(&lease.name)?;
        let live = self.sessions.get(end).await?;
        let elsewhere = self.check_elsewhere(&live, &key, &lease.owner, end).await;
        self.sessions.give_back(live);
        elsewhere.map(|()| RenewReply::Gone)
    }

    /// Frees a lease on its own session. `None` if that has ended or is silent: another one has to end
    /// it.
    async fn free(&self, lease: &Lease, held: &Held<L>, end: Instant) -> Result<Option<ReleaseReply>, Error> {
        let now = Instant::now();
        // So that the other has time.
        let half = now + end.saturating_duration_since(now) / 2;
        let mut unanswered = Unanswered { sessions: &self.sessions, live: &held.live, matters: true };
        let answer = self.sessions.on(&held.live, half, self.locks().free(&held.live, &held.key, &lease.owner)).await;
        unanswered.matters = answer.as_ref().is_err_and(|failed| !failed.answered);
        match answer {
            Ok(was_held) => {
                self.forget(&lease.owner, held);
                Ok(Some(if was_held { ReleaseReply::Released } else { ReleaseReply::NotHeld }))
            }
            Err(failed) if !failed.answered || failed.is_over => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// Releases a lease of this store. A session that does not answer is ended by another.
    pub(super) async fn release_held(&self, lease: &Lease, held: Held<L>, end: Instant) -> Result<ReleaseReply, Error> {
        self.change(&lease.owner, &held, |present| present.released = true);
        if let Some(reply) = self.free(lease, &held, end).await? {
            return Ok(reply);
        }
        self.sessions.bury(&held.live, false);
        let was_there = self.sessions.end_session(&held.live.session, end).await?;
        self.forget(&lease.owner, &held);
        Ok(if was_there && held.until.is_some() { ReleaseReply::Released } else { ReleaseReply::NotHeld })
    }
}

/// A statement without an answer so far, after which nobody asks on that session again.
struct Unanswered<'a, L: Locks> {
    sessions: &'a Sessions<L>,
    live: &'a LiveOf<L>,
    matters: bool,
}

impl<L: Locks> Drop for Unanswered<'_, L> {
    fn drop(&mut self) {
        if self.matters {
            self.sessions.bury(self.live, false);
        }
    }
}
