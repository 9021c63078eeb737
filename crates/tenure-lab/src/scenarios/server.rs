//! Faults of a server as a whole, and of the way to it, which are the same on every store that has one.

use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::Proxy;

use super::rows::{Played, Row, Rows};
use super::stage::{Access, BELIEF, DOOR, Line, Look, OPERATION, SLACK, Stage, now, terms};
use crate::Item;
use crate::item::Run;

/// A store for one row.
pub(super) trait Fixture: Send + Sync + 'static {
    /// How much later than its holder knows the store may end a lease.
    const LATE: Duration = Duration::ZERO;

    fn access(self: Arc<Self>) -> Access;
}

/// A server that can be broken. Those who are near reach it through the proxy.
pub(crate) trait Breakable: Send + Sync {
    fn proxy(&self) -> &Proxy;
    fn stop(&self);
    fn cont(&self);
    fn kill(&self);
    fn restart(&self);
}

/// A server as rows break it, with locks of a row's own.
pub(super) trait Target: Fixture + Breakable {
    /// For how long a holder that hears nothing goes on sending what keeps its lease.
    const UNHEARD: Duration = BELIEF;
}

/// A server of its own for a [soak](crate::soak).
pub(crate) struct OwnServer {
    pub(crate) server: Arc<dyn Breakable>,
    /// Store URLs: by way of the proxy, and past it.
    pub(crate) near: String,
    pub(crate) far: String,
    /// How much later than its holder knows the store may end a lease.
    pub(crate) late: Duration,
}

impl OwnServer {
    pub(super) fn of<T: Target>(target: T) -> Self {
        let server = Arc::new(target);
        let Access { near, far, .. } = Arc::clone(&server).access();
        Self { server, near, far, late: T::LATE }
    }
}

/// Access to a store whose locks are read as [`in_record`](super::scheme::in_record) has them.
pub(super) fn by_record(near: String, far: String, read: impl Fn(&str) -> Vec<Seen> + Clone + 'static) -> Access {
    let lined_up = read.clone();
    let look: Look = Box::new(move |name| {
        let first = read(name).into_iter().find(|(what, ..)| what != "waits");
        first.map(|(_, _, owner)| (owner, false))
    });
    let waits = |(what, ..): &Seen| u64::from(what == "waits");
    let line: Line = Box::new(move |name| lined_up(name).iter().map(waits).sum());
    Access { near, far, alone: false, look: Some(look), line: Some(line) }
}

/// Access to a store in which all who ask for a name have something there, in their order: the first holds, and the others wait.
pub(super) fn by_order(near: String, far: String, read: impl Fn(&str) -> Vec<String> + Clone + 'static) -> Access {
    by_record(near, far, move |name| {
        let kinds = std::iter::once("holds").chain(std::iter::repeat("waits"));
        kinds.zip(read(name)).map(|(what, owner)| (what.to_owned(), 0, owner)).collect()
    })
}

/// One who holds or waits: which, for how long yet, and its owner.
pub(super) type Seen = (String, i64, String);

/// A scenario on such a store.
pub(super) type On<T> = fn(&mut Stage<'_>, &T);

/// A scenario on what `start` makes.
pub(super) fn play<T: Fixture>(
    start: impl Fn() -> T + Copy + Send + Sync + 'static,
    row: impl Fn(&mut Stage<'_>, &T) + Copy + Send + Sync + 'static,
) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let target = Arc::new(start());
            let mut stage = Stage::new(lab, &id, seed, Arc::clone(&target).access());
            stage.late = T::LATE;
            row(&mut stage, &target);
            stage.finish()
        })
    }
}

/// As [`play`], of a row that needs nothing but a stage.
pub(super) fn plain<T: Fixture>(start: impl Fn() -> T + Copy + Send + Sync + 'static) -> impl Fn(Row) -> Played {
    move |row| Box::new(play(start, move |stage: &mut Stage<'_>, _: &T| row(stage)))
}

/// The rows of the way to a server, which leave the server as it is.
#[rustfmt::skip]
pub(super) fn links<T: Target>(of: Rows, on: &dyn Fn(On<T>) -> Played) -> Vec<Item> {
    vec![
        of.holds("15-partition", "nothing passes between the holder and the server", on(partitioned)),
        of.holds("16-replies-stop", "the server hears the holder, which does not hear it", on(replies_stop)),
        of.holds("16-requests-stop", "the holder hears the server, which does not hear it", on(requests_stop)),
        of.holds("17-half-open", "the holder is killed, and the server never hears of it", on(half_open)),
        of.holds("18-churn", "every connection is reset every 150 ms", on(churned)),
    ]
}

/// The row of one whose messages are short.
pub(super) fn slow_link<T: Target>(of: Rows, on: &dyn Fn(On<T>) -> Played) -> Item {
    let row: On<T> = |stage, on| stage.is_slow(on.proxy());
    of.holds("17-slow-link", "messages come late, slowly and in pieces", on(row))
}

/// The row of one that takes a free name with the first request of an acquisition.
pub(super) fn reply_to_acquire_lost<T: Target>(of: Rows, on: &dyn Fn(On<T>) -> Played) -> Item {
    of.holds("06-reply-lost", "an acquisition is executed, and its reply is lost with the connection", on(reply_lost))
}

/// The rows of a server that is stopped.
#[rustfmt::skip]
pub(super) fn stops<T: Target>(of: Rows, own: &dyn Fn(On<T>) -> Played) -> Vec<Item> {
    vec![
        of.holds("19-stopped-for-a-moment", "the server is stopped, and goes on before the deadline", own(stopped_for_a_moment)),
        of.holds("19-stopped-for-long", "the server is stopped for longer than the lease", own(stopped_for_long)),
    ]
}

/// The row of a server that is killed and keeps its data.
pub(super) fn killed<T: Target>(of: Rows, own: &dyn Fn(On<T>) -> Played) -> Item {
    of.holds("10-killed-for-long", "kill -9 of the server, back after the deadline", own(killed_for_long))
}

/// The row of one that is back at once.
pub(super) fn killed_and_back<T: Target>(of: Rows, own: &dyn Fn(On<T>) -> Played) -> Item {
    let row: On<T> = |stage, on| stage.is_away_for_a_moment(|| on.kill(), Some(&|| on.restart()));
    of.holds("10-killed-and-back", "kill -9 of the server, back before the deadline", own(row))
}

fn killed_for_long<T: Target>(stage: &mut Stage<'_>, on: &T) {
    stage.is_away_for_long(|| on.kill(), || on.restart());
}

fn stopped_for_a_moment<T: Target>(stage: &mut Stage<'_>, on: &T) {
    stage.is_away_for_a_moment(|| on.stop(), Some(&|| on.cont()));
}

fn stopped_for_long<T: Target>(stage: &mut Stage<'_>, on: &T) {
    stage.is_away_for_long(|| on.stop(), || on.cont());
}

fn partitioned<T: Target>(stage: &mut Stage<'_>, on: &T) {
    let next = stage.next();
    stage.is_cut_off("nothing passes", || on.proxy().black_hole(), || on.proxy().heal(), next);
}

fn requests_stop<T: Target>(stage: &mut Stage<'_>, on: &T) {
    let next = stage.next();
    stage.is_cut_off("requests stop", || on.proxy().hold_requests(), || on.proxy().heal(), next);
}

/// Renewals, and all else that keeps the lease, go on being executed until the holder gives up. So the lease ends a ttl after that.
fn replies_stop<T: Target>(stage: &mut Stage<'_>, on: &T) {
    let next = T::UNHEARD + stage.next();
    stage.is_cut_off("replies stop", || on.proxy().hold_replies(), || on.proxy().heal(), next);
}

/// Its session stays. The requests that it had sent arrive late, and do no harm.
fn half_open<T: Target>(stage: &mut Stage<'_>, on: &T) {
    let (a, _, _, second) = stage.begins();
    stage.some_time();
    on.proxy().hold_requests();
    stage.a_moment();
    a.kill();
    stage.fault("A is killed, and nobody hears of it");
    stage.grant_due(stage.next());
    second.granted();
    second.works(&stage.register);
    on.proxy().release_requests();
    let since = stage.fault("what A has sent arrives");
    second.renewed(since);
    stage.is_left(&second);
}

fn churned<T: Target>(stage: &mut Stage<'_>, on: &T) {
    let mut churns = false;
    stage.is_reset(&|| on.proxy().accepted(), |stage| {
        if !std::mem::replace(&mut churns, true) {
            on.proxy().churn(Duration::from_millis(150));
            stage.fault("connections are reset every 150 ms from now on");
        }
    });
}

/// The attempt that is made again finds what the first has left. If it is dropped instead, nothing is left.
fn reply_lost<T: Target>(stage: &mut Stage<'_>, on: &T) {
    let (a, b) = (stage.near(), stage.far());
    // So that the one request takes the name.
    let warm = a.takes(DOOR);
    stage.is_left(&warm);
    for drops in [false, true] {
        on.proxy().hold_replies();
        stage.fault("replies are held");
        let first = a.asks(DOOR, terms());
        stage.taken(DOOR);
        if drops {
            first.drops();
        }
        // In the first try, or in a later one.
        std::thread::sleep(Duration::from_millis(stage.rng.u64(0..200)));
        stage.holds_true(!first.is_granted(), "it has heard of its grant");
        on.proxy().cut();
        on.proxy().heal();
        let since = stage.fault("they are lost, with their connections");
        if drops {
            a.settles();
            stage.free_due(DOOR, SLACK);
        } else {
            stage.granted_since(&first, since, 2 * OPERATION + SLACK);
            first.works(&stage.register);
            first.renewed(now());
            stage.is_left(&first);
        }
    }
    stage.ends_with_another(&b);
}
