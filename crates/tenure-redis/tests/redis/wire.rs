//! A connection to Redis that several calls use together: who is notified, who is woken, and when it is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Enqueue, Notice, ReleaseReply, Request, Store};
use tenure::{Fence, Locker, Name, Owner, Share};
use tenure_redis::RedisStore;
use tenure_testkit::{Proxy, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{LONG, PATIENCE, store};

/// Less than the time to a heartbeat, by which a waiter finds out that it was not notified.
const SOON: Duration = Duration::from_millis(800);

fn request(name: &str) -> Request {
    let (name, owner) = (Name::new(name).unwrap(), Owner::generate("wire").unwrap());
    Request::new(name, owner, Share::MUTEX, LONG)
}

fn joining(name: &str) -> Request {
    let place = Enqueue::Join { entry_ttl: LONG, handoff_ttl: LONG };
    request(name).with_enqueue(place)
}

async fn takes(store: &RedisStore, request: &Request) {
    let answer = store.acquire(request).await.unwrap();
    assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
}

/// One that waits for the next notice, asleep when this returns.
async fn asleep(mut notices: BoxStream<'static, Notice>) -> JoinHandle<Option<Notice>> {
    while timeout(Duration::from_millis(50), notices.next()).await.is_ok() {}
    let waiting = tokio::spawn(async move { notices.next().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    waiting
}

/// It sleeps when the message comes, and when its connection ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_is_woken() {
    for cut in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr());
        let (here, there) = (store(&proxy.url()).await, store(&server.url()).await);
        let (held, waiting) = (request("door"), joining("door"));
        takes(&there, &held).await;
        let notices = here.watch(&waiting).await.unwrap();
        assert!(matches!(here.acquire(&waiting).await.unwrap(), AcquireReply::Busy(busy) if busy.position == Some(0)));
        let waiter = asleep(notices).await;
        let since = Instant::now();
        if cut {
            proxy.cut();
        } else {
            assert_eq!(there.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        }
        let told = timeout(PATIENCE, waiter).await.expect("it sleeps on").unwrap().unwrap();
        let took = since.elapsed();
        assert!(took < SOON, "told only after {took:?}");
        assert_eq!(matches!(told, Notice::Granted { .. }), !cut, "{told:?}");
    }
}

/// Callers who find their connection ended together make one, and not one each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_replaced_by_one() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = store(&format!("{}?timeout=10s", proxy.url())).await;
    takes(&store, &request("warm")).await;
    proxy.cut();
    let all: Vec<Request> = (0..64).map(|task| request(&task.to_string())).collect();
    join_all(all.iter().map(|request| takes(&store, request))).await;
    assert_eq!(proxy.accepted(), 2);
}

/// Pushes from others prove nothing about the way to the server: commands that do not get through go over another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_do_not_keep_a_dead_connection_alive() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = store(&format!("{}?timeout=4s", proxy.url())).await;
    takes(&store, &request("warm")).await;
    let _notices = store.watch(&request("door")).await.unwrap();
    let channel = server.cli("PUBSUB CHANNELS *tenure:wake:*");
    proxy.hold_present_requests();
    let done = Arc::new(AtomicBool::new(false));
    let chatter = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(server.command(&["PUBLISH", &channel, "hint nobody"]).int(), 1);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let answer = store.acquire(&request("door")).await;
    done.store(true, Ordering::Relaxed);
    assert!(matches!(answer, Ok(AcquireReply::Granted(_))), "{answer:?}");
    drop(chatter);
}

/// One large answer comes in pieces, and takes longer than a connection may be silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_brings_a_large_answer_is_not_dead() {
    const READERS: usize = 1_000;
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = store(&format!("{}?timeout=4s", proxy.url())).await;
    let readers: Vec<Request> = (0..READERS).map(|_| request("page").with_share(Share::READ)).collect();
    join_all(readers.iter().map(|reader| takes(&store, reader))).await;
    proxy.throttle(28_000);
    let started = Instant::now();
    let held = store.inspect(Some(&readers[0].name)).await.unwrap().remove(0).holders.len();
    assert!(started.elapsed() > Duration::from_millis(2_200), "slow it was not: {:?}", started.elapsed());
    assert_eq!((held, proxy.accepted()), (READERS, 1), "it was replaced");
}

/// So that those that were answered reach a caller who waits for no longer than the operation timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_end_before_their_caller_gives_up() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let limit = Duration::from_secs(4);
    let store = store(&format!("{}?timeout=4s", proxy.url())).await;
    let held = request("door");
    takes(&store, &held).await;
    proxy.black_hole();
    let answers = timeout(limit, store.renew(&[held.lease()])).await.expect("they end with their caller's patience");
    assert!(matches!(&answers[..], [Err(error)] if error.is_transient()), "{answers:?}");
}

/// The connection may end, and the user may not have the server end it: what was given up may run late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leave_to_kill_commands_may_be_late() {
    let server = RedisServer::start();
    server.cli("ACL SETUSER app on >pw ~* &* +@all -client|kill");
    let proxy = Proxy::start(server.addr());
    let locks = Locker::new(store(&format!("redis://app:pw@{}?timeout=4s", proxy.addr())).await);
    drop(locks.mutex("warm").acquire().await.unwrap());
    locks.flush_releases().await;
    assert!(!locks.store().features().late_commands);
    proxy.swallow_reply(1);
    drop(locks.mutex("door").ttl(LONG).acquire().await.unwrap());
    assert!(locks.store().features().late_commands, "the connection was left behind alive");
}

/// A server out of memory hands over: giving up comes first, and it allows that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_a_waiter_is_served() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    for share in [Share::MUTEX, Share::WRITE] {
        let name = format!("{}", share.weight());
        let (held, waiting) = (request(&name).with_share(share), joining(&name).with_share(share));
        takes(&store, &held).await;
        assert!(matches!(store.acquire(&waiting).await.unwrap(), AcquireReply::Busy(busy) if busy.position == Some(0)));
        server.cli("CONFIG SET maxmemory 1");
        assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        server.cli("CONFIG SET maxmemory 0");
        let entry = store.inspect(Some(&held.name)).await.unwrap().remove(0);
        assert_eq!(entry.holders[0].owner, waiting.owner);
    }
}

/// A server that was a replica for a moment may have lost what others were granted: nobody counts on from what he saw before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubt_has_the_counter_lifted_at_once() {
    let server = RedisServer::start();
    let (here, there) = (store(&server.url()).await, store(&server.url()).await);
    let before = fence(&here, "before").await;
    let mut last = before;
    for i in 0..5 {
        last = fence(&there, &i.to_string()).await;
    }
    server.cli("REPLICAOF 127.0.0.1 1");
    let error = here.acquire(&request("refused")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.cli("REPLICAOF NO ONE");
    server.cli(&format!("SET tenure:fence {}", before.counter() + 1));
    let after = fence(&here, "after").await;
    assert!(after > last, "{after:?} is not above {last:?}");
}

async fn fence(store: &RedisStore, name: &str) -> Fence {
    match store.acquire(&request(name)).await.unwrap() {
        AcquireReply::Granted(grant) => grant.fence.unwrap(),
        other => panic!("{other:?}"),
    }
}
