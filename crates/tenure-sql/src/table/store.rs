//! The store in a table: what it makes of the calls, whatever the database.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::cas::{self, Cas, CasStore, Renewed, Repeat};
use tenure::store::record::{Listeners, Served};
use tenure::store::{Busy, Features, Grant, Notice, Request, Store};
use tenure::{Entry, Error, Fence, Lease, Name, Share};
use tokio::time::Instant;

use super::row::entry;
use super::{Found, Push, Seen, Table, Tried, Write, Wrote};
use crate::handover;

/// Poll interval of a waiter that is notified: the heartbeat of its queue entry.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Each such release sweeps the next names. That is four for each new one.
const SWEEP_EVERY: u32 = 16;
pub(crate) const SWEEP_SPAN: i64 = 64;

/// Settings that are the same for every database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) timeout: Option<Duration>,
    /// Poll interval of waiters that have no queue entry or cannot be notified.
    pub(crate) poll_interval: Duration,
}

/// The rows of a table.
struct Rows<T> {
    table: T,
    listeners: Listeners,
    terms: Terms,
    releases: AtomicU32,
    /// The name up to which this process has swept.
    hand: Mutex<String>,
    /// The process that opened it.
    process: u32,
}

/// A store in a table.
pub(crate) fn store(table: impl Table, listeners: Listeners, terms: Terms) -> Arc<dyn Store> {
    let (releases, hand) = (AtomicU32::new(fastrand::u32(..SWEEP_EVERY)), Mutex::default());
    Arc::new(CasStore::new(Rows { table, listeners, terms, releases, hand, process: std::process::id() }))
}

impl<T: Table> Rows<T> {
    /// Every server has to keep a lease for its ttl by its own clock.
    fn padded(&self, mut found: Found) -> Found {
        found.pad = self.table.spread();
        found
    }

    /// Sweeps now and then. A sweep that fails is made up for by the next.
    async fn sweep(&self, end: Instant) {
        if !self.releases.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EVERY) {
            return;
        }
        let after = self.hand.lock().map(|hand| hand.clone()).unwrap_or_default();
        if let Ok(next) = self.table.sweep(&after, end).await
            && let Ok(mut hand) = self.hand.lock()
        {
            *hand = next.unwrap_or_default();
        }
    }
}

/// Notifications for the served waiters of other processes.
fn pushes(name: &Name, served: &[Served], own: Option<&str>) -> Vec<Push> {
    let elsewhere = served.iter().filter(|served| !served.wake.is_empty() && Some(&*served.wake) != own);
    let push = |served: &Served| {
        let address = served.wake.clone();
        Some(Push {
            address,
            message: handover::write(name, &served.owner, Fence::from_counter(served.counter)?, served.handoff_ttl),
        })
    };
    elsewhere.filter_map(push).collect()
}

#[async_trait]
impl<T: Table> Cas for Rows<T> {
    type Version = Seen;

    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(self.table.pushes())
            .with_server_clock(true)
            .with_late_commands(self.table.has_late_commands())
            .with_max_name(self.table.max_name())
            .with_operation_timeout(self.terms.timeout)
            .with_opened_by(self.process)
    }

    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error> {
        Ok(self.table.read(names, end).await?.into_iter().map(|found| self.padded(found)).collect())
    }

    async fn write(&self, writes: &[cas::Write<'_, Seen>], _: Repeat, end: Instant) -> Result<Wrote, Error> {
        let rows: Vec<Write<'_>> = writes.iter().filter_map(Write::of).collect();
        if rows.is_empty() {
            return Ok(Wrote::all());
        }
        let own = self.table.address();
        let pushes: Vec<Push> = writes.iter().flat_map(|write| pushes(write.name, write.served, own.as_deref())).collect();
        let mut wrote = self.table.write(&rows, &pushes, end).await?;
        wrote.found = wrote.found.map(|found| self.padded(found));
        Ok(wrote)
    }

    async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error> {
        self.table.list(end).await?.iter().filter_map(|found| entry(found).transpose()).collect()
    }

    fn busy(&self, busy: Busy, hears: bool) -> Busy {
        let notified = busy.position.is_some() && hears;
        let every = self.terms.poll_interval;
        busy.with_poll_interval(if notified { every.max(HEARTBEAT) } else { every })
    }

    fn writes_several(&self) -> bool {
        true
    }

    fn wake(&self) -> Option<String> {
        self.table.address()
    }

    fn listeners(&self) -> Option<&Listeners> {
        Some(&self.listeners)
    }

    async fn take(&self, request: &Request, end: Instant) -> Result<cas::Tried<Grant, Seen>, Error> {
        if request.share != Share::MUTEX {
            return Ok(cas::Tried::Other(None));
        }
        let lasting = request.clone().with_ttl(request.ttl.saturating_add(self.table.spread()));
        Ok(match self.table.take(&lasting, end).await? {
            Tried::Done(counter) => {
                let fence = Fence::from_counter(counter).ok_or_else(|| cas::used_up().maybe_applied())?;
                cas::Tried::Done(Grant::new(Some(fence), request.ttl))
            }
            Tried::Other(found) => cas::Tried::Other(found.map(|found| self.padded(found))),
        })
    }

    async fn free(&self, lease: &Lease, end: Instant) -> Result<Tried<()>, Error> {
        let freed = self.table.free(lease, end).await?;
        if let Tried::Done(()) = freed {
            self.sweep(end).await;
        }
        Ok(freed)
    }

    async fn renew(&self, leases: &[Lease], end: Instant) -> Result<Renewed, Error> {
        let lasting = |lease: &Lease| lease.clone().with_ttl(lease.ttl.saturating_add(self.table.spread()));
        self.table.renew(&leases.iter().map(lasting).collect::<Vec<_>>(), end).await
    }

    /// Reports hand-overs to this process by any process, and what this process has taken and freed.
    async fn watch(&self, request: &Request, end: Instant) -> Result<BoxStream<'static, Notice>, Error> {
        let notices = self.listeners.listen(request);
        self.table.listen(end).await.map(|()| notices)
    }
}

impl<T: Table> fmt::Display for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.table, f)
    }
}

impl<T: Table> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("table", &self.table).finish_non_exhaustive()
    }
}
