//! What one claim is to be, chosen at random.

use std::time::Duration;

use fastrand::Rng;
use tenure::{Acquire, Lease, Locker, Name, Owner};

use super::clock::{ms, nanos};
use super::mix::Mix;

/// How the work of a holder looks at its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// It is told by `Guard::lost`.
    Lost,
    /// It is told by the token that is cancelled.
    Cancellation,
    /// It is run by the guard.
    Run,
    /// It asks for the state between its steps.
    State,
    /// Not before it is done.
    Never,
}

/// How a tenure ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    /// The release is cancelled after a while.
    CancelledRelease(u64),
    Drop,
    /// The lease is given to whoever takes it over.
    HandOn,
}

/// For how long a name is handed over.
const CLAIM: Duration = Duration::from_millis(1_500);

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: Name,
    pub(super) ttl: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) renews: bool,
    pub(super) shortest: Duration,
    pub(super) longest: Option<Duration>,
    recheck: Option<Duration>,
    guard: Option<Duration>,
    pub(super) token: Option<Owner>,
    /// The acquisition is dropped after this long.
    pub(super) cancel: Option<u64>,
    pub(super) looks: Looks,
    /// For how long it works, in parts with an extension or a verification between them.
    pub(super) parts: Vec<(u64, Between)>,
    /// The time between reading and writing.
    pub(super) step: u64,
    pub(super) end: End,
}

/// What is done between two parts of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Nothing,
    Extend(Duration),
    /// An extension whose future is dropped.
    ExtendUnheard(Duration),
    Verify,
    /// Another name is locked meanwhile.
    Nested,
}

impl Plan {
    pub(super) fn choose(rng: &mut Rng, mix: &Mix, names: &[Name], nested: bool) -> Self {
        let name = rng.choice(names).expect("there are names").clone();
        let ttl = Duration::from_millis(rng.choice([120, 300, 900, 2_000]).unwrap_or(300));
        let once = |rng: &mut Rng, of: u8| rng.u8(0..of) == 0;
        let shortest = if once(rng, 6) { Duration::from_millis(rng.u64(10..800)) } else { Duration::ZERO };
        let longest = once(rng, 6).then(|| shortest + Duration::from_millis(rng.u64(10..1_500)));
        let wait = match rng.u8(0..4) {
            0 if !nested => None,
            1 => Some(Duration::ZERO),
            _ => Some(Duration::from_millis(rng.u64(10..if nested { 300 } else { 2_500 }))),
        };
        // A value that is always the same for a name, whoever uses it.
        let token = (mix.given && rng.bool()).then(|| Owner::from_bytes(format!("fixed-{name}").into_bytes()));
        let end = match rng.u8(0..10) {
            0..=4 => End::Release,
            5 | 6 => End::Drop,
            7 => End::CancelledRelease(ms(rng.u64(0..30))),
            _ if token.is_some() => End::Release,
            _ => End::HandOn,
        };
        let parts = (0..rng.usize(1..=3)).map(|_| part(rng, ttl, nested)).collect();
        let plan = Self {
            name,
            ttl,
            wait,
            renews: !once(rng, 4),
            shortest,
            longest,
            recheck: once(rng, 4).then(|| Duration::from_millis(rng.u64(1..500))),
            guard: once(rng, 4).then(|| ttl / rng.choice([3, 5, 30]).unwrap_or(5)),
            token,
            cancel: once(rng, 5).then(|| ms(rng.u64(0..400))),
            looks: looks(rng, mix),
            parts,
            step: ms(rng.u64(8..200)),
            end,
        };
        if mix.alike && !once(rng, 4) { plan.like_all(rng) } else { plan }
    }

    /// Short work under terms that all have in common, so that a lease may pass from task to task.
    fn like_all(self, rng: &mut Rng) -> Self {
        Self {
            ttl: Duration::from_millis(900),
            renews: true,
            shortest: Duration::ZERO,
            longest: None,
            guard: None,
            token: None,
            parts: vec![(ms(rng.u64(0..6)), Between::Nothing)],
            step: ms(1),
            ..self
        }
    }

    /// What becomes of a lease that is taken over.
    pub(super) fn adopt(mut self, lease: &Lease) -> Self {
        self.name = lease.name.clone();
        (self.ttl, self.renews, self.shortest, self.longest, self.guard) = (lease.ttl, true, Duration::ZERO, None, None);
        self.token = None;
        self
    }

    /// The time to stop work after a loss.
    pub(super) fn guard(&self) -> u64 {
        nanos(self.guard.unwrap_or(self.ttl / 10))
    }

    /// The same while the name was only handed over, and no answer says that it is ours.
    pub(super) fn claim_guard(&self) -> u64 {
        nanos(self.ttl.min(CLAIM) / 10)
    }

    pub(super) fn of(&self, locker: &Locker) -> Acquire {
        let mut acquire = locker.mutex(&self.name).ttl(self.ttl).min_hold(self.shortest);
        if let Some(wait) = self.wait {
            acquire = acquire.wait(wait);
        }
        if !self.renews {
            acquire = acquire.fixed_lease();
        }
        if let Some(longest) = self.longest {
            acquire = acquire.max_hold(longest);
        }
        if let Some(every) = self.recheck {
            acquire = acquire.recheck(every);
        }
        if let Some(guard) = self.guard {
            acquire = acquire.guard(guard);
        }
        if let Some(token) = &self.token {
            acquire = acquire.token(token.clone());
        }
        acquire
    }
}

fn looks(rng: &mut Rng, mix: &Mix) -> Looks {
    let all = [Looks::Lost, Looks::Cancellation, Looks::Run, Looks::State, Looks::Never];
    // Where the resource does not compare, work must stop in time.
    rng.choice(if mix.fenced { &all[..] } else { &all[..3] }).copied().unwrap_or(Looks::Lost)
}

fn part(rng: &mut Rng, ttl: Duration, nested: bool) -> (u64, Between) {
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let work = match rng.u8(0..4) {
        0 => rng.u64(0..20),
        1 | 2 => rng.u64(0..ttl_ms),
        _ => rng.u64(0..ttl_ms * 5 / 2),
    };
    let between = match rng.u8(0..10) {
        0 => Between::Extend(ttl * 2),
        1 => Between::Extend(ttl.mul_f64(0.8)),
        2 => Between::ExtendUnheard(ttl * 2),
        3 => Between::Verify,
        4 if !nested => Between::Nested,
        _ => Between::Nothing,
    };
    (ms(work), between)
}
