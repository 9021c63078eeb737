//! The wait for a lock: what is asked of the store and when, and what to do between looks.

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

/// How long a store that never answered is tried before an acquisition gives up, whatever its wait.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// How often a waiter looks, whatever it was told: not so often that it starves others, nor so seldom that it has left.
const POLL_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);
/// For how long a name is a waiter's that was handed it, unless it renews: what a dead waiter costs those behind it.
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);
/// For how much longer than a claim a place lives without a heartbeat: one may be lost.
const ENTRY_GRACE: Duration = Duration::from_secs(1);

/// One task's wait.
pub(crate) struct Wait<'a> {
    settings: &'a Settings,
    core: &'a Arc<Core>,
    name: Name,
    key: AcquireKey,
    started: BootTime,
    /// For how long from then on.
    patience: Option<Duration>,
    waiter: Option<Waiter<Guard, Box<WaitState>>>,
    /// This task asks the store: for itself alone, or for all in its room.
    leads: bool,
    state: Option<Box<WaitState>>,
    outage: bool,
    /// The observer was told that the name is busy, and by whom.
    observed: bool,
    observed_holder: Option<Owner>,
}

/// What a waiting task meets next.
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

    /// A part of a longer wait that has begun before.
    pub(crate) fn since(mut self, started: BootTime) -> Self {
        self.started = started;
        self
    }

    /// Waits until the name is ours.
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
            // Whoever drives stands for this task as well.
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
            // In order, so that a simulation can be repeated; what was given comes first.
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
                    // This token is used up; the next task of the room needs another.
                    self.state = None;
                    core.queues.note_contended(&self.name, core.session.clock.now());
                    let (leaves_margin, handoffs_until) = (guard.leaves_margin(), guard.handoffs_until());
                    drop(core.queues.deliver(&waiter, guard, leaves_margin, handoffs_until));
                }
                Event::Over => return Err(self.timed_out()),
            }
        }
    }

    /// What this task has reached at the store. The first look of one that meets nobody is a try, which queues nowhere.
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

    /// While tasks of this process pass the name on among themselves, whoever has no place at the store needs none.
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

    /// One look at the store.
    ///
    /// # Cancel safety
    /// What was sent is remembered: the next look asks again with the same token, or what has it clears up.
    async fn poll(&mut self) -> Result<Option<Guard>, Error> {
        let (core, terms) = (self.core, self.key.terms);
        let (queues, handoff_ttl) = (self.queues(), HANDOFF_TTL.min(terms.ttl));
        let state = self.state()?;
        if state.contended && state.notices.is_none() {
            // Between the look that found it busy and the arming of the watch the name may have become free: look again.
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

    /// Whether this wait has a place in the store's queue. A value that was given may be another's, and has none.
    fn queues(&self) -> bool {
        self.core.session.store.features().queue && self.key.token.is_none()
    }

    /// The grant came when nothing of it could be believed any more. Its token goes to the clean-up and is never used again.
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
            // A token that was tried for a free name, or whose place has lapsed, is not queued again.
            self.renew_token()?;
        }
        if first || lapsed {
            return self.poll_after(Duration::ZERO, Self::timed_out);
        }
        let pause = self.pause_after(busy.poll_interval, busy.position.is_some(), heartbeat.handoff_ttl);
        self.poll_after(pause, Self::timed_out)
    }

    /// How long to wait for a notice before the next look.
    fn pause_after(&self, poll_interval: Duration, queued: bool, handoff_ttl: Duration) -> Duration {
        let every = self.settings.poll_interval.unwrap_or(poll_interval).clamp(*POLL_INTERVALS.start(), *POLL_INTERVALS.end());
        let every = if queued {
            // Rather late than often, because each waiting process costs the store that many; in time to keep the place.
            every.min(handoff_ttl.mul_f64(2.0 / 3.0)).mul_f64(1.0 + fastrand::f64() * 0.2)
        } else {
            every.mul_f64(0.8 + fastrand::f64() * 0.4)
        };
        // A lease that nobody renews ends at a known time: be there, not a whole interval later.
        let ends = self.holder().and_then(|h| h.ttl).map_or(every, |ttl| ttl + Duration::from_millis(1));
        every.min(ends)
    }

    /// What those in the room say when their time is up.
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

    /// Another look after `pause`, the last one at the end of the wait; `error` if that has come.
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

    /// Sleeps until the next look, unless a notice says that it is worth one before. A hand-over that can be believed needs none.
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
                // A stream that has ended says nothing any more; the re-check goes on.
                state.notices = Some(stream::pending().boxed());
                None
            }
        }
    }

    /// Whether a name that was handed over for `claim`, after what was sent at `heard` had been executed, may be taken to be ours
    /// without asking. Else the hand-over is a hint.
    fn accepts_handoff(&self, heartbeat: BootTime, handoff_ttl: Duration) -> bool {
        let terms = self.key.terms.for_handoff(handoff_ttl);
        let left = (heartbeat + terms.validity(handoff_ttl)).since(self.core.session.clock.now());
        // It is for the first in the room, whoever asks the store for all of them.
        let next_asks =
            self.waiter.as_ref().map_or(self.settings.asks_margin(), |waiter| self.core.queues.next_asks_margin(waiter));
        let enough_margin = !next_asks || self.key.terms.safety_margin <= terms.safety_margin;
        // Time for a renewal to fail once, and for the rest of what the terms promise no store has been asked yet.
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
            // A reader does not keep another out.
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

/// The store's hints for a request, or silence where it cannot give any: a wait without hints is slower, not wrong.
async fn armed(session: &Session, request: &Request) -> BoxStream<'static, Notice> {
    session.call(request.ttl, session.store.watch(request)).await.unwrap_or_else(|_| stream::pending().boxed())
}
