//! The end of an entry: its node is deleted, whatever is known of it.

use tenure::Error;
use tenure::store::ReleaseReply;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{AGAIN, Actor, Node};
use crate::failure::{Failed, NO_AUTH, NO_NODE};
use crate::wire::Frame;

impl Actor {
    /// Deletes whatever this entry has made, however long that takes, and says what became of it as soon as that is known.
    pub(super) async fn remove(&mut self, mut reply: Option<oneshot::Sender<Result<ReleaseReply, Error>>>) {
        self.entry.end();
        let sweeps_until = Instant::now() + self.entry.state().ttl;
        loop {
            let deleted = self.delete().await;
            if deleted == Err(Failed::Code(NO_AUTH))
                && (self.known().is_some() || self.doubtful)
                && let Some(store) = self.store.upgrade()
            {
                store.sessions.retire(&self.entry.used.session);
            }
            let is_found = deleted == Ok(true);
            let (said, is_done) = match deleted {
                Ok(true) => (Ok(ReleaseReply::Released), true),
                Ok(false) | Err(Failed::Over) => (Ok(ReleaseReply::NotHeld), true),
                // A node that it may have made goes with its session.
                Err(failed @ Failed::Code(NO_AUTH)) => (Err(failed.error()), true),
                Err(failed) => (Err(failed.error().maybe_applied()), self.entry.session().is_over()),
            };
            if let Some(reply) = reply.take() {
                let _ = reply.send(said);
            }
            // A server that is behind the others does not show a node that was made late.
            let is_swept = !self.doubtful || deleted == Err(Failed::Code(NO_AUTH)) || is_found || Instant::now() >= sweeps_until;
            if is_done && (is_swept || self.entry.session().is_over()) {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    pub(super) async fn delete(&mut self) -> Result<bool, Failed> {
        match self.settle().await {
            Ok(()) | Err(Failed::Code(_)) => {}
            Err(Failed::Cut { sent: false }) if !self.doubtful => return Ok(false),
            Err(failed) => return Err(failed),
        }
        let mut mine: Vec<_> = self.known().into_iter().collect();
        if self.doubtful {
            match self.ask(Frame::list(&self.entry.parent, false)).await {
                Err(Failed::Code(NO_NODE)) => return Ok(false),
                listed => mine = self.mine(&listed?)?,
            }
        }
        let mut was_there = false;
        for name in mine {
            match self.ask(Frame::delete(&self.entry.path_of(&name))).await {
                Ok(_) => was_there = true,
                Err(Failed::Code(NO_NODE)) => {}
                Err(failed) => return Err(failed),
            }
        }
        self.node = Node::None;
        Ok(was_there)
    }
}
