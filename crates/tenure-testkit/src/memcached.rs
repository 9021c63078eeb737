//! A real memcached for one test, or for all tests of a process.

mod fill;

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::guardian;
use crate::process::{Signal, Spawned, free_port};

pub use self::fill::Filling;

const START: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(10);
const LOG: &str = "log";
const LOGINS: &str = "logins";

/// How to start a [`MemcachedServer`].
#[derive(Debug, Default)]
pub struct Builder {
    arguments: Vec<String>,
    login: Option<String>,
    clock: Option<Arc<ShiftedClock>>,
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
        self.login = Some(format!("{user}:{password}\n"));
        self
    }

    /// Gives it this clock.
    #[must_use]
    pub fn clock(mut self, clock: &Arc<ShiftedClock>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }

    /// Starts the server and returns when it answers.
    pub fn start(self) -> MemcachedServer {
        guardian::watch_over_us().expect("a guardian can be started");
        let dir = TempDir::with_prefix("tenure-memcached-").expect("a temporary directory can be made");
        if let Some(login) = &self.login {
            fs::write(dir.path().join(LOGINS), login).expect("a directory of ours can be written");
        }
        let mut server = MemcachedServer { dir, port: 0, how: self, process: Mutex::default() };
        // Between the choice of a port and the server's bind somebody else may take it.
        for _ in 0..20 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("memcached found no free port in 20 attempts");
    }
}

/// A running memcached on a port of its own, killed and reaped when this is dropped.
#[derive(Debug)]
pub struct MemcachedServer {
    dir: TempDir,
    port: u16,
    how: Builder,
    process: Mutex<Option<Spawned>>,
}

impl MemcachedServer {
    /// Starts one with the defaults.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// For one with arguments of its own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The one that all tests of this process share, for those that do not harm it. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<MemcachedServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A prefix that nobody else in this process has.
    pub fn fresh_prefix() -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        format!("t{}.{}:", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
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
        answer.unwrap_or_else(|error| panic!("memcached at port {} gave no answer: {error}", self.port))
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

    /// Freezes the process (SIGSTOP); connections can still be made, nothing is answered.
    pub fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Lets a frozen process go on; what was sent meanwhile is executed now.
    pub fn cont(&self) {
        self.signal(Signal::Cont);
    }

    /// Kills the process (SIGKILL) and reaps it; once more is no error.
    pub fn kill(&self) {
        drop(self.process().take());
    }

    /// Kills what still runs and starts again, empty, on the same port.
    pub fn restart(&self) {
        self.kill();
        let deadline = Instant::now() + START;
        while !self.launch() {
            assert!(Instant::now() < deadline, "port {} was taken while memcached was down", self.port);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Wants another password of its user from now on. It ends no connection.
    pub fn change_password(&self, user: &str, password: &str) {
        fs::write(self.dir.path().join(LOGINS), format!("{user}:{password}\n")).expect("a directory of ours can be written");
        self.signal(Signal::Hup);
        crate::process::wait_until(ANSWER, "the server to read its logins again", || self.takes(user, password));
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

    fn signal(&self, signal: Signal) {
        let mut process = self.process();
        process.as_mut().expect("the server was killed").signal(signal).expect("the server runs");
    }

    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_ask(&self, command: &[u8], lines: Option<usize>) -> io::Result<Vec<String>> {
        let stream = TcpStream::connect_timeout(&self.addr(), ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut answer = BufReader::new(stream.try_clone()?).lines();
        let mut line = || answer.next().unwrap_or_else(|| Err(io::ErrorKind::ConnectionReset.into()));
        if let Some(login) = &self.how.login {
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

    /// Starts the process and waits until it answers; false when its port was taken.
    fn launch(&self) -> bool {
        let log = fs::File::create(self.dir.path().join(LOG)).expect("a directory of ours can be written");
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-U", "0", "-p", &self.port.to_string()]);
        if rustix::process::getuid().is_root() {
            command.args(["-u", "root"]);
        }
        if self.how.login.is_some() {
            command.args(["-Y", LOGINS]);
        }
        if let Some(clock) = &self.how.clock {
            clock.apply(&mut command);
        }
        command.args(&self.how.arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        let mut process = Spawned::spawn(&mut command).expect("memcached can be started: apt-get install memcached");
        let deadline = Instant::now() + START;
        while !self.is_answered_by(process.pid()) {
            if let Some(status) = process.child().try_wait().expect("a child of ours can be waited for") {
                let log = fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
                assert!(log.contains("already in use"), "memcached ended with {status}:\n{log}");
                return false;
            }
            assert!(Instant::now() < deadline, "memcached did not answer within {START:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        *self.process() = Some(process);
        true
    }

    /// Whether it answers, and not another server at the port.
    fn is_answered_by(&self, pid: u32) -> bool {
        self.try_ask(b"stats", None).is_ok_and(|lines| lines.contains(&format!("STAT pid {pid}")))
    }
}
