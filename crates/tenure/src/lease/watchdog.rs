//! One task per locker that renews what is held, says what is lost, and clears up what was left behind.
//!
//! Taking and giving up a lease touches the [`Book`] without waking the task, unless the task would sleep past the new lease's
//! first appointment. The task sleeps until the next appointment, on the boot-time clock. It lives in the runtime of whoever
//! needed it first; when that is gone, or is not driven any more, the next user's runtime gets another.

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

use super::table::{After, Book, Extension, Id, Orphan, Sent};
use super::validity::{EndReason, Tenure};
use crate::store::call::{backoff, within};
use crate::store::{ReleaseReply, RenewReply, Store, operation_timeout};
use crate::{BootTime, Clock, Error, ErrorKind, Lease};

/// How late the task may be before its runtime is taken to be undriven.
const OVERSLEPT: Duration = Duration::from_secs(1);
/// How long after a panic in a store the next task tries again.
const AFTER_PANIC: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Watchdog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    book: Mutex<Book>,
    wake: Notify,
    cleared: Notify,
}

enum Done {
    Renewed { sent_at: BootTime, batch: Vec<Sent>, answers: Vec<Result<RenewReply, Error>> },
    Cleared(Id),
}

impl Watchdog {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let book = Mutex::default();
        Self(Arc::new(Shared { store, clock, book, wake: Notify::new(), cleared: Notify::new() }))
    }

    /// Sees to it that a task is there for what is held.
    ///
    /// # Panics
    /// As the clock's timer does in a runtime that has no I/O driver: here, where the caller sees it, and not in the task.
    pub(crate) fn tend(&self) {
        if self.0.book().runner.is_none() {
            let probe = self.0.clock.sleep_until(self.0.clock.now() + OVERSLEPT);
            let _ = pin!(probe).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        self.0.attend(self.0.book(), None);
    }

    /// Looks after a tenure from now on.
    pub(crate) fn hold(&self, tenure: Arc<Tenure>) -> Id {
        let mut book = self.0.book();
        let (id, first) = book.hold(tenure);
        self.0.attend(book, Some(first));
        id
    }

    /// Stops looking after a tenure. A renewal under way is not waited for: its answer finds nobody.
    pub(crate) fn forget(&self, id: Id) {
        self.0.book().remove(id);
    }

    /// Gives a tenure to the next task of this process, if it may have it.
    pub(crate) fn pass_on(&self, id: Id) -> Option<Arc<Tenure>> {
        self.0.book().pass_on(id, self.0.clock.now())
    }

    /// Ends a tenure at `at` however well its renewals go.
    pub(crate) fn end_at(&self, id: Id, at: BootTime) {
        let mut book = self.0.book();
        let first = book.end_at(id, at);
        self.0.attend(book, first);
    }

    /// Takes note that a tenure has ended.
    pub(crate) fn lose(&self, id: Id, loss: EndReason) {
        // In a statement of its own, so that the book is free when those who wait are woken.
        let removed = self.0.book().remove(id);
        if let Some(tenure) = removed {
            tenure.end(loss);
        }
    }

    /// Everything that is held, no longer looked after and ended.
    pub(crate) fn give_up_all(&self) -> Vec<Arc<Tenure>> {
        let all = self.0.book().remove_all();
        for tenure in &all {
            tenure.end(EndReason::Released);
        }
        all
    }

    /// Renews now for `ttl`, behind a renewal that is under way, and keeps that ttl if it is granted.
    pub(crate) async fn extend(&self, id: Id, ttl: Duration) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        // Before anything is entered: a task that takes over strands what was asked of the one before it.
        self.0.attend(self.0.book(), None);
        let now = self.0.clock.now();
        {
            let mut book = self.0.book();
            book.extend(id, Extension { ttl, answer }, now)?;
            self.0.attend(book, Some(now));
        }
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) if self.0.book().holds(id) => {
                Err(Error::unavailable("the runtime that was extending the lease has ended").maybe_applied())
            }
            Err(_) => Err(Error::lost()),
        }
    }

    /// Has a lease released that nobody will use, without waiting for it.
    pub(crate) fn clear(&self, orphan: Orphan) {
        let now = self.0.clock.now();
        let mut book = self.0.book();
        book.orphan(orphan);
        self.0.attend(book, Some(now));
    }

    /// Waits until everything that was to be cleared is.
    pub(crate) async fn cleared(&self) {
        loop {
            // It hears of what is told from now on, also before it is waited for.
            let cleared = self.0.cleared.notified();
            {
                let book = self.0.book();
                if book.all_cleared() {
                    return;
                }
                self.0.attend(book, None);
            }
            cleared.await;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.book().closed = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that a task looks at the book by `at`, starting one where none is at work.
    ///
    /// Outside a runtime no task can be started; the next call from inside one does it.
    fn attend(self: &Arc<Self>, mut book: MutexGuard<'_, Book>, at: Option<BootTime>) {
        let now = self.clock.now();
        let undriven = book.awake_at.is_some_and(|awake| now > awake + OVERSLEPT);
        if book.runner.is_some() && !undriven {
            let too_late = at.is_some_and(|at| book.awake_at.is_none_or(|awake| at < awake));
            if too_late {
                // It is to look now, and undriven if it does not.
                book.awake_at = Some(now);
                drop(book);
                self.wake.notify_one();
            }
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        book.strand(now);
        book.runners += 1;
        book.runner = Some(book.runners);
        book.awake_at = Some(now);
        let running = Running { id: book.runners, shared: Arc::clone(self), begun: false };
        drop(book);
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

    /// Releases until the store has confirmed it, or has forgotten the lease by itself.
    async fn clear(self: Arc<Self>, id: Id, orphan: Orphan) -> Done {
        let Orphan { lease, lingers_until, until, late, once } = orphan;
        let limit = self.limit(lease.ttl);
        loop {
            let sent_at = self.clock.now();
            let linger = lingers_until.since(sent_at);
            match within(limit, self.store.release(&lease, linger)).await {
                Ok(ReleaseReply::Released | ReleaseReply::NotHeld) if !(late && self.store.features().late_commands) => break,
                Ok(_) => {}
                // A full disk may have room again before the ttl has passed; a refusal stays one.
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Damaged => {
                    debug!(name = %lease.name, %error, "clean-up failed");
                }
                Err(error) => {
                    warn!(name = %lease.name, %error, "clean-up refused; the name is free when its ttl has passed");
                    break;
                }
            }
            // The last one must not run before the end of what it clears up, however long its answer took.
            if once || sent_at >= until {
                break;
            }
            tokio::time::sleep(backoff(operation_timeout(lease.ttl))).await;
        }
        Done::Cleared(id)
    }

    fn apply(&self, done: Done) {
        match done {
            Done::Renewed { sent_at, batch, answers } => {
                let short = || Err(Error::unavailable("the store answered for fewer leases than it was asked").maybe_applied());
                let answers = answers.into_iter().chain(std::iter::repeat_with(short));
                let now = self.clock.now();
                let after: Vec<_> = {
                    let mut book = self.book();
                    batch.into_iter().zip(answers).map(|(sent, answer)| book.renewed(sent, sent_at, answer, now)).collect()
                };
                after.into_iter().for_each(After::tell);
            }
            Done::Cleared(id) => {
                let mut book = self.book();
                book.cleared(id);
                let all = book.all_cleared();
                drop(book);
                if all {
                    self.cleared.notify_waiters();
                }
            }
        }
    }
}

/// The task's presence in the book. When the task ends in whatever way, the next user starts another.
struct Running {
    id: u64,
    shared: Arc<Shared>,
    /// The task was polled: a runtime that is shutting down drops a new one before.
    begun: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        if book.runner != Some(self.id) {
            return;
        }
        book.runner = None;
        book.strand(self.shared.clock.now() + AFTER_PANIC);
        if self.begun && std::thread::panicking() {
            // A store panicked, and the runtime goes on.
            self.shared.attend(book, None);
        } else {
            drop(book);
        }
        self.shared.cleared.notify_waiters();
    }
}

/// What the task does after a look at the book.
struct Plan {
    due: Vec<Sent>,
    orphans: Vec<(Id, Orphan)>,
    /// When to look again.
    next: Option<BootTime>,
    /// Nothing is left to do but what is under way.
    last: bool,
}

impl Running {
    /// Looks at the book, and tells those whose time has come.
    fn look(&self) -> Plan {
        let now = self.shared.clock.now();
        let mut book = self.shared.book();
        let after = book.end_due(now);
        let plan = if book.runner == Some(self.id) {
            let (due, orphans) = (book.take_renewals(now), book.take_orphans());
            let (next, last) = (book.next_appointment(), book.closed && book.all_cleared());
            book.awake_at = next;
            Plan { due, orphans, next, last }
        } else {
            // Overslept, and replaced.
            Plan { due: Vec::new(), orphans: Vec::new(), next: None, last: true }
        };
        drop(book);
        after.tell();
        plan
    }
}

async fn run(mut running: Running) {
    running.begun = true;
    let shared = &running.shared;
    let mut jobs: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    let mut alarm: Option<(BootTime, BoxFuture<'static, ()>)> = None;
    loop {
        let Plan { due, orphans, next, last } = running.look();
        for (limit, batch) in by_limit(due, |ttl| shared.limit(ttl)) {
            jobs.push(Box::pin(Arc::clone(shared).renew(limit, batch)));
        }
        for (id, orphan) in orphans {
            jobs.push(Box::pin(Arc::clone(shared).clear(id, orphan)));
        }
        if last && jobs.is_empty() {
            return;
        }
        // An alarm that rings early costs one look; making one for every change of plan would cost a timer each.
        if let Some(at) = next
            && alarm.as_ref().is_none_or(|(armed, _)| at < *armed)
        {
            alarm = Some((at, shared.clock.sleep_until(at)));
        }
        // In order, so that a simulation can be repeated. Nothing starves: every turn looks at the book.
        tokio::select! {
            biased;
            Some(done) = jobs.next() => shared.apply(done),
            () = shared.wake.notified() => {}
            () = ring(&mut alarm) => alarm = None,
        }
    }
}

/// One batch for each operation timeout: a lease with a short one must not make the others give up as early.
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
