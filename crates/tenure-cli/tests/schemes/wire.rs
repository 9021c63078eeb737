//! The command beside the client in Python that was made from `docs/wire.md`: one key, one queue, one counter.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ended, PATIENCE, Place, Running, wait_for};
use crate::sides::{Library, beside, compare, interpreter, one_at_a_time, python, take_turns};
use nix::sys::signal::Signal;
use tenure_testkit::{Proxy, RedisServer, Reply, Spawned};

const WIRE: Library = Library { name: "wire", key: "x", program: python, tells_loss: true };

/// The keys of `x`, as the page has them.
const QUEUE: &str = "{BJN@}:q:x";
const ENTRIES: &str = "{BJN@}:p:x";

/// The cost of a waiter that stands still, as GUARANTEES.md has it: its `handoff_ttl` and the next poll.
const A_DEAD_WAITER: Duration = Duration::from_secs(3);
/// A waiter whose connection is gone costs nothing, so less than the `handoff_ttl`.
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);
/// More than a wake-up takes on a machine that is busy, and less than it takes to the next heartbeat.
const A_WAKE_UP: Duration = Duration::from_millis(700);

fn ours(place: &Place, flags: &[&str], url: &str, script: &str) -> Command {
    let mut command = place.tenure(&[&["run", "--store", url], flags, &["x", "--", "sh", "-c", script]].concat());
    command.stdin(Stdio::piped());
    command
}

/// One of ours that holds, until its input ends.
fn ours_holds(place: &Place, flags: &[&str], server: &RedisServer) -> Running {
    let running = Running::start(&mut ours(place, flags, &server.url(), "echo held > held; cat"));
    place.line("held");
    running
}

fn waiters(server: &RedisServer) -> i64 {
    server.command(&["ZCARD", QUEUE]).int()
}

/// Channels that somebody listens to.
fn listeners(server: &RedisServer) -> usize {
    let Reply::Array(channels) = server.command(&["PUBSUB", "CHANNELS", "tenure:wake:*"]) else { return 0 };
    channels.len()
}

/// The only queue entry: its owner, and what stands of it.
fn entry(server: &RedisServer) -> Option<(String, String)> {
    match server.command(&["HGETALL", ENTRIES]) {
        Reply::Array(parts) if parts.len() == 2 => Some((parts[0].text(), parts[1].text())),
        _ => None,
    }
}

/// Begins a wait, and returns when it has its queue entry.
fn queued(server: &RedisServer, begin: impl FnOnce() -> Running) -> Running {
    let before = waiters(server);
    let mut waiter = begin();
    wait_for("a queue entry", || waiters(server) > before || waiter.0.try_wait().unwrap().is_some());
    assert!(waiters(server) > before, "{:?}", waiter.end());
    waiter
}

/// Ends the hold of a process.
fn release(mut holder: Running) {
    drop(holder.0.stdin.take());
    let ended = holder.end();
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn the_client_in_python_and_tenure_take_turns() {
    take_turns(&WIRE, "");
}

#[test]
fn the_client_in_python_and_tenure_refuse_each_other() {
    one_at_a_time(&WIRE, "");
}

/// Damage that the turns would show.
#[test]
fn two_keys_of_the_native_layout_are_no_lock() {
    let damage = beside(&WIRE, "prefix=other:").unwrap_err().to_string();
    assert!(damage.contains("while tenure.") || damage.contains("while wire."), "{damage}");
}

/// Waiters of both sides stand in one queue, and each grant has a larger fence than the one before.
#[test]
fn waiters_of_both_sides_are_served_in_the_order_in_which_they_queued() {
    for (theirs_first, their_turns) in
        [(true, [true, false, false, true, true, false]), (false, [false, true, false, true, true, false])]
    {
        let (place, server) = (Place::new(), RedisServer::start());
        let holder = if theirs_first { WIRE.holds(&place, &server) } else { ours_holds(&place, &[], &server) };
        let mut waiting = Vec::new();
        for (turn, theirs) in their_turns.into_iter().enumerate() {
            let turn = turn.to_string();
            waiting.push(queued(&server, || {
                if theirs {
                    return WIRE.start_with(&place, &server.url(), "turn", |python| {
                        python.env("TURN", &turn);
                    });
                }
                Running::start(ours(&place, &[], &server.url(), "echo \"$TURN $TENURE_FENCE\" >> order").env("TURN", &turn))
            }));
        }
        assert_eq!(waiters(&server), 6);
        release(holder);
        for waiter in waiting {
            let ended = waiter.end();
            assert_eq!(ended.code, 0, "{ended:?}");
        }
        let order = place.read("order");
        let (turns, fences): (Vec<usize>, Vec<u64>) = order
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(turn, fence)| (turn.parse::<usize>().unwrap(), fence.parse::<u64>().unwrap()))
            .unzip();
        assert_eq!(turns, [0, 1, 2, 3, 4, 5], "{order}");
        assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{order}");
        assert_eq!(server.command(&["EXISTS", "x", QUEUE, ENTRIES]), 0);
    }
}

/// A waiter asks about once a second by itself. A release that comes right after it has asked is answered at once.
#[test]
fn a_release_of_either_side_wakes_the_first_waiter_of_the_other() {
    let (place, server) = (Place::new(), RedisServer::start());
    let mut holder = WIRE.holds(&place, &server);
    let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let theirs = round % 2 == 1;
        std::fs::remove_file(place.path("held")).unwrap();
        let waiter = queued(&server, || {
            if theirs {
                return WIRE.start(&place, &server.url(), "hold");
            }
            Running::start(&mut ours(&place, &[], &server.url(), "echo held > held; cat"))
        });
        let (_, before) = entry(&server).unwrap();
        wait_for("a heartbeat", || entry(&server).is_some_and(|(_, now)| now != before));
        let released = Instant::now();
        drop(holder.0.stdin.take());
        place.line("held");
        if theirs { &mut of_theirs } else { &mut of_ours }.push(released.elapsed());
        assert_eq!(holder.end().code, 0);
        holder = waiter;
    }
    release(holder);
    println!("ours after {of_ours:?}, theirs after {of_theirs:?}");
    for mut took in [of_ours, of_theirs] {
        took.sort();
        assert!(took[2] < A_WAKE_UP, "{took:?}");
    }
}

/// Either side waits for the rest of the ttl, and then until its next poll, a second later at most.
#[test]
fn a_holder_that_is_killed_costs_the_other_side_its_ttl() {
    for theirs in [true, false] {
        let (place, server) = (Place::new(), RedisServer::start());
        let mut holder = if theirs {
            let side = WIRE.start_with(&place, &server.url(), "hold", |python| {
                python.env("TTL", "3");
            });
            place.line("held");
            side
        } else {
            ours_holds(&place, &["--ttl", "3s"], &server)
        };
        std::fs::remove_file(place.path("held")).unwrap();
        let waiter = queued(&server, || {
            if theirs {
                return Running::start(&mut ours(&place, &[], &server.url(), "echo held > held; cat"));
            }
            WIRE.start(&place, &server.url(), "hold")
        });
        let left = server.command(&["PTTL", "x"]).int();
        holder.0.kill();
        let killed = Instant::now();
        place.line("held");
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(3 + 1 + 2), "theirs: {theirs}, {took:?}, of which {left} ms were left");
        release(waiter);
    }
}

/// The server knows that nobody listens, and serves the next.
#[test]
fn a_waiter_that_is_killed_costs_those_behind_it_nothing() {
    for theirs in [true, false] {
        let (place, server) = (Place::new(), RedisServer::start());
        let holder = ours_holds(&place, &[], &server);
        std::fs::remove_file(place.path("held")).unwrap();
        let start = |theirs: bool| {
            if theirs {
                return WIRE.start(&place, &server.url(), "hold");
            }
            Running::start(&mut ours(&place, &[], &server.url(), "echo held > held; cat"))
        };
        let mut first = queued(&server, || start(theirs));
        let behind = queued(&server, || start(!theirs));
        first.0.kill();
        wait_for("the end of its subscription", || listeners(&server) == 1);
        let released = Instant::now();
        release(holder);
        place.line("held");
        let took = released.elapsed();
        assert!(took < HANDOFF_TTL, "theirs: {theirs}, {took:?}");
        release(behind);
    }
}

/// It is served and does not come. When it goes on, its entry has lapsed: it queues anew.
#[test]
fn a_waiter_in_python_that_stands_still_loses_its_turn_and_no_more() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    std::fs::remove_file(place.path("held")).unwrap();
    let mut first = queued(&server, || {
        WIRE.start_with(&place, &server.url(), "turn", |python| {
            python.env("TURN", "first");
        })
    });
    let behind =
        queued(&server, || Running::start(&mut ours(&place, &[], &server.url(), "echo behind >> order; echo held > held; cat")));
    first.signal(Signal::SIGSTOP);
    wait_for("its stop", || crate::common::is_stopped(first.pid()));
    let released = Instant::now();
    release(holder);
    place.line("held");
    let took = released.elapsed();
    assert!(took < A_DEAD_WAITER + Duration::from_secs(2), "{took:?}");
    first.signal(Signal::SIGCONT);
    wait_for("it to queue anew", || waiters(&server) == 1);
    release(behind);
    assert_eq!(first.status().code(), Some(0));
    let order = place.read("order");
    let turns: Vec<_> = order.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(turns, ["behind", "first"], "{order}");
}

#[test]
fn a_holder_in_python_keeps_the_name_for_longer_than_its_ttl() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = WIRE.start_with(&place, &server.url(), "hold", |python| {
        python.env("TTL", "1.2");
    });
    place.line("held");
    let left = || server.command(&["PTTL", "x"]).int();
    let (mut before, mut renewals) = (left(), 0);
    // Each comes after a third of the ttl.
    wait_for("renewals", || {
        let now = left();
        renewals += i32::from(now > before);
        before = now;
        renewals == 4
    });
    let refused = place.output(&["run", "-n", "--store", &server.url(), "x", "--", "touch", "ran"]);
    assert!(refused.code == 75 && !place.path("ran").exists(), "{refused:?}");
    release(holder);
}

/// Others have had the name meanwhile. It does not release what is theirs.
#[test]
fn a_holder_in_python_that_stood_still_knows_that_it_has_lost() {
    let (place, server) = (Place::new(), RedisServer::start());
    let mut theirs = WIRE.start_with(&place, &server.url(), "hold", |python| {
        python.env("TTL", "1.2");
    });
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

/// Its queue entry is dropped, and not left to lapse.
#[test]
fn a_wait_in_python_that_is_interrupted_leaves_nothing() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    let waiter = queued(&server, || WIRE.start(&place, &server.url(), "hold"));
    waiter.signal(Signal::SIGINT);
    let ended = waiter.end();
    assert!(ended.code == 130 && ended.err.contains("KeyboardInterrupt"), "{ended:?}");
    assert_eq!(waiters(&server), 0);
    release(holder);
    assert_eq!(server.command(&["EXISTS", "x"]), 0);
}

#[test]
fn a_wait_in_python_that_ends_by_its_time_leaves_nothing() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    let waiter = queued(&server, || {
        WIRE.start_with(&place, &server.url(), "turn", |python| {
            python.env("TURN", "late").env("WAIT", "1.5");
        })
    });
    let ended = waiter.end();
    assert_eq!((ended.code, waiters(&server)), (75, 0), "{ended:?}");
    release(holder);
    assert!(!place.path("order").exists() && server.command(&["EXISTS", "x"]) == 0);
}

/// It says so in its queue entry, is served in its turn, and finds out by asking.
#[test]
fn a_client_in_python_that_may_not_subscribe_polls() {
    let (place, server) = (Place::new(), RedisServer::start());
    assert_eq!(server.command(&["ACL", "SETUSER", "deaf", "on", ">pw", "~*", "&*", "+@all", "-subscribe"]).text(), "OK");
    let url = server.url().replace("redis://", "redis://deaf:pw@");
    let holder = ours_holds(&place, &[], &server);
    std::fs::remove_file(place.path("held")).unwrap();
    let waiter = queued(&server, || WIRE.start(&place, &url, "hold"));
    let (_, kept) = entry(&server).unwrap();
    assert!(kept.ends_with(" 1 1 -"), "{kept}");
    release(holder);
    place.line("held");
    release(waiter);
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
    let start = || {
        WIRE.start_with(place, &proxy.url(), "turn", |python| {
            python.env("TURN", "theirs").env("TTL", ttl);
        })
    };
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
                assert!([0, 69].contains(&ended.code), "without reply {k}: {ended:?}");
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
            assert!([0, 69].contains(&ended.code), "request {k}: {ended:?}");
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
    let side = WIRE.start_with(&place, &proxy.url(), "watch", |python| {
        python.env("TTL", "8");
    });
    place.line("held");
    proxy.black_hole();
    place.line("lost");
    let left = server.command(&["PTTL", "x"]).int();
    assert!(left > 0, "the lease had ended");
    proxy.heal();
    let ended = side.end();
    assert_eq!(ended.code, 79, "{ended:?}");
}

/// Prints texts and keys as the client makes them, in rows of the page. A test of tenure-redis compares the page with ours.
const ROWS: &str = "
import sys
from hashlib import sha1
sys.path.insert(0, sys.argv[1])
from tenure_client import PARTS, slot, tag_of, text_of
for script in PARTS:
    print(f'| `{script}` | `{sha1(text_of(script)).hexdigest()}` |')
for row in sys.argv[2:]:
    prefix, name = (cell.strip().strip('`') for cell in row.split('|')[1:3])
    key = ((prefix if prefix != 'none' else '') + name).encode()
    queue = (prefix if prefix != 'none' else '') + '{' + tag_of(key).decode() + '}:q:' + name
    print('|'.join(row.split('|')[:3]) + f'| {slot(key)} | `{queue}` |')
";

#[test]
fn the_client_in_python_is_short_and_does_what_the_page_says() {
    let examples = compare("../examples/python");
    let client = std::fs::read_to_string(examples.join("tenure_client.py")).unwrap();
    let lines = client.lines().count();
    assert!((100..=300).contains(&lines), "{lines} lines");
    let page = std::fs::read_to_string(compare("../docs/wire.md")).unwrap();
    let (_, rows) = page.split_once("| prefix | name | slot | queue |\n|---|---|---|---|\n").unwrap();
    let rows: Vec<&str> = rows.lines().take_while(|row| row.starts_with('|')).collect();
    let made = Spawned::output(interpreter().args(["-c", ROWS]).arg(&examples).args(&rows)).unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    assert_eq!(made.lines().count(), 3 + rows.len(), "{made}");
    for row in made.lines() {
        assert!(page.contains(&format!("{row}\n")), "docs/wire.md does not have {row}");
    }
}
