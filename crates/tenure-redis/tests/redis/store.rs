//! The Redis store on servers that are set up in odd ways, and how it gets in.

use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Enqueue, Login, RenewReply, Store};
use tenure::{ErrorKind, Fence, Locker, Owner, ReleaseOutcome, Share};
use tenure_redis::{Options, RedisStore};
use tenure_testkit::{Certificates, Proxy, RedisServer, free_port, wait_until};

use crate::steps::{open, open_url, request};
use crate::subject::Lent;
use crate::{LONG, PATIENCE, answered, patient, served, with_user};

async fn connect(url: &str) -> Result<RedisStore, tenure::Error> {
    Options::parse(url)?.connect().await
}

/// One cycle through a fresh connection.
async fn works(url: &str) {
    let locks = Locker::new(connect(url).await.unwrap());
    let guard = locks.mutex("door").acquire().await.unwrap();
    assert!(guard.fence().is_some());
    assert!(matches!(answered(guard.release().await), ReleaseOutcome::Released));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_users_databases_and_sockets() {
    let server = RedisServer::builder().password("s3cr/t@").start();
    server.cli("ACL SETUSER app on >app:pw ~* +@all");
    let port = server.port();
    works(&format!("redis://:s3cr%2Ft%40@127.0.0.1:{port}")).await;
    works(&format!("valkey://app:app%3Apw@127.0.0.1:{port}/3")).await;
    works(&format!("redis+unix://:s3cr%2Ft%40@localhost{}?db=2", server.unix_socket().display())).await;
    let options =
        Options::parse(&format!("redis://127.0.0.1:{port}/5?prefix=app:")).unwrap().credentials(Login::of_password("s3cr/t@"));
    let store = options.connect().await.unwrap();
    let held = request("door");
    assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    let mut client = server.connect().unwrap();
    client.command(&["SELECT", "5"]).unwrap();
    assert_eq!(client.command(&["GET", "app:door"]).unwrap().text().as_bytes(), held.owner.as_bytes());
    assert_eq!(
        client.command(&["EXISTS", "app:tenure:fence", "tenure:fence"]).unwrap(),
        1,
        "the counter belongs under the prefix"
    );
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);
    for (url, word) in [
        (format!("redis://127.0.0.1:{port}"), "password"),
        (format!("redis://:wrong@127.0.0.1:{port}"), "password"),
        (format!("redis://nobody:wrong@127.0.0.1:{port}"), "password"),
        (format!("redis://:s3cr%2Ft%40@127.0.0.1:{port}/99"), "DB index"),
    ] {
        let error = connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{url}: {error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(!format!("{error} {error:?}").contains("wrong@"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_checked_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certificates::generate(dir.path());
    let server = RedisServer::builder().tls(&certs).start();
    let (url, ca) = (server.tls_url(), certs.ca().display().to_string());
    works(&format!("{url}?ca={ca}")).await;
    works(&format!("{url}?ca={ca}&cert={}&key={}", certs.client_cert().display(), certs.client_key().display())).await;
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let error = connect(&format!("{url}?ca=/nonexistent.pem")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("/nonexistent.pem"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_told_at_once() {
    let error = connect(&format!("redis://127.0.0.1:{}", free_port())).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, false), "{error}");
    let error = connect("redis+unix:///nonexistent/redis.sock").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let stopped = RedisServer::start();
    stopped.stop();
    let started = std::time::Instant::now();
    let error = connect(&stopped.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(started.elapsed() < Duration::from_secs(6), "took {:?}", started.elapsed());
}

/// Each way in which a server says no has its class, and is not waited for where waiting does not help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_has_its_class() {
    let server = RedisServer::start();
    let store = connect(&patient(&server.url())).await.unwrap();
    // A server that could not save takes no writes.
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    server.cli("SET x 1");
    server.cli("BGSAVE");
    wait_until(PATIENCE, "the save to fail", || server.cli("INFO persistence").contains("rdb_last_bgsave_status:err"));
    let error = store.acquire(&request("b")).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, false), "{error}");
    server.command(&["CONFIG", "SET", "save", ""]);

    server.cli("ACL SETUSER app on >pw ~* +@all -set");
    let user = connect(&patient(&format!("redis://app:pw@127.0.0.1:{}", server.port()))).await.unwrap();
    let error = user.acquire(&request("c")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    // Inside a script the server words it differently.
    server.cli("ACL SETUSER app +@all -del");
    let held = request("d");
    assert!(matches!(user.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    let lease = tenure::Lease::new(held.name, held.owner, held.share, held.ttl);
    let error = user.release(&lease, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("ACL"), "{error}");

    let mut admin = server.connect().unwrap();
    admin.command(&["CONFIG", "SET", "maxclients", "3"]).unwrap();
    // A client that is about to leave would free a connection for the crowd.
    wait_until(PATIENCE, "the others to be gone", || {
        admin.command(&["INFO", "clients"]).unwrap().text().contains("connected_clients:3")
    });
    let crowd: Vec<_> = (0..6).map(|_| server.connect()).collect();
    let error = connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    drop(crowd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_waited_for() {
    let server = RedisServer::builder().arg("lua-time-limit", "50").start();
    let locks = Locker::new(connect(&patient(&server.url())).await.unwrap());
    let mut hog = server.connect().unwrap();
    hog.send(&["EVAL", "while true do end", "0"]).unwrap();
    let store = locks.store().clone();
    wait_until(PATIENCE, "the server to say that it is busy", || {
        server.connect().unwrap().command(&["GET", "x"]).unwrap().text().starts_with("BUSY")
    });
    let error = store.acquire(&request("door")).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, false), "{error}");
    let waiting = tokio::spawn(async move { locks.mutex("door").wait(PATIENCE).acquire().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.connect().unwrap().command(&["SCRIPT", "KILL"]).unwrap(), "OK");
    let _guard = waiting.await.unwrap().unwrap();
}

/// A grant's counter, and the name is given up.
async fn counter(store: &RedisStore, name: &str) -> u64 {
    let held = request(name);
    let AcquireReply::Granted(grant) = store.acquire(&held).await.unwrap() else { panic!("{name} is not free") };
    store.release(&held.lease(), Duration::ZERO).await.unwrap();
    grant.fence.unwrap().counter()
}

/// A counter that was lost is raised to the server's time since 2026, to the microsecond: others compare theirs with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_counter_follows_the_servers_time() {
    let server = Lent::alone();
    let now = || -> u64 {
        let time = server.cli("TIME");
        let mut parts = time.split_whitespace().map(|part| part.parse::<u64>().unwrap());
        (parts.next().unwrap() - 1_767_225_600) * 1_000_000 + parts.next().unwrap()
    };
    for planted in ["0", "7"] {
        server.cli(&format!("SET tenure:fence {planted}"));
        let before = now();
        let granted = counter(&connect(&server.url()).await.unwrap(), "door").await;
        let after = now();
        assert!(before < granted && granted <= after + 1, "{granted} is not between {before} and {after}");
    }
}

/// The first grant of a connection costs two scripts: one raises the counter for the transaction that takes the name, and
/// one notes the number there. The next costs none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lifted_counter_is_what_the_next_grant_counts_from() {
    let (server, store) = served().await;
    let began = Instant::now();
    let AcquireReply::Granted(grant) = store.acquire(&request("door")).await.unwrap() else { panic!("it is not free") };
    assert_eq!(server.cli("GET tenure:fence"), grant.fence.unwrap().counter().to_string());
    assert!(matches!(store.acquire(&request("gate")).await.unwrap(), AcquireReply::Granted(_)));
    let took = began.elapsed();
    let stats = server.cli("INFO commandstats");
    let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum::<u64>();
    assert!(scripts == 2 || took >= Duration::from_secs(1), "{stats}");
}

fn calls(stats: &str) -> Option<u64> {
    stats.split_once("calls=")?.1.split(',').next()?.parse().ok()
}

/// The last number there is is handed out, and none above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_counter_is_handed_out_and_none_above_it() {
    let server = Lent::alone();
    server.cli(&format!("SET tenure:fence {}", Fence::MAX_COUNTER - 1));
    let store = connect(&patient(&server.url())).await.unwrap();
    assert_eq!(counter(&store, "door").await, Fence::MAX_COUNTER);
    let error = connect(&patient(&server.url())).await.unwrap().acquire(&request("door")).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Refused, false), "{error}");
    assert!(error.to_string().contains(&Fence::MAX_COUNTER.to_string()), "{error}");
}

/// A lease whose new number cannot be made stays whose it was, and the error has the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_not_passed_on_without_a_number() {
    let (server, store) = served().await;
    let held = request("door");
    assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    server.cli("SET tenure:fence soon");
    let adopting = request("door").with_from(held.owner.clone());
    let error = store.acquire(&adopting).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Refused, false), "{error}");
    assert!(error.to_string().contains("tenure:fence holds soon"), "{error}");
    assert_eq!(server.cli("GET tenure:fence"), "soon", "what somebody must look at is gone");
    assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
}

/// A lease from a script lasts as long as a lease from commands: for the same owner, for the one it passes to, and if the name
/// became free between the two commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_granted_by_script_lasts_its_ttl() {
    for scheme in ["native", "set-nx"] {
        let server = Lent::alone();
        let proxy = Proxy::start(server.addr());
        let store = open_url(&format!("{}?scheme={scheme}", proxy.url())).await;
        let held = request("door");
        // For less than what is left to the one it passes from: a crash of the new holder is to free it within the new ttl.
        let adopting = request("door").with_from(held.owner.clone()).with_ttl(LONG / 2);
        for asked in [&held, &held, &adopting] {
            let AcquireReply::Granted(grant) = store.acquire(asked).await.unwrap() else { panic!("{scheme}: {asked:?}") };
            let left = store.inspect(Some(&asked.name)).await.unwrap()[0].holders[0].ttl.unwrap();
            assert!(grant.ttl == asked.ttl && left <= asked.ttl && left + PATIENCE > asked.ttl, "{scheme}: {left:?} is left");
        }
        proxy.delay(Duration::from_millis(60));
        for i in 0..5 {
            let late = request(&format!("late {i}"));
            // Busy when the first command arrives, free when the second does.
            server.command(&["SET", late.name.as_str(), "another's", "PX", "100"]);
            let AcquireReply::Granted(_) = store.acquire(&late).await.unwrap() else {
                panic!("{scheme}: it is free, and was not given")
            };
            let left = store.inspect(Some(&late.name)).await.unwrap()[0].holders[0].ttl.unwrap();
            assert!(left <= LONG && left + PATIENCE > LONG, "{scheme}: {left:?} is left");
        }
    }
}

/// A client that took the keys beside a name for a lock would keep everybody from the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_beside_a_name_is_no_lock() {
    for prefix in ["", "app:"] {
        let server = Lent::alone();
        let store = connect(&patient(&format!("{}?prefix={prefix}", server.url()))).await.unwrap();
        let enqueue = Enqueue::Join { entry_ttl: LONG, handoff_ttl: PATIENCE };
        let (writer, reader) =
            (request("door").with_share(Share::WRITE), request("door").with_share(Share::READ).with_enqueue(enqueue));
        assert!(matches!(store.acquire(&writer).await.unwrap(), AcquireReply::Granted(_)));
        assert!(matches!(store.acquire(&reader).await.unwrap(), AcquireReply::Busy(_)));
        let beside = server.cli("KEYS *{*");
        assert_eq!(beside.lines().count(), 3, "{beside}");
        server.cli("FLUSHALL");
        for key in beside.lines() {
            let odd = request(key.strip_prefix(prefix).unwrap());
            for share in [Share::MUTEX, Share::READ] {
                let error = store.acquire(&odd.clone().with_share(share)).await.unwrap_err();
                assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{key}: {error}");
            }
        }
        // What has other braces is a name like any other.
        for plain in ["{user}:q:door", "{CFEH}:x:door", "x{CFEH}:q:door"] {
            assert!(matches!(store.acquire(&request(plain)).await.unwrap(), AcquireReply::Granted(_)), "{plain}");
        }
    }
}

/// A connection that the application has already, with everything that holds above it.
#[cfg(feature = "redis-1")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_brought() {
    let server = Lent::alone();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let locks = Locker::new(tenure_redis::over(connection, "mine:"));
    assert!(locks.store().features().late_commands, "nobody ends a connection that is not ours");
    let guard = locks.mutex("door").acquire().await.unwrap();
    assert_eq!(server.cli("GET mine:door"), guard.token().to_string());
    guard.verify().await.unwrap();
    assert!(matches!(answered(guard.release().await), ReleaseOutcome::Released));
    assert_eq!(server.cli("EXISTS mine:door"), "0");
}

/// A mutex that is taken and released; how often the server was asked for a function meanwhile.
async fn functions_in_a_cycle(server: &RedisServer, locks: &Locker, while_held: &str) -> u64 {
    let guard = locks.mutex("door").acquire().await.unwrap();
    server.cli("CONFIG RESETSTAT");
    server.cli(while_held);
    assert!(matches!(answered(guard.release().await), ReleaseOutcome::Released), "{while_held}");
    let stats = server.cli("INFO commandstats");
    let line = stats.lines().find_map(|line| line.trim().strip_prefix("cmdstat_fcall:"));
    let number = |field| line?.split(',').find_map(|part| part.strip_prefix(field))?.parse::<u64>().ok();
    number("calls=").unwrap_or(0) + number("rejected_calls=").unwrap_or(0)
}

/// A hand-over is a function if the server has functions for this user, and a script if not. Locks go on when that changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_come_and_go() {
    let (server, url) = with_user("~* &* +@all");
    let url = patient(&url);
    let locks = Locker::new(connect(&url).await.unwrap());
    if server.command(&["FUNCTION", "LIST"]).text().starts_with("ERR unknown command") {
        // Redis 6.2: asked once, and not again.
        assert_eq!(functions_in_a_cycle(&server, &locks, "PING").await, 0);
        let refused = || server.cli("INFO errorstats").contains("errorstat_ERR");
        assert!(refused(), "it was never asked");
        server.cli("CONFIG RESETSTAT");
        assert_eq!(functions_in_a_cycle(&server, &locks, "PING").await, 0);
        assert!(!refused(), "it was asked again");
        return;
    }
    for (while_held, asked) in [
        ("PING", 2),
        ("PING", 1),
        ("FUNCTION FLUSH", 2),
        ("SCRIPT FLUSH", 1),
        ("CONFIG SET maxmemory 1", 1),
        ("CONFIG SET maxmemory 0", 1),
        ("PING", 1),
    ] {
        server.cli("CONFIG SET maxmemory 0");
        assert_eq!(functions_in_a_cycle(&server, &locks, while_held).await, asked, "{while_held}");
    }
    for (forbidden, asked) in [("-function", 2), ("-fcall", 1)] {
        server.cli("FUNCTION FLUSH");
        server.cli(&format!("ACL SETUSER app +@all {forbidden}"));
        let locks = Locker::new(connect(&url).await.unwrap());
        assert_eq!(functions_in_a_cycle(&server, &locks, "PING").await, asked, "{forbidden}");
        assert_eq!(functions_in_a_cycle(&server, &locks, "PING").await, 0, "{forbidden}: not asked for again");
    }
}

/// All or none, also where the numbers of grants end between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_numbers_are_not_given_to_some() {
    let (server, store) = served().await;
    assert!(matches!(store.acquire(&request("warm-up")).await.unwrap(), AcquireReply::Granted(_)));
    for left in 0..4_u64 {
        server.cli(&format!("SET tenure:fence {}", (1_u64 << 53) - 1 - left));
        let error = store.acquire_all(&["a", "b", "c"].map(request)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert_eq!(server.cli("EXISTS a b c"), "0", "{left} left: {error}");
    }
    server.cli("SET tenure:fence soon");
    let error = store.acquire_all(&["a", "b", "c"].map(request)).await.unwrap_err();
    assert!(error.to_string().contains("tenure:fence holds soon"), "{error}");
    assert_eq!(server.cli("EXISTS a b c"), "0", "{error}");
}

/// The numbers of several names count on from the last one, and the next one from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_numbers_of_several_names_follow_one_another() {
    let (server, store) = served().await;
    // Ahead of the clock, which would hide what is counted.
    let last = Fence::MAX_COUNTER - 100;
    server.cli(&format!("SET tenure:fence {last}"));
    assert_eq!(counter(&store, "before").await, last + 1);
    let grants = store.acquire_all(&["a", "b", "c"].map(request)).await.unwrap().expect("all are free");
    let counters: Vec<_> = grants.iter().map(|grant| grant.fence.unwrap().counter()).collect();
    assert_eq!(counters, [last + 2, last + 3, last + 4]);
    assert_eq!(counter(&store, "after").await, last + 5);
}

/// However many of the dead stand in front of one who waits, nobody overtakes that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_hide_nobody_who_waits() {
    let (server, store) = served().await;
    assert!(matches!(store.acquire(&request("door")).await.unwrap(), AcquireReply::Granted(_)));
    let waiting = request("door").with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: PATIENCE });
    assert!(matches!(store.acquire(&waiting).await.unwrap(), AcquireReply::Busy(_)));
    let queue = server.cli("KEYS *:q:door");
    let dead = "for i = 1, 1000 do redis.call('ZADD', KEYS[1], -i, 'dead' .. i) end";
    server.command(&["EVAL", dead, "1", &queue]);
    assert_eq!(server.cli(&format!("ZCARD {queue}")), "1001");
    server.cli("DEL door");
    for _ in 0..2 {
        assert!(store.acquire_all(&["door", "attic"].map(request)).await.unwrap().is_none(), "it overtook who waits");
    }
    let coming = waiting.with_enqueue(Enqueue::Heartbeat);
    assert!(matches!(store.acquire(&coming).await.unwrap(), AcquireReply::Granted(_)));
}

/// A lease is taken over from somebody: the scripts know nobody by an empty owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_taken_over_from_nobody() {
    let server = Lent::alone();
    let from_nobody = request("door").with_from(Owner::from_bytes(&b""[..]));
    for scheme in ["native", "set-nx", "setnx-expire"] {
        let store = open(&server, &format!("scheme={scheme}")).await;
        let error = store.acquire(&from_nobody).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{scheme}: {error}");
        assert_eq!(server.cli("EXISTS door"), "0", "{scheme}");
    }
}
