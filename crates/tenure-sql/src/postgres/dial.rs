//! A new connection: to the first server of the URL that may be written to.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use rustls::ClientConfig;
use tenure::Error;
use tenure::store::record::Listeners;
use tenure::store::{Login, too_few, turn};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Config, Row, SimpleQueryMessage};

use super::client::Prepared;
use super::failure::{missing, other_version, read_only, translate, translate_contact};
use super::read::column;
use super::session::{Announced, Watched};
use super::source::{Client, How};
use super::statements::{CREATE, DEFAULT_PATH, FIND, FIND_NO_TABLE, LEVEL, SET_LEVEL, TABLE, VERSION};
use super::tls::Connector;
use crate::handover;
use crate::table::failure::unexpected;
use crate::table::{Link, Session, no_end};

/// Connects to the servers in their order, until one of them can be used. Each has an equal share of the time that is left. The
/// last one may take longer: the next call goes on with it.
pub(super) async fn open(
    how: &How,
    (config, tls): (&Config, Option<&Arc<ClientConfig>>),
    create: bool,
    limit: Duration,
) -> Result<Link<Client>, Error> {
    let (hosts, mut failures, end) = (config.get_hosts(), Vec::new(), Instant::now() + limit);
    for (at, host) in hosts.iter().enumerate() {
        // A unix socket has no TLS.
        let (config, tls) = match (tls, host) {
            (Some(tls), Host::Tcp(name)) => (config.clone(), Some((tls.clone(), name.clone()))),
            _ => (config.clone().ssl_mode(SslMode::Disable).clone(), None),
        };
        let port = port_of(&config, at);
        let now = Instant::now();
        let turn = match hosts.len() - at {
            1 => no_end().duration_since(now),
            left => turn(end.saturating_duration_since(now), left),
        };
        match contact(how, (config, tls), host, port, (create, turn)).await {
            Ok(link) => return Ok(link),
            Err(error) if hosts.len() > 1 => failures.push(error.context(shown(host, port))),
            Err(error) => return Err(error),
        }
    }
    Err(too_few("no server of the URL can be used", hosts.len().saturating_sub(1), 0, failures))
}

fn port_of(config: &Config, at: usize) -> u16 {
    let ports = config.get_ports();
    ports.get(at).or(ports.first()).copied().unwrap_or(5432)
}

/// Connects to a server, which has to answer within `turn` from when the login is known.
async fn contact(
    how: &How,
    terms: Terms,
    host: &Host,
    port: u16,
    (create, turn): (bool, Duration),
) -> Result<Link<Client>, Error> {
    let shown = shown(host, port);
    let unreachable = |error: io::Error| Error::unreachable(format!("the server cannot be reached: {error}"));
    let attempt = |Login { user, password }| {
        let (mut config, tls) = terms.clone();
        async move {
            if let Some(user) = user {
                config.user(user);
            }
            if let Some(password) = password {
                config.password(password);
            }
            let (announced, until) = (Announced::new(), Instant::now() + turn);
            let connected = async {
                let socket = Socket::connect(host, port).await.map_err(unreachable)?;
                connect((config, tls), socket, &announced, how).await
            };
            let (client, driver) = by(until, connected).await?;
            Ok::<_, Error>((client, driver, announced, until))
        }
    };
    let (client, driver, announced, until) = how.credentials.log_in(attempt).await?;
    let (hello, sent_at, is_session) = by(until, async {
        let (hello, sent_at) = hello(&client, how, create).await?;
        let is_session = announced.is(hello.process);
        // A pool's session is not ours to set.
        if is_session && hello.level != LEVEL {
            client.batch_execute(SET_LEVEL).await.map_err(|error| translate_contact(&error, &how.table))?;
        }
        Ok((hello, sent_at, is_session))
    })
    .await?;
    how.is_pooled.store(!is_session, Ordering::Release);
    if is_session {
        how.clock.stop();
    } else {
        how.clock.start(hello.now, sent_at);
    }
    let session = hello.began.filter(|_| is_session).map(|began| Session { server: shown, id: hello.process.into(), began });
    Ok(Link::new(Client::Own(Box::new(Prepared::new(client, is_session))), driver, session))
}

async fn by<T>(until: Instant, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout_at(until, answer).await.unwrap_or_else(|_| Err(Error::unreachable("no answer in time")))
}

/// The server's side of a connection that can be used.
pub(super) struct Hello {
    process: i32,
    began: Option<String>,
    /// Isolation level of new transactions.
    level: String,
    /// The database's clock, when it was asked.
    pub(super) now: i64,
}

/// Looks at a fresh connection, and at the table. If it is missing, makes it if that is wished.
pub(super) async fn hello(client: &tokio_postgres::Client, how: &How, create: bool) -> Result<(Hello, Instant), Error> {
    let failed = |error| translate_contact(&error, &how.table);
    let name = (&how.table.as_str() as &(dyn ToSql + Sync), Type::TEXT);
    let find = async || {
        let (sql, arguments) = if how.needs_table { (FIND, std::slice::from_ref(&name)) } else { (FIND_NO_TABLE, &[][..]) };
        let rows = client.query_typed(sql, arguments).await.map_err(failed)?;
        rows.into_iter().next().ok_or_else(|| unexpected("it has no row"))
    };
    let mut sent_at = Instant::now();
    let mut row = find().await?;
    if column(&row, 0)? {
        return Err(read_only());
    }
    let hello = |row: &Row| {
        let level = column::<&str>(row, 6)?.to_owned();
        Ok::<_, Error>(Hello { process: column(row, 1)?, began: column(row, 2)?, level, now: column(row, 5)? })
    };
    if !how.needs_table {
        return Ok((hello(&row)?, sent_at));
    }
    let encoding: &str = column(&row, 3)?;
    if encoding != "UTF8" {
        return Err(Error::refused(format!("the database has the encoding {encoding}, which cannot keep every name"))
            .with_hint("use a database with the encoding UTF8"));
    }
    // Another process may make it at the same moment, and then this one fails.
    let create_table = async || client.batch_execute(&format!("{DEFAULT_PATH}{}", CREATE.replace(TABLE, &how.table))).await;
    if create && column::<Option<&str>>(&row, 4)?.is_none() {
        let made = create_table().await;
        sent_at = Instant::now();
        row = find().await?;
        if let (None, Err(refused)) = (column::<Option<&str>>(&row, 4)?, made) {
            return Err(translate(&refused, &how.table));
        }
    }
    let Some(found) = column::<Option<&str>>(&row, 4)? else { return Err(missing(&how.table)) };
    how.found(found);
    let version = async || -> Result<Option<i64>, Error> {
        let row = |message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None };
        let answer = client.simple_query(&how.statements().version).await.map_err(failed)?;
        let version = answer.into_iter().find_map(row);
        version.and_then(|row| row.get(0).map(str::parse)).transpose().map_err(unexpected)
    };
    let mut present = version().await?;
    if create && present.is_none() {
        // Above read committed, a table that another process is just making is seen before its own row.
        create_table().await.map_err(failed)?;
        present = version().await?;
    }
    if present != Some(VERSION) {
        return Err(other_version(&how.table, present));
    }
    Ok((hello(&row)?, sent_at))
}

/// How to log in, and the name of the host if it is to have TLS.
type Terms = (Config, Option<(Arc<ClientConfig>, String)>);

async fn connect(
    (config, tls): Terms,
    socket: Socket,
    announced: &Announced,
    how: &How,
) -> Result<(tokio_postgres::Client, tokio::task::AbortHandle), Error> {
    let failed = |error: tokio_postgres::Error| translate_contact(&error, &how.table);
    let offers = tls.is_some();
    let socket = Watched::new(socket, announced.clone(), offers);
    let listeners = how.listeners.clone();
    let Some((tls, host)) = tls else {
        let (client, mut connection) = config.connect_raw(socket, tokio_postgres::NoTls).await.map_err(failed)?;
        return Ok((client, tokio::spawn(drive(move |cx| connection.poll_message(cx), listeners)).abort_handle()));
    };
    let connector = Connector { config: tls, host, announced: announced.clone() };
    let (client, mut connection) = config.connect_raw(socket, connector).await.map_err(failed)?;
    Ok((client, tokio::spawn(drive(move |cx| connection.poll_message(cx), listeners)).abort_handle()))
}

/// Drives a connection, and hands its notifications to the listeners of this process.
async fn drive(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>>,
    listeners: Listeners,
) {
    while let Some(message) = std::future::poll_fn(&mut poll).await {
        match message {
            Ok(AsyncMessage::Notification(notification)) => {
                if let Some((name, owner, notice)) = handover::read(notification.payload()) {
                    listeners.notify(&name, Some(&owner), &notice);
                }
            }
            Ok(AsyncMessage::Notice(notice)) => tracing::debug!("{}: {}", notice.severity(), notice.message()),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection to PostgreSQL has ended");
                break;
            }
        }
    }
    // Notifications from now on are lost.
    listeners.poll_all();
}

/// A socket of either kind.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    async fn connect(host: &Host, port: u16) -> io::Result<Self> {
        match host {
            Host::Tcp(host) => {
                let stream = tenure::store::connect(lookup_host((host.as_str(), port)).await?, TcpStream::connect).await?;
                stream.set_nodelay(true)?;
                // The kernel notices a dead peer, if our own timeouts have not noticed before.
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
                sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
                sockopt::set_tcp_keepcnt(&stream, 3)?;
                #[cfg(target_os = "linux")]
                sockopt::set_tcp_user_timeout(&stream, 10_000)?;
                Ok(Self::Tcp(stream))
            }
            Host::Unix(directory) => UnixStream::connect(directory.join(format!(".s.PGSQL.{port}"))).await.map(Self::Unix),
        }
    }
}

/// A server as messages name it.
pub(super) fn shown(host: &Host, port: u16) -> String {
    match host {
        Host::Tcp(host) if host.contains(':') => format!("[{host}]:{port}"),
        Host::Tcp(host) => format!("{host}:{port}"),
        Host::Unix(directory) => format!("{}:{port}", directory.display()),
    }
}

/// All servers of a configuration, as messages name them.
pub(super) fn shown_all(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate();
    hosts.map(|(at, host)| shown(host, port_of(config, at))).collect::<Vec<_>>().join(",")
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
