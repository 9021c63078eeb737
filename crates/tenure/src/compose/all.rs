//! All of several stores: a name is held by the owner that holds it in each.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{FutureExt as _, join_all};
use futures_util::stream::{BoxStream, StreamExt, select_all};
use tokio::time::{Instant, timeout, timeout_at};

use crate::store::features::opened_by;
use crate::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use crate::{Entry, Error, Holder, Lease, Name};

/// Longest poll interval of a name that is held.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Names held in each of several stores, all or nothing: a lock in Redis, say, and then one in the
/// database beside the guarded rows. Clones share their stores.
///
/// A name is taken in one store after another, in their order, and released in the reverse order.
/// So the first store turns most contenders away, and the last is asked by its holder only. Two
/// hold a name at the same time only if *every* store has forgotten the first of them.
///
/// - **Fence.** It is that of one store: of the last, or of the one of
///   [`with_fence_of`](Self::with_fence_of). A resource may compare fences of that store only.
/// - **Lease.** It lasts as long as the shortest. A renewal goes to all stores. A lease that is gone
///   in one is gone. The others keep the name taken until its guard is released or dropped, or for
///   the ttl: the holder needs time to stop.
/// - **Availability.** If one store does not answer, nothing is granted, and what is held ends. A
///   [`Quorum`](super::quorum::Quorum) is for the opposite: it goes on without some of its stores.
/// - **Kinds of lock.** Those that every store keeps.
/// - **Queue.** None. A store would serve a waiter whom the next one refuses. Waiters poll, and do so
///   at once if a store notifies them.
/// - **Order.** All clients name the stores in one order. Otherwise nobody waits for ever, because
///   nothing is kept while another store is busy, but two clients may refuse each other.
///
/// # Round trips
/// Acquire and release: 1 to each store, one after another. Renew and inspect: 1 to all at once. All
/// together take one operation timeout at most.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tenure::compose::AllOf;
/// use tenure::{Locker, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let (cache, table) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
/// let locks = Locker::new(AllOf::new(vec![cache, table])?);
/// let guard = locks.mutex("stock/7").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AllOf {
    stores: Arc<[Arc<dyn Store>]>,
    fence_of: usize,
    timeout: Option<Duration>,
    poll_interval: Duration,
}

impl AllOf {
    /// Makes a store over `stores`, in the order in which they are taken.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for fewer than two.
    pub fn new(stores: Vec<Arc<dyn Store>>) -> Result<Self, Error> {
        if stores.len() < 2 {
            let what = format!("all of {} stores", stores.len());
            return Err(Error::invalid(what).with_hint("give two stores at least, or use the one as it is"));
        }
        let timeout = stores.iter().filter_map(|store| store.features().operation_timeout).max();
        Ok(Self { fence_of: stores.len() - 1, stores: stores.into(), timeout, poll_interval: POLL_INTERVAL })
    }

    /// Takes the fence from the store at this index, from 0. The default is the last.
    ///
    /// Fences of different stores do not compare. If some clients take the lock of one store alone,
    /// choose that one.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if there is no such store.
    pub fn with_fence_of(mut self, index: usize) -> Result<Self, Error> {
        if index >= self.stores.len() {
            let what = format!("the fence of store {index} of {}", self.stores.len());
            return Err(Error::invalid(what).with_hint("the first store is 0"));
        }
        self.fence_of = index;
        Ok(self)
    }

    /// Sets the timeout of a call to all stores together. `None` stands for the largest of the
    /// stores' own, or the [default](crate::store::operation_timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        let of_stores = || self.stores.iter().filter_map(|store| store.features().operation_timeout).max();
        self.timeout = timeout.into().or_else(of_stores);
        self
    }

    /// Sets the longest poll interval of a name that another owner holds.
    #[must_use]
    pub fn with_poll_interval(mut self, poll_interval: Duration) -> Self {
        self.poll_interval = poll_interval;
        self
    }

    fn limit(&self, ttl: Duration) -> Duration {
        self.timeout.unwrap_or_else(|| crate::store::operation_timeout(ttl))
    }

    /// Releases what was granted in the first `granted` stores, in reverse order, or hands it back to the owner from whom it was
    /// taken over, unless the lease `is_lost`. Returns whether it is certain that nothing of it is left there.
    ///
    /// A silent store is not waited for beyond `end`, nor when the caller goes away.
    async fn clear_up(&self, asked: &Request, is_lost: bool, granted: usize, end: Instant) -> bool {
        if granted == 0 {
            return true;
        }
        let (stores, lease, back) = (Arc::clone(&self.stores), asked.lease(), asked.handed_back().filter(|_| !is_lost));
        let limit = self.limit(lease.ttl);
        let releases = async move {
            let mut is_clear = true;
            if let Some(back) = back {
                for store in &stores[..granted] {
                    is_clear &= store.acquire(&back).await.is_ok();
                }
                return is_clear;
            }
            for store in stores[..granted].iter().rev() {
                is_clear &= store.release(&lease, Duration::ZERO).await.is_ok();
            }
            is_clear
        };
        let mut releases = Box::pin(timeout(limit, releases));
        // It begins here, before the caller sends more.
        if let Some(done) = releases.as_mut().now_or_never() {
            return matches!(done, Ok(true));
        }
        matches!(timeout_at(end, tokio::spawn(releases)).await, Ok(Ok(Ok(true))))
    }

    /// Answer of the store at `at` that has not granted, when nothing is held in those before it.
    fn not_granted(&self, at: usize, answer: AcquireReply) -> AcquireReply {
        match answer {
            AcquireReply::Busy(busy) => {
                let holder = busy.holder.map(|holder| self.seen(at, holder));
                AcquireReply::Busy(Busy::new(busy.poll_interval.min(self.poll_interval)).with_holder(holder))
            }
            other => other,
        }
    }

    /// A holder as the store at `at` knows it. Only one store's fence is that of the lease.
    fn seen(&self, at: usize, holder: Holder) -> Holder {
        let fence = holder.fence.filter(|_| at == self.fence_of);
        holder.with_fence(fence)
    }
}

/// Runs one call, until `end` at the latest. The error says in which store.
async fn until<T>(end: Instant, store: &dyn Store, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let limit = end.saturating_duration_since(Instant::now());
    let silent = |_| Err(Error::unreachable(format!("no answer within {limit:?}")).maybe_applied());
    timeout_at(end, call).await.unwrap_or_else(silent).map_err(|error| error.context(store))
}

#[async_trait]
impl Store for AllOf {
    fn features(&self) -> Features {
        let all: Vec<Features> = self.stores.iter().map(Store::features).collect();
        let each = |has: fn(&Features) -> bool| all.iter().all(has);
        Features::basic()
            .with_fence(all[self.fence_of].fence)
            .with_shares(each(|store| store.shares))
            .with_cohort(each(|store| store.cohort))
            .with_push(all.iter().any(|store| store.push))
            .with_server_clock(each(|store| store.server_clock))
            .with_late_commands(all.iter().any(|store| store.late_commands))
            .with_token_per_try(true)
            .with_process_bound(all.iter().any(|store| store.process_bound))
            .with_min_ttl(all.iter().map(|store| store.min_ttl).max().unwrap_or_default())
            .with_late_end(all.iter().map(|store| store.late_end).max().unwrap_or_default())
            .with_max_name(all.iter().map(|store| store.max_name).min().unwrap_or_default())
            .with_operation_timeout(self.timeout)
            .with_timed_calls(true)
            .with_opened_by(opened_by(&all))
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let end = Instant::now() + self.limit(request.ttl);
        let keeps = request.enqueue == Enqueue::Heartbeat;
        let asked = request.clone().with_enqueue(if keeps { Enqueue::Heartbeat } else { Enqueue::No });
        let mut grants: Vec<Grant> = Vec::with_capacity(self.stores.len());
        for (at, store) in self.stores.iter().enumerate() {
            match until(end, store, store.acquire(&asked)).await {
                Ok(AcquireReply::Granted(grant)) => grants.push(grant),
                // Its owner held it before the call, and needs time to stop.
                Ok(answer) if keeps => return Ok(self.not_granted(at, answer)),
                Ok(answer) => {
                    let is_lost = matches!(answer, AcquireReply::Busy(_));
                    if self.clear_up(&asked, is_lost, at, end).await {
                        return Ok(self.not_granted(at, answer));
                    }
                    let what = format!("{:?} is taken at {store}, and could not be released in the stores before it", asked.name);
                    return Err(Error::unreachable(what).maybe_applied());
                }
                // Its caller repeats it or cleans up. And a holder that asked for a smaller share goes on.
                Err(error) if asked.generated => {
                    if asked.from.is_some() {
                        self.clear_up(&asked, false, at + 1, end).await;
                    }
                    return Err(if at == 0 { error } else { error.maybe_applied() });
                }
                // A supplied token is released by the one who was granted it, and by nobody else.
                Err(error) if self.clear_up(&asked, true, at, end).await => return Err(error),
                Err(error) => return Err(error.maybe_applied()),
            }
        }
        let ttl = grants.iter().map(|grant| grant.ttl).min().unwrap_or(asked.ttl);
        let durability = grants.iter().find_map(|grant| grant.durability);
        Ok(AcquireReply::Granted(Grant::new(grants[self.fence_of].fence, ttl).with_durability(durability)))
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // Several names in several stores are never one step.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(ttl) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let end = Instant::now() + self.limit(ttl);
        let one = async |store: &Arc<dyn Store>| {
            let answers = until(end, store, async { Ok(store.renew(leases).await) }).await;
            let named = |answer: Result<_, Error>| answer.map_err(|error| error.context(store));
            answers.map(|answers| answers.into_iter().map(named).collect::<Vec<_>>())
        };
        let answers = join_all(self.stores.iter().map(one)).await;
        let answer = |at: usize| {
            let of_store = |answers: &Result<Vec<Result<RenewReply, Error>>, Error>| match answers {
                Ok(answers) => answers.get(at).cloned().unwrap_or_else(|| Err(Error::unreachable("no answer to a renewal"))),
                Err(error) => Err(error.clone()),
            };
            let of_stores: Vec<_> = answers.iter().map(of_store).collect();
            if of_stores.iter().any(|answer| matches!(answer, Ok(RenewReply::Gone))) {
                // The others keep it: its holder needs time to stop.
                return Ok(RenewReply::Gone);
            }
            of_stores.into_iter().find(Result::is_err).unwrap_or(Ok(RenewReply::Renewed)).map_err(Error::maybe_applied)
        };
        (0..leases.len()).map(answer).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let end = Instant::now() + self.limit(lease.ttl);
        let (mut answer, mut failed) = (ReleaseReply::Released, None);
        let stores = u32::try_from(self.stores.len()).unwrap_or(u32::MAX);
        for (left, store) in (1..=stores).rev().zip(self.stores.iter().rev()) {
            // A silent store leaves the others their part of the time.
            let now = Instant::now();
            let part = now + end.saturating_duration_since(now) / left;
            match until(part, store, store.release(lease, linger)).await {
                Ok(ReleaseReply::Released) => {}
                Ok(ReleaseReply::NotHeld) => answer = ReleaseReply::NotHeld,
                Err(error) => failed = Some(error.maybe_applied()),
            }
        }
        failed.map_or(Ok(answer), Err)
    }

    async fn settled(&self) {
        join_all(self.stores.iter().map(Store::settled)).await;
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let end = Instant::now() + self.limit(request.ttl);
        let asked = request.clone().with_enqueue(Enqueue::No);
        let streams = join_all(self.stores.iter().map(|store| until(end, store, store.watch(&asked)))).await;
        // A store without notices makes them fewer, not wrong.
        let notices = select_all(streams.into_iter().flatten());
        Ok(notices.ready_chunks(self.stores.len()).map(|_| Notice::Changed).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let end = Instant::now() + self.limit(Duration::MAX);
        let found = join_all(self.stores.iter().map(|store| until(end, store, store.inspect(name)))).await;
        let mut names: HashMap<Name, Vec<(Holder, usize)>> = HashMap::new();
        for (at, found) in found.into_iter().enumerate() {
            for entry in found? {
                let holders = names.entry(entry.name).or_default();
                entry.holders.into_iter().for_each(|holder| add(holders, self.seen(at, holder)));
            }
        }
        let holder = |(holder, known): (Holder, usize)| {
            // It keeps the name taken where it is known, and does not hold it.
            let is_left = known < self.stores.len() && holder.owner.lingers_after().is_none();
            Holder { owner: if is_left { holder.owner.lingering() } else { holder.owner }, ..holder }
        };
        let entry = |(name, holders): (Name, Vec<_>)| Entry::new(name, holders.into_iter().map(holder).collect(), Vec::new());
        let mut entries: Vec<Entry> = names.into_iter().map(entry).collect();
        entries.retain(Entry::is_in_use);
        Ok(entries)
    }
}

/// Adds a holder that one more store knows, and counts those. Its lease lasts as long as the shortest.
fn add(holders: &mut Vec<(Holder, usize)>, holder: Holder) {
    let Some((known, stores)) = holders.iter_mut().find(|(known, _)| known.owner == holder.owner) else {
        holders.push((holder, 1));
        return;
    };
    *stores += 1;
    known.ttl = match (known.ttl, holder.ttl) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    known.fence = known.fence.or(holder.fence);
}

impl fmt::Display for AllOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all of ")?;
        for (at, store) in self.stores.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{store}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for AllOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllOf").field("stores", &self.stores).field("fence_of", &self.fence_of).finish_non_exhaustive()
    }
}
