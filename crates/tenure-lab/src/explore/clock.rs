//! The clock of a simulated process: virtual time at a rate of its own, and the times at which the
//! process is stopped or dead.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::{BootTime, Clock};
use tokio::time::{Instant, sleep_until};

/// Virtual nanoseconds since the run began.
pub(super) type At = u64;

pub(super) const fn ms(count: u64) -> u64 {
    count * 1_000_000
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// How fast a perfect clock runs, in parts per million.
const EVEN: u64 = 1_000_000;

/// When a process is able to do something, and how its clock runs.
#[derive(Clone, Debug)]
pub(super) struct Life {
    /// Parts per million by which its clock runs, 1,000,000 being that of the store.
    pub(super) speed: u64,
    /// The time on its clock at first.
    pub(super) offset: u64,
    pub(super) crash_at: Option<At>,
    /// From when to when it is stopped. Its clock goes on.
    pub(super) naps: Vec<(At, At)>,
}

impl Life {
    /// Until when it is stopped, if it is.
    fn stopped_until(&self, now: At) -> Option<At> {
        self.naps.iter().find(|(from, until)| *from <= now && now < *until).map(|(_, until)| *until)
    }

    pub(super) fn dead_at(&self, now: At) -> bool {
        self.crash_at.is_some_and(|crash| crash <= now)
    }

    /// How long a span of its own clock is.
    pub(super) fn real(&self, local: u64) -> u64 {
        (local * EVEN).div_ceil(self.speed)
    }

    fn shows(&self, at: At) -> u64 {
        self.offset + at * self.speed / EVEN
    }
}

/// How many looks at its clock a process may take in a run: more means that it spins.
const SPINS: u64 = 1_000_000;

/// The clock of one process. Clones are the same clock.
#[derive(Clone, Debug)]
pub(super) struct SimClock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    life: Life,
    began: Instant,
    looks: AtomicU64,
}

impl SimClock {
    pub(super) fn new(life: Life, began: Instant) -> Self {
        Self(Arc::new(Inner { life, began, looks: AtomicU64::new(0) }))
    }

    pub(super) fn life(&self) -> &Life {
        &self.0.life
    }

    /// The virtual time, which no process knows.
    pub(super) fn virtual_now(&self) -> At {
        nanos(Instant::now().duration_since(self.0.began))
    }

    /// Waits until the process can do something: a stopped one goes on later, a dead one never.
    pub(super) async fn pass(&self) {
        loop {
            let now = self.virtual_now();
            if self.0.life.dead_at(now) {
                return pending().await;
            }
            let Some(until) = self.0.life.stopped_until(now) else { return };
            sleep_until(self.0.began + Duration::from_nanos(until)).await;
        }
    }

    /// Does `work` while the process is not stopped: what comes meanwhile is found when it goes on.
    pub(super) async fn live<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            self.pass().await;
            let step = poll_fn(|context| {
                if self.0.life.stopped_until(self.virtual_now()).is_some() {
                    return Poll::Ready(None);
                }
                work.as_mut().poll(context).map(Some)
            });
            if let Some(done) = step.await {
                return done;
            }
        }
    }

    /// A pause of the process by its own clock.
    pub(super) async fn pause(&self, local: u64) {
        self.sleep_until(self.now() + Duration::from_nanos(local)).await;
    }
}

impl Clock for SimClock {
    fn now(&self) -> BootTime {
        let looks = self.0.looks.fetch_add(1, Ordering::Relaxed);
        assert!(looks < SPINS, "the core spins: it has looked at its clock {looks} times");
        BootTime::from_boot(Duration::from_nanos(self.0.life.shows(self.virtual_now())))
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        let left = nanos(at.since_boot()).saturating_sub(self.0.life.offset);
        // A point so far away is never reached in a run.
        let real = self.0.life.real(left.min(u64::MAX / EVEN));
        Box::pin(async move {
            sleep_until(clock.0.began + Duration::from_nanos(real)).await;
            clock.pass().await;
        })
    }
}
