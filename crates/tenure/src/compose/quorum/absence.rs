//! How long a node that has lost its data has waited, and has to.
//!
//! Its own clock cannot be trusted, because a machine may boot with a clock that is behind and is set right later. The clocks of a
//! majority of the nodes measure the wait, and no minority can change what they say. A client notes at the node what they said,
//! and the next client, maybe in another process, sees from the note how much time has passed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How long after its loss is found a node asks the others: what is under way has arrived there by then.
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// How long after its beginning a call about a lease may be answered. A later answer does not count, because the node may
/// have told another one already what it knew before.
pub(super) const COUNTS: Duration = Duration::from_millis(2_500);

/// How long a node stays out if all nodes of its quorum are new.
pub(super) const NEW: Duration = Duration::from_secs(30);

/// How long a node stays out if too few others know when leases end, or answer at all.
pub(super) const LONGEST: Duration = Duration::from_secs(3_600);

/// Time of the wall clock of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Identifies the run of the node, without a space. The clock of a new run is another clock.
    pub run: String,
    /// Time since the Unix epoch.
    pub time: Duration,
}

/// The note at a node about its loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// How long it has to wait. None until the others were asked.
    pub(super) wait: Option<Duration>,
    /// Nobody knew when the last lease ends, so that is a guess.
    pub(super) is_guess: bool,
    /// How long it had waited when this was noted: since its loss was found, or since the others were asked.
    pub(super) waited: Duration,
    /// How far it has to count on from, as the others knew when they were asked.
    pub(super) counter: u64,
    /// Times of the nodes' clocks then.
    pub(super) clocks: BTreeMap<String, Duration>,
}

impl Noted {
    /// The same with the times of these clocks.
    pub(super) fn at(self, clocks: &[Clock]) -> Self {
        Self { clocks: clocks.iter().map(|clock| (clock.run.clone(), clock.time)).collect(), ..self }
    }

    /// Reads what its [`Display`](fmt::Display) has written. What nobody of ours has written says nothing.
    pub(super) fn read(note: &str) -> Self {
        let span = |digits: &str| digits.parse().ok().map(Duration::from_millis);
        let mut words = note.split(' ');
        let wait = words.next().unwrap_or_default();
        let (wait, is_guess) = (span(wait.trim_end_matches('?')), wait.ends_with('?'));
        let waited = words.next().and_then(span).unwrap_or_default();
        let counter = words.next().and_then(|digits| digits.parse().ok()).unwrap_or_default();
        let clocks = words.filter_map(|word| word.split_once('=')).filter_map(|(run, time)| Some((run.to_owned(), span(time)?)));
        Self { wait, is_guess, waited, counter, clocks: clocks.collect() }
    }

    /// Returns whether the note tells the end of no lease from before.
    pub(super) fn knows_no_end(&self) -> bool {
        self.is_guess || self.wait.is_none_or(|wait| wait.is_zero())
    }

    /// Time since this was noted, by one clock. None if it was not noted, or has been set back.
    pub(super) fn since(&self, clock: &Clock) -> Option<Duration> {
        clock.time.checked_sub(*self.clocks.get(&clock.run)?)
    }

    /// Time since this was noted which `need` of these clocks measured at least.
    pub(super) fn passed(&self, clocks: impl IntoIterator<Item = Clock>, need: usize) -> Duration {
        let mut spans: Vec<Duration> = clocks.into_iter().filter_map(|clock| self.since(&clock)).collect();
        spans.sort_unstable_by_key(|span| std::cmp::Reverse(*span));
        spans.get(need - 1).copied().unwrap_or_default()
    }

    /// Whether all of these clocks are noted, and none has been set back since.
    pub(super) fn knows(&self, clocks: &[Clock]) -> bool {
        clocks.iter().all(|clock| self.since(clock).is_some())
    }
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wait {
            Some(wait) => write!(f, "{}{}", wait.as_millis(), if self.is_guess { "?" } else { "" })?,
            None => f.write_str("-")?,
        }
        write!(f, " {} {}", self.waited.as_millis(), self.counter)?;
        self.clocks.iter().try_for_each(|(run, time)| write!(f, " {run}={}", time.as_millis()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks<const N: usize>(said: [(&str, u64); N]) -> Vec<Clock> {
        said.map(|(run, secs)| Clock { run: run.to_owned(), time: Duration::from_secs(secs) }).into()
    }

    #[test]
    fn no_minority_of_the_clocks_says_how_much_time_has_passed() {
        let noted = Noted { counter: 7, ..Noted::default() }.at(&clocks([("a", 100), ("b", 200), ("c", 300)]));
        assert_eq!(Noted::read(&noted.to_string()), noted);
        for (now, secs) in [
            (clocks([("a", 105), ("b", 205), ("c", 305)]), 5),
            // One was set, forward or back, or is another run's.
            (clocks([("a", 9_000), ("b", 205), ("c", 304)]), 5),
            (clocks([("a", 0), ("b", 205), ("c", 304)]), 4),
            (clocks([("a'", 9_000), ("b", 205), ("c", 304)]), 4),
            // One only is left.
            (clocks([("a", 105), ("b'", 205), ("c'", 304)]), 0),
        ] {
            assert_eq!(noted.passed(now.clone(), 2), Duration::from_secs(secs), "{now:?}");
        }
        assert!(noted.knows(&clocks([("a", 105), ("c", 300)])));
        assert!(!noted.knows(&clocks([("a", 99)])), "it was set back, and measures nothing until it is noted anew");
    }

    #[test]
    fn what_nobody_of_ours_has_noted_says_nothing() {
        for note in ["", "x", "- x y a b=c"] {
            assert_eq!(Noted::read(note), Noted::default(), "{note}");
        }
    }
}
