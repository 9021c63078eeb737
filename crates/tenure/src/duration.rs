//! Durations as people write them.

use std::time::Duration;

use crate::Error;

/// Reads `500ms`, `30s`, `5m`, `1h` or `2d`; a bare or decimal number is seconds, as in `flock` and `timeout`.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) that quotes the text and names the forms.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let millis_per_unit = match unit {
        "ms" => Some(1.0),
        "" | "s" => Some(1_000.0),
        "m" => Some(60_000.0),
        "h" => Some(3_600_000.0),
        "d" => Some(86_400_000.0),
        _ => None,
    };
    let value: Option<f64> = number.parse().ok().filter(|_| number.starts_with(|c: char| c.is_ascii_digit()));
    let seconds = millis_per_unit.zip(value).map(|(unit, value)| unit * value / 1_000.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Error::invalid(format!("{text:?} is not a duration"))
            .with_hint("write 500ms, 30s, 5m, 1h or a number of seconds such as 2.5")
    })
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
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_by_name() {
        for text in ["", "s", "-1", "1x", "1 s", ".5", "1.2.3", "nan", "inf", "1e3", "5S", "99999999999999999999999999"] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
