//! The task of a session. If the connection breaks, it connects to any server, for as long as the
//! ensemble may keep the session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::store::{Login, too_few, turn};
use tenure::{BootTime, Error};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::call::{Call, Command, How, Reply, SILENT, Shared, millis};
use crate::failure::{Failed, NO_NODE};
use crate::link::{Identity, Link, Undialled, garbled};
use crate::login::check_login;
use crate::wire::{EXISTS, Frame, Reading, XID_EVENT, XID_PING};

/// Pause between two rounds of servers of which none answered.
const PAUSE: Duration = Duration::from_millis(50);

/// Connects to the first server that takes the login.
pub(super) async fn dial(
    how: &How,
    identity: &mut Identity,
    timeout: Duration,
    end: Instant,
    at: &mut usize,
) -> Result<(Link, Duration), Undialled> {
    let (mut last, mut refusals) = (std::io::ErrorKind::TimedOut.into(), Vec::new());
    for left in (1..=how.hosts.len()).rev() {
        let now = Instant::now();
        let until = now + turn(end.saturating_duration_since(now), left);
        let host = &how.hosts[*at % how.hosts.len()];
        let attempt = |login: Login| {
            let mut known = identity.clone();
            async move {
                let login = check_login(login)?;
                let dialled = Link::dial(host, &mut known, timeout, login.as_ref(), until).await;
                dialled.map(|dialled| (dialled, known))
            }
        };
        match how.credentials.log_in_with(Undialled::refusal, attempt).await {
            Ok((dialled, known)) => {
                *identity = known;
                return Ok(dialled);
            }
            Err(Undialled::Expired) => return Err(Undialled::Expired),
            Err(Undialled::Refused(error)) => refusals.push(error.context(format_args!("{}:{}", host.name, host.port))),
            Err(Undialled::Failed(error)) => last = error,
        }
        *at += 1;
    }
    let (all, refused) = (how.hosts.len(), refusals.len());
    if refused == 0 {
        return Err(Undialled::Failed(last));
    }
    let silent = (refused < all).then(|| Error::unreachable(last.to_string()));
    Err(Undialled::Refused(too_few(
        "no server can be used",
        all - 1,
        (all - refused).saturating_sub(1),
        refusals.into_iter().chain(silent),
    )))
}

pub(super) struct Task {
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
    /// Requests that were to be sent when a silence was seen.
    held: Vec<Call>,
    watches: HashMap<String, Vec<oneshot::Sender<()>>>,
    last_sent: Instant,
    /// By the clock that goes on while the machine sleeps, as the ensemble does.
    last_heard: BootTime,
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
    pub(super) fn new(
        how: Arc<How>,
        (identity, at): (Identity, usize),
        shared: Arc<Shared>,
        received: mpsc::UnboundedReceiver<Command>,
        (made, timeout): (Duration, Duration),
    ) -> Self {
        let now = Instant::now();
        Self {
            how,
            identity,
            at,
            shared,
            received,
            made,
            timeout,
            xid: 0,
            sent: VecDeque::new(),
            retiming: None,
            was_silent: false,
            held: Vec::new(),
            watches: HashMap::new(),
            last_sent: now,
            last_heard: BootTime::now(),
            waiting_since: None,
        }
    }

    pub(super) async fn run(mut self, mut link: Link) {
        let _over = OnDrop(self.shared.clone());
        let over = loop {
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
            match self.reconnect().await {
                Ok(next) => link = next,
                Err(over) => break over,
            }
        };
        self.shared.over.send_replace(Some(over));
        // Senders find it closed.
        self.received.close();
        for call in std::mem::take(&mut self.held) {
            call.answer(Err(over));
        }
        while let Ok(command) = self.received.try_recv() {
            if let Command::Calls(calls) = command {
                for call in calls {
                    call.answer(Err(over));
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

    /// Connects again. [`Failed::Over`]: the ensemble has ended the session. [`Failed::Cut`]: it is given up, because nobody has
    /// answered for longer than its timeout. But a server may have heard of it.
    async fn reconnect(&mut self) -> Result<Link, Failed> {
        let give_up = self.last_heard + self.made.max(self.timeout) + SILENT;
        let mut was_slow = false;
        loop {
            let wanted = self.retiming.as_ref().map_or(self.timeout, |(wanted, _)| *wanted);
            let end = Instant::now() + (self.timeout / 3).max(SILENT);
            let began = BootTime::now();
            match dial(&self.how, &mut self.identity, wanted, end, &mut self.at).await {
                // The answer may be old. Once more; the second time the servers are slow.
                Ok(_) if BootTime::now().since(began) > self.longest_silence() && !std::mem::replace(&mut was_slow, true) => {
                    continue;
                }
                Ok((link, given)) => {
                    self.timeout = given;
                    self.shared.timeout.store(millis(given), Ordering::Release);
                    self.shared.is_adrift.store(false, Ordering::Release);
                    (self.last_heard, self.last_sent) = (BootTime::now(), Instant::now());
                    if let Some((_, done)) = self.retiming.take() {
                        let _ = done.send(());
                    }
                    return Ok(link);
                }
                Err(Undialled::Expired) => return Err(Failed::Over),
                Err(Undialled::Refused(error)) => tracing::debug!(%error, "no login"),
                Err(Undialled::Failed(error)) => tracing::debug!(%error, "no server of the ensemble can be reached"),
            }
            self.shared.is_adrift.store(true, Ordering::Release);
            if BootTime::now() > give_up {
                return Err(Failed::Cut { sent: true });
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
        self.was_silent |= BootTime::now().since(self.last_heard) > self.longest_silence();
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
            self.last_heard = BootTime::now();
            self.waiting_since = None;
            match xid {
                XID_EVENT => self.event(&mut reading).ok_or_else(garbled)?,
                XID_PING => {}
                _ => self.reply(xid, zxid, code, reading.0)?,
            }
            if !self.sent.is_empty() {
                self.waiting_since = Some(Instant::now());
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
            Some(Failed::Code(NO_NODE)) if call.frame.op == EXISTS => {
                Ok(Reply { body: Vec::new(), watch: call.frame.watch.clone().map(|path| self.watch(path)) })
            }
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
        self.0.over.send_modify(|over| *over = over.or(Some(Failed::Cut { sent: true })));
    }
}
