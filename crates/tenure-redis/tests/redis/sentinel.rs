//! The store on a Sentinel group: how the master is found, and followed when another takes its place.

use std::io::Read;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::store::{AcquireReply, Credentials, Login, Notice, Store};
use tenure::{Error, ErrorKind, Fence, Locker};
use tenure_redis::{Options, RedisStore};
use tenure_testkit::redis::SERVICE;
use tenure_testkit::{Certificates, Proxy, RedisServer, SentinelGroup, free_port, wait_until};
use tokio::time::timeout;

use crate::pretender::listens_as;
use crate::steps::request;
use crate::{LONG, PATIENCE, patient, store};

/// Longer than any failover here.
const FAILOVER: Duration = Duration::from_secs(30);

async fn takes(store: &RedisStore, name: &str) -> Result<Fence, Error> {
    match store.acquire(&request(name)).await? {
        AcquireReply::Granted(grant) => Ok(grant.fence.unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Takes names until one is at that server.
async fn takes_at(store: &RedisStore, server: &RedisServer) -> Fence {
    let begun = Instant::now();
    for turn in 0.. {
        let name = format!("turn {turn}");
        let taken = takes(store, &name).await;
        if let Ok(fence) = taken
            && server.command(&["EXISTS", &name]) == 1
        {
            return fence;
        }
        assert!(begun.elapsed() < FAILOVER, "still not there: {taken:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!()
}

async fn refused(url: &str) -> Error {
    Options::parse(url).unwrap().connect().await.unwrap_err()
}

/// A sentinel of a server that may not be there.
fn sentinel_of(address: std::net::SocketAddr) -> RedisServer {
    RedisServer::builder().sentinel_of(address, None, 1, LONG).start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_found_in_every_scheme() {
    let group = SentinelGroup::start();
    for scheme in ["native", "set-nx", "setnx-expire", "setnx-expire-lua", "php", "getset", "watch"] {
        let locks = Locker::new(Options::parse(&format!("{}?scheme={scheme}", group.url())).unwrap().open().await.unwrap());
        let guard = locks.mutex(scheme).ttl(LONG).acquire().await.unwrap();
        let key = if scheme == "php" { "Lock:php" } else { scheme };
        assert_eq!(group.servers[0].command(&["EXISTS", key]), tenure_testkit::Reply::Int(1), "{scheme}");
        let _ = guard.release().await.unwrap();
    }
    let shown = store(&format!("{}/3?prefix=app:", group.url())).await.to_string();
    assert!(shown.starts_with("redis+sentinel://127.0.0.1:") && shown.ends_with("/mymaster"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_have_a_login_of_their_own() {
    let group = SentinelGroup::start_with(Some("hunter2"), Some("s3cret"), None);
    for (parameters, why) in [("", "TENURE_SENTINEL_PASSWORD"), ("?sentinel_password=wr0ng", "user name and password")] {
        let error = refused(&format!("{}{parameters}", group.url())).await;
        let text = format!("{error} {error:?}");
        assert_eq!(error.kind(), ErrorKind::Refused, "{text}");
        assert!(text.contains("the sentinel 127.0.0.1:") && text.contains(why), "{text}");
        assert!(["hunter2", "s3cret", "wr0ng"].iter().all(|secret| !text.contains(secret)), "{text}");
    }
    takes(&store(&format!("{}?sentinel_password=s3cret", group.url())).await, "door").await.unwrap();
    let options = Options::parse(&group.url()).unwrap().sentinel_credentials(Login::new("default", "s3cret"));
    takes(&options.connect().await.unwrap(), "gate").await.unwrap();
    let ask = || async { Ok::<_, Error>(Login::of_password("s3cret")) };
    let options = Options::parse(&group.url()).unwrap().sentinel_credentials(Credentials::asking("the vault", ask));
    takes(&options.connect().await.unwrap(), "attic").await.unwrap();
}

/// A stranger that listens in place of a sentinel does not get the password of the servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_password_of_the_servers_is_not_sent_to_a_sentinel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = std::thread::spawn(move || {
        let mut heard = [0; 4_096];
        let length = listener.accept().unwrap().0.read(&mut heard).unwrap();
        String::from_utf8_lossy(&heard[..length]).into_owned()
    });
    let url = format!("redis+sentinel://app:hunter2@127.0.0.1:{port}/mymaster");
    let options = Options::parse(&url).unwrap().credentials(Login::of_password("hunter2"));
    let _ = timeout(PATIENCE, options.connect()).await.expect("it gives up").unwrap_err();
    let heard = heard.join().unwrap();
    assert!(heard.contains("GET-MASTER-ADDR-BY-NAME") && !heard.contains("hunter2") && !heard.contains("app"), "{heard}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_speak_tls() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::generate(dir.path());
    let group = SentinelGroup::start_with(None, None, Some(&certificates));
    let store = store(&format!("{}?ca={}", group.url(), certificates.ca().display())).await;
    takes(&store, "door").await.unwrap();
    group.servers[0].kill();
    let next = group.wait_for_another(0);
    takes_at(&store, &group.servers[next]).await;
}

/// A lease that was replicated is renewed at the promoted replica. Commands to the killed master may still be under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_by_the_next() {
    let group = SentinelGroup::start();
    let store = store(&format!("{}?timeout=400ms", group.url())).await;
    let locks = Locker::builder(store.clone()).ttl(LONG).build().unwrap();
    let guard = locks.mutex("door").acquire().await.unwrap();
    let before = guard.fence().unwrap();
    group.servers[0].wait_for_copies(2);
    assert!(!store.features().late_commands);
    group.servers[0].kill();
    let next = group.wait_for_another(0);
    let after = takes_at(&store, &group.servers[next]).await;
    assert!(after > before, "{after:?} after {before:?}");
    guard.verify().await.unwrap();
    assert_eq!(group.servers[next].cli("GET door"), guard.token().to_string());
    assert!(store.features().late_commands, "a link to another server cannot end the one before");
}

/// The sentinels are set by hand, so nobody ends the link to the old master. Its answers do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_read_only_is_left() {
    let group = SentinelGroup::start();
    let store = store(&patient(&group.url())).await;
    let before = takes(&store, "door").await.unwrap();
    for sentinel in &group.sentinels {
        sentinel.cli(&format!("SENTINEL REMOVE {SERVICE}"));
    }
    group.servers[1].cli("REPLICAOF NO ONE");
    group.servers[0].cli(&format!("REPLICAOF 127.0.0.1 {}", group.servers[1].port()));
    for sentinel in &group.sentinels {
        sentinel.cli(&format!("SENTINEL MONITOR {SERVICE} 127.0.0.1 {} 2", group.servers[1].port()));
    }
    let error = takes(&store, "gate").await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, false), "{error}");
    let after = takes(&store, "gate").await.unwrap();
    assert!(after > before, "{after:?} after {before:?}");
    assert_eq!(group.servers[1].command(&["EXISTS", "gate"]), tenure_testkit::Reply::Int(1));
}

/// The old master is never told, and serves on: only the sentinels say that there is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_does_not_know_of_its_successor_is_left() {
    let group = SentinelGroup::start();
    // So the sentinels' transaction, which also makes it a replica, is refused as a whole.
    group.servers[0].cli("ACL SETUSER default -client|kill");
    let store = store(&group.url()).await;
    let before = takes(&store, "door").await.unwrap();
    let mut notices = store.watch(&request("another")).await.unwrap();
    group.fail_over();
    let heard = timeout(FAILOVER, notices.next()).await.expect("no listener was notified");
    assert_eq!(heard, Some(Notice::Changed));
    let next = group.wait_for_another(0);
    let after = takes_at(&store, &group.servers[next]).await;
    assert!(after > before, "{after:?} after {before:?}");
    assert!(group.servers[0].cli("ROLE").starts_with("master"), "it knows of its successor, so this shows nothing");
    assert_eq!(group.servers[0].command(&["EXISTS", "door"]), tenure_testkit::Reply::Int(1));
}

/// The sentinel that is listened to is gone: another is listened to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_sentinel_is_listened_to_when_one_goes() {
    let group = SentinelGroup::start();
    group.servers[0].cli("ACL SETUSER default -client|kill");
    let store = store(&group.url()).await;
    takes(&store, "door").await.unwrap();
    let listened_to = |sentinel: &&RedisServer| sentinel.cli("CLIENT LIST").contains(" sub=1 ");
    let subscribed = || group.sentinels.iter().position(|sentinel| listened_to(&sentinel));
    wait_until(PATIENCE, "a subscription", || subscribed().is_some());
    let gone = subscribed().unwrap();
    group.sentinels[gone].kill();
    let others = || group.sentinels.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, sentinel)| sentinel);
    wait_until(PATIENCE, "another subscription", || others().any(|sentinel| listened_to(&sentinel)));
    others().next().unwrap().cli(&format!("SENTINEL FAILOVER {SERVICE}"));
    let named = || others().map(|sentinel| group.named_by(sentinel)).find(|named| *named != Some(0)).flatten();
    wait_until(FAILOVER, "another master", || named().is_some());
    takes_at(&store, &group.servers[named().unwrap()]).await;
    drop(store);
    wait_until(PATIENCE, "the end of the subscription", || !others().any(|sentinel| listened_to(&sentinel)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_named() {
    let server = RedisServer::start();
    let sentinel = sentinel_of(server.addr());
    let (one, other) = (sentinel.port(), free_port());
    for (url, kind, why) in [
        (format!("127.0.0.1:{one}/nobody"), ErrorKind::Refused, vec![format!("127.0.0.1:{one} knows no service \"nobody\"")]),
        // The other may know it.
        (
            format!("127.0.0.1:{one},127.0.0.1:{other}/nobody"),
            ErrorKind::Unreachable,
            vec![format!("127.0.0.1:{one} knows no service \"nobody\""), format!("127.0.0.1:{other}")],
        ),
        (
            format!("127.0.0.1:{}/mymaster", server.port()),
            ErrorKind::Refused,
            vec![format!("127.0.0.1:{} is a server and no sentinel", server.port())],
        ),
        (
            format!("127.0.0.1:{other}/mymaster"),
            ErrorKind::Unreachable,
            vec!["make sure that the sentinels run".into(), format!("127.0.0.1:{other}")],
        ),
    ] {
        let error = refused(&format!("redis+sentinel://{url}")).await;
        let text = error.to_string();
        assert_eq!((error.kind(), error.may_have_been_applied()), (kind, false), "{text}");
        assert!(why.iter().all(|why| text.contains(why)), "{text}");
    }
    // The rest of the sentinels is enough.
    takes(&store(&format!("redis+sentinel://127.0.0.1:{other},127.0.0.1:{one}/mymaster")).await, "door").await.unwrap();
}

/// A master that cannot be reached from here, and one that is none, are named, and so is the sentinel that names them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_cannot_be_used_is_named() {
    let primary = RedisServer::start();
    let replica = RedisServer::replica_of(&primary);
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    for (address, kind, why) in [
        (nowhere, ErrorKind::Unreachable, "no connection"),
        (replica.addr(), ErrorKind::Unavailable, "it is a replica, and the sentinels have not named another master yet"),
    ] {
        let sentinel = sentinel_of(address);
        let error = refused(&format!("redis+sentinel://127.0.0.1:{}/mymaster", sentinel.port())).await;
        let text = error.to_string();
        let who = format!("at {address}, which 127.0.0.1:{} names", sentinel.port());
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(why) && text.contains(&who), "{text}");
    }
}

/// A sentinel that was cut off names an old master, and may be the first to answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_epoch_counts() {
    let group = SentinelGroup::start();
    group.fail_over();
    let next = group.wait_for_another(0);
    let old = RedisServer::start();
    let cut_off = sentinel_of(old.addr());
    let url = format!("redis+sentinel://127.0.0.1:{},", cut_off.port());
    let url = group.url().replace("redis+sentinel://", &url);
    let (mut at_old, mut longest) = (0, Duration::ZERO);
    for turn in 0..20 {
        let name = format!("door {turn}");
        let began = Instant::now();
        takes(&store(&url).await, &name).await.unwrap();
        let took = began.elapsed();
        let is_at = |server: &RedisServer| server.command(&["EXISTS", &name]) == 1;
        // The others have so long to answer.
        assert!(!is_at(&old) || took >= Duration::from_millis(50), "it is at the old master, after {took:?}");
        at_old += u32::from(is_at(&old));
        longest = longest.max(took);
        assert_ne!(is_at(&old), is_at(&group.servers[next]));
    }
    // On a slow machine the others may answer too late.
    assert!(at_old <= 3, "{at_old} of 20 were at the old master, and the longest took {longest:?}");
}

/// The sentinel that is listened to is cut off from the others: it answers, names the old master and hears of nothing. The others
/// are asked as well, so a client that reaches most of them leaves the old master, which serves on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_hears_of_nothing_keeps_nobody_at_the_old_master() {
    let group = SentinelGroup::start();
    group.servers[0].cli("ACL SETUSER default -client|kill");
    let port = group.servers[0].port().to_string();
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let cut_off = listens_as(move |words| {
        let answer = match (&*words[0], words.get(1).map(String::as_str)) {
            ("SUBSCRIBE", Some(channel)) => format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)),
            ("SENTINEL", Some("MASTER")) => format!("*2\r\n{}{}", bulk("config-epoch"), bulk("0")),
            ("SENTINEL", _) => format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&port)),
            ("HELLO", _) => format!("*2\r\n{}{}", bulk("server"), bulk("redis")),
            _ => "+OK\r\n".to_owned(),
        };
        answer.into_bytes()
    });
    // The others answer later, so it is this one that names the master and is listened to.
    let slow: Vec<Proxy> = group.sentinels.iter().map(|sentinel| Proxy::start(sentinel.addr())).collect();
    for proxy in &slow {
        proxy.delay(Duration::from_millis(10));
    }
    let hosts: Vec<String> = slow.iter().map(|proxy| proxy.addr().to_string()).collect();
    let store = store(&format!("redis+sentinel://{cut_off},{}/{SERVICE}", hosts.join(","))).await;
    takes(&store, "door").await.unwrap();
    group.fail_over();
    let next = group.wait_for_another(0);
    takes_at(&store, &group.servers[next]).await;
    assert!(group.servers[0].cli("ROLE").starts_with("master"), "it knows of its successor, so this shows nothing");
}
