//! The task of one entry: it makes its node, watches the one in front of it, and deletes it.
//!
//! All requests for an entry go through its task, one after the other. A caller that goes away
//! cancels nothing here, so the task always knows its node, or knows that it has to look for it.

mod look;
mod remove;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure::store::{AcquireReply, Busy, Enqueue, Grant, Notice, Request};
use tenure::{Error, ErrorKind, Fence, Holder};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::entry::{Command, Entry, Phase, shown_ttl};
use crate::failure::{Failed, NO_NODE, no_answer, too_long};
use crate::inner::{Inner, data_of, holder_of};
use crate::nodes::{Child, Data, node};
use crate::queue::{Status, Watch};
use crate::session::{Pending, Reply, answer};
use crate::wire::{CREATE, EPHEMERAL_SEQUENTIAL, Frame, Reading};

/// Pause before what failed is tried again in the background.
const AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct Actor {
    entry: Arc<Entry>,
    store: Weak<Inner>,
    node: Node,
    /// A node may be there that is not known.
    doubtful: bool,
    watch: Option<(Watch, oneshot::Receiver<()>)>,
    /// The first in the queue, and what it says of itself.
    first: Option<(String, Holder)>,
}

enum Node {
    None,
    /// It was asked for.
    Creating(Pending),
    /// The answer was lost.
    Unknown,
    Known(String),
}

/// Where the node stood, and the last change by then that may have served it.
struct Seen {
    status: Status,
    zxid: i64,
    first: Option<Child>,
    /// One in front of it has the same owner token.
    is_second: bool,
}

/// Of a request that changed nothing by itself. The node of its call may be there.
fn node_stays(failed: Failed) -> Error {
    failed.error().maybe_applied()
}

/// The end of a whole call.
fn late(end: Instant, began: Instant) -> Error {
    no_answer(end.saturating_duration_since(began))
}

impl Actor {
    pub(crate) fn new(entry: Arc<Entry>, store: Weak<Inner>) -> Self {
        Self { entry, store, node: Node::None, doubtful: false, watch: None, first: None }
    }

    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let entry = self.entry.clone();
        let over = entry.session().over();
        tokio::pin!(over);
        let mut was_waiting;
        loop {
            let until = {
                let state = self.entry.state();
                was_waiting = matches!(state.phase, Phase::Waiting | Phase::Served);
                state.until
            };
            tokio::select! {
                biased;
                () = &mut over => break,
                command = commands.recv() => match command {
                    Some(Command::Acquire(request, end, reply)) => {
                        if !self.acquire_for(&request, end, reply).await {
                            break self.remove(None).await;
                        }
                    }
                    Some(Command::Release(reply)) => break self.remove(Some(reply)).await,
                    None => break self.remove(None).await,
                },
                () = sleep_until(until) => if self.lapses() {
                    break self.remove(None).await;
                },
                () = fired(&mut self.watch) => self.moved().await,
            }
            if self.entry.state().phase == Phase::Ended {
                break self.remove(None).await;
            }
        }
        self.entry.end();
        if let Some(store) = self.store.upgrade() {
            store.forget(&self.entry);
            if was_waiting {
                self.notify(&store, Notice::Changed);
            }
        }
    }

    /// Ends it here, if its time has come. From then on no renewal finds it.
    fn lapses(&self) -> bool {
        let mut state = self.entry.state();
        let lapses = Instant::now() >= state.until;
        if lapses {
            state.phase = Phase::Ended;
        }
        lapses
    }

    /// Answers an acquisition. Returns whether the entry is to stay.
    async fn acquire_for(
        &mut self,
        request: &Request,
        end: Instant,
        reply: oneshot::Sender<Result<AcquireReply, Error>>,
    ) -> bool {
        let (began, is_first) = (Instant::now(), self.entry.state().phase == Phase::Asked);
        let answer = timeout_at(end, self.acquire(request)).await.unwrap_or_else(|_| Err(late(end, began)));
        let failed_for_good = match &answer {
            Ok(_) => false,
            Err(error) => !error.is_transient() || !request.generated,
        };
        if is_first && self.entry.session().has_expired() && answer.as_ref().is_err_and(Error::is_transient) {
            // Nothing is left of it. Without an answer it is asked again, in another session.
            return false;
        }
        let is_heard = reply.send(answer).is_ok();
        // Nobody else knows of a node that was made in vain. A supplied token is not asked for again.
        !is_first || (is_heard && !failed_for_good)
    }

    async fn acquire(&mut self, request: &Request) -> Result<AcquireReply, Error> {
        let (phase, share) = {
            let state = self.entry.state();
            (state.phase, state.share)
        };
        let covers = share.capacity() == request.share.capacity() && share.weight() >= request.share.weight();
        if !covers {
            let what = format!(
                "the owner of {:?} has {share:?} of {:?}, and cannot have {:?} instead",
                self.entry.name, self.entry.name, request.share
            );
            return Err(Error::invalid(what).with_hint("release it, and acquire the other share"));
        }
        match phase {
            Phase::Asked => self.begin(request).await,
            Phase::Waiting => self.wait(request).await,
            Phase::Served | Phase::Held => self.confirm(request, phase == Phase::Served && share == request.share).await,
            Phase::Ended => Ok(self.busy(None).await),
        }
    }

    /// Makes the node, and sees where it stands.
    async fn begin(&mut self, request: &Request) -> Result<AcquireReply, Error> {
        loop {
            let listed = self.create(request)?;
            let is_fresh = listed.is_some();
            match self.settle().await {
                Ok(()) => {}
                Err(Failed::Code(NO_NODE)) => {
                    self.store()?.make_parents(self.entry.session(), &self.entry.parent).await?;
                    continue;
                }
                // A supplied token is sent once.
                Err(Failed::Cut { sent: false }) if request.generated => continue,
                Err(failed) => return Err(failed.error()),
            }
            let Some(mine) = self.known() else {
                if request.generated {
                    continue;
                }
                return Err(Failed::Cut { sent: true }.error());
            };
            let listed = match listed {
                Some(mut listed) => answer(&mut listed).await,
                None => self.ask(Frame::list(&self.entry.parent, false)).await,
            };
            let seen = self.read(&listed.map_err(node_stays)?, request.generated).await.map_err(node_stays)?;
            let is_fresh = is_fresh && self.known().as_ref() == Some(&mine);
            return match seen.status {
                Status::Holds if !seen.is_second => self.granted(request, seen.zxid, is_fresh).await,
                Status::Gone => {
                    self.node = Node::None;
                    continue;
                }
                Status::OtherKind(other) => {
                    self.delete_known(&mine).await;
                    self.entry.end();
                    Err(Error::other_kind(&self.entry.name, other.kind(), request.share.kind()))
                }
                Status::Holds | Status::Waits { .. } if request.enqueue == Enqueue::No => {
                    let first = seen.first;
                    let (is_deleted, busy) = tokio::join!(self.delete_known(&mine), holder(&self.entry, first.as_ref()));
                    if is_deleted {
                        self.node = Node::None;
                    }
                    self.entry.end();
                    Ok(AcquireReply::Busy(Busy::new(self.store()?.poll_interval).with_holder(busy)))
                }
                Status::Holds | Status::Waits { .. } => {
                    self.entry.state().phase = Phase::Waiting;
                    self.wait(request).await
                }
            };
        }
    }

    /// Asks for the node and for the list of all, unless it was asked for.
    fn create(&mut self, request: &Request) -> Result<Option<Pending>, Error> {
        if !matches!(self.node, Node::None) {
            return Ok(None);
        }
        let data = Data { owner: request.owner.clone(), share: request.share, ttl: shown_ttl(request) }.write();
        let path = self.entry.path_of(&node(&self.entry.guid, request.share));
        let create = Frame::create(CREATE, &path, &data, self.store()?.acl, EPHEMERAL_SEQUENTIAL);
        let [created, listed] = self.entry.session().ask_all([create, Frame::list(&self.entry.parent, false)]);
        self.node = Node::Creating(created);
        Ok(Some(listed))
    }

    /// Waits until it is known whether there is a node, and which.
    async fn settle(&mut self) -> Result<(), Failed> {
        loop {
            match &mut self.node {
                Node::None | Node::Known(_) => return Ok(()),
                Node::Creating(created) => match answer(created).await {
                    Ok(reply) => self.found(&Reading(&reply.body).text().ok_or(Failed::Garbled)?),
                    Err(Failed::Cut { sent: true } | Failed::Garbled) => {
                        self.node = Node::Unknown;
                        self.doubtful = true;
                        if let Some(store) = self.store.upgrade() {
                            store.note_late(self.entry.state().until);
                        }
                    }
                    Err(failed) => {
                        self.node = Node::None;
                        return Err(failed);
                    }
                },
                Node::Unknown => {
                    // The session may be at another server by now, which has not heard of the node yet.
                    let frames = [Frame::sync(), Frame::list(&self.entry.parent, false)];
                    let [mut caught_up, mut listed] = self.entry.session().ask_all(frames);
                    self.node = match answer(&mut caught_up).await.and(answer(&mut listed).await) {
                        Err(Failed::Code(NO_NODE)) => Node::None,
                        listed => self.mine(&listed?)?.into_iter().next().map_or(Node::None, Node::Known),
                    };
                    if let Node::Known(name) = &self.node {
                        self.entry.state().node = Some(name.clone());
                    }
                }
            }
        }
    }

    fn found(&mut self, path: &str) {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
        self.entry.state().node = Some(name.clone());
        self.node = Node::Known(name);
    }

    /// The nodes of a list that this entry made.
    fn mine(&self, listed: &Reply) -> Result<Vec<String>, Failed> {
        let names = Reading(&listed.body).texts().ok_or(Failed::Garbled)?;
        let mine = names.into_iter().filter(|name| name.starts_with(&self.entry.guid) && Child::read(name).is_some());
        Ok(mine.collect())
    }

    fn known(&self) -> Option<String> {
        if let Node::Known(name) = &self.node { Some(name.clone()) } else { None }
    }

    /// The name was found free. If that was just written, and the node and its session are for long enough, it is granted.
    async fn granted(&mut self, request: &Request, zxid: i64, is_fresh: bool) -> Result<AcquireReply, Error> {
        let store = self.store()?;
        let is_shown = {
            let mut state = self.entry.state();
            (state.fence, state.phase) = (fence(zxid), Phase::Served);
            state.written >= request.ttl
        };
        if !is_fresh || !is_shown || self.entry.session().timeout() < store.sessions.needed(request.ttl) {
            return self.confirm(request, true).await;
        }
        self.hold(request, &store)
    }

    fn hold(&self, request: &Request, store: &Inner) -> Result<AcquireReply, Error> {
        // Another server may give less than the one that was asked for its limits.
        if !store.sessions.keeps(self.entry.session(), request.ttl) {
            return Err(too_long(self.entry.session().timeout().saturating_sub(store.sessions.slack())));
        }
        self.entry.state().share = request.share;
        if !self.entry.confirm(request.ttl) {
            return Ok(AcquireReply::Busy(Busy::new(store.poll_interval)));
        }
        let fence = self.entry.state().fence;
        Ok(AcquireReply::Granted(Grant::new(fence, request.ttl)))
    }

    /// Grants again what it has. The server has to write for that: a server that is cut off from the others still reads.
    async fn confirm(&mut self, request: &Request, keeps_fence: bool) -> Result<AcquireReply, Error> {
        let (store, Some(mine)) = (self.store()?, self.known()) else { return Ok(self.busy(None).await) };
        store.lengthen(self.entry.session(), request.ttl).await;
        self.entry.extend(request.ttl);
        let path = self.entry.path_of(&mine);
        let is_shown = self.entry.state().written >= request.ttl;
        let answer = if keeps_fence && is_shown {
            let checked = self.ask(Frame::check_all([path.as_str()])).await;
            checked.and_then(|reply| Failed::of_transaction(&reply.body)).map(|()| None)
        } else {
            let data = Data { owner: request.owner.clone(), share: request.share, ttl: request.ttl };
            let mut pending = self.entry.state().write(self.entry.session(), &path, &data);
            answer(&mut pending).await.and_then(|reply| Ok(Some(Reading(&reply.body).stat().ok_or(Failed::Garbled)?.mzxid)))
        };
        match answer {
            Ok(zxid) => {
                if let Some(zxid) = zxid {
                    let mut state = self.entry.state();
                    state.fence = fence(zxid);
                    state.shows(request.ttl);
                }
                self.hold(request, &store)
            }
            Err(Failed::Code(NO_NODE)) => {
                self.entry.end();
                Ok(self.busy(None).await)
            }
            Err(failed) => Err(node_stays(failed)),
        }
    }

    /// Returns whether it is gone. If not, the task deletes it when it ends.
    async fn delete_known(&self, mine: &str) -> bool {
        matches!(self.ask(Frame::delete(&self.entry.path_of(mine))).await, Ok(_) | Err(Failed::Code(NO_NODE)))
    }

    async fn ask(&self, frame: Frame) -> Result<Reply, Failed> {
        self.entry.session().ask(frame).await
    }

    fn store(&self) -> Result<Arc<Inner>, Error> {
        self.store.upgrade().ok_or_else(|| Error::new(ErrorKind::Unreachable, "the store was dropped"))
    }
}

/// Waits for the watch to fire, or to be lost.
async fn fired(watch: &mut Option<(Watch, oneshot::Receiver<()>)>) {
    match watch {
        Some((_, fires)) => drop(fires.await),
        None => std::future::pending().await,
    }
}

fn fence(zxid: i64) -> Option<Fence> {
    Fence::from_token(zxid.cast_unsigned())
}

/// The transaction that wrote the data of an answer.
fn written_at(reply: &Reply) -> Option<i64> {
    let mut reading = Reading(&reply.body);
    reading.bytes()?;
    Some(reading.stat()?.mzxid)
}

/// The holder, as its node says. `None` if it is not there any more, or cannot be read.
async fn holder(entry: &Entry, child: Option<&Child>) -> Option<Holder> {
    let child = child?;
    let reply = entry.session().ask(Frame::get_data(&entry.path_of(&child.name), false)).await.ok()?;
    Some(holder_of(child, data_of(&reply)))
}
