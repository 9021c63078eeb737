//! The grant counter of a Redis, and who can spoil it: by a push, by a bad value, by the clock. Attackers are users with the rights they have.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use tenure::store::{AcquireReply, Enqueue, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{EndReason, ErrorKind, Fence, Guard, Lease, Locker, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::{Client, RedisServer, Reply, wait_until};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{HANDOFF_TTL, LONG, PATIENCE, is_handed_over, patient, store};

const SECOND: u64 = 1_000_000;

async fn locks(server: &RedisServer, scheme: &str) -> Locker {
    tenure_redis::connect(&patient(&format!("{}?scheme={scheme}", server.url()))).await.unwrap()
}

fn request(name: &str) -> Request {
    let (name, owner) = (Name::new(name).unwrap(), Owner::generate("counter").unwrap());
    Request::new(name, owner, Share::MUTEX, LONG)
}

/// The server's time, as the counter has it.
fn clock(server: &RedisServer) -> u64 {
    let time = server.cli("TIME");
    let mut parts = time.split_whitespace().map(|part| part.parse::<u64>().unwrap());
    (parts.next().unwrap() - 1_767_225_600) * SECOND + parts.next().unwrap()
}

fn stored(server: &RedisServer) -> u64 {
    server.cli("GET tenure:fence").parse().unwrap()
}

/// A user who may read everything and publish everywhere, and write nothing.
struct Reader(Client);

impl Reader {
    fn on(server: &RedisServer) -> Self {
        server.cli("ACL SETUSER reader on >reader ~* &* -@all +@read +publish +auth");
        let mut client = Client::connect(server.addr(), PATIENCE).unwrap();
        assert_eq!(client.command(&["AUTH", "reader", "reader"]).unwrap(), "OK");
        let refused = client.command(&["SET", "tenure:fence", "1"]).unwrap();
        assert!(matches!(&refused, Reply::Error(text) if text.starts_with("NOPERM")), "{refused:?}");
        Self(client)
    }

    fn told(&mut self, words: &[&str]) -> String {
        self.0.command(words).unwrap().text()
    }

    /// The first who waits for a name, and where it hears.
    fn ear(&mut self, name: &str) -> (String, String) {
        let queue = self.told(&["KEYS", &format!("*:q:{name}")]);
        let owner = self.told(&["ZRANGE", &queue, "0", "0"]);
        let place = self.told(&["HGET", &queue.replacen(":q:", ":p:", 1), &owner]);
        (owner, place.rsplit(' ').next().unwrap().to_owned())
    }

    fn publish(&mut self, (owner, channel): &(String, String), counter: u64) {
        assert_eq!(self.0.command(&["PUBLISH", channel, &format!("{counter}:1500 {owner}")]).unwrap(), 1);
    }
}

/// A holder, and a waiter of another process.
async fn held_and_waited_for(server: &RedisServer) -> (Guard, Locker, JoinHandle<Guard>) {
    let (theirs, ours) = (locks(server, "native").await, locks(server, "native").await);
    let held = theirs.mutex("door").ttl(LONG).acquire().await.unwrap();
    let acquire = ours.mutex("door").ttl(LONG);
    let waiting = tokio::spawn(async move { acquire.acquire().await.unwrap() });
    wait_until(PATIENCE, "the waiter", || !server.cli("KEYS *:q:door").is_empty());
    (held, ours, waiting)
}

/// The counter is where it was, and all who ask get fences of it.
async fn counts_as_before(server: &RedisServer, ours: &Locker) {
    // So that the counter is raised again.
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    for (who, locks) in [("who heard it", ours), ("another", &locks(server, "native").await)] {
        for name in ["gate", "attic"] {
            let guard = timeout(PATIENCE, locks.mutex(name).acquire()).await.expect("it is free").unwrap();
            let (fence, now) = (guard.fence().unwrap().counter(), clock(server));
            assert!(fence <= now + 10, "{who} got {fence}, the clock is at {now}");
            let _ = guard.release().await.unwrap();
        }
    }
    assert!(stored(server) <= clock(server) + 10, "the counter was moved");
}

/// A number that time does not explain is no hand-over, whichever client pushes it. The counter is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_from_far_ahead_is_at_most_a_reason_to_ask() {
    let server = RedisServer::start();
    let mut reader = Reader::on(&server);
    let (held, ours, waiting) = held_and_waited_for(&server).await;
    let ear = reader.ear("door");
    for counter in [Fence::MAX_COUNTER, Fence::MAX_COUNTER - 1, 1 << 52, stored(&server) + 60 * SECOND] {
        reader.publish(&ear, counter);
    }
    counts_as_before(&server, &ours).await;
    assert!(!waiting.is_finished(), "it took a forged push for a hand-over");
    let since = Instant::now();
    let _ = held.release().await.unwrap();
    let guard = timeout(PATIENCE, waiting).await.expect("it was not handed over").unwrap();
    assert!(guard.fence().unwrap().counter() <= clock(&server) + 10);
    is_handed_over(&guard, since).await;
}

/// A guard that holds, another locker, and the guard of a waiter that took a forged push for a hand-over.
async fn believed_by_a_forged_push(server: &RedisServer) -> (Guard, Locker, Guard) {
    let mut reader = Reader::on(server);
    let (held, ours, mut waiting) = held_and_waited_for(server).await;
    let began = Instant::now();
    loop {
        let ear = reader.ear("door");
        reader.publish(&ear, stored(server) + 5 * SECOND);
        // Too long after its last heartbeat a push is only a reason for the next one.
        if let Ok(guard) = timeout(HANDOFF_TTL / 5, &mut waiting).await {
            return (held, ours, guard.unwrap());
        }
        assert!(began.elapsed() < PATIENCE, "it did not take the push for a hand-over");
    }
}

/// Its first renewal ends it, within a `handoff_ttl`.
async fn is_found_out(guard: &Guard) {
    let (began, left) = (Instant::now(), guard.remaining());
    let lost = timeout(PATIENCE, guard.lost()).await.expect("it is renewed");
    let took = began.elapsed();
    // Without an answer in time it expires.
    assert!(lost == EndReason::Gone || lost == EndReason::Expired && took >= left, "{lost:?} after {took:?} of {left:?}");
    assert!(lost == EndReason::Gone && took < HANDOFF_TTL, "{lost:?} only after {took:?}");
}

/// A user who may read the queue and publish can make a waiter regard itself as the holder for a `handoff_ttl`. The counter is not
/// touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_push_is_believed_for_one_claim_and_moves_no_counter() {
    let server = RedisServer::start();
    let (held, ours, guard) = believed_by_a_forged_push(&server).await;
    is_found_out(&guard).await;
    counts_as_before(&server, &ours).await;
    held.verify().await.unwrap();
}

/// A push that comes just before the real hand-over gives a fence that the server never made: it is not kept either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_fence_ends_with_the_first_renewal_of_a_real_lease() {
    let server = RedisServer::start();
    let (held, ours, guard) = believed_by_a_forged_push(&server).await;
    let _ = held.release().await.unwrap();
    assert_eq!(server.cli("GET door"), guard.token().to_string(), "the name is its own by now");
    is_found_out(&guard).await;
    wait_until(PATIENCE, "the end of the handoff_ttl", || server.cli("EXISTS door") == "0");
    counts_as_before(&server, &ours).await;
}

/// A source of ids asks whether a push is true. A guard would find out at its renewal, and a block is never renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_push_gives_no_id() {
    let server = RedisServer::start();
    let mut reader = Reader::on(&server);
    let (theirs, one, two) = (locks(&server, "native").await, locks(&server, "native").await, locks(&server, "native").await);
    let (ids, others) = (one.ids("door"), two.ids("door"));
    // Its connection has raised the counter a moment ago, so its next block is the number after the last.
    for _ in 0..1_024 {
        others.next().await.unwrap();
    }
    two.flush_releases().await;
    let held = theirs.mutex("door").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { ids.next().await.unwrap() });
    wait_until(PATIENCE, "the source to wait", || !server.cli("KEYS *:q:door").is_empty());
    let ear = reader.ear("door");
    reader.publish(&ear, stored(&server) + 1);
    // A source that takes it for a grant has its block by then, and another gets the same one.
    tokio::time::sleep(HANDOFF_TTL / 5).await;
    held.verify().await.unwrap();
    let early = waiting.is_finished();
    let _ = held.release().await.unwrap();
    let second = timeout(PATIENCE, others.next()).await.expect("no id").unwrap();
    let first = timeout(PATIENCE, waiting).await.expect("no id").unwrap();
    assert_ne!(first, second, "an id was given twice");
    assert!(!early, "it gave an id while another held the name");
}

/// A user whose rights were withdrawn gets no id, and an error that says why.
#[tokio::test]
async fn a_source_of_ids_that_is_refused_says_so() {
    let server = RedisServer::start();
    server.cli("ACL SETUSER app on >app ~* &* +@all");
    let url = server.url().replacen("redis://", "redis://app:app@", 1);
    let ids = tenure_redis::connect(&url).await.unwrap().ids("door");
    let first = ids.next().await.unwrap();
    for _ in 1..1_024 {
        ids.next().await.unwrap();
    }
    server.cli("ACL SETUSER app -@all +ping");
    let error = timeout(PATIENCE, ids.next()).await.expect("no error").unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("NOPERM"), "{error:?}");
    server.cli("ACL SETUSER app +@all");
    assert!(timeout(PATIENCE, ids.next()).await.unwrap().unwrap() >= first + 1_024);
}

/// A name that a push has handed to a waiter: the waiter's store, and its lease, which was not renewed yet.
async fn handed_over(server: &RedisServer, scheme: &str) -> (impl Store + use<>, Lease) {
    let open = async || Options::parse(&format!("{}?scheme={scheme}", server.url())).unwrap().open().await.unwrap();
    let (theirs, ours) = (open().await, open().await);
    let held = request("door");
    assert!(matches!(theirs.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    let waiting = request("door").with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: PATIENCE });
    let mut notices = ours.watch(&waiting).await.unwrap();
    assert!(matches!(ours.acquire(&waiting).await.unwrap(), AcquireReply::Busy(_)));
    let lease = |Request { name, owner, share, ttl, .. }: Request, fence| Lease::new(name, owner, share, ttl).with_fence(fence);
    assert_eq!(theirs.release(&lease(held, None), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    loop {
        if let Some(Notice::Granted { fence, .. }) = timeout(PATIENCE, notices.next()).await.expect("nothing was heard") {
            return (ours, lease(waiting, Some(fence)));
        }
    }
}

async fn is_renewed(store: &impl Store, lease: &Lease) -> bool {
    match store.renew(std::slice::from_ref(lease)).await[..] {
        [Ok(renewal)] => renewal == RenewReply::Renewed,
        ref other => panic!("{other:?}"),
    }
}

/// A counter that is gone, was set back or is no number says nothing of a fence that was pushed: what the store keeps is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_spoilt_after_a_hand_over_costs_no_lease() {
    for scheme in ["native", "watch"] {
        for spoil in ["SET tenure:fence soon", "SET tenure:fence 5", "HSET tenure:fence field 1", ""] {
            let server = RedisServer::start();
            let (ours, lease) = handed_over(&server, scheme).await;
            server.cli("DEL tenure:fence");
            if !spoil.is_empty() {
                server.cli(spoil);
            }
            for time in ["first", "second"] {
                assert!(is_renewed(&ours, &lease).await, "{scheme} {spoil:?}: told lost at its {time} renewal");
            }
            let left: u64 = server.cli("PTTL door").parse().unwrap();
            assert!(Duration::from_millis(left) > PATIENCE, "{scheme} {spoil:?}: kept for {left} ms");
        }
    }
}

/// A fence that is above the counter was forged. The lease is not renewed, however often it is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pushed_fence_above_the_counter_is_not_renewed() {
    for scheme in ["native", "watch"] {
        let server = RedisServer::start();
        let (ours, lease) = handed_over(&server, scheme).await;
        let forged = lease.fence.unwrap().counter() + 3_600 * SECOND;
        let forged = lease.clone().with_fence(Fence::from_counter(forged));
        for time in ["first", "second"] {
            assert!(!is_renewed(&ours, &forged).await, "{scheme}: kept at its {time} renewal");
        }
        let left: u64 = server.cli("PTTL door").parse().unwrap();
        assert!(Duration::from_millis(left) < LONG / 2, "{scheme}: kept for {left} ms");
        assert!(is_renewed(&ours, &lease).await, "{scheme}: what the server gave is lost");
    }
}

/// Only the process that heard a push has anything to find out: another has seen no counter, and renews what the store keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_counter_costs_no_lease_that_a_reply_granted() {
    for scheme in ["native", "watch"] {
        let server = RedisServer::start();
        let (one, two) = (locks(&server, scheme).await, locks(&server, scheme).await);
        let lease = one.mutex("door").ttl(LONG).acquire().await.unwrap().into_lease();
        server.cli("DEL tenure:fence");
        for (who, locks) in [("its process", &one), ("another", &two)] {
            assert!(locks.renew(&lease).await.is_ok(), "{scheme}: told lost to {who}");
        }
    }
}

/// A holder whose number is near the end goes on when somebody deletes the counter, and others are granted smaller ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_by_a_number_near_the_end_outlives_it() {
    for scheme in ["native", "watch"] {
        let server = RedisServer::start();
        let locks = locks(&server, scheme).await;
        server.cli(&format!("SET tenure:fence {}", Fence::MAX_COUNTER - 1_000));
        let lease = locks.mutex("door").ttl(LONG).acquire().await.unwrap().into_lease();
        server.cli("DEL tenure:fence");
        counts_as_before(&server, &locks).await;
        let renewed = locks.renew(&lease).await;
        assert!(renewed.is_ok(), "{scheme}: {renewed:?}");
    }
}

/// The same for one who was handed the name by such a number, also where the process has forgotten it by its first renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_by_a_number_near_the_end_outlives_it() {
    for scheme in ["native", "watch"] {
        let server = RedisServer::start();
        server.cli(&format!("SET tenure:fence {}", Fence::MAX_COUNTER - 1_000));
        let (ours, lease) = handed_over(&server, scheme).await;
        server.cli("DEL tenure:fence");
        assert!(matches!(ours.acquire(&request("gate")).await.unwrap(), AcquireReply::Granted(_)));
        assert!(stored(&server) < lease.fence.unwrap().counter(), "{scheme}: the number came back");
        assert!(is_renewed(&ours, &lease).await, "{scheme}: told lost");
    }
}

/// If the counter holds a bad value, the error says what to do. That helps, also the clients that have seen the value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spoilt_counter_is_told_and_mended_by_deleting_it() {
    let number = |number: u64| vec!["SET".to_owned(), "tenure:fence".to_owned(), number.to_string()];
    let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let spoilt = [
        number(Fence::MAX_COUNTER),
        number(1 << 60),
        words("SET tenure:fence -5"),
        words("SET tenure:fence 1e3"),
        words("SET tenure:fence soon\x1b[31m"),
        words(&format!("SET tenure:fence {}", "9".repeat(100_000))),
        words("HSET tenure:fence field 1"),
        words("RPUSH tenure:fence 1"),
    ];
    let cases = ["native", "watch"].into_iter().flat_map(|scheme| spoilt.iter().map(move |spoil| is_mended(scheme, spoil)));
    join_all(cases).await;
}

async fn is_mended(scheme: &str, spoil: &[String]) {
    let server = RedisServer::start();
    let (locks, case) = (locks(&server, scheme).await, format!("{scheme} {:.40}", spoil.join(" ")));
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    // Within the second in which the counter is trusted, and after it.
    for pause in [Duration::ZERO, Duration::from_millis(1_050)] {
        server.cli("DEL tenure:fence");
        server.command(spoil);
        tokio::time::sleep(pause).await;
        let error = locks.mutex("door").ttl(LONG).acquire().await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Refused, "{case}: {text}");
        assert!(text.contains("counter") && text.contains("delete the key tenure:fence"), "{case}: {text}");
        assert!(text.len() < 500 && !text.contains('\x1b'), "{case}: {text}");
        timeout(PATIENCE, locks.flush_releases()).await.unwrap();
        assert_eq!(server.cli("EXISTS door"), "0", "{case}: the name was left taken");
    }
    server.cli("DEL tenure:fence");
    counts_as_before(&server, &locks).await;
}

/// A number near the end that somebody wrote is counted from while it stands, and does not come back when it was deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_near_the_end_does_not_outlive_its_key() {
    for scheme in ["native", "watch"] {
        let server = RedisServer::start();
        let locks = locks(&server, scheme).await;
        let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        server.cli(&format!("SET tenure:fence {}", Fence::MAX_COUNTER - 1_000));
        let guard = locks.mutex("door").acquire().await.unwrap();
        assert!(guard.fence().unwrap().counter() > Fence::MAX_COUNTER - 1_000, "{guard:?}");
        let _ = guard.release().await.unwrap();
        server.cli("DEL tenure:fence");
        counts_as_before(&server, &locks).await;
    }
}

/// A clock that cannot be right makes no numbers, and what is kept stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_from_another_century_uses_up_no_numbers() {
    let server = RedisServer::builder().shifted_clock().start();
    let locks = locks(&server, "native").await;
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    let before = stored(&server);
    server.shift_clock(150 * 365 * 24 * 3_600 * 1_000);
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    let error = locks.mutex("door").ttl(LONG).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("clock"), "{error}");
    timeout(PATIENCE, locks.flush_releases()).await.unwrap();
    assert!(stored(&server) <= before + 10, "{} after {before}", stored(&server));
    server.shift_clock(0);
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    let _ = locks.mutex("gate").acquire().await.unwrap();
}

/// A counter that fell back by as much as one grant makes no fence twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_fell_back_by_one_makes_no_fence_twice() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let fence = async |name| match store.acquire(&request(name)).await.unwrap() {
        AcquireReply::Granted(grant) => grant.fence.unwrap(),
        other => panic!("{other:?}"),
    };
    let before = fence("a").await;
    server.cli(&format!("SET tenure:fence {}", before.counter() - 1));
    let after = fence("b").await;
    assert!(after > before, "{after:?} after {before:?}");
}

/// A waiter that is refused for a counter that cannot be used leaves no queue entry: neither a new one nor an earlier one.
#[tokio::test]
async fn a_refused_waiter_leaves_no_entry() {
    let join = Enqueue::Join { entry_ttl: LONG, handoff_ttl: LONG };
    for spoil in
        [&["SET", "tenure:fence", "many"][..], &["SET", "tenure:fence", "9007199254740991"], &["RPUSH", "tenure:fence", "x"]]
    {
        for share in [Share::MUTEX, Share::READ] {
            let server = RedisServer::start();
            let store = store(&patient(&server.url())).await;
            let (held, early, late) = (request("door"), request("door").with_share(share), request("door").with_share(share));
            assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
            assert!(matches!(store.acquire(&early.clone().with_enqueue(join)).await.unwrap(), AcquireReply::Busy(_)));
            server.command(&["DEL", "tenure:fence"]);
            server.command(spoil);
            for waiter in [&late, &early] {
                let error = store.acquire(&waiter.clone().with_enqueue(join)).await.unwrap_err();
                assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("grant counter"), "{spoil:?}: {error}");
                assert!(!error.may_have_been_applied(), "{spoil:?}: {error}");
            }
            assert_eq!(server.cli("KEYS *:[qp]:door"), "", "{spoil:?}: an entry is left");
        }
    }
}
