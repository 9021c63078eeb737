//! Notices of the server: whom it has handed a name, and that one is free. Each has a way and a
//! fate of its own.

use tenure::store::Notice;
use tenure::store::record::Served;
use tenure::{Fence, Name};

use super::clock::At;
use super::coverage::Met;
use super::mix::Mix;
use super::network::{Job, Watcher};
use super::server::Done;
use super::world::Inner;

impl Inner {
    /// Tells those whom a command has served or who should look; its answer.
    pub(super) fn settle<T>(&mut self, mix: &Mix, now: At, name: &Name, done: Done<T>) -> T {
        self.network.watchers.retain(|watcher| !watcher.notices.is_closed());
        for Served { owner, counter, handoff_ttl, .. } in done.served {
            self.coverage.met(Met::Served);
            self.given(now, name, &owner);
            let Some(fence) = Fence::from_counter(counter) else { continue };
            self.notify(mix, now, name, &Notice::Granted { owner, fence, handoff_ttl });
        }
        if done.freed {
            self.notify(mix, now, name, &Notice::Changed);
        }
        done.answer
    }

    /// Each notice has a way of its own.
    fn notify(&mut self, mix: &Mix, now: At, name: &Name, notice: &Notice) {
        let is_for = |watcher: &&Watcher| match notice {
            Notice::Granted { owner, .. } => watcher.name == *name && watcher.owner == *owner,
            Notice::Changed => watcher.name == *name,
        };
        let watchers: Vec<_> = self.network.watchers.iter().filter(is_for).map(|watcher| watcher.notices.clone()).collect();
        for watcher in watchers {
            if self.happens(mix, now, Met::LostPush) {
                continue;
            }
            let times = if self.happens(mix, now, Met::PushedTwice) { 2 } else { 1 };
            for _ in 0..times {
                let at = now + self.way(mix, now);
                self.network.push(at, Job::Notify(watcher.clone(), notice.clone()));
            }
        }
    }
}
