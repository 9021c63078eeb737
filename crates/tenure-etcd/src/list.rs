//! Holders and waiters, as they are shown.

use std::collections::HashMap;

use futures_util::future::{BoxFuture, try_join_all};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tenure::store::Busy;
use tenure::{Entry, Error, Holder, Name, Owner};
use tokio::time::{Instant, timeout_at};

use crate::lease::left;
use crate::proto::{Header, KeyValue, RangeRequest};
use crate::queue::{Queue, Slot};
use crate::store::EtcdStore;

/// Holders that a list asks for their ttl at a time.
const QUESTIONS: usize = 64;
/// Keys that a list reads at a time.
const PAGE: i64 = 2_000;

impl EtcdStore {
    pub(crate) async fn busy(&self, queue: &Queue, owner: &Owner, end: Instant) -> Busy {
        let mut busy = Busy::new(self.poll_interval);
        busy.position = queue.position(owner).and_then(|position| queue.waiters_before(position));
        // A call that waits for the ttl of somebody else is not to fail by it.
        busy.holder = match queue.holders().first() {
            Some(slot) => self.holder(slot, end).await.ok().flatten(),
            None => None,
        };
        busy
    }

    /// A holder with what is left of its ttl. `None` if its lease has ended.
    async fn holder(&self, slot: &Slot, end: Instant) -> Result<Option<Holder>, Error> {
        let mut holder = slot.holder();
        if slot.lease != 0 {
            holder.ttl = left(&self.shared.connection, slot.lease, end).await?;
            if holder.ttl.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(holder))
    }

    /// The entry of one name. A renewal may move a hold to another lease between the two questions. So a holder is left
    /// out only if its key still has the lease that has ended.
    pub(crate) async fn entry(&self, name: Name, end: Instant) -> Result<Entry, Error> {
        let mut ended: Vec<i64> = Vec::new();
        loop {
            let queue = self.shared.queue(&name, end).await?;
            let holders = try_join_all(queue.holders().iter().map(|slot| self.holder(slot, end))).await?;
            let gone = queue.holders().iter().zip(&holders).filter(|(_, holder)| holder.is_none());
            let gone: Vec<i64> = gone.map(|(slot, _)| slot.lease).collect();
            if gone.iter().all(|lease| ended.contains(lease)) {
                return Ok(queue.entry(name, holders.into_iter().flatten().collect()));
            }
            ended = gone;
        }
    }

    pub(crate) async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error> {
        let layout = &self.shared.layout;
        let (mut key, range_end) = layout.all();
        let (mut names, mut header) = (HashMap::<Name, Vec<KeyValue>>::new(), Header::default());
        loop {
            let request = RangeRequest { key, range_end: range_end.clone(), limit: PAGE, ..RangeRequest::default() };
            let page = self.shared.locks(request, end).await?;
            header = page.header.unwrap_or(header);
            let next = page.kvs.last().map(|last| [&last.key[..], &[0]].concat());
            for kv in page.kvs {
                if let Some(name) = layout.name_of(&kv).and_then(|name| Name::new(name).ok()) {
                    names.entry(name).or_default().push(kv);
                }
            }
            match next.filter(|_| page.more) {
                Some(next) => key = next,
                None => break,
            }
        }
        let mut queues: Vec<_> = names.into_iter().collect();
        queues.sort_by(|one, other| one.0.cmp(&other.0));
        let queues: Vec<_> = queues
            .into_iter()
            .map(|(name, mut kvs)| {
                kvs.sort_by_key(|kv| kv.create_revision);
                (name, Queue::new(&header, kvs.into_iter()))
            })
            .collect();
        let until = Instant::now() + end.saturating_duration_since(Instant::now()) / 2;
        let mut holders = self.holders(&queues, until, end).await;
        let entries = queues.into_iter().enumerate().map(|(at, (name, queue))| {
            let holders = std::mem::take(&mut holders[at]);
            async move {
                let is_whole = holders.iter().all(Option::is_some);
                let entry = queue.entry(name, holders.into_iter().flatten().collect());
                if is_whole {
                    return entry;
                }
                timeout_at(until, self.entry(entry.name.clone(), end)).await.ok().and_then(Result::ok).unwrap_or(entry)
            }
        });
        let entries: Vec<_> = stream::iter(entries).buffered(QUESTIONS).collect().await;
        Ok(entries.into_iter().filter(Entry::is_in_use).collect())
    }

    /// The holders of each queue, `None` for one whose lease has ended. As many are asked for their ttl as answer by `until`.
    async fn holders(&self, queues: &[(Name, Queue)], until: Instant, end: Instant) -> Vec<Vec<Option<Holder>>> {
        let mut asked: Vec<BoxFuture<'_, (usize, Option<Holder>)>> = Vec::new();
        for (at, (_, queue)) in queues.iter().enumerate() {
            for slot in queue.holders() {
                let ask = async move {
                    let holder = timeout_at(until, self.holder(slot, end)).await;
                    (at, holder.ok().and_then(Result::ok).unwrap_or_else(|| Some(slot.holder())))
                };
                asked.push(ask.boxed());
            }
        }
        let mut holders = vec![Vec::new(); queues.len()];
        let mut found = stream::iter(asked).buffered(QUESTIONS);
        while let Some((at, holder)) = found.next().await {
            holders[at].push(holder);
        }
        holders
    }
}
