//! As much of the Redis protocol as a raw socket needs.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Failure;

/// A socket, which blocks or does not, and what was read from it and not yet looked at.
pub struct Socket<S = TcpStream> {
    stream: S,
    buffer: Vec<u8>,
    at: usize,
}

pub type AsyncSocket = Socket<tokio::net::TcpStream>;

impl Socket {
    pub fn connect(url: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address(url)?)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), at: 0 })
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn ask(&mut self, words: &[&[u8]]) -> Result<(), Failure> {
        let mut command = Vec::new();
        put(&mut command, words);
        Ok(self.write(&command)?)
    }

    /// Waits for more to read.
    pub fn fill(&mut self) -> Result<(), Failure> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let length = self.buffer.len();
        self.buffer.resize(length + (64 << 10), 0);
        let read = self.stream.read(&mut self.buffer[length..])?;
        self.buffer.truncate(length + read);
        if read == 0 { Err("the server hung up".into()) } else { Ok(()) }
    }
}

impl AsyncSocket {
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let stream = tokio::net::TcpStream::connect(address(url)?).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), at: 0 })
    }

    pub async fn ask(&mut self, words: &[&[u8]]) -> Result<(), Failure> {
        let mut command = Vec::new();
        put(&mut command, words);
        Ok(self.stream.write_all(&command).await?)
    }

    /// The shape of what comes next, a reply or a push; nothing is lost when it is dropped.
    pub async fn next(&mut self) -> Result<Vec<u8>, Failure> {
        let mut shape = Vec::new();
        while !self.reply(&mut shape)? {
            self.buffer.drain(..self.at);
            self.at = 0;
            self.buffer.reserve(4 << 10);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server hung up".into());
            }
        }
        Ok(shape)
    }
}

impl<S> Socket<S> {
    /// The next line without its end, if it is all there.
    pub fn line(&mut self) -> Option<&[u8]> {
        let rest = &self.buffer[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let begin = self.at;
        self.at += end + 2;
        Some(&self.buffer[begin..begin + end])
    }

    /// Adds the shape of the next reply to `shape` if it is all there: a letter for each of its parts.
    pub fn reply(&mut self, shape: &mut Vec<u8>) -> Result<bool, Failure> {
        let (at, length) = (self.at, shape.len());
        let mut parts = 1;
        while parts > 0 {
            parts -= 1;
            let Some(line) = self.line() else {
                self.at = at;
                shape.truncate(length);
                return Ok(false);
            };
            let kind = *line.first().ok_or("an empty reply")?;
            if kind == b'-' {
                return Err(String::from_utf8_lossy(line).into_owned().into());
            }
            let number = || Ok::<_, Failure>(std::str::from_utf8(&line[1..])?.parse::<i64>()?);
            match kind {
                b'$' | b'*' | b'>' | b'%' => match (kind, usize::try_from(number()?)) {
                    (_, Err(_)) => shape.push(b'n'),
                    (b'*' | b'>' | b'%', Ok(count)) => {
                        shape.push(kind);
                        parts += if kind == b'%' { 2 * count } else { count };
                    }
                    (_, Ok(bytes)) => {
                        shape.push(kind);
                        self.at += bytes + 2;
                        if self.at > self.buffer.len() {
                            self.at = at;
                            shape.truncate(length);
                            return Ok(false);
                        }
                    }
                },
                b':' => shape.push(if number()? == 0 { b'0' } else { b':' }),
                _ => shape.push(kind),
            }
        }
        Ok(true)
    }
}

fn address(url: &str) -> Result<&str, Failure> {
    Ok(url.strip_prefix("redis://").ok_or("the raw socket speaks redis://HOST:PORT only")?)
}

/// Adds a command.
pub fn put(to: &mut Vec<u8>, words: &[&[u8]]) {
    to.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        to.extend(format!("${}\r\n", word.len()).bytes());
        to.extend_from_slice(word);
        to.extend(b"\r\n");
    }
}
