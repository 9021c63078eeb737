//! Where the node of an entry stands, and what it waits for.

use tenure::store::{AcquireReply, Busy, Enqueue, Notice, Request};
use tenure::{Error, Share};
use tokio::time::{Instant, timeout_at};

use super::{AGAIN, Actor, Seen, data_of, fence, holder, node_stays, written_at};
use crate::entry::Phase;
use crate::failure::{Failed, NO_NODE};
use crate::inner::Inner;
use crate::nodes::{Child, in_order};
use crate::queue::{Smaller, Status, Watch, before, doubtful, status};
use crate::session::{Reply, answer};
use crate::wire::{Frame, Reading};

impl Actor {
    /// Sees whether it is served by now, and watches for it if not.
    pub(super) async fn wait(&mut self, request: &Request) -> Result<AcquireReply, Error> {
        if let Enqueue::Join { entry_ttl, handoff_ttl } = request.enqueue {
            let mut state = self.entry.state();
            (state.entry_ttl, state.handoff_ttl) = (entry_ttl, handoff_ttl);
        }
        self.keep_waiting();
        let seen = self.look(false).await.map_err(node_stays)?;
        match seen.status {
            Status::Holds => self.granted(request, seen.zxid, false).await,
            Status::Waits { position, .. } => {
                self.keep_waiting();
                let busy = self.busy(seen.first.as_ref()).await;
                let AcquireReply::Busy(busy) = busy else { return Ok(busy) };
                Ok(AcquireReply::Busy(busy.with_position(position).with_grant_seq(0)))
            }
            Status::OtherKind(other) => {
                self.entry.end();
                Err(Error::other_kind(&self.entry.name, other.kind(), request.share.kind()))
            }
            Status::Gone => {
                self.entry.end();
                Ok(self.busy(None).await)
            }
        }
    }

    pub(super) async fn busy(&mut self, first: Option<&Child>) -> AcquireReply {
        let poll_interval = self.store.upgrade().map_or(AGAIN, |store| store.poll_interval);
        if let Some(child) = first
            && self.first.as_ref().is_none_or(|(name, _)| *name != child.name)
        {
            self.first = holder(&self.entry, first).await.map(|holder| (child.name.clone(), holder));
        }
        let holder = first.and(self.first.as_ref()).map(|(_, holder)| holder.clone());
        AcquireReply::Busy(Busy::new(poll_interval).with_holder(holder))
    }

    /// Keeps a waiter from now on for as long as it asked.
    fn keep_waiting(&self) {
        let mut state = self.entry.state();
        if state.phase == Phase::Waiting {
            state.until = Instant::now() + state.entry_ttl;
        }
    }

    /// Reads a list of all nodes, and what nodes in front of `mine` say of themselves if that matters.
    pub(super) async fn read(&mut self, listed: &Reply, generated: bool) -> Result<Seen, Failed> {
        let mut reading = Reading(&listed.body);
        let (Some(names), Some(stat)) = (reading.texts(), reading.stat()) else { return Err(Failed::Garbled) };
        let children = in_order(&names);
        // A create whose answer was lost may have been done in front of the one that repeated it.
        let Some(mine) = children.iter().find(|child| child.name.starts_with(&self.entry.guid)).map(|child| child.name.clone())
        else {
            return Ok(Seen { status: Status::Gone, zxid: stat.pzxid, first: None, is_second: false });
        };
        if self.known().as_ref() != Some(&mine) {
            self.found(&mine);
        }
        let mine = mine.as_str();
        // A downgrade in front of it is in the data of a node alone.
        let (mut smaller, mut zxid) = (Smaller::new(), stat.pzxid);
        let asked = if generated { doubtful(&children, mine) } else { before(&children, mine) };
        let (owner, mut is_second) = (self.entry.state().owner.clone(), false);
        let frames = asked.iter().map(|child| Frame::get_data(&self.entry.path_of(&child.name), false)).collect();
        for (child, answer) in asked.iter().zip(self.entry.session().ask_each(frames).await) {
            match answer {
                Ok(reply) => {
                    let data = data_of(&reply);
                    zxid = zxid.max(written_at(&reply).ok_or(Failed::Garbled)?);
                    is_second |= data.as_ref().is_some_and(|data| data.owner == owner);
                    smaller.extend(data.map(|data| (child.name.clone(), data.share)));
                }
                // It still counts here, and the next poll finds it gone.
                Err(Failed::Code(NO_NODE)) => {}
                Err(failed) => return Err(failed),
            }
        }
        Ok(Seen { status: status(&children, mine, &smaller), zxid, first: children.into_iter().next(), is_second })
    }

    /// Sees where the node stands, and watches what it waits for. `proves`: by a transaction, because one server alone may be behind.
    pub(super) async fn look(&mut self, proves: bool) -> Result<Seen, Failed> {
        let gone = || Seen { status: Status::Gone, zxid: 0, first: None, is_second: false };
        loop {
            let Some(mine) = self.known() else { return Ok(gone()) };
            let share = self.entry.state().share;
            let list = Frame::list(&self.entry.parent, !share.is_exclusive() && share != Share::READ);
            let path = self.entry.path_of(&mine);
            let mut listed = if proves {
                let [mut checked, mut listed] = self.entry.session().ask_all([Frame::check_all([path.as_str()]), list]);
                match Failed::of_transaction(&answer(&mut checked).await?.body) {
                    Err(Failed::Code(NO_NODE)) => return Ok(gone()),
                    done => done?,
                }
                answer(&mut listed).await
            } else {
                self.ask(list).await
            };
            if matches!(listed, Err(Failed::Code(NO_NODE))) {
                return Ok(gone());
            }
            let watch = listed.as_mut().ok().and_then(|listed| listed.watch.take());
            let seen = self.read(&listed?, true).await?;
            let Status::Waits { watch: target, .. } = &seen.status else { return Ok(seen) };
            if let (Watch::Parent, Some(watch)) = (target, watch) {
                self.watch = Some((Watch::Parent, watch));
                return Ok(seen);
            }
            let Watch::Child(child) = target else { return Ok(seen) };
            if self.watch.as_ref().is_some_and(|(watched, _)| watched == target) {
                return Ok(seen);
            }
            match self.ask(Frame::get_data(&self.entry.path_of(child), true)).await {
                Ok(mut reply) => {
                    let is_smaller = !share.is_exclusive() && data_of(&reply).is_some_and(|data| !data.share.is_exclusive());
                    if !is_smaller {
                        self.watch = reply.watch.take().map(|watch| (target.clone(), watch));
                        return Ok(seen);
                    }
                }
                Err(Failed::Code(NO_NODE)) => {}
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Something has changed in front of it, or nobody would say so any more.
    pub(super) async fn moved(&mut self) {
        self.watch = None;
        if self.entry.state().phase != Phase::Waiting {
            return;
        }
        let until = self.entry.state().until;
        let seen = async {
            loop {
                match self.look(true).await {
                    Err(Failed::Cut { .. } | Failed::Garbled) if !self.entry.session().is_over() => {}
                    seen => break seen,
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        match timeout_at(until, seen).await {
            Ok(Ok(Seen { status: Status::Holds, zxid, .. })) => self.served(zxid),
            Ok(Ok(Seen { status: Status::Gone | Status::OtherKind(_), .. })) => self.entry.end(),
            _ => {}
        }
    }

    fn served(&self, zxid: i64) {
        let Some(store) = self.store.upgrade() else { return };
        let notice = {
            let mut state = self.entry.state();
            if state.phase != Phase::Waiting {
                return;
            }
            (state.phase, state.fence, state.since) = (Phase::Served, fence(zxid), Instant::now());
            state.until = Instant::now() + state.handoff_ttl;
            // A waiter that accepts it asks for a renewal for the whole ttl.
            let keeps = store.sessions.keeps(self.entry.session(), state.handoff_ttl);
            match state.fence {
                Some(fence) if keeps && state.ttl <= store.sessions.longest_ttl() => {
                    Notice::Granted { owner: state.owner.clone(), fence, handoff_ttl: state.handoff_ttl }
                }
                _ => Notice::Changed,
            }
        };
        self.notify(&store, notice);
    }

    pub(super) fn notify(&self, store: &Inner, notice: Notice) {
        let owner = self.entry.state().owner.clone();
        store.notify(&self.entry.name, &owner, notice);
    }
}
