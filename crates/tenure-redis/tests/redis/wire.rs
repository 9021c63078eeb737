//! A connection to Redis that several calls use together: who is notified, who is woken, and when it is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure::Share;
use tenure::store::{AcquireReply, ReleaseReply, Request, Store};
use tenure_testkit::{Proxy, RedisServer};
use tokio::time::timeout;

use crate::steps::{fence_of, joining, request, takes};
use crate::subject::Lent;
use crate::{behind_proxy, served, store};

/// Callers who find their connection ended together make one, and not one each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_replaced_by_one() {
    let (_server, proxy, store) = behind_proxy("10s").await;
    takes(&store, &request("warm")).await;
    proxy.cut();
    let all: Vec<Request> = (0..64).map(|task| request(&task.to_string())).collect();
    join_all(all.iter().map(|request| takes(&store, request))).await;
    assert_eq!(proxy.accepted(), 2);
}

/// Pushes from others prove nothing about the way to the server: commands that do not get through go over another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_do_not_keep_a_dead_connection_alive() {
    let (server, proxy, store) = behind_proxy("4s").await;
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
    let (_server, proxy, store) = behind_proxy("4s").await;
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
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let limit = Duration::from_secs(4);
    let store = store(&format!("{}?timeout=4s", proxy.url())).await;
    let held = request("door");
    takes(&store, &held).await;
    proxy.black_hole();
    let answers = timeout(limit, store.renew(&[held.lease()])).await.expect("they end with their caller's patience");
    assert!(matches!(&answers[..], [Err(error)] if error.is_transient()), "{answers:?}");
}

/// A server out of memory hands over: giving up comes first, and it allows that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_a_waiter_is_served() {
    let (server, store) = served().await;
    for share in [Share::MUTEX, Share::WRITE] {
        let name = format!("{}", share.weight());
        let (held, waiting) = (request(&name).with_share(share), joining(request(&name)).with_share(share));
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
    let before = fence_of(&here, &request("before")).await;
    let mut last = before;
    for i in 0..5 {
        last = fence_of(&there, &request(&i.to_string())).await;
    }
    server.cli("REPLICAOF 127.0.0.1 1");
    let error = here.acquire(&request("refused")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.cli("REPLICAOF NO ONE");
    server.cli(&format!("SET tenure:fence {}", before.counter() + 1));
    let after = fence_of(&here, &request("after")).await;
    assert!(after > last, "{after:?} is not above {last:?}");
}
