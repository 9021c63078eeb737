//! The shortest hold of a lease that is left to others.
//!
//! Another process releases it, perhaps on another machine, and has nothing but the token. So the
//! token says it, in its label.

use std::time::Duration;

use tenure::{Owner, parse_duration};

const MARK: &str = "+hold";

/// The label with the shortest hold behind it.
pub(crate) fn note(label: &str, min: Duration) -> String {
    format!("{label}{MARK}{}ms", min.as_millis())
}

/// The shortest hold that a token says.
pub(crate) fn of(owner: &Owner) -> Option<Duration> {
    parts(owner.label()?).map(|(_, min)| min)
}

/// The label without it, for people.
pub(crate) fn without(label: &str) -> &str {
    parts(label).map_or(label, |(label, _)| label)
}

fn parts(label: &str) -> Option<(&str, Duration)> {
    let (label, min) = label.rsplit_once(MARK)?;
    Some((label, parse_duration(min).ok().filter(|_| min.ends_with("ms"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_label_notes_is_read_from_the_token() {
        let min = Duration::from_millis(90_500);
        for label in ["web.42", "", "a+hold", "a+hold5ms"] {
            let noted = note(label, min);
            assert_eq!((of(&Owner::generate(&noted).unwrap()), without(&noted)), (Some(min), label));
        }
        for label in ["web.42", "+hold", "+holdms", "a+hold5s", "a+holdx"] {
            assert_eq!((of(&Owner::generate(label).unwrap()), without(label)), (None, label));
        }
        assert_eq!(of(&Owner::from_bytes(*b"1")), None);
    }
}
