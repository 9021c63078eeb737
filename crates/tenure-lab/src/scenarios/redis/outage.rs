//! A server that is gone, stopped, busy, or serves nobody for a while, and keeps its data.

use std::time::{Duration, Instant};

use tenure_testkit::{redis, wait_until};

use super::fault::Fault;
use crate::Item;
use crate::item::Run;
use crate::scenarios::fixtures::{Redis, on_redis};
use crate::scenarios::scheme::{NATIVE, Scheme};
use crate::scenarios::stage::{A_MOMENT, DOOR, Heir, OPERATION, PATIENCE, SLACK, SOON, Stage, now, terms};

pub(super) fn items() -> Vec<Item> {
    [in_scheme(NATIVE), with_ttl(NATIVE), with_scripts(NATIVE), ours()].concat()
}

/// The rows of every scheme.
#[rustfmt::skip]
pub(super) fn in_scheme(on: Scheme) -> Vec<Item> {
    let of = on.rows();
    vec![
        of.holds("07-stopped-server", "the server is stopped, the acquisition is dropped, the server goes on",
            on.plain(stopped_before_acquire)),
        of.holds("10-killed-and-back", "kill -9 of a server that writes its log with every command, back before the deadline",
            on.kept(KILLED.for_a_moment())),
        of.holds("19-stopped-for-long", "the server is stopped for longer than the lease", on.plain(STOPPED.for_long())),
    ]
}

/// The rows of a scheme in which the server's clock ends a lease.
pub(super) fn with_ttl(on: Scheme) -> Vec<Item> {
    let of = on.rows();
    vec![
        of.holds("22-clock-back", "the server's clock jumps back, then the holder dies", on.clocked(clock_back)),
        of.fenced("21-clock-ahead", "the server's clock jumps ahead by a minute", on.clocked(clock_ahead)),
    ]
}

/// The row of a scheme whose renewals need no memory.
pub(super) fn with_scripts(on: Scheme) -> Vec<Item> {
    let of = on.rows();
    vec![of.holds("28-out-of-memory", "the server has no memory left and evicts nothing", on.plain(out_of_memory))]
}

/// The row of one whose renewals do.
pub(super) fn without_scripts(on: Scheme) -> Vec<Item> {
    let what = "the server has no memory left for longer than the lease, and nothing can be renewed";
    vec![on.rows().holds("28-out-of-memory", what, on.plain(NO_MEMORY.for_long()))]
}

/// The rows that would show no more in another scheme.
#[rustfmt::skip]
fn ours() -> Vec<Item> {
    let (on, of) = (NATIVE, NATIVE.rows());
    vec![
        of.holds("10-killed-for-long", "kill -9 of a server that writes its log with every command, back after the deadline",
            on.kept(KILLED.for_long())),
        of.holds("19-stopped-for-a-moment", "the server is stopped, and goes on before the deadline",
            on.plain(STOPPED.for_a_moment())),
        of.holds("20-writes-paused", "CLIENT PAUSE WRITE for longer than the validity", on.plain(WRITES_PAUSED.for_long())),
        of.holds("20-busy-for-a-moment", "a script that blocks the server is killed before the deadline",
            on.plain(busy_for_a_moment)),
        of.holds("30-scripts-flushed", "SCRIPT FLUSH, again and again", on.plain(scripts_flushed)),
        of.holds("31-takes-no-writes", "read-only, without its primary, and without replicas in turn", on.plain(takes_no_writes)),
        of.holds("31-cannot-save", "the server cannot save its data and takes no writes", on.plain(CANNOT_SAVE.for_a_moment())),
        of.holds("31-loading", "the server is back before the deadline, and loads its data for a while", slow_to_load()),
    ]
}

pub(crate) const KILLED: Fault =
    Fault { what: "kill -9", begin: |redis| redis.server.kill(), end: |redis| redis.server.restart() };

pub(crate) const STOPPED: Fault =
    Fault { what: "the server is stopped", begin: |redis| redis.server.stop(), end: |redis| redis.server.cont() };

pub(crate) const WRITES_PAUSED: Fault = Fault {
    what: "CLIENT PAUSE WRITE",
    begin: |redis| tell(redis, "CLIENT PAUSE 60000 WRITE"),
    end: |redis| tell(redis, "CLIENT UNPAUSE"),
};

pub(crate) const NO_MEMORY: Fault = Fault {
    what: "the server has no memory left and evicts nothing",
    begin: |redis| {
        tell(redis, "CONFIG SET maxmemory-policy noeviction");
        tell(redis, "CONFIG SET maxmemory 1");
    },
    end: |redis| tell(redis, "CONFIG SET maxmemory 0"),
};

pub(crate) const BUSY: Fault = Fault {
    what: "a script blocks the server",
    begin: |redis| {
        tell(redis, "CONFIG SET lua-time-limit 20");
        let mut loops = redis.server.connect().expect("the server answers");
        loops.send(&["EVAL", "while true do end", "0"]).expect("the server listens");
    },
    end: |redis| tell(redis, "SCRIPT KILL"),
};

pub(crate) const SCRIPTS_FLUSHED: Fault = Fault::once("SCRIPT FLUSH", |redis| tell(redis, "SCRIPT FLUSH"));

/// The server takes its time to come back.
pub(crate) const LOADING: Fault = Fault::once("the server is killed, and loads its data for a while", load);

/// The server cannot save: nothing is granted, and a holder goes on as long as its validity lasts.
pub(crate) const CANNOT_SAVE: Fault = Fault {
    what: "the server cannot save its data and takes no writes",
    begin: |redis| {
        std::fs::create_dir(redis.server.dir().join("dump.rdb")).expect("the server's directory can be written");
        assert!(redis.server.command(&["CONFIG", "SET", "save", "3600 1"]) == "OK");
        tell(redis, "BGSAVE");
        wait_until(PATIENCE, "the save to fail", || redis.server.cli("INFO persistence").contains("rdb_last_bgsave_status:err"));
    },
    end: |redis| tell(redis, "CONFIG SET stop-writes-on-bgsave-error no"),
};

pub(crate) const TAKES_NO_WRITES: [Fault; 3] = [
    Fault {
        what: "it is read-only",
        begin: |redis| tell(redis, "REPLICAOF 127.0.0.1 1"),
        end: |redis| tell(redis, "REPLICAOF NO ONE"),
    },
    Fault {
        what: "it has lost its primary",
        begin: |redis| {
            tell(redis, "CONFIG SET replica-serve-stale-data no");
            tell(redis, "REPLICAOF 127.0.0.1 1");
        },
        end: |redis| tell(redis, "REPLICAOF NO ONE"),
    },
    Fault {
        what: "it has too few replicas",
        begin: |redis| tell(redis, "CONFIG SET min-replicas-to-write 1"),
        end: |redis| tell(redis, "CONFIG SET min-replicas-to-write 0"),
    },
];

pub(crate) const CLOCK_BACK: Fault = Fault {
    what: "the server's clock jumps back by 2 s",
    begin: |redis| redis.server.shift_clock(-2_000),
    end: |redis| redis.server.shift_clock(0),
};

pub(crate) const CLOCK_AHEAD: Fault = Fault {
    what: "the server's clock jumps ahead by a minute",
    begin: |redis| redis.server.shift_clock(60_000),
    end: |redis| redis.server.shift_clock(0),
};

fn tell(redis: &Redis, line: &str) {
    redis.server.cli(line);
}

/// A stopped server executes what it was sent when it goes on, and the clean-up after it.
fn stopped_before_acquire(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    redis.server.stop();
    let takes = redis.scheme.takes;
    let (sent, answered) = (redis.proxy.commands() + takes, redis.proxy.replies() + takes);
    stage.fault("the server is stopped");
    let ghost = a.asks(DOOR, terms());
    redis.proxy.wait_for_commands(sent, PATIENCE);
    std::thread::sleep(Duration::from_millis(stage.rng.u64(0..200)));
    ghost.drops();
    redis.server.cont();
    stage.fault("it goes on");
    redis.proxy.wait_for_replies(answered, PATIENCE);
    a.settles();
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// A client that comes meanwhile gets an error: the server is busy.
fn busy_for_a_moment(stage: &mut Stage<'_>, redis: &Redis) {
    let c = stage.far();
    let begin = || {
        (BUSY.begin)(redis);
        c.asks(DOOR, terms().wait(Duration::ZERO)).failed("Unavailable");
    };
    stage.is_away_for_a_moment(begin, Some(&|| (BUSY.end)(redis)));
}

fn clock_back(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_set_back(Duration::from_secs(2), || (CLOCK_BACK.begin)(redis), &|| redis.clock_ahead());
}

/// The lease ends early. The holder is notified at the next renewal.
fn clock_ahead(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_taken_away(Heir::Waits, CLOCK_AHEAD.what, || (CLOCK_AHEAD.begin)(redis));
}

/// Nobody new is granted; renewal, release and hand-over work.
fn out_of_memory(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, c) = (stage.near(), stage.far(), stage.far());
    let first = a.takes(DOOR);
    first.works(&stage.register);
    stage.keeps = true;
    (NO_MEMORY.begin)(redis);
    let since = stage.fault(NO_MEMORY.what);
    // It cannot queue now. A waiter with an entry would get the name at once.
    let second = b.asks(DOOR, terms());
    c.asks("other", terms().wait(Duration::ZERO)).failed("Unavailable");
    first.renewed(since);
    first.renewed(now());
    let since = now();
    stage.expect(&first.releases(), "Released");
    stage.free_due(DOOR, SLACK);
    (NO_MEMORY.end)(redis);
    stage.fault("it has memory again");
    stage.grant_due_since(since, SOON + OPERATION);
    second.granted();
    stage.is_left(&second);
}

fn scripts_flushed(stage: &mut Stage<'_>, redis: &Redis) {
    let (.., first, second) = stage.begins();
    stage.keeps = true;
    for _ in 0..3 {
        stage.some_time();
        let unknown = redis.errors("NOSCRIPT");
        (SCRIPTS_FLUSHED.begin)(redis);
        let since = stage.fault("the server has forgotten its scripts");
        first.renewed(since);
        // That one may have been before it.
        wait_until(PATIENCE, "a script to be unknown", || redis.errors("NOSCRIPT") > unknown);
    }
    (SCRIPTS_FLUSHED.begin)(redis);
    stage.ends_well(&first, &second);
}

/// The server comes back, and takes its time for it.
fn load(redis: &Redis) {
    for key in 0..160 {
        redis.server.command(&["SET", &format!("other {key}"), "x"]);
    }
    let begun = Instant::now();
    redis.server.restart_with(&redis.server.snapshot());
    let (took, refused) = (begun.elapsed(), redis.errors("LOADING"));
    assert!(took > Duration::from_millis(500) && refused > 0, "it loaded within {took:?} and refused {refused} commands");
}

/// A server that takes a while for its data.
pub(crate) fn loads_slowly(how: redis::Builder) -> redis::Builder {
    how.arg("key-load-delay", "5000").arg("loading-process-events-interval-bytes", "1024")
}

/// It answers that it is loading.
fn slow_to_load() -> impl Fn(&str) -> Run {
    let row = |stage: &mut Stage<'_>, redis: &Redis| {
        stage.is_away_for_a_moment(|| load(redis), None);
    };
    on_redis(NATIVE, loads_slowly, row)
}

/// Each fault lasts for less than the validity, so nothing is lost. A client that comes meanwhile gets an error.
fn takes_no_writes(stage: &mut Stage<'_>, redis: &Redis) {
    let (.., first, second) = stage.begins();
    let c = stage.far();
    stage.keeps = true;
    for fault in TAKES_NO_WRITES {
        first.renewed(now());
        (fault.begin)(redis);
        stage.fault(fault.what);
        c.asks("other", terms().wait(Duration::ZERO)).failed("Unavailable");
        std::thread::sleep(Duration::from_millis(stage.rng.u64(A_MOMENT)));
        (fault.end)(redis);
        let since = stage.fault("it takes writes again");
        first.renewed(since);
    }
    stage.ends_well(&first, &second);
}
