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
pub(crate) use self::queue::Shape;
use self::queue::{News, Seat, Turn};
pub(crate) use self::settings::Settings;
pub use self::settings::Waiting;
use self::state::{Heard, Standing};
use crate::lease::Session;
use crate::store::call::backoff;
use crate::store::{AcquireReply, Busy, Enqueue, Notice, Request};
use crate::{BootTime, Error, ErrorKind, Holder, Name, Owner, Share, format_duration};

/// How long a store that never answered is tried before an acquisition gives up, whatever its wait.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// How often a waiter looks, whatever it was told: not so often that it starves others, nor so seldom that it has left.
const RECHECK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);
/// For how long a name is a waiter's that was handed it, unless it renews: what a dead waiter costs those behind it.
const CLAIM: Duration = Duration::from_millis(1_500);
/// For how much longer than a claim a place lives without a heartbeat: one may be lost.
const KEEP_LONGER: Duration = Duration::from_secs(1);

/// One task's wait.
pub(crate) struct Wait<'a> {
    settings: &'a Settings,
    core: &'a Arc<Core>,
    name: Name,
    shape: Shape,
    started: BootTime,
    /// For how long from then on.
    patience: Option<Duration>,
    seat: Option<Seat<Guard, Box<Standing>>>,
    /// This task asks the store: for itself alone, or for all in its room.
    drives: bool,
    standing: Option<Box<Standing>>,
    outage: bool,
    /// The observer was told that the name is busy, and by whom.
    told: bool,
    told_of: Option<Owner>,
}

/// What a waiting task meets next.
enum Event {
    Turn(Turn<Guard, Box<Standing>>),
    Driven(Result<Guard, Error>),
    Over,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(settings: &'a Settings, name: Name, shape: Shape) -> Self {
        let core = &settings.core;
        let (started, patience) = (core.session.clock.now(), settings.wait);
        let (seat, drives, standing) = (None, true, None);
        Self { settings, core, name, shape, started, patience, seat, drives, standing, outage: false, told: false, told_of: None }
    }

    /// A part of a longer wait that has begun before.
    pub(crate) fn since(mut self, started: BootTime) -> Self {
        self.started = started;
        self
    }

    /// Waits until the name is ours.
    pub(crate) async fn guard(&mut self) -> Result<Guard, Error> {
        let patient = self.left() != Some(Duration::ZERO);
        if !(patient && self.core.rooms.is_contended(&self.name, self.started)) {
            while !self.standing.as_ref().is_some_and(|standing| standing.contended) {
                self.pause().await;
                if let Some(guard) = self.step().await? {
                    return Ok(guard);
                }
            }
        }
        let seat = self.enter();
        self.in_room(seat).await
    }

    fn enter(&mut self) -> Seat<Guard, Box<Standing>> {
        let (seat, drives) = self.core.rooms.enter(&self.name, &self.shape, self.settings.asks_margin());
        self.seat = Some(seat.clone());
        self.drives = drives;
        if drives {
            self.tell_room(None);
        } else {
            // Whoever drives stands for this task as well.
            self.standing = None;
        }
        seat
    }

    async fn in_room(&mut self, mut seat: Seat<Guard, Box<Standing>>) -> Result<Guard, Error> {
        let core = self.core;
        let end = self.patience.map(|wait| core.session.clock.nap_until(self.started + wait));
        let mut end = end.map_or_else(|| Either::Left(pending()), Either::Right);
        loop {
            let asks = self.drives;
            // In order, so that a simulation can be repeated; what was given comes first.
            let event = tokio::select! {
                biased;
                turn = seat.turn() => Event::Turn(turn),
                outcome = self.drive(), if asks => Event::Driven(outcome),
                () = &mut end, if !asks => Event::Over,
            };
            match event {
                Event::Turn(Turn::Guard(guard)) if guard.end_reason().is_none() => return Ok(guard),
                Event::Turn(Turn::Guard(_)) => {
                    if !core.rooms.reenter(&seat) {
                        seat = self.enter();
                    }
                }
                Event::Turn(Turn::Drive(standing)) => (self.drives, self.standing) = (true, standing),
                Event::Turn(Turn::Over) => {}
                Event::Driven(guard) => {
                    let guard = guard?;
                    // This token is used up; the next task of the room needs another.
                    self.standing = None;
                    core.rooms.contend(&self.name, core.session.clock.now());
                    let (leaves_time, turn) = (guard.leaves_time(), guard.turn_ends());
                    drop(core.rooms.deliver(&seat, guard, leaves_time, turn));
                }
                Event::Over => return Err(self.timed_out()),
            }
        }
    }

    /// What this task has reached at the store. The first look of one that meets nobody is a try, which queues nowhere.
    fn standing(&mut self) -> Result<&mut Standing, Error> {
        let standing = match self.standing.take() {
            Some(standing) => standing,
            None => Box::new(Standing::new(self.attempt()?, self.seat.is_some(), self.core.session.clock.now())),
        };
        Ok(self.standing.insert(standing))
    }

    fn attempt(&self) -> Result<Attempt, Error> {
        self.settings.attempt(&self.name, &self.shape)
    }

    async fn drive(&mut self) -> Result<Guard, Error> {
        loop {
            self.sit_out_turn().await;
            if let Some(guard) = self.pause().await {
                return Ok(guard);
            }
            if let Some(guard) = self.step().await? {
                return Ok(guard);
            }
        }
    }

    /// While tasks of this process pass the name on among themselves, whoever has no place at the store needs none.
    async fn sit_out_turn(&mut self) {
        while self.standing.is_none()
            && let Some(turn) = self.core.rooms.turn(&self.name)
        {
            let end = self.patience.map_or(turn, |wait| turn.min(self.started + wait));
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
    async fn step(&mut self) -> Result<Option<Guard>, Error> {
        let (core, terms) = (self.core, self.shape.terms);
        let (queues, claim) = (self.queues(), CLAIM.min(terms.ttl));
        let standing = self.standing()?;
        if standing.contended && standing.notices.is_none() {
            // Between the look that found it busy and the arming of the watch the name may have become free: look again.
            standing.notices = Some(armed(&core.session, &standing.attempt.request).await);
        }
        let place = match standing.heard {
            _ if !(queues && standing.contended) => Enqueue::No,
            Some(_) => Enqueue::Heartbeat,
            None => Enqueue::Join { entry_ttl: claim + KEEP_LONGER, handoff_ttl: claim },
        };
        standing.attempt.request.enqueue = place;
        let sent_at = core.session.clock.now();
        let answer = standing.attempt.send().await;
        if answer.is_ok() {
            self.recovered();
        }
        match answer {
            Ok(AcquireReply::Granted(grant)) => {
                let label = Arc::clone(&self.shape.label);
                match self.standing()?.attempt.won(terms, &label, sent_at, &grant) {
                    Some(held) => Ok(Some(Guard::new(core, held))),
                    None => self.start_over(),
                }
            }
            Ok(AcquireReply::Busy(busy)) => self.busy(busy, place, Heard { sent_at, mark: None, claim }),
            Ok(AcquireReply::Refused { until, why }) => self.again(until, |_| Error::unavailable(why)),
            Err(error) if error.is_transient() => self.outage(error),
            Err(error) => Err(error),
        }
    }

    /// Whether this wait has a place in the store's queue. A value that was given may be another's, and has none.
    fn queues(&self) -> bool {
        self.core.session.store.features().queue && self.shape.token.is_none()
    }

    /// The grant came when nothing of it could be believed any more. Its token goes to the clean-up and is never used again.
    fn start_over(&mut self) -> Result<Option<Guard>, Error> {
        let late = || Error::unreachable("the grant arrived too late to be believed");
        if self.shape.token.is_some() {
            return Err(late().maybe_applied());
        }
        self.another_token()?;
        self.again(Duration::ZERO, |_| late())
    }

    /// Goes on with a token that was never sent.
    fn another_token(&mut self) -> Result<(), Error> {
        let attempt = self.attempt()?;
        let standing = self.standing()?;
        (standing.attempt, standing.notices, standing.heard) = (attempt, None, None);
        Ok(())
    }

    fn busy(&mut self, busy: Busy, place: Enqueue, heard: Heard) -> Result<Option<Guard>, Error> {
        let now = self.core.session.clock.now();
        self.core.rooms.contend(&self.name, now);
        let owner = busy.holder.as_ref().map(|holder| holder.owner.clone());
        if !self.told || self.told_of != owner {
            self.settings.observe(Waiting::Busy(busy.holder.as_ref()));
            (self.told, self.told_of) = (true, owner.clone());
        }
        let standing = self.standing()?;
        standing.holder = busy.holder;
        standing.heard = busy.position.map(|_| Heard { mark: busy.grant_seq, ..heard });
        let first = !std::mem::replace(&mut standing.contended, true);
        self.tell_room(None);
        if self.left().is_some_and(|left| left.is_zero()) {
            return Err(self.timed_out());
        }
        let lapsed = place == Enqueue::Heartbeat && busy.position.is_none();
        if self.queues() && (first || lapsed) {
            // A token that was tried for a free name, or whose place has lapsed, is not queued again.
            self.another_token()?;
        }
        if first || lapsed {
            return self.again(Duration::ZERO, Self::timed_out);
        }
        let pause = self.pause_after(busy.poll_interval, busy.position.is_some(), heard.claim);
        self.again(pause, Self::timed_out)
    }

    /// How long to wait for a notice before the next look.
    fn pause_after(&self, recheck: Duration, placed: bool, claim: Duration) -> Duration {
        let every = self.settings.poll_interval.unwrap_or(recheck).clamp(*RECHECK.start(), *RECHECK.end());
        let every = if placed {
            // Rather late than often, because each waiting process costs the store that many; in time to keep the place.
            every.min(claim.mul_f64(2.0 / 3.0)).mul_f64(1.0 + fastrand::f64() * 0.2)
        } else {
            every.mul_f64(0.8 + fastrand::f64() * 0.4)
        };
        // A lease that nobody renews ends at a known time: be there, not a whole interval later.
        let ends = self.holder().and_then(|h| h.ttl).map_or(every, |ttl| ttl + Duration::from_millis(1));
        every.min(ends)
    }

    /// What those in the room say when their time is up.
    fn tell_room(&self, outage: Option<&Error>) {
        if let Some(seat) = &self.seat {
            let news = News { holder: self.holder().cloned(), outage: outage.cloned() };
            self.core.rooms.tell(seat, news);
        }
    }

    fn outage(&mut self, error: Error) -> Result<Option<Guard>, Error> {
        if self.shape.token.is_some() && error.may_have_been_applied() {
            return Err(error.with_hint("the value was given, so another may hold it too: look at the store before trying again"));
        }
        let waited = self.core.session.clock.now().since(self.started);
        let never_answered = !self.core.session.has_answered();
        if (never_answered && waited >= FIRST_CONTACT) || self.left().is_some_and(|left| left.is_zero()) {
            return Err(error);
        }
        if !self.outage {
            self.outage = true;
            self.settings.observe(Waiting::Outage(&error));
            self.tell_room(Some(&error));
        }
        let pause = backoff(self.core.session.operation_timeout(self.shape.terms.ttl));
        self.again(pause, |_| error)
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.outage) {
            self.settings.observe(Waiting::Recovered);
            self.tell_room(None);
        }
    }

    /// Another look after `pause`, the last one at the end of the wait; `error` if that has come.
    fn again(&mut self, pause: Duration, error: impl FnOnce(&Self) -> Error) -> Result<Option<Guard>, Error> {
        let pause = match self.left() {
            Some(left) if left.is_zero() => return Err(error(self)),
            left => left.map_or(pause, |left| pause.min(left)),
        };
        let at = self.core.session.clock.now() + pause;
        if let Some(standing) = &mut self.standing {
            standing.look_at = at;
        }
        Ok(None)
    }

    /// Sleeps until the next look, unless a notice says that it is worth one before. A hand-over that can be believed needs none.
    async fn pause(&mut self) -> Option<Guard> {
        let standing = self.standing.as_mut()?;
        if self.core.session.clock.now() >= standing.look_at {
            return None;
        }
        let sleep = self.core.session.clock.nap_until(standing.look_at);
        let Some(notices) = &mut standing.notices else {
            sleep.await;
            return None;
        };
        let notice = tokio::select! {
            biased;
            () = sleep => return None,
            notice = notices.next() => notice,
        };
        standing.look_at = self.core.session.clock.now();
        match notice {
            Some(Notice::Granted { owner, fence, handoff_ttl: claim }) if owner == standing.attempt.request.owner => {
                let heard = standing.heard.filter(|heard| heard.mark.is_some_and(|mark| fence.counter() > mark))?;
                let claim = claim.min(heard.claim);
                if !self.believes(heard.sent_at, claim) {
                    return None;
                }
                let standing = self.standing.as_mut()?;
                let held = standing.attempt.handed(self.shape.terms, &self.shape.label, heard.sent_at, fence, claim)?;
                Some(Guard::new(self.core, held))
            }
            Some(_) => None,
            None => {
                // A stream that has ended says nothing any more; the re-check goes on.
                standing.notices = Some(stream::pending().boxed());
                None
            }
        }
    }

    /// Whether a name that was handed over for `claim`, after what was sent at `heard` had been executed, may be taken to be ours
    /// without asking. Else the hand-over is a hint.
    fn believes(&self, heard: BootTime, claim: Duration) -> bool {
        let terms = self.shape.terms.claimed(claim);
        let left = (heard + terms.belief(claim)).since(self.core.session.clock.now());
        // It is for the first in the room, whoever asks the store for all of them.
        let next_asks = self.seat.as_ref().map_or(self.settings.asks_margin(), |seat| self.core.rooms.next_asks_time(seat));
        let enough_guard = !next_asks || self.shape.terms.safety_margin <= terms.safety_margin;
        // Time for a renewal to fail once, and for the rest of what the terms promise no store has been asked yet.
        terms.renews && terms.min_hold.is_zero() && enough_guard && left >= claim / 6
    }

    fn left(&self) -> Option<Duration> {
        self.patience.map(|wait| (self.started + wait).since(self.core.session.clock.now()))
    }

    fn holder(&self) -> Option<&Holder> {
        self.standing.as_ref().and_then(|standing| standing.holder.as_ref())
    }

    fn timed_out(&self) -> Error {
        let news = self.seat.as_ref().filter(|_| !self.drives).map(|seat| self.core.rooms.news(seat)).unwrap_or_default();
        if let Some(outage) = news.outage {
            return outage;
        }
        let holder = self.holder().cloned().or(news.holder);
        let why = match &holder {
            // A reader does not keep another out.
            Some(holder) if (holder.share, self.shape.share) == (Share::READ, Share::READ) => {
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
        if let Some(seat) = self.seat.take() {
            self.core.rooms.leave(&seat, self.drives, self.standing.take());
        }
    }
}

/// The store's hints for a request, or silence where it cannot give any: a wait without hints is slower, not wrong.
async fn armed(session: &Session, request: &Request) -> BoxStream<'static, Notice> {
    session.limited(request.ttl, session.store.watch(request)).await.unwrap_or_else(|_| stream::pending().boxed())
}
