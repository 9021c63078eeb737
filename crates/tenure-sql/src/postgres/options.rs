//! The URL of a table in PostgreSQL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tenure::store::Store;
use tenure::store::record::Listeners;
use tenure::{Error, Locker, parse_duration};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::Postgres;
use super::connection::{Connection, How, Statements};
use super::dial::shown_all;
use super::session::channel;
use super::statements::{CREATE, TABLE};
use super::tls::Files;
use crate::table::{TableStore, Terms};

const FORMS: &str = "postgres://user@host/database";

/// Settings of a table in PostgreSQL, read from a URL.
///
/// `postgres://[user[:password]@]host[:port][,host[:port]...][/database][?parameters]`, or
/// `postgresql://`. Of several hosts, the first that may be written to is used. A host that is a
/// path, with `/` as `%2F`, is the directory of a unix socket.
///
/// | parameter | meaning | default |
/// |---|---|---|
/// | `table=locks.door` | the table, with its schema if need be | `tenure_lock` |
/// | `create=yes` | makes the table if it is missing | an error prints how to make it |
/// | `timeout=500ms` | operation timeout: how long one call may take | a sixth of the ttl, at most 1 s |
/// | `poll_interval=50ms` | how often a waiter polls that nobody notifies | 100 ms |
/// | `listen=no` | waiters are not notified, and poll | they are, unless a pool is in between |
/// | `sslmode=` | `disable`; `prefer` and `require`: the certificate is checked if there is a `ca=`; `verify-full` | `prefer` |
/// | `ca=`, `cert=`, `key=` | PEM files: the authority, the client's certificate and key | the system's authorities |
/// | `scheme=` | `native` | `native` |
///
/// `application_name`, `options` and `channel_binding` are as PostgreSQL has them.
#[derive(Clone)]
pub struct Options {
    config: Config,
    files: Files,
    table: String,
    create: bool,
    listen: bool,
    terms: Terms,
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let mut options = Self {
            config: Config::new(),
            files: Files::default(),
            table: TABLE.to_owned(),
            create: false,
            listen: true,
            terms: Terms { timeout: None, poll_interval: Duration::from_millis(100) },
        };
        let (mut theirs, mut known, mut mode) = (Vec::new(), Vec::new(), None);
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, encoded) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode_str(encoded).decode_utf8();
            let value = value.map_err(|_| Error::invalid(format!("{key}= of the store URL is not UTF-8")))?;
            if known.contains(&key) {
                return Err(Error::invalid(format!("{key}= is given twice in the store URL")).with_hint("give it once"));
            }
            known.push(key);
            match key {
                "application_name" | "options" | "channel_binding" => theirs.push(parameter),
                "sslmode" => mode = Some(options.set_ssl_mode(&value)?),
                _ => options.set(key, &value)?,
            }
        }
        let unread = |error: tokio_postgres::Error| {
            Error::invalid("the store URL cannot be read").with_source(error).with_hint(format!("it looks like {FORMS}"))
        };
        let address = if theirs.is_empty() { address.to_owned() } else { format!("{address}?{}", theirs.join("&")) };
        options.config = address.parse().map_err(unread)?;
        if options.config.get_hosts().is_empty() {
            return Err(Error::invalid("the store URL has no host").with_hint(format!("write e.g. {FORMS}")));
        }
        options.config.ssl_mode(mode.unwrap_or(SslMode::Prefer));
        if options.config.get_application_name().is_none() {
            options.config.application_name("tenure");
        }
        Ok(options)
    }

    fn set_ssl_mode(&mut self, value: &str) -> Result<SslMode, Error> {
        self.files.verify = value == "verify-full";
        match value {
            "disable" => Ok(SslMode::Disable),
            "prefer" => Ok(SslMode::Prefer),
            "require" | "verify-full" => Ok(SslMode::Require),
            other => {
                let what = format!("sslmode={other} is none that tenure knows");
                Err(Error::invalid(what).with_hint("known are disable, prefer, require and verify-full"))
            }
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let duration = || {
            let span = parse_duration(value).map_err(|e| e.context(format_args!("the parameter {key}= of the store URL")))?;
            let zero = || Error::invalid(format!("{key}=0 of the store URL leaves no time")).with_hint("give it a longer time");
            Some(span).filter(|span| !span.is_zero()).ok_or_else(zero)
        };
        match (key, value) {
            ("scheme", "native") | ("create" | "listen", "yes" | "no") => match key {
                "create" => self.create = value == "yes",
                "listen" => self.listen = value == "yes",
                _ => {}
            },
            ("table", table) => self.table = identifier(table)?,
            ("timeout", _) => self.terms.timeout = Some(duration()?),
            ("poll_interval", _) => self.terms.poll_interval = duration()?,
            ("ca", file) => self.files.ca = Some(file.into()),
            ("cert", file) => self.files.cert = Some(file.into()),
            ("key", file) => self.files.key = Some(file.into()),
            ("create" | "listen", other) => {
                return Err(Error::invalid(format!("{key}={other} of the store URL is neither yes nor no")));
            }
            ("scheme", other) => {
                let what = format!("scheme={other} is none of a PostgreSQL store");
                return Err(Error::invalid(what).with_hint("leave it out"));
            }
            _ => {
                let what = format!("{key}= is no parameter of a PostgreSQL URL");
                return Err(Error::invalid(what).with_hint(
                    "known are table, create, timeout, poll_interval, listen, sslmode, ca, cert, key, scheme, application_name, \
                     options and channel_binding",
                ));
            }
        }
        Ok(())
    }

    /// Sets the user to log in as, instead of the URL's.
    #[must_use]
    pub fn username(mut self, username: &str) -> Self {
        self.config.user(username);
        self
    }

    /// Sets the password to log in with, instead of the URL's.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.config.password(password);
        self
    }

    /// Makes the table if it is missing, as `create=yes` of the URL does.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Returns the statements that make the table. They may be run again.
    pub fn migration(&self) -> String {
        CREATE.replace(TABLE, &self.table)
    }

    /// Connects, and makes sure that the table can be used.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if no server answers within 5 s,
    /// [`Unavailable`](tenure::ErrorKind::Unavailable) if the servers are read-only,
    /// [`Refused`](tenure::ErrorKind::Refused) if the login is refused,
    /// [`Damaged`](tenure::ErrorKind::Damaged) if the table is missing or of another version,
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        let shown = self.to_string();
        let Self { mut config, files, table, create, listen, terms } = self;
        let tls = if config.get_ssl_mode() == SslMode::Disable { None } else { Some(files.config()?) };
        if config.get_user().is_none() {
            config.user(std::env::var("USER").unwrap_or_else(|_| "postgres".to_owned()));
        }
        let listeners = Listeners::default();
        let channel = if listen { Some(channel()?) } else { None };
        let statements = Statements::on(&table);
        let how = How { config, tls, statements, table, channel, listeners: listeners.clone(), shown };
        let connection = Connection::open(how, create).await?;
        Ok(Arc::new(TableStore::new(Postgres { connection }, listeners, terms)))
    }

    /// Returns a [`Locker`] on the table.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }
}

/// Quotes the name of a table, and of its schema.
fn identifier(name: &str) -> Result<String, Error> {
    let parts: Vec<&str> = name.split('.').collect();
    let good = |part: &&str| !part.is_empty() && part.len() < 64 && !part.chars().any(|c| c.is_control() || c == '"');
    if parts.len() > 2 || !parts.iter().all(good) {
        let what = format!("{name:?} cannot be the name of a table");
        return Err(Error::invalid(what).with_hint("write table=NAME or table=SCHEMA.NAME"));
    }
    Ok(parts.into_iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join("."))
}

/// Without secrets.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}", shown_all(&self.config))?;
        self.config.get_dbname().map_or(Ok(()), |database| write!(f, "/{database}"))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}
