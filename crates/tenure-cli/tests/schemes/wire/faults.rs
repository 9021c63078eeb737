//! The same beside faults: clients that are killed, stopped or interrupted, and a network that loses.

use std::time::{Duration, Instant};

use super::{ENTRIES, QUEUE, WIRE, entry, ours, ours_holds, queued, release, theirs_with, waiters};
use crate::common::{Ended, PATIENCE, Place, Running, wait_for};
use crate::sides::{Enough, OURS, THEIRS, our_turns};
use nix::sys::signal::Signal;
use tenure_testkit::{Counter, Proxy, RedisServer, Reply};

/// The cost of a waiter that stands still, as GUARANTEES.md has it: its `handoff_ttl` and the next poll.
const A_DEAD_WAITER: Duration = Duration::from_secs(3);
/// A waiter whose connection is gone costs nothing, so less than the `handoff_ttl`.
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);

/// Channels that somebody listens to.
fn listeners(server: &RedisServer) -> usize {
    let Reply::Array(channels) = server.command(&["PUBSUB", "CHANNELS", "tenure:wake:*"]) else { return 0 };
    channels.len()
}

/// They die at any point: before they queue, while they wait, served and not yet there, and in the middle of a turn.
#[test]
fn clients_in_python_that_are_killed_harm_nobody() {
    const KILLED: usize = 6;
    let (place, server) = (Place::new(), RedisServer::start());
    let (counter, url) = (Counter::create(&place.path("")), server.url());
    let start = || theirs_with(&place, &url, "count", &[("TTL", "5")]);
    let visits = || place.read("log").lines().filter(|line| line.starts_with("enter wire.")).count();
    let mut theirs: Vec<Running> = (0..THEIRS).map(|_| start()).collect();
    let turns = std::thread::scope(|scope| {
        let ours: Vec<_> = (0..OURS).map(|_| scope.spawn(|| our_turns(&WIRE, &place, &url, "x"))).collect();
        let enough = Enough(place.path(""));
        for next in 0..KILLED {
            let before = visits();
            wait_for("visits in Python", || visits() > before + 4);
            theirs[next % THEIRS].0.kill();
            theirs[next % THEIRS] = start();
        }
        drop(enough);
        ours.into_iter().map(|ours| ours.join().unwrap()).sum::<u64>()
    });
    for side in theirs {
        let ended = side.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let left = counter.check_with_killed(KILLED.try_into().unwrap()).unwrap_or_else(|damage| panic!("{damage}"));
    assert!(turns > 0 && left > turns, "{turns} turns of ours, {left} of all");
}

/// The server knows that nobody listens, and serves the next.
#[test]
fn a_waiter_in_python_that_is_killed_costs_those_behind_it_nothing() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    std::fs::remove_file(place.path("held")).unwrap();
    let mut first = queued(&server, || WIRE.start(&place, &server.url(), "hold"));
    let behind = queued(&server, || Running::start(&mut ours(&place, &[], &server.url(), "echo held > held; cat")));
    first.0.kill();
    wait_for("the end of its subscription", || listeners(&server) == 1);
    let released = Instant::now();
    release(holder);
    place.line("held");
    assert!(released.elapsed() < HANDOFF_TTL, "took {:?}", released.elapsed());
    release(behind);
}

/// It is served and does not come. When it goes on, its entry has lapsed: it queues anew.
#[test]
fn a_waiter_in_python_that_stands_still_loses_its_turn_and_no_more() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    std::fs::remove_file(place.path("held")).unwrap();
    let mut first = queued(&server, || theirs_with(&place, &server.url(), "turn", &[("TURN", "first")]));
    let behind =
        queued(&server, || Running::start(&mut ours(&place, &[], &server.url(), "echo behind >> order; echo held > held; cat")));
    first.signal(Signal::SIGSTOP);
    wait_for("its stop", || crate::common::is_stopped(first.pid()));
    let released = Instant::now();
    release(holder);
    place.line("held");
    let took = released.elapsed();
    assert!(took < A_DEAD_WAITER + Duration::from_secs(2), "took {took:?}");
    first.signal(Signal::SIGCONT);
    wait_for("it to queue anew", || waiters(&server) == 1);
    release(behind);
    assert_eq!(first.status().code(), Some(0));
    let order = place.read("order");
    let turns: Vec<_> = order.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(turns, ["behind", "first"], "{order}");
}

/// Others have had the name meanwhile. It does not release what is theirs.
#[test]
fn a_holder_in_python_that_stood_still_knows_that_it_has_lost() {
    let (place, server) = (Place::new(), RedisServer::start());
    let mut theirs = theirs_with(&place, &server.url(), "hold", &[("TTL", "1.2")]);
    place.line("held");
    std::fs::remove_file(place.path("held")).unwrap();
    theirs.signal(Signal::SIGSTOP);
    let holder = ours_holds(&place, &[], &server);
    theirs.signal(Signal::SIGCONT);
    drop(theirs.0.stdin.take());
    let ended = theirs.end();
    assert!(ended.code == 79 && ended.out.contains("lost"), "{ended:?}");
    assert_eq!(server.command(&["EXISTS", "x"]), 1);
    release(holder);
}

/// Its queue entry is dropped, and not left to lapse: interrupted, or because its time is over.
#[test]
fn a_wait_in_python_that_ends_leaves_nothing() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    let waiter = queued(&server, || WIRE.start(&place, &server.url(), "hold"));
    waiter.signal(Signal::SIGINT);
    let ended = waiter.end();
    assert!(ended.code == 130 && ended.err.contains("KeyboardInterrupt"), "{ended:?}");
    assert_eq!(waiters(&server), 0);
    let late = queued(&server, || theirs_with(&place, &server.url(), "turn", &[("TURN", "late"), ("WAIT", "1.5")]));
    let ended = late.end();
    assert_eq!((ended.code, waiters(&server)), (75, 0), "{ended:?}");
    release(holder);
    assert!(!place.path("order").exists() && server.command(&["EXISTS", "x"]) == 0);
}

/// Anybody who may publish may do that. The client asks, and is refused.
#[test]
fn a_forged_push_lets_nobody_in() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    std::fs::remove_file(place.path("held")).unwrap();
    let waiter = queued(&server, || WIRE.start(&place, &server.url(), "hold"));
    for _ in 0..3 {
        let (owner, before) = entry(&server).unwrap();
        let channel = before.rsplit(' ').next().unwrap();
        let forged = format!("9007199254740991:1500 {owner}");
        assert_eq!(server.command(&["PUBLISH", channel, &forged]), 1);
        wait_for("a question", || entry(&server).is_some_and(|(_, now)| now != before));
    }
    assert!(!place.path("held").exists());
    release(holder);
    place.line("held");
    release(waiter);
}

/// A turn of the client in Python through `proxy`, behind a holder of ours if there is to be `one_before`.
fn turn(place: &Place, server: &RedisServer, proxy: &Proxy, one_before: bool, ttl: &str) -> Ended {
    let start = || theirs_with(place, &proxy.url(), "turn", &[("TURN", "theirs"), ("TTL", ttl)]);
    if !one_before {
        return start().end();
    }
    let holder = ours_holds(place, &[], server);
    std::fs::remove_file(place.path("held")).unwrap();
    let waiter = queued(server, start);
    release(holder);
    waiter.end()
}

/// Checks that each of so many turns was had once, and that nothing is left.
fn check_turns(place: &Place, server: &RedisServer, turns: usize) {
    let order = place.read("order");
    let fences: Vec<u64> = order.lines().map(|line| line.strip_prefix("theirs ").unwrap().parse().unwrap()).collect();
    assert!(fences.len() == turns && fences.windows(2).all(|pair| pair[0] < pair[1]), "{turns} turns: {order}");
    assert_eq!(server.command(&["EXISTS", "x", QUEUE, ENTRIES]), 0, "after {turns} turns");
}

/// Each command in turn is executed, and then its reply never comes or its connection ends.
#[test]
fn the_client_in_python_outlives_the_loss_of_any_reply() {
    for one_before in [false, true] {
        // A call waits for a sixth of the ttl at most. What is taken for nobody stands for all of it.
        for (lose, ttl) in [(Proxy::cut_after as fn(&Proxy, u64), "60"), (Proxy::swallow_reply, "1.2")] {
            let (place, server) = (Place::new(), RedisServer::start());
            let mut turns = 0;
            loop {
                let proxy = Proxy::start(server.addr());
                let k = turns + 1;
                lose(&proxy, k);
                let began = Instant::now();
                let ended = turn(&place, &server, &proxy, one_before, ttl);
                // One that stands still for its short ttl loses what it has.
                assert!([0, 69, 79].contains(&ended.code), "without reply {k}: {ended:?}");
                assert!(began.elapsed() < Duration::from_secs(30), "without reply {k}: {:?}", began.elapsed());
                turns += 1;
                check_turns(&place, &server, usize::try_from(turns).unwrap());
                if proxy.commands() < k {
                    break;
                }
            }
            assert!(turns > if one_before { 10 } else { 5 }, "{turns} turns");
        }
    }
}

/// Each question in turn is on its way for longer than the client lives, and would be executed then. But the client has had
/// the server end the connection.
#[test]
fn no_command_of_the_client_in_python_runs_late() {
    let clients = |server: &RedisServer| server.command(&["CLIENT", "LIST"]).text().lines().count();
    for one_before in [false, true] {
        let (place, server) = (Place::new(), RedisServer::start());
        let alone = clients(&server);
        // The first turn has the server learn the scripts.
        let mut turns = 1;
        assert_eq!(turn(&place, &server, &Proxy::start(server.addr()), one_before, "1.2").code, 0);
        let mut k = 0;
        loop {
            let proxy = Proxy::start(server.addr());
            k += 1;
            proxy.hold_request(k, PATIENCE);
            let ended = turn(&place, &server, &proxy, one_before, "1.2");
            assert!([0, 69, 79].contains(&ended.code), "request {k}: {ended:?}");
            turns += 1;
            let index = usize::try_from(k).unwrap() - 1;
            let Some(held) = proxy.log().get(index).cloned() else { break };
            if held == "EVALSHA" {
                wait_for("the end of its connection", || clients(&server) == alone);
            }
            proxy.heal();
            wait_for("the end of all its connections", || clients(&server) == alone);
            check_turns(&place, &server, turns);
        }
        assert!(k > if one_before { 8 } else { 5 }, "{k} requests");
    }
}

/// The client knows by its own clock, without an answer, while the name is still taken at the server.
#[test]
fn the_client_in_python_notices_a_loss_before_the_lease_ends() {
    let (place, server) = (Place::new(), RedisServer::start());
    let proxy = Proxy::start(server.addr());
    let side = theirs_with(&place, &proxy.url(), "watch", &[("TTL", "30")]);
    place.line("held");
    proxy.black_hole();
    place.line("lost");
    let left = server.command(&["PTTL", "x"]).int();
    assert!(left > 0, "the lease had ended");
    proxy.heal();
    let ended = side.end();
    assert_eq!(ended.code, 79, "{ended:?}");
}
