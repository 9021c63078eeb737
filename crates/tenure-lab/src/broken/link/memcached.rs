//! A client of memcached, as far as the schemes need one.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;
use crate::broken::command::{LOCK, Value, Writer};
use crate::broken::memcached::{DELETED, EXISTS, Memcached, NOT_FOUND, NOT_STORED, STORED};
use crate::broken::program::Tick;
use crate::broken::wire::Scale;

pub(crate) struct Link {
    stream: BufReader<TcpStream>,
    /// The version of the item, as `gets` read it last.
    version: u64,
}

impl Link {
    pub(super) fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), version: 0 })
    }

    pub(super) fn send(&mut self, scale: &Scale, call: Memcached) -> io::Result<()> {
        let words = match call {
            Memcached::Add(value, ttl) => {
                let text = scale.text(value);
                format!("add {LOCK} 0 {} {}\r\n{text}", seconds(scale, ttl), text.len())
            }
            Memcached::Get => format!("get {LOCK}"),
            Memcached::Gets => format!("gets {LOCK}"),
            Memcached::Cas(value) => {
                let text = scale.text(value);
                format!("cas {LOCK} 0 0 {} {}\r\n{text}", text.len(), self.version)
            }
            Memcached::Delete => format!("delete {LOCK}"),
        };
        self.stream.get_mut().write_all(format!("{words}\r\n").as_bytes())
    }

    pub(super) fn receive(&mut self, scale: &Scale) -> io::Result<Value> {
        let line = self.line()?;
        let Some(head) = line.strip_prefix("VALUE ") else { return Ok(word(&line)) };
        // Key, flags and length, and behind them the version, if it was asked for.
        self.version = head.split(' ').nth(3).map_or(self.version, |version| version.parse().expect("a version"));
        let value = scale.read(&self.line()?);
        assert_eq!(self.line()?, "END");
        Ok(value)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

fn word(line: &str) -> Value {
    let known = [STORED, NOT_STORED, EXISTS, NOT_FOUND, DELETED].into_iter().find(|word| word.to_string() == line);
    match line {
        "END" => Value::Nil,
        line => known.unwrap_or_else(|| panic!("memcached answered {line:?}")),
    }
}

/// An exptime: 0 is for ever.
fn seconds(scale: &Scale, ttl: Option<Tick>) -> u128 {
    ttl.map_or(0, |ttl| scale.lease(ttl).div_ceil(1000))
}
