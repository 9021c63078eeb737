//! The one clock by which leases are measured: time since boot, sleep included.
//!
//! `std::time::Instant` and the timers of tokio stand still while the machine sleeps, and the wall
//! clock jumps. A lease ends in real time, so deadlines are points on the boot-time clock, with a
//! boot-time timer.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::Error;

/// A point on the boot-time clock of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(Duration);

impl BootTime {
    /// Reads the clock.
    ///
    /// # Panics
    /// If the system refuses the clock, as a sandbox may: without it no lease is valid. See
    /// [`check`](Self::check).
    pub fn now() -> Self {
        match Self::read() {
            Ok(now) => now,
            Err(error) => panic!("the boot-time clock cannot be read, {error}; have the sandbox allow clock_gettime"),
        }
    }

    /// Checks that the clock can be read. Call it before anything is taken.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the system refuses it, as a sandbox may.
    pub fn check() -> Result<(), Error> {
        Self::read().map(drop).map_err(refused)
    }

    fn read() -> std::io::Result<Self> {
        #[cfg(target_os = "linux")]
        const CLOCK: rustix::time::DynamicClockId<'_> = rustix::time::DynamicClockId::Boottime;
        // On macOS the monotonic clock goes on while the machine sleeps. On other systems it is the
        // best there is.
        #[cfg(not(target_os = "linux"))]
        const CLOCK: rustix::time::DynamicClockId<'_> = rustix::time::DynamicClockId::Known(rustix::time::ClockId::Monotonic);
        let now = rustix::time::clock_gettime_dynamic(CLOCK)?;
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Ok(Self(Duration::new(now.tv_sec.unsigned_abs(), nanos)))
    }

    /// Makes the point that lies `since` after boot.
    pub const fn from_boot(since: Duration) -> Self {
        Self(since)
    }

    /// Returns the time from boot to this point.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns the time from `earlier` to this point; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

fn refused(error: std::io::Error) -> Error {
    Error::unavailable("the boot-time clock cannot be read").with_source(error).with_hint("have the sandbox allow clock_gettime")
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }
}

/// Source of time of the core: [`BootClock`], but for simulations.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Reads the clock. Never goes back.
    fn now(&self) -> BootTime;

    /// Resolves at `at`, or soon after, even if the machine slept meanwhile.
    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()>;

    /// Resolves at `at`, or later by the time that the machine slept. For pauses by which no lease
    /// is measured.
    fn nap_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        self.sleep_until(at)
    }
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> BootTime {
        BootTime::now()
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        Box::pin(sleep_until(at))
    }

    fn nap_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        // Without a timer of the operating system for each of very many waiters.
        Box::pin(tokio::time::sleep(at.since(BootTime::now())))
    }
}

/// Longest time between two readings of the clock without a boot-time timer.
const TICK: Duration = Duration::from_millis(250);

async fn sleep_until(at: BootTime) {
    #[cfg(target_os = "linux")]
    if let Ok(timer) = timer::at(at) {
        while BootTime::now() < at {
            match timer.readable().await {
                // The timer fires once. After an early wake-up for another reason the wait goes on.
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => break,
            }
        }
    }
    loop {
        let left = at.since(BootTime::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(TICK)).await;
    }
}

#[cfg(target_os = "linux")]
mod timer {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::BootTime;

    /// Makes a timer that becomes readable at `at`, also while the machine sleeps.
    pub(super) fn at(at: BootTime) -> io::Result<AsyncFd<OwnedFd>> {
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let since_boot = at.since_boot();
        let it_value = Timespec {
            tv_sec: i64::try_from(since_boot.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(since_boot.subsec_nanos()),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&fd, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value })?;
        #[allow(deprecated, reason = "sound for an OwnedFd, which stays open and the same; the replacement is an unsafe fn")]
        AsyncFd::with_interest(fd, Interest::READABLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeps_neither_short_nor_long() {
        let started = BootTime::now();
        BootClock.sleep_until(started + Duration::from_millis(30)).await;
        let took = BootTime::now().since(started);
        assert!(took >= Duration::from_millis(30), "woke after {took:?}");
        assert!(took < Duration::from_millis(530), "overslept: took {took:?}");
    }

    /// The runtime's own timers are paused and would fire at once. The machine's timer is what
    /// fires.
    #[tokio::test(start_paused = true)]
    async fn sleeps_on_the_machines_timer_and_not_the_runtimes() {
        let (started, before) = (BootTime::now(), tokio::time::Instant::now());
        BootClock.sleep_until(started + Duration::from_millis(30)).await;
        assert!(BootTime::now().since(started) >= Duration::from_millis(30));
        assert_eq!(before.elapsed(), Duration::ZERO, "the runtime's timer was used");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_timer_is_not_passed_on_to_children() {
        let timer = timer::at(BootTime::now()).unwrap();
        assert!(rustix::io::fcntl_getfd(timer.get_ref()).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn points_in_time_add_up_and_never_wrap() {
        let at = |seconds| BootTime::from_boot(Duration::from_secs(seconds));
        assert_eq!((at(5) + Duration::from_secs(2), at(5) - Duration::from_secs(2)), (at(7), at(3)));
        assert_eq!((at(5).since(at(2)), at(2).since(at(5))), (Duration::from_secs(3), Duration::ZERO));
        assert_eq!((at(5) - Duration::MAX, at(5) + Duration::MAX), (at(0), BootTime::from_boot(Duration::MAX)));
        assert_eq!(at(5).since_boot(), Duration::from_secs(5));
        let (now, clock) = (BootTime::now(), BootClock.now());
        assert!(clock.since(now) < Duration::from_secs(5) && now > at(0));
    }

    #[test]
    fn a_clock_that_is_refused_is_an_error_with_its_fix() {
        BootTime::check().unwrap();
        let error = refused(std::io::ErrorKind::PermissionDenied.into());
        assert!(!error.may_have_been_applied() && error.to_string().ends_with("have the sandbox allow clock_gettime"), "{error}");
    }

    #[tokio::test]
    async fn a_point_that_has_passed_is_not_waited_for() {
        BootClock.sleep_until(BootTime::from_boot(Duration::ZERO)).await;
    }
}
