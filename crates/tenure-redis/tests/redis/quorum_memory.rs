//! Servers of a quorum that come back with other data than they had, and when they vote again.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tenure::compose::quorum::{Node, Quorum, Vote};
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store};
use tenure::{ErrorKind, Lease, Share};
use tenure_redis::Options;
use tenure_testkit::{Proxy, RedisServer, Reply, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::quorum::{Servers, asks, fence_of, granted, granted_share, quorum, release, wait_for};
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

/// Time until each server votes again, ms, as it says itself. None where nobody has said how long, or it votes.
async fn kept_out(store: &Quorum) -> Vec<Option<u128>> {
    let waits = |(left, why): (Duration, String)| why.contains("it waits").then_some(left.as_millis());
    store.memories().await.into_iter().map(|(_, memory)| waits(memory.unwrap().kept_out()?)).collect()
}

/// Asks until the first server is kept out, with clocks that pass the first seconds. Nothing is granted.
async fn is_kept_out(all: &Servers, store: &Quorum) -> u128 {
    for shift in 0.. {
        assert_eq!(fence_of(store, &asks("door", LONG)).await, None, "a lease stands");
        if let Some(left) = kept_out(store).await[0] {
            return left;
        }
        assert_ne!(all.servers[0].0.cli("HEXISTS tenure:node floor"), "1", "it votes");
        all.shift_clocks(500 * shift.min(8));
    }
    unreachable!()
}

fn three(keeps_log: bool) -> Servers {
    let start = || {
        let how = RedisServer::builder().shifted_clock();
        if keeps_log { how.arg("appendonly", "yes").arg("appendfsync", "always") } else { how }.start()
    };
    Servers::of((0..3).map(|_| start()).collect())
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
    let all = three(false);
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
        if kept_out(&store).await.iter().all(Option::is_none) {
            return;
        }
    }
    panic!("they are kept out at once, by what the others know then");
}

/// It was broken, and then all servers come back with copies from before, one after another, and vote.
#[tokio::test]
async fn a_copy_renews_no_lease() {
    let all = three(true);
    let url = patient(&all.url());
    let (a, b) = (quorum(&url).await, quorum(&url).await);
    for share in [Share::MUTEX, Share::READ] {
        let (broken, _) = granted_share(&a, share).await;
        let has = |(server, _): &(RedisServer, Proxy)| server.command(&["EXISTS", "door"]) == 1;
        wait_for("all to grant it", || all.servers.iter().all(has)).await;
        let copies: Vec<_> = all.servers.iter().map(|(server, _)| server.snapshot()).collect();
        release(&b, &broken).await;
        wait_for("all to release it", || !all.servers.iter().any(has)).await;
        for ((server, proxy), copy) in all.servers.iter().zip(&copies) {
            server.restart_with(copy);
            proxy.cut();
            a.admit().await.unwrap();
        }
        assert!(all.servers.iter().all(has));
        // Others keep their notes beside the copy.
        let reader = if share == Share::READ { Some(granted_share(&b, share).await.0) } else { None };
        for _ in 0..2 {
            let renewed = a.renew(&[broken.lease()]).await;
            assert!(matches!(renewed[..], [Ok(RenewReply::Gone)]), "two hold: {renewed:?}");
        }
        let heir = asks("door", LONG).with_share(share).with_from(broken.owner.clone());
        assert_eq!(fence_of(&a, &heir).await, None, "a copy is handed over");
        for lease in reader.iter().chain([&broken]) {
            release(&b, lease).await;
        }
        wait_for("all to release the copies", || !all.servers.iter().any(has)).await;
    }
}

/// Nobody asks for another lease, and the server is so far away that the others have decided before it answers.
#[tokio::test]
async fn renewals_begin_the_admission_of_a_server_that_is_slow() {
    let all = three(true);
    let store = quorum(&patient(&all.url())).await;
    let (held, _) = granted(&store, "door", LONG).await;
    let (first, proxy) = &all.servers[0];
    first.restart();
    first.wait_until_loaded();
    proxy.cut();
    proxy.delay(Duration::from_millis(100));
    let begun = async {
        while first.cli("HGET tenure:node note").is_empty() {
            assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, begun).await.expect("it is never begun");
}

/// It was a replica for a moment, and took no data. On the connections of before, nothing may count.
#[tokio::test]
async fn a_client_finds_out_that_a_server_is_another_than_it_was() {
    let all = three(false);
    let node = || Options::parse(&all.servers[0].1.url()).unwrap().node().unwrap();
    let (a, b) = (node(), node());
    let held = asks("door", LONG);
    assert!(matches!(a.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    let (first, _) = &all.servers[0];
    assert_eq!(first.command(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    first.promote();
    assert!(b.memory().await.unwrap().kept_out().is_some());
    let renewed = timeout(PATIENCE, a.renew(&[held.lease()])).await.expect("it goes on asking");
    assert!(matches!(&renewed[..], [Err(error)] if error.kind() == ErrorKind::Unavailable), "{renewed:?}");
}

/// A replica of it was promoted long ago, and forgets now that it was a replica.
#[tokio::test]
async fn a_server_that_forgets_that_it_was_a_replica_keeps_its_vote() {
    let first = RedisServer::start();
    let replica = RedisServer::builder().arg("repl-backlog-ttl", "1").replica_of(&first).start();
    replica.promote();
    let node = || Options::parse(&replica.url()).unwrap().node().unwrap();
    let (a, b) = (node(), node());
    let lost = a.memory().await.unwrap();
    let Vote::Lost { loss, .. } = lost.vote else { panic!("{lost:?}") };
    a.admit(&loss, 0, &[]).await.unwrap();
    let held = asks("door", LONG);
    assert!(matches!(a.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    wait_for("it to forget", || replica.cli("INFO replication").contains("second_repl_offset:-1")).await;
    assert!(b.memory().await.unwrap().kept_out().is_none());
    // The first knows it by another name.
    assert!(matches!(a.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    assert!(matches!(a.acquire(&asks("gate", LONG)).await.unwrap(), AcquireReply::Granted(_)));
}

/// A proxy that keeps the connections of its clients when the server ends its own.
async fn outlasting(upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(outlast(client, upstream));
        }
    });
    address
}

async fn outlast(mut client: TcpStream, upstream: SocketAddr) {
    let (mut asked, mut answered) = ([0; 1 << 14], [0; 1 << 14]);
    while let Ok(mut length @ 1..) = client.read(&mut asked).await {
        let mut server = TcpStream::connect(upstream).await.unwrap();
        while length > 0 {
            server.write_all(&asked[..length]).await.unwrap();
            length = loop {
                tokio::select! {
                    read = client.read(&mut asked) => break read.unwrap_or(0),
                    read = server.read(&mut answered) => match read {
                        Ok(length @ 1..) => client.write_all(&answered[..length]).await.unwrap(),
                        _ => break 0,
                    },
                }
            };
        }
    }
}

#[tokio::test]
async fn a_restart_is_noticed_behind_a_proxy_that_keeps_the_connections() {
    let all = three(true);
    let [(first, _), second, third] = &all.servers[..] else { unreachable!() };
    let proxied = outlasting(first.addr()).await;
    let url = patient(&format!("quorum+redis://{proxied},{},{}", second.1.addr(), third.1.addr()));
    let (a, b) = (quorum(&url).await, quorum(&url).await);
    let copy = first.snapshot();
    third.1.refuse();
    third.1.cut();
    let (_, fence) = granted(&a, "door", LONG).await;
    third.1.accept();
    first.restart_with(&copy);
    first.wait_until_loaded();
    for _ in 0..3 {
        assert_eq!(fence_of(&b, &asks("door", LONG)).await, None, "two hold, the first with {fence}");
    }
}

/// Time until the latest end that a server knows of a name, ms. None without one.
pub(crate) fn end_of(server: &RedisServer, name: &str) -> Option<i64> {
    const LEFT: &str = "local latest, start = 0, #ARGV[1] .. ':' .. ARGV[1]
        local ends = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
        for at = 1, #ends, 2 do
            if ends[at]:sub(1, #start) == start then latest = math.max(latest, ends[at + 1]) end
        end
        return latest - redis.call('TIME')[1] * 1000";
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
        all.shift_clocks(4_000);
    }
}

/// The machine of the first boots with a clock that is behind, which is set right while the server waits.
#[tokio::test]
async fn a_clock_that_is_set_right_does_not_end_a_wait() {
    const HOUR: i64 = 3_600_000;
    let all = three(false);
    let store = quorum(&patient(&all.url())).await;
    let [(first, _), _, (_, third)] = &all.servers[..] else { unreachable!() };
    third.refuse();
    third.cut();
    let (_, fence) = granted(&store, "door", LONG).await;
    third.accept();
    assert_eq!(first.command(&["FLUSHALL"]), "OK");
    for behind in [2 * HOUR, HOUR, 0] {
        first.shift_clock(-behind);
        for _ in 0..3 {
            assert_eq!(fence_of(&store, &asks("door", LONG)).await, None, "two hold, the first with {fence}");
        }
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

/// Moves the clocks of all until something is granted. Returns how far, in seconds.
async fn votes_after(all: &Servers, store: &Quorum) -> i64 {
    for seconds in (0..3_600).step_by(2) {
        all.shift_clocks(seconds * 1_000);
        for _ in 0..2 {
            if fence_of(store, &asks("door", LONG)).await.is_some() {
                return seconds;
            }
        }
    }
    panic!("they wait for an hour");
}

/// Something that happens to new servers after the first of them has been asked, and before the others are.
type Beginning = fn(&Servers);

#[tokio::test]
async fn servers_that_are_all_new_vote_after_half_a_minute() {
    let beginnings: [(&str, Beginning); 3] = [
        ("nothing", |_| ()),
        ("it is restarted", |all| {
            all.servers[0].0.restart();
            all.servers[0].1.cut();
        }),
        ("half a minute passes", |all| all.shift_clocks(29_000)),
    ];
    for (beginning, begins) in beginnings {
        let all = Servers::new((0..3).map(|_| RedisServer::builder().shifted_clock().arg("appendonly", "yes").start()).collect());
        let first = Options::parse(&all.servers[0].1.url()).unwrap().node().unwrap();
        assert!(matches!(first.memory().await.unwrap().vote, Vote::Lost { is_new: true, .. }));
        begins(&all);
        let after = votes_after(&all, &quorum(&patient(&all.url())).await).await;
        assert!((20..=70).contains(&after), "{beginning}: after {after} s");
    }
}

/// Some of them vote already then. Nobody has been granted anything by any.
#[tokio::test]
async fn new_servers_vote_soon_after_an_admission_that_was_cut_off() {
    let all = three(false);
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
            all.shift_clocks(seconds * 1_000);
            let (first, second) = (fence_of(&store, &asks("door", LONG)).await, fence_of(&store, &asks("door", LONG)).await);
            if first.or(second).is_some() {
                break;
            }
            assert!(seconds < 60, "cut off at {k}: they wait for {:?} ms", kept_out(&store).await);
        }
    }
}
