//! The grant counter of a Redis, and who can spoil it: by a push, by a bad value, by the clock. Attackers are users with the rights they have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use tenure::store::{Notice, RenewReply, Store};
use tenure::{EndReason, ErrorKind, Fence, Guard, Lease, Locker, Share};
use tenure_testkit::{Client, RedisServer, Reply, wait_until};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::steps::{fence_of, gives_up, is_busy, joining, open, request, shared, takes};
use crate::subject::Lent;
use crate::{HANDOFF_TTL, LONG, PATIENCE, is_handed_over, patient, served};

const SECOND: u64 = 1_000_000;

async fn locks(server: &RedisServer, scheme: &str) -> Locker {
    tenure_redis::connect(&patient(&format!("{}?scheme={scheme}", server.url()))).await.unwrap()
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
    counts_at(server, "", ours).await;
}

async fn counts_at(server: &RedisServer, prefix: &str, ours: &Locker) {
    // So that the counter is raised again.
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    let another = locks(server, &format!("native&prefix={prefix}")).await;
    for (who, locks) in [("who heard it", ours), ("another", &another)] {
        for name in ["gate", "attic"] {
            let guard = timeout(PATIENCE, locks.mutex(name).acquire()).await.expect("it is free").unwrap();
            let (fence, now) = (guard.fence().unwrap().counter(), clock(server));
            assert!(fence <= now + 10, "{who} got {fence}, the clock is at {now}");
            let _ = guard.release().await.unwrap();
        }
    }
    let stored: u64 = server.cli(&format!("GET {prefix}tenure:fence")).parse().unwrap();
    assert!(stored <= clock(server) + 10, "the counter was moved to {stored}");
}

/// A number that time does not explain is no hand-over, whichever client pushes it. The counter is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_from_far_ahead_is_at_most_a_reason_to_ask() {
    let server = Lent::alone();
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
    let server = Lent::alone();
    let (held, ours, guard) = believed_by_a_forged_push(&server).await;
    is_found_out(&guard).await;
    counts_as_before(&server, &ours).await;
    held.verify().await.unwrap();
}

/// A push that comes just before the real hand-over gives a fence that the server never made: it is not kept either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_fence_ends_with_the_first_renewal_of_a_real_lease() {
    let server = Lent::alone();
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
    let server = Lent::alone();
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
    let server = Lent::alone();
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
async fn handed_over(server: &RedisServer, scheme: &str) -> (Arc<dyn Store>, Lease) {
    let scheme = format!("scheme={scheme}");
    let (theirs, ours) = (open(server, &scheme).await, open(server, &scheme).await);
    let (held, waiting) = (request("door"), joining(request("door")));
    takes(&*theirs, &held).await;
    let mut notices = ours.watch(&waiting).await.unwrap();
    is_busy(&*ours, &waiting).await;
    gives_up(&*theirs, &held).await;
    loop {
        if let Some(Notice::Granted { fence, .. }) = timeout(PATIENCE, notices.next()).await.expect("nothing was heard") {
            return (ours, waiting.lease().with_fence(fence));
        }
    }
}

async fn is_renewed(store: &Arc<dyn Store>, lease: &Lease) -> bool {
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
            let server = Lent::alone();
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
        let server = Lent::alone();
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

/// A holder goes on when somebody deletes the counter, also one whose number was near the end and is above those of others then. Only
/// the process that heard a push has anything to find out: another has seen no counter, and renews what the store keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_counter_costs_no_lease_that_a_reply_granted() {
    for (scheme, near_the_end) in ["native", "watch"].into_iter().flat_map(|scheme| [(scheme, false), (scheme, true)]) {
        let server = Lent::alone();
        let (one, two) = (locks(&server, scheme).await, locks(&server, scheme).await);
        if near_the_end {
            server.cli(&format!("SET tenure:fence {}", Fence::MAX_COUNTER - 1_000));
        }
        let lease = one.mutex("door").ttl(LONG).acquire().await.unwrap().into_lease();
        server.cli("DEL tenure:fence");
        if near_the_end {
            counts_as_before(&server, &one).await;
        }
        for (who, locks) in [("its process", &one), ("another", &two)] {
            let renewed = locks.renew(&lease).await;
            assert!(renewed.is_ok(), "{scheme}: told lost to {who}: {renewed:?}");
        }
    }
}

/// One who was handed the name by such a number goes on as well, also where the process has forgotten it by its first renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_by_a_number_near_the_end_outlives_it() {
    for scheme in ["native", "watch"] {
        let server = Lent::alone();
        server.cli(&format!("SET tenure:fence {}", Fence::MAX_COUNTER - 1_000));
        let (ours, lease) = handed_over(&server, scheme).await;
        server.cli("DEL tenure:fence");
        takes(&*ours, &request("gate")).await;
        assert!(stored(&server) < lease.fence.unwrap().counter(), "{scheme}: the number came back");
        assert!(is_renewed(&ours, &lease).await, "{scheme}: told lost");
    }
}

/// If the counter holds a bad value, the error says what to do. That helps, also the clients that have seen the value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spoilt_counter_is_told_and_mended_by_deleting_it() {
    let spoilt = [
        format!("SET {}", Fence::MAX_COUNTER),
        format!("SET {}", 1_u64 << 60),
        format!("SET {}", "9".repeat(100_000)),
        "SET -5".into(),
        "SET 1e3".into(),
        "SET soon\x1b[31m".into(),
        "HSET field 1".into(),
        "RPUSH 1".into(),
    ];
    let server = Lent::alone();
    let cases = ["native", "watch"].into_iter().flat_map(|scheme| spoilt.iter().map(move |spoil| (scheme, spoil)));
    let cases = cases.enumerate().map(|(at, (scheme, spoil))| is_mended(&server, scheme, format!("{at}:"), spoil));
    join_all(cases).await;
}

/// Each case has a prefix of its own.
async fn is_mended(server: &RedisServer, scheme: &str, prefix: String, spoil: &str) {
    let (locks, case) = (locks(server, &format!("{scheme}&prefix={prefix}")).await, format!("{scheme} {spoil:.40}"));
    let (key, door) = (format!("{prefix}tenure:fence"), format!("{prefix}door"));
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    // Within the second in which the counter is trusted, and after it.
    for pause in [Duration::ZERO, Duration::from_millis(1_050)] {
        server.command(&["DEL", &key]);
        let words: Vec<&str> = spoil.split(' ').collect();
        server.command(&[&[words[0], &key], &words[1..]].concat());
        tokio::time::sleep(pause).await;
        let error = locks.mutex("door").ttl(LONG).acquire().await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Refused, "{case}: {text}");
        assert!(text.contains("counter") && text.contains("delete the key tenure:fence"), "{case}: {text}");
        assert!(text.len() < 500 && !text.contains('\x1b'), "{case}: {text}");
        timeout(PATIENCE, locks.flush_releases()).await.unwrap();
        assert_eq!(server.command(&["EXISTS", &door]), 0, "{case}: the name was left taken");
    }
    server.command(&["DEL", &key]);
    counts_at(server, &prefix, &locks).await;
}

/// A number near the end that somebody wrote is counted from while it stands, and does not come back when it was deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_near_the_end_does_not_outlive_its_key() {
    for scheme in ["native", "watch"] {
        let server = Lent::alone();
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
    let (server, store) = served().await;
    let before = fence_of(&store, &request("a")).await;
    server.cli(&format!("SET tenure:fence {}", before.counter() - 1));
    let after = fence_of(&store, &request("b")).await;
    assert!(after > before, "{after:?} after {before:?}");
}

/// A waiter that is refused for a counter that cannot be used leaves no queue entry: neither a new one nor an earlier one.
#[tokio::test]
async fn a_refused_waiter_leaves_no_entry() {
    let (server, store) = served().await;
    for spoil in ["SET tenure:fence many", "SET tenure:fence 9007199254740991", "RPUSH tenure:fence x"] {
        for share in [Share::MUTEX, Share::READ] {
            server.cli("FLUSHALL");
            let (early, late) = (joining(shared("door", share)), joining(shared("door", share)));
            takes(&store, &request("door")).await;
            is_busy(&store, &early).await;
            server.cli("DEL tenure:fence");
            server.cli(spoil);
            for waiter in [&late, &early] {
                let error = store.acquire(waiter).await.unwrap_err();
                assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("grant counter"), "{spoil}: {error}");
                assert!(!error.may_have_been_applied(), "{spoil}: {error}");
            }
            assert_eq!(server.cli("KEYS *:[qp]:door"), "", "{spoil}: an entry is left");
        }
    }
}
