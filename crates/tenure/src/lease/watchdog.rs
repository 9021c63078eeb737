//! The watchdog: one task per locker that renews leases, ends lost ones and repeats pending
//! releases.
//!
//! Taking and releasing a lease changes the [`LeaseTable`]. It wakes the task only if the task
//! would sleep past the new lease's first deadline. The task sleeps until the next deadline, on the
//! boot-time clock. It runs in the first user's runtime. If that ends or is not driven any more,
//! the next user's runtime gets another task.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tracing::{debug, warn};

use super::state::EndReason;
use super::table::{After, Extension, Id, LeaseTable, PendingRelease, Sent};
use super::validity::HeldLease;
use crate::store::call::{backoff, within};
use crate::store::{ReleaseReply, RenewReply, Store, operation_timeout};
use crate::{BootTime, Clock, Error, ErrorKind, Lease};

/// Delay after which the task's runtime counts as not driven.
const OVERSLEPT: Duration = Duration::from_secs(1);
/// Pause before the next task tries again after a panic in a store.
const AFTER_PANIC: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Watchdog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    table: Mutex<LeaseTable>,
    wake: Notify,
    flushed: Notify,
    /// The process that renews. The child of a fork does nothing with its leases.
    process: u32,
}

enum Done {
    Renewed { sent_at: BootTime, batch: Vec<Sent>, answers: Vec<Result<RenewReply, Error>> },
    Flushed(Id),
}

impl Watchdog {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let table = Mutex::default();
        Self(Arc::new(Shared { store, clock, table, wake: Notify::new(), flushed: Notify::new(), process: std::process::id() }))
    }

    /// Makes sure that the task runs.
    ///
    /// # Panics
    /// As the clock's timer does in a runtime without an I/O driver: here, where the caller sees
    /// it, and not in the task.
    pub(crate) fn ensure_running(&self) {
        if self.0.table().runner.is_none() {
            let probe = self.0.clock.sleep_until(self.0.clock.now() + OVERSLEPT);
            let _ = pin!(probe).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        self.0.ensure_task(self.0.table(), None);
    }

    /// Renews a lease from now on.
    pub(crate) fn insert(&self, held: Arc<HeldLease>) -> Id {
        let mut table = self.0.table();
        let (id, first) = table.insert(held);
        self.0.ensure_task(table, Some(first));
        id
    }

    /// Stops renewing a lease. The answer of a renewal under way is ignored.
    pub(crate) fn forget(&self, id: Id) {
        self.0.table().remove(id);
    }

    /// Hands a lease to the next task of this process, if the table allows it.
    pub(crate) fn hand_on(&self, id: Id) -> Option<Arc<HeldLease>> {
        self.0.table().hand_on(id, self.0.clock.now())
    }

    /// Ends a lease at `at`, even if its renewals succeed.
    pub(crate) fn end_at(&self, id: Id, at: BootTime) {
        let mut table = self.0.table();
        let first = table.end_at(id, at);
        self.0.ensure_task(table, first);
    }

    /// Ends a lease now.
    pub(crate) fn end(&self, id: Id, reason: EndReason) {
        // In a statement of its own, so that the table is unlocked when waiting tasks wake.
        let removed = self.0.table().remove(id);
        if let Some(held) = removed {
            held.end(reason);
        }
    }

    /// Ends all leases, and returns them.
    pub(crate) fn end_all(&self) -> Vec<Arc<HeldLease>> {
        let all = self.0.table().remove_all();
        for held in &all {
            held.end(EndReason::Released);
        }
        all
    }

    /// Renews now for `ttl`, after a renewal that is under way. Keeps that ttl if it is granted.
    pub(crate) async fn extend(&self, id: Id, ttl: Duration) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        // Before the extension is entered: a new task drops the extensions of the one before it.
        self.0.ensure_task(self.0.table(), None);
        let now = self.0.clock.now();
        {
            let mut table = self.0.table();
            table.extend(id, Extension { ttl, answer }, now)?;
            self.0.ensure_task(table, Some(now));
        }
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) if self.0.table().holds(id) => {
                Err(Error::unavailable("the runtime that was extending the lease has ended").maybe_applied())
            }
            Err(_) => Err(Error::lost()),
        }
    }

    /// Releases a lease in the background.
    pub(crate) fn release_later(&self, release: PendingRelease) {
        if !self.0.is_ours() {
            return;
        }
        let now = self.0.clock.now();
        let mut table = self.0.table();
        table.add_pending(release);
        self.0.ensure_task(table, Some(now));
    }

    /// Waits until no release is pending.
    pub(crate) async fn flushed(&self) {
        loop {
            // Registers before the check, so that no notification is missed.
            let flushed = self.0.flushed.notified();
            {
                let table = self.0.table();
                if table.nothing_pending() {
                    return;
                }
                self.0.ensure_task(table, None);
            }
            flushed.await;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if !self.0.is_ours() {
            return;
        }
        self.0.table().closed = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that a task looks at the table by `at`, and starts one if none runs.
    ///
    /// Outside a runtime no task can be started; the next call from inside one does it.
    fn ensure_task(self: &Arc<Self>, mut table: MutexGuard<'_, LeaseTable>, at: Option<BootTime>) {
        let now = self.clock.now();
        let undriven = table.awake_at.is_some_and(|awake| now > awake + OVERSLEPT);
        if table.runner.is_some() && !undriven {
            let too_late = at.is_some_and(|at| table.awake_at.is_none_or(|awake| at < awake));
            if too_late {
                // It has to run now, and counts as not driven if it does not.
                table.awake_at = Some(now);
                drop(table);
                self.wake.notify_one();
            }
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        table.requeue(now);
        table.runners += 1;
        table.runner = Some(table.runners);
        table.awake_at = Some(now);
        let running = Running { id: table.runners, shared: Arc::clone(self), begun: false };
        drop(table);
        runtime.spawn(run(running));
    }

    fn limit(&self, ttl: Duration) -> Duration {
        self.store.features().limit(ttl)
    }

    async fn renew(self: Arc<Self>, limit: Duration, batch: Vec<Sent>) -> Done {
        let leases: Vec<Lease> = batch.iter().map(|sent| sent.lease.clone()).collect();
        let sent_at = self.clock.now();
        let answers = match within(limit, async { Ok(self.store.renew(&leases).await) }).await {
            Ok(answers) => answers,
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        };
        Done::Renewed { sent_at, batch, answers }
    }

    /// Releases until the store has confirmed it, or the lease has ended there by itself.
    async fn release_until_done(self: Arc<Self>, id: Id, release: PendingRelease) -> Done {
        let PendingRelease { lease, lingers_until, until, late, once } = release;
        let limit = self.limit(lease.ttl);
        loop {
            let sent_at = self.clock.now();
            let linger = lingers_until.since(sent_at);
            match within(limit, self.store.release(&lease, linger)).await {
                Ok(ReleaseReply::Released | ReleaseReply::NotHeld) if !(late && self.store.features().late_commands) => break,
                Ok(_) => {}
                // A full disk may have room again before the ttl has passed. A refusal stays one.
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Damaged => {
                    debug!(name = %lease.name, %error, "clean-up failed");
                }
                Err(error) => {
                    warn!(name = %lease.name, %error, "clean-up refused; the name is free when its ttl has passed");
                    break;
                }
            }
            // The last release must not run before the end of what it releases, however long its
            // answer took.
            if once || sent_at >= until {
                break;
            }
            tokio::time::sleep(backoff(operation_timeout(lease.ttl))).await;
        }
        Done::Flushed(id)
    }

    fn apply(&self, done: Done) {
        match done {
            Done::Renewed { sent_at, batch, answers } => {
                let short = || Err(Error::unavailable("the store answered for fewer leases than it was asked").maybe_applied());
                let answers = answers.into_iter().chain(std::iter::repeat_with(short));
                let now = self.clock.now();
                let after: Vec<_> = {
                    let mut table = self.table();
                    batch.into_iter().zip(answers).map(|(sent, answer)| table.renewed(sent, sent_at, answer, now)).collect()
                };
                after.into_iter().for_each(After::notify);
            }
            Done::Flushed(id) => {
                let mut table = self.table();
                table.remove_pending(id);
                let all = table.nothing_pending();
                drop(table);
                if all {
                    self.flushed.notify_waiters();
                }
            }
        }
    }
}

/// Registration of the task in the table. If the task ends in any way, the next user starts
/// another.
struct Running {
    id: u64,
    shared: Arc<Shared>,
    /// The task was polled. A runtime that shuts down drops a new task before.
    begun: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            return;
        }
        let mut table = self.shared.table();
        if table.runner != Some(self.id) {
            return;
        }
        table.runner = None;
        table.requeue(self.shared.clock.now() + AFTER_PANIC);
        if self.begun && std::thread::panicking() {
            // The store panicked, and the runtime goes on.
            self.shared.ensure_task(table, None);
        } else {
            drop(table);
        }
        self.shared.flushed.notify_waiters();
    }
}

/// Next steps of the task.
struct Plan {
    due: Vec<Sent>,
    pending: Vec<(Id, PendingRelease)>,
    /// Time of the next planning.
    next: Option<BootTime>,
    /// Nothing is left to do but the requests under way.
    last: bool,
}

impl Running {
    /// Reads the table, and ends the leases whose deadline has passed.
    fn plan(&self) -> Plan {
        if !self.shared.is_ours() {
            return Plan { due: Vec::new(), pending: Vec::new(), next: None, last: true };
        }
        let now = self.shared.clock.now();
        let mut table = self.shared.table();
        let after = table.end_due(now);
        let plan = if table.runner == Some(self.id) {
            let (due, pending) = (table.take_renewals(now), table.take_pending());
            let (next, last) = (table.next_deadline(), table.closed && table.nothing_pending());
            table.awake_at = next;
            Plan { due, pending, next, last }
        } else {
            // It overslept, and was replaced.
            Plan { due: Vec::new(), pending: Vec::new(), next: None, last: true }
        };
        drop(table);
        after.notify();
        plan
    }
}

async fn run(mut running: Running) {
    running.begun = true;
    let shared = &running.shared;
    let mut jobs: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    let mut alarm: Option<(BootTime, BoxFuture<'static, ()>)> = None;
    loop {
        let Plan { due, pending, next, last } = running.plan();
        for (limit, batch) in by_limit(due, |ttl| shared.limit(ttl)) {
            jobs.push(Box::pin(Arc::clone(shared).renew(limit, batch)));
        }
        for (id, release) in pending {
            jobs.push(Box::pin(Arc::clone(shared).release_until_done(id, release)));
        }
        if last && jobs.is_empty() {
            return;
        }
        // An alarm that rings early costs one look at the table. A new alarm for every change would
        // cost a timer each.
        if let Some(at) = next
            && alarm.as_ref().is_none_or(|(armed, _)| at < *armed)
        {
            alarm = Some((at, shared.clock.sleep_until(at)));
        }
        // In this order, so that a simulation can be repeated. Nothing starves: every iteration
        // reads the table.
        tokio::select! {
            biased;
            Some(done) = jobs.next() => shared.apply(done),
            () = shared.wake.notified() => {}
            () = ring(&mut alarm) => alarm = None,
        }
    }
}

/// Makes one batch for each operation timeout: a lease with a short timeout must not cut the others
/// short.
fn by_limit(due: Vec<Sent>, limit: impl Fn(Duration) -> Duration) -> BTreeMap<Duration, Vec<Sent>> {
    let mut batches: BTreeMap<Duration, Vec<Sent>> = BTreeMap::new();
    for sent in due {
        batches.entry(limit(sent.lease.ttl)).or_default().push(sent);
    }
    batches
}

async fn ring(alarm: &mut Option<(BootTime, BoxFuture<'static, ()>)>) {
    match alarm {
        Some((_, sleep)) => sleep.await,
        None => std::future::pending().await,
    }
}
