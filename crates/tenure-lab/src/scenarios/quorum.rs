//! Faults of one or two of five Redis servers, and of three.
//!
//! The faults are those of one Redis, and the rows of a majority are its rows. A minority that has one costs nobody a lease.

mod three;

use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::history::nanos;
use tenure_testkit::{Proxy, RedisServer, admit, redis, wait_until};

use super::fixtures::{Played, Redis};
use super::redis::access::{NAME_FORBIDDEN, SCRIPTS_FORBIDDEN};
use super::redis::data::{DELETED, EMPTIED, EVICTED, FLUSHED, OVERWRITTEN};
use super::redis::link::{CHURN, CLIENTS_KILLED, PARTITIONED, REPLIES_STOP, REQUESTS_STOP, SLOW, cut_off};
use super::redis::outage::{
    BUSY, CANNOT_SAVE, CLOCK_AHEAD, CLOCK_BACK, KILLED, LOADING, NO_MEMORY, SCRIPTS_FLUSHED, STOPPED, TAKES_NO_WRITES,
    WRITES_PAUSED, loads_slowly,
};
use super::redis::{Fault, kept, unprivileged};
use super::scheme::NATIVE;
use super::stage::{Access, DOOR, Heir, Look, OPERATION, SLACK, Stage, now, terms};
use super::{Rows, anywhere};
use crate::Item;
use crate::item::Run;

const OF: Rows = Rows { id: "quorum", fences: true };
/// Number of servers.
const ALL: usize = 5;
/// A majority of them.
const MAJORITY: usize = 3;

/// Settings of the servers of a row, and the login of the processes in the way of the fault.
#[derive(Clone, Copy)]
struct How {
    server: fn(redis::Builder) -> redis::Builder,
    login: &'static str,
}

const PLAIN: How = How { server: |how| how, login: "" };
const KEPT: How = How { server: kept, ..PLAIN };
const CLOCKED: How = How { server: redis::Builder::shifted_clock, ..PLAIN };
const LOADS_SLOWLY: How = How { server: loads_slowly, ..PLAIN };
const UNPRIVILEGED: How = How { server: unprivileged, login: "app:app@" };

pub(super) fn items() -> Vec<Item> {
    let on = |row: super::fixtures::Row| -> Played { Box::new(on_five(PLAIN, move |stage, _| row(stage))) };
    [minorities(), majorities(), three::items(), anywhere::shared(OF, &on)].concat()
}

/// The faults that one or two of the servers have.
#[rustfmt::skip]
fn minorities() -> Vec<Item> {
    let held = |row: &str, how: How, fault: Fault| {
        OF.holds(row, &format!("at one or two of five: {}", fault.what), on_five(how, move |stage, nodes| held(stage, nodes, fault)))
    };
    let mut all: Vec<Item> = vec![
        OF.holds("05-request-lost", "at one or two of five, a command of each kind of call never arrives",
            on_five(PLAIN, |stage, nodes| each_call_loses(stage, nodes, Proxy::drop_request, "request"))),
        OF.holds("06-reply-lost", "at one or two of five, a command of each kind of call is executed and its reply is lost",
            on_five(PLAIN, |stage, nodes| each_call_loses(stage, nodes, Proxy::swallow_reply, "reply"))),
        OF.holds("07-late-acquire", "at one or two of five, an acquire arrives when its release was executed",
            on_five(PLAIN, late_acquire)),
        OF.holds("07-late-acquire-unprivileged",
            "at one or two of five, an acquire arrives when its release was executed, of a user who may not end connections",
            on_five(UNPRIVILEGED, late_acquire)),
        OF.holds("07-stopped-server", "one or two of five are stopped, the acquisition is dropped, they go on",
            on_five(PLAIN, stopped_before_acquire)),
        OF.holds("08-late-renewal", "at one or two of five, a renewal arrives after the release and the next grant",
            on_five(UNPRIVILEGED, late_renewal)),
        held("10-killed", KEPT, KILLED),
        held("11-killed-without-persistence", PLAIN, EMPTIED),
        OF.holds("11-older-copy", "one or two of five come back with data from before the grant", on_five(PLAIN, older_copy)),
        held("15-partition", PLAIN, PARTITIONED),
        held("16-replies-stop", PLAIN, REPLIES_STOP),
        held("16-requests-stop", PLAIN, REQUESTS_STOP),
        held("17-slow-link", PLAIN, SLOW),
        held("18-churn", PLAIN, CHURN),
        held("18-clients-killed", PLAIN, CLIENTS_KILLED),
        held("19-stopped", PLAIN, STOPPED),
        held("20-busy", PLAIN, BUSY),
        held("20-writes-paused", PLAIN, WRITES_PAUSED),
        held("21-clock-ahead", CLOCKED, CLOCK_AHEAD),
        held("22-clock-back", CLOCKED, CLOCK_BACK),
        held("27-evicted", PLAIN, EVICTED[1]),
        held("28-out-of-memory", PLAIN, NO_MEMORY),
        held("29-deleted", PLAIN, DELETED),
        held("29-flushed", PLAIN, FLUSHED),
        held("29-overwritten", PLAIN, OVERWRITTEN),
        held("30-scripts-flushed", PLAIN, SCRIPTS_FLUSHED),
        held("31-cannot-save", PLAIN, CANNOT_SAVE),
        held("31-loading", LOADS_SLOWLY, LOADING),
        held("32-name-forbidden", UNPRIVILEGED, NAME_FORBIDDEN),
        held("32-scripts-forbidden", UNPRIVILEGED, SCRIPTS_FORBIDDEN),
    ];
    let rows = ["31-read-only", "31-no-primary", "31-no-replicas"];
    all.extend(rows.into_iter().zip(TAKES_NO_WRITES).map(|(row, fault)| held(row, PLAIN, fault)));
    all
}

/// The faults that three of the servers have.
#[rustfmt::skip]
fn majorities() -> Vec<Item> {
    let long = |row: &str, how: How, fault: Fault| {
        let what = format!("at three of five, for longer than the lease: {}", fault.what);
        OF.holds(row, &what, on_five(how, move |stage, nodes| three_gone(stage, nodes, fault)))
    };
    let taken = |row: &str, how: How, fault: Fault| {
        OF.fenced(row, &format!("at three of five: {}", fault.what), on_five(how, move |stage, nodes| {
            let some = nodes.some(stage, MAJORITY);
            // A renewal in between would have the first take it again before the last has lost it.
            let proxies = || nodes.all.iter().map(|redis| &redis.proxy);
            stage.is_taken_away(Heir::Waits, &some.told(fault), || {
                for proxy in proxies() {
                    proxy.hold_requests();
                }
                some.begin(fault);
                for proxy in proxies() {
                    proxy.release_requests();
                }
            });
        }))
    };
    let cut = |row: &str, fault: Fault, held_on: bool| {
        OF.holds(row, &format!("at three of five: {}", fault.what), on_five(PLAIN, move |stage, nodes| {
            let some = nodes.some(stage, MAJORITY);
            // Renewals that are executed go on until the holder gives up.
            let next = if held_on { stage.validity() + stage.next() } else { stage.next() };
            cut_off(stage, &some.0, fault, next);
        }))
    };
    vec![
        OF.holds("35-three-killed",
            "at three of five, for longer than the lease: kill -9; they are back with all of their data, and an operator vouches for them",
            on_five(KEPT, three_killed)),
        long("35-three-stopped", PLAIN, STOPPED),
        long("35-three-without-writes", PLAIN, WRITES_PAUSED),
        cut("35-three-cut-off", PARTITIONED, false),
        cut("35-three-do-not-answer", REPLIES_STOP, true),
        taken("35-three-clocks-ahead", CLOCKED, CLOCK_AHEAD),
        taken("35-deleted-at-three", PLAIN, DELETED),
        OF.holds("35-three-empty", "three of five were killed and are back empty; later an operator vouches for them",
            on_five(PLAIN, three_empty)),
        OF.holds("35-counted-by-few",
            "of the three that counted a grant, one has a clock that was ahead by two days while nobody asked, and two are stopped",
            on_five(CLOCKED, counted_by_few)),
        OF.holds("35-empty-beside-silent", "of the three at which it is held, one is back empty, and the other clients reach two others",
            on_five(PLAIN, empty_beside_silent)),
    ]
}

/// The servers, as a store.
pub(super) struct Nodes {
    all: Vec<Redis>,
    login: &'static str,
}

impl Nodes {
    fn start(how: How, count: usize) -> Self {
        let all = (0..count).map(|_| Redis::start((how.server)(RedisServer::builder()), NATIVE)).collect();
        let nodes = Self { all, login: how.login };
        admit(&nodes.far());
        nodes
    }

    fn url(&self, address: fn(&Redis) -> std::net::SocketAddr, login: &str) -> String {
        let hosts: Vec<String> = self.all.iter().map(|redis| address(redis).to_string()).collect();
        NATIVE.url(&format!("quorum+redis://{login}{}", hosts.join(",")))
    }

    fn near(&self) -> String {
        self.url(|redis| redis.proxy.addr(), self.login)
    }

    fn far(&self) -> String {
        self.url(|redis| redis.server.addr(), "")
    }

    /// Some of them, as the seed has it.
    fn some(&self, stage: &mut Stage<'_>, count: usize) -> Hit<'_> {
        Hit(stage.rng.choose_multiple(self.all.iter(), count), self.all.len())
    }

    /// Whether a name is kept from everybody else.
    fn is_held_by(&self, name: &str) -> Option<(String, bool)> {
        // As few questions as can be: on a busy machine each takes its time.
        let is_free = self.all.iter().filter(|redis| !redis.has(name)).nth(self.all.len() / 2).is_some();
        (!is_free).then(|| ("a majority".to_owned(), false))
    }

    fn one_or_two(&self, stage: &mut Stage<'_>) -> Hit<'_> {
        let count = stage.rng.usize(1..=2);
        self.some(stage, count)
    }
}

/// The servers that have the fault, and of how many.
struct Hit<'a>(Vec<&'a Redis>, usize);

impl Hit<'_> {
    fn begin(&self, fault: Fault) {
        self.0.iter().for_each(|redis| (fault.begin)(redis));
    }

    fn end(&self, fault: Fault) {
        self.0.iter().for_each(|redis| (fault.end)(redis));
    }

    fn told(&self, fault: Fault) -> String {
        format!("at {} of {}: {}", self.0.len(), self.1, fault.what)
    }
}

/// A scenario on five servers.
fn on_five(how: How, row: impl Fn(&mut Stage<'_>, &Nodes) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
    on(how, ALL, row)
}

/// A scenario on so many servers.
fn on(how: How, count: usize, row: impl Fn(&mut Stage<'_>, &Nodes) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let nodes = Arc::new(Nodes::start(how, count));
            let looked_at = Arc::clone(&nodes);
            let look: Look = Box::new(move |name| looked_at.is_held_by(name));
            let access = Access { near: nodes.near(), far: nodes.far(), alone: false, look: Some(look), line: None };
            let mut stage = Stage::new(lab, &id, seed, access);
            row(&mut stage, &nodes);
            // A server that was away when a lease was given up keeps it until the ttl has passed, and no longer.
            let is_free = || !nodes.all.iter().any(|redis| redis.has(DOOR));
            wait_until(stage.kept() + SLACK, "the door to be free at each server", is_free);
            stage.finish()
        })
    }
}

/// The holder keeps what it has, other names can be taken, and the one who waits is served.
fn held(stage: &mut Stage<'_>, nodes: &Nodes, fault: Fault) {
    let (a, _, first, second) = stage.begins();
    let some = nodes.one_or_two(stage);
    stage.keeps = true;
    stage.a_moment();
    some.begin(fault);
    let since = stage.fault(some.told(fault));
    let long = stage.rng.bool();
    first.renewed(since);
    while long && now() - since < nanos(stage.kept()) {
        first.renewed(now());
    }
    stage.grant_due_of("gate", OPERATION + SLACK);
    let gate = a.takes("gate");
    stage.expect(&gate.releases(), "Released");
    let early = stage.rng.bool();
    if early {
        stage.hand_over(&first, &second);
        // The end of a fault can be one more: a clock that jumps back jumps forward then. The lease is at all nodes by now.
        second.renewed(now());
    }
    some.end(fault);
    stage.fault("the fault is over");
    if !early {
        stage.hand_over(&first, &second);
    }
    second.renewed(now());
    stage.is_left(&second);
    stage.ends_with_another(&a);
}

/// Loses one of the commands of an acquire, a renewal and a release in turn, at some servers. The others decide.
fn each_call_loses(stage: &mut Stage<'_>, nodes: &Nodes, lose: fn(&Proxy, u64), what: &str) {
    let (a, b) = (stage.near(), stage.far());
    stage.keeps = true;
    // So that the servers know the scripts, and no call takes two tries.
    stage.warms_up(&a);
    let lose = |stage: &mut Stage<'_>, call: &str| {
        let some = nodes.one_or_two(stage);
        some.0.iter().for_each(|redis| lose(&redis.proxy, 1));
        stage.fault(format!("the {what} of the next {call} is lost at {} of {ALL}", some.0.len()))
    };
    lose(stage, "acquire");
    stage.grant_due(OPERATION + SLACK);
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    let since = lose(stage, "renewal");
    first.renewed(since);
    first.renewed(now());
    lose(stage, "release");
    stage.hand_over(&first, &second);
    nodes.all.iter().for_each(|redis| redis.proxy.heal());
    stage.is_left(&second);
}

/// A's commands to some servers are held, while A takes the door at the others and gives it up.
fn late_acquire(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    let some = nodes.one_or_two(stage);
    some.0.iter().for_each(|redis| redis.proxy.hold_present_requests());
    stage.fault(format!("what A sends to {} of {ALL} is held", some.0.len()));
    stage.grant_due(OPERATION + SLACK);
    let first = a.takes(DOOR);
    stage.expect(&first.releases(), "Released");
    some.0.iter().for_each(|redis| redis.proxy.release_requests());
    stage.fault("it arrives");
    stage.grant_due(2 * OPERATION + SLACK);
    let second = b.takes(DOOR);
    second.works(&stage.register);
    a.settles();
    stage.is_left(&second);
}

/// They execute what they were sent when they go on, and the clean-up after it.
fn stopped_before_acquire(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    let some = nodes.one_or_two(stage);
    some.begin(STOPPED);
    stage.fault(some.told(STOPPED));
    let ghost = a.asks(DOOR, terms());
    std::thread::sleep(Duration::from_micros(stage.rng.u64(0..200_000)));
    ghost.drops();
    stage.grant_due(2 * OPERATION + SLACK);
    let second = b.takes(DOOR);
    some.end(STOPPED);
    stage.fault("they go on");
    a.settles();
    second.renewed(now());
    stage.is_left(&second);
}

/// It neither revives what was released nor prolongs the lease of the next holder.
fn late_renewal(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.keeps = true;
    let first = a.takes(DOOR);
    first.renewed(now());
    let some = nodes.one_or_two(stage);
    some.0.iter().for_each(|redis| redis.proxy.hold_present_requests());
    let since = stage.fault(format!("what A sends to {} of {ALL} is held", some.0.len()));
    first.renewed(since);
    stage.expect(&first.releases(), "Released");
    stage.grant_due(OPERATION + SLACK);
    let second = b.asks(DOOR, terms().fixed());
    second.granted();
    let token = second.token();
    let left = || {
        nodes
            .all
            .iter()
            .filter_map(|redis| redis.look(DOOR))
            .filter(|held| held.value == token)
            .filter_map(|held| held.left)
            .max()
    };
    let (before, looked) = (left(), now());
    some.0.iter().for_each(|redis| redis.proxy.release_requests());
    stage.fault("it arrives");
    a.settles();
    let passed = Duration::from_nanos(now() - looked);
    let most = before.map(|left| left.saturating_sub(passed) + Duration::from_millis(20));
    let after = left();
    stage.holds_true(after.is_some() && after <= most, &format!("{before:?} and {passed:?} later {after:?} were left"));
    stage.is_left(&second);
}

/// They have forgotten the grant, and do not vote until it cannot stand any more.
fn older_copy(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&b);
    let some = nodes.one_or_two(stage);
    let copies: Vec<_> = some.0.iter().map(|redis| redis.server.snapshot()).collect();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    some.0.iter().zip(&copies).for_each(|(redis, copy)| redis.server.restart_with(copy));
    let since = stage.fault(format!("{} of {ALL} are back with data from before the grant", some.0.len()));
    first.renewed(since);
    first.renewed(now());
    stage.hand_over(&first, &second);
    second.works(&stage.register);
    stage.is_left(&second);
}

fn three_gone(stage: &mut Stage<'_>, nodes: &Nodes, fault: Fault) {
    let some = nodes.some(stage, MAJORITY);
    away_for_long(stage, &some, fault, || some.end(fault));
}

/// A copy counts for nothing, however whole it is. So nobody knows how long leases may stand.
fn three_killed(stage: &mut Stage<'_>, nodes: &Nodes) {
    let some = nodes.some(stage, MAJORITY);
    away_for_long(stage, &some, KILLED, || {
        some.end(KILLED);
        admit(&nodes.far());
    });
}

/// Nobody is granted anything meanwhile, and nobody hangs.
fn away_for_long(stage: &mut Stage<'_>, some: &Hit<'_>, fault: Fault, come_back: impl FnOnce()) {
    let c = stage.far();
    stage.warms_up(&c);
    let leave = || {
        some.begin(fault);
        c.asks("other", terms().wait(Duration::ZERO)).fails_unanswered(OPERATION + SLACK);
    };
    stage.is_away_for_long(leave, come_back);
    stage.free_due("other", stage.kept() + SLACK);
}

/// Nobody knows how long leases may stand, so all stay out, until somebody says that none does. Fences rise all the same.
fn three_empty(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    stage.some_time();
    let some = nodes.some(stage, MAJORITY);
    some.begin(EMPTIED);
    stage.fault(some.told(EMPTIED));
    stage.loss_due(stage.validity());
    first.lost();
    let second = b.asks(DOOR, terms());
    std::thread::sleep(stage.kept() + SLACK);
    stage.holds_true(!second.is_granted(), "servers vote that have lost their data");
    stage.fault("an operator vouches for them");
    stage.grant_due(RETRY + OPERATION + SLACK);
    admit(&nodes.far());
    second.granted();
    second.works(&stage.register);
    stage.is_left(&second);
}

/// Longest time to the next try at servers that do not vote.
const RETRY: Duration = Duration::from_secs(2);

/// Without the empty one there is no majority for anybody else while the lease stands.
fn empty_beside_silent(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    stage.warms_up(&b);
    let held = nodes.some(stage, MAJORITY);
    let others = || nodes.all.iter().filter(|redis| !held.0.iter().any(|held| std::ptr::eq(*held, *redis)));
    for redis in others() {
        // Commands to them are lost, not late.
        redis.proxy.refuse();
        redis.proxy.cut();
    }
    stage.fault("A reaches three of five");
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    first.renewed(now());
    let second = b.asks(DOOR, terms());
    (EMPTIED.begin)(held.0[0]);
    stage.fault("one of them was killed and is back empty");
    stage.loss_due(stage.validity());
    stage.grant_due(stage.kept() + stage.next());
    first.lost();
    second.granted();
    second.works(&stage.register);
    others().for_each(|redis| redis.proxy.heal());
    stage.is_left(&second);
}

/// No counter ends by time, also not while nobody asks. Else the fence of the next grant would be below that of this one.
fn counted_by_few(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&b);
    let counting = nodes.some(stage, MAJORITY);
    let others = || nodes.all.iter().filter(|redis| !counting.0.iter().any(|counts| std::ptr::eq(*counts, *redis)));
    for redis in others() {
        // Commands to them are lost, not late.
        redis.proxy.refuse();
        redis.proxy.cut();
    }
    stage.fault("A reaches three of five");
    let first = a.takes(DOOR);
    first.works(&stage.register);
    stage.expect(&first.releases(), "Released");
    others().for_each(|redis| redis.proxy.accept());
    let [ahead, silent @ ..] = &counting.0[..] else { unreachable!("a majority") };
    ahead.server.shift_clock(2 * 86_400_000);
    stage.fault("A reaches the others again, and the clock of one of the three is ahead by two days");
    stage.some_time();
    ahead.server.shift_clock(0);
    for redis in silent {
        redis.server.stop();
    }
    stage.fault("the clock is right again, and two of the three are stopped");
    stage.grant_due(2 * OPERATION + SLACK);
    let second = b.takes(DOOR);
    second.works(&stage.register);
    for redis in silent {
        redis.server.cont();
    }
    second.renewed(now());
    stage.is_left(&second);
}
