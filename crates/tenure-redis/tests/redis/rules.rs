//! Rules of the Redis store that nothing else would miss: without one of them a name is orphaned, freed for another, or asked for too often.

use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request, Store};
use tenure::{Lease, Locker, MemoryStore, Owner, ReleaseOutcome, Share};
use tenure_redis::Options;
use tenure_testkit::{Proxy, wait_until};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::steps::{joining, request, shared, takes};
use crate::subject::Lent;
use crate::{LONG, PATIENCE, answered, behind_proxy, patient, served, store, with_user};

async fn warms_up(locks: &Locker) {
    let released = locks.mutex("warm").acquire().await.unwrap().release().await;
    assert!(matches!(answered(released), ReleaseOutcome::Released));
}

/// The store has the server end a connection that was given up, though its first replacement never came about. An acquire that is
/// on its way there would take the name when nobody clears it up any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_predecessor_is_ended_after_a_replacement_that_failed() {
    let (server, proxy, store) = behind_proxy("400ms").await;
    let locks = Locker::new(store);
    warms_up(&locks).await;
    proxy.hold_present_requests();
    proxy.refuse();
    let error = locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    proxy.accept();
    timeout(PATIENCE, locks.flush_releases()).await.expect("the clean-up hangs");
    proxy.heal();
    // What was held arrives now, before this command of another client.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.cli("EXISTS door"), "0", "the name was orphaned");
    assert!(!locks.store().features().late_commands);
}

/// A supplied owner token is released once: between two runs of its release another may have taken the name by the same token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_given_value_is_given_up_once() {
    for scheme in ["native", "set-nx", "php", "getset"] {
        let server = Lent::alone();
        let proxy = Proxy::start(server.addr());
        let store = Options::parse(&format!("{}?timeout=400ms&scheme={scheme}", proxy.url())).unwrap().open().await.unwrap();
        let others = Options::parse(&patient(&format!("{}?scheme={scheme}", server.url()))).unwrap().open().await.unwrap();
        let given = || request("door").with_owner(Owner::from_bytes(&b"fixed"[..])).with_generated(false);
        assert!(matches!(others.acquire(&given()).await.unwrap(), AcquireReply::Granted(_)), "{scheme}: a free name");
        // So that the connection knows which commands and scripts the server has.
        let _ = store.release(&request("warm").lease(), Duration::ZERO).await.unwrap();
        proxy.swallow_reply(1);
        let releasing = tokio::spawn({
            let store = store.clone();
            async move { store.release(&given().lease(), Duration::ZERO).await }
        });
        let is_free = async || others.inspect(Some(&given().name)).await.unwrap().is_empty();
        timeout(PATIENCE, async { while !is_free().await {} }).await.expect("it is never released");
        assert!(matches!(others.acquire(&given()).await.unwrap(), AcquireReply::Granted(_)), "{scheme}");
        let error = releasing.await.unwrap().unwrap_err();
        assert!(error.may_have_been_applied(), "{scheme}: {error}");
        assert!(!is_free().await, "{scheme}: the lease of another was given up");
    }
}

/// A name is cleared up if it was taken and the number for it could not be made: the script that raises the counter is refused, and
/// the transaction behind it has run. So it is where the server has forgotten the script, and the one that settles it finds no number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_was_taken_without_a_number_is_cleared_up() {
    let (server, url) = with_user("~* &* +@all");
    let too_far = format!("SET tenure:fence {}", (1_u64 << 53) + 1);
    for spoils in [&["ACL SETUSER app -time"][..], &["SCRIPT FLUSH", &too_far]] {
        let locks = Locker::new(store(&url).await);
        warms_up(&locks).await;
        for line in spoils {
            server.cli(line);
        }
        // For so long the connection trusts the counter that it has raised, and a little more.
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        let error = locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err();
        assert!(error.may_have_been_applied(), "{spoils:?}: {error}");
        timeout(PATIENCE, locks.flush_releases()).await.expect("the clean-up hangs");
        assert_eq!(server.cli("EXISTS door"), "0", "{spoils:?}: the name was orphaned: {error}");
        server.cli("ACL SETUSER app +time");
    }
}

/// A holder that is not ours tells nobody when it is done: who waits for it looks often, though it has a place and hears.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_holder_is_looked_at_often() {
    for (value, often) in [("foreign", true), (".0123456789abcdef0123456789abcdef", false)] {
        let (server, store) = served().await;
        server.cli(&format!("SET door {value} PX 60000"));
        let enqueue = Enqueue::Join { entry_ttl: Duration::from_millis(2_500), handoff_ttl: Duration::from_millis(1_500) };
        let waiting = request("door").with_enqueue(enqueue);
        let _notices = store.watch(&waiting).await.unwrap();
        let AcquireReply::Busy(busy) = store.acquire(&waiting).await.unwrap() else { panic!("it is not free") };
        assert!(busy.position.is_some() && (busy.poll_interval <= Duration::from_millis(100)) == often, "{value}: {busy:?}");
    }
}

/// Tasks that take different names at once do not fail each other's numbers: no grant costs a script.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_one_process_take_names_without_a_script() {
    // On a slow machine they take longer than the counter is trusted.
    let mut took = Duration::ZERO;
    for _ in 0..10 {
        let (server, store) = served().await;
        let began = Instant::now();
        takes(&store, &request("warm")).await;
        server.cli("CONFIG RESETSTAT");
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let store = store.clone();
            tasks.spawn(async move {
                for round in 0..16 {
                    takes(&store, &request(&format!("{task} {round}"))).await;
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        took = began.elapsed();
        let stats = server.cli("INFO commandstats");
        let is_script = |line: &&str| ["cmdstat_eval", "cmdstat_fcall"].iter().any(|name| line.starts_with(name));
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
        let scripts: u64 = stats.lines().filter(is_script).filter_map(calls).sum();
        if scripts < 10 {
            return;
        }
        assert!(took >= Duration::from_secs(1), "{scripts} scripts for 1,024 grants in {took:?}");
    }
    panic!("1,024 grants took {took:?}");
}

/// Each lease has its own answer, in the caller's order, whatever kinds there are among them and whichever is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_answered_in_the_order_of_the_leases() {
    let (server, url) = with_user("~* &* +@all");
    let store = store(&patient(&url)).await;
    let kinds = [Share::MUTEX, Share::READ, Share::permits(1, 3).unwrap()];
    let all: Vec<Request> =
        (0..12).map(|i| request(&format!("{}{i}", if i == 4 { "secret:" } else { "open:" })).with_share(kinds[i % 3])).collect();
    for (i, request) in all.iter().enumerate() {
        if i % 4 != 3 {
            takes(&store, request).await;
        }
    }
    server.cli("ACL SETUSER app resetkeys ~open:* ~*:open:* ~tenure:*");
    let leases: Vec<Lease> = all.iter().map(Request::lease).collect();
    for (i, answer) in store.renew(&leases).await.into_iter().enumerate() {
        match (i, answer) {
            (4, Err(_)) => {}
            (i, Ok(answer)) => assert_eq!(answer == RenewReply::Gone, i % 4 == 3, "lease {i}: {answer:?}"),
            (i, answer) => panic!("lease {i}: {answer:?}"),
        }
    }
    assert_eq!(store.release(&leases[0], Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    wait_until(PATIENCE, "the release", || server.cli("EXISTS open:0") == "0");
}

/// A refusal says the same as in a store that keeps records, and that names both kinds.
#[tokio::test]
async fn another_kind_of_lock_is_refused_in_the_words_of_every_store() {
    let server = Lent::alone();
    let (redis, memory) = (store(&patient(&format!("{}?prefix=app:", server.url()))).await, MemoryStore::new());
    let shares = [Share::MUTEX, Share::permits(1, 3).unwrap(), Share::permits(2, 5).unwrap(), Share::READ];
    for (at, held) in shares.into_iter().enumerate() {
        let holder = request(&format!("door {at}")).with_share(held);
        takes(&redis, &holder).await;
        memory.acquire(&holder).await.unwrap();
        for share in shares.into_iter().filter(|share| share.counted().capacity() != held.counted().capacity()) {
            let asks = request(holder.name.as_str()).with_share(share);
            let free = request("free").with_share(share);
            let expected = memory.acquire(&asks).await.unwrap_err().to_string();
            assert_eq!(redis.acquire(&asks).await.unwrap_err().to_string(), expected);
            assert_eq!(redis.acquire_all(&[free, asks]).await.unwrap_err().to_string(), expected);
        }
    }
    // So it is with a name that is free, and waited for: the waiter stays, the holder goes without a release.
    for store in [&redis as &dyn Store, &memory] {
        store.acquire(&request("left")).await.unwrap();
        store.acquire(&joining(request("left"))).await.unwrap();
    }
    server.cli("DEL app:left");
    let asks = shared("left", Share::permits(1, 3).unwrap());
    let expected = memory.acquire(&asks).await.unwrap_err().to_string();
    assert_eq!(redis.acquire(&asks).await.unwrap_err().to_string(), expected);
    assert_eq!(redis.acquire_all(&[asks]).await.unwrap_err().to_string(), expected);
    server.cli("LPUSH app:list x");
    let error = redis.acquire(&request("list").with_share(Share::READ)).await.unwrap_err();
    assert!(error.to_string().contains("another kind of value"), "{error}");
}
