//! A real memcached for one test, or for all tests of a process.

mod fill;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::ShiftedClock;
use crate::process::{Signal, fresh, signal, wait_until};
use crate::server::{self, Kind, Server};

pub use self::fill::Filling;

const ANSWER: Duration = Duration::from_secs(10);
const LOGINS: &str = "logins";

/// A running memcached. A restart empties it.
pub type MemcachedServer = Server<Memcached>;

/// How to start a [`MemcachedServer`].
pub type Builder = server::Builder<Memcached>;

/// The particulars of memcached.
#[derive(Debug, Default)]
pub struct Memcached {
    login: Option<String>,
}

impl Builder {
    /// Adds an argument, as `arg("-M")` or `arg("-m").arg("1")`.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Wants this user and password of everybody.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.kind.login = Some(format!("{user}:{password}\n"));
        self
    }

    /// Gives it this clock.
    #[must_use]
    pub fn clock(mut self, clock: &Arc<ShiftedClock>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }
}

impl Kind for Memcached {
    const NAME: &str = "memcached";
    const REMEDY: &str = "apt-get install memcached";

    fn prepare(server: &MemcachedServer) {
        if let Some(login) = &server.how.kind.login {
            server.write(LOGINS, login);
        }
    }

    fn command(server: &MemcachedServer) -> Command {
        let mut command = server.command_of("memcached");
        command.args(["-l", "127.0.0.1", "-U", "0", "-p", &server.port().to_string()]);
        if rustix::process::getuid().is_root() {
            command.args(["-u", "root"]);
        }
        if server.how.kind.login.is_some() {
            command.args(["-Y", LOGINS]);
        }
        command
    }

    fn is_ready(server: &MemcachedServer, pid: u32) -> bool {
        server.try_ask(b"stats", None).is_ok_and(|lines| lines.contains(&format!("STAT pid {pid}")))
    }
}

impl MemcachedServer {
    /// A prefix that nobody else in this process has.
    pub fn fresh_prefix() -> String {
        fresh("t") + ":"
    }

    /// The store URL of a way to it: its own address, or that of a proxy.
    pub fn url_at(addr: SocketAddr, prefix: &str) -> String {
        format!("memcached://{addr}?prefix={prefix}")
    }

    /// The store URL.
    pub fn url(&self) -> String {
        format!("memcached://{}", self.addr())
    }

    /// Sends a command line, and returns the lines of its answer. `lines`: how many it has, or none
    /// for all up to `END`.
    #[track_caller]
    pub fn ask(&self, command: &str, lines: Option<usize>) -> Vec<String> {
        let answer = self.try_ask(command.as_bytes(), lines);
        answer.unwrap_or_else(|error| panic!("memcached at port {} gave no answer: {error}", self.port()))
    }

    /// Forgets everything, as `flush_all` does.
    #[track_caller]
    pub fn flush_all(&self) {
        assert_eq!(self.ask("flush_all", Some(1)), ["OK"]);
    }

    /// Sets a value, as any client does.
    #[track_caller]
    pub fn set_bytes(&self, key: &str, value: &[u8], seconds: u32) {
        let command = [format!("set {key} 0 {seconds} {}\r\n", value.len()).as_bytes(), value].concat();
        let answer = self.try_ask(&command, Some(1)).expect("memcached answers");
        assert_eq!(answer, ["STORED"]);
    }

    /// One of its statistics.
    #[track_caller]
    pub fn stat(&self, name: &str) -> u64 {
        let lines = self.ask("stats", None);
        let value = lines.iter().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {lines:?}"))
    }

    /// Wants another password of its user from now on. It ends no connection.
    pub fn change_password(&self, user: &str, password: &str) {
        self.write(LOGINS, format!("{user}:{password}\n"));
        signal(self.pid(), Signal::Hup).expect("the server runs");
        wait_until(ANSWER, "the server to read its logins again", || self.takes(user, password));
    }

    fn takes(&self, user: &str, password: &str) -> bool {
        let words = format!("{user} {password}");
        let answer = TcpStream::connect_timeout(&self.addr(), ANSWER).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER))?;
            write!(&stream, "set login 0 0 {}\r\n{words}\r\n", words.len())?;
            BufReader::new(stream).lines().next().unwrap_or_else(|| Ok(String::new()))
        });
        answer.is_ok_and(|line| line == "STORED")
    }

    fn try_ask(&self, command: &[u8], lines: Option<usize>) -> io::Result<Vec<String>> {
        let stream = TcpStream::connect_timeout(&self.addr(), ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut answer = BufReader::new(stream.try_clone()?).lines();
        let mut line = || answer.next().unwrap_or_else(|| Err(io::ErrorKind::ConnectionReset.into()));
        if let Some(login) = &self.how.kind.login {
            let words = login.trim_end().replacen(':', " ", 1);
            write!(&stream, "set login 0 0 {}\r\n{words}\r\n", words.len())?;
            line()?;
        }
        (&stream).write_all(&[command, b"\r\n"].concat())?;
        let mut all = Vec::new();
        while lines.is_none_or(|lines| all.len() < lines) {
            match line()? {
                end if end == "END" && lines.is_none() => break,
                more => all.push(more),
            }
        }
        Ok(all)
    }
}
