//! The clock of a server, as far as a connection has seen it.
//!
//! memcached shows whole seconds of its monotonic clock, counted from the wall clock at which it was
//! started. A timer of its own moves them on, once a second and a little late each time. So the time
//! that it shows is up to two seconds behind, and now and then it skips a second. After the server
//! was stopped, it may show the old time for a moment.
//!
//! All ends of leases are points on this clock. A point is due when the server shows it.

use std::time::Duration;

use tenure::BootTime;

/// How far the shown time may be behind, with a quarter of a second for a timer that is late.
pub(crate) const BEHIND: Duration = Duration::from_millis(2_250);
/// How far it is behind right after it has moved on, at most.
const BEHIND_AT_BEST: Duration = Duration::from_secs(1);
/// A time that was read this long ago is read again, because no two clocks are equally fast.
const FRESH: Duration = Duration::from_secs(60);
/// 2026-01-01 in Unix seconds.
const EPOCH: u64 = 1_767_225_600;

/// One reading.
#[derive(Clone, Copy, Debug)]
struct Reading {
    shown: Duration,
    sent_at: BootTime,
    heard_at: BootTime,
}

/// The server's time as one connection knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    /// Counter of a grant whose item has version 0: the start of the server in microseconds.
    start: u64,
    last: Reading,
    /// The reading that was the least behind.
    best: Reading,
}

/// The time at which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Time that the server shows. All that ends then or before has ended.
    pub(crate) shown: Duration,
    /// Added to each span that begins now, because the shown time may be behind.
    pub(crate) pad: Duration,
}

impl ServerClock {
    /// From the statistics of the server: its time and for how long it has run.
    pub(crate) fn new(time: u64, uptime: u64, sent_at: BootTime, heard_at: BootTime) -> Self {
        let start = time.saturating_sub(uptime).saturating_sub(EPOCH).saturating_mul(1_000_000);
        let reading = Reading { shown: Duration::from_secs(time), sent_at, heard_at };
        Self { start, last: reading, best: reading }
    }

    /// Number of the grant that gave an item this version.
    ///
    /// Versions rise with each write of one life of the server. A later life starts at a later
    /// microsecond than any version of an earlier one reaches, below a million writes a second.
    pub(crate) fn counter(&self, version: u64) -> u64 {
        self.start.saturating_add(version)
    }

    /// Notes a time that the server has shown.
    pub(crate) fn saw(&mut self, shown: Duration, sent_at: BootTime, heard_at: BootTime) {
        let reading = Reading { shown, sent_at, heard_at };
        let behind = self.at_least(heard_at).saturating_sub(shown);
        if behind.is_zero() || (behind <= BEHIND && heard_at.since(self.best.heard_at) > FRESH) {
            self.best = reading;
        }
        if sent_at >= self.last.sent_at {
            self.last = reading;
        }
    }

    /// Begins anew with a time that the server has reported after a long silence.
    pub(crate) fn renew(&mut self, time: u64, sent_at: BootTime, heard_at: BootTime) {
        let reading = Reading { shown: Duration::from_secs(time), sent_at, heard_at };
        (self.last, self.best) = (reading, reading);
    }

    /// Whether the last reading is too old to count from.
    pub(crate) fn is_stale(&self, now: BootTime) -> bool {
        now.since(self.last.sent_at) > FRESH
    }

    /// The time of a command that is sent now, without a reading of its own. A span from here may
    /// be too long by the time that an answer takes, and never too short.
    pub(crate) fn estimate(&self, now: BootTime) -> Now {
        Now { shown: self.last.shown + now.since(self.last.sent_at), pad: BEHIND }
    }

    /// The time of a command that was sent after this one was answered, where the server showed
    /// this time.
    pub(crate) fn reading(&self, shown: Duration, sent_at: BootTime) -> Now {
        let behind = self.at_least(sent_at).saturating_sub(shown);
        Now { shown, pad: BEHIND.max(behind + BEHIND_AT_BEST) }
    }

    /// The server's clock has come at least this far.
    fn at_least(&self, now: BootTime) -> Duration {
        self.best.shown + now.since(self.best.heard_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime::from_boot(Duration::from_millis(ms))
    }

    fn secs(secs: f64) -> Duration {
        Duration::from_secs_f64(secs)
    }

    #[test]
    fn a_healthy_clock_is_at_most_two_seconds_behind() {
        let mut clock = ServerClock::new(1_000, 10, at(5_000), at(5_001));
        for (ms, shown) in [(5_990, 1_000.0), (6_010, 1_001.0), (6_990, 1_001.0), (7_000, 1_002.0)] {
            clock.saw(secs(shown), at(ms), at(ms + 1));
            assert_eq!(clock.reading(secs(shown), at(ms)), Now { shown: secs(shown), pad: BEHIND });
        }
        assert_eq!(clock.estimate(at(8_500)).shown, secs(1_003.5));
    }

    #[test]
    fn a_clock_that_stood_still_makes_leases_longer() {
        let mut clock = ServerClock::new(1_000, 10, at(5_000), at(5_000));
        clock.saw(secs(1_001.0), at(6_000), at(6_000));
        // Stopped for ten seconds, and asked before it has looked at its own clock.
        let now = clock.reading(secs(1_001.0), at(16_000));
        assert_eq!(now.pad, secs(11.0));
        // What was seen meanwhile is not taken for the better reading.
        clock.saw(secs(1_001.0), at(16_000), at(16_000));
        assert_eq!(clock.reading(secs(1_001.0), at(16_000)).pad, secs(11.0));
        clock.saw(secs(1_011.0), at(16_001), at(16_001));
        assert_eq!(clock.reading(secs(1_011.0), at(16_002)).pad, BEHIND);
    }

    #[test]
    fn an_old_reading_is_stale() {
        let clock = ServerClock::new(1_000, 10, at(5_000), at(5_000));
        assert!(!clock.is_stale(at(65_000)) && clock.is_stale(at(65_001)));
    }

    #[test]
    fn a_later_life_counts_on() {
        let first = ServerClock::new(EPOCH + 100, 40, at(0), at(0));
        let second = ServerClock::new(EPOCH + 200, 1, at(0), at(0));
        assert_eq!(first.counter(7), 60_000_007);
        assert!(second.counter(1) > first.counter(1_000_000));
    }
}
