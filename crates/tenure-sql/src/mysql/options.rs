//! The URL of a table in MariaDB or MySQL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use tenure::store::record::Listeners;
use tenure::store::{Credentials, Store, refuse_zone};
use tenure::{Error, Locker};

use super::MySql;
use super::advisory::{self, Advisory};
use super::cluster::Members;
use super::server::{How, Source, Statements};
use super::statements::{CREATE, TABLE, patience, session_settings};
use crate::advisory::AdvisoryStore;
use crate::table::{self, Connection, Security, Settings};

const FORMS: &str = "mysql://user@host/database";
/// The longest operation timeout without `timeout=`.
const LONGEST: Duration = Duration::from_secs(1);

/// Settings of a table in MariaDB or MySQL, read from a URL.
///
/// `mysql://[user[:password]@]host[:port]/database[?parameters]`, or `mariadb://`.
///
/// The parameters are [`PARAMETERS`](Self::PARAMETERS).
///
/// # Several servers that take writes
/// A lease ends by the clock of the server that is asked. Of a Galera cluster, each new connection compares the clocks of all members.
/// It is refused if they are more than 500 ms apart, or if some cannot be asked. The user of the URL is used for that, on each of
/// them. A lease lasts 500 ms longer at the table. A group of MySQL with several primaries is refused. With `writers=one` none of
/// that is done.
///
/// # Session locks
/// `scheme=advisory` takes the locks of `GET_LOCK`, for use beside programs that do. They are those of
/// the whole server, by the name itself: ASCII, 64 characters at most, and on MySQL in lower case. There
/// are mutexes only, without a fence, and waiters poll. Each lease has a connection of its own. The
/// server ends one that was idle for the ttl, in whole seconds. The lease ends with the process that
/// took it. A Galera cluster is refused. `GUARANTEES.md` has the rest.
#[derive(Clone)]
pub struct Options {
    opts: OptsBuilder,
    credentials: Credentials,
    settings: Settings,
    shown: String,
}

tenure::parameters! {
    for Options, read into Settings:
    "table" = "locks", "the table, with its database if need be", "`tenure_lock`" => |s, v| s.table = table::table(v.text)?;
    "create" = "yes", "makes the table if it is missing", "an error prints how to make it" => |s, v| s.create = v.is_yes()?;
    "timeout" = "500ms", "timeout of one operation", "a sixth of the ttl, at most 1 s"
        => |s, v| s.terms.timeout = Some(v.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls: nobody notifies it", "100 ms"
        => |s, v| s.terms.poll_interval = v.duration()?;
    "sslmode" = "MODE", "`disable`; `require`: the certificate is checked if there is a `ca=`; `verify-full`",
        "`disable`, with a `ca=` `require`" => |s, v| s.security = Some(table::security(v)?);
    "ca" = "FILE", "PEM file of the authority", "well-known authorities" => |s, v| s.files.ca = Some(v.text.into());
    "cert" = "FILE", "PEM file of the client's certificate", "none" => |s, v| s.files.cert = Some(v.text.into());
    "key" = "FILE", "PEM file of the client's key", "none" => |s, v| s.files.key = Some(v.text.into());
    "writers" = "one", "of a Galera cluster or a group: all clients write through one server, so clocks are not compared",
        "they are compared" => |s, v| s.writers_one = v.one_of(&[("one", true)])?;
    "members" = "a:3306,b:3306", "where the servers of a Galera cluster are", "where the server says"
        => |s, v| s.members = v.text.split(',').map(str::to_owned).collect();
    "scheme" = "advisory", "`native`: the table; `advisory`: session locks, without `table` and `create`", "`native`"
        => |s, v| s.advisory = table::advisory(v)?;
    "prefix" = "app.", "with `scheme=advisory`: put in front of each name", "none" => |s, v| v.text.clone_into(&mut s.prefix);
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        refuse_zone(url)?;
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let settings = Settings::read(parameters, Self::read_parameters)?;
        let address = address.split_once("://").map_or(address.to_owned(), |(_, rest)| format!("mysql://{rest}"));
        // Its own text may have the password in it.
        let unread = |_| Error::invalid("the store URL cannot be read").with_hint(format!("it looks like {FORMS}"));
        let read = Opts::from_url(&address).map_err(unread)?;
        let Some(database) = read.db_name().filter(|name| !name.is_empty()) else {
            return Err(Error::invalid("the store URL names no database").with_hint(format!("write e.g. {FORMS}")));
        };
        let host = read.ip_or_hostname();
        let shown = format!("mysql://{host}:{}/{database}", read.tcp_port());
        // Nothing is resolved that has them, not even an address of IPv6.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let opts = OptsBuilder::from_opts(read)
            .ip_or_hostname(host)
            .prefer_socket(false)
            .tcp_keepalive(Some(Duration::from_secs(5)))
            .setup(vec![session_settings(settings.terms.timeout.unwrap_or(LONGEST))])
            // Else the server is asked for them, which costs a round trip.
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(28_800));
        Ok(Self { opts, credentials: Credentials::default(), settings, shown })
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
        CREATE.map(|step| step.replace(TABLE, &self.settings.quoted('`')) + ";\n").concat()
    }

    /// Connects, and makes sure that the table can be used.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if the server does not answer within 5 s,
    /// [`Unavailable`](tenure::ErrorKind::Unavailable) if it is read-only,
    /// [`Refused`](tenure::ErrorKind::Refused) if the login is refused,
    /// [`Damaged`](tenure::ErrorKind::Damaged) if the table is missing or of another version,
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        let tls = self.tls()?;
        let Self { opts, credentials, settings, shown } = self;
        let patience = patience(settings.terms.timeout.unwrap_or(LONGEST));
        let members = Members { writers_one: settings.writers_one || settings.advisory, given: settings.members.clone() };
        let source = Source::Server(opts.ssl_opts(tls).into());
        let how = How { credentials, members, patience, ..How::new(source, settings.quoted('`'), shown) };
        if settings.advisory {
            advisory::check(&settings.prefix, false).map_err(|error| error.context("the parameter prefix= of the store URL"))?;
            let how = How { statements: Statements { hello: advisory::hello(), ..how.statements }, ..how };
            return Ok(Arc::new(
                AdvisoryStore::open(Advisory { how, prefix: settings.prefix, folds_case: true.into() }, settings.terms).await?,
            ));
        }
        let connection = Connection::open(how, settings.create).await?;
        Ok(table::store(MySql { connection }, Listeners::default(), settings.terms))
    }

    /// Returns a [`Locker`] on the table.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }

    fn tls(&self) -> Result<Option<SslOpts>, Error> {
        let Settings { files, security, .. } = &self.settings;
        let security = security.unwrap_or(if files.ca.is_some() { Security::Require } else { Security::Disable });
        match security {
            Security::Disable => return Ok(None),
            Security::Prefer => {
                let what = "sslmode=prefer is not for this store: its driver has TLS or has none";
                return Err(Error::invalid(what).with_hint("write sslmode=require or sslmode=disable"));
            }
            Security::Require | Security::VerifyFull => {}
        }
        for file in [&files.ca, &files.cert, &files.key].into_iter().flatten() {
            std::fs::metadata(file).map_err(|error| {
                Error::invalid(format!("the TLS file {} cannot be read", file.display()))
                    .with_source(error)
                    .with_hint("name a readable PEM file in the store URL")
            })?;
        }
        let mut tls = SslOpts::default();
        if let Some((cert, key)) = files.pair()? {
            tls = tls.with_client_identity(Some(ClientIdentity::new(cert.clone().into(), key.clone().into())));
        }
        if let Some(ca) = &files.ca {
            tls = tls.with_root_certs(vec![ca.clone().into()]).with_disable_built_in_roots(true);
        } else if security == Security::Require {
            tls = tls.with_danger_accept_invalid_certs(true).with_danger_skip_domain_validation(true);
        }
        Ok(Some(tls))
    }
}

/// Without secrets.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

/// Opens a table over a pool of the application's. `parameters` are those of a URL: `table=`, `create=`,
/// `timeout=`, `poll_interval=`, `writers=` and `members=`. The table is named with its database, as sessions of a pool may be
/// in any: `table=app.tenure_lock`.
///
/// A connection is borrowed for one statement at a time, and goes back as it was. If a call is dropped,
/// its statement is done to its end before. A connection without an answer is closed. Nothing is set
/// in its session. It may have `autocommit` off, any isolation level, and a `sql_mode` that is not
/// strict.
///
/// ```no_run
/// # async fn example(pool: mysql_async::Pool) -> Result<(), tenure::Error> {
/// let store = tenure_sql::mysql::over(pool, "table=app.tenure_lock").await?;
/// let locks = tenure::Locker::new(store);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`Options::open`]. [`Overloaded`](tenure::ErrorKind::Overloaded) if the pool lends no
/// connection within 3 s. Later calls wait for one for a part of their timeout. Then they fail with
/// the same error, and were not applied.
#[cfg(feature = "mysql_async-0_37")]
pub async fn over(pool: mysql_async::Pool, parameters: &str) -> Result<Arc<dyn Store>, Error> {
    let known = ["table", "create", "timeout", "poll_interval", "writers", "members"];
    let settings = Settings::of_pool(parameters, Options::read_parameters, &known)?;
    if settings.table.len() < 2 {
        let what = "the table has no database, and sessions of a pool may be in any";
        return Err(Error::invalid(what).with_hint("write table=DATABASE.NAME"));
    }
    let table = settings.quoted('`');
    let source = Source::Pool(super::pool::Lender::new(pool, table.clone()));
    let members = Members { writers_one: settings.writers_one, given: settings.members.clone() };
    let how = How { members, ..How::new(source, table, "the pool for mysql".to_owned()) };
    let connection = Connection::open(how, settings.create).await?;
    Ok(table::store(MySql { connection }, Listeners::default(), settings.terms))
}
