//! The wait for a lock: requests to the store, and the pauses between them.
//!
//! A wait begins with one attempt that joins no queue. If the name is busy, its task enters the
//! process's local queue for the name. One waiter of each local queue, the leader, polls the store
//! for all of them.

mod attempt;
mod guard;
mod queue;
mod settings;
mod state;

use std::future::pending;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::{self, BoxStream};

pub(crate) use self::attempt::Attempt;
pub(crate) use self::guard::Core;
pub use self::guard::Guard;
pub(crate) use self::queue::AcquireKey;
use self::queue::{LeaderStatus, Waiter, Wakeup};
pub(crate) use self::settings::Settings;
pub use self::settings::Waiting;
use self::state::{Heartbeat, WaitState};
use crate::lease::Session;
use crate::store::call::backoff;
use crate::store::{AcquireReply, Busy, Enqueue, Notice, Request};
use crate::{BootTime, Error, ErrorKind, Holder, Name, Owner, Share, format_duration};

/// Timeout of an acquisition at a store that never answered, whatever its wait.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// Bounds of a poll interval: not so short that polls starve other clients, nor so long that a
/// queue entry lapses unseen.
const POLL_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);
/// Ttl of a lease that is handed to a waiter, until the waiter renews it. A dead waiter costs the
/// waiters behind it this long.
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);
/// Time by which a queue entry outlives a handoff without a heartbeat, because one heartbeat may be
/// lost.
const ENTRY_GRACE: Duration = Duration::from_secs(1);

/// The wait of one task.
pub(crate) struct Wait<'a> {
    settings: &'a Settings,
    core: &'a Arc<Core>,
    name: Name,
    key: AcquireKey,
    started: BootTime,
    /// Timeout, counted from `started`.
    patience: Option<Duration>,
    waiter: Option<Waiter<Guard, Box<WaitState>>>,
    /// Whether this task polls the store: for itself alone, or as the leader of its local queue.
    leads: bool,
    state: Option<Box<WaitState>>,
    outage: bool,
    /// Whether the observer knows that the name is busy. The holder that it knows of stands below.
    observed: bool,
    observed_holder: Option<Owner>,
}

/// The next event of a waiting task.
enum Event {
    Wakeup(Wakeup<Guard, Box<WaitState>>),
    Led(Result<Guard, Error>),
    Over,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(settings: &'a Settings, name: Name, key: AcquireKey) -> Self {
        let core = &settings.core;
        let (started, patience) = (core.session.clock.now(), settings.wait);
        let (waiter, leads, state) = (None, true, None);
        Self {
            settings,
            core,
            name,
            key,
            started,
            patience,
            waiter,
            leads,
            state,
            outage: false,
            observed: false,
            observed_holder: None,
        }
    }

    /// Counts the timeout from an earlier start, for one part of a longer wait.
    pub(crate) fn since(mut self, started: BootTime) -> Self {
        self.started = started;
        self
    }

    /// Waits until this process holds the name.
    pub(crate) async fn guard(&mut self) -> Result<Guard, Error> {
        let patient = self.left() != Some(Duration::ZERO);
        if !(patient && self.core.queues.is_contended(&self.name, self.started)) {
            while !self.state.as_ref().is_some_and(|state| state.contended) {
                self.pause().await;
                if let Some(guard) = self.poll().await? {
                    return Ok(guard);
                }
            }
        }
        let waiter = self.enter();
        self.in_queue(waiter).await
    }

    fn enter(&mut self) -> Waiter<Guard, Box<WaitState>> {
        let (waiter, leads) = self.core.queues.enter(&self.name, &self.key, self.settings.asks_margin());
        self.waiter = Some(waiter.clone());
        self.leads = leads;
        if leads {
            self.publish_status(None);
        } else {
            // The leader polls the store for this task as well.
            self.state = None;
        }
        waiter
    }

    async fn in_queue(&mut self, mut waiter: Waiter<Guard, Box<WaitState>>) -> Result<Guard, Error> {
        let core = self.core;
        let end = self.patience.map(|wait| core.session.clock.nap_until(self.started + wait));
        let mut end = end.map_or_else(|| Either::Left(pending()), Either::Right);
        loop {
            let asks = self.leads;
            // In this order, so that a simulation can be repeated. A guard in the inbox comes
            // first.
            let event = tokio::select! {
                biased;
                wakeup = waiter.woken() => Event::Wakeup(wakeup),
                outcome = self.lead(), if asks => Event::Led(outcome),
                () = &mut end, if !asks => Event::Over,
            };
            match event {
                Event::Wakeup(Wakeup::Guard(guard)) if guard.end_reason().is_none() => return Ok(guard),
                Event::Wakeup(Wakeup::Guard(_)) => {
                    if !core.queues.reenter(&waiter) {
                        waiter = self.enter();
                    }
                }
                Event::Wakeup(Wakeup::Lead(state)) => (self.leads, self.state) = (true, state),
                Event::Wakeup(Wakeup::Over) => {}
                Event::Led(guard) => {
                    let guard = guard?;
                    // This token is used up; the next waiter needs another.
                    self.state = None;
                    core.queues.note_contended(&self.name, core.session.clock.now());
                    let (leaves_margin, handoffs_until) = (guard.leaves_margin(), guard.handoffs_until());
                    drop(core.queues.deliver(&waiter, guard, leaves_margin, handoffs_until));
                }
                Event::Over => return Err(self.timed_out()),
            }
        }
    }

    /// Returns the state of this wait at the store. The first poll outside a local queue is an
    /// attempt that joins no queue.
    fn state(&mut self) -> Result<&mut WaitState, Error> {
        let state = match self.state.take() {
            Some(state) => state,
            None => Box::new(WaitState::new(self.attempt()?, self.waiter.is_some(), self.core.session.clock.now())),
        };
        Ok(self.state.insert(state))
    }

    fn attempt(&self) -> Result<Attempt, Error> {
        self.settings.attempt(&self.name, &self.key)
    }

    async fn lead(&mut self) -> Result<Guard, Error> {
        loop {
            self.sit_out_handoffs().await;
            if let Some(guard) = self.pause().await {
                return Ok(guard);
            }
            if let Some(guard) = self.poll().await? {
                return Ok(guard);
            }
        }
    }

    /// Waits while tasks of this process hand the name on among themselves: a leader without an
    /// entry at the store needs none then.
    async fn sit_out_handoffs(&mut self) {
        while self.state.is_none()
            && let Some(until) = self.core.queues.handoffs_until(&self.name)
        {
            let end = self.patience.map_or(until, |wait| until.min(self.started + wait));
            if self.core.session.clock.now() >= end {
                break;
            }
            self.core.session.clock.nap_until(end).await;
        }
    }

    /// Polls the store once.
    ///
    /// # Cancel safety
    /// Dropping the future is safe. The attempt keeps its token: the next poll retries with it, or
    /// `Drop` releases it.
    async fn poll(&mut self) -> Result<Option<Guard>, Error> {
        let (core, terms) = (self.core, self.key.terms);
        let (queues, handoff_ttl) = (self.queues(), HANDOFF_TTL.min(terms.ttl));
        let state = self.state()?;
        if state.contended && state.notices.is_none() {
            // The name may have become free between the busy answer and the start of the watch, so
            // this request follows it.
            state.notices = Some(armed(&core.session, &state.attempt.request).await);
        }
        let entry = match state.heartbeat {
            _ if !(queues && state.contended) => Enqueue::No,
            Some(_) => Enqueue::Heartbeat,
            None => Enqueue::Join { entry_ttl: handoff_ttl + ENTRY_GRACE, handoff_ttl },
        };
        state.attempt.request.enqueue = entry;
        let sent_at = core.session.clock.now();
        let answer = state.attempt.send().await;
        if answer.is_ok() {
            self.recovered();
        }
        match answer {
            Ok(AcquireReply::Granted(grant)) => {
                let label = Arc::clone(&self.key.label);
                match self.state()?.attempt.granted(terms, &label, sent_at, &grant) {
                    Some(held) => Ok(Some(Guard::new(core, held))),
                    None => self.start_over(),
                }
            }
            Ok(AcquireReply::Busy(busy)) => self.busy(busy, entry, Heartbeat { sent_at, grant_seq: None, handoff_ttl }),
            Ok(AcquireReply::Refused { until, why }) => self.poll_after(until, |_| Error::unavailable(why)),
            Err(error) if error.is_transient() => self.outage(error),
            Err(error) => Err(error),
        }
    }

    /// Whether this wait has an entry in the store's queue. One with a supplied owner token has
    /// none: another client may use the same token.
    fn queues(&self) -> bool {
        self.core.session.store.features().queue && self.key.token.is_none()
    }

    /// Starts over after a grant that came too late to be valid. Its token is released in the
    /// background and never used again.
    fn start_over(&mut self) -> Result<Option<Guard>, Error> {
        let late = || Error::unreachable("the grant arrived too late to be valid");
        if self.key.token.is_some() {
            return Err(late().maybe_applied());
        }
        self.renew_token()?;
        self.poll_after(Duration::ZERO, |_| late())
    }

    /// Goes on with a token that was never sent.
    fn renew_token(&mut self) -> Result<(), Error> {
        let attempt = self.attempt()?;
        let state = self.state()?;
        (state.attempt, state.notices, state.heartbeat) = (attempt, None, None);
        Ok(())
    }

    fn busy(&mut self, busy: Busy, entry: Enqueue, heartbeat: Heartbeat) -> Result<Option<Guard>, Error> {
        let now = self.core.session.clock.now();
        self.core.queues.note_contended(&self.name, now);
        let owner = busy.holder.as_ref().map(|holder| holder.owner.clone());
        if !self.observed || self.observed_holder != owner {
            self.settings.observe(Waiting::Busy(busy.holder.as_ref()));
            (self.observed, self.observed_holder) = (true, owner.clone());
        }
        let state = self.state()?;
        state.holder = busy.holder;
        state.heartbeat = busy.position.map(|_| Heartbeat { grant_seq: busy.grant_seq, ..heartbeat });
        let first = !std::mem::replace(&mut state.contended, true);
        self.publish_status(None);
        if self.left().is_some_and(|left| left.is_zero()) {
            return Err(self.timed_out());
        }
        let lapsed = entry == Enqueue::Heartbeat && busy.position.is_none();
        if self.queues() && (first || lapsed) {
            // A token that was tried for a free name, or whose entry has lapsed, is not queued
            // again.
            self.renew_token()?;
        }
        if first || lapsed {
            return self.poll_after(Duration::ZERO, Self::timed_out);
        }
        let pause = self.pause_after(busy.poll_interval, busy.position.is_some(), heartbeat.handoff_ttl);
        self.poll_after(pause, Self::timed_out)
    }

    /// Time to wait for a notice before the next poll.
    fn pause_after(&self, poll_interval: Duration, queued: bool, handoff_ttl: Duration) -> Duration {
        let every = self.settings.poll_interval.unwrap_or(poll_interval).clamp(*POLL_INTERVALS.start(), *POLL_INTERVALS.end());
        let every = if queued {
            // Rather late than often, because each waiting process costs the store that many
            // requests. In time to keep the entry.
            every.min(handoff_ttl.mul_f64(2.0 / 3.0)).mul_f64(1.0 + fastrand::f64() * 0.2)
        } else {
            every.mul_f64(0.8 + fastrand::f64() * 0.4)
        };
        // A lease that nobody renews ends at a known time. The poll comes then, not a whole
        // interval later.
        let ends = self.holder().and_then(|h| h.ttl).map_or(every, |ttl| ttl + Duration::from_millis(1));
        every.min(ends)
    }

    /// Publishes what waiters of this local queue report when their time is up.
    fn publish_status(&self, outage: Option<&Error>) {
        if let Some(waiter) = &self.waiter {
            let status = LeaderStatus { holder: self.holder().cloned(), outage: outage.cloned() };
            self.core.queues.set_status(waiter, status);
        }
    }

    fn outage(&mut self, error: Error) -> Result<Option<Guard>, Error> {
        if self.key.token.is_some() && error.may_have_been_applied() {
            return Err(error.with_hint("the owner token was supplied, so another client may hold the name with it: inspect the name before you try again"));
        }
        let waited = self.core.session.clock.now().since(self.started);
        let never_answered = !self.core.session.has_answered();
        if (never_answered && waited >= FIRST_CONTACT) || self.left().is_some_and(|left| left.is_zero()) {
            return Err(error);
        }
        if !self.outage {
            self.outage = true;
            self.settings.observe(Waiting::Outage(&error));
            self.publish_status(Some(&error));
        }
        let pause = backoff(self.core.session.operation_timeout(self.key.terms.ttl));
        self.poll_after(pause, |_| error)
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.outage) {
            self.settings.observe(Waiting::Recovered);
            self.publish_status(None);
        }
    }

    /// Plans the next poll after `pause`, the last one at the end of the wait. Returns `error` if
    /// that has come.
    fn poll_after(&mut self, pause: Duration, error: impl FnOnce(&Self) -> Error) -> Result<Option<Guard>, Error> {
        let pause = match self.left() {
            Some(left) if left.is_zero() => return Err(error(self)),
            left => left.map_or(pause, |left| pause.min(left)),
        };
        let at = self.core.session.clock.now() + pause;
        if let Some(state) = &mut self.state {
            state.poll_at = at;
        }
        Ok(None)
    }

    /// Sleeps until the next poll, or until a notice makes one useful before. A handoff that is
    /// valid needs no poll.
    async fn pause(&mut self) -> Option<Guard> {
        let state = self.state.as_mut()?;
        if self.core.session.clock.now() >= state.poll_at {
            return None;
        }
        let sleep = self.core.session.clock.nap_until(state.poll_at);
        let Some(notices) = &mut state.notices else {
            sleep.await;
            return None;
        };
        let notice = tokio::select! {
            biased;
            () = sleep => return None,
            notice = notices.next() => notice,
        };
        state.poll_at = self.core.session.clock.now();
        match notice {
            Some(Notice::Granted { owner, fence, handoff_ttl }) if owner == state.attempt.request.owner => {
                let heartbeat = state
                    .heartbeat
                    .filter(|heartbeat| heartbeat.grant_seq.is_some_and(|grant_seq| fence.counter() > grant_seq))?;
                let handoff_ttl = handoff_ttl.min(heartbeat.handoff_ttl);
                if !self.accepts_handoff(heartbeat.sent_at, handoff_ttl) {
                    return None;
                }
                let state = self.state.as_mut()?;
                let held = state.attempt.handed_over(self.key.terms, &self.key.label, heartbeat.sent_at, fence, handoff_ttl)?;
                Some(Guard::new(self.core, held))
            }
            Some(_) => None,
            None => {
                // The stream has ended. Polls go on without notices.
                state.notices = Some(stream::pending().boxed());
                None
            }
        }
    }

    /// Whether a handoff for `handoff_ttl` may be taken as a grant, without a poll. The store
    /// executed it after a heartbeat that was sent at `heartbeat`. Else it is a hint.
    fn accepts_handoff(&self, heartbeat: BootTime, handoff_ttl: Duration) -> bool {
        let terms = self.key.terms.for_handoff(handoff_ttl);
        let left = (heartbeat + terms.validity(handoff_ttl)).since(self.core.session.clock.now());
        // The lease is for the first waiter of the local queue, which need not be its leader.
        let next_asks =
            self.waiter.as_ref().map_or(self.settings.asks_margin(), |waiter| self.core.queues.next_asks_margin(waiter));
        let enough_margin = !next_asks || self.key.terms.safety_margin <= terms.safety_margin;
        // A renewal must have time to fail once. The store was not asked for the rest of the terms
        // yet.
        terms.renews && terms.min_hold.is_zero() && enough_margin && left >= handoff_ttl / 6
    }

    fn left(&self) -> Option<Duration> {
        self.patience.map(|wait| (self.started + wait).since(self.core.session.clock.now()))
    }

    fn holder(&self) -> Option<&Holder> {
        self.state.as_ref().and_then(|state| state.holder.as_ref())
    }

    fn timed_out(&self) -> Error {
        let status =
            self.waiter.as_ref().filter(|_| !self.leads).map(|waiter| self.core.queues.status(waiter)).unwrap_or_default();
        if let Some(outage) = status.outage {
            return outage;
        }
        let holder = self.holder().cloned().or(status.holder);
        let why = match &holder {
            // Readers do not keep a reader out: a writer does, who waits in front.
            Some(holder) if (holder.share, self.key.share) == (Share::READ, Share::READ) => {
                format!("{:?} has readers, and a writer waits in front", self.name)
            }
            Some(holder) => format!("{:?} is held by {holder}", self.name),
            None => format!("{:?} is held", self.name),
        };
        let what = match self.patience.unwrap_or_default() {
            Duration::ZERO => why,
            waited => format!("gave up after {}: {why}", format_duration(waited)),
        };
        Error::new(ErrorKind::TimedOut, what).held_by(holder)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.core.queues.leave(&waiter, self.leads, self.state.take());
        }
    }
}

/// Returns the store's notices for a request, or none if it cannot send any. A wait without notices
/// is slower, not wrong.
async fn armed(session: &Session, request: &Request) -> BoxStream<'static, Notice> {
    session.call(request.ttl, session.store.watch(request)).await.unwrap_or_else(|_| stream::pending().boxed())
}
