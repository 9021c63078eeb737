//! Polls of a wait: what a task asks the store, and the pauses in between.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use super::state::Heartbeat;
use super::{Guard, Wait, Waiting};
use crate::lease::Session;
use crate::store::call::backoff;
use crate::store::{AcquireReply, Busy, Enqueue, Notice, Request};
use crate::{BootTime, Error};

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

impl Wait<'_> {
    /// Polls the store once.
    ///
    /// # Cancel safety
    /// Dropping the future is safe. The attempt keeps its token: the next poll retries with it, or
    /// `Drop` releases it.
    pub(super) async fn poll(&mut self) -> Result<Option<Guard>, Error> {
        let (core, terms) = (self.core, self.key.terms);
        let (queues, handoff_ttl) = (self.queues(), HANDOFF_TTL.min(terms.ttl));
        let state = self.state()?;
        let entry = match state.heartbeat {
            _ if !(queues && state.contended) => Enqueue::No,
            Some(_) => Enqueue::Heartbeat,
            None => Enqueue::Join { entry_ttl: handoff_ttl + ENTRY_GRACE, handoff_ttl },
        };
        state.attempt.request.enqueue = entry;
        if state.contended && state.notices.is_none() {
            // The name may have become free between the busy answer and the start of the watch, so
            // this request follows it.
            let (began, limit) = (core.session.clock.now(), core.session.operation_timeout(terms.ttl));
            let (notices, silence) = armed(&core.session, &state.attempt.request).await;
            state.notices = Some(notices);
            // A poll takes one operation timeout at most.
            if let Some(error) = silence.filter(|_| core.session.clock.now().since(began) >= limit) {
                return self.outage(error);
            }
        }
        let sent_at = core.session.clock.now();
        let answer = state.attempt.send().await;
        if matches!(answer, Ok(AcquireReply::Granted(_) | AcquireReply::Busy(_))) {
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
            Ok(AcquireReply::Refused { until, why }) => {
                let error = Error::unavailable(why);
                self.note_outage(&error);
                if self.has_token_per_try() {
                    self.replace_token()?;
                }
                self.poll_after(until, |_| error)
            }
            Err(error) if error.is_transient() => self.outage(error),
            Err(error) => Err(error),
        }
    }

    /// Whether this wait has an entry in the store's queue. One with a supplied owner token has
    /// none: another client may use the same token.
    fn queues(&self) -> bool {
        self.core.session.store.features().queue && self.key.token.is_none()
    }

    /// Whether a token that was not granted is used up. Not a supplied one: there is no other.
    fn has_token_per_try(&self) -> bool {
        self.core.session.store.features().token_per_try && self.key.token.is_none()
    }

    /// Starts over after a grant that came too late to be valid. Its token is released in the
    /// background and never used again.
    fn start_over(&mut self) -> Result<Option<Guard>, Error> {
        let late = || Error::unreachable("the grant arrived too late to be valid");
        if self.key.token.is_some() {
            return Err(late().maybe_applied());
        }
        self.replace_token()?;
        self.poll_after(Duration::ZERO, |_| late())
    }

    /// Goes on with a token that was never sent.
    fn replace_token(&mut self) -> Result<(), Error> {
        let (attempt, queues) = (self.attempt()?, self.queues());
        let state = self.state()?;
        (state.attempt, state.heartbeat) = (attempt, None);
        // Without a queue they are not for a token.
        state.notices = state.notices.take().filter(|_| !queues);
        Ok(())
    }

    fn busy(&mut self, busy: Busy, entry: Enqueue, heartbeat: Heartbeat) -> Result<Option<Guard>, Error> {
        let now = self.core.session.clock.now();
        self.core.queues.note_contended(&self.name, now);
        self.tell_busy(busy.holder.as_ref());
        let state = self.state()?;
        state.holder = busy.holder;
        state.heartbeat = busy.position.map(|_| Heartbeat { grant_seq: busy.grant_seq, ..heartbeat });
        let first = !std::mem::replace(&mut state.contended, true);
        self.publish_status(None);
        if self.left().is_some_and(|left| left.is_zero()) {
            return Err(self.timed_out());
        }
        let lapsed = entry == Enqueue::Heartbeat && busy.position.is_none();
        // A token that was tried for a free name, or whose entry has lapsed, is not queued again.
        if (self.queues() && (first || lapsed)) || self.has_token_per_try() {
            self.replace_token()?;
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

    fn outage(&mut self, error: Error) -> Result<Option<Guard>, Error> {
        if self.key.token.is_some() && error.may_have_been_applied() {
            return Err(error.with_hint("the owner token was supplied, so another client may hold the name with it: inspect the name before you try again"));
        }
        let waited = self.core.session.clock.now().since(self.started);
        let never_answered = !self.core.session.has_answered();
        if (never_answered && waited >= FIRST_CONTACT) || self.left().is_some_and(|left| left.is_zero()) {
            // A follower reports it, if its wait ends before the next leader has asked.
            self.publish_status(Some(&error));
            return Err(error);
        }
        self.note_outage(&error);
        if self.has_token_per_try() {
            self.replace_token()?;
        }
        let pause = backoff(self.core.session.operation_timeout(self.key.terms.ttl));
        self.poll_after(pause, |_| error)
    }

    /// Reports that the store grants nothing for now.
    fn note_outage(&mut self, error: &Error) {
        let is_known = self.outage.replace(error.clone()).is_some_and(|known| reason(&known) == reason(error));
        self.settings.observe(if is_known { Waiting::OutageGoesOn(error) } else { Waiting::Outage(error) });
        self.publish_status(Some(error));
    }

    fn recovered(&mut self) {
        if self.outage.take().is_some() {
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
    /// valid needs no poll. In an outage, a handoff alone ends the pause.
    pub(super) async fn pause(&mut self) -> Option<Guard> {
        let state = self.state.as_mut()?;
        if self.core.session.clock.now() >= state.poll_at {
            return None;
        }
        let mut sleep = self.core.session.clock.nap_until(state.poll_at);
        let Some(notices) = &mut state.notices else {
            sleep.await;
            return None;
        };
        let notice = loop {
            let notice = tokio::select! {
                biased;
                () = &mut sleep => return None,
                notice = notices.next() => notice,
            };
            match notice {
                Some(Notice::Granted { ref owner, .. }) if *owner == state.attempt.request.owner => break notice,
                // A refused connection is a notice as well, and the next poll would cause another.
                Some(_) if self.outage.is_some() => {}
                None if self.outage.is_some() => *notices = stream::pending().boxed(),
                notice => break notice,
            }
        };
        state.poll_at = self.core.session.clock.now();
        match notice {
            Some(Notice::Granted { owner, fence, handoff_ttl }) if owner == state.attempt.request.owner => {
                let heartbeat = state
                    .heartbeat
                    .filter(|heartbeat| heartbeat.grant_seq.is_some_and(|grant_seq| fence.counter() > grant_seq))?;
                // One that nobody heard of may have confirmed the hold, with a later number.
                if state.attempt.is_unanswered() {
                    return None;
                }
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
}

/// Reason of an outage, without times: those that are left change with each answer.
fn reason(error: &Error) -> String {
    error.to_string().replace(|c: char| c.is_ascii_digit(), "")
}

/// Returns the store's notices for a request. If it cannot send any, none and the error: a wait without
/// notices is slower, not wrong.
async fn armed(session: &Session, request: &Request) -> (BoxStream<'static, Notice>, Option<Error>) {
    match session.call(request.ttl, session.store.watch(request)).await {
        Ok(notices) => (notices, None),
        Err(error) => (stream::pending().boxed(), Some(error)),
    }
}
