//! Durations as people write them.

use std::time::Duration;

use crate::Error;

/// Reads `500ms`, `30s`, `5m`, `1h`, `2d` or several of them, as in `1m30s`. A bare or decimal
/// number is seconds, as in `flock` and `timeout`. Reads what [`format_duration`] writes.
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

/// Writes a duration for people, without its irrelevant digits: `250ms`, `1.5s`, `1m30s`, `2h05m`,
/// `1d03h`.
pub fn format_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    let both = |large: u64, unit: char, small: u64, part: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small:02}{part}"),
    };
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => match span.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        60..3_600 => both(seconds / 60, 'm', seconds % 60, 's'),
        3_600..86_400 => both(seconds / 3_600, 'h', seconds / 60 % 60, 'm'),
        _ => both(seconds / 86_400, 'd', seconds / 3_600 % 24, 'h'),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("30", 30_000),
            ("2.5", 2_500),
            ("0", 0),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1m30s", 90_000),
            ("1m00s", 60_000),
            ("1h01m", 3_660_000),
            ("1d01h", 90_000_000),
            ("1s500ms", 1_500),
            ("1.5m", 90_000),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_by_name() {
        for text in [
            "",
            "s",
            "-1",
            "1x",
            "1 s",
            ".5",
            "1.2.3",
            "nan",
            "inf",
            "1e3",
            "5S",
            "1s1m",
            "1m1m",
            "1m30",
            "1m.5s",
            "m",
            "99999999999999999999999999",
        ] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let table = [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_500, "1.5s"),
            (30_000, "30s"),
            (59_999, "59.9s"),
            (60_000, "1m"),
            (61_000, "1m01s"),
            (3_700_000, "1h01m"),
            (86_400_000, "1d"),
            (90_000_000, "1d01h"),
        ];
        for (millis, text) in table {
            let span = Duration::from_millis(millis);
            assert_eq!(format_duration(span), text);
            let read = parse_duration(text).unwrap();
            assert!(read <= span && format_duration(read) == text, "{text} is read as {read:?}");
        }
        assert_eq!(format_duration(Duration::from_nanos(226_333_334)), "226ms");
    }
}
