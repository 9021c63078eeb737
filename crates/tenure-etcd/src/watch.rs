//! Notices: a waiter watches the key in front of its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, future};
use tenure::store::{Enqueue, Notice, Request};
use tenure::{Error, Fence};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Streaming;

use crate::failure::{Failed, unexpected};
use crate::keys::KeyRange;
use crate::proto::{DELETE, Event, WATCH, WatchCreateRequest, WatchRequest, WatchResponse};
use crate::queue::fence;
use crate::seen::Id;
use crate::shared::Shared;
use crate::waits::Before;

/// How long a read behind a notice may take. The next heartbeat asks as well.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the notices for a request.
pub(crate) async fn notices(shared: &Arc<Shared>, request: &Request, end: Instant) -> Result<BoxStream<'static, Notice>, Error> {
    if request.enqueue == Enqueue::No || !request.generated {
        return observed(shared, request, end).await;
    }
    let id = (request.name.clone(), request.owner.clone());
    let answers = shared.waits.subscribe(&id);
    let waiter = Waiter { shared: Arc::clone(shared), id, answers, watched: None };
    Ok(stream::unfold(waiter, async |mut waiter| Some((waiter.next().await?, waiter))).boxed())
}

/// A notice for each change of a name.
async fn observed(shared: &Shared, request: &Request, end: Instant) -> Result<BoxStream<'static, Notice>, Error> {
    let mut watched = open(shared, shared.layout.range(&request.name), 0, end).await?;
    let silent = |_| Error::unreachable("etcd did not begin to watch in time");
    match timeout_at(end, watched.next()).await.map_err(silent)? {
        Some(Ok(answer)) if answer.created && !answer.canceled => {}
        Some(Err(status)) => return Err(Failed::of(&status, &shared.connection.to_string()).into()),
        _ => return Err(unexpected("it does not watch")),
    }
    let notices = watched.filter_map(|answer| {
        // The end of the stream is a notice as well: the next poll knows more.
        let changed = answer.map_or(true, |answer| answer.canceled || !answer.events.is_empty());
        future::ready(changed.then_some(Notice::Changed))
    });
    Ok(notices.boxed())
}

async fn open(
    shared: &Shared,
    (key, range_end): KeyRange,
    start_revision: i64,
    end: Instant,
) -> Result<Streaming<WatchResponse>, Error> {
    let create = WatchCreateRequest { key, range_end, start_revision };
    let requests = vec![WatchRequest { create: Some(create) }];
    Ok(shared.connection.stream(WATCH, requests, true, end).await?)
}

/// Notices of a waiter with an entry.
struct Waiter {
    shared: Arc<Shared>,
    id: Id,
    /// Answers to its heartbeats.
    answers: watch::Receiver<Option<Before>>,
    watched: Option<(Before, Streaming<WatchResponse>)>,
}

impl Waiter {
    /// `None` once the entry has ended.
    async fn next(&mut self) -> Option<Notice> {
        loop {
            let latest = self.answers.borrow_and_update().clone();
            match (latest, &mut self.watched) {
                (Some(latest), Some((before, _))) if latest.last == before.last && latest.connection == before.connection => {
                    *before = latest;
                }
                (Some(latest), _) => self.watched = self.open(latest).await,
                (None, _) => {}
            }
            let Some((before, events)) = &mut self.watched else {
                self.answers.changed().await.ok()?;
                continue;
            };
            let answer = tokio::select! {
                biased;
                changed = self.answers.changed() => {
                    changed.ok()?;
                    continue;
                }
                answer = events.next() => answer,
            };
            let before = before.clone();
            match answer {
                Some(Ok(answer)) if !answer.canceled => {
                    if let Some(notice) = self.look(&before, answer.events).await {
                        return Some(notice);
                    }
                }
                // Compacted, or the member was lost: a poll knows who is in front now.
                _ => {
                    self.watched = None;
                    self.answers.mark_unchanged();
                    return Some(Notice::Changed);
                }
            }
        }
    }

    async fn open(&self, before: Before) -> Option<(Before, Streaming<WatchResponse>)> {
        // A share is served beside others, so any key in front may be the one.
        let range = if before.exclusive { (before.last.clone(), Vec::new()) } else { self.shared.layout.range(&self.id.0) };
        let events = open(&self.shared, range, before.revision + 1, Instant::now() + LOOK).await;
        events.ok().map(|events| (before, events))
    }

    /// Looks whether these events have served the waiter.
    async fn look(&mut self, before: &Before, events: Vec<Event>) -> Option<Notice> {
        let deleted = |event: &Event| {
            event.kv.as_ref().filter(|kv| event.kind == DELETE && kv.key == before.last).map(|kv| kv.mod_revision)
        };
        let gone = events.iter().find_map(deleted);
        if events.is_empty() || (before.exclusive && gone.is_none()) {
            return None;
        }
        if let Some(revision) = gone
            && before.exclusive
            && before.alone
        {
            return Some(self.granted(before, fence(revision)));
        }
        let Ok(queue) = self.shared.queue(&self.id.0, Instant::now() + LOOK).await else { return Some(Notice::Changed) };
        if let Some(slot) = queue.held_by(&self.id.1) {
            // A heartbeat may have confirmed the hold, and its answer be lost.
            let kept = slot.holder().fence.or_else(|| fence(queue.revision));
            return Some(self.granted(before, kept));
        }
        match Before::new(&queue, &self.id.1, before.handoff_ttl, before.connection) {
            // Its own events are not news.
            Some(latest) if latest.last == before.last => None,
            Some(latest) => {
                self.watched = self.open(latest).await;
                None
            }
            None => Some(Notice::Changed),
        }
    }

    fn granted(&mut self, before: &Before, fence: Option<Fence>) -> Notice {
        self.watched = None;
        self.answers.mark_unchanged();
        match fence {
            Some(fence) => Notice::Granted { owner: self.id.1.clone(), fence, handoff_ttl: before.handoff_ttl },
            None => Notice::Changed,
        }
    }
}
