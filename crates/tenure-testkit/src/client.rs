//! A tiny blocking Redis client (RESP2) for setting a scene and looking at the result.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::resp;

/// Answer of Redis.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// No such thing.
    Nil,
    /// A number.
    Int(i64),
    /// A status or a value.
    Bytes(Vec<u8>),
    /// An error, with its prefix.
    Error(String),
    /// Several of them.
    Array(Vec<Self>),
}

impl Reply {
    /// The text of a status, value, number or error; empty for nil; one line per element for an array.
    pub fn text(&self) -> String {
        match self {
            Self::Nil => String::new(),
            Self::Int(number) => number.to_string(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Error(text) => text.clone(),
            Self::Array(all) => all.iter().map(Self::text).collect::<Vec<_>>().join("\n"),
        }
    }

    /// The number; panics on anything else.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("expected a number, Redis said {other:?}"),
        }
    }

    /// The values of an array; empty for anything else.
    pub fn values(&self) -> Vec<&[u8]> {
        let Self::Array(all) = self else { return Vec::new() };
        all.iter().filter_map(|value| if let Self::Bytes(bytes) = value { Some(&bytes[..]) } else { None }).collect()
    }

    /// Whether this is nil.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Reads one complete frame; returns it with the bytes after it.
    fn parse(bytes: &[u8]) -> io::Result<(Self, &[u8])> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a RESP2 reply");
        let (line, head) = resp::line(bytes).ok_or_else(broken)?;
        let text = || String::from_utf8_lossy(line).into_owned();
        let number = || text().parse::<i64>().map_err(|_| broken());
        let mut rest = &bytes[head..];
        let reply = match bytes[0] {
            b'+' => Self::Bytes(line.to_vec()),
            b'-' => Self::Error(text()),
            b':' => Self::Int(number()?),
            b'$' => match usize::try_from(number()?) {
                Err(_) => Self::Nil,
                Ok(length) => {
                    let value = rest.get(..length).ok_or_else(broken)?;
                    rest = rest.get(length + 2..).ok_or_else(broken)?;
                    Self::Bytes(value.to_vec())
                }
            },
            b'*' => match usize::try_from(number()?) {
                Err(_) => Self::Nil,
                Ok(length) => {
                    let mut all = Vec::new();
                    for _ in 0..length {
                        let (element, after) = Self::parse(rest)?;
                        all.push(element);
                        rest = after;
                    }
                    Self::Array(all)
                }
            },
            _ => return Err(broken()),
        };
        Ok((reply, rest))
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("Nil"),
            Self::Int(number) => write!(f, "Int({number})"),
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Error(text) => write!(f, "Error({text:?})"),
            Self::Array(all) => f.debug_list().entries(all).finish(),
        }
    }
}

impl PartialEq<&str> for Reply {
    fn eq(&self, text: &&str) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes == text.as_bytes())
    }
}

impl PartialEq<i64> for Reply {
    fn eq(&self, number: &i64) -> bool {
        *self == Self::Int(*number)
    }
}

trait Stream: Read + Write + Send + fmt::Debug {
    fn bound(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn bound(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Stream for UnixStream {
    fn bound(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

/// One blocking connection to a Redis server or to a proxy in front of one.
#[derive(Debug)]
pub struct Client {
    stream: Box<dyn Stream>,
    unread: Vec<u8>,
}

impl Client {
    /// Connects over TCP; every later read and write is bounded by `timeout`.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        Self::over(stream, timeout)
    }

    /// Connects to a unix socket; every later read and write is bounded by `timeout`.
    pub fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?, timeout)
    }

    fn over(stream: impl Stream + 'static, timeout: Duration) -> io::Result<Self> {
        stream.bound(timeout)?;
        Ok(Self { stream: Box::new(stream), unread: Vec::new() })
    }

    /// Bounds every later read and write by `timeout`; one that runs out is `WouldBlock` or `TimedOut` and loses nothing.
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.stream.bound(timeout)
    }

    /// Sends one command and waits for its reply.
    pub fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends one command and does not wait.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        self.stream.write_all(&resp::request(words))
    }

    /// Waits for the next reply; an end of the stream is `UnexpectedEof`.
    pub fn receive(&mut self) -> io::Result<Reply> {
        loop {
            let whole = resp::frame_len(&self.unread).map_err(|_| io::ErrorKind::InvalidData)?;
            if let Some(length) = whole {
                let frame: Vec<u8> = self.unread.drain(..length).collect();
                return Reply::parse(&frame).map(|(reply, _)| reply);
            }
            let mut buffer = [0; 16 * 1024];
            let read = match self.stream.read(&mut buffer) {
                // A signal came to this process. With a timeout no call goes on by itself then.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.extend_from_slice(&buffer[..read]);
        }
    }
}
