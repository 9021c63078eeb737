//! The store in a table: what it makes of the calls, whatever the database.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tenure::store::record::{Answer, Change, Listeners, Record, Served};
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Fence, Lease, Name, Share};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout_at};

use super::{Found, Push, Table, Tried, Wrote};
use crate::handover;

/// Poll interval of a waiter that is notified: the heartbeat of its queue entry.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Longest pause, times the number of tries, before a call reads a name again that others have written
/// meanwhile. The second try has none.
const PAUSE: Duration = Duration::from_millis(2);

/// How often a call reads and writes a name that others change all the time.
const TRIES: u32 = 100;

/// Names of one process that are written at the same moment.
const TURNS: u64 = 64;

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

/// A store in a table.
pub(crate) struct TableStore<T> {
    table: T,
    listeners: Listeners,
    terms: Terms,
    /// Calls that write a record, by a digest of its name: those of one process take turns, because
    /// each of them would make all others read again.
    turns: Vec<tokio::sync::Mutex<()>>,
    releases: AtomicU32,
    /// The name up to which this process has swept.
    hand: Mutex<String>,
    /// The process that opened it.
    process: u32,
}

/// Returns the counter of the next grant.
type Next<'a> = &'a mut dyn FnMut() -> u64;

/// Outcome of a call on a record.
trait Outcome: Send {
    /// Waiters, other than the caller, that hold now.
    fn served(&self) -> &[Served];
}

impl<T: Send> Outcome for Change<T> {
    fn served(&self) -> &[Served] {
        &self.served
    }
}

/// Renewals serve nobody.
impl Outcome for Vec<RenewReply> {
    fn served(&self) -> &[Served] {
        &[]
    }
}

/// An outcome that was written.
struct Written<T> {
    outcome: T,
    /// The name's counter behind it.
    counter: u64,
    /// The waiters of this process could be notified.
    listens: bool,
}

impl<T: Table> TableStore<T> {
    pub(crate) fn new(table: T, listeners: Listeners, terms: Terms) -> Self {
        let turns = (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect();
        let (releases, hand) = (AtomicU32::new(fastrand::u32(..SWEEP_EVERY)), Mutex::default());
        Self { table, listeners, terms, turns, releases, hand, process: std::process::id() }
    }

    fn end(&self, ttl: Duration) -> Instant {
        const LONGEST: Duration = Duration::from_secs(24 * 3_600);
        Instant::now() + self.features().limit(ttl).min(LONGEST)
    }

    fn check(&self, name: &Name) -> Result<(), Error> {
        let (length, max) = (name.as_str().len(), self.table.max_name());
        if length <= max {
            return Ok(());
        }
        let what = format!("the lock name has {length} bytes, more than the {max} that {} can keep", self.table);
        Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"))
    }

    fn check_request(&self, request: &Request) -> Result<(), Error> {
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        self.check(&request.name)
    }

    /// The request, for as long as every server has to keep it by its own clock.
    fn lasting(&self, request: &Request) -> Request {
        request.clone().with_ttl(request.ttl.saturating_add(self.table.spread()))
    }

    /// Applies `work` to the record of a name and writes the result, until nobody else was faster.
    /// `found` is how the name was a moment ago, if that is known.
    async fn call<R: Outcome>(
        &self,
        name: &Name,
        mut found: Option<Found>,
        end: Instant,
        mut work: impl FnMut(&mut Record, &str, Duration, Next<'_>) -> Result<R, Error> + Send,
    ) -> Result<Written<R>, Error> {
        let _turn = self.turn(name, end).await?;
        for tries in 0..TRIES {
            let Some(seen) = self.seen(name, &mut found, tries, end).await? else { break };
            let (address, mut counter) = (self.table.address(), seen.counter());
            let mut record = seen.record()?;
            let mut next = || {
                counter = seen.next_counter(counter);
                counter
            };
            let outcome = work(&mut record, address.as_deref().unwrap_or_default(), seen.now, &mut next)?;
            check_counter(counter)?;
            let pushes = pushes(name, outcome.served(), address.as_deref());
            let wrote = match seen.write(name, &record, counter) {
                Some(row) => self.table.write(&[row], &pushes, end).await?,
                None => Wrote::All,
            };
            match wrote {
                Wrote::All => return Ok(Written { outcome, counter, listens: address.is_some() }),
                Wrote::Nothing(now) => found = now,
            }
        }
        Err(overtaken())
    }

    async fn turn(&self, name: &Name, end: Instant) -> Result<MutexGuard<'_, ()>, Error> {
        let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        let turn = &self.turns[usize::try_from(digest % TURNS).unwrap_or_default()];
        let late = |_| Error::unavailable("other calls of this process took all the time there was");
        timeout_at(end, turn.lock()).await.map_err(late)
    }

    /// Returns how the name is now; `None` if the time is over.
    async fn seen(&self, name: &Name, found: &mut Option<Found>, tries: u32, end: Instant) -> Result<Option<Found>, Error> {
        if let Some(found) = found.take().filter(|_| Instant::now() < end) {
            return Ok(Some(found));
        }
        if tries > 1 {
            tokio::time::sleep(PAUSE.mul_f64(fastrand::f64() * f64::from(tries.min(8)))).await;
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        Ok(self.table.read(&[name], end).await?.pop())
    }

    /// Notifies waiters of this process. Those of others were, with the change.
    fn publish<R>(&self, name: &Name, change: &Change<R>) {
        self.listeners.publish(name, change, |_, _| ());
    }

    /// Renews leases of one name that are not plain mutexes.
    async fn renew_record(&self, name: &Name, leases: &[&Lease], end: Instant) -> Result<Vec<RenewReply>, Error> {
        let renew = |record: &mut Record, _: &str, now, _: Next<'_>| {
            Ok(leases.iter().map(|lease| record.renew(&lease.owner, lease.ttl, now)).collect::<Vec<_>>())
        };
        Ok(self.call(name, None, end, renew).await?.outcome)
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

fn check_counter(counter: u64) -> Result<(), Error> {
    if counter <= Fence::MAX_COUNTER {
        return Ok(());
    }
    let what = "the fences of this name are used up";
    Err(Error::refused(what).with_hint("use another name, and make sure that the database's clock is right"))
}

/// The part of a lease that its holder may count on: it may last longer at the table.
fn for_asked(mut grant: Grant, asked: Duration) -> Grant {
    grant.ttl = grant.ttl.min(asked);
    grant
}

fn overtaken() -> Error {
    Error::overloaded("others changed the name again and again")
}

#[async_trait]
impl<T: Table> Store for TableStore<T> {
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

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.check_request(request)?;
        let (end, asked) = (self.end(request.ttl), request.ttl);
        let request = &self.lasting(request);
        let mut found = None;
        if request.share == Share::MUTEX && request.from.is_none() && request.enqueue != Enqueue::Heartbeat {
            match self.table.take(request, end).await? {
                Tried::Done(counter) => {
                    self.listeners.taken(&request.name);
                    check_counter(counter)?;
                    return Ok(AcquireReply::Granted(Grant::new(Fence::from_counter(counter), asked)));
                }
                Tried::Found(seen) => found = Some(seen),
            }
        }
        let acquire = |record: &mut Record, wake: &str, now, next: Next<'_>| record.acquire(request, wake, now, next);
        let Written { outcome: change, counter, listens } = self.call(&request.name, found, end, acquire).await?;
        self.publish(&request.name, &change);
        let notified = matches!(change.answer, Answer::Busy { position: Some(_), .. }) && listens;
        let poll_interval = if notified { HEARTBEAT.max(self.terms.poll_interval) } else { self.terms.poll_interval };
        Ok(match change.answer.acquired(poll_interval, Some(counter)) {
            AcquireReply::Granted(grant) => AcquireReply::Granted(for_asked(grant, asked)),
            reply => reply,
        })
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(ttl) = requests.iter().map(|request| request.ttl).min() else { return Ok(Some(Vec::new())) };
        requests.iter().try_for_each(|request| self.check_request(request))?;
        let end = self.end(ttl);
        let asked = requests.iter().map(|request| request.ttl);
        let requests: Vec<Request> = requests.iter().map(|request| self.lasting(request)).collect();
        let names: Vec<&Name> = requests.iter().map(|request| &request.name).collect();
        for _ in 0..TRIES {
            let found = self.table.read(&names, end).await?;
            let (mut changes, mut rows, mut all_pushes, mut last) = (Vec::new(), Vec::new(), Vec::new(), 0);
            // Each name is looked at, even after a busy one: a name of another kind is an error.
            for (request, seen) in requests.iter().zip(&found) {
                let (mut record, mut counter) = (seen.record()?, seen.counter());
                // The fences of one step differ, so that each says which name it is for.
                let mut next = || {
                    counter = seen.next_counter(counter.max(last));
                    counter
                };
                let Some(change) = record.acquire(request, "", seen.now, &mut next)?.granted() else { continue };
                check_counter(counter)?;
                last = counter;
                all_pushes.extend(pushes(&request.name, &change.served, self.table.address().as_deref()));
                rows.extend(seen.write(&request.name, &record, counter));
                changes.push(change);
            }
            if changes.len() < requests.len() {
                return Ok(None);
            }
            if let Wrote::All = self.table.write(&rows, &all_pushes, end).await? {
                for (request, change) in requests.iter().zip(&changes) {
                    self.publish(&request.name, change);
                }
                let grants = changes.into_iter().map(|change| change.answer);
                return Ok(Some(grants.zip(asked).map(|(grant, asked)| for_asked(grant, asked)).collect()));
            }
        }
        Err(overtaken())
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let end = self.end(shortest);
        let leases =
            &leases.iter().map(|lease| lease.clone().with_ttl(lease.ttl.saturating_add(self.table.spread()))).collect::<Vec<_>>();
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = leases.iter().map(|_| None).collect();
        match self.table.renew(leases, end).await {
            Ok(renewed) => {
                for (at, outcome) in renewed {
                    answers[at] = Some(outcome.map(|()| RenewReply::Renewed));
                }
            }
            Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
        }
        let mut left: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (at, lease) in leases.iter().enumerate().filter(|(at, _)| answers[*at].is_none()) {
            left.entry(&lease.name).or_default().push(at);
        }
        let renewals = left.into_iter().map(|(name, indexes)| async move {
            let of_name: Vec<&Lease> = indexes.iter().map(|at| &leases[*at]).collect();
            (self.renew_record(name, &of_name, end).await, indexes)
        });
        for (answer, indexes) in join_all(renewals).await {
            for (nth, at) in indexes.into_iter().enumerate() {
                answers[at] = Some(answer.as_ref().map(|answers| answers[nth]).map_err(Error::clone));
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(overtaken()))).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.check(&lease.name)?;
        let end = self.end(lease.ttl);
        let mut found = None;
        if linger.is_zero() {
            match self.table.free(lease, end).await? {
                Tried::Done(()) => {
                    self.listeners.notify(&lease.name, None, &Notice::Changed);
                    self.sweep(end).await;
                    return Ok(ReleaseReply::Released);
                }
                Tried::Found(seen) => found = Some(seen),
            }
        }
        let release = |record: &mut Record, _: &str, now, next: Next<'_>| Ok(record.release(&lease.owner, linger, now, next));
        let change = self.call(&lease.name, found, end, release).await?.outcome;
        self.publish(&lease.name, &change);
        Ok(change.answer)
    }

    /// Reports hand-overs to this process by any process, and what this process has taken and freed.
    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let notices = self.listeners.listen(request);
        self.table.listen(self.end(request.ttl)).await.map(|()| notices)
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let end = self.end(Duration::MAX);
        let found = match name {
            Some(name) => {
                self.check(name)?;
                self.table.read(&[name], end).await?
            }
            None => self.table.list(end).await?,
        };
        found.iter().filter_map(|seen| seen.entry().transpose()).collect()
    }
}

impl<T: Table> fmt::Display for TableStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.table, f)
    }
}

impl<T: Table> fmt::Debug for TableStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableStore").field("table", &self.table).finish_non_exhaustive()
    }
}
