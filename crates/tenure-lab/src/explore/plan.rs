//! The plan of one attempt, chosen at random.

use std::time::Duration;

use fastrand::Rng;
use tenure::{Acquire, Kind, Lease, Locker, Name, Owner, Share};

use super::clock::{ms, nanos};
use super::mix::Mix;

/// How the work of a holder looks at its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// It is notified by `Guard::lost`.
    Lost,
    /// It is notified by the token that is cancelled.
    Cancellation,
    /// It is run by the guard.
    Run,
    /// It asks for the state between its steps.
    State,
    /// Not before it is done.
    Never,
}

/// Where a call is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Never,
    /// After this long, by the process's clock.
    After(u64),
    /// At its how manieth poll.
    Poll(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    /// The release is dropped on its way.
    CancelledRelease(Cut),
    Drop,
    /// The lease is left to a client that takes it over.
    HandOn,
}

/// For how long a name is handed over.
const CLAIM: Duration = Duration::from_millis(1_500);

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: Name,
    /// Taken with it, all or nothing.
    pub(super) also: Option<Name>,
    pub(super) share: Share,
    pub(super) ttl: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) renews: bool,
    pub(super) shortest: Duration,
    pub(super) longest: Option<Duration>,
    linger: Duration,
    poll_interval: Option<Duration>,
    guard: Option<Duration>,
    pub(super) token: Option<Owner>,
    /// Where the acquisition is dropped.
    pub(super) cut: Cut,
    pub(super) looks: Looks,
    /// For how long it works, in parts with something between them that may be dropped on its way.
    pub(super) parts: Vec<(u64, Between, Cut)>,
    /// The time between reading and writing.
    pub(super) step: u64,
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Nothing,
    Extend(Duration),
    Verify,
    /// A part of the share is kept.
    Downgrade,
    /// A second guard of the tenure is made, and one of the two is given up.
    Reenter,
    /// Another name is locked meanwhile.
    Nested,
}

impl Plan {
    pub(super) fn choose(rng: &mut Rng, mix: &Mix, names: &[Name], nested: bool) -> Self {
        let (name, kind) = place(rng, mix, names);
        let ttl = Duration::from_millis(rng.choice([120, 300, 900, 2_000]).unwrap_or(300));
        let once = |rng: &mut Rng, of: u8| rng.u8(0..of) == 0;
        let shortest = if once(rng, 6) { Duration::from_millis(rng.u64(10..800)) } else { Duration::ZERO };
        let longest = once(rng, 6).then(|| shortest + Duration::from_millis(rng.u64(10..1_500)));
        let wait = match rng.u8(0..4) {
            0 if !nested => None,
            1 => Some(Duration::ZERO),
            _ => Some(Duration::from_millis(rng.u64(10..if nested { 300 } else { 2_500 }))),
        };
        // A value that is always the same for a name, for all clients.
        let token = (mix.supplied && rng.bool()).then(|| Owner::from_bytes(format!("fixed-{name}").into_bytes()));
        let end = match rng.u8(0..10) {
            0..=4 => End::Release,
            5 | 6 => End::Drop,
            7 => End::CancelledRelease(cut(rng, 30)),
            _ if token.is_some() => End::Release,
            _ => End::HandOn,
        };
        let parts = (0..rng.usize(1..=3)).map(|_| part(rng, ttl, nested)).collect();
        let plan = Self {
            also: also(rng, mix, names, &name, kind).filter(|_| token.is_none() && !nested),
            share: share(rng, kind),
            name,
            ttl,
            wait,
            renews: !once(rng, 4),
            shortest,
            longest,
            linger: if once(rng, 12) { Duration::from_millis(rng.u64(1..200)) } else { Duration::ZERO },
            poll_interval: once(rng, 4).then(|| Duration::from_millis(rng.u64(1..500))),
            guard: once(rng, 4).then(|| ttl / rng.choice([3, 5, 30]).unwrap_or(5)),
            token,
            cut: if once(rng, 4) { cut(rng, 400) } else { Cut::Never },
            looks: looks(rng, mix),
            parts,
            step: ms(rng.u64(8..200)),
            end,
        };
        match plan.also {
            _ if mix.alike && !once(rng, 4) => plan.like_all(rng),
            // With another name these begin when both are held.
            Some(_) => Self { renews: true, shortest: Duration::ZERO, longest: None, ..plan },
            None => plan,
        }
    }

    /// Short work under terms that all have in common, so that a lease may pass from task to task.
    fn like_all(self, rng: &mut Rng) -> Self {
        // One that gives a part up on the way must not pass on what it had.
        let between = if rng.u8(0..4) == 0 { Between::Downgrade } else { Between::Nothing };
        Self {
            also: None,
            ttl: Duration::from_millis(900),
            renews: true,
            shortest: Duration::ZERO,
            longest: None,
            linger: Duration::ZERO,
            guard: None,
            token: None,
            parts: vec![(ms(rng.u64(0..6)), between, cut(rng, 8))],
            step: ms(1),
            ..self
        }
    }

    /// The plan for a lease that is taken over.
    pub(super) fn adopt(mut self, lease: &Lease) -> Self {
        (self.name, self.share, self.also) = (lease.name.clone(), lease.share, None);
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
        let acquire = locker.lock(self.name.as_str(), self.share).ttl(self.ttl);
        let mut acquire = acquire.min_hold(self.shortest).linger(self.linger);
        if let Some(wait) = self.wait {
            acquire = acquire.wait(wait);
        }
        if !self.renews {
            acquire = acquire.fixed_lease();
        }
        if let Some(longest) = self.longest {
            acquire = acquire.max_hold(longest);
        }
        if let Some(every) = self.poll_interval {
            acquire = acquire.poll_interval(every);
        }
        if let Some(guard) = self.guard {
            acquire = acquire.safety_margin(guard);
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

/// A name, and what kind of lock it is.
fn place(rng: &mut Rng, mix: &Mix, names: &[Name]) -> (Name, Kind) {
    let index = rng.usize(0..names.len());
    (names[index].clone(), mix.names[index])
}

/// Another name of the same kind, now and then.
fn also(rng: &mut Rng, mix: &Mix, names: &[Name], name: &Name, kind: Kind) -> Option<Name> {
    let (other, its) = place(rng, mix, names);
    (rng.u8(0..3) == 0 && its == kind && other != *name).then_some(other)
}

/// All of a name of this kind.
pub(super) fn whole(kind: Kind) -> Share {
    match kind {
        Kind::Mutex => Share::MUTEX,
        Kind::ReadWrite => Share::WRITE,
        Kind::Semaphore(permits) => Share::permits(permits, permits).expect("all of something"),
    }
}

/// All of a name of this kind, or a part of it.
pub(super) fn share(rng: &mut Rng, kind: Kind) -> Share {
    if rng.bool() { whole(kind) } else { smaller(rng, whole(kind)).unwrap_or(whole(kind)) }
}

/// A part of a share, if it has parts.
pub(super) fn smaller(rng: &mut Rng, share: Share) -> Option<Share> {
    match share.kind() {
        Kind::Mutex => None,
        Kind::ReadWrite => Some(Share::READ),
        Kind::Semaphore(_) => Share::from_parts(rng.u32(1..=3), share.capacity()),
    }
    .filter(|part| part.weight() < share.weight())
}

/// Some point of a call that takes up to so many milliseconds, or none.
pub(super) fn cut(rng: &mut Rng, within: u64) -> Cut {
    match rng.u8(0..3) {
        0 => Cut::After(ms(rng.u64(0..within))),
        1 => Cut::Poll(rng.u32(0..6)),
        _ => Cut::Never,
    }
}

fn part(rng: &mut Rng, ttl: Duration, nested: bool) -> (u64, Between, Cut) {
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let work = match rng.u8(0..4) {
        0 => rng.u64(0..20),
        1 | 2 => rng.u64(0..ttl_ms),
        _ => rng.u64(0..ttl_ms * 5 / 2),
    };
    let between = match rng.u8(0..14) {
        0 | 1 => Between::Extend(ttl * 2),
        2 => Between::Extend(ttl.mul_f64(0.8)),
        3 => Between::Verify,
        4 if !nested => Between::Nested,
        5 | 6 => Between::Downgrade,
        7 => Between::Reenter,
        _ => Between::Nothing,
    };
    (ms(work), between, cut(rng, 30))
}
