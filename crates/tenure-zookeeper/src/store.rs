//! The store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry as Shown, Error, ErrorKind, Holder, Lease, Name, Owner, Queued};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::actor::Actor;
use crate::entry::{Command, Entry, Phase, Slot};
use crate::failure::{Failed, NO_AUTH, NO_NODE, no_answer, too_long};
use crate::inner::{Inner, holder_of, locked};
use crate::nodes::{Child, Data, guid};
use crate::queue::{Smaller, holders};
use crate::session::{Reply, Session};
use crate::wire::{Frame, Reading};

/// Longest time for a call that concerns no lease.
const CALL: Duration = Duration::from_secs(24 * 3_600);
/// Time in which an answer goes from one task to another.
const GRACE: Duration = Duration::from_millis(20);

/// Locks in ZooKeeper. Made by [`Options`](crate::Options).
pub struct ZooKeeperStore(pub(crate) Arc<Inner>);

impl ZooKeeperStore {
    fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl).min(CALL)
    }

    /// Asks the task of an entry.
    async fn ask<T>(
        &self,
        slot: &Slot,
        end: Instant,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Command,
    ) -> Option<Result<T, Error>> {
        let began = Instant::now();
        let (reply, replied) = oneshot::channel();
        let _ = slot.commands.send(command(reply));
        // The task answers at the end by itself, unless it is at something else.
        match timeout_at(end + GRACE, replied).await {
            Ok(Ok(answer)) => Some(answer),
            // It has ended.
            Ok(Err(_)) => None,
            Err(_) => Some(Err(no_answer(end.saturating_duration_since(began)))),
        }
    }

    /// Begins to ask for a name. `None` if another call with this token was faster.
    async fn begin(&self, request: &Request, parent: String, end: Instant) -> Result<Option<Slot>, Error> {
        let Self(inner) = self;
        let used = match request.enqueue {
            Enqueue::Join { entry_ttl, handoff_ttl } if request.generated => {
                inner.sessions.for_waiter(request.ttl, entry_ttl, handoff_ttl, end).await?
            }
            _ => inner.sessions.for_lease(request.ttl, end).await?,
        };
        let entry = Arc::new(Entry::new(request, parent, guid()?, used));
        let (commands, received) = mpsc::unbounded_channel();
        let slot = Slot { entry: entry.clone(), commands };
        let mut entries = locked(&inner.entries);
        let std::collections::hash_map::Entry::Vacant(free) = entries.entry((request.name.clone(), request.owner.clone())) else {
            return Ok(None);
        };
        free.insert(slot.clone());
        inner.sessions.runtime().spawn(Actor::new(entry, Arc::downgrade(inner)).run(received));
        Ok(Some(slot))
    }

    /// Gives a lease of this store to another owner. `None` if it is not there.
    fn pass(&self, request: &Request, from: &Owner) -> Option<Slot> {
        let mut entries = locked(&self.0.entries);
        let key = (request.name.clone(), from.clone());
        let slot = entries.get(&key)?.clone();
        {
            let mut state = slot.entry.state();
            if !matches!(state.phase, Phase::Served | Phase::Held) || state.released {
                return None;
            }
            state.owner = request.owner.clone();
            // It is to be written.
            state.phase = Phase::Held;
        }
        entries.remove(&key);
        entries.insert((request.name.clone(), request.owner.clone()), slot.clone());
        Some(slot)
    }

    async fn adopt(&self, request: &Request, parent: &str, from: &Owner, end: Instant) -> Result<AcquireReply, Error> {
        if let Some(slot) = self.pass(request, from) {
            let answer = self.ask(&slot, end, |reply| Command::Acquire(request.clone(), end, reply)).await;
            return answer.unwrap_or_else(|| Ok(self.0.busy()));
        }
        if self.0.elsewhere(parent, from, end).await?.is_some() && self.0.slot(&request.name, from).is_none() {
            return Err(elsewhere());
        }
        Ok(self.0.busy())
    }

    fn shown(&self, name: &Name, nodes: Vec<(Child, Option<Data>)>) -> Option<Shown> {
        let smaller: Smaller =
            nodes.iter().filter_map(|(child, data)| Some((child.name.clone(), data.as_ref()?.share))).collect();
        let children: Vec<_> = nodes.iter().map(|(child, _)| child.clone()).collect();
        let mut waiters: Vec<_> = nodes.into_iter().map(|(child, data)| self.with_own(name, holder_of(&child, data))).collect();
        let holders: Vec<_> = waiters.drain(..holders(&children, &smaller)).collect();
        let waiters: Vec<_> = waiters.into_iter().map(|waiter| Queued::new(waiter.owner, waiter.share)).collect();
        let shown = Shown::new(name.clone(), holders, waiters);
        shown.is_in_use().then_some(shown)
    }

    /// A holder, with what this process knows of its own leases.
    fn with_own(&self, name: &Name, holder: Holder) -> Holder {
        let Some(slot) = self.0.slot(name, &holder.owner) else { return holder };
        let state = slot.entry.state();
        let left = state.until.saturating_duration_since(Instant::now());
        let (fence, age) = (state.fence, state.since.elapsed());
        holder.with_ttl(left).with_age(age).with_fence(fence)
    }

    /// The names below each of these paths. `None` for one that is closed to us.
    async fn below(&self, paths: &[String], end: Instant) -> Result<Vec<Option<Vec<String>>>, Error> {
        let root = &self.0.root;
        let full = |path: &String| if root.is_empty() && path.is_empty() { "/".to_owned() } else { format!("{root}{path}") };
        let paths: Vec<_> = paths.iter().map(full).collect();
        let names = |listed: Result<Reply, Failed>| match listed {
            Err(Failed::Code(NO_NODE)) => Ok(Some(Vec::new())),
            Err(Failed::Code(NO_AUTH)) => Ok(None),
            listed => Reading(&listed?.body).texts().ok_or(Failed::Garbled).map(Some),
        };
        let list = async |session: Arc<Session>| {
            let listed = session.ask_each(paths.iter().map(|path| Frame::list(path, false)).collect()).await;
            listed.into_iter().map(names).collect()
        };
        self.0.reading(end, list).await
    }

    /// All names that have lock nodes. Each level of them has its own time.
    async fn names(&self) -> Result<Vec<String>, Error> {
        let (root, mut found, mut level) = (&self.0.root, Vec::new(), vec![String::new()]);
        let mut is_closed = false;
        while !level.is_empty() {
            let mut below = Vec::new();
            for (path, names) in level.iter().zip(self.below(&level, self.end(Duration::MAX)).await?) {
                is_closed |= names.is_none();
                let names = names.unwrap_or_default();
                if names.iter().any(|name| Child::read(name).is_some()) {
                    found.push(path.trim_start_matches('/').to_owned());
                }
                let is_own =
                    |name: &String| Child::read(name).is_none() && !(root.is_empty() && path.is_empty() && name == "zookeeper");
                below.extend(names.into_iter().filter(is_own).map(|name| format!("{path}/{name}")));
            }
            level = below;
        }
        // Beside the nodes of others a path that is closed says nothing. In a root of ours it may be a lock.
        if found.is_empty() && is_closed && !root.is_empty() {
            return Err(Failed::Code(NO_AUTH).error());
        }
        Ok(found)
    }

    /// Notices each change of the nodes of a name.
    async fn observe(&self, name: &Name, end: Instant) -> Result<BoxStream<'static, Notice>, Error> {
        let Self(inner) = self;
        let (parent, (sender, notices)) = (inner.path(name)?, mpsc::unbounded_channel());
        let path = parent.as_str();
        let mut armed = inner.reading(end, |session| async move { watch_of(&session, path).await }).await?;
        let store = Arc::downgrade(inner);
        tokio::spawn(async move {
            loop {
                match armed.take() {
                    Some(watch) => tokio::select! {
                        _ = watch => {}
                        () = sender.closed() => return,
                    },
                    None => tokio::time::sleep(Duration::from_secs(1)).await,
                }
                let Some(store) = store.upgrade() else { return };
                // Others wait for a session while this makes one.
                if let Ok(session) = store.sessions.any(Instant::now() + store.attempt()).await {
                    armed = watch_of(&session, &parent).await.ok().flatten();
                }
                if sender.send(Notice::Changed).is_err() {
                    return;
                }
            }
        });
        Ok(received(notices))
    }
}

/// Watches the nodes of a name, or a name that has none yet.
async fn watch_of(session: &Session, parent: &str) -> Result<Option<oneshot::Receiver<()>>, Failed> {
    loop {
        match session.ask(Frame::list(parent, true)).await {
            Err(Failed::Code(NO_NODE)) => {}
            listed => return Ok(listed?.watch),
        }
        let missing = session.ask(Frame::exists(parent)).await?;
        if missing.body.is_empty() {
            return Ok(missing.watch);
        }
    }
}

fn received(notices: mpsc::UnboundedReceiver<Notice>) -> BoxStream<'static, Notice> {
    stream::unfold(notices, async |mut notices| Some((notices.recv().await?, notices))).boxed()
}

fn elsewhere() -> Error {
    let what = "the lock is held by a session of another process, which alone can renew it or pass it on";
    Error::new(ErrorKind::Unsupported, what).with_hint("release it, and acquire it in this process")
}

#[async_trait]
impl Store for ZooKeeperStore {
    fn features(&self) -> Features {
        let late = locked(&self.0.late).is_some_and(|until| Instant::now() < until);
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_push(true)
            .with_server_clock(true)
            .with_process_bound(true)
            .with_late_commands(late)
            .with_timed_calls(true)
            .with_min_ttl(self.0.sessions.shortest())
            // Three ticks.
            .with_late_end(3 * self.0.sessions.slack())
            .with_operation_timeout(self.0.timeout)
            .with_opened_by(self.0.process)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        if request.ttl > self.0.sessions.longest_ttl() {
            return Err(too_long(self.0.sessions.longest_ttl()));
        }
        let (parent, end) = (self.0.path(&request.name)?, self.end(request.ttl));
        // Two with one token would have one place.
        let request = match request.enqueue {
            Enqueue::Join { .. } if !request.generated => &request.clone().with_enqueue(Enqueue::No),
            _ => request,
        };
        loop {
            if let Some(slot) = self.0.slot(&request.name, &request.owner) {
                if !request.generated {
                    return Ok(self.0.busy());
                }
                if let Some(answer) = self.ask(&slot, end, |reply| Command::Acquire(request.clone(), end, reply)).await {
                    return answer;
                }
                self.0.forget(&slot.entry);
            }
            if let Some(from) = &request.from {
                return self.adopt(request, &parent, from, end).await;
            }
            if request.enqueue == Enqueue::Heartbeat {
                return Ok(self.0.busy());
            }
            if let Some(slot) = self.begin(request, parent.clone(), end).await? {
                if let Some(answer) = self.ask(&slot, end, |reply| Command::Acquire(request.clone(), end, reply)).await {
                    return answer;
                }
                // Its session has ended, and all that it made there.
                self.0.forget(&slot.entry);
                if Instant::now() >= end {
                    return Err(Failed::Over.error());
                }
            }
        }
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let end = self.end(shortest);
        let slots: Vec<_> = leases.iter().map(|lease| self.0.slot(&lease.name, &lease.owner)).collect();
        match (leases, &slots[..]) {
            // A user may have its token from another process, and is to learn why it cannot be renewed.
            ([lease], [None]) => vec![self.renew_elsewhere(lease, end).await],
            // Several are those that a watchdog had from this store.
            _ => self.0.renew(leases, &slots, end).await,
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let (parent, end) = (self.0.path(&lease.name)?, self.end(lease.ttl));
        if let Some(slot) = self.0.slot(&lease.name, &lease.owner) {
            check_linger(linger)?;
            // From here on it is released, also if this call is dropped.
            slot.entry.state().released = true;
            self.0.forget(&slot.entry);
            if let Some(answer) = self.ask(&slot, end, Command::Release).await {
                return answer;
            }
            // Its session is over. A node that is left of it is deleted in another one.
        }
        let Some(path) = self.0.elsewhere(&parent, &lease.owner, end).await? else { return Ok(ReleaseReply::NotHeld) };
        check_linger(linger)?;
        let session = self.0.sessions.any(end).await?;
        let began = Instant::now();
        match timeout_at(end, session.ask(Frame::delete(&path))).await {
            Ok(Ok(_)) => Ok(ReleaseReply::Released),
            Ok(Err(Failed::Code(NO_NODE))) => Ok(ReleaseReply::NotHeld),
            // The node is that of another session, so the end of this one says nothing of it.
            Ok(Err(failed)) => Err(failed.error().maybe_applied()),
            Err(_) => Err(no_answer(end.saturating_duration_since(began))),
        }
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        if request.enqueue == Enqueue::No || !request.generated {
            return self.observe(&request.name, self.end(request.ttl)).await;
        }
        let (sender, notices) = mpsc::unbounded_channel();
        let key = (request.name.clone(), request.owner.clone());
        {
            let mut listeners = locked(&self.0.listeners);
            listeners.retain(|_, listener| !listener.is_closed());
            listeners.insert(key, sender.clone());
        }
        if let Some(slot) = self.0.slot(&request.name, &request.owner) {
            let state = slot.entry.state();
            if state.phase == Phase::Served {
                let _ = sender.send(Notice::Changed);
            }
        }
        Ok(received(notices))
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Shown>, Error> {
        let names = if let Some(name) = name {
            vec![name.clone()]
        } else {
            self.names().await?.into_iter().filter_map(|name| Name::new(name).ok()).collect()
        };
        let mut shown = Vec::new();
        for name in names {
            let parent = &self.0.path(&name)?;
            let end = self.end(Duration::MAX);
            let nodes = self.0.reading(end, |session| async move { self.0.read(&session, parent).await }).await?;
            shown.extend(self.shown(&name, nodes));
        }
        Ok(shown)
    }
}

fn check_linger(linger: Duration) -> Result<(), Error> {
    if linger.is_zero() {
        return Ok(());
    }
    let what = "a lock in ZooKeeper cannot stay taken by nobody: it ends with the session that holds it";
    Err(Error::new(ErrorKind::Unsupported, what).with_hint("leave min-hold out"))
}

impl ZooKeeperStore {
    /// Renews a lease that this store does not have.
    async fn renew_elsewhere(&self, lease: &Lease, end: Instant) -> Result<RenewReply, Error> {
        let parent = self.0.path(&lease.name)?;
        let found = self.0.elsewhere(&parent, &lease.owner, end).await?;
        if found.is_some() { Err(elsewhere()) } else { Ok(RenewReply::Gone) }
    }
}

impl fmt::Display for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeperStore({self})")
    }
}
