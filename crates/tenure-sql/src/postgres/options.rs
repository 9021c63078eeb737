//! The URL of a table in PostgreSQL.

use std::fmt;
use std::sync::Arc;

use tenure::store::record::Listeners;
use tenure::store::{Credentials, Store, refuse_zone, unescaped};
use tenure::{Error, Locker};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::Postgres;
use super::advisory::Advisory;
use super::dial::shown_all;
use super::session::channel;
use super::source::{How, Source};
use super::statements::{CREATE, TABLE};
use super::tls;
use crate::advisory::AdvisoryStore;
use crate::table::{self, Connection, Security, Settings};

const FORMS: &str = "postgres://user@host/database";

/// Settings of a table in PostgreSQL, read from a URL.
///
/// `postgres://[user[:password]@]host[:port][,host[:port]...][/database][?parameters]`, or
/// `postgresql://`. Of several hosts, the first that may be written to is used. A host that is a
/// path, with `/` as `%2F`, is the directory of a unix socket.
///
/// The parameters are [`PARAMETERS`](Self::PARAMETERS).
///
/// # Session locks
/// `scheme=advisory` takes the locks of `pg_advisory_lock`, for use beside programs that do. A name that
/// is a decimal integer is the key, two with a comma between them are the pair, and any other is the
/// first 64 bits of its SHA-256. There are mutexes only, without a fence, and waiters poll. Each lease
/// has a connection of its own. The server ends one that was idle for the ttl, which it can from
/// PostgreSQL 14 on. The lease ends with the process that took it. `GUARANTEES.md` has the rest.
///
/// A pool such as PgBouncer may be in between, in any mode. This is found out when connecting. Then one
/// statement at a time is under way, and waiters poll.
#[derive(Clone)]
pub struct Options {
    config: Config,
    credentials: Credentials,
    settings: Settings,
}

tenure::parameters! {
    for Options, read into Settings:
    "table" = "locks.door", "the table, with its schema if need be", "`tenure_lock`" => |s, v| s.table = table::table(v.text)?;
    "create" = "yes", "makes the table if it is missing", "an error prints how to make it" => |s, v| s.create = v.is_yes()?;
    "timeout" = "500ms", "timeout of one operation", "a sixth of the ttl, at most 1 s"
        => |s, v| s.terms.timeout = Some(v.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls that nobody notifies", "100 ms"
        => |s, v| s.terms.poll_interval = v.duration()?;
    "listen" = "no", "waiters are not notified, and poll", "they are notified" => |s, v| s.listen = v.is_yes()?;
    "sslmode" = "MODE", "`disable`; `prefer` and `require`: the certificate is checked if there is a `ca=`; `verify-full`", "`prefer`"
        => |s, v| s.security = Some(table::security(v)?);
    "ca" = "FILE", "PEM file of the authority", "the system's authorities" => |s, v| s.files.ca = Some(v.text.into());
    "cert" = "FILE", "PEM file of the client's certificate", "none" => |s, v| s.files.cert = Some(v.text.into());
    "key" = "FILE", "PEM file of the client's key", "none" => |s, v| s.files.key = Some(v.text.into());
    "scheme" = "advisory", "`native`: the table; `advisory`: session locks, without `table`, `create` and `listen`", "`native`"
        => |s, v| s.advisory = table::advisory(v)?;
    "application_name" = "NAME", "as PostgreSQL has it", "`tenure`" => |s, v| s.pass(v);
    "options" = "TEXT", "as PostgreSQL has it", "none" => |s, v| s.pass(v);
    "channel_binding" = "MODE", "as PostgreSQL has it", "`prefer`" => |s, v| s.pass(v);
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        // Of another scheme the words would be read, and an unknown one is shown: it may have the password in it.
        let is_url = |scheme: &str| ["postgres", "postgresql"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let Some((_, rest)) = url.split_once("://").filter(|(scheme, _)| is_url(scheme)) else {
            return Err(Error::invalid("the store URL cannot be read").with_hint(format!("it looks like {FORMS}")));
        };
        refuse_zone(url)?;
        let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let settings = Settings::read(parameters, Self::read_parameters)?;
        let unread = |error: tokio_postgres::Error| {
            Error::invalid("the store URL cannot be read").with_source(error).with_hint(format!("it looks like {FORMS}"))
        };
        let mut config: Config = format!("postgres://{address}?{}", settings.passed.join("&")).parse().map_err(unread)?;
        if config.get_hosts().is_empty() {
            return Err(Error::invalid("the store URL has no host").with_hint(format!("write e.g. {FORMS}")));
        }
        // It is the rest of a password, and hosts are shown.
        if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(host) if host.contains('@'))) {
            return Err(unescaped("an @"));
        }
        config.ssl_mode(match settings.security.unwrap_or(Security::Prefer) {
            Security::Disable => SslMode::Disable,
            Security::Prefer => SslMode::Prefer,
            Security::Require | Security::VerifyFull => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("tenure");
        }
        Ok(Self { config, credentials: Credentials::default(), settings })
    }

    /// Sets how to log in. What these credentials lack is taken from the URL.
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into().or(&self.credentials);
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
    /// [`Refused`](tenure::ErrorKind::Refused) if the login is refused,
    /// [`Damaged`](tenure::ErrorKind::Damaged) if the table is missing or of another version,
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        let shown = self.to_string();
        let Self { mut config, credentials, settings } = self;
        let checks = settings.security == Some(Security::VerifyFull);
        let tls = if config.get_ssl_mode() == SslMode::Disable { None } else { Some(tls::config(&settings.files, checks)?) };
        if config.get_user().is_none() {
            config.user(std::env::var("USER").unwrap_or_else(|_| "postgres".to_owned()));
        }
        let listeners = Listeners::default();
        if settings.advisory {
            let source = Source::Servers { config: Box::new(config), tls };
            let how = How { needs_table: false, credentials, ..How::new(source, "pg_locks".to_owned(), None, listeners, shown) };
            return Ok(Arc::new(AdvisoryStore::open(Advisory(how), settings.terms).await?));
        }
        let channel = if settings.listen { Some(channel()?) } else { None };
        let source = Source::Servers { config: Box::new(config), tls };
        open(How { credentials, ..How::new(source, settings.quoted('"'), channel, listeners, shown) }, &settings).await
    }

    /// Returns a [`Locker`] on the table.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }
}

/// Opens a table over a pool of the application's. `parameters` are those of a URL: `table=`, `create=`,
/// `timeout=` and `poll_interval=`.
///
/// A connection is borrowed for one statement at a time, and goes back as it was. If a call is dropped,
/// its statement is done to its end before. A connection without an answer is closed. Nothing is set
/// in its session. It may have any isolation level, time zone and `search_path`: the table is found by
/// the default one. Waiters poll. The language `plpgsql` has to be there, as it is by default.
///
/// If the pool has its connections through PgBouncer, give PgBouncer's URL to [`Options`] instead:
/// the client library does not say when an error's answer has ended.
///
/// ```
/// # use std::error::Error;
/// use tenure_sql::postgres;
///
/// struct Database(deadpool_postgres::Pool);
///
/// impl postgres::Pool for Database {
///     type Lent = deadpool_postgres::Object;
///
///     async fn lend(&self) -> Result<Self::Lent, Box<dyn Error + Send + Sync>> {
///         Ok(self.0.get().await?)
///     }
///
///     fn client(lent: &Self::Lent) -> &tokio_postgres::Client {
///         lent
///     }
///
///     fn discard(lent: Self::Lent) {
///         drop(deadpool_postgres::Object::take(lent));
///     }
/// }
///
/// # async fn example(pool: deadpool_postgres::Pool) -> Result<(), tenure::Error> {
/// let locks = tenure::Locker::new(postgres::over(Database(pool), "table=locks.door").await?);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`Options::open`]. [`Overloaded`](tenure::ErrorKind::Overloaded) if the pool lends no
/// connection within 3 s. Later calls wait for one for a part of their timeout. Then they fail with
/// the same error, and were not applied.
#[cfg(feature = "tokio-postgres-0_7")]
pub async fn over(pool: impl super::Pool, parameters: &str) -> Result<Arc<dyn Store>, Error> {
    let known = ["table", "create", "timeout", "poll_interval"];
    let settings = Settings::of_pool(parameters, Options::read_parameters, &known)?;
    let source = Source::Pool(super::pool::Lender::new(pool, settings.quoted('"')));
    open(How::new(source, settings.quoted('"'), None, Listeners::default(), "the pool for postgres".to_owned()), &settings).await
}

async fn open(how: How, settings: &Settings) -> Result<Arc<dyn Store>, Error> {
    let listeners = how.listeners.clone();
    let connection = Connection::open(how, settings.create).await?;
    Ok(table::store(Postgres { connection }, listeners, settings.terms))
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
