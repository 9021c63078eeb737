//! Answers that are lost, connections that die, servers that stop.

use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, ReleaseReply, RenewReply};
use tenure::{ErrorKind, Locker, Name, ReleaseOutcome};
use tenure_testkit::{MemcachedServer, Proxy};

use crate::dropped::Calls;
use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, behind_proxy, behind_proxy_with, open};

#[tokio::test]
async fn a_call_whose_answer_is_lost_may_be_made_again() {
    let (proxy, store, other) = behind_proxy_with("&timeout=2s").await;
    let held = owner();
    proxy.hold_replies();
    let error = store.acquire(&request("x", &held)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
    assert!(store.features().late_commands, "the server may be stopped, and run it later");
    proxy.cut();
    proxy.heal();
    granted(&store, &request("x", &held)).await;
    assert_eq!(busy(&other, &request("x", &owner())).await.holder.unwrap().owner, held);
    proxy.hold_replies();
    let error = store.release(&lease("x", &held), Duration::ZERO).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable, "{error:?}");
    proxy.cut();
    proxy.heal();
    // It may have run, so what the second finds says nothing.
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    granted(&other, &request("x", &owner())).await;
}

/// Lets the write that the proxy holds through, and waits until the server has executed it.
fn deliver(server: &MemcachedServer, proxy: &Proxy) {
    let before = server.stat("cmd_set");
    proxy.heal();
    tenure_testkit::wait_until(PATIENCE, "the late command to run", || server.stat("cmd_set") > before);
}

/// The first connection has the write and never answers. The second finds what it did.
#[tokio::test]
async fn calls_get_through_on_another_connection() {
    let server = MemcachedServer::start();
    let proxy = Proxy::start_opaque(server.addr());
    let (store, other) = (open(&format!("memcached://{}?timeout=2s", proxy.addr())).await, open(&server.url()).await);
    let held = owner();
    granted(&store, &request("x", &held)).await;
    proxy.hold_present_requests();
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(proxy.accepted(), 2);
    proxy.heal();
    proxy.hold_present_requests();
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    proxy.heal();
    // An acquisition is made again by its caller: its first command may run at any time.
    let again = request("x", &owner());
    proxy.hold_present_requests();
    let error = store.acquire(&again).await.unwrap_err();
    assert!(error.may_have_been_applied() && store.features().late_commands, "{error:?}");
    granted(&store, &again).await;
    // The request that was held is executed now, on a connection that nobody reads.
    deliver(&server, &proxy);
    assert_eq!(busy(&other, &request("x", &owner())).await.holder.unwrap().owner, again.owner);
    assert_eq!(store.release(&again.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&other, &request("x", &owner())).await;
}

/// The first connection delivers its `add` when the name was released again. The clean-up goes on until none can come.
#[tokio::test]
async fn a_command_that_comes_after_the_release_is_cleared_up() {
    let server = MemcachedServer::start();
    let proxy = Proxy::start_opaque(server.addr());
    let locks = Locker::new(open(&format!("memcached://{}?timeout=2s", proxy.addr())).await);
    let other = open(&server.url()).await;
    let is_free = async || {
        let freed = async { while !other.inspect(Some(&Name::new("x").unwrap())).await.unwrap().is_empty() {} };
        tokio::time::timeout(PATIENCE, freed).await.expect("the name is taken for nobody");
    };
    let lock = || locks.mutex("x").ttl(Duration::from_secs(60));
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.hold_present_requests();
    let guard = lock().acquire().await.unwrap();
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
    is_free().await;
    deliver(&server, &proxy);
    is_free().await;
    locks.flush_releases().await;
    // Also what is left by a try that finds the name busy on another connection.
    let held = request("x", &owner());
    granted(&other, &held).await;
    proxy.hold_present_requests();
    let tried = lock().try_acquire().await;
    assert!(!matches!(tried, Ok(Some(_))), "{tried:?}");
    assert_eq!(other.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    is_free().await;
    deliver(&server, &proxy);
    is_free().await;
}

/// A token that was supplied may be another client's as well, so nothing is made twice with it.
#[tokio::test]
async fn a_supplied_token_is_not_sent_twice() {
    let (proxy, store, other) = behind_proxy_with("&timeout=2s").await;
    let given = tenure::Owner::from_bytes(&b"given"[..]);
    let request = request("x", &given).with_generated(false);
    proxy.hold_present_requests();
    let error = store.acquire(&request).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
    proxy.heal();
    assert_eq!(proxy.accepted(), 1);
    // It may come late, and then holds for its ttl.
    let _ = store.acquire(&request).await.unwrap();
    assert!(matches!(other.acquire(&request).await.unwrap(), AcquireReply::Busy(_)));
}

#[tokio::test]
async fn a_stopped_server_ends_every_call_in_time() {
    let server = MemcachedServer::start();
    let store = open(&(server.url() + "?timeout=200ms")).await;
    let (held, waits) = (owner(), joining("x"));
    granted(&open(&server.url()).await, &request("x", &held)).await;
    server.stop();
    for _ in 0..3 {
        let began = Instant::now();
        let failed = [
            store.acquire(&waits).await.unwrap_err(),
            store.renew(&[lease("x", &held)]).await.remove(0).unwrap_err(),
            store.release(&lease("y", &held), Duration::ZERO).await.unwrap_err(),
            store.inspect(None).await.unwrap_err(),
        ];
        assert!(failed.iter().all(|error| error.kind() == ErrorKind::Unreachable), "{failed:?}");
        assert!(began.elapsed() < Duration::from_millis(1_500), "took {:?}", began.elapsed());
    }
    server.cont();
    let renewed = async { while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {} };
    tokio::time::timeout(PATIENCE, renewed).await.expect("it does not find the way back");
}

/// The server was stopped, and shows the old time for a moment. A lease that is granted then lasts all the same.
#[tokio::test]
async fn leases_of_a_server_that_was_stopped_last_their_ttl() {
    let server = MemcachedServer::start();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let mut seen = 0;
    for name in ["a", "b", "c", "d"] {
        let warm = request(name, &owner());
        granted(&store, &warm).await;
        granted(&store, &joining(name).with_enqueue(tenure::store::Enqueue::No).with_owner(warm.owner.clone())).await;
        server.stop();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let request = request("x", &owner()).with_ttl(Duration::from_secs(2));
        let began = Instant::now();
        let (answer, ()) = tokio::join!(store.acquire(&request), async { server.cont() });
        if let Ok(AcquireReply::Granted(_)) = answer {
            seen += 1;
            while began.elapsed() < Duration::from_millis(1_950) {
                let found = other.inspect(Some(&request.name)).await.unwrap();
                assert!(!found.is_empty(), "free after {:?}", began.elapsed());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        store.release(&request.lease(), Duration::ZERO).await.unwrap();
    }
    assert!(seen > 0, "nothing was granted, so nothing was tested");
}

/// It is waited for on the connection that there is.
#[tokio::test]
async fn a_slow_server_is_not_left() {
    let (proxy, store, _) = behind_proxy().await;
    let held = owner();
    proxy.delay(Duration::from_millis(100));
    for name in ["x", "y"] {
        granted(&store, &request(name, &held)).await;
        assert_eq!(store.renew(&[lease(name, &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
        assert_eq!(store.release(&lease(name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
    assert_eq!(proxy.accepted(), 1);
    assert!(!store.features().late_commands);
}

#[tokio::test]
async fn a_broken_connection_is_replaced() {
    let (proxy, store, _) = behind_proxy().await;
    let held = owner();
    for round in 0..20 {
        granted(&store, &request("x", &held)).await;
        proxy.cut();
        assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed, "in round {round}");
    }
}

#[tokio::test]
async fn calls_of_many_tasks_share_a_connection() {
    let (proxy, store, _) = behind_proxy().await;
    proxy.slice(7);
    let mut tasks = Vec::new();
    for task in 0..50 {
        let store = std::sync::Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            let (name, held) = (format!("door {task}"), owner());
            for _ in 0..10 {
                granted(&store, &request(&name, &held)).await;
                assert_eq!(store.release(&lease(&name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(proxy.accepted(), 1);
}

/// A lost server keeps its names: they are unreachable, and nobody else gets them. The others go on.
#[tokio::test]
async fn a_lost_server_takes_its_own_names_along() {
    let servers = [(); 3].map(|()| MemcachedServer::start());
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let store = open(&format!("memcached://{hosts}")).await;
    let held = owner();
    let names: Vec<String> = (0..30).map(|number| format!("door {number}")).collect();
    for name in &names {
        granted(&store, &request(name, &held)).await;
    }
    assert!(servers.iter().all(|server| server.stat("curr_items") > 0), "each has some of them");
    // The list leaves out what a server has in hand just then.
    let listed = async { while store.inspect(None).await.unwrap().len() != names.len() {} };
    tokio::time::timeout(PATIENCE, listed).await.expect("a name is not listed");
    let lost = servers[1].stat("curr_items");
    servers[1].kill();
    let mut unreachable = 0;
    for name in &names {
        match store.acquire(&request(name, &owner())).await {
            Ok(AcquireReply::Busy(_)) => {}
            Err(error) if error.kind() == ErrorKind::Unreachable => unreachable += 1,
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(unreachable, lost, "all of the lost server, and no other");
    // The same for a client that comes now.
    let store = open(&format!("memcached://{hosts}")).await;
    for name in &names {
        match store.acquire(&request(name, &owner())).await {
            Ok(AcquireReply::Busy(_)) => {}
            Err(error) if error.kind() == ErrorKind::Unreachable => unreachable -= 1,
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(unreachable, 0);
    servers.iter().for_each(MemcachedServer::kill);
    let options = tenure_memcached::Options::parse(&format!("memcached://{hosts}")).unwrap();
    assert_eq!(options.open().await.unwrap_err().kind(), ErrorKind::Unreachable, "none is left");
}

/// It takes the packets and says nothing. A client that comes is not kept waiting by it, and learns of a refusal all the same.
#[tokio::test]
async fn a_silent_server_among_others_is_not_waited_for() {
    let server = MemcachedServer::start();
    let silent = Proxy::start_opaque(server.addr());
    silent.black_hole();
    let began = Instant::now();
    open(&format!("memcached://{},{}", silent.addr(), server.addr())).await;
    assert!(began.elapsed() < Duration::from_secs(3), "took {:?}", began.elapsed());
    let (odd, slow) = (MemcachedServer::builder().arg("-C").start(), Proxy::start_opaque(server.addr()));
    // The other one is heard of first.
    slow.delay(Duration::from_millis(200));
    let options = tenure_memcached::Options::parse(&format!("memcached://{},{}", odd.addr(), slow.addr())).unwrap();
    assert_eq!(options.open().await.unwrap_err().kind(), ErrorKind::Refused);
}

/// Its connections end with it. Commands without an answer may still run.
#[test]
fn a_runtime_that_ends_leaves_commands_that_may_run() {
    let server = MemcachedServer::start();
    let proxy = Proxy::start_opaque(server.addr());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let store = first.block_on(open(&format!("memcached://{}", proxy.addr())));
    proxy.hold_replies();
    let asking = request("x", &owner());
    first.block_on(crate::requests::drop_after(1, store.acquire(&asking)));
    assert!(!store.features().late_commands, "it is on the connection that there is");
    drop(first);
    assert!(store.features().late_commands, "nobody can tell when it runs");
    proxy.heal();
    runtime().block_on(async {
        store.inspect(Some(&asking.name)).await.unwrap();
        assert!(store.features().late_commands, "the next connection does not know either");
    });
}

/// A list looks at no more than it has to, and ends in time.
#[tokio::test]
async fn a_list_does_not_read_a_whole_cache() {
    let server = MemcachedServer::start();
    let proxy = Proxy::start_opaque(server.addr());
    let store = open(&format!("memcached://{}?timeout=5s", proxy.addr())).await;
    let add = open(&(server.url() + "?scheme=add")).await;
    let foreign = "v".repeat(1_000);
    for number in 0..2_000 {
        server.set_bytes(&format!("foreign {number}").replace(' ', ""), foreign.as_bytes(), 0);
    }
    granted(&store, &request("record", &owner())).await;
    granted(&add, &request("token", &owner())).await;
    let before = server.stat("bytes_written");
    let mut listed: Vec<String> = store.inspect(None).await.unwrap().iter().map(|entry| entry.name.as_str().to_owned()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["record", "token"]);
    let sent = server.stat("bytes_written") - before;
    assert!(sent < 2_000 * 500, "{sent} bytes were read");
    assert!(server.ask("me foreign0", Some(1))[0].contains("fetch=no"), "it looks needed, and is kept in place of others");
    let brief = open(&format!("memcached://{}?timeout=400ms", proxy.addr())).await;
    proxy.delay(Duration::from_millis(150));
    let began = Instant::now();
    let error = brief.inspect(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
}

/// The watchdog waits for all renewals of a store together, until the timeout of one call.
#[tokio::test]
async fn a_silent_server_costs_no_lease_at_another() {
    let servers = [(); 3].map(|()| MemcachedServer::start());
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let store = open(&format!("memcached://{hosts}?timeout=1s")).await;
    let mut leases = Vec::new();
    for number in 0..12 {
        let held = request(&format!("door {number}"), &owner());
        granted(&store, &held).await;
        leases.push(held.lease());
    }
    servers[1].stop();
    let answers = tokio::time::timeout(Duration::from_secs(1), store.renew(&leases)).await.expect("it ends in time");
    servers[1].cont();
    let renewed = answers.iter().filter(|answer| matches!(answer, Ok(RenewReply::Renewed))).count();
    assert!(answers.iter().any(Result::is_err) && renewed > 0, "{answers:?}");
}

/// Whatever it is that listens there, the first contact says so.
#[tokio::test]
async fn what_is_no_memcached_is_refused() {
    let redis = tenure_testkit::RedisServer::start();
    let options = tenure_memcached::Options::parse(&format!("memcached://{}", redis.addr())).unwrap();
    let error = options.open().await.unwrap_err();
    assert!(error.to_string().contains("meta commands"), "{error}");
    let proxy = Proxy::start_opaque(MemcachedServer::shared().addr());
    proxy.black_hole();
    let options = tenure_memcached::Options::parse(&format!("memcached://{}", proxy.addr())).unwrap();
    assert_eq!(options.open().await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let calls = Calls { polls: 8, until_sent: 1, apart: &["inspect"] };
    calls.leave_what_a_release_clears(crate::behind_proxy).await;
}
