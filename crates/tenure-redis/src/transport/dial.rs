//! A server, and a byte stream to it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;

use redis::io::tcp::{TcpSettings, socket2::SockRef};
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};
use tenure::store::{Credentials, Login, Refusals};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

pub(crate) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Bytes for S {}

/// A server, and how to log in there.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Without a login.
    pub(crate) client: Client,
    pub(crate) credentials: Credentials,
    /// Answers that mean nothing: a proxy may give them while it has no server behind it.
    pub(crate) senseless: Refusals,
}

impl Peer {
    pub(crate) fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    /// The same with another address.
    pub(crate) fn at(&self, address: ConnectionAddr) -> RedisResult<Self> {
        let client = Client::open(self.info().clone().set_addr(address))?;
        Ok(Self { client, credentials: self.credentials.clone(), senseless: Refusals::default() })
    }

    /// A client that logs in.
    pub(crate) fn with_login(&self, Login { user, password }: &Login) -> RedisResult<Client> {
        let mut settings = self.info().redis_settings().clone();
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        Client::open(self.info().clone().set_redis_settings(settings))
    }
}

/// A byte stream, and both ends of it.
pub(crate) struct Dialed {
    pub(crate) stream: Box<dyn Bytes>,
    /// A name may lead to another server each time.
    pub(crate) server: String,
    /// Empty on a unix socket.
    pub(crate) local: String,
}

/// Connects. None for TLS, which the client library does.
pub(crate) async fn dial(client: &Client) -> io::Result<Option<Dialed>> {
    let info = client.get_connection_info();
    Ok(match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = tenure::store::connect(addresses(host, *port).await?, TcpStream::connect).await?;
            set(&stream, info.tcp_settings())?;
            let (server, local) = (stream.peer_addr()?.to_string(), stream.local_addr()?.to_string());
            Some(Dialed { stream: Box::new(stream), server, local })
        }
        ConnectionAddr::Unix(path) => {
            let stream = Box::new(UnixStream::connect(path).await?);
            Some(Dialed { stream, server: info.addr().to_string(), local: String::new() })
        }
        _ => None,
    })
}

/// The addresses of a host. A thread of its own resolves them: if none can be started, the
/// runtime's would panic.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let (answer, found) = oneshot::channel();
    let host = host.to_owned();
    let look_up = move || {
        // The caller may have gone.
        let _ = answer.send((host.as_str(), port).to_socket_addrs().map(Iterator::collect));
    };
    thread::Builder::new().name("tenure-look-up".into()).spawn(look_up)?;
    found.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
}

fn set(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}
