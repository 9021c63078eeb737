//! A new connection: to the first server of the URL that may be written to.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use rustls::ClientConfig;
use tenure::store::record::Listeners;
use tenure::{Error, ErrorKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{AsyncMessage, Config, SimpleQueryMessage, SimpleQueryRow};

use super::client::Client;
use super::failure::{is_missing, other_version, pooled, read_only, translate, translate_contact};
use super::server::How;
use super::session::{Announced, Watched};
use super::statements::{LEVEL, SET_LEVEL, VERSION};
use super::tls::Connector;
use crate::handover;
use crate::table::failure::unexpected;
use crate::table::{Link, Session};

/// Connects to the servers in their order, until one of them can be used.
pub(super) async fn open(how: &How, create: bool) -> Result<Link<Client>, Error> {
    let mut failed: Option<Error> = None;
    for (at, host) in how.config.get_hosts().iter().enumerate() {
        let port = port_of(&how.config, at);
        match contact(how, host, port, create).await {
            Ok(link) => return Ok(link),
            // A server that answers says more than one that does not.
            Err(error) => failed = Some(failed.filter(|known| known.kind() != ErrorKind::Unreachable).unwrap_or(error)),
        }
    }
    Err(failed.unwrap_or_else(|| Error::invalid("the store URL has no host")))
}

fn port_of(config: &Config, at: usize) -> u16 {
    let ports = config.get_ports();
    ports.get(at).or(ports.first()).copied().unwrap_or(5432)
}

async fn contact(how: &How, host: &Host, port: u16, create: bool) -> Result<Link<Client>, Error> {
    let shown = shown(host, port);
    let unreachable = |error: io::Error| Error::unreachable(format!("the server at {shown} cannot be reached: {error}"));
    let socket = Socket::connect(host, port).await.map_err(unreachable)?;
    let announced = Announced::new();
    let (config, tls) = match (&how.tls, host) {
        (Some(tls), Host::Tcp(name)) => (how.config.clone(), Some((tls.clone(), name.clone()))),
        // A unix socket has no TLS.
        _ => (how.config.clone().ssl_mode(SslMode::Disable).clone(), None),
    };
    let (client, driver) = connect(config, socket, tls, &announced, how).await?;
    let row = hello(&client, how, create).await?.ok_or_else(|| unexpected("it has no row"))?;
    let text = |at: usize| row.try_get(at).map_err(unexpected);
    if text(0)? == Some("t") {
        return Err(read_only());
    }
    let encoding = text(3)?.unwrap_or_default();
    if encoding != "UTF8" {
        return Err(Error::refused(format!("the database has the encoding {encoding}, which cannot keep every name"))
            .with_hint("use a database with the encoding UTF8"));
    }
    let version: Option<i64> = text(4)?.map(str::parse).transpose().map_err(unexpected)?;
    if version != Some(VERSION) {
        return Err(other_version(&how.table, version));
    }
    let process: i32 = text(1)?.unwrap_or_default().parse().map_err(unexpected)?;
    let Some(began) = text(2)?.filter(|_| announced.is(process)).map(str::to_owned) else {
        driver.abort();
        return Err(pooled());
    };
    if text(5)? != Some(LEVEL) {
        client.batch_execute(SET_LEVEL).await.map_err(|error| translate_contact(&error, &how.table))?;
    }
    Ok(Link::new(Client::new(client), driver, Some(Session { server: shown, id: process.into(), began })))
}

/// Looks at a fresh connection. If the table is missing, makes it if that is wished.
async fn hello(client: &tokio_postgres::Client, how: &How, create: bool) -> Result<Option<SimpleQueryRow>, Error> {
    let ask = async || {
        let row = |message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None };
        Ok(client.simple_query(&how.statements.hello).await?.into_iter().find_map(row))
    };
    let asked: Result<_, tokio_postgres::Error> = ask().await;
    // Another process may have made the table a moment ago. Above read committed, it is seen before its
    // own row.
    let is_half_made = |row: &SimpleQueryRow| matches!(row.try_get(4), Ok(None));
    let is_to_be_made = match &asked {
        Ok(row) => row.as_ref().is_some_and(is_half_made),
        Err(error) => is_missing(error),
    };
    if !is_to_be_made || !create {
        return asked.map_err(|error| translate_contact(&error, &how.table));
    }
    // Another process may make it at the same moment, and then this one fails.
    let made = client.batch_execute(&how.statements.create).await;
    match (ask().await, made) {
        (Err(error), Err(refused)) if is_missing(&error) => Err(translate(&refused, &how.table)),
        (asked, _) => asked.map_err(|error| translate_contact(&error, &how.table)),
    }
}

async fn connect(
    config: Config,
    socket: Socket,
    tls: Option<(Arc<ClientConfig>, String)>,
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
                let stream = TcpStream::connect((host.as_str(), port)).await?;
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
