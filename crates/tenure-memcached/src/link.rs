//! One connection to a server. Commands of all callers go out in the order in which they were given,
//! and a task reads the replies.
//!
//! A caller that goes away leaves its commands to run: their replies are read and dropped. A
//! connection that breaks, or gives an answer that nobody asked for, is never used again.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::Credentials;
use tenure::{BootTime, Error};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::clock::ServerClock;
use crate::dial::{broken, check_version, check_versions, dial};
use crate::protocol::{Commands, Expected, Parser, Reply};

/// A connection that has answered anything this short a time ago is only slow.
const SILENCE: Duration = Duration::from_millis(100);

/// How often, and how many times, a server that is behind is asked again: until its time has gone on.
const LOOK: Duration = Duration::from_millis(400);
const LOOKS: u32 = 8;

/// A timer that is overdue runs within this time, once its process has been continued.
const TIMER: Duration = Duration::from_millis(10);

/// A call without an answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The commands were given to the connection, so they may run.
    pub(crate) sent: bool,
}

impl Failed {
    /// The server's answer is an error.
    pub(crate) fn answered(error: Error) -> Self {
        Self { error, sent: false }
    }
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
