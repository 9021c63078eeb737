//! A store that is gone, and one that refuses.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::compose::quorum::{Node, Plain, Quorum};
use tenure::{Locker, MemoryStore};
use tenure_sql::postgres::Options;
use tenure_testkit::page::rows;
use tenure_testkit::{Fate, Faulty, Operation, PostgresServer, RedisServer, patient};
use tenure_tower::{Duplicate, Key, LockLayer, OnOutage};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

use crate::support::*;

fn gone(on_outage: OnOutage) -> (Faulty<MemoryStore>, LockLayer) {
    let store = Faulty::new(MemoryStore::new());
    store.plan(|_, _| Fate::Lost);
    let layer = LockLayer::builder(Locker::new(store.clone()), "t", Key::header(KEY), on_outage).build().unwrap();
    (store, layer)
}

/// Keeps warnings as text.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("tenure_tower")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn a_layer_that_fails_closed_refuses() {
    let (store, layer) = gone(OnOutage::FailClosed);
    let handler = Handler::open();
    let service = locked(&layer, &handler);
    assert_eq!(send(&service, request("7")).await.summary(), (503, "store-unavailable".into(), "1".into()));
    assert_eq!((layer.stats().counts().failed_closed, handler.entries()), (1, 0));
    store.heal();
    assert_eq!(send(&service, request("7")).await.status, 200);
}

#[tokio::test]
async fn a_layer_that_fails_open_serves_and_says_so() {
    let warnings = Warnings::default();
    let logging = tracing::subscriber::set_default(warnings.clone());
    let (store, layer) = gone(OnOutage::FailOpen);
    let service = locked(&layer, &Handler::open());
    for _ in 0..20 {
        let answer = send(&service, request("7")).await;
        assert_eq!((answer.status.as_u16(), answer.fence()), (200, None));
    }
    assert_eq!((layer.stats().counts().failed_open, layer.stats().counts().granted), (20, 0));
    assert!((1..=2).contains(&warnings.0.lock().unwrap().len()), "at once, and then each second");
    store.heal();
    // The log has the rest when the store answers again, and so every request.
    let told = || -> u64 {
        let of = |line: &String| {
            line.split("requests=").nth(1).and_then(|n| n.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok())
        };
        warnings.0.lock().unwrap().iter().map(|line| of(line).unwrap()).sum()
    };
    tokio::time::timeout(LONG, async {
        while told() < 20 {
            assert!(send(&service, request("7")).await.fence().is_some());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the log leaves requests out");
    drop(logging);
    let warnings = warnings.0.lock().unwrap();
    assert!(warnings.len() <= 3 && warnings.last().unwrap().contains("answers again"), "{warnings:?}");
    assert!(warnings.iter().all(|line| line.contains("without a lock") && line.contains("prefix=\"t\"")), "{warnings:?}");
}

#[tokio::test]
async fn a_crowd_of_an_outage_is_still_one() {
    let store = Faulty::new(MemoryStore::new());
    store.plan(|operation, _| if operation == Operation::Acquire { Fate::FailsBefore } else { Fate::Works });
    let locks = Locker::new(store);
    let layer = LockLayer::builder(locks, "t", Key::header(KEY), OnOutage::FailOpen).duplicate(Duplicate::Join).build().unwrap();
    let handler = Handler::new();
    let service = locked(&layer, &handler);
    let [first, second] = one_in_and_one_behind(&layer, &service, &handler).await;
    handler.let_out(1);
    assert_eq!((first.await.unwrap().status.as_u16(), second.await.unwrap().status.as_u16()), (200, 200));
    assert_eq!(handler.entries(), 1);
}

/// The name is held at the two others, so a second request is a duplicate.
#[tokio::test]
async fn one_store_of_three_that_fails_is_no_outage() {
    for at in 0..3 {
        let stores = [(); 3].map(|()| Faulty::new(MemoryStore::new()));
        let quorum = Quorum::new(stores.iter().map(|store| Arc::new(Plain(store.clone())) as Arc<dyn Node>).collect()).unwrap();
        let layer = LockLayer::builder(Locker::new(quorum), "t", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
        // Another process: it knows nothing of the first one's requests.
        let other = Quorum::new(stores.iter().map(|store| Arc::new(Plain(store.clone())) as Arc<dyn Node>).collect()).unwrap();
        let other = LockLayer::builder(Locker::new(other), "t", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
        let handler = Handler::new();
        let (service, others) = (locked(&layer, &handler), locked(&other, &handler));
        let first = sending(&service, "7");
        handler.entered(1).await;
        stores[at].plan(|_, _| Fate::FailsBefore);
        assert_eq!(send(&others, request("7")).await.status, 409, "store {at}");
        handler.let_out(1);
        assert_eq!((first.await.unwrap().status.as_u16(), handler.entries()), (200, 1));
    }
}

/// The store answers, so this is no outage: it is refused also by a layer that fails open.
#[tokio::test]
async fn a_store_that_refuses_is_never_passed_by() {
    let server = RedisServer::start();
    server.cli("LPUSH t:7 x");
    let locks = tenure_redis::connect(&server.url()).await.unwrap();
    for on_outage in [OnOutage::FailOpen, OnOutage::FailClosed] {
        let layer = LockLayer::builder(locks.clone(), "t", Key::header(KEY), on_outage).build().unwrap();
        let handler = Handler::open();
        let service = locked(&layer, &handler);
        assert_eq!(send(&service, request("7")).await.summary(), (503, "store-refused".into(), "1".into()));
        assert_eq!((layer.stats().counts().failed_closed, handler.entries()), (1, 0));
        assert_eq!(send(&service, request("8")).await.status, 200);
    }
    assert_eq!(server.cli("TYPE t:7"), "list");
}

/// It answers, and serves nobody.
#[tokio::test]
async fn a_quorum_that_does_not_vote_is_an_outage() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let quorum = tenure_redis::Options::parse(&format!("quorum+redis://{hosts}")).unwrap().quorum().await.unwrap();
    quorum.admit().await.unwrap();
    let layer = |on_outage| LockLayer::builder(Locker::new(quorum.clone()), "t", Key::header(KEY), on_outage).build().unwrap();
    let (closed, open) = (layer(OnOutage::FailClosed), layer(OnOutage::FailOpen));
    assert_eq!(send(&locked(&closed, &Handler::open()), request("7")).await.status, 200);
    for server in &servers[..2] {
        server.cli("FLUSHALL");
    }
    // The first one may find its connections closed.
    for _ in 0..3 {
        assert_eq!(send(&locked(&closed, &Handler::open()), request("8")).await.reason(), "store-unavailable");
        let unlocked = send(&locked(&open, &Handler::open()), request("8")).await;
        assert_eq!((unlocked.status.as_u16(), unlocked.fence()), (200, None), "{unlocked:?}");
    }
}

/// Somebody has locked the row of a key, so nobody knows whether another request has it. Others are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_of_a_database_is_never_passed_by() {
    let server = PostgresServer::start();
    let store = Options::parse(&(server.url("locks") + "&timeout=2s")).unwrap();
    let locks = store.connect().await.unwrap();
    let layer = LockLayer::builder(locks, "t", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
    let handler = Handler::open();
    let service = locked(&layer, &handler);
    assert!(send(&service, request("7")).await.fence().is_some());
    let mut session = server.session();
    session.run("BEGIN; SELECT name FROM locks WHERE name = 't:7' FOR UPDATE;");
    let [first, second] = [sending(&service, "7"), sending(&service, "7")];
    for answer in [first.await.unwrap(), second.await.unwrap()] {
        assert_eq!(answer.summary(), (503, "overloaded".into(), "1".into()));
    }
    assert_eq!((layer.stats().counts().failed_open, handler.entries()), (0, 1));
    assert!(send(&service, request("8")).await.fence().is_some());
    session.run("ROLLBACK;");
    assert!(send(&service, request("7")).await.fence().is_some());
}

/// A user without the right to write these keys, and then a password that is not known any more.
#[tokio::test]
async fn a_user_without_the_rights_is_refused_and_not_passed_by() {
    let server = RedisServer::start();
    server.cli("ACL SETUSER app on >secret ~* &* +@all");
    let url = server.url().replace("redis://", "redis://app:secret@");
    let locks = tenure_redis::connect(&url).await.unwrap();
    let layer = LockLayer::builder(locks.clone(), "t", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
    let handler = Handler::open();
    let service = locked(&layer, &handler);
    let allowed = send(&service, request("7")).await;
    assert!(allowed.fence().is_some(), "{allowed:?}");
    for change in ["ACL SETUSER app resetkeys ~other:*", "ACL SETUSER app allkeys resetpass >another"] {
        server.cli(change);
        if change.contains("resetpass") {
            // It has to log in again.
            server.cli("CLIENT KILL TYPE normal SKIPME yes");
        }
        let refused = async {
            // The call that found the connection closed knows of no password.
            loop {
                let answer = send(&service, request("7")).await;
                if answer.reason() == "store-refused" {
                    return answer;
                }
                assert!(change.contains("resetpass"), "{change}: {answer:?}");
            }
        };
        assert_eq!(soon("a refusal", refused).await.summary(), (503, "store-refused".into(), "1".into()), "{change}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_stopped_in_the_middle() {
    const TTL: Duration = Duration::from_secs(3);
    // A call may take a sixth of the ttl.
    const IN_TIME: Duration = Duration::from_millis(600);
    let server = RedisServer::start();
    let locks = tenure_redis::connect(&server.url()).await.unwrap();
    let layer =
        |prefix, on_outage| LockLayer::builder(locks.clone(), prefix, Key::header(KEY), on_outage).ttl(TTL).build().unwrap();
    let (closed, open) = (layer("closed", OnOutage::FailClosed), layer("open", OnOutage::FailOpen));
    let handler = Handler::new();
    let services = [locked(&closed, &handler), locked(&open, &handler)];
    let first = services.each_ref().map(|service| sending(service, "7"));
    handler.entered(2).await;
    server.stop();
    // New requests meet the choice of their layer.
    let began = Instant::now();
    let refused = send(&services[0], request("8")).await;
    was_in_time(&refused, began.elapsed(), IN_TIME);
    assert_eq!(refused.reason(), "store-unavailable");
    let (began, mut unlocked) = (Instant::now(), sending(&services[1], "8"));
    tokio::select! {
        () = handler.entered(3) => {}
        answer = &mut unlocked => {
            let answer = answer.unwrap();
            was_in_time(&answer, began.elapsed(), IN_TIME);
            panic!("{answer:?}");
        }
    }
    // Requests that hold a lease are cancelled by the clock, while the server stands still.
    for first in first {
        assert_eq!(first.await.unwrap().reason(), "lock-lost");
    }
    assert_eq!(handler.entries(), 3);
    handler.let_out(1);
    assert_eq!(unlocked.await.unwrap().fence(), None);
    server.cont();
    let went_on = Instant::now();
    while !locks.list().await.is_ok_and(|names| names.is_empty()) {
        assert!(went_on.elapsed() < TTL + Duration::from_millis(500), "still taken: {:?}", locks.list().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handler.let_out(2);
    for service in &services {
        assert!(send(service, request("7")).await.fence().is_some());
    }
    let (closed, open) = (closed.stats().counts(), open.stats().counts());
    assert_eq!((closed.failed_closed, closed.failed_open, closed.lost), (1, 0, 1));
    assert_eq!((open.failed_closed, open.failed_open, open.lost), (0, 1, 1));
}

#[tokio::test]
async fn a_cool_down_at_redis_says_when_it_ends() {
    let server = RedisServer::start();
    let locks = tenure_redis::connect(&server.url()).await.unwrap();
    let service = locked(&layer(&locks).cool_down(Duration::from_secs(60)).build().unwrap(), &Handler::open());
    assert_eq!(send(&service, request("7")).await.status, 200);
    for (left, seconds) in [("60000", 58..=60), ("10001", 8..=11)] {
        server.cli(&format!("PEXPIRE t:7 {left}"));
        let (status, reason, after) = send(&service, request("7")).await.summary();
        assert_eq!((status, &*reason), (409, "cool-down"));
        assert!(seconds.contains(&after.parse().unwrap()), "{after} with {left} ms left");
    }
}

/// docs/errors.md has what comes of each kind. Each is provoked on a server, but for the one of the locked row above.
#[tokio::test]
async fn each_kind_is_answered_as_the_page_says() {
    let server = RedisServer::start();
    // On a busy machine a call that is late would be taken for one of too many.
    let url = patient(&server.url().replace("redis://", "redis://app:secret@"), "10s");
    server.cli("ACL SETUSER app on >secret ~* &* +@all");
    let rows = rows("errors.md", "What is done with each kind");
    for (kind, begin, end) in [
        ("TimedOut", "SET t:7 another", "DEL t:7"),
        ("Mismatch", "LPUSH t:7 x", "DEL t:7"),
        ("Refused", "ACL SETUSER app resetkeys ~other:*", "ACL SETUSER app allkeys"),
        ("Unavailable", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("Unreachable", "", ""),
    ] {
        let row = rows.iter().find(|row| row[0] == format!("`{kind}`")).expect("it is on the page");
        for (on_outage, expected) in [(OnOutage::FailClosed, &row[6]), (OnOutage::FailOpen, &row[7])] {
            // Nobody has been served by these locks: they may take a failure for an outage.
            let locks = tenure_redis::connect(&url).await.unwrap();
            let layer = LockLayer::builder(locks, "t", Key::header(KEY), on_outage).build().unwrap();
            if begin.is_empty() {
                server.kill();
            } else {
                drop(server.cli(begin));
            }
            let answer = send(&locked(&layer, &Handler::open()), request("7")).await;
            let got = match (answer.status.as_u16(), answer.fence()) {
                (200, None) => "served without a lock".to_owned(),
                (status, _) => format!("{status} `{}`", answer.reason()),
            };
            assert_eq!(got, *expected, "{kind}, {on_outage:?}");
            if end.is_empty() {
                server.restart();
            } else {
                drop(server.cli(end));
            }
            server.cli("ACL SETUSER app on >secret ~* &* +@all");
        }
    }
}
