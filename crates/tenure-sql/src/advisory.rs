//! Locks that a session of the database holds: what is the same for every database.
//!
//! Each lease has a session of its own, and a session has one lease in its life. So a lease can be ended
//! by ending its session, whatever that is at and however late, and no other lease ends with it. The
//! server ends a session that has been idle for the
//! ttl of its lease: that makes it a lease. A renewal is a statement on that very session.
//!
//! Statements of one session run in the order in which they were sent. So the clean-up of a call
//! without an answer is sent behind it. If the session is silent, another one ends it.

pub(crate) mod locks;
mod session;

use std::collections::{HashMap, hash_map};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream};
use tenure::store::{AcquireReply, Busy, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Holder, Lease, Name, Owner, Share};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::locks::{Found, LiveOf, Locks, hex_digest};
pub(crate) use self::session::Live;
use self::session::Sessions;
use crate::table::failure::no_answer;
use crate::table::{Failed, Server as _, Session, Terms};

/// The longest ttl: servers count the idle time of a session in milliseconds, in 31 bits.
const LONGEST: Duration = Duration::from_secs(24 * 24 * 3_600);

/// Longest time for a call that concerns no lease.
const CALL: Duration = Duration::from_secs(24 * 3_600);

/// A store of locks that sessions hold.
pub(crate) struct AdvisoryStore<L: Locks> {
    sessions: Sessions<L>,
    terms: Terms,
    /// By owner and name, also if no answer has said yet that it holds. A supplied owner may have several.
    leases: Mutex<Leases<L>>,
    /// The process that opened it.
    process: u32,
}

type Leases<L> = HashMap<(Owner, Name), Held<L>>;

/// A lease, and its session.
struct Held<L: Locks> {
    name: Name,
    key: L::Key,
    live: Arc<LiveOf<L>>,
    since: Instant,
    /// When its ttl ends, at the earliest. `None` until an answer says that it holds.
    until: Option<Instant>,
    /// The latest end that was asked for: a renewal never shortens, whichever of two runs first.
    asked: Instant,
    /// A release was sent.
    released: bool,
    /// Its connection broke before an answer came, and its session is to be ended.
    given_up: bool,
}

impl<L: Locks> Clone for Held<L> {
    fn clone(&self) -> Self {
        let (name, key, live) = (self.name.clone(), self.key.clone(), Arc::clone(&self.live));
        Self { name, key, live, ..*self }
    }
}

impl<L: Locks> AdvisoryStore<L> {
    /// Makes a store, and its first session.
    pub(crate) async fn open(locks: L, terms: Terms) -> Result<Self, Error> {
        Ok(Self { sessions: Sessions::open(locks).await?, terms, leases: Mutex::default(), process: std::process::id() })
    }

    fn locks(&self) -> &L {
        self.sessions.locks()
    }

    fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl).min(CALL)
    }

    fn leases(&self) -> MutexGuard<'_, Leases<L>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease of an owner, if it is for this name.
    fn held(&self, owner: &Owner, name: &Name) -> Option<Held<L>> {
        self.leases().get(&(owner.clone(), name.clone())).cloned()
    }

    /// Changes a lease, if it is still the one in this session. Returns whether it is.
    fn change(&self, owner: &Owner, held: &Held<L>, change: impl FnOnce(&mut Held<L>)) -> bool {
        let mut leases = self.leases();
        let present = leases.get_mut(&(owner.clone(), held.name.clone()));
        present.filter(|present| Arc::ptr_eq(&present.live, &held.live)).map(change).is_some()
    }

    /// Notes a lease that is about to be asked for, unless this owner has one of that name or asks for it.
    fn begin(&self, owner: &Owner, held: &Held<L>) -> bool {
        match self.leases().entry((owner.clone(), held.name.clone())) {
            hash_map::Entry::Vacant(free) => {
                free.insert(held.clone());
                true
            }
            hash_map::Entry::Occupied(_) => false,
        }
    }

    /// Forgets a lease. Its session ends when nothing of it is under way any more. Returns whether nobody
    /// else has forgotten it.
    fn forget(&self, owner: &Owner, held: &Held<L>) -> bool {
        let (mut leases, key) = (self.leases(), (owner.clone(), held.name.clone()));
        let is_present = leases.get(&key).is_some_and(|present| Arc::ptr_eq(&present.live, &held.live));
        is_present && leases.remove(&key).is_some()
    }

    /// Forgets leases whose session has ended. A session whose connection broke may still run a statement. Its
    /// lease is forgotten when another session has ended it.
    fn sweep(&self) {
        self.leases().retain(|_, held| {
            if !self.sessions.is_over(&held.live) || self.sessions.is_buried(&held.live.session) {
                return true;
            }
            let is_open = held.until.is_none() && !held.given_up;
            if is_open {
                self.sessions.bury(&held.live, false);
                held.given_up = true;
            }
            is_open
        });
    }

    fn check_request(&self, request: &Request) -> Result<L::Key, Error> {
        if request.share != Share::MUTEX {
            let what = format!("the session locks of {self} are mutexes only");
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("use a mutex, or leave scheme=advisory out"));
        }
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        self.locks().key(&request.name)
    }

    async fn busy(&self, live: &LiveOf<L>, key: &L::Key, end: Instant) -> Result<AcquireReply, Error> {
        let found = self.sessions.on(live, end, self.locks().holder(live, key)).await.map_err(|failed| failed.error)?;
        let holder = found.map(|found| self.shown(found));
        Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval).with_holder(holder)))
    }

    /// The holder, with what this process knows of its own leases.
    fn shown(&self, found: Found) -> Holder {
        let leases = self.leases();
        let own = leases.iter().find(|(_, held)| held.live.session.id == found.id && held.until.is_some());
        own.map_or(found.holder, |((owner, _), held)| {
            let left = held.until.map(|until| until.saturating_duration_since(Instant::now()));
            Holder::new(owner.clone(), Share::MUTEX).with_ttl(left).with_age(held.since.elapsed())
        })
    }

    /// Repeats an acquisition that may have been granted. `None` if it was not, and can be made anew.
    async fn repeat(&self, request: &Request, held: Held<L>, end: Instant) -> Result<Option<AcquireReply>, Error> {
        if self.sessions.is_buried(&held.live.session) {
            self.sessions.end_session(&held.live.session, end).await?;
            self.forget(&request.owner, &held);
            return Ok(None);
        }
        if held.released || !request.generated {
            let live = self.sessions.get(end).await?;
            let busy = self.busy(&live, &held.key, end).await;
            self.sessions.give_back(live);
            return busy.map(Some);
        }
        match self.keep(&request.lease(), &held, end).await {
            Ok(RenewReply::Renewed) => Ok(Some(granted(request))),
            Ok(RenewReply::Gone) => Ok(None),
            Err(error) => {
                // The next repetition is not to wait for it again.
                if held.until.is_none() {
                    self.sessions.bury(&held.live, false);
                }
                Err(error)
            }
        }
    }

    /// Takes a lock on a fresh session. A supplied token is not repeated, so without an answer its session is given up.
    async fn take(&self, request: &Request, held: &Held<L>, end: Instant) -> Result<bool, Failed> {
        let mut unanswered = Unanswered { sessions: &self.sessions, live: &held.live, matters: !request.generated };
        let taken = self.locks().take(&held.live, &held.key, &request.owner, request.ttl);
        let answer = self.sessions.on(&held.live, end, taken).await;
        unanswered.matters &= answer.as_ref().is_err_and(|failed| !failed.answered);
        answer
    }

    /// Takes over a lease of this store: its session goes on with it.
    async fn adopt(&self, request: &Request, from: &Owner, end: Instant) -> Result<AcquireReply, Error> {
        let key = self.locks().key(&request.name)?;
        let Some(held) = self.held(from, &request.name).filter(|held| !held.released) else {
            let live = self.sessions.get(end).await?;
            self.check_elsewhere(&live, &key, from, end).await?;
            let busy = self.busy(&live, &key, end).await;
            self.sessions.give_back(live);
            return busy;
        };
        {
            let (mut leases, key) = (self.leases(), (from.clone(), held.name.clone()));
            if leases.get(&key).is_none_or(|present| !Arc::ptr_eq(&present.live, &held.live)) {
                return Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval)));
            }
            leases.remove(&key);
            leases.insert((request.owner.clone(), held.name.clone()), Held { since: Instant::now(), ..held.clone() });
        }
        let passed = self.sessions.on(&held.live, end, self.locks().pass(&held.live, &key, from, &request.owner)).await;
        passed.map_err(|failed| failed.error)?;
        match self.keep(&request.lease(), &held, end).await? {
            RenewReply::Renewed => Ok(granted(request)),
            RenewReply::Gone => Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval))),
        }
    }

    /// Fails if the lease is that of another process, or of another store of this one.
    async fn check_elsewhere(&self, live: &LiveOf<L>, key: &L::Key, owner: &Owner, end: Instant) -> Result<(), Error> {
        let found = self.sessions.on(live, end, self.locks().session_of(live, key, owner)).await;
        let found = found.map_err(|failed| failed.error)?;
        // It is being passed on by another call of this store.
        let is_ours = |session: &Session| self.leases().values().any(|held| held.live.session == *session);
        if found.is_none_or(|session| is_ours(&session)) {
            return Ok(());
        }
        let what = "the lock is held by a session of another process, which alone can renew it or pass it on";
        Err(Error::new(ErrorKind::Unsupported, what).with_hint("release it, or leave scheme=advisory out"))
    }

    /// The session that holds with this owner token, or that was shown as this owner.
    async fn elsewhere(&self, live: &LiveOf<L>, key: &L::Key, owner: &Owner, end: Instant) -> Result<Option<Session>, Error> {
        let marked = self.sessions.on(live, end, self.locks().session_of(live, key, owner)).await;
        if let Some(session) = marked.map_err(|failed| failed.error)? {
            return Ok(Some(session));
        }
        let found = self.sessions.on(live, end, self.locks().holder(live, key)).await.map_err(|failed| failed.error)?;
        let Some(found) = found.filter(|found| found.holder.owner == *owner) else { return Ok(None) };
        found.session.map(Some).ok_or_else(|| {
            Error::refused("this user may not end the session that holds the lock")
                .with_hint("end it as its own user, or as an administrator")
        })
    }

    /// Renews on the session that holds.
    async fn keep(&self, lease: &Lease, held: &Held<L>, end: Instant) -> Result<RenewReply, Error> {
        let began = Instant::now();
        let silent = |_| no_answer(end.saturating_duration_since(began));
        let _turn = timeout_at(end, held.live.renewing.lock()).await.map_err(silent)?;
        let (sent_at, mut ttl) = (Instant::now(), lease.ttl);
        self.change(&lease.owner, held, |present| {
            present.asked = present.asked.max(sent_at + ttl);
            ttl = present.asked - sent_at;
        });
        match self.sessions.on(&held.live, end, self.locks().keep(&held.live, &held.key, &lease.owner, ttl)).await {
            Ok(true) => {
                self.change(&lease.owner, held, |present| present.until = present.until.max(Some(sent_at + ttl)));
                Ok(RenewReply::Renewed)
            }
            Ok(false) => {
                self.forget(&lease.owner, held);
                Ok(RenewReply::Gone)
            }
            Err(failed) if failed.is_over => {
                self.forget(&lease.owner, held);
                self.sessions.bury(&held.live, failed.answered);
                Ok(RenewReply::Gone)
            }
            Err(failed) => Err(failed.error),
        }
    }

    /// Renews a lease that this store does not have.
    async fn keep_elsewhere(&self, lease: &Lease, end: Instant) -> Result<RenewReply, Error> {
        let key = self.locks().key(&lease.name)?;
        let live = self.sessions.get(end).await?;
        let elsewhere = self.check_elsewhere(&live, &key, &lease.owner, end).await;
        self.sessions.give_back(live);
        elsewhere.map(|()| RenewReply::Gone)
    }

    /// Frees a lease on its own session. `None` if that has ended or is silent: another one has to end
    /// it.
    async fn free(&self, lease: &Lease, held: &Held<L>, end: Instant) -> Result<Option<ReleaseReply>, Error> {
        let now = Instant::now();
        // So that the other has time.
        let half = now + end.saturating_duration_since(now) / 2;
        let mut unanswered = Unanswered { sessions: &self.sessions, live: &held.live, matters: true };
        let answer = self.sessions.on(&held.live, half, self.locks().free(&held.live, &held.key, &lease.owner)).await;
        unanswered.matters = answer.as_ref().is_err_and(|failed| !failed.answered);
        match answer {
            Ok(was_held) => {
                self.forget(&lease.owner, held);
                Ok(Some(if was_held { ReleaseReply::Released } else { ReleaseReply::NotHeld }))
            }
            Err(failed) if !failed.answered || failed.is_over => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// Releases a lease of this store. A session that does not answer is ended by another.
    async fn release_held(&self, lease: &Lease, held: Held<L>, end: Instant) -> Result<ReleaseReply, Error> {
        self.change(&lease.owner, &held, |present| present.released = true);
        if let Some(reply) = self.free(lease, &held, end).await? {
            return Ok(reply);
        }
        self.sessions.bury(&held.live, false);
        let was_there = self.sessions.end_session(&held.live.session, end).await?;
        self.forget(&lease.owner, &held);
        Ok(if was_there && held.until.is_some() { ReleaseReply::Released } else { ReleaseReply::NotHeld })
    }
}

#[async_trait]
impl<L: Locks> Store for AdvisoryStore<L> {
    fn features(&self) -> Features {
        Features::basic()
            .with_server_clock(true)
            .with_process_bound(true)
            .with_min_ttl(self.locks().min_ttl())
            .with_max_name(self.locks().max_name())
            .with_operation_timeout(self.terms.timeout)
            .with_opened_by(self.process)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let key = self.check_request(request)?;
        check_ttl(request.ttl)?;
        let end = self.end(request.ttl);
        self.sweep();
        if let Some(held) = self.held(&request.owner, &request.name)
            && let Some(reply) = self.repeat(request, held, end).await?
        {
            return Ok(reply);
        }
        if let Some(from) = &request.from {
            return self.adopt(request, from, end).await;
        }
        loop {
            let live = self.sessions.get(end).await?;
            let (since, is_new) = (Instant::now(), live.is_new());
            let (name, asked) = (request.name.clone(), since + request.ttl);
            let held = Held { name, key: key.clone(), live, since, until: None, asked, released: false, given_up: false };
            // From here on a release finds the session, whatever becomes of this call.
            if !self.begin(&request.owner, &held) {
                // Another call has the same supplied owner.
                self.sessions.give_back(held.live);
                return Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval)));
            }
            let live = &held.live;
            match self.take(request, &held, end).await {
                Ok(true) if self.change(&request.owner, &held, |held| held.until = Some(since + request.ttl)) => {
                    return Ok(granted(request));
                }
                // A release of this owner was faster. The session ends with what is left of it.
                Ok(true) => return Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval))),
                // A release of this owner was faster, and may still use the session.
                Ok(false) if !self.forget(&request.owner, &held) => {
                    return Ok(AcquireReply::Busy(Busy::new(self.terms.poll_interval)));
                }
                Ok(false) => {
                    let busy = self.busy(live, &key, end).await;
                    self.sessions.give_back(held.live);
                    // It is, also if the server does not say by whom.
                    return Ok(busy.unwrap_or_else(|_| AcquireReply::Busy(Busy::new(self.terms.poll_interval))));
                }
                Err(failed) if failed.is_over => {
                    self.sessions.bury(live, failed.answered);
                    // The server may have ended it while it was idle.
                    if is_new || Instant::now() >= end {
                        return Err(failed.error);
                    }
                    self.forget(&request.owner, &held);
                }
                Err(failed) if failed.answered => {
                    self.forget(&request.owner, &held);
                    return Err(failed.error);
                }
                Err(failed) => return Err(failed.error),
            }
        }
    }

    /// Each name has a session of its own, so nothing takes several in one step.
    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let end = self.end(shortest);
        let ours = join_all(leases.iter().map(|lease| async move {
            let held = self.held(&lease.owner, &lease.name)?;
            let gone = held.released || check_ttl(lease.ttl).is_err();
            Some(if gone { Ok(RenewReply::Gone) } else { self.keep(lease, &held, end).await })
        }));
        match (ours.await, leases) {
            // A user may have its token from another process, and is to learn why it cannot be renewed.
            (answers, [lease]) if matches!(answers[..], [None]) => vec![self.keep_elsewhere(lease, end).await],
            // Several are those that a watchdog had from this store.
            (answers, _) => answers.into_iter().map(|answer| answer.unwrap_or(Ok(RenewReply::Gone))).collect(),
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        if !linger.is_zero() {
            let what = "a session lock cannot stay taken by nobody: it ends with the session that holds it";
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("leave min-hold out, or scheme=advisory"));
        }
        let (key, end) = (self.locks().key(&lease.name)?, self.end(lease.ttl));
        if let Some(held) = self.held(&lease.owner, &lease.name) {
            return self.release_held(lease, held, end).await;
        }
        let live = self.sessions.get(end).await?;
        let elsewhere = self.elsewhere(&live, &key, &lease.owner, end).await;
        self.sessions.give_back(live);
        let Some(session) = elsewhere? else { return Ok(ReleaseReply::NotHeld) };
        let was_there = self.sessions.end_session(&session, end).await?;
        Ok(if was_there { ReleaseReply::Released } else { ReleaseReply::NotHeld })
    }

    /// Nobody notifies: silent.
    async fn watch(&self, _: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(stream::pending().boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let end = self.end(Duration::MAX);
        let live = self.sessions.get(end).await?;
        let found = match name {
            Some(name) => {
                let key = self.locks().key(name)?;
                let found = self.sessions.on(&live, end, self.locks().holder(&live, &key)).await;
                found.map(|found| found.map(|found| (name.clone(), found)).into_iter().collect())
            }
            None => self.sessions.on(&live, end, self.locks().list(&live)).await,
        };
        self.sessions.give_back(live);
        let found: Vec<(Name, Found)> = found.map_err(|failed| failed.error)?;
        let entry = |(name, found): (Name, Found)| {
            let name = self.name_of(&found).unwrap_or(name);
            Entry::new(name, vec![self.shown(found)], Vec::new())
        };
        Ok(found.into_iter().map(entry).collect())
    }
}

/// A statement without an answer so far, after which nobody asks on that session again.
struct Unanswered<'a, L: Locks> {
    sessions: &'a Sessions<L>,
    live: &'a LiveOf<L>,
    matters: bool,
}

impl<L: Locks> Drop for Unanswered<'_, L> {
    fn drop(&mut self) {
        if self.matters {
            self.sessions.bury(self.live, false);
        }
    }
}

impl<L: Locks> AdvisoryStore<L> {
    /// The name under which this store holds a lock: the server knows its key alone.
    fn name_of(&self, found: &Found) -> Option<Name> {
        let leases = self.leases();
        leases.values().find(|held| held.live.session.id == found.id).map(|held| held.name.clone())
    }
}

/// The server keeps it for the ttl at least.
fn granted(request: &Request) -> AcquireReply {
    AcquireReply::Granted(Grant::new(None, request.ttl))
}

fn check_ttl(ttl: Duration) -> Result<(), Error> {
    if ttl <= LONGEST {
        return Ok(());
    }
    let what =
        format!("a ttl of {} is longer than the 24 days for which a server keeps an idle session", tenure::format_duration(ttl));
    Err(Error::invalid(what).with_hint("use a shorter one: renewal keeps the lock for as long as the holder lives"))
}

impl<L: Locks> fmt::Display for AdvisoryStore<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.locks().server().shown())
    }
}

impl<L: Locks> fmt::Debug for AdvisoryStore<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdvisoryStore({self})")
    }
}
