//! The parameters of a store URL that are the same for every database.

use std::path::PathBuf;
use std::time::Duration;

use tenure::Error;
use tenure::store::Given;

use super::Terms;

/// Settings of a table, as the parameters of a URL give them.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a parameter of its own")]
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres")),
    allow(dead_code, reason = "each database has parameters of its own")
)]
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
    /// Parameters of the database's own library, as they stand in the URL.
    pub(crate) passed: Vec<String>,
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

/// Reads parameters into the settings, and returns the names that are given.
type Reader = fn(&mut Settings, &str) -> Result<Vec<&'static str>, Error>;

impl Default for Settings {
    fn default() -> Self {
        Self {
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
            passed: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the parameters, as they stand behind the `?`, by the table of a database.
    pub(crate) fn read(parameters: &str, by: Reader) -> Result<Self, Error> {
        let mut settings = Self::default();
        let given = by(&mut settings, parameters)?;
        settings.check(&given)?;
        Ok(settings)
    }

    /// Reads those of a pool, which has the connections.
    #[cfg(any(feature = "mysql_async-0_37", feature = "tokio-postgres-0_7"))]
    pub(crate) fn of_pool(parameters: &str, by: Reader, known: &[&str]) -> Result<Self, Error> {
        let mut settings = Self::default();
        let given = by(&mut settings, parameters)?;
        let Some(other) = given.iter().find(|name| !known.contains(name)) else { return Ok(settings) };
        let what = format!("{other}= is no parameter of a store over a pool");
        Err(Error::invalid(what).with_hint(format!("known are {}", known.join(", "))))
    }

    /// Refuses parameters that are only for the other scheme.
    fn check(&self, given: &[&str]) -> Result<(), Error> {
        let (others, scheme) = if self.advisory { (OF_TABLES, "session locks") } else { (OF_SESSIONS, "a table") };
        let Some(other) = given.iter().find(|key| others.contains(key)) else { return Ok(()) };
        let what = format!("{other}= of the store URL is not for {scheme}");
        Err(Error::invalid(what).with_hint("leave it out, or correct scheme="))
    }

    /// Leaves a parameter to the database's own library.
    pub(crate) fn pass(&mut self, given: &Given<'_>) {
        self.passed.push(format!("{}={}", given.name, given.raw));
    }

    /// The name of the table, each part between two `quotes`.
    pub(crate) fn quoted(&self, quote: char) -> String {
        self.table.iter().map(|part| format!("{quote}{part}{quote}")).collect::<Vec<_>>().join(".")
    }
}

/// Security by the words of libpq.
pub(crate) fn security(given: &Given<'_>) -> Result<Security, Error> {
    given.one_of(&[
        ("disable", Security::Disable),
        ("prefer", Security::Prefer),
        ("require", Security::Require),
        ("verify-full", Security::VerifyFull),
    ])
}

/// Whether locks are those of sessions.
pub(crate) fn advisory(given: &Given<'_>) -> Result<bool, Error> {
    given.one_of(&[("native", false), ("advisory", true)])
}

/// Reads the name of a table.
pub(crate) fn table(name: &str) -> Result<Vec<String>, Error> {
    let parts: Vec<&str> = name.split('.').collect();
    let good = |part: &&str| !part.is_empty() && part.len() < 64 && !part.chars().any(|c| c.is_control() || "\"`".contains(c));
    if parts.len() > 2 || !parts.iter().all(good) {
        let what = format!("{name:?} cannot be the name of a table");
        return Err(Error::invalid(what).with_hint("write table=NAME or table=SCHEMA.NAME"));
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}
