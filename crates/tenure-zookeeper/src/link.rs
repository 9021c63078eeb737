//! One connection to a server.

use std::io;
use std::time::Duration;

use tenure::Error;
use tenure::store::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::failure::{AUTH_FAILED, Failed};
use crate::wire::{Connected, Frame, Reading, XID_AUTH, connect};

/// A message may not be longer. Servers refuse more than 1 MiB by default.
const LONGEST: usize = 64 << 20;

/// How a session is known to the ensemble.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
    /// The latest transaction that was seen. A server that is behind it is not used.
    pub(crate) seen: i64,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Undialled {
    /// The ensemble has ended the session.
    Expired,
    /// A server refuses the login, or there is none. Others may have failed.
    Refused(Error),
    Failed(io::Error),
}

impl Undialled {
    pub(crate) const fn refusal(&mut self) -> Option<&mut Error> {
        if let Self::Refused(error) = self { Some(error) } else { None }
    }
}

impl From<Error> for Undialled {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<io::Error> for Undialled {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

pub(crate) struct Link {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Link {
    /// Connects to a server, for a session of its own if `identity` has none, and logs in. Returns the timeout that the server
    /// gives it.
    pub(crate) async fn dial(
        host: &Host,
        identity: &mut Identity,
        timeout: Duration,
        login: Option<&(String, String)>,
        end: Instant,
    ) -> Result<(Self, Duration), Undialled> {
        let late = |_| Undialled::Failed(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"));
        timeout_at(end, Self::shake_hands(host, identity, timeout, login)).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    async fn shake_hands(
        host: &Host,
        identity: &mut Identity,
        timeout: Duration,
        login: Option<&(String, String)>,
    ) -> Result<(Self, Duration), Undialled> {
        let stream = tenure::store::connect(lookup_host((host.name.as_str(), host.port)).await?, TcpStream::connect).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let nobody = [0; 16];
        let password = if identity.session == 0 { &nobody } else { &*identity.password };
        let output = connect(identity.seen, millis, identity.session, password);
        let mut link = Self { reader, writer, input: Vec::new(), output };
        let answer = link.exchange().await?;
        let connected = Connected::read(&answer).ok_or_else(garbled)?;
        let (Ok(given), true) = (u64::try_from(connected.timeout), connected.timeout > 0 && connected.session != 0) else {
            return Err(Undialled::Expired);
        };
        (identity.session, identity.password) = (connected.session, connected.password);
        if let Some((user, password)) = login {
            Frame::auth(user, password).write(XID_AUTH, &mut link.output);
            let answer = link.exchange().await?;
            let mut reading = Reading(&answer);
            let code = (|| Some((reading.int()?, reading.long()?, reading.int()?)))().ok_or_else(garbled)?.2;
            if code != 0 {
                return Err(Undialled::Refused(Failed::Code(AUTH_FAILED).error()));
            }
        }
        Ok((link, Duration::from_millis(given)))
    }

    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Writes all output, and reads one message.
    async fn exchange(&mut self) -> io::Result<Vec<u8>> {
        while !self.output.is_empty() {
            self.write().await?;
        }
        loop {
            if let Some(answer) = self.take()? {
                return Ok(answer);
            }
            self.read().await?;
        }
    }

    /// Does what can be done first: write a part of the output, or read a part of the input. Returns whether it has read.
    pub(crate) async fn turn(&mut self) -> io::Result<bool> {
        let Self { reader, writer, input, output } = self;
        tokio::select! {
            written = writer.write(output), if !output.is_empty() => {
                let written = written?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                output.drain(..written);
                Ok(false)
            }
            read = reader.read_buf(input) => match read? {
                0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection")),
                _ => Ok(true),
            },
        }
    }

    async fn write(&mut self) -> io::Result<()> {
        let written = self.writer.write(&self.output).await?;
        self.output.drain(..written);
        Ok(())
    }

    async fn read(&mut self) -> io::Result<()> {
        match self.reader.read_buf(&mut self.input).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection")),
            _ => Ok(()),
        }
    }

    /// Takes a whole message from the input.
    pub(crate) fn take(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(head) = self.input.first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*head)).ok().filter(|length| *length <= LONGEST).ok_or_else(garbled)?;
        if self.input.len() < 4 + length {
            return Ok(None);
        }
        let rest = self.input.split_off(4 + length);
        let mut message = std::mem::replace(&mut self.input, rest);
        message.drain(..4);
        Ok(Some(message))
    }

    /// Writes all output: the last of a connection.
    pub(crate) async fn finish(mut self) {
        while !self.output.is_empty() && self.write().await.is_ok() {}
        // The server closes it when the session has ended.
        while self.read().await.is_ok() {
            self.input.clear();
        }
    }
}

pub(crate) fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not answer as a ZooKeeper does")
}
