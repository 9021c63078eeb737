//! One task per locker that renews what is held, says what is lost, and clears up what was left behind.
//!
//! The book is a plain structure under a lock: taking and giving up a lease touches it without waking the task, unless the
//! task would sleep past the new lease's first appointment. The task sleeps until the next appointment, on the boot-time clock.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};
use tracing::{debug, warn};

use crate::tenure::{Loss, Tenure};
use crate::{BootTime, Clock, Error, ErrorKind, Lease, Released, Renewal, Store, operation_timeout};

pub(crate) type Id = u64;

/// What must be released because nobody will use it.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) lease: Lease,
    pub(crate) linger: Duration,
    /// When the store has certainly forgotten it by itself.
    pub(crate) until: BootTime,
}

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

#[derive(Debug, Default)]
struct Book {
    running: bool,
    closed: bool,
    last_id: Id,
    held: HashMap<Id, Entry>,
    deadlines: BTreeSet<(BootTime, Id)>,
    renewals: BTreeSet<(BootTime, Id)>,
    orphans: Vec<Orphan>,
    clearing: usize,
    /// When the task will next look by itself.
    awake_at: Option<BootTime>,
}

#[derive(Debug)]
struct Entry {
    tenure: Arc<Tenure>,
    deadline: BootTime,
    /// When the next renewal is due; `None` while one is under way, and for a fixed lease.
    renew_at: Option<BootTime>,
    in_flight: bool,
    /// A renewal of this tenure was never answered and may still run.
    unanswered: bool,
    extension: Option<Extension>,
}

#[derive(Debug)]
struct Extension {
    ttl: Duration,
    answer: oneshot::Sender<Result<(), Error>>,
}

/// A renewal that was sent for one entry.
struct Sent {
    id: Id,
    lease: Lease,
    extension: Option<Extension>,
}

enum Done {
    Renewed { sent_at: BootTime, batch: Vec<Sent>, answers: Vec<Result<Renewal, Error>> },
    Cleared,
}

impl Watchdog {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let book = Mutex::default();
        Self(Arc::new(Shared { store, clock, book, wake: Notify::new(), cleared: Notify::new() }))
    }

    /// Looks after a tenure from now on.
    pub(crate) fn hold(&self, tenure: Arc<Tenure>) -> Id {
        let mut book = self.0.book();
        book.last_id += 1;
        let id = book.last_id;
        let deadline = tenure.believed_until();
        let renew_at = tenure.terms.renews.then(|| tenure.since + tenure.lease().ttl / 3);
        book.held.insert(id, Entry { tenure, deadline, renew_at, in_flight: false, unanswered: false, extension: None });
        book.deadlines.insert((deadline, id));
        book.renewals.extend(renew_at.map(|at| (at, id)));
        self.0.attend(book, Some(renew_at.map_or(deadline, |at| at.min(deadline))));
        id
    }

    /// Stops looking after a tenure. A renewal under way is not waited for: its answer finds nobody.
    pub(crate) fn forget(&self, id: Id) {
        self.0.book().remove(id);
    }

    /// Takes note that a tenure has ended.
    pub(crate) fn lose(&self, id: Id, loss: Loss) {
        if let Some(entry) = self.0.book().remove(id) {
            entry.tenure.end(loss);
        }
    }

    /// Everything that is held, no longer looked after and ended.
    pub(crate) fn give_up_all(&self) -> Vec<Arc<Tenure>> {
        let mut book = self.0.book();
        book.deadlines.clear();
        book.renewals.clear();
        let all: Vec<_> = book.held.drain().map(|(_, entry)| entry.tenure).collect();
        drop(book);
        for tenure in &all {
            tenure.end(Loss::GivenUp);
        }
        all
    }

    /// Renews now for `ttl`, behind a renewal that is under way, and keeps that ttl if it is granted.
    pub(crate) async fn extend(&self, id: Id, ttl: Duration) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        {
            let mut book = self.0.book();
            let late_commands = self.0.store.features().late_commands;
            let Some(entry) = book.held.get_mut(&id) else { return Err(gone()) };
            if late_commands && entry.unanswered && ttl > entry.tenure.lease().ttl {
                let what = "an earlier renewal was never answered, and where it to run now it would shorten the longer lease";
                return Err(Error::unavailable(what).fix("release the lock and take it again with the longer ttl"));
            }
            if entry.extension.is_some() {
                return Err(Error::invalid("the lease is being extended already").fix("await the other extend first"));
            }
            entry.extension = Some(Extension { ttl, answer });
            let now = self.0.clock.now();
            if !entry.in_flight {
                book.schedule(id, now);
            }
            self.0.attend(book, Some(now));
        }
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) if self.0.book().held.contains_key(&id) => {
                Err(Error::unavailable("the runtime that was extending the lease has ended").maybe_applied())
            }
            Err(_) => Err(gone()),
        }
    }

    /// Has a lease released that nobody will use, without waiting for it.
    pub(crate) fn clear(&self, orphan: Orphan) {
        let mut book = self.0.book();
        book.orphans.push(orphan);
        let now = self.0.clock.now();
        self.0.attend(book, Some(now));
    }

    /// Waits until everything that was to be cleared is.
    pub(crate) async fn cleared(&self) {
        loop {
            let cleared = self.0.cleared.notified();
            tokio::pin!(cleared);
            cleared.as_mut().enable();
            {
                let book = self.0.book();
                if book.orphans.is_empty() && book.clearing == 0 {
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

impl Book {
    fn remove(&mut self, id: Id) -> Option<Entry> {
        let entry = self.held.remove(&id)?;
        self.deadlines.remove(&(entry.deadline, id));
        if let Some(at) = entry.renew_at {
            self.renewals.remove(&(at, id));
        }
        Some(entry)
    }

    fn schedule(&mut self, id: Id, at: BootTime) {
        let Some(entry) = self.held.get_mut(&id) else { return };
        if let Some(old) = entry.renew_at.replace(at) {
            self.renewals.remove(&(old, id));
        }
        self.renewals.insert((at, id));
    }

    fn next_appointment(&self) -> Option<BootTime> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let renewal = self.renewals.first().map(|(at, _)| *at);
        deadline.into_iter().chain(renewal).min()
    }

    /// Ends the tenures whose time has come.
    fn end_due(&mut self, now: BootTime) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                break;
            }
            if let Some(entry) = self.remove(id) {
                entry.tenure.end(entry.tenure.deadline_loss());
            }
        }
    }

    /// Takes the renewals that are due, and with them those that soon will be, so that they share a batch.
    fn take_renewals(&mut self, now: BootTime) -> Vec<Sent> {
        let mut batch = Vec::new();
        while let Some(&(at, id)) = self.renewals.first() {
            let Some(entry) = self.held.get_mut(&id) else { break };
            let mut lease = entry.tenure.lease();
            let early = if batch.is_empty() { Duration::ZERO } else { lease.ttl / 30 };
            if at > now + early {
                break;
            }
            let extension = entry.extension.take();
            if let Some(extension) = &extension {
                lease.ttl = extension.ttl;
            }
            // A holder that crashes leaves the name taken for the shortest hold.
            lease.ttl = lease.ttl.max(entry.tenure.min_hold_left(now));
            entry.renew_at = None;
            entry.in_flight = true;
            self.renewals.remove(&(at, id));
            batch.push(Sent { id, lease, extension });
        }
        batch
    }

    fn renewed(&mut self, sent: Sent, sent_at: BootTime, answer: Result<Renewal, Error>, now: BootTime) {
        let Sent { id, lease, extension } = sent;
        let Some(entry) = self.held.get_mut(&id) else { return };
        entry.in_flight = false;
        let tenure = Arc::clone(&entry.tenure);
        let outcome = match answer {
            // An answer that comes after the deadline is too late: somebody may have been told already.
            _ if tenure.loss(now).is_some() => Err(gone()),
            Ok(Renewal::Renewed { .. }) => {
                if let Some(extension) = &extension {
                    tenure.set_ttl(extension.ttl);
                }
                tenure.believe(sent_at, lease.ttl);
                let deadline = tenure.believed_until();
                let old = std::mem::replace(&mut entry.deadline, deadline);
                self.deadlines.remove(&(old, id));
                self.deadlines.insert((deadline, id));
                if tenure.terms.renews {
                    self.schedule(id, sent_at + tenure.lease().ttl / 3);
                }
                Ok(())
            }
            Ok(Renewal::Gone) => {
                self.remove(id);
                tenure.end(Loss::Gone);
                Err(gone())
            }
            Err(error) => {
                debug!(name = %lease.name, %error, "renewal failed");
                entry.unanswered |= error.may_have_been_applied();
                if tenure.terms.renews {
                    tenure.doubt();
                    self.schedule(id, now + backoff(lease.ttl));
                }
                Err(error)
            }
        };
        if let Some(extension) = extension {
            let _ = extension.answer.send(outcome);
        }
        // An extension that was asked for while this renewal was under way goes out next.
        if self.held.get(&id).is_some_and(|entry| entry.extension.is_some()) {
            self.schedule(id, now);
        }
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that the task looks at the book by `at`, starting it where none runs.
    ///
    /// Outside a runtime no task can be started; the next call from inside one does it.
    fn attend(self: &Arc<Self>, mut book: MutexGuard<'_, Book>, at: Option<BootTime>) {
        if !book.running {
            let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
            book.running = true;
            drop(book);
            runtime.spawn(run(Arc::clone(self)));
        } else if at.is_some_and(|at| book.awake_at.is_none_or(|awake| at < awake)) {
            drop(book);
            self.wake.notify_one();
        }
    }

    async fn renew(self: Arc<Self>, batch: Vec<Sent>) -> Done {
        let leases: Vec<Lease> = batch.iter().map(|sent| sent.lease.clone()).collect();
        let shortest = leases.iter().map(|lease| lease.ttl).min().unwrap_or_default();
        let limit = self.store.features().operation_timeout.unwrap_or_else(|| operation_timeout(shortest));
        let sent_at = self.clock.now();
        let answers = match tokio::time::timeout(limit, self.store.renew(&leases)).await {
            Ok(answers) => answers,
            Err(_) => leases.iter().map(|_| Err(no_answer(limit))).collect(),
        };
        Done::Renewed { sent_at, batch, answers }
    }

    /// Releases until the store has confirmed it, or has forgotten the lease by itself.
    async fn clear(self: Arc<Self>, orphan: Orphan) -> Done {
        let Orphan { lease, linger, until } = orphan;
        loop {
            let limit = self.store.features().operation_timeout.unwrap_or_else(|| operation_timeout(lease.ttl));
            let answer = tokio::time::timeout(limit, self.store.release(&lease, linger)).await;
            match answer.unwrap_or_else(|_| Err(no_answer(limit))) {
                Ok(Released::Released | Released::NotHeld) if !self.store.features().late_commands => break,
                Ok(_) => {}
                // A full disk may have room again before the ttl has passed; a refusal stays one.
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Damaged => {
                    debug!(name = %lease.name, %error, "clean-up failed, will retry");
                }
                Err(error) => {
                    warn!(name = %lease.name, %error, "clean-up refused; the name is free when its ttl has passed");
                    break;
                }
            }
            if self.clock.now() >= until {
                break;
            }
            tokio::time::sleep(backoff(lease.ttl)).await;
        }
        Done::Cleared
    }
}

/// A pause between tries, long enough not to burden a store in trouble, with jitter so that clients do not march in step.
fn backoff(ttl: Duration) -> Duration {
    let base = (operation_timeout(ttl) / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    base.mul_f64(0.75 + fastrand::f64() / 2.0)
}

pub(crate) fn no_answer(limit: Duration) -> Error {
    Error::unreachable(format!("the store did not answer within {limit:?}")).maybe_applied()
}

pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Lost, "the lock is not held any more")
}

/// Marks the book when the task ends in whatever way, so that the next user starts another.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut book = self.0.book();
        book.running = false;
        book.clearing = 0;
        // Renewals that died with the runtime are due again.
        let stranded: Vec<Id> = book.held.iter().filter(|(_, entry)| entry.in_flight).map(|(id, _)| *id).collect();
        for id in stranded {
            if let Some(entry) = book.held.get_mut(&id) {
                entry.in_flight = false;
            }
            let now = self.0.clock.now();
            book.schedule(id, now);
        }
        drop(book);
        self.0.cleared.notify_waiters();
    }
}

async fn run(shared: Arc<Shared>) {
    let _running = Running(Arc::clone(&shared));
    let mut jobs: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    let mut alarm: Option<(BootTime, BoxFuture<'static, ()>)> = None;
    loop {
        let now = shared.clock.now();
        let (batch, orphans, next, closed) = {
            let mut book = shared.book();
            book.end_due(now);
            let batch = book.take_renewals(now);
            let orphans = std::mem::take(&mut book.orphans);
            book.clearing += orphans.len();
            book.awake_at = book.next_appointment();
            (batch, orphans, book.awake_at, book.closed)
        };
        if !batch.is_empty() {
            jobs.push(Box::pin(Arc::clone(&shared).renew(batch)));
        }
        for orphan in orphans {
            jobs.push(Box::pin(Arc::clone(&shared).clear(orphan)));
        }
        if closed && jobs.is_empty() {
            return;
        }
        // An alarm that rings early costs one look; making one for every change of plan would cost a timer each.
        if let Some(at) = next
            && alarm.as_ref().is_none_or(|(armed, _)| at < *armed)
        {
            alarm = Some((at, shared.clock.sleep_until(at)));
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            () = ring(&mut alarm) => alarm = None,
            Some(done) = jobs.next() => apply(&shared, done),
        }
    }
}

async fn ring(alarm: &mut Option<(BootTime, BoxFuture<'static, ()>)>) {
    match alarm {
        Some((_, sleep)) => sleep.await,
        None => std::future::pending().await,
    }
}

fn apply(shared: &Shared, done: Done) {
    let mut book = shared.book();
    match done {
        Done::Renewed { sent_at, batch, answers } => {
            let now = shared.clock.now();
            let missing = std::iter::repeat_with(|| {
                Err(Error::unavailable("the store answered for fewer leases than it was asked").maybe_applied())
            });
            for (sent, answer) in batch.into_iter().zip(answers.into_iter().chain(missing)) {
                book.renewed(sent, sent_at, answer, now);
            }
        }
        Done::Cleared => {
            book.clearing = book.clearing.saturating_sub(1);
            if book.clearing == 0 && book.orphans.is_empty() {
                drop(book);
                shared.cleared.notify_waiters();
            }
        }
    }
}
