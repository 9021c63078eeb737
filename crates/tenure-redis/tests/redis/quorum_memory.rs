//! Servers of a quorum that come back with other data than they had, and when they vote again.

use std::fs;
use std::time::Duration;

use tenure::store::quorum::Quorum;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store};
use tenure::{Lease, Share};
use tenure_testkit::{RedisServer, Reply, wait_until};

use crate::quorum::{Servers, asks, fence_of, granted, quorum, release, wait_for};
use crate::{LONG, PATIENCE, patient};

/// Takes the server from the grant that it forgets to the copy with which it comes back.
type Return = Box<dyn FnOnce(&RedisServer) + Send>;
/// Prepares a server before the grant.
type Prepare = fn(&RedisServer) -> Return;

/// How a server comes to an older copy: its settings, and what is done before and after the grant.
fn older_copies() -> Vec<(&'static str, bool, Prepare)> {
    let restarts: Prepare = |_| Box::new(RedisServer::restart);
    let mut all: Vec<(_, _, Prepare)> = vec![("a whole log", true, restarts)];
    all.push(("a snapshot of its own", false, |server| {
        server.cli("SAVE");
        Box::new(RedisServer::restart)
    }));
    all.push(("a snapshot that was put back", true, |server| {
        let copy = server.snapshot();
        Box::new(move |server| server.restart_with(&copy))
    }));
    all.push(("a log that was switched on", false, |server| {
        server.cli("CONFIG SET appendfsync always");
        server.cli("CONFIG SET appendonly yes");
        server.cli("SAVE");
        Box::new(RedisServer::restart)
    }));
    all.push(("a log that was switched off", true, |server| {
        server.cli("CONFIG SET appendonly no");
        Box::new(RedisServer::restart)
    }));
    all.push(("a log without its end", true, |_| {
        Box::new(|server| {
            server.kill();
            for file in fs::read_dir(server.dir().join("appendonlydir")).unwrap() {
                let path = file.unwrap().path();
                if path.to_str().unwrap().ends_with(".incr.aof") {
                    let log = fs::OpenOptions::new().write(true).open(path).unwrap();
                    log.set_len(log.metadata().unwrap().len().saturating_sub(200)).unwrap();
                }
            }
            server.restart();
        })
    }));
    all.push(("the copy of a replica that was promoted", false, |server| {
        let replica = RedisServer::replica_of(server);
        replica.promote();
        Box::new(move |server| {
            let place = replica.addr();
            server.cli(&format!("REPLICAOF {} {}", place.ip(), place.port()));
            while !server.cli("INFO replication").contains("master_link_status:up") {}
            server.promote();
        })
    }));
    all
}

/// Time until the server votes again, ms. None if nobody has said so yet.
fn kept_out(server: &RedisServer) -> Option<i64> {
    const LEFT: &str = "return (redis.call('HGET', KEYS[1], 'from') or 0) - redis.call('TIME')[1] * 1000";
    match server.command(&["EVAL", LEFT, "1", "tenure:node"]) {
        Reply::Int(left) => (left > -1_000_000_000).then_some(left),
        other => panic!("{other:?}"),
    }
}

/// Asks until the first server is kept out, with a clock that passes the first seconds. Nothing is granted.
async fn is_kept_out(all: &Servers, store: &Quorum) -> i64 {
    let (server, _) = &all.servers[0];
    for shift in 0.. {
        assert_eq!(fence_of(store, &asks("door", LONG)).await, None, "a lease stands");
        if let Some(left) = kept_out(server) {
            return left;
        }
        assert_ne!(server.cli("HEXISTS tenure:node floor"), "1", "it votes");
        server.shift_clock(500 * shift);
    }
    unreachable!()
}

fn three(keeps_log: bool) -> Servers {
    let start = |clock: bool| {
        let how = RedisServer::builder();
        let how = if keeps_log { how.arg("appendonly", "yes").arg("appendfsync", "always") } else { how };
        if clock { how.shifted_clock() } else { how }.start()
    };
    Servers::of(vec![start(true), start(false), start(false)])
}

/// A holds at the first and the second server. The first comes back with a copy that may be from before.
#[tokio::test]
async fn no_server_votes_at_once_with_a_copy_whatever_the_copy_says() {
    for (copy, keeps_log, prepares) in older_copies() {
        let all = three(keeps_log);
        let url = patient(&all.url());
        let a = quorum(&url).await;
        let (warm, _) = granted(&a, "warm", LONG).await;
        release(&a, &warm).await;
        let [(first, proxy), _, (_, third)] = &all.servers[..] else { unreachable!() };
        third.refuse();
        third.cut();
        let comes_back = prepares(first);
        let (held, fence) = granted(&a, "door", LONG).await;
        third.accept();
        comes_back(first);
        proxy.cut();
        let left = is_kept_out(&all, &quorum(&url).await).await;
        assert!(left > 30_000, "{copy}: it is kept out for {left} ms");
        release(&a, &held).await;
        let (_, later) = granted(&a, "door", LONG).await;
        assert!(later > fence, "{copy}: {later} after {fence}");
    }
}

/// A replica of it was promoted meanwhile, and it has come back to be a master with the older data. Its connections stand.
#[tokio::test]
async fn a_server_that_was_a_replica_meanwhile_does_not_vote_on_the_connections_that_it_kept() {
    let all = three(false);
    let url = patient(&all.url());
    let (a, b) = (quorum(&url).await, quorum(&url).await);
    for store in [&a, &b] {
        let (warm, _) = granted(store, "warm", LONG).await;
        release(store, &warm).await;
    }
    let [(first, proxy), _, (_, third)] = &all.servers[..] else { unreachable!() };
    let replica = RedisServer::replica_of(first);
    replica.promote();
    third.refuse();
    third.cut();
    let (_, fence) = granted(&a, "door", LONG).await;
    third.accept();
    // So that the second does not notice it by the third.
    granted(&b, "other", LONG).await;
    let before = proxy.accepted();
    first.cli(&format!("REPLICAOF {} {}", replica.addr().ip(), replica.addr().port()));
    wait_until(PATIENCE, "the older data to be there", || first.cli("INFO replication").contains("master_link_status:up"));
    first.promote();
    assert_eq!((first.cli("GET door"), proxy.accepted()), (String::new(), before), "nobody has noticed it");
    let later = fence_of(&b, &asks("door", LONG)).await;
    assert_eq!(later, None, "two hold, the first with {fence}");
    assert!(is_kept_out(&all, &b).await > 30_000);
}

/// Nobody holds it any more, and the name stays taken for longer than any ttl.
#[tokio::test]
async fn a_server_that_lost_its_data_waits_for_the_end_of_a_linger() {
    let all = three(false);
    let url = patient(&all.url());
    let a = quorum(&url).await;
    let [(first, _), _, (_, third)] = &all.servers[..] else { unreachable!() };
    third.refuse();
    third.cut();
    let (held, _) = granted(&a, "door", Duration::from_secs(5)).await;
    assert_eq!(a.release(&held.lease(), Duration::from_secs(300)).await.unwrap(), ReleaseReply::Released);
    third.accept();
    assert_eq!(first.command(&["FLUSHALL"]), "OK");
    let left = is_kept_out(&all, &quorum(&url).await).await;
    assert!(left > 200_000, "it is kept out for {left} ms");
}

/// Before that, the others may not know of a lease that is under way to them.
#[tokio::test]
async fn the_others_are_not_asked_as_soon_as_a_loss_is_found() {
    let all = Servers::of((0..3).map(|_| RedisServer::builder().shifted_clock().start()).collect());
    let store = quorum(&patient(&all.url())).await;
    let lost = || all.servers.iter().take(2).map(|(server, _)| server);
    for _ in 0..5 {
        for server in lost() {
            server.shift_clock(0);
            assert_eq!(server.command(&["FLUSHALL"]), "OK");
        }
        assert_eq!(fence_of(&store, &asks("door", LONG)).await, None);
        // No time passes from now on, however slow the machine is. It may have been slow before.
        lost().for_each(|server| server.shift_clock(-60_000));
        assert_eq!(fence_of(&store, &asks("door", LONG)).await, None);
        if lost().all(|server| kept_out(server).is_none()) {
            return;
        }
    }
    panic!("they are kept out at once, by what the others know then");
}

/// Time until the latest end that a server knows of a name, ms. None without one.
fn end_of(server: &RedisServer, name: &str) -> Option<i64> {
    const LEFT: &str = "return (redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) - redis.call('TIME')[1] * 1000";
    match server.command(&["EVAL", LEFT, "1", "tenure:node:ends", name]) {
        Reply::Int(left) => (left > 0).then_some(left),
        other => panic!("{other:?}"),
    }
}

/// Otherwise one lease of a month would keep out each server that loses its data in that month.
#[tokio::test]
async fn a_long_lease_that_has_ended_keeps_nothing_out() {
    let all = three(false);
    let store = quorum(&patient(&all.url())).await;
    let knows = |name: &'static str, is: fn(Option<i64>) -> bool| {
        let all = &all;
        move || all.servers.iter().all(|(server, _)| is(end_of(server, name)))
    };
    let month = Duration::from_secs(30 * 86_400);
    let (mutex, _) = granted(&store, "monthly", month).await;
    let [long, short] = [month, LONG].map(|ttl| asks("library", ttl).with_share(Share::READ));
    for reader in [&long, &short] {
        assert!(fence_of(&store, reader).await.is_some());
    }
    wait_for("all to know both", || knows("monthly", |end| end > Some(60_000))() && knows("library", |end| end > Some(60_000))())
        .await;
    release(&store, &mutex).await;
    release(&store, &long).await;
    wait_for("all to forget the mutex", knows("monthly", |end| end.is_none())).await;
    wait_for("all to know the other reader", knows("library", |end| end.is_some_and(|end| end <= 60_001))).await;
    release(&store, &short).await;
    let (first, _) = &all.servers[0];
    assert_eq!(first.command(&["FLUSHALL"]), "OK");
    let votes = || first.cli("HEXISTS tenure:node floor") == "1";
    while !votes() {
        let (other, _) = granted(&store, "other", Duration::from_secs(1)).await;
        release(&store, &other).await;
        first.shift_clock(4_000);
    }
}

/// Each batch of renewals notes its ends, and a shorter one that comes late takes none back.
#[tokio::test]
async fn the_ends_of_many_renewals_are_noted() {
    let all = three(false);
    let store = quorum(&patient(&all.url())).await;
    let mut leases: Vec<Lease> = Vec::new();
    for at in 0..250 {
        leases.push(granted(&store, &format!("door {at}"), Duration::from_secs(20)).await.0.lease());
    }
    for ttl in [LONG, Duration::from_secs(20)] {
        let leases: Vec<Lease> = leases.iter().map(|lease| lease.clone().with_ttl(ttl)).collect();
        let answers = store.renew(&leases).await;
        assert!(answers.iter().all(|answer| matches!(answer, Ok(RenewReply::Renewed))), "{answers:?}");
    }
    let knows = |server: &RedisServer| (0..250).all(|at| end_of(server, &format!("door {at}")) > Some(25_000));
    wait_for("a majority to know all", || all.servers.iter().filter(|(server, _)| knows(server)).count() >= 2).await;
}

fn new_servers() -> (Vec<RedisServer>, String) {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::builder().shifted_clock().start()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    (servers, patient(&format!("quorum+redis://{}", hosts.join(","))))
}

/// Moves the clocks of all until something is granted. Returns how far.
async fn votes_after(servers: &[RedisServer], store: &Quorum) -> i64 {
    for seconds in (0..3_600).step_by(2) {
        for server in servers {
            server.shift_clock(seconds * 1_000);
        }
        for _ in 0..2 {
            if let Ok(AcquireReply::Granted(_)) = store.acquire(&asks("door", LONG)).await {
                return seconds;
            }
        }
    }
    panic!("they wait for an hour");
}

#[tokio::test]
async fn servers_that_are_all_new_vote_after_half_a_minute() {
    let (servers, url) = new_servers();
    let after = votes_after(&servers, &quorum(&url).await).await;
    assert!((20..=40).contains(&after), "after {after} s");
}

/// Some of them vote already then. Nobody has been granted anything by any.
#[tokio::test]
async fn new_servers_vote_soon_after_an_admission_that_was_cut_off() {
    let all = Servers::of((0..3).map(|_| RedisServer::builder().shifted_clock().start()).collect());
    let (_, proxy) = &all.servers[0];
    let url = patient(&all.url());
    for k in 1..40 {
        for (server, _) in &all.servers {
            server.shift_clock(0);
            assert_eq!(server.command(&["FLUSHALL"]), "OK");
        }
        let store = quorum(&url).await;
        let reached = proxy.reached(proxy.commands() + k);
        tokio::select! {
            biased;
            admitted = store.admit() => return admitted.unwrap(),
            () = reached => (),
        }
        for seconds in (0..3_600).step_by(8) {
            all.servers.iter().for_each(|(server, _)| server.shift_clock(seconds * 1_000));
            let (first, second) = (fence_of(&store, &asks("door", LONG)).await, fence_of(&store, &asks("door", LONG)).await);
            if first.or(second).is_some() {
                break;
            }
            assert!(
                seconds < 60,
                "cut off at {k}: they wait for {:?} ms",
                all.servers.iter().map(|(server, _)| kept_out(server))
            );
        }
    }
}
