//! The URL of a table in PostgreSQL.

use std::fmt;
use std::sync::Arc;

use tenure::store::Store;
use tenure::store::record::Listeners;
use tenure::{Error, Locker};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::Postgres;
use super::advisory::{self, Advisory};
use super::dial::shown_all;
use super::server::{How, Statements};
use super::session::channel;
use super::statements::{CREATE, TABLE};
use super::tls;
use crate::advisory::AdvisoryStore;
use crate::table::{Connection, Security, Settings, TableStore};

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
/// | `listen=no` | waiters are not notified, and poll | they are |
/// | `sslmode=` | `disable`; `prefer` and `require`: the certificate is checked if there is a `ca=`; `verify-full` | `prefer` |
/// | `ca=`, `cert=`, `key=` | PEM files: the authority, the client's certificate and key | the system's authorities |
/// | `scheme=` | `native`: the table; `advisory`: session locks, without `table`, `create` and `listen` | `native` |
///
/// # Session locks
/// `scheme=advisory` takes the locks of `pg_advisory_lock`, for use beside programs that do. A name that
/// is a decimal integer is the key, two with a comma between them are the pair, and any other is the
/// first 64 bits of its SHA-256. There are mutexes only, without a fence, and waiters poll. Each lease
/// has a connection of its own. The server ends one that was idle for the ttl, which it can from
/// PostgreSQL 14 on. The lease ends with the process that took it. `GUARANTEES.md` has the rest.
///
/// A pool such as PgBouncer in between is refused: it may mix the statements of its clients.
///
/// `application_name`, `options` and `channel_binding` are as PostgreSQL has them.
#[derive(Clone)]
pub struct Options {
    config: Config,
    settings: Settings,
}

const OTHERS: [&str; 3] = ["application_name", "options", "channel_binding"];
const KNOWN: [&str; 13] = [
    "table",
    "create",
    "timeout",
    "poll_interval",
    "listen",
    "sslmode",
    "ca",
    "cert",
    "key",
    "scheme",
    OTHERS[0],
    OTHERS[1],
    OTHERS[2],
];

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (settings, others) = Settings::read(parameters, &KNOWN, &OTHERS)?;
        let unread = |error: tokio_postgres::Error| {
            Error::invalid("the store URL cannot be read").with_source(error).with_hint(format!("it looks like {FORMS}"))
        };
        let address = if others.is_empty() { address.to_owned() } else { format!("{address}?{}", others.join("&")) };
        let mut config: Config = address.parse().map_err(unread)?;
        if config.get_hosts().is_empty() {
            return Err(Error::invalid("the store URL has no host").with_hint(format!("write e.g. {FORMS}")));
        }
        config.ssl_mode(match settings.security.unwrap_or(Security::Prefer) {
            Security::Disable => SslMode::Disable,
            Security::Prefer => SslMode::Prefer,
            Security::Require | Security::VerifyFull => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("tenure");
        }
        Ok(Self { config, settings })
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
        self.settings.create = create;
        self
    }

    /// Returns the statements that make the table. They may be run again.
    pub fn migration(&self) -> String {
        CREATE.replace(TABLE, &self.settings.quoted('"'))
    }

    /// Connects, and makes sure that the table can be used.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if no server answers within 5 s,
    /// [`Unavailable`](tenure::ErrorKind::Unavailable) if the servers are read-only,
    /// [`Refused`](tenure::ErrorKind::Refused) if the login is refused, or a pool is in between,
    /// [`Damaged`](tenure::ErrorKind::Damaged) if the table is missing or of another version,
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        let shown = self.to_string();
        let Self { mut config, settings } = self;
        let checks = settings.security == Some(Security::VerifyFull);
        let tls = if config.get_ssl_mode() == SslMode::Disable { None } else { Some(tls::config(&settings.files, checks)?) };
        if config.get_user().is_none() {
            config.user(std::env::var("USER").unwrap_or_else(|_| "postgres".to_owned()));
        }
        let listeners = Listeners::default();
        if settings.advisory {
            // No statement is for a table, but for the first.
            let statements = Statements { hello: advisory::hello(), ..Statements::on("") };
            let how = How { config, tls, statements, table: "pg_locks".to_owned(), channel: None, listeners, shown };
            return Ok(Arc::new(AdvisoryStore::open(Advisory(how), settings.terms).await?));
        }
        let channel = if settings.listen { Some(channel()?) } else { None };
        let table = settings.quoted('"');
        let statements = Statements::on(&table);
        let how = How { config, tls, statements, table, channel, listeners: listeners.clone(), shown };
        let connection = Connection::open(how, settings.create).await?;
        Ok(Arc::new(TableStore::new(Postgres { connection }, listeners, settings.terms)))
    }

    /// Returns a [`Locker`] on the table.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }
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
