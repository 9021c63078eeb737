//! Locks of Redisson: keys, fields and numbers as its clients read and write them.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::{AcquireReply, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{ErrorKind, Guard, Locker, Name, Owner, Share, State};
use tenure_testkit::{RedisServer, Reply, wait_until};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::steps::{fence_of, gives_up, is_busy, joining, open, open_url, renewal, request, shared};
use crate::subject::Lent;
use crate::{LONG, PATIENCE, behind_proxy};

/// A thread of a client of Redisson.
const THEIRS: &str = "00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48";

async fn opened(server: &RedisServer, parameters: &str) -> std::sync::Arc<dyn Store> {
    open(server, &format!("timeout=10s&scheme=redisson{parameters}")).await
}

async fn redisson(parameters: &str) -> (Lent, std::sync::Arc<dyn Store>) {
    let server = Lent::alone();
    let store = opened(&server, parameters).await;
    (server, store)
}

fn words(reply: &Reply) -> Vec<String> {
    let Reply::Array(parts) = reply else { panic!("{reply:?}") };
    parts.iter().map(Reply::text).collect()
}

#[tokio::test]
async fn an_rlock_is_as_redisson_has_it() {
    let server = Lent::alone();
    for (parameters, name, key, token) in [
        ("", "door", "door", "redisson_lock_token:{door}"),
        ("&prefix=app:", "door", "app:door", "redisson_lock_token:{app:door}"),
        ("", "{a}door", "{a}door", "redisson_lock_token:{a}door"),
        ("", "a{b", "a{b", "redisson_lock_token:a{b"),
    ] {
        let store = opened(&server, parameters).await;
        let held = request(name);
        let fence = fence_of(&*store, &held).await;
        let [field, count] = &words(&server.command(&["HGETALL", key]))[..] else { panic!("one field") };
        let (uuid, thread) = field.split_at(36);
        assert_eq!((uuid.matches('-').count(), thread, &**count), (4, ":web-1.", "1"), "{field}");
        assert!((1..=60_000).contains(&server.command(&["PTTL", key]).int()));
        assert_eq!(server.command(&["GET", token]).text(), fence.to_string(), "{name}");
        gives_up(&*store, &held).await;
        assert_eq!(server.command(&["EXISTS", key]), 0, "{name}");
    }
}

/// A read/write lock: one field for each owner, and a key for each hold of a reader.
#[tokio::test]
async fn an_rreadwritelock_is_as_redisson_has_it() {
    let server = Lent::alone();
    for (parameters, name, key, before) in
        [("", "site", "site", "{site}"), ("&prefix=app:", "{a}site", "app:{a}site", "app:{a}site")]
    {
        let store = opened(&server, parameters).await;
        let (reader, writer) = (shared(name, Share::READ), shared(name, Share::WRITE));
        fence_of(&*store, &reader).await;
        let [.., mode, field, count] = &words(&server.command(&["HGETALL", key]))[..] else { panic!("two fields") };
        assert_eq!((&**mode, &**count, &field[36..]), ("read", "1", ":web-1."));
        let hold = format!("{before}:{field}:rwlock_timeout:1");
        assert!((1..=60_000).contains(&server.command(&["PTTL", &hold]).int()), "{hold}");
        gives_up(&*store, &reader).await;
        assert_eq!(server.command(&["EXISTS", key, &hold]), 0);
        fence_of(&*store, &writer).await;
        let fields = words(&server.command(&["HGETALL", key]));
        assert_eq!((&*fields[0], &*fields[1], &fields[2][36..], &*fields[3]), ("mode", "write", ":web-1.:write", "1"));
        assert!((1..=60_000).contains(&server.command(&["PTTL", key]).int()));
        gives_up(&*store, &writer).await;
        assert_eq!(server.command(&["EXISTS", key]), 0);
    }
}

/// Their holders keep a writer out, and their dead do not.
#[tokio::test]
async fn readers_of_redisson_count_for_as_long_as_their_holds() {
    let (server, store) = redisson("").await;
    let busy = async |share| match store.acquire(&shared("site", share)).await.unwrap() {
        AcquireReply::Busy(busy) => busy.holder.unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(server.command(&["HSET", "site", "mode", "read", THEIRS, "2"]), 2);
    assert_eq!(server.command(&["PEXPIRE", "site", "60000"]), 1);
    for (hold, ttl) in [("1", "30000"), ("2", "50")] {
        assert_eq!(server.command(&["SET", &format!("{{site}}:{THEIRS}:rwlock_timeout:{hold}"), "1", "PX", ttl]), "OK");
    }
    for share in [Share::WRITE, Share::MUTEX] {
        let holder = busy(share).await;
        assert_eq!((holder.owner, holder.share), (Owner::from_bytes(THEIRS.as_bytes()), Share::READ));
    }
    let reader = shared("site", Share::READ);
    fence_of(&*store, &reader).await;
    gives_up(&*store, &reader).await;
    assert_eq!(server.command(&["HGET", "site", THEIRS]).text(), "2", "theirs is left alone");
    assert_eq!(server.command(&["DEL", &format!("{{site}}:{THEIRS}:rwlock_timeout:1")]), 1);
    let gone = || server.command(&["EXISTS", &format!("{{site}}:{THEIRS}:rwlock_timeout:2")]) == 0;
    wait_until(PATIENCE, "the end of the last hold", gone);
    fence_of(&*store, &shared("site", Share::WRITE)).await;
}

/// Where an `RLock` is held, Redisson's own read/write lock would make a second holder. Ours does not.
#[tokio::test]
async fn an_rlock_keeps_readers_and_writers_out() {
    let (server, store) = redisson("").await;
    assert_eq!(server.command(&["HSET", "door", THEIRS, "1"]), 1);
    assert_eq!(server.command(&["PEXPIRE", "door", "60000"]), 1);
    for share in [Share::READ, Share::WRITE] {
        let answer = store.acquire(&shared("door", share)).await.unwrap();
        let AcquireReply::Busy(busy) = answer else { panic!("{answer:?}") };
        assert_eq!(busy.holder.unwrap().share, Share::MUTEX);
    }
    assert_eq!(words(&server.command(&["HKEYS", "door"])), [THEIRS]);
}

/// An application's hash with a field `mode` is nobody's lock, and keeps all its fields.
#[tokio::test]
async fn a_hash_without_an_end_is_left_alone() {
    let (server, store) = redisson("").await;
    assert_eq!(server.command(&["HSET", "door", "mode", "read", "color", "red"]), 2);
    for share in [Share::MUTEX, Share::READ, Share::WRITE] {
        let answer = store.acquire(&shared("door", share)).await.unwrap();
        assert!(matches!(answer, AcquireReply::Busy(_)), "{answer:?}");
    }
    assert_eq!(words(&server.command(&["HGETALL", "door"])), ["mode", "read", "color", "red"]);
}

/// A semaphore: a number, and the ends of the leases beside it. It stays when all permits are free.
#[tokio::test]
async fn a_semaphore_is_as_redisson_has_it() {
    let (server, store) = redisson("").await;
    let permits = |weight, capacity| shared("pool", Share::permits(weight, capacity).unwrap());
    let held = permits(2, 5);
    fence_of(&*store, &held).await;
    assert_eq!((server.command(&["GET", "pool"]).text(), server.command(&["ZCARD", "{pool}:timeout"]).int()), ("3".into(), 2));
    // Redisson's own: 16 bytes, which may be anything, and their end.
    assert_eq!(server.command(&["DECR", "pool"]), 2);
    assert_eq!(server.command(&[&b"ZADD"[..], b"{pool}:timeout", b"922337203685477", &[0xff; 16]]), 1);
    let entry = store.inspect(Some(&held.name)).await.unwrap().remove(0);
    let shares: Vec<_> = entry.holders.iter().map(|holder| (holder.share, holder.ttl.is_some())).collect();
    assert_eq!(shares, [(held.share, true), (Share::permits(1, 5).unwrap(), false)], "{entry:?}");
    is_busy(&*store, &permits(3, 5)).await;
    let error = store.acquire(&permits(1, 4)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Mismatch && error.to_string().contains("5 permits"), "{error}");
    // Broken by an operator.
    let theirs = tenure::Lease::new(held.name.clone(), entry.holders[1].owner.clone(), entry.holders[1].share, LONG);
    assert_eq!(store.release(&theirs, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    gives_up(&*store, &held).await;
    assert_eq!((server.command(&["GET", "pool"]).text(), server.command(&["EXISTS", "{pool}:timeout"]).int()), ("5".into(), 0));
    assert!(store.inspect(Some(&held.name)).await.unwrap().is_empty());
}

/// Nobody knows what an `RSemaphore` has given out: fewer permits than asked for are no mismatch.
#[tokio::test]
async fn permits_of_an_rsemaphore_are_counted_on() {
    let (server, store) = redisson("").await;
    let permits = |weight| shared("pool", Share::permits(weight, 5).unwrap());
    assert_eq!(server.command(&["SET", "pool", "2"]), "OK");
    let held = permits(2);
    fence_of(&*store, &held).await;
    is_busy(&*store, &permits(1)).await;
    assert_eq!(server.command(&["INCRBY", "pool", "3"]), 3);
    fence_of(&*store, &permits(3)).await;
    assert_eq!(server.command(&["DEL", "pool"]), 1);
    // Who deletes a semaphore takes its permits along: none is made of a release.
    gives_up(&*store, &held).await;
    assert_eq!(server.command(&["EXISTS", "pool"]), 0);
}

/// The permits of one that died are given back by the next who asks, to Redisson's waiters as well.
#[tokio::test]
async fn permits_of_the_dead_are_given_back() {
    let (server, store) = redisson("").await;
    assert_eq!(server.command(&["SET", "pool", "0"]), "OK");
    assert_eq!(server.command(&[&b"ZADD"[..], b"{pool}:timeout", b"1", &[7; 16], b"2", &[8; 16]]), 2);
    let asks = shared("pool", Share::permits(1, 2).unwrap());
    let mut waiter = store.watch(&asks).await.unwrap();
    fence_of(&*store, &asks).await;
    assert_eq!(timeout(PATIENCE, waiter.next()).await.unwrap(), Some(Notice::Changed));
    assert_eq!(server.command(&["GET", "pool"]).text(), "1");
}

/// Its owner comes and goes by its own scripts.
#[tokio::test]
async fn a_token_of_redisson_is_counted_on() {
    let (server, store) = redisson("").await;
    let held = request("door");
    let first = fence_of(&*store, &held).await;
    gives_up(&*store, &held).await;
    let theirs = server.command(&["INCR", "redisson_lock_token:{door}"]).int();
    assert!(u64::try_from(theirs).unwrap() > first.get(), "{theirs} after {first}");
    // It is far ahead of the clock now.
    let far = 4_000_000_000_000_000_i64;
    assert_eq!(server.command(&["SET", "redisson_lock_token:{door}", &far.to_string()]), "OK");
    let held = request("door");
    assert_eq!(fence_of(&*store, &held).await.get(), u64::try_from(far).unwrap() + 1);
    gives_up(&*store, &held).await;
    assert_eq!(server.command(&["SET", "redisson_lock_token:{door}", "many"]), "OK");
    let error = store.acquire(&request("door")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("redisson_lock_token:{door}"), "{error}");
    assert_eq!(server.command(&["EXISTS", "door"]), 0, "nothing was taken");
}

#[tokio::test]
async fn fences_rise_when_the_server_has_lost_its_data() {
    let (server, store) = redisson("").await;
    let before = fence_of(&*store, &request("door")).await;
    assert_eq!(server.command(&["FLUSHALL"]), "OK");
    let after = fence_of(&*store, &request("door")).await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test]
async fn other_objects_of_redisson_are_refused_and_left_alone() {
    let (server, store) = redisson("").await;
    for fields in [&["mode", "read"][..], &["mode", "fast", "size", "9"], &["color", "red", "size", "9"]] {
        assert_eq!(server.command(&[&["HSET", "door"], fields].concat()).int(), i64::try_from(fields.len() / 2).unwrap());
        let (error, held) = (store.acquire(&request("door")).await.unwrap_err(), request("door"));
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
        assert_eq!(words(&server.command(&["HKEYS", "door"])).len(), fields.len() / 2);
        assert_eq!(server.command(&["DEL", "door"]), 1);
    }
}

/// A supplied token that asks to take over from itself holds already, or does not.
#[tokio::test]
async fn nobody_takes_over_from_itself() {
    let (server, store) = redisson("").await;
    let owner = Owner::from_bytes(&b"mine"[..]);
    let asks = || request("door").with_owner(owner.clone()).with_generated(false);
    fence_of(&*store, &asks()).await;
    is_busy(&*store, &asks().with_from(owner.clone())).await;
    assert_eq!(server.command(&["EXISTS", "door"]), 1);
}

/// An object with more fields is no lock: nothing of it is deleted by its fields.
#[tokio::test]
async fn a_map_is_no_lock_to_release() {
    let (server, store) = redisson("").await;
    assert_eq!(server.command(&["HSET", "door", "a", "1", "b", "2"]), 2);
    let name = Name::new("door").unwrap();
    assert_eq!(store.inspect(Some(&name)).await.unwrap_err().kind(), ErrorKind::Mismatch);
    let lease = tenure::Lease::new(name, Owner::from_bytes(&b"a"[..]), Share::MUTEX, LONG);
    assert_eq!(store.release(&lease, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert!(matches!(store.renew(&[lease]).await[..], [Ok(RenewReply::Gone)]));
    assert_eq!(server.command(&["HLEN", "door"]), 2);
}

/// The first try had no answer, so it may have been applied. The error still says so when it also names the lock.
#[tokio::test]
async fn a_lock_that_is_named_leaves_open_what_was_open() {
    let (server, proxy, store) = behind_proxy("4s").await;
    let warm = request("warm");
    fence_of(&store, &warm).await;
    gives_up(&store, &warm).await;
    assert_eq!(server.command(&["HSET", "door", THEIRS, "1"]), 1);
    proxy.swallow_reply(4);
    let error = store.acquire(&request("door")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Mismatch && error.to_string().contains("an RLock of Redisson"), "{error}");
    assert!(error.may_have_been_applied(), "{error}");
}

/// A user who may not do all that a grant needs is refused before it takes anything: a hash without a ttl stays for ever.
#[tokio::test]
async fn who_may_not_do_all_of_it_takes_nothing() {
    const OF_A_MUTEX: &[&str] = &["pexpire", "hincrby", "hdel", "hlen", "set"];
    const OF_A_SHARE: &[&str] = &["pexpire", "hset", "hdel", "hlen", "set"];
    for (share, commands) in [(Share::MUTEX, OF_A_MUTEX), (Share::READ, OF_A_SHARE), (Share::WRITE, OF_A_SHARE)] {
        for forbidden in commands {
            let server = Lent::alone();
            let store = opened(&server, "").await;
            assert_eq!(server.command(&["ACL", "SETUSER", "default", &format!("-{forbidden}")]), "OK");
            let error = store.acquire(&shared("door", share)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{share:?} {forbidden}: {error}");
            assert_eq!(server.command(&["EXISTS", "door"]), 0, "{share:?} {forbidden}");
        }
    }
}

/// Of several waiters of one process, each hears of a release, also after the connection was replaced. The last one to leave ends
/// the subscription.
#[tokio::test]
async fn waiters_hear_of_a_release() {
    let (server, store) = redisson("").await;
    let other = opened(&server, "").await;
    let (mut first, mut second) = (store.watch(&request("door")).await.unwrap(), store.watch(&request("door")).await.unwrap());
    let listeners = || words(&server.command(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{door}"]))[1].clone();
    assert_eq!(listeners(), "1", "one subscription for all of them");
    let releases = async || {
        let held = request("door");
        fence_of(&*other, &held).await;
        gives_up(&*other, &held).await;
    };
    releases().await;
    for waiter in [&mut first, &mut second] {
        assert_eq!(timeout(PATIENCE, waiter.next()).await.unwrap(), Some(Notice::Changed));
    }
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    // The listeners have to look, and are notified of the next release.
    for waiter in [&mut first, &mut second] {
        fence_of(&*store, &request("other")).await;
        assert_eq!(timeout(PATIENCE, waiter.next()).await.unwrap(), Some(Notice::Changed));
        server.command(&["DEL", "other"]);
    }
    releases().await;
    for waiter in [&mut first, &mut second] {
        assert_eq!(timeout(PATIENCE, waiter.next()).await.unwrap(), Some(Notice::Changed));
    }
    drop(first);
    assert_eq!(listeners(), "1", "the second still listens");
    drop(second);
    let left = async {
        while listeners() != "0" {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, left).await.expect("the subscription stays");
}

/// A user may listen to one channel and not to another: a waiter that hears nothing polls, beside one that is notified.
#[tokio::test]
async fn a_waiter_whose_channel_is_forbidden_polls() {
    let server = Lent::alone();
    let channels = ["resetchannels", "&redisson_lock__channel:{open}"];
    assert_eq!(server.command(&[&["ACL", "SETUSER", "default"][..], &channels].concat()), "OK");
    let store = opened(&server, "").await;
    let polls = async |name: &str| {
        assert!(server.command(&["HSET", name, THEIRS, "1"]) != 2);
        let waiter = store.watch(&request(name)).await.unwrap();
        match store.acquire(&request(name)).await.unwrap() {
            AcquireReply::Busy(busy) => (busy.poll_interval, waiter),
            other => panic!("{name}: {other:?}"),
        }
    };
    let slow = Duration::from_secs(1);
    let open = polls("open").await;
    assert!(open.0 >= slow, "{:?}", open.0);
    let shut = polls("shut").await;
    assert!(shut.0 < slow, "it hears nothing: {:?}", shut.0);
    let beside = polls("open").await;
    assert!(beside.0 >= slow, "the other's channel is as it was: {:?}", beside.0);
    // With a new connection all of it is asked for anew.
    assert_eq!(server.command(&["ACL", "SETUSER", "default", "allchannels"]), "OK");
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let allowed = async { while polls("shut").await.0 < slow {} };
    timeout(PATIENCE, allowed).await.expect("the channel is allowed now");
}

/// Redisson ends the renewals of a writer that has read. Here each lease is renewed for itself.
#[tokio::test]
async fn a_writer_is_renewed_whoever_reads_beside_it() {
    let (server, store) = redisson("").await;
    let (site, page) = (shared("site", Share::WRITE), shared("page", Share::WRITE));
    fence_of(&*store, &site).await;
    is_busy(&*store, &shared("site", Share::READ)).await;
    // The writer that reads on, and another reader of the same process that comes and goes.
    fence_of(&*store, &page).await;
    let page = page.with_share(Share::READ);
    fence_of(&*store, &page).await;
    let beside = shared("page", Share::READ);
    fence_of(&*store, &beside).await;
    gives_up(&*store, &beside).await;
    for (name, held) in [("site", &site), ("page", &page)] {
        assert_eq!(server.command(&["PEXPIRE", name, "9000"]), 1);
        assert_eq!(renewal(&*store, held).await, RenewReply::Renewed, "{name}");
        assert!((9_001..=60_000).contains(&server.command(&["PTTL", name]).int()), "{name}");
        gives_up(&*store, held).await;
        assert_eq!(server.command(&["EXISTS", name]), 0, "{name}");
    }
}

/// An `RSemaphore` never gets back what a dead client of it has. Permits of ours end, and the next of ours that asks gives them back.
#[tokio::test]
async fn a_permit_of_one_that_was_not_heard_of_again_comes_back() {
    let (server, store) = redisson("").await;
    assert_eq!(server.command(&["SET", "pool", "2"]), "OK");
    let all = Share::permits(2, 2).unwrap();
    let died = Request::new(Name::new("pool").unwrap(), Owner::generate("web-1").unwrap(), all, Duration::from_millis(300));
    fence_of(&*store, &died).await;
    assert_eq!(server.command(&["GET", "pool"]).text(), "0");
    let next = shared("pool", Share::permits(1, 2).unwrap());
    let granted = async {
        while !matches!(store.acquire(&next).await.unwrap(), AcquireReply::Granted(_)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, granted).await.expect("the permits of the dead come back");
    assert_eq!((server.command(&["GET", "pool"]).text(), server.command(&["ZCARD", "{pool}:timeout"]).int()), ("1".into(), 1));
    // It comes too late, and gives nothing back twice.
    assert_eq!(store.release(&died.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert_eq!(server.command(&["GET", "pool"]).text(), "1");
}

const QUEUE: &str = "redisson_lock_queue:{door}";
const DUES: &str = "redisson_lock_timeout:{door}";

/// One that waits at the fair lock, in a process of its own so far as the server knows, behind as many.
async fn waits(server: &RedisServer, before: i64) -> JoinHandle<Guard> {
    let locks = fair(server).await;
    let waiting = tokio::spawn(async move { locks.mutex("door").acquire().await.unwrap() });
    wait_until(PATIENCE, "a place in the queue", || server.command(&["LLEN", QUEUE]) == before + 1);
    waiting
}

async fn fair(server: &RedisServer) -> Locker {
    Locker::builder(open(server, "scheme=redisson-fair").await).ttl(LONG).build().unwrap()
}

async fn comes(waiting: JoinHandle<Guard>) -> Guard {
    timeout(PATIENCE, waiting).await.expect("its turn comes").unwrap()
}

/// The server's clock is that of all our waiters: hosts an hour behind it and an hour ahead of it lose no place.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_ours_keep_their_places_whatever_their_hosts_clocks_say() {
    let server = RedisServer::builder().shifted_clock().start();
    for hour in [3_600_000, -3_600_000] {
        server.shift_clock(hour);
        let holder = fair(&server).await.mutex("door").acquire().await.unwrap();
        let first = waits(&server, 0).await;
        let second = waits(&server, 1).await;
        holder.release().await.unwrap();
        let first = comes(first).await;
        assert!(!second.is_finished(), "{hour}: the second was served with the first");
        first.release().await.unwrap();
        comes(second).await.release().await.unwrap();
    }
}

/// A client of Redisson whose clock is ahead drops who waits in front of it. Ours queues again, at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_ours_that_a_fast_clock_drops_is_served_later() {
    let server = Lent::alone();
    let holder = fair(&server).await.mutex("door").acquire().await.unwrap();
    let dropped = waits(&server, 0).await;
    let behind = waits(&server, 1).await;
    // What such a client does to the head that its clock says is due.
    let head = server.command(&["LPOP", QUEUE]).text();
    assert_eq!(server.command(&["ZREM", DUES, &head]), 1);
    // With a token of its own: one that has lapsed is not queued again.
    wait_until(PATIENCE, "another place", || server.command(&["LLEN", QUEUE]) == 2);
    assert!(!words(&server.command(&["LRANGE", QUEUE, "0", "-1"])).contains(&head));
    holder.release().await.unwrap();
    let behind = comes(behind).await;
    assert!(behind.state() == State::Held && !dropped.is_finished(), "the place was lost");
    behind.release().await.unwrap();
    comes(dropped).await.release().await.unwrap();
}

/// Our permits outlive a semaphore with a ttl. Permits that have ended keep nobody out when the semaphore was deleted.
#[tokio::test]
async fn permits_outlive_their_semaphore() {
    let (server, store) = redisson("").await;
    let permits = || shared("pool", Share::permits(2, 2).unwrap());
    assert_eq!(server.command(&["SET", "pool", "2", "PX", "60000"]), "OK");
    let held = permits();
    fence_of(&*store, &held).await;
    // As Redisson does with each of its own acquisitions.
    assert_eq!(server.command(&["PEXPIRE", "{pool}:timeout", "2000"]), 1);
    assert_eq!(renewal(&*store, &held).await, RenewReply::Renewed);
    assert!(server.command(&["PTTL", "{pool}:timeout"]).int() > 2_000);
    server.command(&["PEXPIRE", "pool", "1"]);
    wait_until(PATIENCE, "the end of the semaphore", || server.command(&["EXISTS", "pool"]) == 0);
    is_busy(&*store, &permits()).await;
    assert_eq!(store.inspect(Some(&held.name)).await.unwrap()[0].holders[0].owner, held.owner);
    gives_up(&*store, &held).await;
    assert_eq!(server.command(&["ZADD", "{pool}:timeout", "1", "of the dead", "2", "of another"]), 2);
    fence_of(&*store, &permits()).await;
}

/// By its own clock a client of Redisson may give back a part of a share. No permit is lost or made by that.
#[tokio::test]
async fn permits_that_others_gave_back_are_not_counted_twice() {
    let (server, store) = redisson("").await;
    let held = shared("pool", Share::permits(3, 10).unwrap());
    fence_of(&*store, &held).await;
    let field = server.command(&["ZRANGE", "{pool}:timeout", "0", "0"]);
    let first = words(&field)[0].clone();
    assert_eq!(
        (server.command(&["ZREM", "{pool}:timeout", &first]), server.command(&["INCR", "pool"])),
        (Reply::Int(1), Reply::Int(8))
    );
    assert_eq!(store.acquire(&held).await.unwrap_err().kind(), ErrorKind::Invalid, "it is no share any more");
    assert_eq!(renewal(&*store, &held).await, RenewReply::Gone);
    gives_up(&*store, &held).await;
    assert_eq!((server.command(&["GET", "pool"]).text(), server.command(&["EXISTS", "{pool}:timeout"]).int()), ("10".into(), 0));
}

/// A supplied token may have any bytes.
#[tokio::test]
async fn a_token_with_a_byte_zero_is_a_token() {
    let (_server, store) = redisson("").await;
    let given = |token: &'static [u8], share| {
        request("door").with_owner(Owner::from_bytes(token)).with_share(share).with_generated(false)
    };
    let reader = given(b"t\0k", Share::READ);
    fence_of(&*store, &reader).await;
    is_busy(&*store, &shared("door", Share::WRITE)).await;
    gives_up(&*store, &reader).await;
    let one = Share::permits(1, 2).unwrap();
    let [first, second] = [&b"x\0one"[..], b"x\0two"].map(|token| given(token, one).with_name(Name::new("pool").unwrap()));
    fence_of(&*store, &first).await;
    assert_eq!(store.release(&second.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    gives_up(&*store, &first).await;
}

/// A user with the rights to the keys alone, and to no channel, takes and releases all the same.
#[tokio::test]
async fn who_may_use_no_channel_releases_all_the_same() {
    let server = Lent::alone();
    let (mutex, reader) = (request("door"), shared("site", Share::READ));
    let permits = shared("pool", Share::permits(1, 2).unwrap());
    for key in ["door", "site", "pool", "redisson_lock_token:*", "{site}:*", "{pool}:timeout"] {
        server.command(&["ACL", "SETUSER", "keys", "on", "nopass", "+@all", &format!("~{key}")]);
    }
    let url = server.url().replace("redis://", "redis://keys:any@");
    let store = open_url(&format!("{url}?scheme=redisson")).await;
    for request in [mutex, reader, permits] {
        fence_of(&*store, &request).await;
        assert_eq!(store.inspect(Some(&request.name)).await.unwrap()[0].holders[0].owner, request.owner);
        gives_up(&*store, &request).await;
    }
}

/// Nothing of it has to be written first for which there is no room.
#[tokio::test]
async fn a_full_server_lets_go() {
    let server = Lent::alone();
    let (store, fair) = (opened(&server, "").await, opened(&server, "-fair").await);
    let (reader, permits) = (shared("site", Share::READ), shared("pool", Share::permits(1, 2).unwrap()));
    for request in [&reader, &permits] {
        fence_of(&*store, request).await;
    }
    let (first, second, third) = (request("door"), request("door"), request("door"));
    fence_of(&*fair, &first).await;
    for waiter in [&second, &third] {
        let answer = fair.acquire(&joining(waiter.clone())).await.unwrap();
        assert!(matches!(answer, AcquireReply::Busy(_)), "{answer:?}");
    }
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    assert_eq!(store.release(&reader.lease(), LONG).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&permits.lease(), LONG).await.unwrap(), ReleaseReply::Released);
    assert_eq!(fair.release(&second.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    gives_up(&*fair, &first).await;
    assert_eq!(words(&server.command(&["HKEYS", "door"])).len(), 1, "the third was served");
}

/// A waiter of Redisson keeps its place when one of ours in front of it has waited for longer than Redisson counts on.
#[tokio::test]
async fn who_waits_behind_one_of_ours_keeps_its_place() {
    let (server, store) = redisson("-fair").await;
    let (holder, ours) = (request("door"), request("door"));
    fence_of(&*store, &holder).await;
    is_busy(&*store, &joining(ours.clone())).await;
    // Theirs came six minutes ago, just behind it.
    let due = |ms: i64| {
        let time = words(&server.command(&["TIME"]));
        (time[0].parse::<i64>().unwrap() * 1_000 + ms).to_string()
    };
    assert_eq!(server.command(&["RPUSH", "redisson_lock_queue:{door}", THEIRS]), 2);
    assert_eq!(server.command(&["ZADD", "redisson_lock_timeout:{door}", &due(270_000), THEIRS]), 1);
    gives_up(&*store, &holder).await;
    gives_up(&*store, &ours).await;
    assert!(matches!(store.acquire(&request("door")).await.unwrap(), AcquireReply::Busy(_)), "theirs is next");
    assert_eq!(words(&server.command(&["LRANGE", "redisson_lock_queue:{door}", "0", "-1"])), [THEIRS]);
}

/// Many that died in the queue cost one who comes little, and the server as well.
#[tokio::test]
async fn a_crowd_of_the_dead_in_the_queue_is_passed_soon() {
    let (server, store) = redisson("-fair").await;
    let names: Vec<String> = (0..6_000).map(|n| format!("00d0c0f4-3b6b-4d1c-8b7e-{n:012x}:web.")).collect();
    for some in names.chunks(500) {
        let owners: Vec<&str> = some.iter().map(String::as_str).collect();
        server.command(&[&["RPUSH", "redisson_lock_queue:{door}"], &owners[..]].concat());
        let dues: Vec<&str> = owners.iter().flat_map(|owner| ["99999999999999", owner]).collect();
        server.command(&[&["ZADD", "redisson_lock_timeout:{door}"], &dues[..]].concat());
    }
    let began = std::time::Instant::now();
    while !matches!(store.acquire(&request("door")).await.unwrap(), AcquireReply::Granted(_)) {}
    assert!(began.elapsed() < Duration::from_secs(3), "took {:?}", began.elapsed());
}

/// Two names whose keys beside them are the same would be served for each other.
#[tokio::test]
async fn names_that_share_their_keys_are_refused() {
    let server = Lent::alone();
    let error = opened(&server, "-fair").await.acquire(&request("{door}")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("braces"), "{error}");
    let error = opened(&server, "").await.acquire(&shared("{door}", Share::READ)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    fence_of(&*opened(&server, "").await, &request("{door}")).await;
}
