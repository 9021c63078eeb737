//! Faults of a database, of the way to it, and of others who write to it.

use std::time::Duration;

use tenure_testkit::{PgBouncer, PostgresServer, SqlSession, wait_until};

use super::database::{Database, ENGINES, Engine, Own, POSTGRES};
use super::fixtures::Switch;
use super::rows::{Played, Rows};
use super::server::{self, On};
use super::stage::{BELIEF, DOOR, Heir, NEXT, OPERATION, PATIENCE, POLL, RENEWAL, SLACK, SOON, Stage, now, terms};
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    ENGINES.map(on_each).into_iter().chain([on_postgres()]).flatten().collect()
}

#[rustfmt::skip]
fn on_each(on: Engine) -> Vec<Item> {
    let of = on.rows();
    let shared = |row: On<Database>| -> Played { Box::new(on.shared(row)) };
    let own = |row: On<Database>| -> Played { Box::new(on.own(Own::Plain, row)) };
    let rows = vec![
        server::killed_and_back(of, &own),
        server::killed(of, &own),
        of.fenced("11-made-anew", "the table is dropped and made anew while a lock is held", on.shared(made_anew)),
        of.holds("18-sessions-ended", "an operator ends the sessions again and again", on.shared(sessions_ended)),
        of.holds("20-row-locked-for-a-moment", "a transaction of somebody else has the row of the name, not for long",
            on.shared(row_locked_for_a_moment)),
        of.holds("20-row-locked-for-long", "a transaction of somebody else has the row for longer than the validity",
            on.shared(row_locked_for_long)),
        of.holds("20-aborted", "a transaction of somebody else removes the row, and is undone", on.shared(aborted)),
        of.fenced("21-clock-ahead", "the server's clock jumps ahead by a minute", on.own(Own::Clock, clock_ahead)),
        of.holds("22-clock-back", "the server's clock jumps back, then the holder dies", on.own(Own::Clock, clock_back)),
        of.fenced("29-deleted-row", "somebody deletes the name from the table", on.shared(row_deleted)),
        of.fenced("29-emptied", "somebody deletes all names from the table", on.shared(emptied)),
        of.holds("31-damaged", "the table is not there, for longer than the validity", on.shared(damaged)),
        of.holds("31-read-only-for-a-moment", "the server becomes read-only, not for long", on.own(Own::Plain, read_only_for_a_moment)),
        of.holds("31-read-only-for-long", "the server becomes read-only for longer than the validity",
            on.own(Own::Plain, read_only_for_long)),
        of.holds("50-deadlock", "transactions of somebody else ask for the rows of a renewal one by one, in both orders", on.own(Own::Plain, deadlock)),
        of.holds("51-two-names", "one of two names of a process cannot be renewed for longer than the validity",
            on.shared(two_names)),
    ];
    [rows, server::links(of, &shared), server::stops(of, &own)].concat()
}

/// The rows that need what the tests have of PostgreSQL alone.
#[rustfmt::skip]
fn on_postgres() -> Vec<Item> {
    let (on, of): (_, Rows) = (POSTGRES, POSTGRES.rows());
    vec![
        of.fenced("13-replica-promoted", "a replica that has not the grant takes over", on.own(Own::Plain, replica_promoted)),
        of.holds("13-read-only-replica", "clients are led to a replica, for longer than the validity",
            on.own(Own::Plain, led_to_replica)),
        of.holds("52-pool", "a pool lends one session to all, with the settings of a stranger in it", on.shared(pool)),
    ]
}

fn read_only_for_a_moment(stage: &mut Stage<'_>, on: &Database) {
    let [begin, end] = on.engine.read_only;
    stage.is_away_for_a_moment(|| drop(on.run(begin)), Some(&|| drop(on.run(end))));
}

fn read_only_for_long(stage: &mut Stage<'_>, on: &Database) {
    let [begin, end] = on.engine.read_only;
    stage.is_away_for_long(|| drop(on.run(begin)), || drop(on.run(end)));
}

fn made_anew(stage: &mut Stage<'_>, on: &Database) {
    stage.is_taken_away(Heir::Comes, "the table is made anew", || {
        on.run("DROP TABLE $t");
        on.make_table();
    });
}

fn row_deleted(stage: &mut Stage<'_>, on: &Database) {
    stage.is_taken_away(Heir::Waits, "the row of the door is deleted", || drop(on.run("DELETE FROM $t WHERE name = 'door'")));
}

fn emptied(stage: &mut Stage<'_>, on: &Database) {
    stage.is_taken_away(Heir::Comes, "all names are deleted", || drop(on.run("DELETE FROM $t WHERE name <> ''")));
}

fn sessions_ended(stage: &mut Stage<'_>, on: &Database) {
    stage.is_reset(&|| on.proxy.accepted(), |stage| {
        stage.some_time();
        on.end_sessions();
        stage.fault("the sessions are ended");
    });
}

/// Begins a transaction of somebody else.
fn transaction(on: &Database, statement: &str) -> SqlSession {
    let mut stranger = on.server.session();
    stranger.run(&on.with_table(&format!("BEGIN; {statement};")));
    stranger
}

fn locks(name: &str) -> String {
    format!("SELECT version FROM $t WHERE name = '{name}' FOR UPDATE")
}

fn row_locked_for_a_moment(stage: &mut Stage<'_>, on: &Database) {
    let stranger = std::cell::RefCell::new(None);
    let undo = || drop(stranger.take().map(|mut stranger: SqlSession| stranger.run("ROLLBACK;")));
    stage.is_away_for_a_moment(|| drop(stranger.replace(Some(transaction(on, &locks(DOOR))))), Some(&undo));
}

fn row_locked_for_long(stage: &mut Stage<'_>, on: &Database) {
    let stranger = std::cell::RefCell::new(None);
    let undo = || drop(stranger.take().map(|mut stranger: SqlSession| stranger.run("ROLLBACK;")));
    stage.is_away_for_long(|| drop(stranger.replace(Some(transaction(on, &locks(DOOR))))), undo);
}

/// Nobody sees what was undone.
fn aborted(stage: &mut Stage<'_>, on: &Database) {
    let (.., first, second) = stage.begins();
    stage.keeps = true;
    for _ in 0..3 {
        stage.some_time();
        let mut stranger = transaction(on, "DELETE FROM $t WHERE name = 'door'");
        stage.fault("a transaction removes the row");
        std::thread::sleep(Duration::from_millis(stage.rng.u64(0..300)));
        stranger.run("ROLLBACK;");
        let since = stage.fault("it is undone");
        first.renewed(since);
        stage.holds_true(!second.is_granted(), "the door was granted to another");
    }
    stage.ends_well(&first, &second);
}

/// The lease ends early. The holder is notified at the next renewal.
fn clock_ahead(stage: &mut Stage<'_>, on: &Database) {
    stage.is_taken_away(Heir::Waits, "the server's clock is a minute ahead", || on.server.shift_clock(60_000));
}

fn clock_back(stage: &mut Stage<'_>, on: &Database) {
    stage.is_set_back(Duration::from_secs(2), || on.server.shift_clock(-2_000), &|| on.clock_ahead());
}

/// Clients get an error that says how to make the table. The holder is notified when its validity has ended.
fn damaged(stage: &mut Stage<'_>, on: &Database) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    on.run("ALTER TABLE $t RENAME TO $t_other");
    stage.fault("the table is gone");
    stage.loss_due(BELIEF);
    let told = second.failed("Damaged");
    stage.holds_true(told.contains("CREATE TABLE") && told.contains("; "), &told);
    let lost = first.lost();
    stage.holds_true(first.last_step() <= Some(lost), "the guard let a step go on");
    on.run("ALTER TABLE $t_other RENAME TO $t");
    stage.fault("the table is back");
    let third = b.asks(DOOR, terms());
    stage.grant_due(NEXT);
    third.granted();
    stage.is_left(&third);
}

/// The renewals of both names are one statement. Where that waits for the second row while it has the first, there are deadlocks,
/// and who is to give way is up to the server. Elsewhere it passes over rows that are locked.
fn deadlock(stage: &mut Stage<'_>, on: &Database) {
    const GATE: &str = "gate";
    let a = stage.near();
    let (door, gate) = (a.takes(DOOR), a.takes(GATE));
    door.works(&stage.register);
    stage.keeps = true;
    let before = on.server.deadlocks();
    for (first, second) in [(DOOR, GATE), (GATE, DOOR), (DOOR, GATE), (GATE, DOOR)] {
        door.renewed(now());
        let mut stranger = transaction(on, &locks(first));
        stage.fault(format!("somebody has the row of the {first}"));
        wait_until(PATIENCE, "a renewal to wait for it", || on.waiting() > 0);
        let _ = stranger.try_run(&on.with_table(&format!("{}; ROLLBACK;", locks(second))));
        let since = stage.fault(format!("and has asked for that of the {second}"));
        door.renewed(since);
        gate.renewed(since);
    }
    let deadlocks = on.server.deadlocks() - before;
    stage.holds_true((deadlocks > 0) == on.engine.renewals_wait, &format!("there were {deadlocks} deadlocks"));
    stage.expect(&gate.releases(), "Released");
    stage.is_left(&door);
}

/// Both are renewed together. The one that can be goes on.
fn two_names(stage: &mut Stage<'_>, on: &Database) {
    let a = stage.near();
    let (door, gate) = (a.takes(DOOR), a.takes("gate"));
    door.runs(&stage.register);
    stage.some_time();
    let mut stranger = transaction(on, &locks(DOOR));
    stage.fault("somebody has the row of the door");
    stage.loss_due(BELIEF);
    let lost = door.lost();
    stage.holds_true(door.last_step() <= Some(lost), "the guard let a step go on");
    gate.renewed(lost);
    stranger.run("ROLLBACK;");
    let since = stage.fault("it is free again");
    gate.renewed(since);
    stage.grant_due(NEXT);
    let second = stage.far().takes(DOOR);
    stage.expect(&gate.releases(), "Released");
    stage.is_left(&second);
}

/// The server of a row and a copy of it that follows, and where clients find either.
fn replicated(on: &Database) -> (PostgresServer, Switch) {
    let replica = PostgresServer::replica_of(on.server.as_postgres());
    replica.wait_for_all_of(on.server.as_postgres());
    (replica, Switch::start(on.server.addr()))
}

/// The copy has not heard of the grant when it takes over. Its fences are above those before all the same.
fn replica_promoted(stage: &mut Stage<'_>, on: &Database) {
    let (replica, switch) = replicated(on);
    let url = on.url_at(switch.addr());
    let (a, b) = (stage.actor(&url), stage.actor(&url));
    replica.stop();
    // Else its kernel has the writes, and it reads them when it goes on.
    on.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication");
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    let since = now();
    on.server.kill();
    stage.fault("the primary is killed");
    replica.cont();
    replica.promote();
    switch.to(replica.addr());
    stage.fault("its replica, which has not the grant, takes over");
    stage.loss_due_since(since, RENEWAL);
    stage.grant_due_since(since, SOON + OPERATION);
    let granted = second.granted();
    second.works(&stage.register);
    stage.is_stale(&first, granted);
    first.lost();
    second.renewed(now());
    stage.expect(&second.releases(), "Released");
    let held = format!("SELECT name FROM {} WHERE owner IS NOT NULL OR record IS NOT NULL", on.table);
    wait_until(SLACK, "the name to be free", || replica.sql(&held).is_empty());
}

/// It has the grant, and nobody may write there: the lease ends, and is nobody's until clients find the primary again.
fn led_to_replica(stage: &mut Stage<'_>, on: &Database) {
    let (replica, switch) = replicated(on);
    stage.all_by(&on.url_at(switch.addr()));
    stage.is_away_for_long(|| switch.to(replica.addr()), || switch.to(on.server.addr()));
}

/// All come through a pool that lends one session, in which a stranger leaves settings of its own.
fn pool(stage: &mut Stage<'_>, on: &Database) {
    let pool = PgBouncer::start(on.server.as_postgres(), 1);
    stage.all_by(&on.url_at(pool.addr()));
    let (a, c) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = c.asks(DOOR, terms());
    stage.keeps = true;
    pool.session()
        .run("SET search_path = pg_catalog; SET default_transaction_isolation = 'serializable'; SET lock_timeout = '1ms';");
    let since = stage.fault("a stranger's settings stay in the session that the pool lends on");
    first.renewed(since);
    stage.grant_due(2 * (POLL + OPERATION) + SLACK);
    stage.is_freed(&first);
    second.granted();
    second.works(&stage.register);
    second.renewed(now());
    stage.is_freed(&second);
    c.settles();
    stage.free_due(DOOR, SLACK);
}
