//! A session: nodes live as long as it does, and it outlives its connections.
//!
//! A task owns the connection. Requests of one session are executed in the order in which they were
//! sent. If the connection breaks, the task connects to any server, for as long as the ensemble may
//! keep the session.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::failure::Failed;
use crate::link::{Host, Identity, Link, Undialled, garbled};
use crate::wire::{Frame, Reading, XID_EVENT, XID_PING};

/// Pause between two rounds of servers of which none answered.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for a server that says nothing, if the operation timeout is not longer.
pub(crate) const SILENT: Duration = Duration::from_secs(1);

/// An answer without an error.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) body: Vec<u8>,
    /// Fires, or ends, when a read of the watched path is useful.
    pub(crate) watch: Option<oneshot::Receiver<()>>,
}

pub(crate) type Pending = oneshot::Receiver<Result<Reply, Failed>>;

/// Waits for an answer.
pub(crate) async fn answer(pending: &mut Pending) -> Result<Reply, Failed> {
    pending.await.unwrap_or(Err(Failed::Over))
}

struct Call {
    frame: Frame,
    /// `None` if the answer is of no interest.
    reply: Option<oneshot::Sender<Result<Reply, Failed>>>,
}

impl Call {
    fn is_unwanted(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    fn answer(self, answer: Result<Reply, Failed>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(answer);
        }
    }
}

enum Command {
    Calls(Vec<Call>),
    /// Connects anew, with another timeout; a shorter one only if that is meant.
    Retime {
        timeout: Duration,
        shortens: bool,
        done: oneshot::Sender<()>,
    },
}

/// Where the servers are, and how to log in.
#[derive(Debug)]
pub(crate) struct How {
    pub(crate) hosts: Vec<Host>,
    pub(crate) login: Option<(String, String)>,
    /// Longest wait for a server that says nothing.
    pub(crate) silent: Duration,
    /// The shortest timeout that the ensemble gives, when that is known.
    pub(crate) shortest: OnceLock<Duration>,
}

/// A session of the ensemble. It is closed when nobody has it any more.
#[derive(Debug)]
pub(crate) struct Session {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
    /// The timeout that it was made with.
    pub(crate) made: Duration,
    /// Entries that have their nodes here, and those of them that wait.
    pub(crate) users: AtomicUsize,
    pub(crate) waiters: AtomicUsize,
}

#[derive(Debug)]
struct Shared {
    timeout: AtomicU64,
    /// All servers were tried in vain.
    is_adrift: AtomicBool,
    over: watch::Sender<bool>,
}

impl Shared {
    fn new() -> Self {
        Self { timeout: AtomicU64::new(0), is_adrift: AtomicBool::new(false), over: watch::Sender::new(false) }
    }
}

impl Session {
    /// Makes a session. The ensemble knows it by the timeout `made`, and this connection by the one that is `wanted`. A leader
    /// that is elected later, or one that hears of the session from another server, may go by the former.
    pub(crate) async fn open(
        how: Arc<How>,
        made: Duration,
        wanted: Duration,
        end: Instant,
        runtime: &Handle,
    ) -> Result<Self, Undialled> {
        let (mut identity, mut at) = (Identity::default(), fastrand::usize(..how.hosts.len()));
        let (link, made) = dial(&how, &mut identity, made, end, &mut at).await?;
        let (link, timeout) = if wanted >= made {
            (link, made)
        } else {
            drop(link);
            dial(&how, &mut identity, wanted, end, &mut at).await?
        };
        let (commands, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { timeout: AtomicU64::new(millis(timeout)), ..Shared::new() });
        let task = Task { how, identity, at, shared: shared.clone(), received, made, timeout, ..Task::new() };
        runtime.spawn(task.run(link));
        Ok(Self { commands, shared, made, users: AtomicUsize::new(0), waiters: AtomicUsize::new(0) })
    }

    /// The timeout in force.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.shared.timeout.load(Ordering::Acquire))
    }

    /// Whether a server takes its requests, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        !self.shared.is_adrift.load(Ordering::Acquire)
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.shared.over.borrow() || self.commands.is_closed()
    }

    /// Waits until the session is lost.
    pub(crate) async fn over(&self) {
        let mut over = self.shared.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }

    /// Sends requests one behind the other. One whose answer nobody wants any more is not sent.
    pub(crate) fn ask_all<const N: usize>(&self, frames: [Frame; N]) -> [Pending; N] {
        let mut calls = Vec::with_capacity(N);
        let pending = frames.map(|frame| {
            let (reply, pending) = oneshot::channel();
            calls.push(Call { frame, reply: Some(reply) });
            pending
        });
        let _ = self.commands.send(Command::Calls(calls));
        pending
    }

    /// Sends a request whose answer is of no interest.
    pub(crate) fn tell(&self, frame: Frame) {
        let _ = self.commands.send(Command::Calls(vec![Call { frame, reply: None }]));
    }

    pub(crate) fn ask_each(&self, frames: Vec<Frame>) -> Vec<Pending> {
        frames.into_iter().map(|frame| self.ask_all([frame])).map(|[pending]| pending).collect()
    }

    pub(crate) async fn ask(&self, frame: Frame) -> Result<Reply, Failed> {
        let [mut pending] = self.ask_all([frame]);
        answer(&mut pending).await
    }

    /// Connects with this timeout from now on. It does not become shorter unless it `shortens`.
    pub(crate) async fn retime(&self, timeout: Duration, shortens: bool) {
        let (done, is_done) = oneshot::channel();
        let _ = self.commands.send(Command::Retime { timeout, shortens, done });
        let _ = is_done.await;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Connects to the first server that answers.
async fn dial(
    how: &How,
    identity: &mut Identity,
    timeout: Duration,
    end: Instant,
    at: &mut usize,
) -> Result<(Link, Duration), Undialled> {
    let mut last = Undialled::Failed(std::io::ErrorKind::TimedOut.into());
    for left in (1..=how.hosts.len()).rev() {
        let now = Instant::now();
        let part = end.saturating_duration_since(now) / u32::try_from(left).unwrap_or(u32::MAX);
        match Link::dial(&how.hosts[*at % how.hosts.len()], identity, timeout, how.login.as_ref(), now + part).await {
            Err(Undialled::Failed(error)) => last = Undialled::Failed(error),
            dialled => return dialled,
        }
        *at += 1;
    }
    Err(last)
}

struct Task {
    how: Arc<How>,
    identity: Identity,
    /// The server that is used.
    at: usize,
    shared: Arc<Shared>,
    received: mpsc::UnboundedReceiver<Command>,
    made: Duration,
    timeout: Duration,
    xid: i32,
    sent: VecDeque<(i32, Call)>,
    /// The next connection is to come as soon as nothing is under way: for another timeout, or after a silence.
    retiming: Option<(Duration, oneshot::Sender<()>)>,
    was_silent: bool,
    /// What was to be sent when a silence was seen.
    held: Vec<Call>,
    watches: HashMap<String, Vec<oneshot::Sender<()>>>,
    last_sent: Instant,
    last_heard: Instant,
    /// Since when an answer is due.
    waiting_since: Option<Instant>,
}

/// How a connection ended.
enum Ended {
    /// Nobody needs the session.
    Unused,
    Broken,
    Retimed,
}

impl Task {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            how: Arc::new(How { hosts: Vec::new(), login: None, silent: SILENT, shortest: OnceLock::new() }),
            identity: Identity::default(),
            at: 0,
            shared: Arc::new(Shared::new()),
            received: mpsc::unbounded_channel().1,
            made: Duration::ZERO,
            timeout: Duration::ZERO,
            xid: 0,
            sent: VecDeque::new(),
            retiming: None,
            was_silent: false,
            held: Vec::new(),
            watches: HashMap::new(),
            last_sent: now,
            last_heard: now,
            waiting_since: None,
        }
    }

    async fn run(mut self, mut link: Link) {
        let _over = OnDrop(self.shared.clone());
        loop {
            for call in std::mem::take(&mut self.held) {
                self.send(&mut link, call);
            }
            match self.serve(&mut link).await {
                Ended::Unused => {
                    Frame::close().write(self.next_xid(), link.output());
                    let _ = tokio::time::timeout(SILENT, link.finish()).await;
                    return;
                }
                Ended::Broken => self.at += 1,
                Ended::Retimed => {}
            }
            self.cut();
            drop(link);
            let Some(next) = self.reconnect().await else { break };
            link = next;
        }
        // Senders find it closed.
        self.received.close();
        for call in std::mem::take(&mut self.held) {
            call.answer(Err(Failed::Over));
        }
        while let Ok(command) = self.received.try_recv() {
            if let Command::Calls(calls) = command {
                for call in calls {
                    call.answer(Err(Failed::Over));
                }
            }
        }
    }

    /// Nothing that was sent has an answer any more.
    fn cut(&mut self) {
        for (_, call) in self.sent.drain(..) {
            call.answer(Err(Failed::Cut { sent: true }));
        }
        self.watches.clear();
        (self.waiting_since, self.was_silent) = (None, false);
    }

    /// Connects again. `None` if the session has ended, or must have.
    async fn reconnect(&mut self) -> Option<Link> {
        let give_up = self.last_heard + self.made.max(self.timeout) + SILENT;
        let mut was_slow = false;
        loop {
            let wanted = self.retiming.as_ref().map_or(self.timeout, |(wanted, _)| *wanted);
            let end = Instant::now() + (self.timeout / 3).max(SILENT);
            let began = Instant::now();
            match dial(&self.how, &mut self.identity, wanted, end, &mut self.at).await {
                // The answer may be old. Once more; the second time the servers are slow.
                Ok(_) if began.elapsed() > self.longest_silence() && !std::mem::replace(&mut was_slow, true) => continue,
                Ok((link, given)) => {
                    self.timeout = given;
                    self.shared.timeout.store(millis(given), Ordering::Release);
                    self.shared.is_adrift.store(false, Ordering::Release);
                    (self.last_heard, self.last_sent) = (Instant::now(), Instant::now());
                    if let Some((_, done)) = self.retiming.take() {
                        let _ = done.send(());
                    }
                    return Some(link);
                }
                Err(Undialled::Expired) => return None,
                Err(Undialled::Refused) => tracing::debug!("a server refuses the login"),
                Err(Undialled::Failed(error)) => tracing::debug!(%error, "no server of the ensemble can be reached"),
            }
            self.shared.is_adrift.store(true, Ordering::Release);
            if Instant::now() > give_up {
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn serve(&mut self, link: &mut Link) -> Ended {
        loop {
            let connects = self.retiming.is_some() || self.was_silent;
            if connects && self.sent.is_empty() && link.output().is_empty() {
                return Ended::Retimed;
            }
            let ping_at = self.last_sent + self.ping_interval();
            let give_up = self.waiting_since.map(|since| since + (self.timeout / 3).min(self.how.silent));
            tokio::select! {
                biased;
                turned = link.turn() => {
                    if let Err(error) = turned.and_then(|has_read| self.receive(link, has_read)) {
                        tracing::debug!(%error, "a connection to ZooKeeper has ended");
                        return Ended::Broken;
                    }
                }
                command = self.received.recv(), if !connects => match command {
                    Some(Command::Calls(calls)) if self.sees_silence() => self.held = calls,
                    Some(Command::Calls(calls)) => calls.into_iter().for_each(|call| self.send(link, call)),
                    Some(Command::Retime { timeout, shortens, done }) if timeout > self.timeout || (shortens && timeout != self.timeout) => {
                        self.retiming = Some((timeout, done));
                    }
                    Some(Command::Retime { done, .. }) => drop(done.send(())),
                    None if self.sent.is_empty() => return Ended::Unused,
                    None => {
                        // The last requests are answered first.
                        let turned = tokio::time::timeout(SILENT, link.turn()).await;
                        if turned.map_err(std::io::Error::from).flatten().and_then(|has_read| self.receive(link, has_read)).is_err() {
                            return Ended::Unused;
                        }
                    }
                },
                () = sleep_until(give_up.map_or(ping_at, |give_up| give_up.min(ping_at))) => {
                    let now = Instant::now();
                    if give_up.is_some_and(|give_up| now >= give_up) {
                        return Ended::Broken;
                    }
                    if now >= ping_at {
                        self.sees_silence();
                        Frame::ping().write(XID_PING, link.output());
                        self.waiting_since.get_or_insert(now);
                        self.last_sent = now;
                    }
                }
            }
        }
    }

    /// A quarter of a tick, as far as that can be known. A leader hears of a session once in half a tick, from the server that
    /// has the connection. So it counts from less than a tick ago.
    fn ping_interval(&self) -> Duration {
        let shortest = self.how.shortest.get().copied().unwrap_or(self.timeout);
        (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// Half a tick. After a longer silence, the leader may be about to end the session: it hears of it later than the server
    /// that answers. So nothing more is asked over this connection. The next one is a sign of life for the leader itself.
    fn longest_silence(&self) -> Duration {
        self.how.shortest.get().copied().unwrap_or(self.timeout) / 4
    }

    fn sees_silence(&mut self) -> bool {
        self.was_silent |= self.last_heard.elapsed() > self.longest_silence();
        self.was_silent
    }

    fn next_xid(&mut self) -> i32 {
        self.xid = self.xid.checked_add(1).unwrap_or(1);
        self.xid
    }

    fn send(&mut self, link: &mut Link, call: Call) {
        if call.is_unwanted() {
            return;
        }
        let xid = self.next_xid();
        call.frame.write(xid, link.output());
        self.sent.push_back((xid, call));
        self.last_sent = Instant::now();
        self.waiting_since.get_or_insert(self.last_sent);
    }

    /// Reads all whole messages.
    fn receive(&mut self, link: &mut Link, has_read: bool) -> std::io::Result<()> {
        // A part of one is a sign of life as well.
        if has_read && self.waiting_since.is_some() {
            self.waiting_since = Some(Instant::now());
        }
        while let Some(message) = link.take()? {
            let mut reading = Reading(&message);
            let head = (|| Some((reading.int()?, reading.long()?, reading.int()?)))();
            let (xid, zxid, code) = head.ok_or_else(garbled)?;
            self.sees_silence();
            self.last_heard = Instant::now();
            self.waiting_since = None;
            match xid {
                XID_EVENT => self.event(&mut reading).ok_or_else(garbled)?,
                XID_PING => {}
                _ => self.reply(xid, zxid, code, reading.0)?,
            }
            if !self.sent.is_empty() {
                self.waiting_since = Some(self.last_heard);
            }
        }
        Ok(())
    }

    /// Notifies all who watch a path, of any change there.
    fn event(&mut self, reading: &mut Reading<'_>) -> Option<()> {
        let (_kind, _state, path) = (reading.int()?, reading.int()?, reading.text()?);
        for watch in self.watches.remove(&path).into_iter().flatten() {
            let _ = watch.send(());
        }
        Some(())
    }

    fn reply(&mut self, xid: i32, zxid: i64, code: i32, body: &[u8]) -> std::io::Result<()> {
        // Any other is one for which a request or an answer is lost.
        if self.sent.front().is_none_or(|(expected, _)| *expected != xid) {
            return Err(garbled());
        }
        let Some((_, call)) = self.sent.pop_front() else { return Err(garbled()) };
        if Failed::is_moved(code) {
            call.answer(Err(Failed::Cut { sent: false }));
            return Err(std::io::Error::other("the session is at another server"));
        }
        self.identity.seen = self.identity.seen.max(zxid);
        let answer = match Failed::of(code) {
            Some(failed) => Err(failed),
            None => Ok(Reply { body: body.to_vec(), watch: call.frame.watch.clone().map(|path| self.watch(path)) }),
        };
        call.answer(answer);
        Ok(())
    }

    fn watch(&mut self, path: String) -> oneshot::Receiver<()> {
        let (sender, fires) = oneshot::channel();
        let watches = self.watches.entry(path).or_default();
        watches.retain(|other| !other.is_closed());
        watches.push(sender);
        fires
    }
}

/// Says that the session is over, however its task ends.
struct OnDrop(Arc<Shared>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.over.send_replace(true);
    }
}
