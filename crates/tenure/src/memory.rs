//! A store within one process, for tests and for locks between tasks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;

use crate::{
    Acquired, BootClock, BootTime, Busy, Clock, Entry, Error, ErrorKind, Features, Fence, Grant, Holder, Lease, Name, Notice,
    Owner, Place, Released, Renewal, Request, Share, Store,
};

/// Names held in this process's memory. Clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    held: Arc<Mutex<Held>>,
    freed: watch::Sender<u64>,
}

#[derive(Default)]
struct Held {
    counter: u64,
    names: HashMap<Name, Row>,
}

struct Row {
    /// `None` while a name lingers.
    owner: Option<Owner>,
    /// Whose release made it linger, so that a repeated release is answered as the first was.
    released_by: Option<Owner>,
    share: Share,
    fence: Option<Fence>,
    since: BootTime,
    until: BootTime,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_clock(BootClock)
    }

    /// An empty store on another clock, for simulations.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), held: Arc::default(), freed: watch::Sender::new(0) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Held {
    /// The row of a name whose lease has not ended.
    fn live(&mut self, name: &Name, now: BootTime) -> Option<&mut Row> {
        if self.names.get(name).is_some_and(|row| row.until <= now) {
            self.names.remove(name);
        }
        self.names.get_mut(name)
    }

    fn grant(&mut self, request: &Request, now: BootTime) -> Grant {
        self.counter += 1;
        let fence = Fence::from_counter(self.counter);
        let Request { name, owner, share, ttl, .. } = request.clone();
        // One that is repeated, or runs late, must not end what a renewal has prolonged.
        let mine = self.names.get(&name).filter(|row| row.owner.as_ref() == Some(&owner));
        let until = mine.map_or(now + ttl, |row| row.until.max(now + ttl));
        self.names.insert(name, Row { owner: Some(owner), released_by: None, share, fence, since: now, until });
        Grant { fence, ttl, waiting: false }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn features(&self) -> Features {
        Features {
            fence: true,
            shares: false,
            queue: false,
            cohort: false,
            push: true,
            server_clock: true,
            late_commands: false,
            min_ttl: Duration::from_millis(10),
            max_name: Name::MAX_BYTES,
            operation_timeout: None,
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Acquired, Error> {
        if request.share != Share::MUTEX || request.place != Place::None {
            return Err(Error::new(ErrorKind::Unsupported, "memory: keeps mutexes without a queue only"));
        }
        let now = self.clock.now();
        let mut held = self.held();
        let Some(row) = held.live(&request.name, now) else {
            return Ok(match request.from {
                None => Acquired::Granted(held.grant(request, now)),
                Some(_) => Acquired::Busy(busy(None)),
            });
        };
        let repeated = request.repeatable && row.owner.as_ref() == Some(&request.owner);
        let taken_over = request.from.is_some() && row.owner == request.from;
        if repeated || taken_over {
            return Ok(Acquired::Granted(held.grant(request, now)));
        }
        Ok(Acquired::Busy(busy(Some(row.holder(now)))))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal, Error>> {
        let now = self.clock.now();
        let mut held = self.held();
        let mut renew = |lease: &Lease| match held.live(&lease.name, now) {
            Some(row) if row.owner.as_ref() == Some(&lease.owner) => {
                row.until = row.until.max(now + lease.ttl);
                Renewal::Renewed { waiting: false }
            }
            _ => Renewal::Gone,
        };
        leases.iter().map(|lease| Ok(renew(lease))).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<Released, Error> {
        let now = self.clock.now();
        {
            let mut held = self.held();
            let Some(row) = held.live(&lease.name, now) else { return Ok(Released::NotHeld) };
            let broken = row.released_by.is_some() && row.released_by == lease.owner.lingers_after();
            if broken {
                held.names.remove(&lease.name);
                return Ok(Released::Released);
            }
            if row.released_by.as_ref() == Some(&lease.owner) {
                return Ok(Released::Released);
            }
            if row.owner.as_ref() != Some(&lease.owner) {
                return Ok(Released::NotHeld);
            }
            if linger.is_zero() {
                held.names.remove(&lease.name);
            } else {
                row.released_by = row.owner.take();
                row.until = now + linger;
            }
        }
        self.freed.send_modify(|count| *count += 1);
        Ok(Released::Released)
    }

    async fn watch(&self, _request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let mut freed = self.freed.subscribe();
        freed.mark_unchanged();
        let next = |mut freed: watch::Receiver<u64>| async move { freed.changed().await.ok().map(|()| (Notice::Look, freed)) };
        Ok(stream::unfold(freed, next).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let now = self.clock.now();
        let held = self.held();
        let rows = held.names.iter().filter(|(key, row)| name.is_none_or(|name| name == *key) && row.until > now);
        Ok(rows.map(|(name, row)| Entry { name: name.clone(), holders: vec![row.holder(now)], waiters: 0 }).collect())
    }
}

impl Row {
    fn holder(&self, now: BootTime) -> Holder {
        let Self { owner, released_by, share, fence, since, until } = self;
        let lingering = || released_by.as_ref().map_or_else(|| Owner::from_bytes(&b"linger:"[..]), Owner::lingering);
        Holder {
            owner: owner.clone().unwrap_or_else(lingering),
            share: *share,
            fence: *fence,
            ttl: Some(until.since(now)),
            age: Some(now.since(*since)),
        }
    }
}

fn busy(holder: Option<Holder>) -> Busy {
    Busy { ahead: None, recheck: Duration::from_secs(1), mark: None, holder }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("names", &self.held().names.len()).finish_non_exhaustive()
    }
}
