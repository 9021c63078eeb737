//! The wait for a lock: requests to the store, and the pauses between them.
//!
//! A wait begins with one attempt that joins no queue. If the name is busy, its task enters the
//! process's local queue for the name. One waiter of each local queue, the leader, polls the store
//! for all of them.

mod attempt;
mod guard;
mod poll;
mod queue;
mod settings;
mod state;
mod waiter;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;

pub(crate) use self::attempt::Attempt;
pub(crate) use self::guard::Core;
pub use self::guard::Guard;
pub(crate) use self::queue::AcquireKey;
use self::queue::LeaderStatus;
pub(crate) use self::settings::Settings;
pub use self::settings::Waiting;
use self::state::WaitState;
use self::waiter::{Waiter, Wakeup};
use crate::{BootTime, Error, ErrorKind, Holder, Name, Owner, Share, format_duration};

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
    /// The outage that the observer knows of.
    outage: Option<Error>,
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
            outage: None,
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
            let holder = self.core.queues.status(&waiter).holder;
            self.tell_busy(holder.as_ref());
        }
        waiter
    }

    /// Reports the holder, unless the observer knows of it.
    fn tell_busy(&mut self, holder: Option<&Holder>) {
        let owner = holder.map(|holder| holder.owner.clone());
        if !self.observed || self.observed_holder != owner {
            self.settings.observe(Waiting::Busy(holder));
            (self.observed, self.observed_holder) = (true, owner);
        }
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

    /// Publishes what waiters of this local queue report when their time is up.
    fn publish_status(&self, outage: Option<&Error>) {
        if let Some(waiter) = &self.waiter {
            let status = LeaderStatus { holder: self.holder().cloned(), outage: outage.cloned() };
            self.core.queues.set_status(waiter, status);
        }
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
