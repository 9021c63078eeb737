//! The clock of a server, as far as a connection has seen it.
//!
//! memcached shows whole seconds of its monotonic clock, counted from the wall clock at which it was
//! started. A timer of its own moves them on, once a second and a little late each time. So the time
//! that it shows is up to two seconds behind, and now and then it skips a second. After the server
//! was stopped, it may show the old time for a moment.
//!
//! All ends of leases are points on this clock. A point is due when the server shows it.
//!
//! The server counts no time for which its machine slept, and a client none for which its own was paused. So
//! the server may turn out to be behind or ahead of what was reckoned. A time that is ahead counts at
//! once. One that is behind counts when it has been seen to go on.

use std::time::Duration;

use tenure::BootTime;

/// How far the shown time may be behind, with a quarter of a second for a timer that is late.
pub(crate) const BEHIND: Duration = Duration::from_millis(2_250);
/// A time that was read this long ago is read again, because no two clocks are equally fast.
const FRESH: Duration = Duration::from_secs(60);
/// How far a time that an item shows may be off what the reading before leads to expect: as far as any reading, and
/// further by how unequally fast two clocks are.
const OFF: Duration = Duration::from_secs(3);
/// Latest time that servers read: they count in 31 bits.
pub(crate) const LATEST: u64 = (1 << 31) - 1;
/// 2026-01-01 in Unix seconds.
pub(crate) const EPOCH: u64 = 1_767_225_600;

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
    /// From the statistics of the server: its time and for how long it has run. `None` if no leases can be
    /// counted by such a clock, or no fences.
    pub(crate) fn new(time: u64, uptime: u64, sent_at: BootTime, heard_at: BootTime) -> Option<Self> {
        let started_at = time.checked_sub(uptime)?.checked_sub(EPOCH)?;
        (time < LATEST).then(|| Self::started(started_at * 1_000_000, time, sent_at, heard_at))
    }

    /// A clock of which nothing is known.
    pub(crate) fn unread(now: BootTime) -> Self {
        Self::started(0, EPOCH, now, now)
    }

    fn started(start: u64, time: u64, sent_at: BootTime, heard_at: BootTime) -> Self {
        let reading = Reading { shown: Duration::from_secs(time), sent_at, heard_at };
        Self { start, last: reading, best: reading }
    }

    /// Whether both are of one life of a server.
    pub(crate) fn is_of_the_life_of(&self, other: &Self) -> bool {
        self.start == other.start
    }

    /// Number of the grant that gave an item this version.
    ///
    /// Versions rise with each write of one life of the server. A later life starts at a later
    /// microsecond than any version of an earlier one reaches, below a million writes a second.
    pub(crate) fn counter(&self, version: u64) -> u64 {
        self.start.saturating_add(version)
    }

    /// Counts on from what an earlier connection saw of the same life of the server.
    ///
    /// A server that was stopped shows the old time for a moment, on a new connection as well.
    pub(crate) fn after(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(mut clock) if clock.is_of_the_life_of(&self) => {
                clock.saw(self.last.shown, self.last.sent_at, self.last.heard_at);
                clock
            }
            _ => self,
        }
    }

    /// Notes a time that the server has shown.
    pub(crate) fn saw(&mut self, shown: Duration, sent_at: BootTime, heard_at: BootTime) {
        let reading = Reading { shown, sent_at, heard_at };
        let behind = self.behind(reading);
        let is_old = heard_at.since(self.best.heard_at) > FRESH;
        if behind.is_zero() || (behind <= BEHIND && is_old) || self.moved_on(reading) {
            self.best = reading;
        }
        if sent_at >= self.last.sent_at {
            self.last = reading;
        }
    }

    /// Whether the time that an item shows can be right. An item shows another if somebody has changed how long it
    /// lives (`touch`): the end that stands in it is not that of the server then.
    pub(crate) fn fits(&self, shown: Duration, sent_at: BootTime) -> bool {
        (self.last.shown + sent_at.since(self.last.sent_at)).abs_diff(shown) <= OFF
    }

    /// Whether the server showed a time that it must have passed long ago. Either it was stopped, and will see, or its
    /// machine slept.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind(self.last) > BEHIND
    }

    /// Whether it is too long ago that the clock was known to be right.
    pub(crate) fn is_stale(&self, now: BootTime) -> bool {
        now.since(self.last.sent_at) > FRESH || now.since(self.best.heard_at) > FRESH
    }

    /// The time of a command that is sent now, without a reading of its own. A span from here may
    /// be too long by the time that an answer takes, and never too short.
    pub(crate) fn estimate(&self, now: BootTime) -> Now {
        Now { shown: (self.last.shown + now.since(self.last.sent_at)).max(self.at_least(now)), pad: BEHIND }
    }

    /// The time of a command that was sent after this one was answered, where the server showed
    /// this time.
    pub(crate) fn reading(&self, shown: Duration, sent_at: BootTime) -> Now {
        Now { shown, pad: self.at_least(sent_at).saturating_sub(shown) + BEHIND }
    }

    /// The server's clock has come at least this far, shown or not.
    fn at_least(&self, now: BootTime) -> Duration {
        self.best.shown + now.since(self.best.heard_at)
    }

    fn behind(&self, reading: Reading) -> Duration {
        self.at_least(reading.heard_at).saturating_sub(reading.shown)
    }

    /// Whether the server looked at its own clock between two readings that are both behind. It did not
    /// stand still then: the machine slept, which no clock of the server counts.
    fn moved_on(&self, reading: Reading) -> bool {
        self.is_behind() && reading.shown > self.last.shown && reading.sent_at.since(self.last.heard_at) <= BEHIND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime::from_boot(Duration::from_millis(ms))
    }

    /// That of a server which was started 10 s before it showed a time.
    fn clock_at(shown: f64, ms: u64) -> ServerClock {
        ServerClock::new(since(shown).as_secs(), 10, at(ms), at(ms)).unwrap()
    }

    /// A time after the epoch.
    fn since(shown: f64) -> Duration {
        Duration::from_secs(EPOCH) + secs(shown)
    }

    fn secs(secs: f64) -> Duration {
        Duration::from_secs_f64(secs)
    }

    #[test]
    fn a_healthy_clock_is_at_most_two_seconds_behind() {
        let mut clock = clock_at(1_000.0, 5_000);
        for (ms, shown) in [(5_990, 1_000.0), (6_010, 1_001.0), (6_990, 1_001.0), (7_000, 1_002.0)] {
            clock.saw(since(shown), at(ms), at(ms + 1));
            let pad = clock.reading(since(shown), at(ms)).pad;
            assert!((BEHIND..=BEHIND + secs(1.0)).contains(&pad), "{pad:?}");
        }
        assert_eq!(clock.estimate(at(8_500)).shown, since(1_003.5));
    }

    #[test]
    fn a_clock_that_stood_still_makes_leases_longer() {
        let mut clock = clock_at(1_000.0, 5_000);
        clock.saw(since(1_001.0), at(6_000), at(6_000));
        // Stopped for ten seconds, and asked before it has looked at its own clock.
        let now = clock.reading(since(1_001.0), at(16_000));
        assert_eq!(now.pad, secs(10.0) + BEHIND);
        // A reading that was made meanwhile is not taken for a better one, and no span begins there.
        clock.saw(since(1_001.0), at(16_000), at(16_000));
        assert_eq!(clock.reading(since(1_001.0), at(16_000)).pad, secs(10.0) + BEHIND);
        assert_eq!(clock.estimate(at(16_000)), Now { shown: since(1_011.0), pad: BEHIND });
        clock.saw(since(1_011.0), at(16_001), at(16_001));
        assert_eq!(clock.reading(since(1_011.0), at(16_001)).pad, BEHIND);
    }

    #[test]
    fn a_new_connection_knows_that_the_clock_stood_still() {
        let before = clock_at(1_000.0, 5_000);
        // Asked after a long silence, on another connection, and shown the old time.
        let clock = clock_at(1_000.0, 105_000).after(Some(before));
        assert_eq!(clock.estimate(at(105_000)).shown, since(1_100.0));
        assert_eq!(clock.reading(since(1_000.0), at(105_000)).pad, secs(100.0) + BEHIND);
        assert!(clock.is_stale(at(105_000)), "it is asked again");
        // Another life has another clock.
        let restarted = clock_at(900.0, 105_000).after(Some(before));
        assert_eq!(restarted.estimate(at(105_000)).shown, since(900.0));
    }

    #[test]
    fn a_clock_that_is_slower_counts_once_it_moves() {
        let mut clock = clock_at(1_000.0, 5_000);
        // The server's machine slept for a minute and a half.
        clock.saw(since(1_010.0), at(105_000), at(105_000));
        assert!(clock.is_stale(at(105_000)));
        clock.saw(since(1_011.0), at(105_600), at(105_600));
        assert!(!clock.is_stale(at(105_600)));
        assert_eq!(clock.reading(since(1_011.0), at(105_600)).pad, BEHIND);
    }

    #[test]
    fn an_old_reading_is_stale() {
        let mut clock = clock_at(1_000.0, 5_000);
        assert!(!clock.is_stale(at(65_000)) && clock.is_stale(at(65_001)));
        // A late reading that is a second behind, as a healthy one may be.
        clock.saw(since(1_060.0), at(66_000), at(66_000));
        assert!(!clock.is_stale(at(66_000)));
    }

    #[test]
    fn a_later_life_counts_on() {
        let first = ServerClock::new(EPOCH + 100, 40, at(0), at(0)).unwrap();
        let second = ServerClock::new(EPOCH + 200, 1, at(0), at(0)).unwrap();
        assert_eq!(first.counter(7), 60_000_007);
        assert!(second.counter(1) > first.counter(1_000_000));
    }

    #[test]
    fn a_time_that_is_far_off_does_not_fit() {
        let clock = clock_at(1_000.0, 5_000);
        for (shown, fits) in [(998.0, true), (1_003.0, true), (996.0, false), (1_004.0, false), (4_600.0, false)] {
            assert_eq!(clock.fits(since(shown), at(5_000)), fits, "{shown}");
        }
        assert!(clock.fits(since(1_040.0), at(45_000)) && !clock.fits(since(1_000.0), at(45_000)));
    }

    #[test]
    fn clocks_that_nothing_can_be_counted_by_are_refused() {
        let is_read = |time, uptime| ServerClock::new(time, uptime, at(0), at(0)).is_some();
        assert!(is_read(EPOCH, 0) && is_read(LATEST - 1, 5));
        assert!(!is_read(EPOCH, 1) && !is_read(LATEST, 5) && !is_read(u64::MAX, 1) && !is_read(1, 2));
    }
}
