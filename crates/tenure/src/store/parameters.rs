//! The parameters of a store URL: what stands behind its `?`.

use std::mem::replace;
use std::time::Duration;

use super::address::{decoded, unescaped};
use crate::{Error, parse_duration};

/// A parameter of a store URL. [`parameters!`](crate::parameters) makes the table of a store.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name in front of the `=`.
    pub name: &'static str,
    /// Example of its value, or a word for it.
    pub value: &'static str,
    /// Meaning, in Markdown.
    pub meaning: &'static str,
    /// Value if it is not given, in Markdown. Empty if there is nothing to say.
    pub default: &'static str,
}

/// A parameter that a URL has, with its decoded value.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Name in front of the `=`.
    pub name: &'static str,
    /// The value.
    pub text: &'a str,
    /// The value as it stands in the URL.
    pub raw: &'a str,
}

impl Given<'_> {
    /// Returns one of the values that the parameter takes, by its word.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the words that there are.
    pub fn one_of<T: Copy>(&self, known: &[(&str, T)]) -> Result<T, Error> {
        let found = known.iter().find(|(word, _)| *word == self.text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<String> = known.iter().map(|(word, _)| format!("{}={word}", self.name)).collect();
            Error::invalid(format!("{}={} of the store URL is not known", self.name, self.text))
                .with_hint(format!("write {}", words.join(" or ")))
        })
    }

    /// Reads `yes` or `no`.
    ///
    /// # Errors
    /// As [`one_of`](Given::one_of).
    pub fn is_yes(&self) -> Result<bool, Error> {
        self.one_of(&[("yes", true), ("no", false)])
    }

    /// Reads a duration.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for another text, for zero, and for more than an hour.
    pub fn duration(&self) -> Result<Duration, Error> {
        let Self { name, text, .. } = self;
        let span = parse_duration(text).map_err(|e| e.context(format_args!("the parameter {name}= of the store URL")))?;
        let why = match span {
            Duration::ZERO => "zero",
            span if span > Duration::from_secs(3_600) => "more than an hour",
            _ => return Ok(span),
        };
        Err(Error::invalid(format!("{name}={text} of the store URL is {why}")).with_hint(format!("write e.g. {name}=500ms")))
    }
}

/// Makes the table of a store's parameters, as the constant `PARAMETERS` of its options. Its
/// documentation shows the table.
///
/// A row has the name, an example of the value, the meaning, and the default. The code behind the
/// arrow sets the value. The private function `read_parameters` reads what stands behind the `?` of a
/// URL. It returns the names that are given.
///
/// ```
/// struct Options {
///     prefix: String,
/// }
///
/// tenure::parameters! {
///     for Options, read into Options:
///     "prefix" = "app:", "put in front of each name", "none" => |options, given| options.prefix = given.text.to_owned();
/// }
///
/// let mut options = Options { prefix: String::new() };
/// assert_eq!(Options::read_parameters(&mut options, "prefix=a%20b")?, ["prefix"]);
/// assert_eq!(options.prefix, "a b");
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `read_parameters` returns [`Invalid`](crate::ErrorKind::Invalid) for a parameter that is unknown or
/// given twice, for a value that is not UTF-8, and for what a row refuses. If the text has an `@`, it may
/// be the rest of a password, and the error shows nothing of it.
#[macro_export]
macro_rules! parameters {
    (
        for $options:ty, read into $settings:ty:
        $($name:literal = $value:literal, $meaning:literal, $default:literal => |$into:ident, $given:ident| $set:expr;)+
    ) => {
        impl $options {
            /// Parameters of the store URL.
            ///
            /// | parameter | meaning | default |
            /// |---|---|---|
            $(#[doc = concat!("| `", $name, "=", $value, "` | ", $meaning, " | ", $default, " |")])+
            #[allow(unreachable_pub, reason = "the options may be private")]
            pub const PARAMETERS: &'static [$crate::store::Parameter] =
                &[$($crate::store::Parameter { name: $name, value: $value, meaning: $meaning, default: $default }),+];

            fn read_parameters(settings: &mut $settings, text: &str) -> Result<Vec<&'static str>, $crate::Error> {
                const SET: &[fn(&mut $settings, &$crate::store::Given<'_>) -> Result<(), $crate::Error>] = &[$(
                    |$into, $given| {
                        $set;
                        Ok(())
                    }
                ),+];
                $crate::store::read_parameters(text, Self::PARAMETERS, &mut |at, given| SET[at](settings, given))
            }
        }
    };
}

/// Sets the parameter at an index of the table.
type Set<'a> = &'a mut dyn FnMut(usize, &Given<'_>) -> Result<(), Error>;

/// Reads the parameters of a URL by a table.
#[doc(hidden)]
pub fn read_parameters(text: &str, table: &[Parameter], set: Set<'_>) -> Result<Vec<&'static str>, Error> {
    let read = read_each(text, table, set);
    if text.contains('@') { read.map_err(|_| unescaped("an @")) } else { read }
}

fn read_each(text: &str, table: &[Parameter], set: Set<'_>) -> Result<Vec<&'static str>, Error> {
    let mut seen = Vec::new();
    for parameter in text.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, raw) = parameter.split_once('=').unwrap_or((parameter, ""));
        let at = table.iter().position(|known| known.name == key).ok_or_else(|| unknown(key, table))?;
        let name = table[at].name;
        if seen.contains(&name) {
            return Err(Error::invalid(format!("{name}= is given twice in the store URL")).with_hint("give it once"));
        }
        seen.push(name);
        set(at, &Given { name, text: &decoded(&format!("{name}="), raw)?, raw })?;
    }
    Ok(seen)
}

fn unknown(key: &str, table: &[Parameter]) -> Error {
    let near = table.iter().map(|known| (distance(key, known.name), known.name)).min().filter(|(distance, _)| *distance < 3);
    let near = near.map(|(_, name)| format!("did you mean {name}=? ")).unwrap_or_default();
    let known: Vec<&str> = table.iter().map(|known| known.name).collect();
    Error::invalid(format!("{key}= is no parameter of this store URL")).with_hint(format!("{near}known are {}", known.join(", ")))
}

/// How many bytes have to be added, left out or changed (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut before = replace(&mut row[0], i + 1);
        for (j, b) in to.bytes().enumerate() {
            let least = (before + usize::from(a != b)).min(row[j] + 1).min(row[j + 1] + 1);
            before = replace(&mut row[j + 1], least);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Options;

    crate::parameters! {
        for Options, read into Vec<Duration>:
        "timeout" = "500ms", "how long one call may take", "1 s" => |spans, given| spans.push(given.duration()?);
        "tls" = "yes", "connects with TLS", "" => |spans, given| if given.is_yes()? { spans.clear() };
    }

    #[test]
    fn what_is_wrong_is_named_with_its_fix() {
        for (text, message) in [
            ("time=1s", "time= is no parameter of this store URL; known are timeout, tls"),
            ("&tsl=yes", "tsl= is no parameter of this store URL; did you mean tls=? known are timeout, tls"),
            ("timeout=1s&timeout=1s", "timeout= is given twice in the store URL; give it once"),
            ("timeout=0", "timeout=0 of the store URL is zero; write e.g. timeout=500ms"),
            ("timeout=2h", "timeout=2h of the store URL is more than an hour; write e.g. timeout=500ms"),
            ("tls=maybe", "tls=maybe of the store URL is not known; write tls=yes or tls=no"),
            ("tls=%ff", "tls= of the store URL is not UTF-8"),
        ] {
            assert_eq!(Options::read_parameters(&mut Vec::new(), text).unwrap_err().to_string(), message);
        }
        for (text, words) in
            [("timeout=soon", "parameter timeout= of the store URL: \"soon\" is not"), ("s3cret@h", "an @ too many")]
        {
            let error = Options::read_parameters(&mut Vec::new(), text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("s3c"), "{error}");
        }
    }
}
