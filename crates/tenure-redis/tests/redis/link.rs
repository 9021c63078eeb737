//! The link that carries the Redis store's commands. It outlives runtimes, holds no more than it can
//! send, and knows slow from dead.

use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Request, Store};
use tenure::{Error, ErrorKind, Lease, Name, Owner, Share};
use tenure_redis::RedisStore;
use tenure_testkit::{Proxy, RedisServer, wait_until};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::subject::Lent;
use crate::{PATIENCE, behind_proxy, store};

const LONG: Duration = Duration::from_secs(600);

fn request(name: &str) -> Request {
    let (name, owner) = (Name::new(name).unwrap(), Owner::generate("link").unwrap());
    Request::new(name, owner, Share::MUTEX, LONG)
}

async fn acquire(store: &RedisStore, name: &str) -> Result<(), Error> {
    match store.acquire(&request(name)).await? {
        AcquireReply::Granted(_) => Ok(()),
        other => panic!("{other:?}"),
    }
}

/// Another name each time: a call that took one may have been too slow to hear of it.
async fn comes_through(store: &RedisStore, name: &str) {
    let through = async {
        for n in 0.. {
            if acquire(store, &format!("{name} {n}")).await.is_ok() {
                break;
            }
        }
    };
    timeout(PATIENCE, through).await.expect("the store stays broken");
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Else a server that hangs gets a connection for each call that somebody drops.
#[tokio::test]
async fn a_connection_under_way_outlives_the_call_that_began_it() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = store(&proxy.url()).await;
    acquire(&store, "a").await.unwrap();
    server.stop();
    let (before, begun) = (proxy.accepted(), Instant::now());
    let mut dropped = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        let asked = timeout(Duration::from_millis(5), acquire(&store, "b")).await;
        assert!(!matches!(asked, Ok(Ok(()))), "a stopped server answers");
        dropped += 1;
    }
    wait_until(PATIENCE, "a connection", || proxy.accepted() > before);
    let more = proxy.accepted() - before;
    server.cont();
    assert!((1..=4).contains(&more), "{more} connections for {dropped} calls");
    acquire(&store, "c").await.unwrap();
}

/// A waiter is notified when the runtime of the link ends, and does not have to find out. So is who comes later: the next one connects.
#[test]
fn who_waits_is_told_that_the_runtime_has_ended() {
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let first = runtime();
    let store = first.block_on(store(&format!("{}?timeout=10s", proxy.url())));
    first.block_on(acquire(&store, "a")).unwrap();
    proxy.hold_present_requests();
    let second = runtime();
    let commands = proxy.commands();
    let waiting = second.spawn({
        let store = store.clone();
        async move { acquire(&store, "b").await }
    });
    proxy.wait_for_commands(commands + 1, PATIENCE);
    let started = Instant::now();
    drop(first);
    second.block_on(waiting).unwrap().unwrap();
    drop(second);
    runtime().block_on(acquire(&store, "c")).unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "the end of a runtime was only noticed by the silence");
}

/// The runtime that connected is there, and nobody drives it.
#[test]
fn a_link_that_nobody_drives_is_replaced() {
    for cancelled in [false, true] {
        let server = Lent::alone();
        let first = Builder::new_current_thread().enable_all().build().unwrap();
        let store = first.block_on(store(&format!("{}?timeout=400ms", server.url())));
        first.block_on(acquire(&store, "a")).unwrap();
        runtime().block_on(async {
            if cancelled {
                // Nobody waits for half the timeout; together they do.
                let started = Instant::now();
                while started.elapsed() < Duration::from_millis(400) {
                    let _ = timeout(Duration::from_millis(50), store.acquire(&request("b"))).await;
                }
                let started = Instant::now();
                acquire(&store, "c").await.unwrap();
                assert!(started.elapsed() < Duration::from_millis(150), "on the dead link it took {:?}", started.elapsed());
            } else {
                acquire(&store, "c").await.unwrap();
            }
            // By now without a delay.
            let started = Instant::now();
            acquire(&store, "d").await.unwrap();
            assert!(started.elapsed() < Duration::from_millis(150), "took {:?}", started.elapsed());
        });
    }
}

/// One thread is blocked, and the task of the link was to run there next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_thread_stalls_nobody_else() {
    let server = Lent::alone();
    let store = store(&format!("{}?timeout=400ms", server.url())).await;
    acquire(&store, "a").await.unwrap();
    let (blocking, blocked) = tokio::sync::oneshot::channel();
    let (done, until_then) = std::sync::mpsc::channel::<()>();
    let hog = tokio::spawn({
        let store = store.clone();
        async move {
            let request = request("b");
            let mut handed_in = Box::pin(store.acquire(&request));
            std::future::poll_fn(|cx| {
                assert!(handed_in.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            blocking.send(()).unwrap();
            let _ = until_then.recv_timeout(Duration::from_secs(4));
        }
    });
    // The test itself runs beside the worker threads.
    let others = tokio::task::spawn_blocking(move || {
        blocked.blocking_recv().unwrap();
        runtime().block_on(async {
            for name in ["c", "d", "e"] {
                let started = Instant::now();
                acquire(&store, name).await.unwrap();
                assert!(started.elapsed() < Duration::from_millis(800), "with the thread, {name} took {:?}", started.elapsed());
            }
        });
    });
    others.await.unwrap();
    assert!(!hog.is_finished(), "the thread was blocked for all of this");
    drop(done);
    hog.await.unwrap();
}

/// Kilobytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok()).unwrap()
}

/// Commands that nobody waits for any more do not pile up while a server is stopped. In a process
/// of its own: other tests need memory as well.
#[cfg(target_os = "linux")]
#[test]
fn a_stopped_server_costs_no_memory() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "link::calls_to_a_stopped_server", "--ignored", "--nocapture"]);
    assert!(alone.status().unwrap().success());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a_stopped_server_costs_no_memory runs it in a process of its own"]
async fn calls_to_a_stopped_server() {
    let server = RedisServer::start();
    let store = store(&format!("{}?timeout=50ms", server.url())).await;
    comes_through(&store, "warm").await;
    server.stop();
    let end = Instant::now() + Duration::from_secs(5);
    let mut tasks = JoinSet::new();
    let before = resident();
    for i in 0..500 {
        let store = store.clone();
        tasks.spawn(async move {
            let request = request(&format!("{}{i}", "n".repeat(1_000)));
            while Instant::now() < end {
                store.acquire(&request).await.unwrap_err();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    // Kept calls would take 50 MB and more.
    let grown = resident().saturating_sub(before) >> 10;
    assert!(grown < 24, "{grown} MB more");
    server.cont();
    comes_through(&store, "after").await;
}

/// More than a link can get rid of is refused, and was not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_link_cannot_send_has_bounds() {
    let server = RedisServer::start();
    let store = store(&format!("{}?timeout=60s", server.url())).await;
    server.stop();
    let lease = |i: usize| {
        let Request { owner, share, ttl, .. } = request("n");
        Lease::new(Name::new(format!("{i}{}", "n".repeat(500))).unwrap(), owner, share, ttl)
    };
    // Half a megabyte each.
    let leases: Vec<Lease> = (0..1_000).map(lease).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..150 {
        let (store, leases) = (store.clone(), leases.clone());
        tasks.spawn(async move { store.renew(&leases).await });
    }
    let first = timeout(PATIENCE, tasks.join_next()).await.expect("all of it was taken in").unwrap().unwrap();
    let error = first[0].as_ref().unwrap_err();
    assert_eq!(
        (error.kind(), error.is_transient(), error.may_have_been_applied()),
        (ErrorKind::Unavailable, true, false),
        "{error}"
    );
    server.cont();
    let mut renewed = 0;
    while let Some(answers) = tasks.join_next().await {
        renewed += usize::from(matches!(answers.unwrap()[0], Ok(RenewReply::Gone)));
    }
    assert!(renewed > 10, "{renewed} were answered");
}

/// Leases of one owner that are there at the server.
fn leases(server: &RedisServer, count: usize) -> Vec<Lease> {
    let Request { owner, share, ttl, .. } = request("n");
    let text = "for i = 0, ARGV[2] - 1 do redis.call('SET', 'lease-' .. i, ARGV[1], 'PX', 60000) end";
    let count_word = count.to_string();
    server.command(&[b"EVAL", text.as_bytes(), b"0", owner.as_bytes(), count_word.as_bytes()]);
    let lease = |i| Lease::new(Name::new(format!("lease-{i}")).unwrap(), owner.clone(), share, ttl);
    (0..count).map(lease).collect()
}

fn all_renewed(answers: &[Result<RenewReply, Error>]) {
    let failed = answers.iter().filter(|answer| !matches!(answer, Ok(RenewReply::Renewed))).collect::<Vec<_>>();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), answers.len(), failed[0]);
}

/// One exchange takes longer than a silent link is given, and all the time something comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_is_not_a_dead_one() {
    let (server, proxy, store) = behind_proxy("8s").await;
    let leases = leases(&server, 1_000);
    all_renewed(&store.renew(&leases).await);
    proxy.throttle(14_000);
    let started = Instant::now();
    all_renewed(&store.renew(&leases).await);
    let took = started.elapsed();
    assert!(took > Duration::from_secs(4), "slow it was not: {took:?}");
    assert_eq!(proxy.accepted(), 1, "the link was replaced");
}

/// Many renewals are many exchanges: no link is taken for dead, and others get in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_renewals_leave_room_for_others() {
    let (server, proxy, store) = behind_proxy("10s").await;
    let leases = leases(&server, 20_000);
    acquire(&store, "warm").await.unwrap();
    proxy.throttle(300_000);
    let started = Instant::now();
    let renewal = tokio::spawn({
        let (store, leases) = (store.clone(), leases.clone());
        async move { (store.renew(&leases).await, Instant::now()) }
    });
    proxy.reached(proxy.commands() + 20).await;
    acquire(&store, "beside").await.unwrap();
    let beside = Instant::now();
    let (answers, renewed) = renewal.await.unwrap();
    all_renewed(&answers);
    assert!(renewed - started > Duration::from_secs(5), "slow it was not: {:?}", renewed - started);
    assert!(
        beside < renewed && renewed - beside > beside - started,
        "of {:?} the one beside took {:?}",
        renewed - started,
        beside - started
    );
    assert_eq!(proxy.accepted(), 1, "the link was replaced");
}

/// Renewals from before the link failed count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_renewals_count() {
    let (server, proxy, store) = behind_proxy("4s").await;
    let leases = leases(&server, 10_000);
    all_renewed(&store.renew(&leases[..100]).await);
    // The fifth exchange stays on the way, and there is no second connection.
    proxy.hold_request(41, LONG);
    proxy.refuse();
    let answers = timeout(PATIENCE, store.renew(&leases)).await.unwrap();
    let renewed = answers.iter().filter(|answer| matches!(answer, Ok(RenewReply::Renewed))).count();
    assert!((1_000..10_000).contains(&renewed) && renewed % 1_000 == 0, "{renewed} renewed");
}

/// A command that was never sent may be sent. So a link that ended while nobody used it costs
/// nothing, also where nothing may be sent twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_ended_unused_is_not_asked() {
    let (_server, proxy, store) = behind_proxy("10s").await;
    let given = request("a").with_owner(Owner::from_bytes(&b"given"[..])).with_generated(false);
    assert!(matches!(store.acquire(&given).await.unwrap(), AcquireReply::Granted(_)));
    let mut notices = store.watch(&request("b")).await.unwrap();
    proxy.cut();
    timeout(PATIENCE, notices.next()).await.expect("nobody was notified that the link has ended");
    let Request { name, owner, share, ttl, .. } = given;
    let lease = Lease::new(name, owner, share, ttl);
    assert_eq!(store.release(&lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}
