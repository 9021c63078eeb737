//! Tools of a scenario: its processes, the times by which they have to be notified, and the record of it all.

use std::cell::RefCell;
use std::time::Duration;

use tenure::BootTime;
use tenure_testkit::history::{At, Event, History, What, nanos};
use tenure_testkit::worker::Terms;
use tenure_testkit::{Recorder, Register, Worker, wait_until};

use super::actor::{Actor, Claim};
pub(super) use super::times::{
    A_MOMENT, BELIEF, CLAIM, DOOR, HEARTBEAT, NEXT, OPENING, OPERATION, PATIENCE, POLL, RENEWAL, SLACK, SOON, TTL, now, terms,
    wall_clock,
};
use super::told::{told_after, told_early};
use crate::{Lab, Shown};

/// Who holds a name at the store, and whether nothing will ever end that.
pub(super) type Look = Box<dyn Fn(&str) -> Option<(String, bool)>>;

/// How many wait for a name at the store.
pub(super) type Line = Box<dyn Fn(&str) -> u64>;

/// Who takes what was taken away.
#[derive(Clone, Copy)]
pub(super) enum Heir {
    /// One that has waited for it, and so has seen how far fences were.
    Waits,
    /// One that comes new, and has seen none.
    Comes,
}

/// How the processes of a scenario reach their store.
pub(super) struct Access {
    /// For those who are in the way of the fault.
    pub(super) near: String,
    /// For those who are not.
    pub(super) far: String,
    /// All claims are made by one process: nobody else can reach the store.
    pub(super) alone: bool,
    /// `None` where nobody but the holder's process can look.
    pub(super) look: Option<Look>,
    /// As `look`.
    pub(super) line: Option<Line>,
}

pub(super) struct Stage<'a> {
    lab: &'a Lab,
    pub(super) rng: fastrand::Rng,
    pub(super) recorder: Recorder,
    pub(super) register: Register,
    /// Nobody may lose what it holds.
    pub(super) keeps: bool,
    /// Clocks of holders jump, so the validity ends sooner than the history has it.
    pub(super) jumps: bool,
    /// How much longer than was asked the store keeps a lease at least.
    pub(super) longer: Duration,
    /// How much later than its holder knows the store may end a lease.
    pub(super) late: Duration,
    /// The store's grants have fences, by which a stale holder is refused.
    pub(super) fences: bool,
    access: Access,
    actors: Vec<Actor>,
    /// How long after a stopped holder went on it was notified.
    told: RefCell<Vec<Duration>>,
    /// Why nothing can be said: the machine had no time.
    pub(super) starved: Option<String>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(lab: &'a Lab, id: &str, seed: u64, access: Access) -> Self {
        let recorder = Recorder::new(History::new(id, seed));
        crate::run::keep(&recorder);
        Self {
            lab,
            rng: fastrand::Rng::with_seed(mixed(seed, id)),
            register: Register::open(recorder.clone()),
            recorder,
            keeps: false,
            jumps: false,
            longer: Duration::ZERO,
            late: Duration::ZERO,
            fences: true,
            access,
            actors: Vec::new(),
            told: RefCell::default(),
            starved: None,
        }
    }

    /// For how long a lease is kept at most after it was granted or renewed.
    pub(super) fn kept(&self) -> Duration {
        TTL + self.longer + self.late
    }

    /// From the last renewal, or the grant, to the end of the validity, and the slack.
    pub(super) fn validity(&self) -> Duration {
        BELIEF + self.longer
    }

    /// From the death of a holder to the grant of the next.
    pub(super) fn next(&self) -> Duration {
        NEXT + self.longer + self.late
    }

    /// The cost of a waiter that is dead: it is served, and does not come for it.
    pub(super) fn claim(&self) -> Duration {
        CLAIM + self.late
    }

    /// The store is a file, which one process writes to at a time.
    pub(super) fn is_on_file(&self) -> bool {
        self.access.near.starts_with("sqlite:")
    }

    /// All processes reach the store at `url` from now on.
    pub(super) fn all_by(&mut self, url: &str) {
        (self.access.near, self.access.far) = (url.to_owned(), url.to_owned());
    }

    /// Waiters are notified when they are served. Others find it out when they poll, and have all of their ttl from then on.
    pub(super) fn pushes(&self) -> bool {
        !["mysql:", "memcached:"].iter().any(|store| self.access.near.starts_with(store))
    }

    /// A process in the way of the fault.
    pub(super) fn near(&mut self) -> Actor {
        self.actor(&self.access.near.clone())
    }

    /// As [`near`](Self::near), started as `change` has it.
    pub(super) fn near_with(&mut self, change: impl FnOnce(&mut std::process::Command)) -> Actor {
        self.actor_with(&self.access.near.clone(), change)
    }

    /// A process that the fault does not reach, where it is on the way to the store.
    pub(super) fn far(&mut self) -> Actor {
        self.actor(&self.access.far.clone())
    }

    /// A process on the store at `url`.
    pub(super) fn actor(&mut self, url: &str) -> Actor {
        self.actor_with(url, |_| {})
    }

    /// A process on the store at `url`, started as `change` has it.
    pub(super) fn actor_with(&mut self, url: &str, change: impl FnOnce(&mut std::process::Command)) -> Actor {
        if let Some(present) = self.actors.first().filter(|_| self.access.alone) {
            return present.clone();
        }
        let mut command = self.lab.worker(&["store", url]);
        change(&mut command);
        let letter = u8::try_from(self.actors.len()).ok().and_then(|number| b'A'.checked_add(number));
        let who = char::from(letter.expect("a small cast")).to_string();
        let actor = Actor::new(Worker::join(command, who, self.recorder.clone()), self.recorder.clone());
        self.actors.push(actor.clone());
        actor
    }

    /// Has a process come that cannot open the store at `url`. Its error says within this time, in one line, why and what to do.
    #[track_caller]
    pub(super) fn turns_away(&mut self, url: &str, within: Duration, kind: &str) -> String {
        let came = now();
        let told = self.actor(url).fails_to_open(&[kind]);
        let after = Duration::from_nanos(now() - came);
        self.holds_true(after <= within + SLACK, &format!("told only after {after:?}: {told}"));
        self.holds_true(told.contains("; ") && !told.contains('\n'), &told);
        told
    }

    /// Has a process use its store once.
    pub(super) fn warms_up(&self, actor: &Actor) {
        self.expect(&actor.takes("warm").releases(), "Released");
    }

    /// Lets a part of a renewal interval pass, or up to two ttls, so that what was renewed is struck as well as what is new; as the
    /// seed has it.
    pub(super) fn some_time(&mut self) {
        let most = if self.rng.bool() { 2 * TTL } else { Duration::from_millis(667) };
        std::thread::sleep(most.mul_f64(self.rng.f64()));
    }

    /// Lets a part of a renewal interval pass, as the seed has it.
    pub(super) fn a_moment(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.u64(0..=667)));
    }

    /// Something is broken, or mended, from now on.
    pub(super) fn fault(&self, text: impl Into<String>) -> At {
        self.recorder.record("lab", What::Fault { text: text.into() });
        now()
    }

    /// The holder of the door has to be notified of its loss within this time.
    pub(super) fn loss_due(&self, within: Duration) {
        self.recorder.record("lab", What::LossDue { name: DOOR.into(), within: nanos(within) });
    }

    /// As [`loss_due`](Self::loss_due), where a renewal may have told it since a moment before.
    pub(super) fn loss_due_since(&self, since: At, within: Duration) {
        let within = (now() - since).saturating_add(nanos(within));
        let what = What::LossDue { name: DOOR.into(), within };
        self.recorder.add(Event { at: since, who: "lab".into(), what });
    }

    /// Somebody has to be granted the door within this time.
    pub(super) fn grant_due(&self, within: Duration) {
        self.grant_due_of(DOOR, within);
    }

    /// As [`grant_due`](Self::grant_due), where one who waits may have been granted it since a moment before.
    pub(super) fn grant_due_since(&self, since: At, within: Duration) {
        let within = (now() - since).saturating_add(nanos(within));
        let what = What::GrantDue { name: DOOR.into(), within };
        self.recorder.add(Event { at: since, who: "lab".into(), what });
    }

    pub(super) fn grant_due_of(&self, name: &str, within: Duration) {
        self.recorder.record("lab", What::GrantDue { name: name.into(), within: nanos(within) });
    }

    /// Looks at the store until `name` is free, which it has to be within this time.
    pub(super) fn free_due(&self, name: &str, within: Duration) {
        // It takes a while to look, where a program does it.
        let began = BootTime::now();
        let _ = self.access.look.as_ref().map(|look| look(name));
        let within = within + BootTime::now().since(began);
        self.recorder.record("lab", What::FreeDue { name: name.into(), within: nanos(within) });
        let Some(look) = &self.access.look else {
            // A client that takes it finds it free.
            let acquisition = self.actors[0].asks(name, terms().wait(within));
            acquisition.granted();
            return self.expect(&acquisition.releases(), "Released");
        };
        let deadline = BootTime::now() + within + SLACK;
        let mut seen = look(name);
        while seen.is_some() && BootTime::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
            seen = look(name);
        }
        self.seen(name, seen);
    }

    /// Waits until somebody has `name` at the store.
    pub(super) fn taken(&self, name: &str) {
        let look = self.access.look.as_ref().expect("a store that can be looked at");
        wait_until(PATIENCE, "the name to be taken", || look(name).is_some());
    }

    /// Waits until so many wait for the door at the store.
    pub(super) fn lines_up(&self, many: u64) {
        let line = self.access.line.as_ref().expect("a store that can be looked at");
        wait_until(PATIENCE, &format!("{many} to wait"), || line(DOOR) == many);
    }

    /// Has one ask for the door, and get the last of so many places.
    pub(super) fn queues(&self, actor: &Actor, terms: &Terms, place: u64) -> Claim {
        let acquisition = actor.asks(DOOR, terms.clone());
        self.lines_up(place);
        acquisition
    }

    /// Waits until `waiter` is granted, which has to be within this time since then.
    pub(super) fn granted_since(&self, waiter: &Claim, since: At, within: Duration) {
        let after = Duration::from_nanos(waiter.granted().saturating_sub(since));
        self.holds_true(after <= within, &format!("granted only after {after:?}, not within {within:?}"));
    }

    fn seen(&self, name: &str, seen: Option<(String, bool)>) {
        let (holder, forever) = seen.map_or((None, false), |(holder, forever)| (Some(holder), forever));
        self.recorder.record("lab", What::Seen { name: name.into(), holder, forever });
    }

    /// Another takes the door while the first still regards itself as the holder. The first is refused, and notified at its next
    /// renewal.
    pub(super) fn is_taken_away(&mut self, heir: Heir, what: &str, take: impl FnOnce()) {
        let first = self.near().takes(DOOR);
        first.works(&self.register);
        let waits = matches!(heir, Heir::Waits).then(|| self.far().asks(DOOR, terms()));
        self.some_time();
        let since = now();
        take();
        self.fault(what);
        self.loss_due_since(since, RENEWAL);
        self.grant_due_since(since, SOON);
        let second = waits.unwrap_or_else(|| self.far().asks(DOOR, terms()));
        let granted = second.granted();
        second.works(&self.register);
        self.is_stale(&first, granted);
        first.lost();
        second.renewed(now());
        self.is_left(&second);
    }

    /// A holder that writes without checking its guard is refused. If nothing tells it from the present holder, it is let in.
    pub(super) fn is_stale(&self, holder: &Claim, since: At) {
        if self.fences {
            holder.refused();
        } else {
            holder.wrote_since(since);
        }
    }

    /// A process in the way of the fault takes the door and works; one that is not waits for it.
    pub(super) fn begins(&mut self) -> (Actor, Actor, Claim, Claim) {
        let (a, b) = (self.near(), self.far());
        let first = a.takes(DOOR);
        first.works(&self.register);
        let second = b.asks(DOOR, terms());
        (a, b, first, second)
    }

    /// The holder gives the door up and the one who waits gets it at once.
    pub(super) fn hand_over(&self, from: &Claim, to: &Claim) {
        self.grant_due(POLL + OPERATION + SLACK);
        self.expect(&from.releases(), "Released");
        to.granted();
    }

    /// The door changes hands, is given up, and is free.
    pub(super) fn ends_well(&self, from: &Claim, to: &Claim) {
        self.hand_over(from, to);
        self.is_left(to);
    }

    /// A stopped holder that goes on has to be notified at once.
    pub(super) fn told_since(&self, holder: &Claim, on: At) {
        let told = Duration::from_nanos(holder.lost().saturating_sub(on));
        self.holds_true(told <= SLACK, &format!("told only after {told:?}, since it went on"));
        self.told.borrow_mut().push(told);
    }

    /// Another takes the door at once, and gives it up.
    pub(super) fn ends_with_another(&self, another: &Actor) {
        self.grant_due(OPERATION + SLACK);
        let acquisition = another.takes(DOOR);
        self.is_left(&acquisition);
    }

    /// Each of those who wait is granted in its turn and gives up at once; the door is free within this time after the last.
    pub(super) fn serves_all(&self, mut waiting: Vec<Claim>, free: Duration) {
        while !waiting.is_empty() {
            let granted = |event: &Event| waiting.iter().position(|acquisition| acquisition.is_granted_by(event));
            let event = self.recorder.wait(PATIENCE, "a grant to one of those who wait", |event| granted(event).is_some());
            let served = waiting.swap_remove(granted(&event).expect("just found"));
            self.expect(&served.releases(), "Released");
        }
        self.free_due(DOOR, free);
    }

    /// The last holder gives the door up, and it is free.
    pub(super) fn is_left(&self, by: &Claim) {
        self.expect(&by.releases(), "Released");
        self.free_due(DOOR, SLACK);
    }

    #[track_caller]
    pub(super) fn expect(&self, how: &str, expected: &str) {
        // An error may stand behind the word.
        let is_so = how.split(": ").next() == Some(expected);
        self.holds_true(is_so, &format!("expected {expected}, and it is {how}"));
    }

    #[track_caller]
    pub(super) fn holds_true(&self, truth: bool, what: &str) {
        let picture = || tenure_testkit::history::timeline::picture(&self.recorder.take_down());
        assert!(truth, "{what}\n{}", picture());
    }

    pub(super) fn finish(self) -> Shown {
        let mut history = self.recorder.take_down();
        history.keeps = self.keeps;
        let mut told_after = told_after(&history);
        told_after.append(&mut self.told.borrow_mut());
        let early = if self.jumps { None } else { told_early(&history) };
        assert!(early.is_none(), "told before its deadline: {early:?}");
        Shown { told_after, starved: self.starved, ..Shown::new(history) }
    }
}

/// The same seed draws differently in each scenario.
fn mixed(seed: u64, id: &str) -> u64 {
    id.bytes().fold(seed, |mixed, byte| (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
