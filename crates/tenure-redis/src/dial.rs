//! A byte stream to a server.

use std::io;

use redis::io::tcp::{TcpSettings, socket2::SockRef};
use redis::{Client, ConnectionAddr};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

pub(crate) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Bytes for S {}

/// Connects; none for TLS, which the client library speaks.
pub(crate) async fn dial(client: &Client) -> io::Result<Option<Box<dyn Bytes>>> {
    let info = client.get_connection_info();
    Ok(match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            set(&stream, info.tcp_settings())?;
            Some(Box::new(stream))
        }
        ConnectionAddr::Unix(path) => Some(Box::new(UnixStream::connect(path).await?)),
        _ => None,
    })
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
