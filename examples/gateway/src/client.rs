//! A connection that is kept, for one request after another.

use std::net::SocketAddr;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::Error;
use crate::service::USER;

pub(crate) struct Client {
    to: SocketAddr,
    sender: Sender,
}

type Sender = SendRequest<Empty<Bytes>>;

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Result<Self, Error> {
        Ok(Self { to, sender: open(to).await? })
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
        // A connection that broke fails one request, and not all that follow.
        if self.sender.is_closed() {
            self.sender = open(self.to).await?;
        }
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

async fn open(to: SocketAddr) -> Result<Sender, Error> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
