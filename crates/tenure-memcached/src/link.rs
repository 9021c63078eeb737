//! One connection to a server. Commands of all callers go out in the order in which they were given,
//! and a task reads the replies.
//!
//! A caller that goes away leaves its commands to run: their replies are read and dropped. A
//! connection that breaks, or gives an answer that nobody asked for, is never used again.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::{Credentials, Login};
use tenure::{BootTime, Error};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::clock::ServerClock;
use crate::options::words;
use crate::protocol::{Commands, Expected, Parser, Reply, failed};

/// A connection that has answered anything this short a time ago is only slow.
const SILENCE: Duration = Duration::from_millis(100);

/// How often, and how many times, a server that is behind is asked again: until its time has gone on.
const LOOK: Duration = Duration::from_millis(400);
const LOOKS: u32 = 8;

/// A timer that is overdue runs within this time, once its process has been continued.
const TIMER: Duration = Duration::from_millis(10);

const TOO_MANY: &[u8] = b"ERROR Too many open connections";
const CAS_OFF: &[u8] = b"STAT cas_enabled no\r\n";

/// Oldest version with all that is used here. Tested with it.
const FLOOR: [u32; 3] = [1, 6, 18];

/// A call without an answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The commands were given to the connection, so they may run.
    pub(crate) sent: bool,
}

/// Answers to commands.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) replies: Vec<Reply>,
    pub(crate) sent_at: BootTime,
}

/// An open connection. Closed when it is dropped.
pub(crate) struct Link {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    stream: TcpStream,
    state: Mutex<State>,
    /// Something is left to be written.
    more: Notify,
}

struct State {
    /// Bytes that the system would not take yet.
    out: Vec<u8>,
    waiting: VecDeque<Waiting>,
    heard_at: Instant,
    closed: Option<Error>,
    /// Longest ttl of the commands that had no answer when it was closed.
    lost: Option<Duration>,
    clock: Option<ServerClock>,
    /// A task asks for the time again.
    looks: bool,
}

/// Commands that have no answer yet.
struct Waiting {
    expected: Vec<Expected>,
    replies: Vec<Reply>,
    /// How long they may take a name. `None` if they take none.
    ttl: Option<Duration>,
    answer: oneshot::Sender<Vec<Reply>>,
}

impl Link {
    /// Connects, logs in, and reads the server's clock. `clock` is that of an earlier connection.
    pub(crate) async fn open(
        host: &str,
        port: u16,
        credentials: &Credentials,
        clock: Option<ServerClock>,
    ) -> Result<Self, Error> {
        let stream = dial(host, port, credentials).await?;
        check_versions(&stream).await?;
        let state = State {
            out: Vec::new(),
            waiting: VecDeque::new(),
            heard_at: Instant::now(),
            closed: None,
            lost: None,
            clock,
            looks: false,
        };
        let shared = Arc::new(Shared { stream, state: Mutex::new(state), more: Notify::new() });
        let served = Served(Arc::clone(&shared));
        let task = tokio::spawn(async move { served.0.run().await }).abort_handle();
        let link = Self { shared, task };
        let version = link.read_clock().await.map_err(|failed| failed.error)?;
        check_version(&version)?;
        if !clock.is_some_and(|earlier| earlier.is_of_the_life_of(&link.clock())) {
            // A server that has just been continued shows the old time until its timer has run.
            sleep(TIMER).await;
            link.read_clock().await.map_err(|failed| failed.error)?;
        }
        Ok(link)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state().closed.is_some()
    }

    /// Whether nothing has come for a while.
    pub(crate) fn is_silent(&self) -> bool {
        self.shared.state().heard_at.elapsed() > SILENCE
    }

    /// The server's clock, as far as it was seen.
    pub(crate) fn clock(&self) -> ServerClock {
        self.shared.state().clock.unwrap_or_else(|| ServerClock::unread(BootTime::now()))
    }

    /// Makes it look as if nothing was heard of the server's time for as long as the machine runs.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        let long_ago = BootTime::from_boot(Duration::ZERO);
        self.shared.state().clock = Some(ServerClock::unread(long_ago));
    }

    /// Notes a time that the server has shown in an answer.
    pub(crate) fn saw(&self, shown: Duration, sent_at: BootTime) {
        let mut state = self.shared.state();
        if let Some(clock) = &mut state.clock {
            clock.saw(shown, sent_at, BootTime::now());
        }
        self.shared.look_again(&mut state);
    }

    /// Asks the server for its time. Returns its version.
    pub(crate) async fn read_clock(&self) -> Result<String, Failed> {
        self.shared.read_clock().await
    }

    /// Sends commands, and waits for their answers. They may take a name for `ttl`.
    ///
    /// # Cancel safety
    /// The commands are sent with the first poll, and run.
    pub(crate) async fn ask(&self, commands: &Commands, ttl: Option<Duration>) -> Result<Answers, Failed> {
        self.shared.ask(commands, ttl).await
    }

    /// Closes it. Those who wait for an answer get none.
    pub(crate) fn give_up(&self) {
        self.shared.close(Error::unreachable("the server did not answer in time"));
        self.task.abort();
    }

    /// Longest time for which a command that was never answered may take a name, if the connection
    /// is closed.
    pub(crate) fn lost(&self) -> Option<Duration> {
        self.shared.state().lost
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// The use of a connection by its task. Whatever ends that, be it the runtime, ends the connection.
struct Served(Arc<Shared>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.close(Error::unreachable("the runtime of the connection has ended"));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, commands: &Commands, ttl: Option<Duration>) -> Result<Answers, Failed> {
        let sent_at = BootTime::now();
        let answer = self.send(commands, ttl)?;
        match answer.await {
            Ok(replies) => Ok(Answers { replies, sent_at }),
            Err(_) => Err(Failed { error: self.why_closed(), sent: true }),
        }
    }

    async fn read_clock(self: &Arc<Self>) -> Result<String, Failed> {
        let mut commands = Commands::default();
        commands.stats();
        let Answers { mut replies, sent_at } = self.ask(&commands, None).await?;
        let reply = replies.pop();
        let Some(Reply::Stats { time, uptime, version }) = reply else {
            let odd = reply.map_or_else(no_reply, |reply| reply.unexpected());
            return Err(Failed { error: odd.context("asked for the server's time"), sent: false });
        };
        let heard_at = BootTime::now();
        let Some(clock) = ServerClock::new(time, uptime, sent_at, heard_at) else {
            let what = format!("the server's clock is wrong: it shows {time} s, and was started {uptime} s before");
            let error = Error::refused(what).with_hint("set the clock of its machine right, and start memcached again");
            return Err(Failed { error, sent: false });
        };
        let mut state = self.state();
        state.clock = Some(clock.after(state.clock));
        self.look_again(&mut state);
        Ok(version)
    }

    /// Asks for the time again, and soon, while the server is behind. Callers that come rarely would not see it go on.
    fn look_again(self: &Arc<Self>, state: &mut State) {
        if state.looks || !state.clock.is_some_and(|clock| clock.is_behind()) {
            return;
        }
        state.looks = true;
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            for _ in 0..LOOKS {
                sleep(LOOK).await;
                let Some(shared) = shared.upgrade() else { return };
                let is_read = shared.read_clock().await.is_ok();
                if !is_read || !shared.state().clock.is_some_and(|clock| clock.is_behind()) {
                    break;
                }
            }
            if let Some(shared) = shared.upgrade() {
                shared.state().looks = false;
            }
        });
    }

    fn send(&self, commands: &Commands, ttl: Option<Duration>) -> Result<oneshot::Receiver<Vec<Reply>>, Failed> {
        let (answer, receiver) = oneshot::channel();
        let mut state = self.state();
        if let Some(error) = &state.closed {
            return Err(Failed { error: error.clone(), sent: false });
        }
        let mut rest = &commands.bytes[..];
        if state.out.is_empty() {
            // An error is left to the task, which ends the connection.
            let written = self.stream.try_write(rest).unwrap_or(0);
            rest = &rest[written..];
        }
        if !rest.is_empty() {
            state.out.extend_from_slice(rest);
            self.more.notify_one();
        }
        let replies = Vec::with_capacity(commands.expected().len());
        state.waiting.push_back(Waiting { expected: commands.expected().to_vec(), replies, ttl, answer });
        Ok(receiver)
    }

    /// Writes and reads until the connection breaks.
    async fn run(&self) {
        let (mut parser, mut buffer) = (Parser::default(), vec![0; 16 << 10]);
        loop {
            let wrote = async {
                loop {
                    if self.state().out.is_empty() {
                        self.more.notified().await;
                    }
                    self.stream.writable().await?;
                    self.flush()?;
                }
            };
            let outcome: io::Result<()> = tokio::select! {
                ready = self.stream.readable() => ready,
                broken = wrote => broken,
            };
            let read = outcome.and_then(|()| match self.stream.try_read(&mut buffer) {
                Ok(0) => Err(io::ErrorKind::ConnectionReset.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                read => read,
            });
            let error = match read {
                Ok(0) => continue,
                Ok(length) => {
                    parser.add(&buffer[..length]);
                    match self.take(&mut parser) {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => broken(error),
            };
            return self.close(error);
        }
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state();
        match self.stream.try_write(&state.out) {
            Ok(written) => {
                state.out.drain(..written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Hands the replies that have come to those who wait for them.
    fn take(&self, parser: &mut Parser) -> Result<(), Error> {
        let mut state = self.state();
        state.heard_at = Instant::now();
        while let Some(first) = state.waiting.front_mut() {
            let Some(expected) = first.expected.get(first.replies.len()) else { return Err(no_reply()) };
            let Some(reply) = parser.next(*expected)? else { return Ok(()) };
            // The server may take the next bytes for another command than was meant.
            let confused = matches!(&reply, Reply::Failed(text) if !text.starts_with("SERVER_ERROR"));
            first.replies.push(reply);
            if first.replies.len() == first.expected.len() || confused {
                let done = state.waiting.pop_front();
                // Nobody may wait any more.
                let _ = done.map(|done| done.answer.send(done.replies));
            }
            if confused {
                return Err(Error::unreachable("the server refused a command"));
            }
        }
        Ok(())
    }

    fn close(&self, error: Error) {
        let mut state = self.state();
        state.closed.get_or_insert(error);
        let lost = state.waiting.iter().filter_map(|waiting| waiting.ttl).max();
        state.lost = state.lost.max(lost);
        state.waiting.clear();
    }

    fn why_closed(&self) -> Error {
        self.state().closed.clone().unwrap_or_else(no_reply)
    }
}

fn no_reply() -> Error {
    Error::unavailable("the server gave an answer that nobody asked for").maybe_applied()
}

/// Connects, and logs in. A login that is refused is asked for once more.
pub(crate) async fn dial(host: &str, port: u16, credentials: &Credentials) -> Result<TcpStream, Error> {
    credentials.log_in(|login| dial_as(host, port, login)).await
}

async fn dial_as(host: &str, port: u16, login: Login) -> Result<TcpStream, Error> {
    let words = words(&login)?;
    let cannot = |error: io::Error| Error::unreachable("cannot connect").with_source(error);
    let addrs: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(cannot)?.collect();
    one_server(&addrs)?;
    let stream = tenure::store::connect(addrs, TcpStream::connect).await.map_err(cannot)?;
    stream.set_nodelay(true).map_err(cannot)?;
    if let Some(words) = words {
        log_in(&stream, &words).await?;
    }
    Ok(stream)
}

/// Writes all of it.
pub(crate) async fn write(stream: &TcpStream, mut left: &[u8]) -> Result<(), Error> {
    while !left.is_empty() {
        stream.writable().await.map_err(broken)?;
        match stream.try_write(left) {
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

/// Reads until the answer ends so.
pub(crate) async fn read_until(stream: &TcpStream, is_over: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, Error> {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    while !is_over(&answer) {
        stream.readable().await.map_err(broken)?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Err(broken(io::ErrorKind::ConnectionReset.into())),
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(answer)
}

fn broken(error: io::Error) -> Error {
    Error::unreachable("the connection broke").with_source(error)
}

/// Refuses a host that is several servers. Each has locks of its own, and clients would not agree on one.
fn one_server(addrs: &[SocketAddr]) -> Result<(), Error> {
    let mut addrs = addrs.to_vec();
    addrs.sort_unstable();
    addrs.dedup();
    // One server may have an address of each kind.
    let many = addrs.iter().filter(|addr| addr.is_ipv4()).count().max(addrs.iter().filter(|addr| addr.is_ipv6()).count());
    if many <= 1 {
        return Ok(());
    }
    let what = format!("the host has {many} addresses: clients would look for one name at several servers");
    Err(Error::refused(what).with_hint("name each server, as memcached://A,B"))
}

/// Logs in as `memcached -Y` wants it: by a command that looks like a write.
async fn log_in(stream: &TcpStream, words: &str) -> Result<(), Error> {
    // A server without logins would keep the password, for everybody to read.
    let version = line(stream, "version\r\n").await?;
    takes_connections(&version)?;
    if !version.ends_with(b"unauthenticated\r\n") {
        let what = "the server wants no user and password, so they were not sent";
        return Err(Error::refused(what).with_hint("leave them out, or start memcached with -Y FILE"));
    }
    if line(stream, &format!("set tenure 0 0 {}\r\n{words}\r\n", words.len())).await? == b"STORED\r\n" {
        return Ok(());
    }
    // Its answer may repeat what it was sent.
    Err(Error::refused("the login is refused").with_hint("check the user and the password"))
}

/// Refuses a server that gives its items no versions.
async fn check_versions(stream: &TcpStream) -> Result<(), Error> {
    write(stream, b"stats settings\r\n").await?;
    // Other programs end with a line of their own. The next command finds them out.
    let is_over = |answer: &[u8]| {
        answer.ends_with(b"END\r\n") || (!b"STAT ".starts_with(&answer[..answer.len().min(5)]) && answer.ends_with(b"\r\n"))
    };
    let settings = read_until(stream, is_over).await?;
    takes_connections(&settings)?;
    if settings.windows(CAS_OFF.len()).any(|part| part == CAS_OFF) {
        let what = "the server was started with -C: nothing can be compared before it is swapped";
        return Err(Error::refused(what).with_hint("start memcached without -C"));
    }
    Ok(())
}

/// Whether the server has taken the connection, by its first answer.
pub(crate) fn takes_connections(answer: &[u8]) -> Result<(), Error> {
    if !answer.starts_with(TOO_MANY) {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(answer).trim_end()))
}

/// Sends a command that is answered by a line.
async fn line(stream: &TcpStream, command: &str) -> Result<Vec<u8>, Error> {
    write(stream, command.as_bytes()).await?;
    read_until(stream, |answer| answer.ends_with(b"\r\n")).await
}

fn check_version(version: &str) -> Result<(), Error> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let found = std::array::from_fn::<u32, 3, _>(|_| parts.next().unwrap_or(0));
    if found >= FLOOR {
        return Ok(());
    }
    let [major, minor, patch] = FLOOR;
    Err(Error::refused(format!("the server is memcached {version}")).with_hint(format!("use {major}.{minor}.{patch} or newer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for (version, good) in
            [("1.6.18", true), ("1.6.40", true), ("1.7.0-rc1", true), ("2.0", true), ("1.6.9", false), ("", false)]
        {
            assert_eq!(check_version(version).is_ok(), good, "{version}");
        }
    }

    #[test]
    fn a_host_of_several_servers_is_refused() {
        let one_server = |addrs: &[&str]| one_server(&addrs.iter().map(|addr| addr.parse().unwrap()).collect::<Vec<_>>());
        assert!(one_server(&["127.0.0.1:1", "[::1]:1", "127.0.0.1:1"]).is_ok());
        assert!(one_server(&["127.0.0.1:1", "127.0.0.2:1"]).unwrap_err().to_string().contains("2 addresses"));
        assert!(one_server(&["[::1]:1", "[::2]:1", "127.0.0.1:1"]).is_err());
    }
}
