//! Messages that are lost, late, cut or slow.

use std::time::{Duration, Instant};

use tenure_testkit::{Proxy, wait_until};

use super::fault::Fault;
use crate::Item;
use crate::scenarios::actor::{Actor, Claim};
use crate::scenarios::fixtures::Redis;
use crate::scenarios::outages::slow_down;
use crate::scenarios::scheme::{NATIVE, Scheme};
use crate::scenarios::stage::{DOOR, OPERATION, PATIENCE, POLL, SLACK, SOON, Stage, now, terms};

pub(super) fn items() -> Vec<Item> {
    [in_scheme(NATIVE), ours()].concat()
}

/// The rows of every scheme.
#[rustfmt::skip]
pub(super) fn in_scheme(on: Scheme) -> Vec<Item> {
    let of = on.rows();
    vec![
        of.holds("05-request-lost", "a command of each kind of call never arrives", on.plain(request_lost)),
        of.holds("06-reply-lost", "a command of each kind of call is executed and its reply is lost", on.plain(reply_lost)),
        of.holds("07-late-acquire", "an acquire arrives when its clean-up was executed", on.plain(late_acquire)),
        of.holds("07-late-acquire-unprivileged", "an acquire arrives when its clean-up was executed, of a user who may not end connections",
            on.unprivileged(unstoppable_acquire)),
        of.holds("08-late-renewal", "a renewal arrives after the release and the next grant", on.plain(late_renewal)),
        of.holds("08-late-renewal-unprivileged", "a renewal arrives after the release, of a user who may not end connections",
            on.unprivileged(unstoppable_renewal)),
        of.holds("09-release-unheard", "a release has no answer on any connection", on.plain(release_unheard)),
        of.holds("15-partition", "nothing passes between the holder and the server", on.plain(partitioned)),
        of.holds("16-replies-stop", "the server hears the holder, which does not hear it", on.plain(replies_stop)),
    ]
}

/// The rows that would show no more in another scheme.
#[rustfmt::skip]
fn ours() -> Vec<Item> {
    let (on, of) = (NATIVE, NATIVE.rows());
    vec![
        of.holds("07-late-repetition", "the repetition of an acquire arrives when the lease was extended",
            on.unprivileged(late_repetition)),
        of.holds("16-requests-stop", "the holder hears the server, which does not hear it", on.plain(requests_stop)),
        of.holds("17-slow-link", "messages come late, slowly and in pieces", on.plain(slow)),
        of.holds("18-churn", "every connection is reset every 50 ms", on.plain(churned)),
        of.holds("18-clients-killed", "an operator ends the connections again and again", on.plain(clients_killed)),
        of.holds("18-too-many-clients", "the server takes no more clients", on.plain(too_many_clients)),
    ]
}

pub(crate) const PARTITIONED: Fault =
    Fault { what: "nothing passes", begin: |redis| redis.proxy.black_hole(), end: |redis| redis.proxy.heal() };

pub(crate) const REQUESTS_STOP: Fault =
    Fault { what: "no request passes", begin: |redis| redis.proxy.hold_requests(), end: |redis| redis.proxy.heal() };

pub(crate) const REPLIES_STOP: Fault =
    Fault { what: "no reply passes", begin: |redis| redis.proxy.hold_replies(), end: |redis| redis.proxy.heal() };

pub(crate) const SLOW: Fault = Fault {
    what: "30 ms each way, 10 kB/s, in pieces of 10 bytes",
    begin: |redis| slow_down(&redis.proxy, 30, 10),
    end: |redis| redis.proxy.heal(),
};

pub(crate) const CHURN: Fault = Fault {
    what: "connections are reset every 50 ms",
    begin: |redis| redis.proxy.churn(Duration::from_millis(50)),
    end: |redis| redis.proxy.heal(),
};

pub(crate) const CLIENTS_KILLED: Fault =
    Fault::once("every connection is ended", |redis| drop(redis.server.cli("CLIENT KILL TYPE normal SKIPME yes")));

/// The operation timeout where a call is to be sent twice: half of it is for the first try, and the rest for another connection and
/// the second, on a machine that does other things as well.
const PATIENT: Duration = Duration::from_millis(600);

/// Loses one of the commands of an acquire, a renewal and a release in turn.
fn each_call_loses(stage: &mut Stage<'_>, redis: &Redis, lose: fn(&Proxy, u64), what: &str, released: &str) {
    let patient = redis.near().replacen("timeout=250ms", "timeout=600ms", 1);
    stage.holds_true(patient.contains("timeout=600ms"), "the timeout of its calls is not known");
    let (a, b) = (stage.actor(&patient), stage.far());
    stage.keeps = true;
    // So that the server knows the scripts, and no call takes two tries.
    stage.warms_up(&a);
    let k = stage.rng.u64(1..=redis.scheme.takes);
    let mut connections = redis.proxy.accepted();
    // It takes another connection for its second try.
    let mut is_hit = |call: &str| {
        wait_until(PATIENCE, &format!("a second try of the {call}"), || redis.proxy.accepted() > connections);
        connections = redis.proxy.accepted();
    };
    lose(&redis.proxy, k);
    stage.fault(format!("the {what} of command {k} of the acquire is lost"));
    stage.grant_due(PATIENT + SLACK);
    let first = a.takes(DOOR);
    is_hit("acquire");
    redis.proxy.heal();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    lose(&redis.proxy, redis.scheme.writes);
    stage.fault(format!("the {what} of the next renewal is lost"));
    // One that was sent before may be answered first.
    is_hit("renewal");
    first.renewed(now());
    redis.proxy.heal();
    first.renewed(now());
    // So that the lease has not ended by the second release.
    first.extends(Duration::from_secs(10));
    // So that the connection knows how the server deletes by comparison.
    stage.warms_up(&a);
    lose(&redis.proxy, redis.scheme.writes);
    stage.fault(format!("the {what} of the release is lost"));
    // Where telling is a command of its own, nobody tells whom a release without an answer has served.
    stage.grant_due(if redis.scheme.writes == 1 { POLL } else { SOON } + PATIENT + SLACK);
    stage.expect(&first.releases(), released);
    is_hit("release");
    second.granted();
    redis.proxy.heal();
    stage.is_left(&second);
}

fn request_lost(stage: &mut Stage<'_>, redis: &Redis) {
    each_call_loses(stage, redis, Proxy::drop_request, "request", "Released");
}

/// The first release has run unheard and the second finds nothing: nobody can say more than that.
fn reply_lost(stage: &mut Stage<'_>, redis: &Redis) {
    each_call_loses(stage, redis, Proxy::swallow_reply, "reply", "Unknown");
}

/// The commands of a dropped acquisition are on their way for a long time, and the first clean-up behind them is lost.
fn acquire_is_held(stage: &mut Stage<'_>, redis: &Redis, a: &Actor) {
    stage.warms_up(a);
    redis.proxy.hold_present_requests();
    let sent = redis.proxy.commands() + redis.scheme.takes;
    stage.fault("what A sends is held");
    let ghost = a.asks(DOOR, terms());
    redis.proxy.wait_for_commands(sent, PATIENCE);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!redis.has(DOOR), "it was not held");
    redis.proxy.drop_request(1);
    ghost.drops();
}

/// A client that comes then has the name soon.
fn comes_next(stage: &mut Stage<'_>, next: Duration) {
    let b = stage.far();
    stage.grant_due(next);
    let second = b.takes(DOOR);
    stage.is_left(&second);
}

fn late_acquire(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.near();
    acquire_is_held(stage, redis, &a);
    a.settles();
    stage.fault("A has cleared up");
    redis.proxy.release_requests();
    stage.fault("it arrives");
    // At a server that has ended its connection: nobody hears of it when it does.
    std::thread::sleep(Duration::from_millis(50));
    comes_next(stage, OPERATION + SLACK);
}

/// The clean-up is repeated until the ttl has passed.
fn unstoppable_acquire(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.actor(&redis.as_user("app:app"));
    acquire_is_held(stage, redis, &a);
    // So that a clean-up has found nothing by then.
    std::thread::sleep(Duration::from_millis(stage.rng.u64(700..1_100)));
    let taken = || redis.calls(redis.scheme.takes_by);
    let before = taken();
    redis.proxy.release_requests();
    stage.fault("it arrives");
    wait_until(PATIENCE, "it to be executed", || taken() > before);
    comes_next(stage, 2 * OPERATION + SLACK);
    a.settles();
}

/// Has A take `name`, with the reply to its first try lost. `held` is the command of its second that is held, if any.
fn takes_in_tries(redis: &Redis, a: &Actor, name: &str, held: Option<usize>) -> Claim {
    // A connection trusts the counter for a second: from then on a try has always the same five commands.
    std::thread::sleep(Duration::from_millis(1_050));
    redis.proxy.swallow_reply(5);
    if let Some(k) = held {
        redis.proxy.hold_request(u64::try_from(k).expect("a usize fits"), PATIENCE);
    }
    a.takes(name)
}

/// It finds the name taken by its own owner, and does not shorten what was prolonged since.
fn late_repetition(stage: &mut Stage<'_>, redis: &Redis) {
    const LONG: Duration = Duration::from_secs(10);
    let a = stage.actor(&redis.as_user("app:app"));
    stage.warms_up(&a);
    let before = redis.proxy.log().len();
    let rehearsal = takes_in_tries(redis, &a, "rehearsal", None);
    let log = redis.proxy.log().split_off(before);
    let second = log.iter().enumerate().filter(|(_, name)| *name == "EXEC").nth(1).expect("a second try").0;
    let acquisition =
        log.iter().skip(second).position(|name| name.starts_with("EVAL") || *name == "FCALL").expect("a script") + second + 1;
    stage.expect(&rehearsal.releases(), "Released");
    redis.proxy.heal();
    // Else its clean-up is counted.
    a.settles();
    stage.fault(format!("the reply to the first acquire is lost, and command {acquisition} is held, which claims it"));
    let first = takes_in_tries(redis, &a, DOOR, Some(acquisition));
    first.extends(LONG);
    let before = redis.own_calls();
    redis.proxy.heal();
    stage.fault("it arrives");
    wait_until(PATIENCE, "the script to be executed", || redis.own_calls() > before);
    let left = redis.left(DOOR);
    stage.holds_true(left > LONG / 2, &format!("{left:?} are left of {LONG:?}"));
    stage.is_left(&first);
}

/// A renewal of A is on its way, and what it was to renew has been given up.
fn renewal_is_held(stage: &Stage<'_>, redis: &Redis, a: &Actor) {
    let first = a.takes(DOOR);
    first.renewed(now());
    redis.proxy.hold_present_requests();
    let (since, before) = (stage.fault("what A sends on its connection is held"), redis.proxy.accepted());
    // One that was sent before may be answered since.
    wait_until(PATIENCE, "another connection", || redis.proxy.accepted() > before);
    first.renewed(now().max(since));
    stage.expect(&first.releases(), "Released");
    a.settles();
}

/// A renewal neither revives what was released nor touches the lease of the next holder.
fn renewal_comes_late(stage: &mut Stage<'_>, redis: &Redis, a: &Actor, arrives: bool) {
    let lets_pass = |stage: &Stage<'_>| {
        let calls = redis.own_calls();
        redis.proxy.release_requests();
        stage.fault("the first renewal arrives");
        // Nobody hears of it when it does.
        if arrives {
            wait_until(PATIENCE, "it to be executed", || redis.own_calls() > calls);
        } else {
            std::thread::sleep(Duration::from_millis(100));
            stage.holds_true(redis.own_calls() == calls, "its connection was not ended");
        }
    };
    stage.keeps = true;
    renewal_is_held(stage, redis, a);
    stage.free_due(DOOR, SLACK);
    lets_pass(stage);
    stage.free_due(DOOR, SLACK);
    renewal_is_held(stage, redis, a);
    let second = stage.far().asks(DOOR, terms().fixed());
    second.granted();
    std::thread::sleep(Duration::from_millis(stage.rng.u64(300..600)));
    let (left, since, held) = (redis.left(DOOR), Instant::now(), redis.value(DOOR));
    lets_pass(stage);
    let (passed, now_left) = (since.elapsed(), redis.left(DOOR));
    let most = left.saturating_sub(passed) + Duration::from_millis(2);
    stage.holds_true(now_left <= most, &format!("{left:?} and {passed:?} later {now_left:?} were left"));
    stage.expect(&redis.value(DOOR), &held);
    stage.is_left(&second);
}

/// Its connection was ended before it was tried again on another.
fn late_renewal(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.near();
    renewal_comes_late(stage, redis, &a, false);
}

fn unstoppable_renewal(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.actor(&redis.as_user("app:app"));
    renewal_comes_late(stage, redis, &a, true);
}

/// The release reports an unknown outcome and is repeated in the background. The name is free within its ttl.
fn release_unheard(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, _, first, second) = stage.begins();
    stage.some_time();
    redis.proxy.black_hole();
    stage.fault("nothing passes");
    stage.grant_due(stage.next());
    stage.expect(&first.releases(), "Unknown");
    second.granted();
    redis.proxy.heal();
    let since = stage.fault("what A sent arrives");
    a.settles();
    second.renewed(since);
    stage.is_left(&second);
}

/// The link to some of the servers is cut.
pub(crate) fn cut_off(stage: &mut Stage<'_>, some: &[&Redis], fault: Fault, next: Duration) {
    let all = |change: fn(&Redis)| some.iter().for_each(|redis| change(redis));
    stage.is_cut_off(fault.what, || all(fault.begin), || all(fault.end), next);
}

fn partitioned(stage: &mut Stage<'_>, redis: &Redis) {
    let next = stage.next();
    cut_off(stage, &[redis], PARTITIONED, next);
}

fn requests_stop(stage: &mut Stage<'_>, redis: &Redis) {
    let next = stage.next();
    cut_off(stage, &[redis], REQUESTS_STOP, next);
}

/// Renewals go on being executed until the holder gives up, so the lease ends a ttl after the last of them.
fn replies_stop(stage: &mut Stage<'_>, redis: &Redis) {
    let next = stage.validity() + stage.next();
    cut_off(stage, &[redis], REPLIES_STOP, next);
}

fn slow(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_slow(&redis.proxy);
}

fn churned(stage: &mut Stage<'_>, redis: &Redis) {
    let mut churns = false;
    stage.is_reset(&|| redis.proxy.accepted(), |stage| {
        if !std::mem::replace(&mut churns, true) {
            (CHURN.begin)(redis);
            stage.fault("connections are reset every 50 ms from now on");
        }
    });
}

fn clients_killed(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_reset(&|| redis.proxy.accepted(), |stage| {
        stage.some_time();
        (CLIENTS_KILLED.begin)(redis);
        stage.fault(CLIENTS_KILLED.what);
    });
}

/// The holder keeps its connection and its lock. A client that comes now gets an error that says why it cannot be served.
fn too_many_clients(stage: &mut Stage<'_>, redis: &Redis) {
    let (.., first, second) = stage.begins();
    stage.keeps = true;
    let mut operator = redis.server.connect().expect("the server answers");
    let mut set = |most: &str| operator.command(&["CONFIG", "SET", "maxclients", most]).expect("the server answers");
    assert!(set("1") == "OK");
    let since = stage.fault("the server takes no more clients");
    stage.far().fails_to_open(&["Unavailable"]);
    first.renewed(since);
    assert!(set("1000") == "OK");
    stage.ends_well(&first, &second);
}
