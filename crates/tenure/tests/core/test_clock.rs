//! A boot-time clock that the test moves. It follows tokio's clock, which stands still in a paused
//! runtime until all tasks wait.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::{BootTime, Clock};
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct TestClock {
    started: Instant,
    /// How far the clock has jumped, and whether the timers have noticed.
    jumped: watch::Sender<Duration>,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), jumped: watch::Sender::new(Duration::from_secs(1_000)) }
    }

    /// The machine sleeps: the clock has gone on, and its timers ring when it wakes.
    pub(crate) fn sleep(&self, span: Duration) {
        self.jumped.send_modify(|jumped| *jumped += span);
    }

    /// This process stands still: the clock has gone on, and no timer has been looked at yet.
    pub(crate) fn pause(&self, span: Duration) {
        self.jumped.send_if_modified(|jumped| {
            *jumped += span;
            false
        });
    }
}

impl Clock for TestClock {
    fn now(&self) -> BootTime {
        BootTime::from_boot(*self.jumped.borrow()) + self.started.elapsed()
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        let (clock, mut jumped) = (self.clone(), self.jumped.subscribe());
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    _ = jumped.changed() => {}
                }
            }
        })
    }
}
