//! Leader election: a mutex whose holder leads, and a stream of who that is.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::time::{sleep, timeout};

use super::locker::Locker;
use crate::lease::{ReleaseOutcome, Session};
use crate::store::call::backoff;
use crate::store::{Notice, Request, check_certain};
use crate::wait::Guard;
use crate::{BootTime, Error, Fence, Holder, Name, Owner, Share};

/// Time between two polls of an observer that nothing notifies.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Bounds of that time.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(3_600);
/// Time for which an answer may be old. A store that shows smaller fences for longer has lost its
/// counter and counts from below.
const LONGEST_OLD: Duration = Duration::from_secs(30);

/// An election: at most one of its candidates leads. See [`Locker::election`].
///
/// The leader is the holder of the mutex of the same name, so `tenure show` and other clients of
/// the name see it. Candidates that wait are served in order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # use tenure::{Locker, MemoryStore};
/// let election = Locker::new(MemoryStore::new()).election("billing");
/// let leadership = election.candidate("web-1").campaign().await?;
/// leadership.run(async { /* lead, with leadership.fence() */ }).await?;
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    locker: Locker,
    name: Result<Name, Error>,
    poll_interval: Duration,
}

impl Locker {
    /// Begins an election. Nothing happens before [`Candidate::campaign`] or
    /// [`Election::observe`], which also report a bad name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election { locker: self.clone(), name: Name::new(name), poll_interval: POLL_INTERVAL }
    }
}

impl Election {
    /// Returns a candidate. Others see its label.
    pub fn candidate(&self, label: impl Into<String>) -> Candidate {
        let (locker, name) = (self.locker.clone(), self.name.clone());
        Candidate { locker, name, label: label.into(), ttl: None, safety_margin: None }
    }

    /// Time between two polls of an observer that its store does not notify: 500 ms by default.
    #[must_use]
    pub fn poll_interval(mut self, every: Duration) -> Self {
        self.poll_interval = every.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        self
    }

    /// Returns a stream of who leads: at once, then at each change. `None`: nobody.
    ///
    /// A leader that held for less than the time between two polls may be left out. A leader whose
    /// fence is smaller than one seen before is left out: that answer was old. A fence that the
    /// store keeps later than the grant comes as one more item.
    ///
    /// Two things come as one error each, and the stream goes on: an outage, and a store that has shown
    /// only smaller fences for 30 s, because it lost its counter. The fences begin anew after the latter.
    /// After an error that no repetition mends the stream ends.
    ///
    /// # Cancel safety
    /// A dropped `next()` loses nothing.
    ///
    /// # Round trips
    /// One for each poll: after a notice of the store, when the leader's lease ends, and at the
    /// [poll interval](Election::poll_interval). Redis, etcd and ZooKeeper notice each change. A store in
    /// memory, in a file or in a table notices those that go through it in this process.
    pub fn observe(&self) -> BoxStream<'static, Result<Option<Leader>, Error>> {
        let session = Arc::clone(self.locker.session());
        match self.name.clone() {
            Ok(name) => Observer {
                session,
                name,
                poll_interval: self.poll_interval,
                pause: None,
                notices: None,
                seen: Seen::default(),
                outage: false,
            }
            .leaders(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

/// A candidate of an election. It may campaign again after it has lost or resigned.
#[derive(Clone, Debug)]
#[must_use = "nobody is a candidate before campaign() is awaited"]
pub struct Candidate {
    locker: Locker,
    name: Result<Name, Error>,
    label: String,
    ttl: Option<Duration>,
    safety_margin: Option<Duration>,
}

impl Candidate {
    /// Time to live of the leadership at the store, instead of the locker's: a dead leader is
    /// replaced after it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Safety margin, instead of the locker's; see
    /// [`LockerBuilder::safety_margin`](crate::LockerBuilder::safety_margin).
    pub fn safety_margin(mut self, margin: Duration) -> Self {
        self.safety_margin = Some(margin);
        self
    }

    /// Waits until this candidate leads. The leadership renews itself.
    ///
    /// # Errors
    /// The store's, if it gave no answer for 5 s from the start, or refuses. Later outages are
    /// waited out. [`Invalid`](crate::ErrorKind::Invalid) for settings that cannot work.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: the watchdog releases what it may have taken.
    ///
    /// # Round trips
    /// One if nobody leads. Else those of a waiter of the store.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let mut acquire = self.locker.mutex(self.name.as_ref().map_err(Error::clone)?.as_str()).label(&*self.label);
        if let Some(ttl) = self.ttl {
            acquire = acquire.ttl(ttl);
        }
        if let Some(margin) = self.safety_margin {
            acquire = acquire.safety_margin(margin);
        }
        // Observers ask the store, so it has to know each leader.
        acquire.settings.terms.hands_on = false;
        Ok(Leadership(acquire.acquire().await?))
    }
}

/// Proof that this candidate leads, until [`state`](Guard::state) says otherwise: a [`Guard`].
///
/// A drop resigns in the background.
#[must_use = "a leadership that is dropped at once is given up at once"]
pub struct Leadership(Guard);

impl Leadership {
    /// Gives the leadership up. The next candidate leads at once, or when the last guard that was made
    /// of it by [`reenter`](Guard::reenter) is gone.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// A dropped future leaves the release to the background.
    pub async fn resign(self) -> Result<ReleaseOutcome, Error> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.0).finish()
    }
}

/// A leader, as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its owner token, of this leadership alone.
    pub owner: Owner,
    /// Its fencing token, if the store keeps it.
    pub fence: Option<Fence>,
}

impl Leader {
    /// Label of the candidate. `None` for a client of another library.
    pub fn label(&self) -> Option<&str> {
        self.owner.label()
    }
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label() {
            Some(label) => f.write_str(label),
            None => self.owner.fmt(f),
        }
    }
}

/// Items of a stream of leaders so far.
#[derive(Debug, Default)]
struct Seen {
    /// The last leader. Nobody before the first item.
    last: Option<Leader>,
    /// There was an item, and no error since.
    is_known: bool,
    /// The largest fence.
    fence: Option<Fence>,
    /// When a smaller fence was first seen, since the last one that was not smaller, and the last one.
    old: Option<(BootTime, Option<Fence>)>,
    /// Nobody led after that. If the same answer comes again, it was an old one.
    is_past: bool,
}

impl Seen {
    /// Whether who was seen at this time is the next item.
    ///
    /// # Errors
    /// If fences have been smaller than before for too long.
    fn is_news(&mut self, leader: &mut Option<Leader>, now: BootTime) -> Result<bool, Error> {
        if let (Some(last), Some(now)) = (&self.last, &mut *leader)
            && last.owner == now.owner
        {
            // The fence of one leadership is not forgotten.
            now.fence = now.fence.max(last.fence);
        }
        let fence = leader.as_ref().and_then(|leader| leader.fence);
        let is_old = fence.is_some() && fence < self.fence;
        if is_old {
            let since = self.old.filter(|(_, last)| !self.is_past || fence > *last).map_or(now, |(since, _)| since);
            (self.old, self.is_past) = (Some((since, fence)), false);
            if now.since(since) < LONGEST_OLD {
                return Ok(false);
            }
            // The leader of now is the next item.
            *self = Self::default();
            let what = "the store goes on giving leaders smaller fences than before, so it has lost its counter";
            return Err(Error::unavailable(what).with_hint("see whether its data was deleted or restored"));
        }
        if fence.is_some() {
            self.old = None;
        }
        self.is_past = leader.is_none();
        if self.is_known && self.last == *leader {
            return Ok(false);
        }
        self.fence = self.fence.max(fence);
        (self.last, self.is_known) = (leader.clone(), true);
        Ok(true)
    }
}

struct Observer {
    session: Arc<Session>,
    name: Name,
    poll_interval: Duration,
    /// Time until the next poll. `None` before the first.
    pause: Option<Duration>,
    notices: Option<BoxStream<'static, Notice>>,
    seen: Seen,
    /// The last item was an error.
    outage: bool,
}

impl Observer {
    fn leaders(self) -> BoxStream<'static, Result<Option<Leader>, Error>> {
        let next = async |observer: Option<Self>| {
            let mut observer = observer?;
            let item = observer.item().await;
            let is_over = item.as_ref().is_err_and(|error| !error.is_transient());
            Some((item, (!is_over).then_some(observer)))
        };
        stream::unfold(Some(self), next).boxed()
    }

    async fn item(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            self.wait().await;
            match self.leader().await {
                Ok((mut leader, ttl)) => {
                    let ends = ttl.map_or(self.poll_interval, |ttl| ttl + SHORTEST_INTERVAL);
                    self.pause = Some(self.poll_interval.min(ends));
                    self.outage = false;
                    if self.seen.is_news(&mut leader, self.session.clock.now())? {
                        return Ok(leader);
                    }
                }
                Err(error) => {
                    self.pause = Some(backoff(self.session.operation_timeout(Duration::MAX)));
                    let is_known = std::mem::replace(&mut self.outage, true);
                    if !is_known || !error.is_transient() {
                        self.seen.is_known = false;
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Waits until a poll is useful.
    async fn wait(&mut self) {
        let Some(pause) = self.pause else { return };
        // In an outage a refused connection may be a notice, and the next poll would cause another.
        let Some(notices) = self.notices.as_mut().filter(|_| !self.outage) else { return sleep(pause).await };
        // A stream that has ended is armed anew with the next poll.
        if let Ok(None) = timeout(pause, notices.next()).await {
            self.notices = None;
            sleep(pause).await;
        }
    }

    /// Asks the store who leads, and when that lease ends if nobody renews it.
    async fn leader(&mut self) -> Result<(Option<Leader>, Option<Duration>), Error> {
        if self.notices.is_none() && self.session.store.features().push {
            // Before the poll, so that no change between the two is missed.
            let request = Request::new(
                self.name.clone(),
                Owner::generate("")?,
                Share::MUTEX,
                self.session.store.features().limit(Duration::MAX),
            );
            self.notices = self.session.call(request.ttl, self.session.store.watch(&request)).await.ok();
        }
        let entries = self.session.call_without_lease(self.session.store.inspect(Some(&self.name))).await?;
        let holders = entries.into_iter().find(|entry| entry.name == self.name).map(|entry| entry.holders).unwrap_or_default();
        let leads = |holder: &Holder| holder.share.is_exclusive() && holder.owner.lingers_after().is_none();
        let Some(leader) = holders.into_iter().find(leads) else { return Ok((None, None)) };
        check_certain(&leader, &self.name)?;
        let Holder { owner, fence, ttl, .. } = leader;
        Ok((Some(Leader { owner, fence }), ttl))
    }
}
