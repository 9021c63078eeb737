//! A quorum of real servers: conformance, and what no single server can show.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tenure::compose::quorum::Quorum;
use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request, Store};
use tenure::{ErrorKind, Fence, Locker, Name, Owner, Share};
use tenure_conformance::exceptions::{NO_QUEUE, ONE_BY_ONE};
use tenure_conformance::{NotApplicable, Plant, Process, Subject};
use tenure_redis::Options;
use tenure_testkit::{Program, Proxy, RedisServer, Reply, Worker, admit};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::quorum_memory::end_of;
use crate::subject::{plant, reset};
use crate::{LONG, PATIENCE, patient};

/// Servers that no test uses now, and their proxies.
static AT_REST: Mutex<Vec<(RedisServer, Proxy)>> = Mutex::new(Vec::new());

/// Servers behind proxies, which vote from the start.
pub(crate) struct Servers {
    pub(crate) servers: Vec<(RedisServer, Proxy)>,
    /// They go back to those at rest when their test has passed.
    are_lent: bool,
}

impl Drop for Servers {
    fn drop(&mut self) {
        if !self.are_lent || std::thread::panicking() {
            return;
        }
        for (server, proxy) in self.servers.drain(..) {
            proxy.accept();
            proxy.heal();
            proxy.cut();
            reset(&server);
            AT_REST.lock().unwrap_or_else(PoisonError::into_inner).push((server, proxy));
        }
    }
}

fn behind(server: RedisServer) -> (RedisServer, Proxy) {
    let proxy = Proxy::start(server.addr());
    (server, proxy)
}

impl Servers {
    /// For tests that stop or kill none of them.
    pub(crate) fn start(nodes: usize) -> Self {
        let at_rest = || AT_REST.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lent = || at_rest().unwrap_or_else(|| behind(RedisServer::start()));
        let all = Self { servers: (0..nodes).map(|_| lent()).collect(), are_lent: true };
        admit(&all.url());
        all
    }

    pub(crate) fn of(servers: Vec<RedisServer>) -> Self {
        let all = Self::new(servers);
        admit(&all.url());
        all
    }

    /// Servers that do not vote yet.
    pub(crate) fn new(servers: Vec<RedisServer>) -> Self {
        Self { servers: servers.into_iter().map(behind).collect(), are_lent: false }
    }

    /// Sets the clocks of all servers this far off the true time, ms.
    pub(crate) fn shift_clocks(&self, milliseconds: i64) {
        for (server, _) in &self.servers {
            server.shift_clock(milliseconds);
        }
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|(_, proxy)| proxy.url().replace("redis://", "")).collect();
        format!("quorum+redis://{}", hosts.join(","))
    }
}

#[async_trait]
impl Subject for Servers {
    async fn store(&self) -> Arc<dyn Store> {
        // A sixth of a short ttl is little for so many servers on one machine.
        Options::parse(&format!("{}?timeout=600ms", self.url())).unwrap().open().await.unwrap()
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&self.url()))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        for (server, _) in &self.servers {
            plant(server, name.as_str().as_bytes(), what, "");
        }
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        for (_, proxy) in &self.servers {
            if silent { proxy.black_hole() } else { proxy.heal() }
        }
        Ok(())
    }

    fn exceptions(&self) -> Vec<&'static str> {
        [NO_QUEUE, ONE_BY_ONE].concat()
    }
}

fn subject() -> Servers {
    // Enough for the semaphores of the cases.
    Servers::start(7)
}

tenure_conformance::conformance!(subject, Contract);

/// Servers that are reached directly, and whose memory nobody has vouched for.
pub(crate) fn new_servers(nodes: usize) -> (Vec<RedisServer>, String) {
    let servers: Vec<RedisServer> = (0..nodes).map(|_| RedisServer::start()).collect();
    let url = url_of(&servers);
    (servers, url)
}

fn url_of(servers: &[RedisServer]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    format!("quorum+redis://{}", hosts.join(","))
}

pub(crate) async fn quorum(url: &str) -> Quorum {
    Options::parse(url).unwrap().quorum().await.unwrap()
}

pub(crate) fn asks(name: &str, ttl: Duration) -> Request {
    Request::new(Name::new(name).unwrap(), Owner::generate("quorum").unwrap(), Share::MUTEX, ttl)
}

pub(crate) async fn fence_of(store: &Quorum, request: &Request) -> Option<Fence> {
    match store.acquire(request).await {
        Ok(AcquireReply::Granted(grant)) => Some(grant.fence.expect("every node counts")),
        _ => None,
    }
}

/// Asks with a token of its own each time, as the core does.
pub(crate) async fn granted(store: &Quorum, name: &str, ttl: Duration) -> (Request, Fence) {
    granted_as(store, || asks(name, ttl)).await
}

/// The same of a share of the door.
pub(crate) async fn granted_share(store: &Quorum, share: Share) -> (Request, Fence) {
    granted_as(store, || asks("door", LONG).with_share(share)).await
}

async fn granted_as(store: &Quorum, asks: impl Fn() -> Request + Send + Sync) -> (Request, Fence) {
    let granted = async {
        loop {
            let request = asks();
            if let Some(fence) = fence_of(store, &request).await {
                return (request, fence);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, granted).await.expect("it is never granted")
}

pub(crate) async fn wait_for(what: &str, is_so: impl Fn() -> bool + Send + Sync) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, so).await.unwrap_or_else(|_| panic!("waited for {what}"));
}

/// A release that gets no answer in time is as good here: the lease ends by itself.
pub(crate) async fn release(store: &Quorum, request: &Request) {
    let _ = store.release(&request.lease(), Duration::ZERO).await;
}

/// A holds at two of three nodes. One of them forgets it, the other falls silent: what is left must not be a majority for B.
#[tokio::test]
async fn a_node_that_lost_its_data_does_not_vote_while_a_lease_may_stand() {
    let all = Servers::start(3);
    let [(_, first), (second, _), (_, third)] = &all.servers[..] else { unreachable!() };
    let url = format!("{}?timeout=200ms", all.url());
    let (a, b) = (quorum(&url).await, quorum(&url).await);
    granted(&a, "warm", LONG).await;
    granted(&b, "warm too", LONG).await;
    // Commands to it are lost, not late.
    third.refuse();
    third.cut();
    let ttl = Duration::from_secs(4);
    let taken = Instant::now();
    let (_, fence) = granted(&a, "door", ttl).await;
    third.accept();
    assert_eq!(second.command(&["FLUSHALL"]), "OK");
    first.black_hole();
    let alone = Instant::now();
    while alone.elapsed() < Duration::from_secs(1) {
        assert_eq!(fence_of(&b, &asks("door", ttl)).await, None, "a lease of A stands");
    }
    first.heal();
    let (_, later) = granted(&b, "door", ttl).await;
    let later_by = taken.elapsed();
    assert!(later_by >= ttl, "granted after {later_by:?}");
    assert!(later > fence, "{later} after {fence}");
}

/// Any minority may lose its data again and again.
#[tokio::test]
async fn fences_rise_while_nodes_lose_their_data() {
    let (servers, url) = new_servers(5);
    let store = quorum(&url).await;
    store.admit().await.unwrap();
    let mut last = None;
    for round in 0..4_usize {
        for _ in 0..5 {
            let (request, fence) = granted(&store, "door", Duration::from_millis(200)).await;
            assert!(Some(fence) > last, "round {round}: {fence} after {last:?}");
            last = Some(fence);
            release(&store, &request).await;
        }
        // One at a time: the next only when the last one votes again.
        let forgetful = &servers[round % 5];
        if round % 2 == 0 {
            forgetful.command(&["FLUSHALL"]);
        } else {
            forgetful.kill();
            forgetful.restart_empty();
        }
        let votes = async {
            while forgetful.command(&["HEXISTS", "tenure:node", "floor"]) != 1 {
                let (request, fence) = granted(&store, "door", Duration::from_millis(200)).await;
                assert!(Some(fence) > last, "round {round}: {fence} after {last:?}");
                last = Some(fence);
                release(&store, &request).await;
            }
        };
        timeout(PATIENCE, votes).await.expect("it never votes again");
    }
}

/// Twice a day the floor is raised and the counters are dropped. After a clock that was ahead, that is done at once.
#[tokio::test]
async fn fences_rise_over_counters_that_are_dropped() {
    let (servers, url) = new_servers(3);
    let store = quorum(&url).await;
    store.admit().await.unwrap();
    let mut last = None;
    for round in 0..20 {
        let (request, fence) = granted(&store, "door", LONG).await;
        assert!(Some(fence) > last, "{fence} after {last:?}");
        last = Some(fence);
        release(&store, &request).await;
        for gate in 0..10 {
            let (request, _) = granted(&store, &format!("gate {round}/{gate}"), LONG).await;
            release(&store, &request).await;
        }
        for server in &servers {
            let fields: u32 = server.cli("HLEN tenure:node").parse().unwrap();
            assert!(fields < 25, "round {round}: {}", server.cli("HGETALL tenure:node"));
            let ago = if round % 2 == 0 { "-90000" } else { "90000" };
            server.command(&["HINCRBY", "tenure:node", "turned", ago]);
        }
    }
}

/// One server at a time is at fault: the third is away, then the first has lost what it evicts, or all that its clock ends, then the
/// second is away.
#[tokio::test]
async fn fences_rise_over_a_server_that_evicts_or_whose_clock_was_ahead() {
    for evicts in [true, false] {
        let start = || RedisServer::builder().shifted_clock().start();
        let all = Servers::of((0..3).map(|_| start()).collect());
        let store = quorum(&format!("{}?timeout=200ms", all.url())).await;
        let (ttl, everywhere) = (Duration::from_secs(1), |exists| {
            all.servers.iter().all(|(server, _)| server.command(&["EXISTS", "door"]) == exists)
        });
        let (before, _) = granted(&store, "door", Duration::from_secs(4)).await;
        wait_for("all to grant it", || everywhere(1)).await;
        release(&store, &before).await;
        wait_for("all to be free", || everywhere(0)).await;
        let [(first, _), (_, second), (_, third)] = &all.servers[..] else { unreachable!() };
        third.refuse();
        third.cut();
        let mut last = None;
        for _ in 0..10 {
            let (request, fence) = granted(&store, "door", ttl).await;
            last = Some(fence);
            release(&store, &request).await;
        }
        third.accept();
        if evicts {
            first.cli("CONFIG SET maxmemory-policy volatile-lru");
            first.cli("CONFIG SET maxmemory 1");
            let _ = first.connect().unwrap().command(&["SET", "something", "else"]);
            first.cli("CONFIG SET maxmemory 0");
        } else {
            first.shift_clock(2 * 86_400_000);
            first.cli("SET something else PX 1");
            wait_for("it to end what lasts for two days", || first.cli("EXISTS something") == "0").await;
            first.shift_clock(0);
        }
        second.refuse();
        second.cut();
        let (_, fence) = granted(&store, "door", ttl).await;
        assert!(Some(fence) > last, "{fence} after {last:?}, evicts: {evicts}");
    }
}

/// Nothing keeps a reader out but a writer. Each is granted when it first asks, also while a server is silent. Several may be granted
/// the same number by different nodes, and yet those that hold together have different fences.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_at_once_are_all_granted() {
    let (servers, url) = new_servers(5);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(quorum(&format!("{url}?timeout=10s")).await);
    }
    stores[0].admit().await.unwrap();
    let mut seen = HashSet::new();
    for is_silent in [false, true] {
        if is_silent {
            servers[2].stop();
        }
        let mut readers = JoinSet::new();
        for reader in 0..64 {
            let store = stores[reader % stores.len()].clone();
            readers.spawn(async move {
                let mut fences = Vec::new();
                for _ in 0..3 {
                    fences.push(granted_share(&store, Share::READ).await.1);
                }
                fences
            });
        }
        while let Some(read) = readers.join_next().await {
            for fence in read.unwrap() {
                assert!(seen.insert(fence), "two readers have {fence}");
            }
        }
    }
    assert!(stores.iter().any(|store| store.second_rounds() > 0), "all in one round");
}

/// Whether it is noted that a new server has waited.
fn has_waited(note: &str) -> bool {
    note.starts_with("- ") && !note.starts_with("- 0 ")
}

#[test]
fn an_admission_outlasts_the_runtime_that_began_it() {
    let (servers, url) = new_servers(3);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime().block_on(quorum(&url));
    // Some of them end while the nodes are seen to.
    for micros in (0..6_000).step_by(100) {
        let limit = Duration::from_micros(micros);
        let _ = runtime().block_on(async { timeout(limit, store.acquire(&asks("door", LONG))).await });
    }
    runtime().block_on(async {
        let waits = |server: &RedisServer| has_waited(&server.command(&["HGET", "tenure:node", "note"]).text());
        let begun = async {
            while !servers.iter().all(waits) {
                let answer = store.acquire(&asks("door", LONG)).await;
                assert!(matches!(answer, Ok(AcquireReply::Refused { .. }) | Err(_)), "{answer:?}");
            }
        };
        timeout(PATIENCE, begun).await.expect("nobody sees to the nodes any more");
        let answer = store.acquire(&asks("door", LONG)).await.unwrap();
        assert!(matches!(&answer, AcquireReply::Refused { why, .. } if why.contains("it votes in ")), "{answer:?}");
    });
}

/// As a command does that does not wait: one finds the servers new, and a later one notes how long they have waited.
#[tokio::test]
async fn an_admission_begins_with_the_first_try_and_before_its_answer() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::builder().shifted_clock().start()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    // First they have not waited, and then they have.
    for is_so in [|note: &str| note.starts_with("- 0 "), has_waited] {
        let answer = quorum(&format!("quorum+redis://{}", hosts.join(","))).await.acquire(&asks("door", LONG)).await;
        assert!(matches!(answer, Ok(AcquireReply::Refused { .. })), "{answer:?}");
        let notes: Vec<String> = servers.iter().map(|server| server.command(&["HGET", "tenure:node", "note"]).text()).collect();
        assert!(notes.iter().filter(|note| is_so(note)).count() >= 2, "{notes:?}");
        for server in &servers {
            server.shift_clock(4_000);
        }
    }
}

#[tokio::test]
async fn one_server_has_one_vote() {
    let (servers, _) = new_servers(2);
    let [port, other] = [0, 1].map(|at: usize| servers[at].addr().port());
    let url = format!("quorum+redis://127.0.0.1:{port},localhost:{port},127.0.0.1:{other}");
    let error = Options::parse(&url).unwrap().quorum().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("one server"), "{error}");
}

/// The next node that loses its data asks this one for how long leases may stand.
#[tokio::test]
async fn a_node_that_has_lost_its_data_is_told_again_for_how_long_leases_last() {
    let (servers, url) = new_servers(3);
    let store = quorum(&url).await;
    store.admit().await.unwrap();
    for name in ["first", "second"] {
        let (brief, _) = granted(&store, name, Duration::from_secs(30)).await;
        assert!(matches!(store.renew(&[brief.lease().with_ttl(LONG)]).await[..], [Ok(RenewReply::Renewed)]));
        wait_for("all to remember it", || servers.iter().all(|server| end_of(server, name) > Some(35_000))).await;
        servers[0].command(&["FLUSHALL"]);
        store.admit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_everywhere_as_small_as_its_holder_says() {
    let (_servers, store, writer) = door_held_at_all(3, Share::WRITE, "").await;
    // As after a downgrade that has missed these servers.
    let mut reads = writer.lease();
    reads.share = Share::READ;
    assert!(matches!(store.renew(&[reads]).await[..], [Ok(RenewReply::Renewed)]));
    granted_share(&store, Share::READ).await;
}

#[tokio::test]
async fn a_minority_may_be_gone() {
    let (mut servers, url) = new_servers(5);
    let store = quorum(&patient(&url)).await;
    store.admit().await.unwrap();
    let (first, before) = granted(&store, "door", LONG).await;
    servers.truncate(3);
    assert!(matches!(store.renew(&[first.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    assert_eq!(store.release(&first.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let (second, after) = granted(&store, "door", LONG).await;
    assert!(after > before, "{after} after {before}");
    servers.truncate(2);
    // Three are gone: nothing is promised any more, and nothing hangs.
    let began = Instant::now();
    let error = store.acquire(&asks("other", LONG)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(matches!(store.renew(&[second.lease()]).await[..], [Err(_)]));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "took {took:?}");
}

/// A majority holds it, so nobody else does: those that have lost it take it again.
#[tokio::test]
async fn a_lease_is_planted_again_where_a_minority_has_lost_it() {
    let (servers, url) = new_servers(5);
    let store = quorum(&patient(&url)).await;
    store.admit().await.unwrap();
    let (held, _) = granted(&store, "door", LONG).await;
    let token = held.owner.to_string();
    let holds = |server: &RedisServer| server.command(&["GET", "door"]).text() == token;
    wait_for("the slower ones to grant it", || servers.iter().all(holds)).await;
    for server in &servers[1..3] {
        assert_eq!(server.command(&["DEL", "door"]), 1);
    }
    assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    // The answer is there with the majority's: the next renewal hears of what this one did not.
    let planted = async {
        while !servers.iter().all(holds) {
            assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
        }
    };
    timeout(PATIENCE, planted).await.expect("it is not planted again");
    // Two others may go now.
    for server in [&servers[0], &servers[4]] {
        server.stop();
    }
    assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    for server in [&servers[0], &servers[4]] {
        server.cont();
    }
}

/// Two of five nodes are busy when the others grant: the last release reaches them late. They are asked once more, unless the lease was
/// released meanwhile.
#[tokio::test]
async fn a_grant_of_a_bare_majority_is_completed() {
    let quorum_of = Servers::start(5);
    let store = quorum(&format!("{}?timeout=10s", quorum_of.url())).await;
    let late = &quorum_of.servers[3..];
    // So that the servers know the scripts, and no call takes two tries.
    let (first, _) = granted(&store, "first", LONG).await;
    release(&store, &first).await;
    for (name, released) in [("door", false), ("gate", true)] {
        let of_the_late = || late.iter().map(|(server, _)| server.command(&["EXISTS", name]) == 1);
        for (server, proxy) in late {
            server.command(&["SET", name, "another", "PX", "60000"]);
            wait_for("an answer to all", || proxy.replies() >= proxy.commands()).await;
            proxy.hold_replies();
        }
        let held = asks(name, LONG);
        let before: Vec<u64> = late.iter().map(|(_, proxy)| proxy.commands()).collect();
        assert!(fence_of(&store, &held).await.is_some());
        let refused = |((_, proxy), before): (&(RedisServer, Proxy), &u64)| proxy.replies().min(proxy.commands()) > *before;
        wait_for("the late nodes to refuse it", || late.iter().zip(&before).all(refused)).await;
        if released {
            assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        }
        for (server, proxy) in late {
            server.command(&["DEL", name]);
            proxy.release_replies();
        }
        if !released {
            wait_for("the late nodes to grant it", || of_the_late().all(|holds| holds)).await;
            continue;
        }
        // A server executes the commands of a connection in order. So these come after anything that was sent for the lease.
        for turn in 0..5 {
            let (next, _) = granted(&store, &format!("after {turn}"), LONG).await;
            let all = || quorum_of.servers.iter().all(|(server, _)| server.command(&["EXISTS", next.name.as_str()]) == 1);
            wait_for("all nodes to grant the next", all).await;
        }
        assert!(of_the_late().all(|holds| !holds), "the lease was taken after its release");
    }
}

/// Waiters in other processes poll every 30 s here. Each release notifies one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_of_a_release() {
    const WAITING: &str = "return redis.call('ZCARD', redis.call('KEYS', '*:h:door')[1] or '')";
    let (servers, url) = new_servers(5);
    let url = format!("{url}?poll_interval=30s");
    let store = quorum(&url).await;
    store.admit().await.unwrap();
    let held = Locker::new(store.clone()).mutex("door").ttl(LONG).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..4 {
        let locks = Locker::new(quorum(&url).await);
        let refused = Arc::new(Notify::new());
        let acquire = locks.mutex("door").ttl(LONG).on_wait({
            let refused = Arc::clone(&refused);
            move |_| refused.notify_one()
        });
        waiting.spawn(async move {
            let guard = acquire.acquire().await.unwrap();
            (guard.release().await.unwrap(), locks)
        });
        refused.notified().await;
    }
    // Each is refused once more after it has begun to listen.
    let listen = || servers.iter().all(|server| server.command(&["EVAL", WAITING, "0"]) == 4);
    wait_for("all to listen", listen).await;
    let _ = held.release().await.unwrap();
    let passed_on = async { while waiting.join_next().await.transpose().unwrap().is_some() {} };
    timeout(Duration::from_secs(10), passed_on).await.expect("a waiter polls");
}

/// A waiter leaves nothing behind that outlives the lease it asks for.
#[tokio::test]
async fn a_waiter_is_not_kept_in_mind_for_longer_than_its_ttl() {
    const LEFT: &str = "return redis.call('PTTL', redis.call('KEYS', '*:h:door')[1] or '')";
    let (servers, url) = new_servers(3);
    let store = quorum(&url).await;
    store.admit().await.unwrap();
    granted(&store, "door", LONG).await;
    let waiter = asks("door", Duration::from_secs(6));
    let listening = store.watch(&waiter).await.unwrap();
    assert!(matches!(store.acquire(&waiter).await.unwrap(), AcquireReply::Busy(_)));
    let left = |server: &RedisServer| match server.command(&["EVAL", LEFT, "0"]) {
        Reply::Int(left) => left,
        other => panic!("{other:?}"),
    };
    wait_for("the slower ones to refuse it", || servers.iter().all(|server| left(server) > 0)).await;
    assert!(servers.iter().all(|server| left(server) <= 6_000), "{:?}", servers.iter().map(left).collect::<Vec<_>>());
    drop(listening);
}

/// Somebody holds the door at each of so many servers.
async fn door_held_at_all(nodes: usize, share: Share, parameters: &str) -> (Vec<RedisServer>, Quorum, Request) {
    let (servers, url) = new_servers(nodes);
    let store = quorum(&format!("{url}{parameters}")).await;
    store.admit().await.unwrap();
    let (held, _) = granted_share(&store, share).await;
    wait_for("the slower ones to grant it", || servers.iter().all(|server| server.command(&["EXISTS", "door"]) == 1)).await;
    (servers, store, held)
}

/// It may be held at the server that does not answer.
#[tokio::test]
async fn a_name_is_shown_as_held_while_a_holder_of_it_is_away() {
    let (servers, store, held) = door_held_at_all(5, Share::MUTEX, "?timeout=400ms").await;
    for server in &servers[..2] {
        assert_eq!(server.command(&["DEL", "door"]), 1);
    }
    servers[2].stop();
    let entries = store.inspect(Some(&held.name)).await.unwrap();
    servers[2].cont();
    assert!(entries.iter().any(|entry| entry.holders.iter().any(|holder| holder.owner == held.owner)), "{entries:?}");
}

/// One has lost its data, and another was away when it was granted. The third knows of it.
#[tokio::test]
async fn a_name_is_shown_as_held_by_one_server_beside_one_that_does_not_vote() {
    let (servers, store, held) = door_held_at_all(3, Share::MUTEX, "").await;
    // A repetition has the servers note its number.
    assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    assert_eq!(servers[0].command(&["FLUSHALL"]), "OK");
    assert_eq!(servers[1].command(&["DEL", "door"]), 1);
    let entries = store.inspect(Some(&held.name)).await.unwrap();
    let holder = entries[0].holders.iter().find(|holder| holder.owner == held.owner).unwrap();
    assert_eq!(holder.age, None, "the numbers of a quorum say nothing about the time");
}

/// They lost their data while somebody held it, and the one that votes was away when it was granted.
#[tokio::test]
async fn a_name_is_not_shown_as_free_while_too_few_servers_vote() {
    let (servers, store, held) = door_held_at_all(3, Share::MUTEX, "").await;
    assert_eq!(servers[2].command(&["DEL", "door"]), 1);
    for server in &servers[..2] {
        assert_eq!(server.command(&["FLUSHALL"]), "OK");
    }
    for name in [Some(&held.name), None] {
        let error = store.inspect(name).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("does not vote"), "{error}");
    }
}

/// Nobody else can have been granted the name, because too few servers vote.
#[tokio::test]
async fn a_lease_is_not_called_lost_by_servers_that_forgot_it() {
    let (servers, _, held) = door_held_at_all(3, Share::MUTEX, "").await;
    for server in &servers[..2] {
        assert_eq!(server.command(&["FLUSHALL"]), "OK");
    }
    let another = quorum(&url_of(&servers)).await;
    let error = another.release(&held.lease(), Duration::ZERO).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("has lost its data"), "{error}");
    assert_eq!(servers[2].command(&["EXISTS", "door"]), 0);
}

/// One server has never heard of the lease, and another is silent. The first one does not decide that the lease is lost.
#[tokio::test]
async fn a_lease_stays_whole_if_too_few_servers_answer_its_holder() {
    for shrinks in [false, true] {
        let share = if shrinks { Share::WRITE } else { Share::MUTEX };
        let (servers, store, held) = door_held_at_all(3, share, "?timeout=400ms").await;
        let end = servers[2].command(&["ZRANGE", "tenure:node:ends", "1", "1"]);
        let Reply::Array(end) = end else { panic!("{end:?}") };
        assert_eq!(servers[2].command(&["ZREM", "tenure:node:ends", &end[0].text()]), 1);
        assert_eq!(servers[2].command(&["DEL", "door"]), 1);
        servers[1].stop();
        let asked = if shrinks {
            held.clone().with_share(Share::READ).with_enqueue(Enqueue::Heartbeat)
        } else {
            asks("door", LONG).with_from(held.owner.clone())
        };
        let error = store.acquire(&asked).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error}");
        servers[1].cont();
        store.settled().await;
        let renewed = store.renew(&[held.lease()]).await;
        assert!(matches!(renewed[..], [Ok(RenewReply::Renewed)]), "{renewed:?}");
    }
}

/// Each of them reaches another server first, so that at first none of them finds the lease at a majority. So it is with one server
/// down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_that_adopt_a_lease_one_gets_it() {
    let (servers, _, mut held) = door_held_at_all(3, Share::MUTEX, "").await;
    let (mut proxies, mut stores) = (Vec::new(), Vec::new());
    for near in 0..3 {
        let ways: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
        let hosts: Vec<String> = ways.iter().map(|way| way.addr().to_string()).collect();
        stores.push(quorum(&format!("quorum+redis://{}", hosts.join(","))).await);
        ways.iter().enumerate().filter(|(at, _)| *at != near).for_each(|(_, way)| way.delay(Duration::from_millis(10)));
        proxies.extend(ways);
    }
    for round in 0..8 {
        if round == 5 {
            servers[2].kill();
            stores.pop();
        }
        let up = stores.len();
        let asked: Vec<Request> = stores.iter().map(|_| asks("door", LONG).with_from(held.owner.clone())).collect();
        let answers = join_all(stores.iter().zip(&asked).map(|(store, asked)| store.acquire(asked))).await;
        let granted: Vec<usize> = (0..up).filter(|at| matches!(answers[*at], Ok(AcquireReply::Granted(_)))).collect();
        assert_eq!(granted.len(), 1, "round {round}: {answers:?}");
        held = asked[granted[0]].clone();
        let renewed = stores[granted[0]].renew(&[held.lease()]).await;
        assert!(matches!(renewed[..], [Ok(RenewReply::Renewed)]), "{renewed:?}");
        let token = held.owner.to_string();
        let has = |server: &RedisServer| server.command(&["GET", "door"]).text() == token;
        wait_for("all to hand it over", || servers[..up].iter().all(has)).await;
    }
    let mut read = asks("room", LONG).with_share(Share::READ);
    assert!(matches!(stores[0].acquire(&read).await.unwrap(), AcquireReply::Granted(_)));
    for round in 0..8 {
        let adopts = || asks("room", LONG).with_share(Share::READ).with_from(read.owner.clone());
        let asked: Vec<Request> = stores.iter().map(|_| adopts()).collect();
        let answers = join_all(stores.iter().zip(&asked).map(|(store, asked)| store.acquire(asked))).await;
        let granted = answers.iter().position(|answer| matches!(answer, Ok(AcquireReply::Granted(_))));
        read = asked[granted.unwrap_or_else(|| panic!("round {round}: {answers:?}"))].clone();
    }
}

/// Shares do not tell who has taken a lease over, so all tries are made. They end in time, however far away the servers are.
#[tokio::test]
async fn an_adoption_of_a_share_that_has_ended_ends_in_time() {
    let (servers, store, held) = door_held_at_all(3, Share::READ, "").await;
    assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let ways: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
    let hosts: Vec<String> = ways.iter().map(|way| way.addr().to_string()).collect();
    let far = quorum(&format!("quorum+redis://{}?timeout=1s", hosts.join(","))).await;
    for way in &ways {
        way.delay(Duration::from_millis(100));
    }
    let (asked, began) = (asks("door", LONG).with_share(Share::READ).with_from(held.owner.clone()), Instant::now());
    let answer = far.acquire(&asked).await.unwrap();
    assert!(matches!(answer, AcquireReply::Busy(_)), "{answer:?}");
    assert!(began.elapsed() < Duration::from_millis(1_500), "it took {:?} of a second", began.elapsed());
}

/// Two servers have lost the lease. One of them is silent, so it is not known whether a majority has it.
#[tokio::test]
async fn a_lease_at_too_few_servers_is_in_doubt_while_others_are_silent() {
    let (servers, url) = new_servers(3);
    let store = quorum(&format!("{url}?timeout=400ms")).await;
    store.admit().await.unwrap();
    let locks = Locker::new(store);
    let guard = locks.mutex("door").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    wait_for("all to grant", || servers.iter().all(|server| server.cli("EXISTS door") == "1")).await;
    guard.verify().await.unwrap();
    assert_eq!(servers[2].command(&["DEL", "door"]), 1);
    servers[1].stop();
    let error = guard.verify().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("too few servers"), "{error}");
    let entry = locks.inspect("door").await.unwrap().unwrap();
    assert!(entry.holders[0].in_doubt, "{entry:?}");
    servers[1].cont();
}

/// All have lost their data, one after another. How far they had counted stands in the notes alone.
#[tokio::test]
async fn an_admission_counts_on_from_what_is_noted() {
    let (servers, url) = new_servers(3);
    let store = quorum(&url).await;
    assert_eq!(fence_of(&store, &asks("door", LONG)).await, None);
    let noted = 999_000_000_000_000_u64;
    wait_for("all to be entered", || servers.iter().all(|server| server.cli("HEXISTS tenure:node loss") == "1")).await;
    for server in &servers {
        server.command(&["HSET", "tenure:node", "note", &format!("600000 0 {noted}")]);
    }
    store.admit().await.unwrap();
    let (_, fence) = granted(&store, "door", LONG).await;
    assert!(fence.counter() > noted, "{fence}");
}

/// Whatever an operator's `tenure admit` had done when it was dropped, the next one makes it whole.
#[tokio::test]
async fn an_admission_that_is_dropped_half_way_is_made_whole_by_the_next() {
    let all = Servers::start(3);
    let store = quorum(&all.url()).await;
    let (_, proxy) = &all.servers[0];
    let (mut last, mut dropped) = (None, 0);
    for k in 1.. {
        for (server, _) in &all.servers {
            assert_eq!(server.command(&["FLUSHALL"]), "OK");
        }
        let reached = proxy.reached(proxy.commands() + k);
        let is_whole = tokio::select! {
            biased;
            admitted = store.admit() => admitted.is_ok(),
            () = reached => false,
        };
        dropped += u64::from(!is_whole);
        store.admit().await.unwrap();
        let (request, fence) = granted(&store, "door", LONG).await;
        assert!(Some(fence) > last, "dropped at {k}: {fence} after {last:?}");
        last = Some(fence);
        release(&store, &request).await;
        if is_whole {
            break;
        }
        assert!(k < 50, "it never comes to its end");
    }
    assert!(dropped >= 4, "it was dropped at {dropped} of its commands");
}

/// At each command of the handshake and of the questions to a server that is new on this connection.
#[tokio::test]
async fn a_node_votes_again_whose_connection_breaks_while_it_is_entered() {
    let all = Servers::start(3);
    let store = quorum(&all.url()).await;
    let (server, proxy) = &all.servers[0];
    let mut last = None;
    for k in 1..=8 {
        proxy.cut();
        let before = proxy.commands();
        proxy.cut_at(k);
        let votes = async {
            loop {
                let (request, fence) = granted(&store, "door", LONG).await;
                assert!(Some(fence) > last, "cut at {k}: {fence} after {last:?}");
                last = Some(fence);
                let holds = || server.command(&["GET", "door"]).text() == request.owner.to_string();
                // The answer does not wait for it.
                let mut looks = 0;
                while looks < 50 && !holds() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    looks += 1;
                }
                release(&store, &request).await;
                if looks < 50 && proxy.commands() >= before + k {
                    return;
                }
            }
        };
        timeout(PATIENCE, votes).await.expect("it never votes again");
        proxy.heal();
    }
}

/// Two of three have counted. One of them forgets it, the other falls silent: what is left of the majority has to know.
#[tokio::test]
async fn a_node_that_lost_its_data_counts_on_from_the_others() {
    let all = Servers::start(3);
    let [(_, first), (second, _), (_, third)] = &all.servers[..] else { unreachable!() };
    let store = quorum(&format!("{}?timeout=200ms", all.url())).await;
    let ttl = Duration::from_secs(1);
    // Commands to it are lost, not late.
    third.refuse();
    third.cut();
    let mut last = None;
    for _ in 0..5 {
        let (request, fence) = granted(&store, "door", ttl).await;
        assert!(Some(fence) > last, "{fence} after {last:?}");
        last = Some(fence);
        release(&store, &request).await;
    }
    third.accept();
    assert_eq!(second.command(&["FLUSHALL"]), "OK");
    let votes = async {
        while second.command(&["HEXISTS", "tenure:node", "floor"]) != 1 {
            let (request, _) = granted(&store, "another name", ttl).await;
            release(&store, &request).await;
        }
    };
    timeout(PATIENCE, votes).await.expect("it never votes again");
    first.black_hole();
    let (_, fence) = granted(&store, "door", ttl).await;
    assert!(Some(fence) > last, "{fence} after {last:?}");
}
