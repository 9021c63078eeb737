//! The parts of one run, chosen by its seed: how many processes and names, and which faults how
//! often (a swarm: each run has some faults only, so that no fault hides another).

use std::fmt;

use fastrand::Rng;
use tenure::Kind;

use super::Flaw;
use super::clock::{At, Life, ms};
use super::coverage::Met;

/// Faults of a command on its way, or of a push.
pub(super) const FATES: &[Met] =
    Met::ALL.split_at(Met::Slow as usize).1.split_at(Met::PushedTwice as usize + 1 - Met::Slow as usize).0;

/// Faults that a supplied token must not meet: another may hold by it when such a command runs.
const LATE: [Met; 3] = [Met::Slow, Met::Twice, Met::Reset];

/// How many permits a semaphore has: a divisor of the capacity of a history, in which all weights
/// are given.
const PERMITS: u32 = 3;

/// A fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    Flush,
    Delete(usize),
    Forward(u64),
    Back(u64),
}

/// A process that cannot reach the store, or hears nothing from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) process: usize,
    pub(super) from: At,
    pub(super) until: At,
    /// Requests still arrive.
    pub(super) deaf: bool,
}

#[allow(clippy::struct_excessive_bools, reason = "a list of independent choices")]
#[derive(Clone, Debug)]
pub(super) struct Mix {
    /// 1 if the store keeps its data and its clock.
    pub(super) tier: u8,
    /// Commands that were given up may run after later ones.
    pub(super) late: bool,
    pub(super) push: bool,
    /// Those who wait have places at the store.
    pub(super) queue: bool,
    /// A lease passes from task to task without the store.
    pub(super) cohort: bool,
    /// Most claims are alike, and short.
    pub(super) alike: bool,
    /// The kind of lock of each name.
    pub(super) names: Vec<Kind>,
    pub(super) lives: Vec<Life>,
    /// The resource compares fences, and processes work without reading their guards.
    pub(super) fenced: bool,
    /// Some claims are made by a value that others use too.
    pub(super) supplied: bool,
    pub(super) heal: At,
    /// The longest way of a command in milliseconds when all is well, and when it is slow.
    pub(super) way: u64,
    pub(super) slow: u64,
    /// Per mille.
    pub(super) odds: [u32; FATES.len()],
    pub(super) stalls: Vec<(At, At)>,
    pub(super) cuts: Vec<Cut>,
    pub(super) blows: Vec<(At, Blow)>,
}

impl Mix {
    pub(super) fn choose(rng: &mut Rng, flaw: Option<Flaw>) -> Self {
        let heal = ms(rng.u64(800..3_000));
        let names = (0..rng.usize(1..=3)).map(|_| kind(rng)).collect();
        let processes = rng.usize(2..=4);
        let speed = |rng: &mut Rng| if flaw == Some(Flaw::SlowClock) { 950_000 } else { rng.u64(990_000..=1_010_000) };
        let life =
            |rng: &mut Rng| Life { speed: speed(rng), offset: ms(rng.u64(0..1_000_000)), crash_at: None, naps: Vec::new() };
        let mut mix = Self {
            tier: 1,
            late: rng.bool(),
            push: rng.u8(0..4) > 0,
            queue: rng.u8(0..4) > 0,
            cohort: rng.bool(),
            alike: rng.u8(0..4) == 0,
            names,
            lives: (0..processes).map(|_| life(rng)).collect(),
            fenced: false,
            supplied: rng.u8(0..10) == 0,
            heal,
            way: rng.choice([1, 3, 8]).unwrap_or(1),
            slow: rng.choice([40, 300, 1_200]).unwrap_or(40),
            odds: [0; FATES.len()],
            stalls: Vec::new(),
            cuts: Vec::new(),
            blows: Vec::new(),
        };
        if rng.u8(0..12) > 0 {
            mix.break_things(rng);
        }
        mix
    }

    /// Nothing is broken in this run.
    pub(super) fn calm(&self) -> bool {
        let whole = self.lives.iter().all(|life| life.crash_at.is_none() && life.naps.is_empty());
        whole && self.odds == [0; FATES.len()] && self.stalls.is_empty() && self.cuts.is_empty() && self.blows.is_empty()
    }

    /// Few errors and nothing else: renewals get through at a second try, or a third.
    pub(super) fn mild(&self) -> bool {
        let mild = [Met::FailedBefore, Met::FailedAfter, Met::Unavailable, Met::Panicked, Met::LostPush, Met::PushedTwice];
        let odds = FATES.iter().copied().all(|fate| self.odds(fate) == 0 || mild.contains(&fate));
        let few = mild[..4].iter().map(|fate| self.odds(*fate)).sum::<u32>() <= 60;
        let whole = self.lives.iter().all(|life| life.naps.is_empty()) && self.cuts.is_empty();
        odds && few && whole && self.stalls.is_empty() && self.tier == 1
    }

    pub(super) fn odds(&self, fate: Met) -> u32 {
        self.odds[fate as usize - Met::Slow as usize]
    }

    fn set_odds(&mut self, fate: Met, odds: u32) {
        self.odds[fate as usize - Met::Slow as usize] = odds;
    }

    fn break_things(&mut self, rng: &mut Rng) {
        if rng.u8(0..6) == 0 {
            let fate =
                rng.choice([Met::FailedBefore, Met::FailedAfter, Met::Unavailable, Met::Panicked]).unwrap_or(Met::FailedBefore);
            self.set_odds(fate, 50);
            return;
        }
        for &fate in FATES {
            let may = !(self.supplied && LATE.contains(&fate));
            if rng.u8(0..4) == 0 && may {
                self.set_odds(fate, rng.choice([15, 60, 200, 400]).unwrap_or(15));
            }
        }
        self.set_odds(Met::Panicked, self.odds(Met::Panicked) / 4);
        for index in 0..self.lives.len() {
            if rng.u8(0..6) == 0 {
                self.lives[index].crash_at = Some(rng.u64(ms(1)..self.heal));
            }
        }
        if rng.u8(0..3) == 0 {
            for _ in 0..rng.usize(1..=3) {
                let (from, until) = self.window(rng);
                self.cuts.push(Cut { process: rng.usize(0..self.lives.len()), from, until, deaf: rng.bool() });
            }
        }
        if self.supplied {
            return;
        }
        if rng.u8(0..4) == 0 {
            self.stalls.push(self.window(rng));
        }
        if rng.u8(0..4) == 0 {
            self.fenced = true;
            for index in 0..self.lives.len() {
                for _ in 0..rng.usize(0..=3) {
                    let (from, until) = self.window(rng);
                    // Short ones end between the deadline of a tenure and that of a command.
                    let until = if rng.bool() { until } else { until.min(from + ms(rng.u64(2..60))) };
                    self.lives[index].naps.push((from, until));
                }
            }
        }
        if rng.u8(0..8) == 0 {
            self.blows.push((rng.u64(0..self.heal), Blow::Back(ms(rng.u64(1..800)))));
        }
        if rng.u8(0..4) == 0 {
            (self.tier, self.fenced) = (2, true);
            for _ in 0..rng.usize(1..=3) {
                let blow = match rng.u8(0..3) {
                    0 => Blow::Flush,
                    1 => Blow::Delete(rng.usize(0..self.names.len())),
                    _ => Blow::Forward(ms(rng.u64(100..4_000))),
                };
                self.blows.push((rng.u64(0..self.heal), blow));
            }
        }
    }

    fn window(&self, rng: &mut Rng) -> (At, At) {
        let from = rng.u64(0..self.heal);
        (from, (from + ms(rng.u64(20..1_800))).min(self.heal))
    }
}

fn kind(rng: &mut Rng) -> Kind {
    match rng.u8(0..5) {
        0..=2 => Kind::Mutex,
        3 => Kind::ReadWrite,
        _ => Kind::Semaphore(PERMITS),
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tier {}, {} processes, {} names", self.tier, self.lives.len(), self.names.len())?;
        for (what, is) in [
            ("late commands", self.late),
            ("pushes", self.push),
            ("a queue", self.queue),
            ("cohorts", self.cohort),
            ("supplied values", self.supplied),
        ] {
            if is {
                write!(f, ", {what}")?;
            }
        }
        for (what, kind) in [("a read/write lock", Kind::ReadWrite), ("a semaphore", Kind::Semaphore(PERMITS))] {
            if self.names.contains(&kind) {
                write!(f, ", {what}")?;
            }
        }
        let naps = self.lives.iter().map(|life| life.naps.len()).sum::<usize>();
        for (what, count) in [("stops", naps), ("cuts", self.cuts.len()), ("stalls", self.stalls.len())] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        write!(f, ", ways of {} ms ({} ms when slow)", self.way, self.slow)?;
        for fate in FATES.iter().copied().filter(|fate| self.odds(*fate) > 0) {
            write!(f, ", {fate:?} {}", self.odds(fate))?;
        }
        Ok(())
    }
}
