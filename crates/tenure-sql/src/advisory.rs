//! Locks that a session of the database holds: what is the same for every database.
//!
//! Each lease has a session of its own, and a session has one lease in its life. So a lease can be ended
//! by ending its session, whatever that is at and however late, and no other lease ends with it. The
//! server ends a session that has been idle for the
//! ttl of its lease: that makes it a lease. A renewal is a statement on that very session.
//!
//! Statements of one session run in the order in which they were sent. So the clean-up of a call
//! without an answer is sent behind it. If the session is silent, another one ends it.

mod calls;
mod live;
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
use tokio::time::Instant;

pub(crate) use self::live::Live;
pub(crate) use self::locks::{HolderSession, LiveOf, Locks, hex_digest};
use self::session::Sessions;
use crate::table::{Server as _, Terms};

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

    /// The name under which this store holds a lock: the server knows its key alone.
    fn name_of(&self, found: &HolderSession) -> Option<Name> {
        let leases = self.leases();
        leases.values().find(|held| held.live.session.id == found.id).map(|held| held.name.clone())
    }

    /// The holder, with what this process knows of its own leases.
    fn shown(&self, found: HolderSession) -> Holder {
        let leases = self.leases();
        let own = leases.iter().find(|(_, held)| held.live.session.id == found.id && held.until.is_some());
        own.map_or(found.holder, |((owner, _), held)| {
            let left = held.until.map(|until| until.saturating_duration_since(Instant::now()));
            Holder::new(owner.clone(), Share::MUTEX).with_ttl(left).with_age(held.since.elapsed())
        })
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
        let found: Vec<(Name, HolderSession)> = found.map_err(|failed| failed.error)?;
        let entry = |(name, found): (Name, HolderSession)| {
            let name = self.name_of(&found).unwrap_or(name);
            Entry::new(name, vec![self.shown(found)], Vec::new())
        };
        Ok(found.into_iter().map(entry).collect())
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
