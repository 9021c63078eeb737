//! Durations as people write them.

mod parse;

use std::time::Duration;

pub use self::parse::parse_duration;

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
