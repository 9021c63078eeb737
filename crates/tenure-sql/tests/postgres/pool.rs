//! Behind PgBouncer, which lends sessions for single transactions.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store};
use tenure::{ErrorKind, Locker, Name, Owner, ReleaseOutcome};
use tenure_testkit::crowd::{Field, is_left_clean, soak};
use tenure_testkit::{PgBouncer, PostgresServer, Proxy, answered, wait_until};

use crate::requests::{busy, drop_after, granted, joining, lease, owner, request};
use crate::rows::cycle;
use crate::{PATIENCE, open};

/// Stores whose calls answer for nobody else's: of each name only its own task knows.
async fn turns(store: Arc<dyn Store>, name: String, times: usize, may_fail: bool) -> usize {
    let mut done = 0;
    for turn in 0..times {
        let held = owner();
        let checked = async {
            let text = |what: &str| format!("{name}, turn {turn}: {what}");
            let asking = request(&name, &held);
            let answer = match store.acquire(&asking).await {
                // As a locker does that waits.
                Err(error) if may_fail && error.may_have_been_applied() => store.acquire(&asking).await,
                answer => answer,
            };
            match answer? {
                AcquireReply::Granted(grant) => assert!(grant.fence.is_some(), "{}", text("no fence")),
                AcquireReply::Busy(busy) => {
                    assert!(may_fail, "{}", text(&format!("{busy:?}")));
                    return Ok(());
                }
                AcquireReply::Refused { .. } => panic!("{}", text("refused")),
            }
            drop_after(turn % 5, store.inspect(None)).await;
            drop_after(turn % 4, store.renew(&[lease(&name, &held)])).await;
            let entries = store.inspect(Some(&tenure::Name::new(&name).unwrap())).await?;
            let [entry] = &entries[..] else { panic!("{}", text(&format!("{entries:?}"))) };
            assert!(entry.name.as_str() == name && entry.holders[0].owner == held, "{}", text(&format!("{entry:?}")));
            assert_eq!(store.renew(&[lease(&name, &held)]).await.remove(0)?, RenewReply::Renewed, "{}", text("renewal"));
            let gone = store.renew(&[lease("nobody", &held)]).await.remove(0)?;
            assert_eq!(gone, RenewReply::Gone, "{}", text("renewal of another"));
            let released = store.release(&lease(&name, &held), Duration::ZERO).await?;
            assert!(released == ReleaseReply::Released || may_fail, "{}", text(&format!("{released:?}")));
            Ok::<_, tenure::Error>(())
        };
        match checked.await {
            Ok(()) => done += 1,
            Err(error) => {
                let is_outage = error.is_transient();
                assert!(may_fail && is_outage, "{name}, turn {turn}: {error:?}");
                let _ = store.release(&lease(&name, &held), Duration::ZERO).await;
            }
        }
    }
    done
}

/// The one that tests share which do not harm it.
fn shared() -> &'static PgBouncer {
    static SHARED: OnceLock<PgBouncer> = OnceLock::new();
    SHARED.get_or_init(|| PgBouncer::start(PostgresServer::shared(), 10))
}

/// A table of its own behind a proxy and the pool, and stores that reach it through them and without them.
async fn behind_pool() -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (proxy, table) = (Proxy::start_opaque(shared().addr()), PostgresServer::fresh_table());
    let behind = open(&(PostgresServer::url_at(proxy.addr(), &table) + "&timeout=20s")).await;
    (proxy, behind, open(&(PostgresServer::shared().url(&table) + "&timeout=20s")).await)
}

mod conformance {
    use tenure_conformance::exceptions;

    use crate::EXCEPTIONS;
    use crate::conformance::{Way, by_url};

    fn subject() -> Way {
        Way::at(super::shared().addr(), by_url, [EXCEPTIONS.concat(), exceptions::NO_PUSH.to_vec()].concat())
    }

    tenure_conformance::conformance!(subject, Variant);
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    crate::dropped_rows::leave_what_a_release_clears(behind_pool).await;
}

/// Several stores, each with several tasks, on fewer sessions than there are stores.
async fn crowd(sessions: u32, meddle: impl AsyncFn(&Proxy), may_fail: bool, times: usize) -> usize {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let pool = PgBouncer::start(server, sessions);
    let proxy = Proxy::start_opaque(pool.addr());
    let url = PostgresServer::url_at(proxy.addr(), &table) + "&timeout=5s";
    let mut tasks = Vec::new();
    for at in 0..6 {
        let store = open(&url).await;
        assert!(!store.features().push, "waiters poll");
        tasks.extend((0..8).map(|task| tokio::spawn(turns(Arc::clone(&store), format!("door {at} {task}"), times, may_fail))));
    }
    // As a slow network does. A pool that has half of a statement may take the session away meanwhile.
    proxy.slice(700);
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        meddle(&proxy).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    println!("{done} turns of 48 tasks on {sessions} sessions");
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_of_different_clients_are_not_mixed() {
    for sessions in [1, 2] {
        assert_eq!(crowd(sessions, async |_: &Proxy| (), false, 15).await, 48 * 15);
    }
}

/// In the middle of statements, because those come in pieces. The pool ends their sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_mix_nothing_either() {
    let cut = async |proxy: &Proxy| {
        let (until, began) = (proxy.commands() + fastrand::u64(150..600), Instant::now());
        while proxy.commands() < until && began.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::task::block_in_place(|| proxy.cut());
    };
    assert!(crowd(2, cut, true, 15).await > 48 * 5);
}

/// Ten processes that exclude each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_processes_behind_a_pool() {
    let (pool, table) = (PgBouncer::start(PostgresServer::shared(), 3), PostgresServer::fresh_table());
    // Whatever else the machine does.
    let (url, began) = (PostgresServer::url_at(pool.addr(), &table) + "&timeout=1500ms", Instant::now());
    let store = open(&url).await;
    let long = Duration::from_secs(20);
    let field = Field::new(2, soak().unwrap_or(600)).with(|load| (load.tasks, load.fickle, load.ttl) = (2, 100, long));
    let crowd = move || {
        let came = field.crowd(&url, 10, None);
        (field, came)
    };
    let (field, came) = tokio::task::spawn_blocking(crowd).await.unwrap();
    came.told("PgBouncer with 3 sessions, 2 names, 10 processes of 2 tasks", field.check(&came), began);
    came.lost_none();
    is_left_clean(&Locker::new(store)).await;
}

/// A statement is on its way from the pool to the server when its client gives it up. Nobody can end it, and the store says so until
/// it comes too late.
#[tokio::test]
async fn what_a_pool_has_on_its_way_comes_too_late() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let slow = Proxy::start_opaque(server.addr());
    let pool = PgBouncer::start_at(slow.addr(), 1);
    let url = PostgresServer::url_at(pool.addr(), &table) + "&timeout=600ms&application_name=" + &table;
    let (store, other) = (open(&url).await, open(&server.url(&table)).await);
    for is_late in [false, true] {
        let deadline = Instant::now() + PATIENCE;
        granted(&store, &request(&format!("y {is_late}"), &owner())).await;
        // A connection that has just answered is not left.
        tokio::time::sleep(Duration::from_millis(150)).await;
        slow.hold_present_requests();
        let (given, sent) = (request(if is_late { "late" } else { "soon" }, &owner()).with_generated(false), Instant::now());
        let error = store.acquire(&given).await.unwrap_err();
        assert!(error.may_have_been_applied() && store.features().late_commands, "{error:?}");
        while is_late && store.features().late_commands {
            assert!(Instant::now() < deadline, "it never ends");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(store.inspect(None).await.unwrap().iter().all(|entry| entry.name != given.name), "on another session");
        slow.release_requests();
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}'");
        wait_until(PATIENCE, "the first session to end", || server.sql(&sessions) == ["1"]);
        let is_granted = !other.inspect(Some(&given.name)).await.unwrap().is_empty();
        if !is_late && !is_granted {
            // It may begin a second after its end.
            assert!(sent.elapsed() < Duration::from_millis(1_500), "let through only after {:?}", sent.elapsed());
        }
        assert_eq!(is_granted, !is_late, "what runs while the store says so is cleared up, and nothing runs later");
    }
}

/// A statement of a wait gets to the server when its lock was released again. Nobody else could know, so its clean-up waits for it.
#[tokio::test]
async fn what_comes_after_the_release_is_cleared_up() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let slow = Proxy::start_opaque(server.addr());
    let pool = PgBouncer::start_at(slow.addr(), 1);
    let url = PostgresServer::url_at(pool.addr(), &table) + "&timeout=1s&application_name=" + &table;
    let (locks, other) = (Locker::new(open(&url).await), open(&server.url(&table)).await);
    let is_free = async || {
        let freed = async { while !other.inspect(Some(&Name::new("x").unwrap())).await.unwrap().is_empty() {} };
        tokio::time::timeout(PATIENCE, freed).await.expect("the name is taken for nobody");
    };
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    // A connection that has just answered is not left.
    tokio::time::sleep(Duration::from_millis(150)).await;
    slow.hold_present_requests();
    let guard = locks.mutex("x").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    assert!(matches!(answered(guard.release().await), ReleaseOutcome::Released));
    is_free().await;
    slow.release_requests();
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}'");
    wait_until(PATIENCE, "the first session to end", || server.sql(&sessions) == ["1"]);
    is_free().await;
}

/// The statements of a slow server are waited for, and those of a stopped one are given up in time. Leases stand.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_and_a_stopped_server_and_a_pool_that_dies() {
    let server = PostgresServer::start();
    let slow = Proxy::start_opaque(server.addr());
    let pool = PgBouncer::start_at(slow.addr(), 2);
    let store = open(&(PostgresServer::url_at(pool.addr(), "locks") + "&timeout=2s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    slow.delay(Duration::from_millis(150));
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    slow.delay(Duration::ZERO);
    server.stop();
    let began = Instant::now();
    let error = store.renew(&[lease("x", &held)]).await.remove(0).unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "took {:?}", began.elapsed());
    server.cont();
    is_renewed(&store, &held).await;
    pool.restart();
    is_renewed(&store, &held).await;
    server.restart();
    is_renewed(&store, &held).await;
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}

/// Statements have a latest time by a clock that jumps. The next answer shows where it is now, in the same call.
#[tokio::test]
async fn a_clock_that_jumps_stops_nobody_behind_a_pool() {
    let server = PostgresServer::builder().shifted_clock().start();
    let pool = PgBouncer::start(&server, 1);
    let store = open(&(PostgresServer::url_at(pool.addr(), "locks") + "&timeout=2s")).await;
    let mut last = cycle(&store, "x").await;
    for milliseconds in [86_400_000, -86_400_000, 0] {
        server.shift_clock(milliseconds);
        for _ in 0..3 {
            let held = owner();
            let next = granted(&store, &request("x", &held)).await.fence.unwrap();
            assert!(next > last, "{next} after {last}");
            last = next;
            assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
            assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        }
    }
}

async fn is_renewed(store: &Arc<dyn Store>, held: &Owner) {
    let deadline = Instant::now() + PATIENCE;
    while store.renew(&[lease("x", held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {
        assert!(Instant::now() < deadline, "no way back");
    }
}

/// Who releases behind a pool notifies waiters that listen.
#[tokio::test]
async fn a_release_behind_a_pool_notifies_those_who_listen() {
    let (_proxy, store, other) = behind_pool().await;
    let (held, waits) = (owner(), joining("x"));
    granted(&store, &request("x", &held)).await;
    let mut notices = other.watch(&waits).await.unwrap();
    assert_eq!(busy(&other, &waits).await.position, Some(0));
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    tokio::time::timeout(PATIENCE, notices.next()).await.unwrap().unwrap();
}

/// Somebody has left settings in all the sessions that the pool lends. The table is the same all the same.
#[tokio::test]
async fn settings_that_others_left_in_a_session_change_nothing() {
    let (pool, table) = (PgBouncer::start(PostgresServer::shared(), 1), PostgresServer::fresh_table());
    let other = open(&PostgresServer::shared().url(&table)).await;
    let mut session = pool.session();
    session.run(&format!("CREATE SCHEMA trap_{table}; CREATE TABLE trap_{table}.{table} (LIKE {table} INCLUDING ALL);"));
    session.run(&format!("INSERT INTO trap_{table}.{table} (name, version, fence) VALUES ('', 1, 0);"));
    session.run(&format!(
        "SET search_path = trap_{table}; SET default_transaction_isolation = 'serializable'; SET timezone = 'Asia/Tokyo';"
    ));
    let store = open(&(PostgresServer::url_at(pool.addr(), &table) + "&timeout=2s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    assert_eq!(busy(&other, &request("x", &owner())).await.holder.unwrap().owner, held);
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    // A table that is made goes to where others look for it.
    let made = PostgresServer::fresh_table();
    let (store, other) =
        (open(&PostgresServer::url_at(pool.addr(), &made)).await, open(&PostgresServer::shared().url(&made)).await);
    granted(&store, &request("x", &held)).await;
    assert_eq!(busy(&other, &request("x", &owner())).await.holder.unwrap().owner, held);
    assert_eq!(session.run("SHOW search_path;"), [format!("trap_{table}")], "and nothing was changed for others");
}
