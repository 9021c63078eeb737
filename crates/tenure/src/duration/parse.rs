//! Reads a duration.

use std::time::Duration;

use crate::Error;

/// Reads `500ms`, `30s`, `5m`, `1h`, `2d` or several of them, as in `1m30s`. A bare or decimal
/// number is seconds, as in `flock` and `timeout`. Reads what [`format_duration`](crate::format_duration) writes.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid), with the text and the valid forms.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let seconds = text.parse::<f64>().ok().filter(|_| is_number(text)).or_else(|| sum_of_parts(text));
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Error::invalid(format!("{text:?} is not a duration"))
            .with_hint("write 500ms, 30s, 5m, 1h, 1m30s or a number of seconds such as 2.5")
    })
}

/// Units from the largest to the smallest, in seconds. `ms` stands before `m`, which it begins
/// with.
const UNITS: [(&str, f64); 5] = [("d", 86_400.0), ("h", 3_600.0), ("ms", 0.001), ("m", 60.0), ("s", 1.0)];

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// Sums numbers with units, in seconds. Each unit must be smaller than the one before.
fn sum_of_parts(text: &str) -> Option<f64> {
    let (mut rest, mut sum, mut last) = (text, 0.0, f64::INFINITY);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, seconds) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        if !is_number(number) || seconds >= last {
            return None;
        }
        sum += seconds * number.parse::<f64>().ok()?;
        (rest, last) = (&after[unit.len()..], seconds);
    }
    (!text.is_empty()).then_some(sum)
}
