//! A connection that is kept, for one request after another.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Error;
use crate::service::USER;

/// Time after which an answer counts as none. A service that stands still must not keep its caller.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Client {
    to: SocketAddr,
    /// None while a request is under way: its connection is of no use if that is given up.
    sender: Option<Sender>,
}

type Sender = SendRequest<Empty<Bytes>>;

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Result<Self, Error> {
        Ok(Self { to, sender: Some(open(to).await?) })
    }

    /// Makes a client that connects for its first request.
    pub(crate) const fn new(to: SocketAddr) -> Self {
        Self { to, sender: None }
    }

    /// Asks for `path` as `user`, and reads the whole answer.
    pub(crate) async fn post(&mut self, path: &'static str, user: u64) -> Result<(StatusCode, Bytes), Error> {
        self.send(Request::post(path).header(USER, user)).await
    }

    pub(crate) async fn get(&mut self, path: &'static str) -> Result<Bytes, Error> {
        Ok(self.send(Request::get(path)).await?.1)
    }

    async fn send(&mut self, request: axum::http::request::Builder) -> Result<(StatusCode, Bytes), Error> {
        let request = request.header("host", self.to.to_string()).body(Empty::new())?;
        timeout(PATIENCE, async {
            // A connection that broke fails one request, and not all that follow.
            let mut sender = match self.sender.take() {
                Some(sender) if !sender.is_closed() => sender,
                _ => open(self.to).await?,
            };
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            self.sender = Some(sender);
            Ok((status, body))
        })
        .await?
    }
}

async fn open(to: SocketAddr) -> Result<Sender, Error> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
