//! Much traffic: tasks that take names in turn, visit what those guard, and often change their minds.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure::{ErrorKind, Fence, Guard, Locker, ReleaseOutcome};

use crate::Counter;
use crate::history::nanos;

/// Traffic that one process makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Names that are locked, each with the directory of the [`Counter`] that it guards.
    pub names: Vec<(String, PathBuf)>,
    /// How many tasks ask side by side, again and again.
    pub tasks: usize,
    /// How many visits they make together.
    pub visits: u64,
    /// For how long at most.
    pub time: Duration,
    /// The ttl.
    pub ttl: Duration,
    /// How long a visit lasts; zero: no longer than it takes.
    pub stay: Duration,
    /// Number of asks in a thousand that give up soon: half of them by their time, half by being
    /// dropped.
    pub fickle: u64,
    /// Draws names and whims.
    pub seed: u64,
}

/// Result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many visits were made.
    pub visits: u64,
    /// How many of them were granted by the store; the others were passed on within the process.
    pub through_store: u64,
    /// How many asks came to nothing because they gave up.
    pub given_up: u64,
    /// How many leases were lost.
    pub lost: u64,
    /// The longest time for which a process, or a visit whose lease was lost, stood still.
    pub pause: Duration,
    /// How long each ask waited that did not give up, in microseconds, shortest first.
    pub waits: Vec<u32>,
}

impl Tally {
    /// The longest wait of an ask that did not give up.
    pub fn longest_wait(&self) -> Duration {
        self.waits.last().map_or(Duration::ZERO, |us| Duration::from_micros((*us).into()))
    }

    /// This and another together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.add(other);
        self.waits.sort_unstable();
        self
    }

    fn add(&mut self, other: Self) {
        self.visits += other.visits;
        self.through_store += other.through_store;
        self.given_up += other.given_up;
        self.lost += other.lost;
        self.pause = self.pause.max(other.pause);
        self.waits.extend(other.waits);
    }
}

/// Conduct of an ask that is not served at once.
#[derive(Clone, Copy)]
enum Whim {
    Stays,
    TimesOut(Duration),
    IsDropped(Duration),
}

/// Carries `load` with `locks`; panics at any error of an ask that had time.
pub async fn carry(locks: &Locker, load: &Load) -> Tally {
    let (end, left) = (Instant::now() + load.time, Arc::new(AtomicU64::new(load.visits)));
    let tasks = (0..load.tasks).map(|number| {
        let (locks, load, left) = (locks.clone(), load.clone(), Arc::clone(&left));
        tokio::spawn(async move { Task::new(locks, load, number).run(&left, end).await })
    });
    let (mut whole, longest) = (Tally::default(), Arc::new(AtomicU64::new(0)));
    let pauses = tokio::spawn(note_pauses(Arc::clone(&longest)));
    for task in tasks.collect::<Vec<_>>() {
        whole.add(task.await.expect("a task of a load ends"));
    }
    pauses.abort();
    whole.pause = whole.pause.max(Duration::from_nanos(longest.load(Ordering::Relaxed)));
    locks.flush_releases().await;
    // At the end: until then others need the thread.
    whole.waits.sort_unstable();
    whole
}

/// Notes how late timers of this process are at most.
async fn note_pauses(longest: Arc<AtomicU64>) {
    loop {
        let due = Instant::now() + Duration::from_millis(5);
        tokio::time::sleep_until(due.into()).await;
        longest.fetch_max(nanos(Instant::now().saturating_duration_since(due)), Ordering::Relaxed);
    }
}

struct Task {
    locks: Locker,
    load: Load,
    counters: Vec<Counter>,
    rng: fastrand::Rng,
    tally: Tally,
}

impl Task {
    fn new(locks: Locker, load: Load, number: usize) -> Self {
        let counters = load.names.iter().map(|(_, dir)| Counter::open(dir)).collect();
        let seed = load.seed.wrapping_mul(1 << 20) + u64::try_from(number).expect("a usize fits");
        Self { locks, load, counters, rng: fastrand::Rng::with_seed(seed), tally: Tally::default() }
    }

    async fn run(mut self, left: &AtomicU64, end: Instant) -> Tally {
        let take_one =
            |left: &AtomicU64| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        while Instant::now() < end && take_one(left) {
            let at = self.rng.usize(..self.load.names.len());
            if let Some(guard) = self.ask(at).await {
                self.visit(at, guard).await;
            } else {
                self.tally.given_up += 1;
                left.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.tally
    }

    fn whim(&mut self) -> Whim {
        let soon = Duration::from_micros(self.rng.u64(..20_000));
        match self.rng.u64(..1_000) {
            drawn if drawn < self.load.fickle / 2 => Whim::TimesOut(soon),
            drawn if drawn < self.load.fickle => Whim::IsDropped(soon),
            _ => Whim::Stays,
        }
    }

    /// `None`: it gave up.
    async fn ask(&mut self, at: usize) -> Option<Guard> {
        let (name, begun) = (&self.load.names[at].0, Instant::now());
        let acquire = self.locks.mutex(name).ttl(self.load.ttl);
        let whim = self.whim();
        let is_timed = matches!(whim, Whim::TimesOut(_));
        let granted = match whim {
            Whim::Stays => {
                let granted = acquire.acquire().await;
                self.tally.waits.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
                granted
            }
            Whim::TimesOut(soon) => acquire.wait(soon).acquire().await,
            Whim::IsDropped(soon) => tokio::time::timeout(soon, acquire.acquire()).await.ok()?,
        };
        match granted {
            Ok(guard) => Some(guard),
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            // It had no time for a second call.
            Err(error) if is_timed && error.is_transient() => None,
            Err(error) => panic!("an ask of a load failed: {error}"),
        }
    }

    /// One visit, and now and then a guard that is only dropped.
    async fn visit(&mut self, at: usize, guard: Guard) {
        let (fence, came) = (guard.fence().expect("a store that counts"), Instant::now());
        self.tally.through_store += u64::from(Fence::from_counter(fence.counter()) == Some(fence));
        if guard.end_reason().is_none() {
            let visit = self.counters[at].enter(fence.get());
            if !self.load.stay.is_zero() {
                tokio::time::sleep(self.load.stay).await;
            }
            if guard.end_reason().is_none() {
                visit.leave();
                self.tally.visits += 1;
            }
        }
        let lost = match self.rng.u8(..4) {
            0 => {
                let lost = guard.end_reason().is_some();
                drop(guard);
                lost
            }
            _ => match guard.release().await.expect("a release is not refused") {
                // It goes on in the background if it is unknown. Whether two were inside, the counters say.
                ReleaseOutcome::Released | ReleaseOutcome::Unknown { .. } => false,
                ReleaseOutcome::WasLost => true,
                other @ ReleaseOutcome::StillHeld(_) => panic!("the release was {other:?}"),
            },
        };
        if lost {
            self.tally.lost += 1;
            self.tally.pause = self.tally.pause.max(came.elapsed().saturating_sub(self.load.stay));
        }
    }
}
