//! Reports of an outage: at once, again at growing intervals, and of its end.

use std::fmt;
use std::time::Duration;

use tenure::{BootTime, format_duration};

/// Time until an outage is reported again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// The outage of now, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Outage(Option<Told>);

#[derive(Debug)]
struct Told {
    since: BootTime,
    /// The reasons that were reported since the outage began.
    known: Vec<String>,
    pause: Duration,
    next: BootTime,
}

impl Outage {
    /// Notes a failure. Returns how long the outage has lasted if the reason was not reported yet, or
    /// another report is due.
    pub(crate) fn failed(&mut self, why: &str, now: BootTime) -> Option<Lasting> {
        let begin = || Told { since: now, known: Vec::new(), pause: AGAIN.0, next: now + AGAIN.0 };
        let told = self.0.get_or_insert_with(begin);
        // Times that are left change with each answer.
        let reason = why.replace(|c: char| c.is_ascii_digit(), "");
        if !told.known.contains(&reason) {
            told.known.push(reason);
        } else if now >= told.next {
            told.pause = (told.pause * 2).min(AGAIN.1);
            told.next = now + told.pause;
        } else {
            return None;
        }
        Some(Lasting(now.since(told.since)))
    }

    /// Notes that the store serves us. Whether there was an outage.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.take().is_some()
    }
}

/// Time that an outage has lasted, as words behind others. Nothing at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lasting(Duration);

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => Ok(()),
            seconds => write!(f, " for {}", format_duration(Duration::from_secs(seconds))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_again_ever_more_rarely_and_a_new_reason_at_once() {
        let (mut outage, mut told) = (Outage::default(), Vec::new());
        for second in 0..3_600 {
            // Two reasons in turn, of which one has a number in it.
            let why = if second % 2 == 0 { format!("{second} s are left") } else { "no connection".to_owned() };
            if outage.failed(&why, BootTime::from_boot(Duration::from_secs(second))).is_some() {
                told.push(second);
            }
        }
        assert_eq!(told, [0, 1, 5, 15, 35, 75, 155, 315, 635, 1_235, 1_835, 2_435, 3_035]);
        let now = BootTime::from_boot(Duration::from_secs(3_600));
        assert_eq!(outage.failed("read-only", now).map(|lasting| lasting.to_string()), Some(" for 1h".to_owned()));
        assert!(outage.is_over() && !outage.is_over());
    }
}
