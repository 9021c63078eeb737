//! The parameters of a store URL that are the same for every database.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tenure::{Error, parse_duration};

use super::Terms;

/// Settings of a table, as the parameters of a URL give them.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a parameter of its own")]
pub(crate) struct Settings {
    /// The table, behind its schema if there is one.
    pub(crate) table: Vec<String>,
    pub(crate) create: bool,
    pub(crate) listen: bool,
    pub(crate) terms: Terms,
    pub(crate) security: Option<Security>,
    pub(crate) files: Files,
    /// All clients write through one server, whatever it is part of.
    pub(crate) writers_one: bool,
    /// The servers that take writes.
    pub(crate) members: Vec<String>,
    /// Locks of sessions, without a table.
    pub(crate) advisory: bool,
    /// In front of the name of each such lock.
    pub(crate) prefix: String,
}

/// TLS, in the words of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

/// The files of a connection with TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Files {
    /// The certificate of the client and its key, or neither.
    pub(crate) fn pair(&self) -> Result<Option<(&PathBuf, &PathBuf)>, Error> {
        if self.cert.is_some() != self.key.is_some() {
            let what = "the store URL has only one of cert= and key=";
            return Err(Error::invalid(what).with_hint("a client certificate needs both"));
        }
        Ok(self.cert.as_ref().zip(self.key.as_ref()))
    }
}

/// Parameters that only a table has.
const OF_TABLES: &[&str] = &["table", "create", "listen", "writers", "members"];

/// Parameters that only session locks have.
const OF_SESSIONS: &[&str] = &["prefix"];

impl Settings {
    /// Reads the parameters, as they stand behind the `?`. Of all that are `known`, the `others` are
    /// returned as they are.
    pub(crate) fn read<'a>(parameters: &'a str, known: &[&str], others: &[&str]) -> Result<(Self, Vec<&'a str>), Error> {
        let read = Self::read_each(parameters, known, others);
        // They may be the rest of a password with a `?` in it, which no message shows.
        if parameters.contains('@') { read.map_err(|_| unescaped()) } else { read }
    }

    fn read_each<'a>(parameters: &'a str, known: &[&str], others: &[&str]) -> Result<(Self, Vec<&'a str>), Error> {
        let mut settings = Self {
            table: vec!["tenure_lock".to_owned()],
            create: false,
            listen: true,
            terms: Terms { timeout: None, poll_interval: Duration::from_millis(100) },
            security: None,
            files: Files::default(),
            writers_one: false,
            members: Vec::new(),
            advisory: false,
            prefix: String::new(),
        };
        let (mut left, mut seen) = (Vec::new(), Vec::new());
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, encoded) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !known.contains(&key) {
                let what = format!("{key}= is no parameter of this store URL");
                return Err(Error::invalid(what).with_hint(format!("known are {}", known.join(", "))));
            }
            if seen.contains(&key) {
                return Err(Error::invalid(format!("{key}= is given twice in the store URL")).with_hint("give it once"));
            }
            seen.push(key);
            if others.contains(&key) {
                left.push(parameter);
                continue;
            }
            let value = percent_decode_str(encoded).decode_utf8();
            settings.set(key, &value.map_err(|_| Error::invalid(format!("{key}= of the store URL is not UTF-8")))?)?;
        }
        settings.check(&seen)?;
        Ok((settings, left))
    }

    /// Refuses parameters that are only for the other scheme.
    fn check(&self, given: &[&str]) -> Result<(), Error> {
        let (others, scheme) = if self.advisory { (OF_TABLES, "session locks") } else { (OF_SESSIONS, "a table") };
        let Some(other) = given.iter().find(|key| others.contains(key)) else { return Ok(()) };
        let what = format!("{other}= of the store URL is not for the locks of {scheme}");
        Err(Error::invalid(what).with_hint("leave it out, or correct scheme="))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "create" => self.create = is_yes(key, value)?,
            "listen" => self.listen = is_yes(key, value)?,
            "table" => self.table = table(value)?,
            "timeout" => self.terms.timeout = Some(positive(key, value)?),
            "poll_interval" => self.terms.poll_interval = positive(key, value)?,
            "sslmode" => self.security = Some(security(value)?),
            "ca" => self.files.ca = Some(value.into()),
            "cert" => self.files.cert = Some(value.into()),
            "key" => self.files.key = Some(value.into()),
            "writers" => self.writers_one = is_one(key, value)?,
            "members" => self.members = value.split(',').map(str::to_owned).collect(),
            "prefix" => value.clone_into(&mut self.prefix),
            _ => match value {
                "native" => {}
                "advisory" => self.advisory = true,
                _ => {
                    let what = format!("{key}={value} is none of this store");
                    return Err(Error::invalid(what).with_hint("write scheme=advisory for session locks, or leave it out"));
                }
            },
        }
        Ok(())
    }

    /// The name of the table, each part between two `quotes`.
    pub(crate) fn quoted(&self, quote: char) -> String {
        self.table.iter().map(|part| format!("{quote}{part}{quote}")).collect::<Vec<_>>().join(".")
    }
}

/// A character of the password is taken for one of the URL.
pub(crate) fn unescaped() -> Error {
    Error::invalid("the store URL cannot be read: it has an @ too many")
        .with_hint("in the user and the password, write @ as %40, ? as %3F, / as %2F and # as %23")
}

fn is_yes(key: &str, value: &str) -> Result<bool, Error> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(Error::invalid(format!("{key}={other} of the store URL is neither yes nor no"))),
    }
}

fn is_one(key: &str, value: &str) -> Result<bool, Error> {
    if value == "one" {
        return Ok(true);
    }
    Err(Error::invalid(format!("{key}={value} of the store URL is not known")).with_hint("write writers=one, or leave it out"))
}

fn positive(key: &str, value: &str) -> Result<Duration, Error> {
    let span = parse_duration(value).map_err(|e| e.context(format_args!("the parameter {key}= of the store URL")))?;
    let zero = || Error::invalid(format!("{key}=0 of the store URL leaves no time")).with_hint("give it a longer time");
    Some(span).filter(|span| !span.is_zero()).ok_or_else(zero)
}

fn security(value: &str) -> Result<Security, Error> {
    match value {
        "disable" => Ok(Security::Disable),
        "prefer" => Ok(Security::Prefer),
        "require" => Ok(Security::Require),
        "verify-full" => Ok(Security::VerifyFull),
        other => {
            let what = format!("sslmode={other} is none that tenure knows");
            Err(Error::invalid(what).with_hint("known are disable, prefer, require and verify-full"))
        }
    }
}

fn table(name: &str) -> Result<Vec<String>, Error> {
    let parts: Vec<&str> = name.split('.').collect();
    let good = |part: &&str| !part.is_empty() && part.len() < 64 && !part.chars().any(|c| c.is_control() || "\"`".contains(c));
    if parts.len() > 2 || !parts.iter().all(good) {
        let what = format!("{name:?} cannot be the name of a table");
        return Err(Error::invalid(what).with_hint("write table=NAME or table=SCHEMA.NAME"));
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}
