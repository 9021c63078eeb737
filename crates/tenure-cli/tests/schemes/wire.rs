//! The command beside the client in Python that was made from `docs/wire.md`: one key, one queue, one counter.

mod faults;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Place, Running, wait_for};
use crate::sides::{Library, beside, compare, interpreter, library, one_at_a_time, python, take_turns};
use tenure_testkit::{RedisServer, Reply, Spawned};

const WIRE: Library = library("wire", "", python);

/// The keys of `x`, as the page has them.
const QUEUE: &str = "{BJN@}:q:x";
const ENTRIES: &str = "{BJN@}:p:x";

/// More than a wake-up takes on a machine that is busy, and less than it takes to the next heartbeat.
const A_WAKE_UP: Duration = Duration::from_millis(700);
/// An entry of a waiter lives for so long without a heartbeat.
const ENTRY: Duration = Duration::from_millis(2_500);

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

/// The owners in the queue, in order.
fn line(server: &RedisServer) -> Vec<String> {
    let Reply::Array(owners) = server.command(&["ZRANGE", QUEUE, "0", "-1"]) else { panic!("no queue") };
    owners.into_iter().map(|owner| owner.text()).collect()
}

fn waiters(server: &RedisServer) -> i64 {
    server.command(&["ZCARD", QUEUE]).int()
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

/// A process of theirs, with these variables.
fn theirs_with(place: &Place, url: &str, what: &str, variables: &[(&str, &str)]) -> Running {
    WIRE.start_with(place, url, what, |python| {
        python.envs(variables.iter().copied());
    })
}

/// Ends the hold of a process.
fn release(mut holder: Running) {
    drop(holder.0.stdin.take());
    let ended = holder.end();
    // The client in Python says so if its release has no answer in time.
    assert!(ended.code == 0 || (ended.code == 69 && ended.out.starts_with("unknown: ")), "{ended:?}");
}

#[test]
fn the_client_in_python_and_tenure_exclude_each_other() {
    take_turns(&WIRE, "");
    one_at_a_time(&WIRE, "");
    // Damage that turns would show.
    let damage = beside(&WIRE, "prefix=other:").unwrap_err().to_string();
    assert!(damage.contains("while tenure.") || damage.contains("while wire."), "{damage}");
}

/// Waiters of both sides stand in one queue, and each grant has a larger fence than the one before.
#[test]
fn waiters_of_both_sides_are_served_in_the_order_in_which_they_queued() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = ours_holds(&place, &[], &server);
    let (mut waiting, mut came, began) = (Vec::new(), Vec::new(), Instant::now());
    for (turn, theirs) in [true, false, false, true, true, false].into_iter().enumerate() {
        let turn = turn.to_string();
        waiting.push(queued(&server, || {
            if theirs {
                return theirs_with(&place, &server.url(), "turn", &[("TURN", &turn)]);
            }
            Running::start(ours(&place, &[], &server.url(), "echo \"$TURN $TENURE_FENCE\" >> order").env("TURN", &turn))
        }));
        let now = line(&server);
        came.extend(now.iter().find(|owner| !came.contains(*owner)).cloned());
    }
    // A waiter that has not asked for the life of its entry has lost its place, and queues anew.
    let (now, took) = (line(&server), began.elapsed());
    assert!(now == came || took < ENTRY, "the queue has changed, and all were in it only after {took:?}");
    assert_eq!((&now, now.len()), (&came, 6), "the queue has changed");
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
    assert!(fences.is_sorted_by(|a, b| a < b), "{order}");
    assert_eq!(server.command(&["EXISTS", "x", QUEUE, ENTRIES]), 0);
}

/// A waiter asks about once a second by itself. A release that comes right after it has asked is answered at once.
#[test]
fn a_release_of_either_side_wakes_the_first_waiter_of_the_other() {
    let (place, server) = (Place::new(), RedisServer::start());
    let mut holder = WIRE.holds(&place, &server.url());
    let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
    for round in 0..6 {
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
    for mut took in [of_ours, of_theirs] {
        took.sort();
        assert!(took[1] < A_WAKE_UP, "half of the turns took {:?}", took[1]);
    }
}

#[test]
fn a_holder_in_python_keeps_the_name_for_longer_than_its_ttl() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = theirs_with(&place, &server.url(), "hold", &[("TTL", "3")]);
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
