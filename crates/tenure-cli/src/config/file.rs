//! The config file.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Owner, parse_duration};
use toml::{Table, Value};

use super::password::{Password, Secret, absolute};
use crate::exit::{CONFIG, Failure};

/// The keys of a config file.
const KEYS: [&str; 8] = ["store", "username", "password", "password_file", "ttl", "wait", "kill_after", "label"];

/// The content of a config file.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Where it is, whether it is there or not.
    pub(super) path: PathBuf,
    pub(super) store: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Password>,
    pub(super) ttl: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) kill_after: Option<Duration>,
    pub(super) label: Option<String>,
}

impl File {
    /// Reads the file; one that does not exist says nothing.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Self { path: path.to_owned(), ..Self::default() });
            }
            Err(error) => {
                let what = format!("the config file {} cannot be read, {error}; mend or remove it", path.display());
                return Err(Failure::new(CONFIG, what));
            }
        };
        let file = Self::parse(&text).map(|file| Self { path: path.to_owned(), ..file });
        file.map_err(|why| Failure::new(CONFIG, format!("the config file {}: {why}", path.display())))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error| not_toml(text, &error))?;
        let mut file = Self::default();
        for (key, value) in table {
            match key.as_str() {
                "store" => file.store = Some(string(&key, value)?),
                "username" => file.username = Some(string(&key, value)?),
                "password" => file.password = Some(Password::Here(Secret(string(&key, value)?))),
                "password_file" => {
                    let path = absolute(string(&key, value)?);
                    file.password = Some(Password::File { path, named_by: "password_file in the config file" });
                }
                "ttl" => file.ttl = Some(span(&key, &value)?),
                "wait" => file.wait = Some(span(&key, &value)?),
                "kill_after" => file.kill_after = Some(span(&key, &value)?),
                "label" => file.label = Some(label(string(&key, value)?)?),
                _ => {
                    return Err(format!("unknown key {key}; it may have {}", KEYS.join(", ")));
                }
            }
        }
        Ok(file)
    }
}

fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    // The line itself is not shown: it may be the one with the password.
    format!("line {} is not TOML, {}; write key = \"value\"", before.matches('\n').count() + 1, error.message())
}

fn string(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => Err(format!("{key} is empty; remove it or give it a value")),
        other => Err(format!("{key} is of type {}, not a string; put it in quotes", other.type_str())),
    }
}

/// A label that can be part of an owner.
fn label(label: String) -> Result<String, String> {
    Owner::generate(&label).map_err(|error| error.to_string())?;
    Ok(label)
}

fn span(key: &str, value: &Value) -> Result<Duration, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(seconds) => seconds.to_string(),
        Value::Float(seconds) => seconds.to_string(),
        other => return Err(format!("{key} is of type {}, not a duration; write e.g. \"30s\"", other.type_str())),
    };
    parse_duration(&text).map_err(|why| format!("{key}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read() {
        let file = File::parse("store = \"redis://h\"\nttl = \"1m\"\nwait = 2\nkill_after = 0.5\nlabel = \"web\"").unwrap();
        assert_eq!(file.store.as_deref(), Some("redis://h"));
        assert_eq!(file.ttl, Some(Duration::from_secs(60)));
        assert_eq!(file.wait, Some(Duration::from_secs(2)));
        assert_eq!(file.kill_after, Some(Duration::from_millis(500)));
        assert_eq!(file.label.as_deref(), Some("web"));
    }

    #[test]
    fn the_help_has_every_key() {
        let help = include_str!("../help/config.txt");
        for key in KEYS {
            assert!(help.contains(&format!("\n  {key} = ")), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let table = [
            ("stor = 1", "unknown key stor"),
            ("store = 1", "store is of type integer"),
            ("ttl = \"soon\"", "ttl: \"soon\""),
            ("ttl = -1", "ttl: \"-1\""),
            ("label = \"\"", "label is empty"),
            ("a = 1\nb = [", "line 2 is not TOML"),
        ];
        for (text, why) in table {
            let error = File::parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_broken_line_with_a_password_is_not_shown() {
        let error = File::parse("password = \"s3cret\nx").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
