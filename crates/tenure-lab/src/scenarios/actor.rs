//! Those who act in a scenario: processes, and the claims they make.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tenure_testkit::history::{At, Event, What};
use tenure_testkit::worker::{ByHand, Probe, Terms};
use tenure_testkit::{Recorder, Register, Signal, Worker};

use super::times::{PATIENCE, SLACK, now, terms, wall_clock};

/// A process under test. Clones are the same process.
#[derive(Clone)]
pub(super) struct Actor {
    worker: Rc<RefCell<Worker>>,
    who: String,
    recorder: Recorder,
}

impl Actor {
    pub(super) fn new(worker: Worker, recorder: Recorder) -> Self {
        Self { who: worker.who().to_owned(), worker: Rc::new(RefCell::new(worker)), recorder }
    }

    /// Begins to ask for `name`.
    pub(super) fn asks(&self, name: &str, terms: Terms) -> Claim {
        let number = self.worker.borrow_mut().ask(name, terms);
        Claim { actor: self.clone(), number }
    }

    /// Takes `name` and renews it from then on.
    pub(super) fn takes(&self, name: &str) -> Claim {
        let acquisition = self.asks(name, terms());
        acquisition.granted();
        acquisition
    }

    pub(super) fn stop(&self) {
        self.worker.borrow_mut().signal(Signal::Stop);
    }

    pub(super) fn go_on(&self) {
        self.worker.borrow_mut().signal(Signal::Cont);
    }

    /// kill -9.
    pub(super) fn kill(&self) {
        self.worker.borrow_mut().kill();
    }

    /// Waits until it has dropped what [`Claim::begins_to_drop`] asked it to drop.
    pub(super) fn dropped(&self) {
        self.worker.borrow_mut().finish();
    }

    pub(super) fn arm(&self, probe: Probe) {
        self.worker.borrow_mut().arm(probe);
    }

    /// Waits until it has cancelled itself, as it was armed to.
    pub(super) fn cancelled(&self) {
        self.worker.borrow_mut().cancelled();
    }

    /// Waits until it has cleared up behind itself.
    pub(super) fn settles(&self) {
        self.worker.borrow_mut().settle();
    }

    /// Renews or gives up a name by its owner's value alone; how that went.
    pub(super) fn by_hand(&self, what: ByHand, name: &str, token: &str) -> String {
        self.worker.borrow_mut().by_hand(what, name, token)
    }

    pub(super) fn pid(&self) -> u32 {
        self.worker.borrow().pid()
    }

    /// Blocks the thread of its runtime.
    pub(super) fn blocks(&self, span: Duration) {
        self.worker.borrow_mut().block(span);
    }

    /// Its machine has slept.
    pub(super) fn sleeps(&self, span: Duration) {
        self.worker.borrow_mut().jump(span);
    }

    /// How far its wall clock is ahead of the lab's, in milliseconds.
    pub(super) fn clock_ahead(&self) -> i64 {
        self.worker.borrow_mut().wall_clock() - wall_clock()
    }

    /// Waits until it has died.
    pub(super) fn died(&self) -> At {
        self.wait("death", |what| matches!(what, What::Died)).at
    }

    /// Waits until it has failed to open its store with an error of one of these kinds. Returns the error's text.
    #[track_caller]
    pub(super) fn fails_to_open(&self, kinds: &[&str]) -> String {
        Claim { actor: self.clone(), number: 0 }.failed_with(kinds)
    }

    fn wait(&self, for_what: &str, is_it: impl Fn(&What) -> bool) -> Event {
        let text = format!("the {for_what} of {}", self.who);
        self.recorder.wait(PATIENCE, &text, |event| event.who == self.who && is_it(&event.what))
    }
}

/// One acquisition of a process.
#[derive(Clone)]
pub(super) struct Claim {
    actor: Actor,
    number: u32,
}

impl Claim {
    /// Waits for the grant.
    pub(super) fn granted(&self) -> At {
        let event = self.answered();
        assert!(matches!(event.what, What::Grant { .. }), "{} was to be granted: {:?}", self.actor.who, event.what);
        event.at
    }

    /// Waits until it is granted, or fails.
    pub(super) fn answered(&self) -> Event {
        let number = self.number;
        let about = |what: &What| matches!(what, What::Grant { acquisition, .. } | What::Failed { acquisition, .. } if *acquisition == number);
        self.actor.wait("grant", about)
    }

    /// Waits until it has an answer; whether that is the grant.
    pub(super) fn is_granted_at_last(&self) -> bool {
        matches!(self.answered().what, What::Grant { .. })
    }

    /// The value by which it holds, where that is its own.
    pub(super) fn token(&self) -> String {
        match self.answered().what {
            What::Grant { token: Some(token), .. } => token,
            other => panic!("{} has no value of its own: {other:?}", self.actor.who),
        }
    }

    /// Whether it has been granted by now.
    pub(super) fn is_granted(&self) -> bool {
        self.is_granted_within(Duration::ZERO)
    }

    /// Waits so long for its grant.
    pub(super) fn is_granted_within(&self, time: Duration) -> bool {
        self.actor.recorder.wait_within(time, |event| self.is_granted_by(event)).is_some()
    }

    /// Whether this event is its grant.
    pub(super) fn is_granted_by(&self, event: &Event) -> bool {
        event.who == self.actor.who && matches!(event.what, What::Grant { acquisition, .. } if acquisition == self.number)
    }

    /// Waits for the first renewal that is answered after `since`.
    pub(super) fn renewed(&self, since: At) {
        let number = self.number;
        let about =
            |event: &Event| matches!(event.what, What::Valid { acquisition, .. } if acquisition == number && event.at > since);
        let text = format!("a renewal of {}", self.actor.who);
        self.actor.recorder.wait(PATIENCE, &text, |event| event.who == self.actor.who && about(event));
    }

    /// Whether a renewal was answered in this span.
    pub(super) fn is_renewed_in(&self, span: std::ops::Range<At>) -> bool {
        let about = |what: &What| matches!(what, What::Valid { acquisition, .. } if *acquisition == self.number);
        let renewal = |event: &Event| event.who == self.actor.who && span.contains(&event.at) && about(&event.what);
        self.actor.recorder.take_down().events.iter().any(renewal)
    }

    /// Renews for this long now.
    pub(super) fn extends(&self, ttl: Duration) {
        self.actor.worker.borrow_mut().extend(self.number, ttl);
    }

    /// Ends its validity and leaves the lease as it is; nobody renews it from then on.
    pub(super) fn leaves(&self) {
        self.actor.worker.borrow_mut().hand_over_claim(self.number);
    }

    /// Waits until the holder is notified of its loss.
    pub(super) fn lost(&self) -> At {
        let number = self.number;
        self.actor.wait("loss", |what| matches!(what, What::Lost { acquisition, .. } if *acquisition == number)).at
    }

    /// Waits until the holder is notified of its loss, which has to be when its validity ends.
    pub(super) fn lost_in_time(&self) -> At {
        let lost = self.lost();
        let history = self.actor.recorder.take_down();
        let end = history.events.iter().rev().find_map(|event| match event.what {
            What::Grant { acquisition, until, .. } | What::Valid { acquisition, until } if acquisition == self.number => {
                until.filter(|_| event.who == self.actor.who)
            }
            _ => None,
        });
        let end = end.expect("a validity that ends");
        assert!(lost >= end, "{} was notified at {lost}, and its validity ended at {end}", self.actor.who);
        let after = Duration::from_nanos(lost - end);
        assert!(after <= SLACK, "{} was notified only after {after:?}", self.actor.who);
        lost
    }

    /// Waits until the acquisition fails, which must be with an error of this kind. Returns the error's text.
    #[track_caller]
    pub(super) fn failed(&self, expected: &str) -> String {
        self.failed_with(&[expected])
    }

    /// Waits until the acquisition fails because the store does not answer, which has to be within this time.
    #[track_caller]
    pub(super) fn fails_unanswered(&self, within: Duration) {
        let asked = now();
        self.failed_with(&["Unreachable", "Unavailable", "TimedOut"]);
        let after = Duration::from_nanos(now() - asked);
        assert!(after <= within, "{} was notified only after {after:?}", self.actor.who);
    }

    #[track_caller]
    fn failed_with(&self, expected: &[&str]) -> String {
        match self.answered().what {
            What::Failed { kind: Some(kind), text, .. } if expected.contains(&&*kind) => text,
            other => panic!("{} was to fail with {expected:?}: {other:?}", self.actor.who),
        }
    }

    /// Gives up, after its work; how that went.
    pub(super) fn releases(&self) -> String {
        self.actor.worker.borrow_mut().release_claim(self.number)
    }

    /// Begins to give up.
    pub(super) fn begins_to_release(&self) {
        self.actor.worker.borrow_mut().begin_release(self.number);
    }

    /// Drops its guard, or the future that asks.
    pub(super) fn drops(&self) {
        self.actor.worker.borrow_mut().drop_claim(self.number);
    }

    /// As [`drops`](Self::drops), without waiting for it, in case it is stopped; [`Actor::dropped`] waits.
    pub(super) fn begins_to_drop(&self) {
        self.actor.worker.borrow_mut().begin_drop(self.number);
    }

    /// Works on the resource without checking the guard, until the resource refuses it.
    pub(super) fn works(&self, register: &Register) {
        self.actor.worker.borrow_mut().work(self.number, register);
        self.wrote();
    }

    /// Works on the resource for as long as its guard allows.
    pub(super) fn runs(&self, register: &Register) {
        self.actor.worker.borrow_mut().run(self.number, register);
        self.wrote();
    }

    /// As [`works`](Self::works), by one that may be refused at once.
    pub(super) fn tries_to_work(&self, register: &Register) {
        self.actor.worker.borrow_mut().work(self.number, register);
    }

    /// Waits for its first write that is taken.
    pub(super) fn wrote(&self) -> At {
        let number = self.number;
        self.actor
            .wait("write", |what| matches!(what, What::Write { acquisition, accepted: true, .. } if *acquisition == number))
            .at
    }

    /// Waits for a write of it after `since` that is taken.
    pub(super) fn wrote_since(&self, since: At) {
        let about = |what: &What| matches!(what, What::Write { acquisition, accepted: true, .. } if *acquisition == self.number);
        let late = |event: &Event| event.who == self.actor.who && event.at > since && about(&event.what);
        self.actor.recorder.wait(PATIENCE, &format!("a write of {}", self.actor.who), late);
    }

    /// Waits until the resource refuses it.
    pub(super) fn refused(&self) -> At {
        let number = self.number;
        let about = |what: &What| match what {
            What::Read { acquisition, value: None, .. } | What::Write { acquisition, accepted: false, .. } => {
                *acquisition == number
            }
            _ => false,
        };
        self.actor.wait("refusal", about).at
    }

    /// How many steps at the resource it has made since.
    pub(super) fn steps_since(&self, since: At) -> usize {
        let about = |what: &What| matches!(what, What::Read { acquisition, .. } | What::Write { acquisition, .. } if *acquisition == self.number);
        let history = self.actor.recorder.take_down();
        history.events.iter().filter(|event| event.at >= since && event.who == self.actor.who && about(&event.what)).count()
    }

    /// Its last step at the resource.
    pub(super) fn last_step(&self) -> Option<At> {
        let about = |what: &What| matches!(what, What::Read { acquisition, .. } | What::Write { acquisition, .. } if *acquisition == self.number);
        let history = self.actor.recorder.take_down();
        history.events.iter().rev().find(|event| event.who == self.actor.who && about(&event.what)).map(|event| event.at)
    }
}
