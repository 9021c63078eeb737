//! Clocks of servers that are not as a client reckons: ahead after a pause of the client, behind after a sleep of the server, or wrong.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::store::{AcquireReply, ReleaseReply, RenewReply};
use tenure::{Error, ErrorKind, Name, Owner, Share};
use tenure_memcached::Options;

use tenure_testkit::{MemcachedServer, ShiftedClock, wait_until};

use crate::requests::{busy, granted, owner, request};
use crate::{PATIENCE, open};

const DAY: u64 = 86_400;

pub(crate) fn with_clock() -> (Arc<ShiftedClock>, MemcachedServer) {
    let clock = Arc::new(ShiftedClock::new());
    let server = MemcachedServer::builder().clock(&clock).start();
    (clock, server)
}

/// The seconds for which the server keeps an item.
fn left(server: &MemcachedServer, name: &str) -> u64 {
    let answer = server.ask(&format!("mg {name} t"), Some(1));
    let left = answer[0].strip_prefix("HD t").and_then(|left| left.parse().ok());
    left.unwrap_or_else(|| panic!("{name}: {answer:?}"))
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// As after a pause of the client's machine that its clock does not count.
#[tokio::test]
async fn leases_last_their_ttl_at_a_server_that_is_ahead() {
    for scheme in ["cas", "add"] {
        let (clock, server) = with_clock();
        let url = server.url() + "?scheme=" + scheme;
        let [acquires, asks_briefly, renews, supplied] = [open(&url).await, open(&url).await, open(&url).await, open(&url).await];
        let held = request("renewed", &owner()).with_ttl(secs(60));
        granted(&renews, &held).await;
        let before = server.stat("time");
        clock.shift_monotonic(40_000);
        wait_until(PATIENCE, "the server to notice", || server.stat("time") >= before + 40);
        granted(&acquires, &request("new", &owner()).with_ttl(secs(60))).await;
        assert!(left(&server, "new") >= 60, "scheme={scheme}: the lease has only {} s", left(&server, "new"));
        // It would have ended before it began.
        granted(&asks_briefly, &request("brief", &owner()).with_ttl(secs(30))).await;
        assert!(left(&server, "brief") >= 30, "scheme={scheme}: the lease has only {} s", left(&server, "brief"));
        assert_eq!(renews.renew(&[held.lease()]).await.remove(0).unwrap(), RenewReply::Renewed);
        assert!(left(&server, "renewed") >= 60, "scheme={scheme}: renewed for {} s", left(&server, "renewed"));
        // With a supplied token nothing is written twice. Then less is claimed.
        let given = request("given", &Owner::from_bytes(&b"token"[..])).with_generated(false).with_ttl(secs(60));
        let asked = Instant::now();
        let grant = granted(&supplied, &given).await;
        let kept = secs(left(&server, "given") + 1) + asked.elapsed();
        assert!(grant.ttl <= kept, "scheme={scheme}: {:?} of {kept:?}", grant.ttl);
    }
}

/// `touch` changes how long an item lives, and not the end that stands in it.
#[tokio::test]
async fn an_item_that_was_touched_says_nothing_of_the_time() {
    let server = MemcachedServer::start();
    let store = open(&server.url()).await;
    let reader = |ttl| request("x", &owner()).with_share(Share::READ).with_ttl(secs(ttl));
    let (long, short) = (reader(3_600), reader(30));
    granted(&store, &long).await;
    granted(&store, &short).await;
    for seconds in [10, 100_000] {
        assert_eq!(server.ask(&format!("touch x {seconds}"), Some(1)), ["TOUCHED"]);
        assert_eq!(store.inspect(Some(&long.name)).await.unwrap()[0].holders.len(), 2);
        let name = format!("y{seconds}");
        granted(&store, &request(&name, &owner()).with_ttl(secs(2))).await;
        assert!(left(&server, &name) <= 8, "a lease of 2 s has {} s", left(&server, &name));
    }
    assert_eq!(store.release(&long.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let writer = request("x", &owner()).with_share(Share::WRITE);
    assert_eq!(busy(&store, &writer).await.holder.unwrap().owner, short.owner, "the other reader was taken for gone");
}

/// Nothing that the server sees tells that it slept. Its time counts again once it is seen to go on.
#[tokio::test]
async fn leases_are_longer_by_a_sleep_of_the_server_for_a_moment_only() {
    let (clock, server) = with_clock();
    let store = open(&server.url()).await;
    granted(&store, &request("before", &owner()).with_ttl(secs(2))).await;
    let (slept, began) = (secs(12), Instant::now());
    while began.elapsed() < slept {
        clock.shift_monotonic(-i64::try_from(began.elapsed().as_millis()).unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    granted(&store, &request("first", &owner()).with_ttl(secs(2))).await;
    assert!(left(&server, "first") >= 10, "it was noticed at once, so nothing is tested");
    tokio::time::sleep(secs(3)).await;
    granted(&store, &request("second", &owner()).with_ttl(secs(2))).await;
    assert!(left(&server, "second") <= 8, "a lease of 2 s has {} s", left(&server, "second"));
}

async fn refused(url: &str) -> Error {
    let error = Options::parse(url).unwrap().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    error
}

/// It takes points in time for spans within 30 days of 1970, and none after 2038. Fences count from 2026.
#[tokio::test]
async fn a_server_whose_clock_is_wrong_is_refused() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for started_at in [5 * DAY, 20_000 * DAY, 30_000 * DAY] {
        let clock = Arc::new(ShiftedClock::new());
        clock.shift((i64::try_from(started_at).unwrap() - i64::try_from(now).unwrap()) * 1_000);
        let server = MemcachedServer::builder().clock(&clock).start();
        let error = refused(&server.url()).await.to_string();
        assert!(error.contains("clock"), "{error}");
    }
}

/// Answers as a memcached that has just been started, or as `time` and `uptime` say. Counts how often it was asked for them.
fn scripted(time: impl Fn(u64) -> (u64, u64) + Send + 'static) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, asked) = (format!("memcached://{}", listener.local_addr().unwrap()), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for (connection, stream) in listener.incoming().enumerate() {
            let (mut stream, mut buffer) = (stream.unwrap(), [0; 4_096]);
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let answer = if text.starts_with("stats settings") {
                    "STAT cas_enabled yes\r\nEND\r\n".to_owned()
                } else if text.starts_with("stats") {
                    count.fetch_add(1, Ordering::SeqCst);
                    let (time, uptime) = time(connection as u64);
                    format!("STAT time {time}\r\nSTAT uptime {uptime}\r\nSTAT version 1.6.18\r\nEND\r\n")
                } else {
                    // Any other request ends the connection.
                    break;
                };
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    (url, asked)
}

#[tokio::test]
async fn a_time_that_cannot_be_counted_with_is_refused() {
    for (time, uptime) in [(u64::MAX, 1), (1, 2), (u64::MAX, u64::MAX - 2_000_000_000)] {
        refused(&scripted(move |_| (time, uptime)).0).await;
    }
}

/// A server that was just continued shows the old time. Another life of it is asked twice, as at the first contact.
#[tokio::test]
async fn the_first_contact_of_each_life_reads_the_time_twice() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (url, asked) = scripted(move |connection| (now, if connection == 0 { 100 } else { 1 }));
    let store = open(&url).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    // It ends the connection, and is back as a later life.
    let _ = store.inspect(Some(&Name::new("x").unwrap())).await;
    assert!(asked.load(Ordering::SeqCst) >= 4, "read {} times in all", asked.load(Ordering::SeqCst));
    assert!(!matches!(store.acquire(&request("x", &owner())).await, Ok(AcquireReply::Granted(_))));
}
