//! Users of a Redis with fewer rights than ours, and what each can and cannot do to locks. See GUARANTEES.md, "Who may do what".

use std::time::{Duration, Instant};

use tenure::{Acquire, EndReason, ErrorKind, Locker, ReleaseOutcome};
use tenure_testkit::{Client, RedisServer, Reply, wait_until};
use tokio::time::timeout;

use crate::subject::Lent;
use crate::{HANDOFF_TTL, LONG, PATIENCE, answered, is_handed_over, patient};

/// A server with a user of these rights, and that user's own connection.
fn server_of(rights: &str) -> (Lent, Client) {
    let server = Lent::alone();
    server.cli(&format!("ACL SETUSER user on >pw {rights}"));
    let mut client = Client::connect(server.addr(), PATIENCE).unwrap();
    assert_eq!(client.command(&["AUTH", "user", "pw"]).unwrap(), "OK");
    (server, client)
}

fn forbidden(client: &mut Client, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let reply = client.command(&words).unwrap();
    assert!(matches!(&reply, Reply::Error(text) if text.starts_with("NOPERM")), "{line}: {reply:?}");
}

async fn locks(server: &RedisServer, parameters: &str) -> Locker {
    tenure_redis::connect(&patient(&format!("{}{parameters}", server.url()))).await.unwrap()
}

async fn users_locks(server: &RedisServer, parameters: &str) -> Locker {
    tenure_redis::connect(&patient(&format!("redis://user:pw@{}{parameters}", server.addr()))).await.unwrap()
}

/// Every kind of lock of these names is taken, waited for, handed over and given up, between two processes.
async fn works(ours: &Locker, theirs: &Locker, names: &[&str]) {
    let kinds: [fn(&Locker, &str) -> Acquire; 3] =
        [|locks, name| locks.mutex(name), |locks, name| locks.write(name), |locks, name| locks.semaphore(name, 3).permits(2)];
    for (name, kind) in names.iter().flat_map(|name| kinds.map(|kind| (*name, kind))) {
        let held = kind(ours, name).ttl(LONG).acquire().await.unwrap();
        let waits = kind(theirs, name).ttl(LONG);
        let waiting = tokio::spawn(async move { waits.acquire().await.unwrap() });
        let entry = async || ours.store().inspect(Some(held.name())).await.unwrap();
        while entry().await[0].waiters.is_empty() {}
        let since = Instant::now();
        assert!(matches!(answered(held.release().await), ReleaseOutcome::Released), "{name}");
        let next = timeout(PATIENCE, waiting).await.expect("it is not handed over").unwrap();
        is_handed_over(&next, since).await;
        assert!(matches!(answered(next.release().await), ReleaseOutcome::Released), "{name}");
    }
}

/// It changes nothing, takes nothing and ends nothing; however often it publishes, who waits keeps its place and is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_read_and_publish_changes_no_lock() {
    let (server, mut user) = server_of("~* &* -@all +@read +publish +auth");
    let (theirs, ours) = (locks(&server, "").await, locks(&server, "").await);
    let held = theirs.mutex("door").ttl(LONG).acquire().await.unwrap();
    let acquire = ours.mutex("door").ttl(LONG);
    let waiting = tokio::spawn(async move { acquire.acquire().await.unwrap() });
    wait_until(PATIENCE, "the waiter", || !server.cli("KEYS *:q:door").is_empty());
    let token = user.command(&["GET", "door"]).unwrap().text();
    assert_eq!(token, held.token().to_string(), "it reads whose it is");
    for line in
        ["SET door mine", "DEL door", "PEXPIRE door 1", "INCR tenure:fence", "EVAL return(1) 0", "FCALL x 0", "CLIENT LIST"]
    {
        forbidden(&mut user, line);
    }
    let queue = server.cli("KEYS *:q:door");
    let waiter = user.command(&["ZRANGE", &queue, "0", "0"]).unwrap().text();
    let place = user.command(&["HGET", &queue.replacen(":q:", ":p:", 1), &waiter]).unwrap().text();
    let channel = place.rsplit(' ').next().unwrap();
    for i in 0..2_000 {
        let message = if i % 2 == 0 { format!("look {waiter}") } else { format!("9007199254740991:1500 {waiter}") };
        assert_eq!(user.command(&["PUBLISH", channel, &message]).unwrap(), 1);
    }
    assert!(!waiting.is_finished());
    assert_eq!(server.cli(&format!("ZRANGE {queue} 0 -1")), waiter, "its place");
    let since = Instant::now();
    assert!(matches!(answered(held.release().await), ReleaseOutcome::Released));
    let next = timeout(Duration::from_secs(5), waiting).await.expect("it is not handed over").unwrap();
    is_handed_over(&next, since).await;
}

/// One prefix is a world of its own: all works in it, nothing outside can be touched, and the counter outside is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_write_one_prefix_is_confined_to_it() {
    let (server, mut user) = server_of("~app:* &app:tenure:wake:* +@all -@admin -@dangerous +client");
    let (inside, beside) = (users_locks(&server, "?prefix=app:").await, users_locks(&server, "?prefix=app:").await);
    works(&inside, &beside, &["door", "{odd", "a}b"]).await;
    let several = inside.mutex("a").and("b").acquire().await.unwrap();
    let _ = several.release().await;
    let (ours, theirs) = (locks(&server, "").await, locks(&server, "?prefix=other:").await);
    let held = [ours.mutex("door").ttl(LONG).acquire().await.unwrap(), theirs.mutex("door").ttl(LONG).acquire().await.unwrap()];
    let (keys, counter) = (server.cli("DBSIZE"), server.cli("GET tenure:fence"));
    for parameters in ["", "?prefix=other:"] {
        let outside = users_locks(&server, parameters).await;
        for acquire in [outside.mutex("gate"), outside.read("gate"), outside.mutex("door")] {
            let error = acquire.ttl(LONG).acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{parameters}: {error}");
        }
        timeout(PATIENCE, outside.flush_releases()).await.unwrap();
    }
    for line in [
        "GET door",
        "DEL other:door",
        "SET tenure:fence 1",
        "PUBLISH tenure:wake:0123456789abcdef x",
        "SUBSCRIBE other:tenure:wake:*",
    ] {
        forbidden(&mut user, line);
    }
    // Its own counter it can spoil, and no other.
    assert_eq!(user.command(&["SET", "app:tenure:fence", "9007199254740991"]).unwrap(), "OK");
    assert_eq!((server.cli("DBSIZE"), server.cli("GET tenure:fence")), (keys, counter));
    assert_eq!(inside.mutex("gate").try_acquire().await.unwrap_err().kind(), ErrorKind::Refused);
    let _ = ours.mutex("gate").acquire().await.unwrap();
    for guard in &held {
        guard.verify().await.unwrap();
    }
}

/// The keys of one name are enough for its locks, and for no other's. The counter is shared: a user
/// of one name can spoil it for all names of the prefix, until somebody deletes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_use_one_name_reaches_no_other_but_the_counter() {
    let (server, mut user) = server_of("~door ~{????}:[qps]:door ~tenure:fence &tenure:wake:* +@all -@admin -@dangerous +client");
    let (inside, beside) = (users_locks(&server, "").await, users_locks(&server, "").await);
    works(&inside, &beside, &["door"]).await;
    let (theirs, ours) = (locks(&server, "").await, locks(&server, "").await);
    let held = theirs.mutex("gate").ttl(LONG).acquire().await.unwrap();
    let acquire = ours.mutex("gate").ttl(LONG);
    let waiting = tokio::spawn(async move { acquire.acquire().await.unwrap() });
    wait_until(PATIENCE, "the waiter", || !server.cli("KEYS *:q:gate").is_empty());
    let queue = server.cli("KEYS *:q:gate");
    for acquire in [inside.mutex("gate"), inside.mutex("attic"), inside.read("attic")] {
        let error = acquire.ttl(LONG).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    assert_eq!(inside.mutex("door").and("attic").acquire().await.unwrap_err().kind(), ErrorKind::Refused);
    timeout(PATIENCE, inside.flush_releases()).await.unwrap();
    assert_eq!(server.cli("EXISTS door attic"), "0");
    for line in ["GET gate", "DEL gate", &format!("ZRANGE {queue} 0 0"), &format!("DEL {queue}")] {
        forbidden(&mut user, line);
    }
    // It finds where others hear, and not whom: a token that is guessed is nobody's.
    let counter: u64 = server.cli("GET tenure:fence").parse().unwrap();
    for channel in user.command(&["PUBSUB", "CHANNELS", "tenure:wake:*"]).unwrap().text().lines() {
        user.command(&["PUBLISH", channel, &format!("{}:1500 .00000000000000000000000000000000", counter + 5)]).unwrap();
    }
    assert!(!waiting.is_finished());
    assert_eq!(user.command(&["SET", "tenure:fence", "9007199254740991"]).unwrap(), "OK");
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    let error = ours.mutex("attic").acquire().await.unwrap_err();
    assert!(error.to_string().contains("delete the key tenure:fence"), "{error}");
    held.verify().await.unwrap();
    server.cli("DEL tenure:fence");
    let since = Instant::now();
    assert!(matches!(answered(held.release().await), ReleaseOutcome::Released));
    let next = timeout(PATIENCE, waiting).await.expect("it is not handed over").unwrap();
    is_handed_over(&next, since).await;
    drop(next);
    let _ = ours.mutex("attic").acquire().await.unwrap();
}

/// A release publishes for the next waiter on the channel that its queue entry names. So a user who
/// may write one queue, and knows who waits for another name, needs no right to publish. The waiter
/// regards itself as the holder for a `handoff_ttl`, as after any forged hand-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_write_a_queue_has_others_publish() {
    let (server, mut user) = server_of("%R~* ~door ~{????}:[qps]:door -@all +@read +@write +auth");
    let (theirs, ours) = (locks(&server, "").await, locks(&server, "").await);
    let (mut door, gate) =
        (theirs.mutex("door").acquire().await.unwrap(), theirs.mutex("gate").ttl(LONG).acquire().await.unwrap());
    let acquire = ours.mutex("gate").ttl(LONG);
    let mut waiting = tokio::spawn(async move { acquire.acquire().await.unwrap() });
    wait_until(PATIENCE, "the waiter", || !server.cli("KEYS *:q:gate").is_empty());
    let queue = server.cli("KEYS *:q:gate");
    let mut run = |words: &[&str]| user.command(words).unwrap();
    let waiter = run(&["ZRANGE", &queue, "0", "0"]).text();
    let place = run(&["HGET", &queue.replacen(":q:", ":p:", 1), &waiter]).text();
    let channel = place.rsplit(' ').next().unwrap().to_owned();
    // The tag of the other name is known to anybody who has waited for it.
    let other = theirs.mutex("door");
    let waits = tokio::spawn(async move { other.acquire().await.map(drop) });
    let mut line = String::new();
    wait_until(PATIENCE, "the other queue", || {
        line = server.cli("KEYS *:q:door");
        !line.is_empty()
    });
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    theirs.flush_releases().await;
    let began = Instant::now();
    let guard = loop {
        assert_eq!(run(&["ZADD", &line, "-1", &waiter]), 1);
        run(&["HSET", &line.replacen(":q:", ":p:", 1), &waiter, &format!("99999999999999 1500 2500 1 1 {channel}")]);
        assert!(matches!(answered(door.release().await), ReleaseOutcome::Released));
        // Too long after its last heartbeat a push is only a reason for the next one.
        if let Ok(guard) = timeout(HANDOFF_TTL / 5, &mut waiting).await {
            break guard.unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "nobody published for it");
        door = theirs.mutex("door").acquire().await.unwrap();
    };
    forbidden(&mut user, &format!("PUBLISH {channel} x"));
    let granted = Instant::now();
    let end = timeout(PATIENCE, guard.lost()).await.expect("it stays valid");
    let took = granted.elapsed();
    // Without an answer to its renewals it expires.
    assert!(end == EndReason::Gone || took >= HANDOFF_TTL / 3, "{end:?} after {took:?}");
    assert!(end == EndReason::Gone && took < HANDOFF_TTL, "{end:?} only after {took:?}");
    gate.verify().await.unwrap();
}
