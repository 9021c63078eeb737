//! Transactions by `WATCH`, on real servers: what is between the look and the `EXEC`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Request, Store};
use tenure::{Error, ErrorKind, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::{Proxy, RedisServer, wait_until};

use crate::subject::Lent;

const LONG: Duration = Duration::from_secs(600);
/// Commands before the `MULTI` of a transaction about one name: `UNWATCH`, `WATCH`, the counter, the time, the value, its ttl.
const LOOK: u64 = 6;

async fn store(url: &str) -> Arc<dyn Store> {
    Options::parse(&format!("{url}?scheme=watch&timeout=4s")).unwrap().open().await.unwrap()
}

fn request() -> Request {
    let (name, owner) = (Name::new("x").unwrap(), Owner::generate("watch").unwrap());
    Request::new(name, owner, Share::MUTEX, LONG)
}

/// A server whose counter is not far behind: to raise a counter takes one more read.
fn server() -> Lent {
    let server = Lent::alone();
    server.command(&["SET", "tenure:fence", "4503599627370496"]);
    server
}

/// Has `meanwhile` happen when `store` has looked and sent what it makes of that, and nothing of it has reached the server.
async fn between(proxy: &Proxy, store: &Arc<dyn Store>, request: Request, meanwhile: impl FnOnce()) -> AcquireReply {
    let sent = proxy.commands() + LOOK + 1;
    proxy.hold_request(LOOK + 1, LONG);
    let asked = tokio::spawn({
        let store = Arc::clone(store);
        async move { store.acquire(&request).await }
    });
    tokio::task::block_in_place(|| {
        wait_until(Duration::from_secs(20), "the transaction is on its way", || proxy.commands() >= sent);
        meanwhile();
    });
    asked.await.unwrap().unwrap()
}

/// The connection that watched is gone: on another one nothing is watched, so nothing is written there, and the name is asked for anew.
/// Somebody else may have taken it meanwhile, and then it is his; also where the connection stands and the server undoes the change.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_watched_elsewhere_is_not_written() {
    let server = server();
    let proxy = Proxy::start(server.addr());
    let store = store(&proxy.url()).await;
    for (is_cut, is_taken) in [(true, true), (true, false), (false, true)] {
        let ours = request();
        let answer = between(&proxy, &store, ours.clone(), || {
            if is_taken {
                server.command(&["SET", "x", "theirs", "PX", "60000"]);
            }
            if is_cut { proxy.cut() } else { proxy.heal() }
        });
        let busy = match answer.await {
            AcquireReply::Busy(busy) if is_taken => busy,
            AcquireReply::Granted(_) if !is_taken => {
                assert_eq!(store.release(&ours.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
                assert_eq!(server.command(&["EXISTS", "x"]), 0);
                continue;
            }
            other => panic!("cut {is_cut}, taken {is_taken}: {other:?}"),
        };
        assert_eq!(busy.holder.unwrap().owner.as_bytes(), b"theirs");
        assert_eq!(server.command(&["GET", "x"]).text(), "theirs");
        server.command(&["DEL", "x"]);
        proxy.heal();
    }
}

/// `EXEC` ran and its answer was lost. A token of this attempt's own is found in place; a supplied owner token may be another's.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_is_settled() {
    for generated in [true, false] {
        let server = server();
        let proxy = Proxy::start(server.addr());
        let store = store(&proxy.url()).await;
        // Behind the look: MULTI, SET, INCRBY, EXEC.
        proxy.swallow_reply(LOOK + 4);
        let ours = request().with_generated(generated);
        let answer = store.acquire(&ours).await;
        if generated {
            assert!(matches!(answer, Ok(AcquireReply::Granted(_))), "{answer:?}");
            assert_eq!(store.release(&ours.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        } else {
            let error = answer.unwrap_err();
            assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true), "{error}");
        }
    }
}

/// Fences rise over everything that was granted before, also where the name was forgotten and the clock of the server went back.
#[tokio::test]
async fn fences_rise_where_the_clock_falls() {
    let server = RedisServer::builder().shifted_clock().start();
    let store = store(&server.url()).await;
    let mut last = None;
    for shift in [0, 60_000, -60_000, 0] {
        server.shift_clock(shift);
        let ours = request();
        let AcquireReply::Granted(grant) = store.acquire(&ours).await.unwrap() else { panic!("it is free") };
        assert!(grant.fence > last, "{:?} after {last:?}", grant.fence);
        last = grant.fence;
        assert_eq!(store.release(&ours.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// A replica that takes over may be some grants behind: neither who has seen more nor who is new hands out a number again.
#[tokio::test]
async fn fences_rise_where_the_counter_falls_a_little() {
    let server = Lent::alone();
    let mut process = store(&server.url()).await;
    let mut last = None;
    for new in [false, false, true, false] {
        if new {
            process = store(&server.url()).await;
        }
        let ours = request();
        let AcquireReply::Granted(grant) = process.acquire(&ours).await.unwrap() else { panic!("it is free") };
        assert!(grant.fence > last, "{:?} after {last:?}", grant.fence);
        last = grant.fence;
        assert_eq!(process.release(&ours.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        server.command(&["DECRBY", "tenure:fence", "1"]);
    }
}

/// Many who find the counter far behind do not each add what it is behind: soon no numbers would be left.
#[tokio::test(flavor = "multi_thread")]
async fn the_counter_is_not_lifted_by_the_sum_of_all() {
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let mut stores = Vec::new();
    for _ in 0..20 {
        stores.push(store(&proxy.url()).await);
    }
    // All have looked before any of them writes.
    proxy.delay(Duration::from_millis(50));
    let asked = stores.iter().enumerate().map(|(at, store)| {
        let request = request().with_name(Name::new(format!("x{at}")).unwrap());
        async move { store.acquire(&request).await.unwrap() }
    });
    for answer in futures_util::future::join_all(asked).await {
        assert!(matches!(answer, AcquireReply::Granted(_)));
    }
    proxy.delay(Duration::ZERO);
    let time = server.cli("TIME");
    let seconds: i64 = time.split_whitespace().next().unwrap().parse().unwrap();
    let counter: i64 = server.cli("GET tenure:fence").parse().unwrap();
    assert!(counter <= (seconds + 600 - 1_767_225_600) * 1_000_000, "{counter} is far ahead of {time}");
    for kind in ["abc", "-5", "9007199254740991"] {
        server.command(&["SET", "tenure:fence", kind]);
        let error = stores[0].acquire(&request()).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Refused, false), "{error}");
        assert!(error.to_string().contains("counter"), "{error}");
    }
}

/// A batch of renewals goes on where some of its names are changed all the time.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_are_not_undone_together() {
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let store = store(&proxy.url()).await;
    let all: Vec<Request> = (0..16).map(|at| request().with_name(Name::new(format!("x{at}")).unwrap())).collect();
    for ours in &all {
        assert!(matches!(store.acquire(ours).await.unwrap(), AcquireReply::Granted(_)));
    }
    proxy.delay(Duration::from_millis(2));
    let done = Arc::new(AtomicBool::new(false));
    let touching = std::thread::spawn({
        let (done, mut redis) = (Arc::clone(&done), server.connect().unwrap());
        // As those who wait for it do.
        move || {
            while !done.load(Ordering::Relaxed) {
                redis.command(&["PEXPIRE", "x7", "600000"]).unwrap();
            }
        }
    });
    let renewed = store.renew(&all.iter().map(Request::lease).collect::<Vec<_>>()).await;
    done.store(true, Ordering::Relaxed);
    touching.join().unwrap();
    let gone_on = renewed.iter().filter(|renewal| matches!(renewal, Ok(RenewReply::Renewed))).count();
    assert!(gone_on >= 15, "{renewed:?}");
}

/// A record of a later version is refused and stays as it is, and costs no other name its renewal.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_left_alone() {
    let server = Lent::alone();
    let store = store(&server.url()).await;
    server.command(&["SET", "x", "tenure:record:2\nwhatever"]);
    let ours = request();
    assert_eq!(store.acquire(&ours).await.unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(store.release(&ours.lease(), Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Mismatch);
    let other = request().with_name(Name::new("y").unwrap());
    assert!(matches!(store.acquire(&other).await.unwrap(), AcquireReply::Granted(_)));
    let renewed = store.renew(&[ours.lease(), other.lease()]).await;
    assert!(matches!(&renewed[..], [Err(error), Ok(RenewReply::Renewed)] if error.kind() == ErrorKind::Mismatch), "{renewed:?}");
    assert_eq!(server.command(&["GET", "x"]).text(), "tenure:record:2\nwhatever");
}

/// A server out of memory queues no command in a transaction: nothing is granted, renewed or given up, and nothing is half done.
#[tokio::test]
async fn a_server_out_of_memory_changes_nothing() {
    let server = Lent::alone();
    let store = store(&server.url()).await;
    let ours = request();
    assert!(matches!(store.acquire(&ours).await.unwrap(), AcquireReply::Granted(_)));
    let value = server.command(&["GET", "x"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let renewed = store.renew(&[ours.lease()]).await;
    let told = |error: &Error| error.kind() == ErrorKind::Unavailable && !error.may_have_been_applied();
    assert!(matches!(&renewed[..], [Err(error)] if told(error)), "{renewed:?}");
    assert!(told(&store.release(&ours.lease(), Duration::ZERO).await.unwrap_err()));
    assert!(matches!(store.acquire(&request()).await.unwrap(), AcquireReply::Busy(_)));
    assert_eq!(server.command(&["GET", "x"]), value);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.release(&ours.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}
