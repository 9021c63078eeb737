//! Tasks of one process that wait for one name.
//!
//! They stand in a queue of their own, in memory, where whoever releases finds the next one without asking the store. One of
//! them, the driver, stands for all of them at the store. Who entered last drives longest, so the driver is the hindmost: the
//! role changes once for as many hand-overs as there are tasks.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::lease::Terms;
use crate::{BootTime, Error, Holder, Name, Owner, Share};

/// What tasks must have in common for one to take over what another has reached: their leases are alike.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) share: Share,
    pub(crate) terms: Terms,
    pub(crate) label: Arc<str>,
    pub(crate) token: Option<Owner>,
}

/// Everybody in this process who waits for a `G`, with the `S` that each driver has reached at the store.
#[derive(Debug)]
pub(crate) struct Rooms<G, S> {
    inner: Mutex<Inner<G, S>>,
    /// How many names the rooms know, so that whoever meets nobody takes no lock.
    known: AtomicUsize,
}

#[derive(Debug)]
struct Inner<G, S> {
    rooms: HashMap<Name, Vec<Room<G, S>>>,
    last_id: u64,
    /// Names that were busy not long ago.
    contended: HashMap<Name, Contended>,
    /// When none of that is worth remembering any more.
    contended_until: Option<BootTime>,
}

/// What is remembered of a name that was busy.
#[derive(Clone, Copy, Debug)]
struct Contended {
    until: BootTime,
    /// A task of this process holds it, and passes it on until then: the store need not be asked before.
    turn: Option<BootTime>,
}

#[derive(Debug)]
struct Room<G, S> {
    id: u64,
    shape: Shape,
    waiters: VecDeque<Arc<Slot<G, S>>>,
    /// How many of them have not left.
    live: usize,
    driver: Option<Arc<Slot<G, S>>>,
    news: News,
}

/// What the driver last heard from the store, for those who only wait.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) holder: Option<Holder>,
    pub(crate) outage: Option<Error>,
}

/// What a task in a room is given.
#[derive(Debug)]
pub(crate) enum Turn<G, S> {
    /// The name.
    Guard(G),
    /// The role of the driver, with what the one before has reached.
    Drive(Option<S>),
    /// To a driver: this process has given the name back to the store.
    Over,
}

#[derive(Debug)]
struct Slot<G, S> {
    inbox: Mutex<Inbox<G, S>>,
    /// Its task asked for the time to stop work, which every lease must leave that it is given.
    asks_time: bool,
}

#[derive(Debug)]
struct Inbox<G, S> {
    guard: Option<G>,
    /// It was made the driver, and has not heard of it.
    appointed: bool,
    standing: Option<S>,
    turn_over: bool,
    stage: Stage,
    /// The task, where it waits for any of that.
    waker: Option<Waker>,
}

/// Where a task is that came to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the queue.
    Waits,
    /// Out of the queue, with what it was given.
    Served,
    /// Gone. It may still stand in the queue.
    Left,
}

/// One task's presence in a room; see [`Rooms::leave`].
#[derive(Debug)]
pub(crate) struct Seat<G, S> {
    name: Name,
    room: u64,
    slot: Arc<Slot<G, S>>,
}

/// For how long a name that was busy is taken to be contended.
const CONTENDED: Duration = Duration::from_secs(2);
/// How many such names are remembered. Forgetting one costs a try of a name that is busy.
const MOST_CONTENDED: usize = 10_000;
/// As many waiters that have left may stand in a queue whatever its length.
const FEW: usize = 64;

impl<G, S> Default for Rooms<G, S> {
    fn default() -> Self {
        let inner = Inner { rooms: HashMap::new(), last_id: 0, contended: HashMap::new(), contended_until: None };
        Self { inner: Mutex::new(inner), known: AtomicUsize::new(0) }
    }
}

impl<G, S> Rooms<G, S> {
    /// Nobody waits, and nobody did a moment ago.
    pub(crate) fn are_empty(&self) -> bool {
        self.known.load(Ordering::Acquire) == 0
    }

    /// Whether to queue at once instead of trying whether the name is free.
    pub(crate) fn is_contended(&self, name: &Name, now: BootTime) -> bool {
        if self.are_empty() {
            return false;
        }
        let mut inner = self.inner();
        if inner.contended_until.is_some_and(|until| now >= until) {
            (inner.contended, inner.contended_until) = <_>::default();
            self.count(&inner);
        }
        inner.rooms.contains_key(name) || inner.contended.get(name).is_some_and(|known| now < known.until)
    }

    /// Until when a task of this process holds the name and passes it on.
    pub(crate) fn turn(&self, name: &Name) -> Option<BootTime> {
        self.inner().contended.get(name)?.turn
    }

    /// The name is busy at the store.
    pub(crate) fn contend(&self, name: &Name, now: BootTime) {
        let mut inner = self.inner();
        if inner.contended.len() >= MOST_CONTENDED {
            inner.contended.clear();
        }
        let until = now + CONTENDED;
        inner.contended.entry(name.clone()).and_modify(|known| known.until = until).or_insert(Contended { until, turn: None });
        inner.contended_until = Some(until);
        self.count(&inner);
    }

    /// Takes a seat at the end, and says whether its task drives: the first one does.
    pub(crate) fn enter(&self, name: &Name, shape: &Shape, asks_time: bool) -> (Seat<G, S>, bool) {
        let slot = Arc::new(Slot { asks_time, inbox: Mutex::new(Inbox::new(Stage::Waits)) });
        let mut inner = self.inner();
        inner.last_id += 1;
        let id = inner.last_id;
        let rooms = inner.rooms.entry(name.clone()).or_default();
        let at = rooms.iter().position(|room| room.shape == *shape).unwrap_or_else(|| {
            rooms.push(Room::new(id, shape.clone()));
            rooms.len() - 1
        });
        let room = &mut rooms[at];
        room.waiters.push_back(Arc::clone(&slot));
        room.live += 1;
        let drives = room.driver.is_none();
        if drives {
            room.driver = Some(Arc::clone(&slot));
        }
        let seat = Seat { name: name.clone(), room: room.id, slot };
        self.count(&inner);
        (seat, drives)
    }

    /// Goes back to the front of the queue, after what was given proved to be lost. `false` where the room is gone meanwhile.
    pub(crate) fn reenter(&self, seat: &Seat<G, S>) -> bool {
        let mut inner = self.inner();
        let Some(room) = inner.room(seat) else { return false };
        room.waiters.push_front(Arc::clone(&seat.slot));
        room.live += 1;
        seat.slot.inbox().stage = Stage::Waits;
        true
    }

    /// Whether the first of those who wait where `seat` is asked for the time to stop work.
    pub(crate) fn next_asks_time(&self, seat: &Seat<G, S>) -> bool {
        let mut inner = self.inner();
        inner.room(seat).and_then(Room::first).is_some_and(|slot| slot.asks_time)
    }

    /// Gives `guard` to the first of those who wait where `seat` is, who may pass it on until `turn`. It comes back where nobody does
    /// any more, or where it does not leave that one the time to stop work.
    pub(crate) fn deliver(&self, seat: &Seat<G, S>, guard: G, leaves_time: bool, turn: BootTime) -> Option<G> {
        let mut guard = Some(guard);
        let mut inner = self.inner();
        let lease = |asks_time: bool| guard.take_if(|_| !asks_time || leaves_time).map(|guard| (guard, turn));
        if let Some(turn) = inner.room(seat).and_then(|room| room.serve(lease)) {
            inner.begin_turn(&seat.name, turn);
        }
        drop(inner);
        guard
    }

    /// Gives what `lease` makes to the first of those who wait for the like of it. Whether anybody took it: else the name goes back
    /// to the store, and whoever wants it asks there. `lease` is told whether that one asked for the time to stop work, and tells
    /// until when it may be passed on.
    pub(crate) fn pass(
        &self,
        name: &Name,
        like: impl Fn(&Shape) -> bool,
        lease: impl FnOnce(bool) -> Option<(G, BootTime)>,
    ) -> bool {
        let mut inner = self.inner();
        let room = inner.rooms.get_mut(name).and_then(|rooms| rooms.iter_mut().find(|room| like(&room.shape)));
        let turn = room.and_then(|room| room.serve(lease));
        match turn {
            Some(turn) => inner.begin_turn(name, turn),
            None => inner.end_turn(name),
        }
        turn.is_some()
    }

    /// Leaves. What a driver has reached goes to the next one, what was given and not taken to the next in the queue.
    pub(crate) fn leave(&self, seat: &Seat<G, S>, drove: bool, standing: Option<S>) {
        let old = std::mem::replace(&mut *seat.slot.inbox(), Inbox::new(Stage::Left));
        let Inbox { guard, appointed, standing: inherited, stage, .. } = old;
        let mut standing = standing.or(inherited);
        {
            let mut inner = self.inner();
            if let Some(room) = inner.room(seat) {
                if stage == Stage::Waits {
                    room.live -= 1;
                    room.sweep();
                }
                if drove || appointed {
                    room.driver = room.appoint(&mut standing);
                }
                if room.live == 0 && room.driver.is_none() {
                    inner.remove(seat);
                }
            }
            self.count(&inner);
        }
        // Outside the lock: both may come back here.
        drop((guard, standing));
    }

    pub(crate) fn tell(&self, seat: &Seat<G, S>, news: News) {
        // In a statement of its own, so that the old news is dropped outside the lock.
        let _old = self.inner().room(seat).map(|room| std::mem::replace(&mut room.news, news));
    }

    pub(crate) fn news(&self, seat: &Seat<G, S>) -> News {
        let mut inner = self.inner();
        let Some(room) = inner.room(seat) else { return News::default() };
        News { holder: room.news.holder.clone(), outage: room.news.outage.clone() }
    }

    fn count(&self, inner: &Inner<G, S>) {
        self.known.store(inner.rooms.len() + inner.contended.len(), Ordering::Release);
    }

    fn inner(&self) -> MutexGuard<'_, Inner<G, S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G, S> Inner<G, S> {
    fn room(&mut self, seat: &Seat<G, S>) -> Option<&mut Room<G, S>> {
        self.rooms.get_mut(&seat.name)?.iter_mut().find(|room| room.id == seat.room)
    }

    /// A task of this process was given the name, and passes it on until `turn`.
    fn begin_turn(&mut self, name: &Name, turn: BootTime) {
        if let Some(known) = self.contended.get_mut(name) {
            known.turn = Some(turn);
        }
    }

    /// Nobody in this process has the name any more. Those who sat that out go to the store.
    fn end_turn(&mut self, name: &Name) {
        if self.contended.get_mut(name).and_then(|known| known.turn.take()).is_some() {
            for driver in self.rooms.get(name).into_iter().flatten().filter_map(|room| room.driver.as_ref()) {
                let mut inbox = driver.inbox();
                inbox.turn_over = true;
                wake(inbox);
            }
        }
    }

    fn remove(&mut self, seat: &Seat<G, S>) {
        let Some(rooms) = self.rooms.get_mut(&seat.name) else { return };
        rooms.retain(|room| room.id != seat.room);
        if rooms.is_empty() {
            self.rooms.remove(&seat.name);
        }
    }
}

impl<G, S> Room<G, S> {
    fn new(id: u64, shape: Shape) -> Self {
        Self { id, shape, waiters: VecDeque::new(), live: 0, driver: None, news: News::default() }
    }

    /// The first who is still there.
    fn first(&mut self) -> Option<Arc<Slot<G, S>>> {
        while let Some(slot) = self.waiters.front() {
            if slot.inbox().stage != Stage::Left {
                return Some(Arc::clone(slot));
            }
            self.waiters.pop_front();
        }
        None
    }

    /// Gives what `lease` makes to the first who is still there; `lease` is asked only then. Until when that may pass it on.
    fn serve(&mut self, lease: impl FnOnce(bool) -> Option<(G, BootTime)>) -> Option<BootTime> {
        while let Some(slot) = self.first() {
            let mut inbox = slot.inbox();
            // It may have left since.
            if inbox.stage == Stage::Left {
                continue;
            }
            let (guard, turn) = lease(slot.asks_time)?;
            (inbox.guard, inbox.stage) = (Some(guard), Stage::Served);
            wake(inbox);
            self.waiters.pop_front();
            self.live -= 1;
            return Some(turn);
        }
        None
    }

    /// Makes the last who is still there the driver. Where nobody is, `standing` stays.
    fn appoint(&self, standing: &mut Option<S>) -> Option<Arc<Slot<G, S>>> {
        for slot in self.waiters.iter().rev() {
            let mut inbox = slot.inbox();
            if inbox.stage == Stage::Waits {
                (inbox.appointed, inbox.standing) = (true, standing.take());
                wake(inbox);
                return Some(Arc::clone(slot));
            }
        }
        None
    }

    /// Drops those who have left, when they are many.
    fn sweep(&mut self) {
        if self.waiters.len() > 2 * self.live + FEW {
            self.waiters.retain(|slot| slot.inbox().stage != Stage::Left);
        }
    }
}

impl<G, S> Slot<G, S> {
    fn inbox(&self) -> MutexGuard<'_, Inbox<G, S>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G, S> Inbox<G, S> {
    const fn new(stage: Stage) -> Self {
        Self { guard: None, appointed: false, standing: None, turn_over: false, stage, waker: None }
    }
}

/// Wakes the task that an inbox is of, without the lock on it.
fn wake<G, S>(mut inbox: MutexGuard<'_, Inbox<G, S>>) {
    let waker = inbox.waker.take();
    drop(inbox);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<G, S> Clone for Seat<G, S> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), room: self.room, slot: Arc::clone(&self.slot) }
    }
}

impl<G, S> Seat<G, S> {
    /// Waits to be given something.
    ///
    /// # Cancel safety
    /// Nothing that was given is lost.
    pub(crate) async fn turn(&self) -> Turn<G, S> {
        poll_fn(|context| {
            let mut inbox = self.slot.inbox();
            if let Some(guard) = inbox.guard.take() {
                return Poll::Ready(Turn::Guard(guard));
            }
            if std::mem::take(&mut inbox.appointed) {
                return Poll::Ready(Turn::Drive(inbox.standing.take()));
            }
            if std::mem::take(&mut inbox.turn_over) {
                return Poll::Ready(Turn::Over);
            }
            let _old = inbox.waker.replace(context.waker().clone());
            drop(inbox);
            Poll::Pending
        })
        .await
    }
}
