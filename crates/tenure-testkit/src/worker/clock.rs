//! The boot-time clock of a machine that seems to sleep when a test wants it to.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::{BootClock, BootTime, Clock};
use tokio::sync::watch;

/// The clock of this machine, further on by the sum of all jumps. Clones are the same clock.
#[derive(Clone, Debug)]
pub(super) struct SkewedClock(watch::Sender<Duration>);

impl Default for SkewedClock {
    fn default() -> Self {
        Self(watch::Sender::new(Duration::ZERO))
    }
}

impl SkewedClock {
    /// The machine has slept this long: timers that rang meanwhile ring now.
    pub(super) fn jump(&self, by: Duration) {
        self.0.send_modify(|ahead| *ahead += by);
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> BootTime {
        BootTime::now() + *self.0.borrow()
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        let mut ahead = self.0.subscribe();
        Box::pin(async move {
            loop {
                let by = *ahead.borrow_and_update();
                tokio::select! {
                    () = BootClock.sleep_until(at - by) => return,
                    Ok(()) = ahead.changed() => {}
                }
            }
        })
    }
}
