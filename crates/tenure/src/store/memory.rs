//! A store within one process, for tests and for locks between tasks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::store::record::{Change, Listeners, Record};
use crate::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use crate::{BootClock, Clock, Entry, Error, Lease, Name};

/// Poll interval. Waiters are notified, so a poll is a heartbeat, and finds leases that ended by
/// themselves.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of names below which no sweep is useful.
const FEW: usize = 64;

/// Names held in this process's memory, with every kind of lock and a queue for each. Clones are
/// the same store.
#[derive(Clone)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    held: Arc<Mutex<Held>>,
    listeners: Listeners,
    /// The process that opened it.
    process: u32,
}

#[derive(Default)]
struct Held {
    counter: u64,
    names: HashMap<Name, Record>,
    /// Number of names from which on a sweep drops the dead ones.
    many: usize,
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::with_clock(BootClock)
    }

    /// Makes an empty store on another clock, for simulations.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), held: Arc::default(), listeners: Listeners::default(), process: std::process::id() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.clock.now().since_boot()
    }

    fn publish<T>(&self, name: &Name, change: Change<T>) -> T {
        self.listeners.publish(name, &change, |_, _| ());
        change.answer
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Held {
    /// Runs a call on the record of a name. Drops the record if nothing is left in it.
    fn with<T>(&mut self, name: &Name, call: impl FnOnce(&mut Record, &mut dyn FnMut() -> u64) -> T) -> T {
        let counter = &mut self.counter;
        let mut next = || {
            *counter += 1;
            *counter
        };
        let Some(record) = self.names.get_mut(name) else {
            let mut record = Record::default();
            let done = call(&mut record, &mut next);
            if !record.is_empty() {
                self.names.insert(name.clone(), record);
            }
            return done;
        };
        let done = call(record, &mut next);
        if record.is_empty() {
            self.names.remove(name);
        }
        done
    }

    /// Grants all requests or none.
    fn all(&mut self, requests: &[Request], now: Duration) -> Result<Option<Vec<Change<Grant>>>, Error> {
        let names = requests.iter().map(|request| &request.name);
        let before: Vec<(Name, Option<Record>)> = names.map(|name| (name.clone(), self.names.get(name).cloned())).collect();
        let one = |request: &Request| {
            let change = self.with(&request.name, |record, next| record.acquire(request, "", now, next));
            change.map(Change::granted)
        };
        // All requests are considered, even after a busy one: another kind of lock is an error.
        let changes: Result<Vec<Option<_>>, Error> = requests.iter().map(one).collect();
        let changes = changes.map(|changes| changes.into_iter().collect());
        if !matches!(changes, Ok(Some(_))) {
            // Waiters that were served on the way are served again by the next call.
            for (name, record) in before {
                match record {
                    Some(record) => self.names.insert(name, record),
                    None => self.names.remove(&name),
                };
            }
        }
        changes
    }

    /// Drops names that nobody asks for again, all at once, when they may be half of all.
    fn sweep(&mut self, now: Duration) {
        if self.names.len() < self.many.max(FEW) {
            return;
        }
        self.names.retain(|_, record| {
            record.expire(now);
            !record.is_empty()
        });
        self.many = 2 * self.names.len();
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(true)
            .with_server_clock(true)
            .with_opened_by(self.process)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let now = self.now();
        let (change, grant_seq) = {
            let mut held = self.held();
            held.sweep(now);
            let change = held.with(&request.name, |record, next| record.acquire(request, "", now, next))?;
            (change, held.counter)
        };
        Ok(self.publish(&request.name, change).acquired(POLL_INTERVAL, Some(grant_seq)))
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let now = self.now();
        let changes = {
            let mut held = self.held();
            held.sweep(now);
            held.all(requests, now)?
        };
        let grants = changes
            .map(|changes| requests.iter().zip(changes).map(|(request, change)| self.publish(&request.name, change)).collect());
        Ok(grants)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let now = self.now();
        let mut held = self.held();
        let mut renew = |Lease { name, owner, ttl, .. }: &Lease| held.with(name, |record, _| record.renew(owner, *ttl, now));
        leases.iter().map(|lease| Ok(renew(lease))).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let now = self.now();
        let change = self.held().with(&lease.name, |record, next| record.release(&lease.owner, linger, now, next));
        Ok(self.publish(&lease.name, change))
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(self.listeners.listen(request))
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let now = self.now();
        let held = self.held();
        let entry = |(name, record): (&Name, &Record)| record.inspect(name, now);
        Ok(match name {
            Some(name) => held.names.get_key_value(name).and_then(entry).into_iter().collect(),
            None => held.names.iter().filter_map(entry).collect(),
        })
    }
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
