//! One task of a soak: takes names of every kind, does what a guard can do, and lets go in every way there is.

mod names;
mod rounds;

use std::io;
use std::time::Duration;

use fastrand::Rng;
use tenure::{Acquire, AcquireAll, BootTime, EndReason, Error, ErrorKind, Fence, Guard, Locker, ReleaseOutcome, Share, State};
use tenure_testkit::history::{At, nanos};
use tokio::time::sleep;

pub(super) use self::names::Takes;
use self::names::{MUTEXES, PERMITS, SHARED};
use super::acquisition::compare;
use super::referee::{Entrance, Told};
use super::report::{Outage, Tally};
use super::visitor::{Visitor, until};
use crate::cut::cut_off;

/// The longest that one who waits for ever may wait.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Task {
    pub(super) who: String,
    /// The beginning of all names of the run.
    pub(super) prefix: String,
    pub(super) locker: Locker,
    /// Another of the process, which shares no connection with it.
    pub(super) other: Locker,
    pub(super) visitor: Visitor,
    pub(super) rng: Rng,
    /// The store keeps its data.
    pub(super) keeps: bool,
    pub(super) takes: Takes,
    pub(super) tally: Tally,
    /// There were grants enough.
    pub(super) over: bool,
    /// When its last call began.
    pub(super) began: At,
}

/// A guard, and the visit under it.
pub(super) struct Held {
    pub(super) guard: Guard,
    told: Told,
}

/// Where a call is dropped.
enum Cut {
    Never,
    After(Duration),
    Poll(u32),
}

pub(super) fn now() -> At {
    nanos(BootTime::now().since_boot())
}

impl Task {
    /// Goes on until `end`.
    ///
    /// # Errors
    /// When the place has gone.
    pub(super) async fn run(mut self, end: BootTime) -> io::Result<Tally> {
        while BootTime::now() < end && !self.over {
            match self.takes {
                Takes::EveryKind | Takes::Several => {}
                Takes::Many => {
                    self.take_one_of_many().await?;
                    continue;
                }
                Takes::Contended => {
                    self.contend().await?;
                    continue;
                }
            }
            let asked = now();
            let guards = self.take().await;
            let mut held = Vec::new();
            for guard in guards {
                held.extend(self.enter(guard, asked).await?);
            }
            // Of several the last is worked with, and the others stand beside it.
            if let Some(last) = held.pop() {
                self.work(last).await?;
            }
            for beside in held {
                self.leave(beside).await?;
            }
            if self.rng.u8(0..8) == 0 {
                self.pause(200).await;
            }
        }
        Ok(self.tally)
    }

    pub(super) fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.rng.u64(0..=most))
    }

    pub(super) async fn pause(&mut self, most: u64) {
        let span = self.millis(most);
        sleep(span).await;
    }

    /// Some point of a call, or none.
    fn cut(&mut self, most: u64) -> Cut {
        match self.rng.u8(0..4) {
            0 => Cut::After(self.millis(most)),
            1 => Cut::Poll(self.rng.u32(0..8)),
            _ => Cut::Never,
        }
    }

    async fn unless_cut<T>(&mut self, cut: Cut, work: impl Future<Output = T>) -> Option<T> {
        self.began = now();
        let done = match cut {
            Cut::Never => Some(work.await),
            Cut::After(span) => cut_off(u32::MAX, sleep(span), work).await,
            Cut::Poll(polls) => cut_off(polls, std::future::pending(), work).await,
        };
        self.tally.cut += u64::from(done.is_none());
        done
    }

    pub(super) fn heard<T>(&mut self, answer: Option<Result<T, Error>>) -> Option<T> {
        match answer? {
            Ok(done) => Some(done),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    /// A call that began last has failed.
    fn failed(&mut self, error: &Error) {
        self.tally.failed(error);
        if self.takes == Takes::Contended && error.kind() != ErrorKind::TimedOut {
            let (who, why) = (self.who.clone(), error.to_string());
            self.tally.outages.push(Outage { who, why, began: self.began, ended: now() });
        }
    }

    pub(super) fn finds(&mut self, what: impl std::fmt::Display) {
        let finding = format!("{}: {what}", self.who);
        self.tally.findings.add(finding);
    }

    /// Asks for a name, or for two.
    async fn take(&mut self) -> Vec<Guard> {
        let shares = self.locker.store().features().shares;
        let permits = |weight| Share::permits(weight, 3).expect("a share of three");
        let (name, share) = match self.rng.u8(0..if shares { 10 } else { 3 }) {
            0..3 => (self.rng.choice(MUTEXES).unwrap_or(MUTEXES[0]), Share::MUTEX),
            3 | 4 => (SHARED, Share::WRITE),
            5 | 6 => (SHARED, Share::READ),
            weight => (PERMITS, permits(u32::from(weight) - 6)),
        };
        let ttl = Duration::from_millis(if self.rng.u8(0..4) == 0 { 1_000 } else { 2_000 });
        let acquire = self.locker.lock(format!("{}{name}", self.prefix), share).ttl(ttl);
        let acquire = self.on_terms(acquire);
        if share == Share::MUTEX && self.rng.u8(0..6) == 0 {
            let both = MUTEXES.iter().fold(AcquireAll::from(acquire), |all, name| all.and(format!("{}{name}", self.prefix)));
            let cut = self.cut(300);
            let guards = self.patiently(cut, both.acquire()).await;
            return guards.into_iter().flatten().collect();
        }
        let guard = match self.rng.u8(0..9) {
            0 => {
                let cut = self.cut(2);
                let tried = self.unless_cut(cut, acquire.try_acquire()).await;
                self.heard(tried).flatten()
            }
            1 => {
                let (wait, cut) = (self.millis(300), self.cut(300));
                let waited = self.unless_cut(cut, acquire.wait(wait).acquire()).await;
                self.heard(waited)
            }
            2 => {
                let cut = self.cut(300);
                self.patiently(cut, acquire.acquire()).await
            }
            _ => self.patiently(Cut::Never, acquire.acquire()).await,
        };
        guard.into_iter().collect()
    }

    fn on_terms(&mut self, acquire: Acquire) -> Acquire {
        match self.rng.u8(0..40) {
            0 => acquire.linger(self.millis(40)),
            1 => acquire.min_hold(self.millis(40)),
            2 => acquire.max_hold(Duration::from_millis(5) + self.millis(500)),
            3 => acquire.fixed_lease(),
            4 => acquire.poll_interval(Duration::from_millis(3)),
            _ => acquire,
        }
    }

    /// Waits for as long as it takes, unless it is dropped. Nobody is to be forgotten.
    async fn patiently<T>(&mut self, cut: Cut, wait: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let began = BootTime::now();
        let Ok(waited) = tokio::time::timeout(PATIENCE, self.unless_cut(cut, wait)).await else {
            self.finds(format_args!("it waited for {PATIENCE:?} and was not served"));
            return None;
        };
        if waited.is_some() {
            self.tally.longest_wait = self.tally.longest_wait.max(BootTime::now().since(began));
        }
        let waited = self.heard(waited);
        if waited.is_none() {
            self.pause(10).await;
        }
        waited
    }

    /// Enters the place under a guard.
    pub(super) async fn enter(&mut self, guard: Guard, asked: At) -> io::Result<Option<Held>> {
        let share = guard.share();
        self.tally.grants += 1;
        self.tally.exclusive += u64::from(share.is_exclusive());
        let index = guard.fence().and_then(|fence| Some(fence.get() - Fence::from_counter(fence.counter())?.get()));
        self.tally.passed += u64::from(index.is_some_and(|index| index > 0));
        let told = self.visit(&guard, asked).await?;
        Ok(Some(Held { guard, told }))
    }

    async fn visit(&mut self, guard: &Guard, asked: At) -> io::Result<Told> {
        let (name, share) = (guard.name().to_string(), guard.share());
        let (who, fence) = (self.who.clone(), guard.fence().map(Fence::get));
        let told = self.visitor.enters(Entrance { who, name, share, fence, asked, until: until(guard) }).await?;
        self.over |= told.over;
        Ok(told)
    }

    /// One step under what is held, and the end of it.
    async fn work(&mut self, mut held: Held) -> io::Result<()> {
        match self.rng.u8(0..100) {
            0..6 => {
                let cut = self.cut(2);
                let verified = self.unless_cut(cut, held.guard.verify()).await;
                let _ = self.heard(verified);
            }
            6..12 => {
                let (ttl, cut) = (Duration::from_millis(1_500), self.cut(2));
                let extended = self.unless_cut(cut, held.guard.extend(ttl)).await;
                let _ = self.heard(extended);
            }
            12..17 => self.reenter(&mut held).await,
            17..22 => return self.hand_on(held).await,
            22 if self.rng.bool() => self.stay(&mut held).await?,
            23..40 => self.downgrade(&mut held).await?,
            40..70 => self.pause(4).await,
            _ => {}
        }
        self.look(&held).await?;
        self.leave(held).await
    }

    /// Holds for longer than until its first renewal.
    async fn stay(&mut self, held: &mut Held) -> io::Result<()> {
        for _ in 0..self.rng.u8(1..8) {
            self.pause(250).await;
            self.look(held).await?;
        }
        Ok(())
    }

    /// Compares what is claimed with what the store keeps.
    pub(super) async fn look(&mut self, held: &Held) -> io::Result<()> {
        self.visitor.stays(held.told, &held.guard).await?;
        self.began = now();
        match compare(&self.other, &held.guard).await {
            Ok(None) => {}
            Ok(Some(excess)) => {
                self.tally.compared += 1;
                if let Some(excess) = excess.filter(|_| self.keeps) {
                    self.finds(format_args!("of {}, {excess}", held.guard.name()));
                }
            }
            Err(error) => self.failed(&error),
        }
        Ok(())
    }

    /// A second guard comes, and one of the two goes.
    async fn reenter(&mut self, held: &mut Held) {
        let mut goes = held.guard.reenter();
        if self.rng.bool() {
            std::mem::swap(&mut goes, &mut held.guard);
        }
        let cut = self.cut(2);
        match self.unless_cut(cut, goes.release()).await {
            None | Some(Ok(ReleaseOutcome::StillHeld(1))) => {}
            how => self.finds(format_args!("a guard beside another was released: {how:?}")),
        }
    }

    /// Keeps a part, and acts by that alone from then on.
    async fn downgrade(&mut self, held: &mut Held) -> io::Result<()> {
        let share = held.guard.share();
        if share.weight() == 1 {
            return Ok(());
        }
        let weight = if share.capacity() == u32::MAX { 1 } else { self.rng.u32(1..share.weight()) };
        let part = Share::from_parts(weight, share.capacity()).expect("a part of a share");
        self.tally.downgrades += 1;
        self.visitor.leaves(held.told, &held.guard).await?;
        let cut = self.cut(2);
        let done = self.unless_cut(cut, held.guard.downgrade(part)).await;
        let _ = self.heard(done);
        // If it was never begun the guard claims all of it, and its task a part.
        let (name, who) = (held.guard.name().to_string(), self.who.clone());
        let until = until(&held.guard);
        held.told = self.visitor.enters(Entrance { who, name, share: part, fence: None, asked: now(), until }).await?;
        Ok(())
    }

    /// The lease goes to another locker, or to nobody.
    pub(super) async fn hand_on(&mut self, held: Held) -> io::Result<()> {
        self.visitor.leaves(held.told, &held.guard).await?;
        let (asked, other) = (now(), self.other.clone());
        let lease = held.guard.into_lease();
        let cut = self.cut(2);
        let adopted = self.unless_cut(cut, other.adopt(&lease)).await;
        if let Some(Err(error)) = &adopted
            && error.is_transient()
        {
            // In the moment after a grant too few servers may know the lease. It stands all the same.
            self.tally.failed(error);
        } else if let Some(guard) = self.heard(adopted) {
            self.tally.adopted += 1;
            let Some(held) = self.enter(guard, asked).await? else { return Ok(()) };
            self.pause(20).await;
            self.look(&held).await?;
            return self.leave(held).await;
        }
        // Whether it was taken over is not known; if it was not, it is given up here.
        let released = other.release(&lease).await;
        if let Err(error) = released {
            self.tally.failed(&error);
            self.tally.loose.insert(lease.owner.to_string());
        }
        Ok(())
    }

    /// Leaves the place, and gives up what was held.
    pub(super) async fn leave(&mut self, held: Held) -> io::Result<()> {
        let Held { guard, told } = held;
        if guard.state() == State::Lost {
            self.tally.lost += 1;
            if guard.end_reason() == Some(EndReason::Gone) && self.keeps {
                self.finds(format_args!("{} is gone, in a store that keeps its data", guard.name()));
            }
        }
        self.visitor.leaves(told, &guard).await?;
        let token = guard.token().to_string();
        let cut = match self.rng.u8(0..4) {
            0 => {
                drop(guard);
                return Ok(());
            }
            1 => Cut::After(self.millis(1)),
            2 => self.cut(2),
            _ => Cut::Never,
        };
        if let Some(Err(error)) = self.unless_cut(cut, guard.release()).await {
            // Refused: it is not tried again, and ends with its ttl.
            self.tally.failed(&error);
            self.tally.loose.insert(token);
        }
        Ok(())
    }
}
