//! The Redis store under faults of the links and the server: what was sent is settled, the validity ends in time, fences rise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tenure::store::{ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, ErrorKind, Fence, Guard, Lease, Locker, Owner, ReleaseOutcome, Share, State};
use tenure_testkit::{Proxy, RedisServer, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::steps::{fence_of, request};
use crate::subject::Lent;
use crate::{LONG, PATIENCE, behind_proxy, served, store};

/// The operation timeout of the URLs below.
const OPERATION: Duration = Duration::from_millis(400);

/// A release that was cut off may say that it does not know. It may not say that the lock was lost.
async fn is_released(guard: Guard) {
    let release = guard.release().await.unwrap();
    assert!(!matches!(release, ReleaseOutcome::WasLost), "{release:?}");
}

/// Commands still under way on a given-up connection run before everything on its successor, or never. An acquire that ran after
/// the release of its token would keep the name taken for the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_held_on_an_old_connection_never_runs() {
    for cancelled in [false, true].into_iter().cycle().take(4) {
        let server = Lent::alone();
        let proxy = Proxy::start(server.addr());
        // A connection that was left while it warms up would have a successor, whose bytes are not held.
        let locks = Locker::new(store(&format!("{}?timeout=2s", proxy.url())).await);
        let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
        // The acquire's bytes are on their way for a long time; a second connection overtakes them.
        proxy.hold_present_requests();
        let acquire = locks.mutex("door").ttl(LONG).acquire();
        if cancelled {
            // It may have failed by then.
            assert!(!matches!(timeout(Duration::from_millis(100), acquire).await, Ok(Ok(_))), "its bytes were not held");
        } else {
            is_released(acquire.await.unwrap()).await;
        }
        timeout(PATIENCE, locks.flush_releases()).await.expect("the clean-up hangs");
        proxy.heal();
        // They arrive now, at a server that has ended their connection.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.cli("EXISTS door"), "0", "cancelled {cancelled}: the name was orphaned");
    }
}

/// The reply to an acquire is swallowed: the same token finds itself, on a second connection, and it is one tenure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_reply_costs_no_lock() {
    let (server, proxy, store) = behind_proxy("400ms").await;
    // So that the server knows the scripts.
    assert_eq!(store.release(&request("warm").lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    // Each command of the transaction in turn.
    for k in 1..=4 {
        proxy.swallow_reply(k);
        let name = format!("door {k}");
        let held = request(&name);
        let got = fence_of(&store, &held).await;
        assert!(got > Fence::from_counter(1).unwrap());
        assert_eq!(server.command(&["GET", &name]).text().as_bytes(), held.owner.as_bytes());
        // So that the new connection knows whether there are functions.
        assert_eq!(store.release(&request("warm").lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
        proxy.swallow_reply(1);
        // The first release ran unheard, the second finds nothing: no one can say more than that.
        let error = store.release(&held.lease(), Duration::ZERO).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true), "{error}");
        wait_until(PATIENCE, "the release", || server.command(&["GET", &name]).is_nil());
        proxy.heal();
    }
    assert!(!store.features().late_commands);
}

/// A supplied owner token that is in place after a lost reply may be ours or another's: the result is neither held nor busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_given_token_after_a_swallowed_reply_is_unknown() {
    let (server, proxy, store) = behind_proxy("400ms").await;
    let given = request("door").with_owner(Owner::from_bytes(&b"fixed"[..])).with_generated(false);
    fence_of(&store, &request("first")).await;
    proxy.swallow_reply(1);
    let error = store.acquire(&given).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true), "{error}");
    proxy.heal();
    fence_of(&store, &request("second")).await;
    proxy.swallow_reply(1);
    let locks = Locker::new(store);
    let error = locks.mutex("gate").token(given.owner).ttl(LONG).acquire().await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    proxy.heal();
    locks.flush_releases().await;
    // Nothing may be cleared up that could be another's.
    wait_until(PATIENCE, "the lease that stays", || server.cli("GET gate") == "fixed");
}

/// Whatever happens to the counter on a connection that stays, fences rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_survive_lost_data() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let mut last = fence_of(&store, &request("0")).await;
    let losses: [&dyn Fn(); 5] = [
        &|| drop(server.cli("FLUSHALL")),
        &|| drop(server.cli("SET tenure:fence 5")),
        &|| drop(server.cli("DEL tenure:fence")),
        &|| drop(server.cli("SCRIPT FLUSH")),
        &|| server.restart_empty(),
    ];
    for (i, lose) in losses.iter().cycle().take(15).enumerate() {
        lose();
        let next = fence_of(&store, &request(&format!("{}", i + 1))).await;
        assert!(next > last, "after loss {i}: {next} is not above {last}");
        last = next;
        // A counter that no one has seen yet is raised to the server's time, so that another process cannot be below it either.
        let other = fence_of(&self::store(&server.url()).await, &request(&format!("other {i}"))).await;
        assert!(other > last, "another process got {other}, not above {last}");
        last = other;
    }
}

/// The digits survive at the end of the counter's range, and a counter beyond it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_counters_keep_their_digits() {
    let server = Lent::alone();
    let near_the_end = (1_u64 << 53) - (1 << 20);
    server.cli(&format!("SET tenure:fence {near_the_end}"));
    let store = store(&format!("{}?timeout=10s", server.url())).await;
    let held = request("a");
    assert_eq!(fence_of(&store, &held).await.counter(), near_the_end + 1);
    assert_eq!(fence_of(&store, &held).await.counter(), near_the_end + 3, "a failed SET NX counts, and so does the grant");
    assert_eq!(fence_of(&store, &request("b")).await.counter(), near_the_end + 4);
    for absurd in ["-1", "9007199254740992", "9223372036854775807", "soon", "1.5"] {
        server.cli(&format!("SET tenure:fence {absurd}"));
        let fresh = self::store(&server.url()).await;
        let locks = Locker::new(fresh);
        let error = locks.mutex("c").ttl(LONG).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{absurd}: {error}");
        assert!(error.to_string().contains("counter") || error.to_string().contains("integer"), "{error}");
        locks.flush_releases().await;
        assert_eq!(server.cli("EXISTS c"), "0", "{absurd}: the name was left taken");
    }
}

/// One lease that the server refuses does not cost the others theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_forbidden_lease_does_not_fail_its_batch() {
    let server = Lent::alone();
    server.cli("ACL SETUSER app on >pw ~* +@all");
    let store = store(&format!("redis://app:pw@{}?timeout=10s", server.addr())).await;
    let held: Vec<Request> = (0..250).map(|i| request(&format!("{}{i}", if i == 77 { "secret:" } else { "open:" }))).collect();
    for request in &held {
        fence_of(&store, request).await;
    }
    server.cli("ACL SETUSER app resetkeys ~open:* ~tenure:*");
    let leases: Vec<Lease> = held.iter().map(Request::lease).collect();
    for (i, answer) in store.renew(&leases).await.into_iter().enumerate() {
        match answer {
            Ok(renewal) => assert!(i != 77 && renewal == RenewReply::Renewed, "lease {i}: {renewal:?}"),
            Err(error) => assert!(i == 77 && error.kind() == ErrorKind::Refused, "lease {i}: {error}"),
        }
    }
    server.cli("ACL SETUSER app ~{*}:*");
    assert_eq!(store.inspect(None).await.unwrap().len(), 249, "what may be read is listed");
    server.cli("ACL SETUSER app resetkeys ~other:*");
    assert_eq!(store.inspect(None).await.unwrap_err().kind(), ErrorKind::Refused, "none of them is not the same as no lock");
}

/// The same on a slow link: all that happens for the guilty lease fits into the time there is for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_forbidden_lease_on_a_slow_link_costs_no_other() {
    let server = Lent::alone();
    server.cli("ACL SETUSER app on >pw ~* +@all");
    let proxy = Proxy::start(server.addr());
    let locks = Locker::new(store(&format!("redis://app:pw@{}", proxy.addr())).await);
    proxy.delay(Duration::from_millis(90));
    let name = |i| format!("{}{i}", if i == 77 { "secret:" } else { "open:" });
    let ttl = Duration::from_secs(6);
    let guards = futures_util::future::join_all((0..100).map(|i| locks.mutex(name(i)).ttl(ttl).acquire())).await;
    server.cli("ACL SETUSER app resetkeys ~open:* ~tenure:*");
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    let lost: Vec<usize> = (0..100).filter(|i| guards[*i].as_ref().unwrap().state() == State::Lost).collect();
    assert_eq!(lost, [77]);
}

/// A lock with a short ttl, and so with a short timeout, costs its neighbours neither their leases nor their connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_in_a_hurry_costs_no_other() {
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let locks = Locker::new(store(&proxy.url()).await);
    // From the first answer on a machine that stands still for a while is waited for.
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    let acquiring = (0..500).map(|i| locks.mutex(format!("door {i}")).ttl(Duration::from_secs(4)).acquire());
    let guards: Vec<_> = stream::iter(acquiring).buffer_unordered(64).map(Result::unwrap).collect().await;
    let bystander = Bystander::start(&proxy).await;
    let connections = server.cli("INFO stats");
    proxy.delay(Duration::from_millis(15));
    let started = BootTime::now();
    while BootTime::now().since(started) < Duration::from_secs(5) {
        if let Ok(hurried) = locks.mutex("short").ttl(Duration::from_millis(300)).wait(Duration::from_secs(1)).acquire().await {
            tokio::time::sleep(Duration::from_millis(150)).await;
            drop(hurried);
        }
    }
    let lost: Vec<_> = guards.iter().filter_map(|guard| guard.end_reason().map(|loss| (guard.name(), loss))).collect();
    assert!(lost.is_empty(), "{} were lost, {:?} first", lost.len(), lost[0]);
    let made = |stats: &str| -> u64 {
        let line = stats.lines().find_map(|line| line.trim().strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    let more = made(&server.cli("INFO stats")) - made(&connections);
    let silences = bystander.silences();
    assert!(more < 5 + silences, "the connection was replaced {more} times, though it was only slow ({silences} silences)");
}

/// Asks the same server by the same way, and tells for how many times the shortest silence the machine kept it waiting.
struct Bystander {
    silences: Arc<AtomicU64>,
    asking: JoinHandle<()>,
}

impl Bystander {
    /// For so long a connection has to be silent before it may be replaced.
    const SILENCE: Duration = Duration::from_millis(100);

    async fn start(proxy: &Proxy) -> Self {
        let (mut stream, silences) = (TcpStream::connect(proxy.addr()).await.unwrap(), Arc::<AtomicU64>::default());
        let heard = Arc::clone(&silences);
        let asking = async move {
            loop {
                let asked = BootTime::now();
                stream.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
                stream.read_exact(&mut [0; b"+PONG\r\n".len()]).await.unwrap();
                let silent = BootTime::now().since(asked).as_millis() / Self::SILENCE.as_millis();
                heard.fetch_add(u64::try_from(silent).unwrap(), Ordering::Relaxed);
            }
        };
        Self { silences, asking: tokio::spawn(asking) }
    }

    fn silences(self) -> u64 {
        assert!(!self.asking.is_finished(), "the bystander was cut off");
        self.asking.abort();
        self.silences.load(Ordering::Relaxed)
    }
}

/// Commands that the server forbids to this user, one at a time: nothing is granted, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forbidden_leaves_nothing() {
    for forbidden in ["-multi", "-exec", "-set", "-incr", "-eval", "-evalsha -eval", "-time"] {
        let server = Lent::alone();
        server.cli(&format!("ACL SETUSER app on >pw ~* +@all {forbidden}"));
        let locks = Locker::new(store(&format!("redis://app:pw@{}", server.addr())).await);
        let error = locks.mutex("door").ttl(LONG).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{forbidden}: {error}");
        timeout(PATIENCE, locks.flush_releases()).await.unwrap();
        assert_eq!(
            server.cli("EXISTS door"),
            "0",
            "{forbidden}: the name was left taken, applied {}",
            error.may_have_been_applied()
        );
    }
}

/// The counter stands among the names and is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_counter_is_no_lock() {
    let (server, store) = served().await;
    fence_of(&store, &request("door")).await;
    let counter = request("tenure:fence");
    assert_eq!(store.acquire(&counter).await.unwrap_err().kind(), ErrorKind::Invalid);
    let as_shown = counter.lease().with_owner(Owner::from_bytes(server.cli("GET tenure:fence").into_bytes()));
    assert_eq!(store.release(&as_shown, Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(server.cli("EXISTS tenure:fence"), "1");
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);
}

/// A look goes out on a second connection like everything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_survives_a_half_dead_connection() {
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let locks = Locker::new(store(&proxy.url()).await);
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    proxy.swallow_reply(1);
    assert!(locks.inspect("door").await.unwrap().is_some());
    proxy.swallow_reply(1);
    guard.verify().await.unwrap();
}

/// Out of memory nothing is granted, and everything held can be renewed and given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_holders_go_on() {
    let (server, store) = served().await;
    let (held, lingering) = (request("a"), request("b"));
    fence_of(&store, &held).await;
    fence_of(&store, &lingering).await;
    server.cli("CONFIG SET maxmemory 1");
    let error = store.acquire(&request("c")).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, false), "{error}");
    assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    assert_eq!(store.inspect(None).await.unwrap().len(), 2, "an operator can see and break what is held");
    assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lingering.lease(), LONG).await.unwrap(), ReleaseReply::Released);
    assert_eq!(server.cli("GET b"), format!("linger:{}", lingering.owner));
}

/// The same for shares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_shares_go_on() {
    let (server, store) = served().await;
    let of = |name: &str, share| request(name).with_share(share);
    let permits = |weight| of("pool", Share::permits(weight, 4).unwrap());
    let held = [of("page", Share::READ), of("page", Share::READ), permits(1), permits(2)];
    for request in &held {
        fence_of(&store, request).await;
    }
    server.cli("CONFIG SET maxmemory 1");
    assert_eq!(store.acquire(&permits(1)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let longer: Vec<Lease> = held.iter().map(|request| request.lease().with_ttl(2 * LONG)).collect();
    for answer in store.renew(&longer).await {
        assert!(matches!(answer, Ok(RenewReply::Renewed)), "{answer:?}");
    }
    for entry in store.inspect(None).await.unwrap() {
        let left: Vec<_> = entry.holders.iter().map(|holder| holder.ttl.unwrap()).collect();
        assert!(left.len() == 2 && left.iter().all(|left| *left > LONG), "{entry:?}");
    }
    for (request, linger) in held.iter().zip([Duration::ZERO, LONG].into_iter().cycle()) {
        assert_eq!(store.release(&request.lease(), linger).await.unwrap(), ReleaseReply::Released);
    }
}

/// Where CLIENT is forbidden, the clean-up is repeated until the ttl has passed, and says that late commands may come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_client_kill_the_clean_up_is_repeated() {
    let server = Lent::alone();
    server.cli("ACL SETUSER app on >pw ~* +@all -client");
    let proxy = Proxy::start(server.addr());
    let ttl = Duration::from_secs(3);
    let locks = Locker::new(store(&format!("redis://app:pw@{}?timeout=400ms", proxy.addr())).await);
    let _ = locks.mutex("warm").ttl(ttl).acquire().await.unwrap().release().await.unwrap();
    proxy.swallow_reply(1);
    let started = BootTime::now();
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    assert!(locks.store().features().late_commands, "the connection was left behind alive");
    drop(guard);
    // A late command of the lost connection takes the name again; the clean-up is still there to free it.
    wait_until(PATIENCE, "the first clean-up", || server.cli("EXISTS door") == "0");
    let seen_before = proxy.commands();
    timeout(PATIENCE, locks.flush_releases()).await.unwrap();
    let took = BootTime::now().since(started);
    assert!(took > ttl / 2, "settled after {took:?}, before the token's ttl has passed");
    assert!(proxy.commands() > seen_before, "the clean-up was not repeated");
}

/// A restarted server gives connection numbers anew: the kill of a predecessor must not hit the client that has its number now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_does_not_make_us_kill_strangers() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    fence_of(&store, &request("a")).await;
    let id = server
        .command(&["CLIENT", "LIST", "TYPE", "normal"])
        .text()
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().next().map(str::to_owned));
    server.restart_empty();
    // Strangers take the low numbers, ours among them.
    let mut strangers: Vec<_> = (0..16).map(|_| server.connect().unwrap()).collect();
    for stranger in &mut strangers {
        assert_eq!(stranger.command(&["PING"]).unwrap(), "PONG");
    }
    fence_of(&store, &request("b")).await;
    for stranger in &mut strangers {
        assert_eq!(stranger.command(&["PING"]).unwrap(), "PONG", "a stranger was killed in place of {id:?}");
    }
}

/// Row 30: a server that forgot the scripts is sent them again, in every call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_sent_again() {
    let (server, store) = served().await;
    for i in 0..3 {
        let held = request(&format!("{i}"));
        server.cli("SCRIPT FLUSH");
        let first = fence_of(&store, &held).await;
        server.cli("SCRIPT FLUSH");
        assert!(fence_of(&store, &held).await > first, "busy, then claimed");
        server.cli("SCRIPT FLUSH");
        assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
        server.cli("SCRIPT FLUSH");
        assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// No answer within the operation timeout, whatever the link does, and the store goes on after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_outlasts_its_timeout() {
    let (_server, proxy, store) = behind_proxy("400ms").await;
    let held = request("a");
    fence_of(&store, &held).await;
    proxy.black_hole();
    let leases = [held.lease()];
    for call in 0..4 {
        let started = BootTime::now();
        let error = match call {
            0 => store.acquire(&request("b")).await.unwrap_err(),
            1 => store.renew(&leases).await.pop().unwrap().unwrap_err(),
            2 => store.release(&leases[0], Duration::ZERO).await.unwrap_err(),
            _ => store.inspect(Some(&held.name)).await.unwrap_err(),
        };
        let (took, limit) = (BootTime::now().since(started), if call == 3 { Duration::from_secs(2) } else { OPERATION });
        assert!(took < limit + Duration::from_millis(300), "call {call} took {took:?}");
        // The first finds the link dead; the others have none to send anything on.
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, call == 0), "call {call}: {error}");
    }
    proxy.heal();
    assert!(fence_of(&store, &request("c")).await > Fence::from_counter(1).unwrap());
}
