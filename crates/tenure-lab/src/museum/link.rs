//! The ways to each engine: commands as bytes, replies as text.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use tenure_testkit::{Client, Reply};

use super::server::LOCK;

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// One connection.
pub(super) trait Link {
    fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()>;

    /// The reply to the last of the commands, or a message.
    fn receive(&mut self) -> io::Result<String>;
}

pub(super) struct Redis {
    link: Client,
    /// Commands without a reply so far.
    unheard: usize,
}

impl Redis {
    pub(super) fn open(to: SocketAddr) -> io::Result<Self> {
        Ok(Self { link: Client::connect(to, PATIENCE)?, unheard: 0 })
    }
}

impl Link for Redis {
    fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()> {
        self.unheard = commands.len();
        commands.iter().try_for_each(|command| self.link.send(command))
    }

    fn receive(&mut self) -> io::Result<String> {
        let mut last = self.link.receive()?;
        for _ in 1..std::mem::take(&mut self.unheard) {
            last = self.link.receive()?;
        }
        Ok(text(&last))
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Nil => "nil".to_owned(),
        Reply::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.text(),
    }
}

pub(super) struct Table {
    file: PathBuf,
    answer: String,
}

impl Table {
    pub(super) fn open(file: PathBuf) -> Self {
        Self { file, answer: String::new() }
    }

    fn run(&self, sql: &str) -> rusqlite::Result<String> {
        let table = rusqlite::Connection::open(&self.file)?;
        table.busy_timeout(PATIENCE)?;
        if !sql.starts_with("SELECT") {
            return table.execute(sql, []).map(|rows| rows.to_string());
        }
        table.query_row(sql, [], |row| Ok(format!("{} {}", row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
    }
}

impl Link for Table {
    fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()> {
        self.answer = self.run(&commands.concat().join(" ")).map_err(io::Error::other)?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<String> {
        Ok(self.answer.clone())
    }
}

pub(super) struct Memcached {
    stream: BufReader<TcpStream>,
    /// The version of the item, as `gets` read it last.
    version: String,
}

impl Memcached {
    pub(super) fn open(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), version: String::new() })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Link for Memcached {
    /// A story has the words of the text protocol without flags, length and version.
    fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()> {
        let words: Vec<&str> = commands.iter().flatten().map(String::as_str).collect();
        let line = match words[..] {
            ["add", key, value, ttl] => format!("add {key} 0 {ttl} {}\r\n{value}", value.len()),
            ["cas", key, value, ttl] => format!("cas {key} 0 {ttl} {} {}\r\n{value}", value.len(), self.version),
            _ => words.join(" "),
        };
        self.stream.get_mut().write_all(format!("{line}\r\n").as_bytes())
    }

    fn receive(&mut self) -> io::Result<String> {
        let line = self.line()?;
        if line == "END" {
            return Ok("nil".to_owned());
        }
        let Some(head) = line.strip_prefix(&format!("VALUE {LOCK} ")) else { return Ok(line) };
        // Flags and length, and behind them the version, if it was asked for.
        self.version = head.split(' ').nth(2).unwrap_or(&self.version).to_owned();
        let value = self.line()?;
        assert_eq!(self.line()?, "END");
        Ok(value)
    }
}
