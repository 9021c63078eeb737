//! A cluster of real servers: conformance, slots that move under locks, masters that die.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tenure::store::{AcquireReply, Busy, Enqueue, Notice, ReleaseReply, Request, Store};
use tenure::{ErrorKind, Fence, Lease, Locker, Name, Owner, ReleaseOutcome, Share, State};
use tenure_conformance::exceptions::{NO_PUSH, ONE_BY_ONE};
use tenure_conformance::{NotApplicable, Plant, Process, Subject};
use tenure_redis::{ClusterStore, Options};
use tenure_testkit::crowd::Field;
use tenure_testkit::{Program, Proxy, RedisCluster, RedisServer, Worker, wait_until};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::pretender::listens_as;
use crate::subject::{plant, reset};
use crate::{LONG, PATIENCE, patient};

/// Three masters behind proxies, which the nodes name to clients.
struct Servers {
    cluster: RedisCluster,
    proxies: Vec<Proxy>,
}

/// Clusters that no case uses now: a new one waits for two seconds before it takes writes.
static AT_REST: Mutex<Vec<Servers>> = Mutex::new(Vec::new());

/// The same without proxies.
static BARE: Mutex<Vec<RedisCluster>> = Mutex::new(Vec::new());

/// A cluster that goes back to those at rest when its test has passed. A test that kills a node, or stops one, has one of its own.
pub(crate) struct Lent(Option<RedisCluster>);

impl Lent {
    pub(crate) fn of(masters: usize) -> Self {
        let mut all = BARE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|cluster| cluster.servers().len() == masters);
        let found = at.map(|at| all.swap_remove(at));
        drop(all);
        Self(Some(found.unwrap_or_else(|| RedisCluster::start(masters, 0))))
    }
}

impl std::ops::Deref for Lent {
    type Target = RedisCluster;

    fn deref(&self) -> &RedisCluster {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(cluster) = self.0.take().filter(|_| !std::thread::panicking()) else { return };
        cluster.servers().iter().for_each(reset);
        // News of the last slot that has moved may be on their way.
        wait_until(PATIENCE, "the nodes to agree", || {
            let mut all = cluster.servers().iter().map(slots_of_all);
            let first = all.next();
            all.all(|other| Some(other) == first)
        });
        BARE.lock().unwrap_or_else(PoisonError::into_inner).push(cluster);
    }
}

/// The slots of each node, as one of them has it.
fn slots_of_all(server: &RedisServer) -> Vec<String> {
    let nodes = server.cli("CLUSTER NODES");
    let slots = |line: &str| line.split(' ').enumerate().filter(|(at, _)| *at == 0 || *at > 7).map(|(_, word)| word).collect();
    let mut all: Vec<String> = nodes.lines().map(slots).collect();
    all.sort();
    all
}

/// A cluster for one case.
struct Cluster {
    servers: Option<Servers>,
    /// Of the URL.
    parameters: &'static str,
    exceptions: Vec<&'static str>,
}

impl Cluster {
    fn take(parameters: &'static str, exceptions: &[&[&'static str]]) -> Self {
        let at_rest = AT_REST.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self { servers: Some(at_rest.unwrap_or_else(Servers::start)), parameters, exceptions: exceptions.concat() }
    }

    fn servers(&self) -> &Servers {
        self.servers.as_ref().expect("until it is dropped")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(servers) = self.servers.take() else { return };
        servers.proxies.iter().for_each(Proxy::heal);
        for server in servers.cluster.servers() {
            server.cli("FLUSHALL");
        }
        AT_REST.lock().unwrap_or_else(PoisonError::into_inner).push(servers);
    }
}

impl Servers {
    fn start() -> Self {
        let cluster = RedisCluster::start(3, 0);
        let proxies: Vec<Proxy> = cluster.servers().iter().map(|server| Proxy::start(server.addr())).collect();
        for (server, proxy) in cluster.servers().iter().zip(&proxies) {
            server.cli(&format!("CONFIG SET cluster-announce-port {}", proxy.addr().port()));
        }
        let named = |server: &RedisServer| {
            let slots = server.cli("CLUSTER SLOTS");
            proxies.iter().all(|proxy| slots.lines().any(|line| line == proxy.addr().port().to_string()))
        };
        wait_until(PATIENCE, "the nodes to name the proxies", || cluster.servers().iter().all(named));
        Self { cluster, proxies }
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }
}

#[async_trait]
impl Subject for Cluster {
    async fn store(&self) -> Arc<dyn Store> {
        Options::parse(&format!("{}{}", self.servers().url(), self.parameters)).unwrap().open().await.unwrap()
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&format!("{}{}", self.servers().cluster.url(), self.parameters)))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        let name = name.as_str().as_bytes();
        let cluster = &self.servers().cluster;
        plant(&cluster.servers()[cluster.serving(slot_of(cluster, name)).unwrap()], name, what, self.parameters);
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        for proxy in &self.servers().proxies {
            if silent { proxy.black_hole() } else { proxy.heal() }
        }
        Ok(())
    }

    fn exceptions(&self) -> Vec<&'static str> {
        self.exceptions.clone()
    }

    fn refuses(&self, name: &str) -> bool {
        // Redisson keeps its keys in two slots.
        self.parameters.contains("redisson") && ["a}b", "{}x", "x{}{y}"].contains(&name)
    }

    fn semaphores_stay(&self) -> bool {
        self.parameters.contains("redisson")
    }
}

mod cases {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::take("", &[NO_PUSH, ONE_BY_ONE])
    }

    tenure_conformance::conformance!(cluster, Contract);
}

mod redisson {
    use tenure_conformance::exceptions::NO_QUEUE;

    use super::*;

    fn cluster() -> Cluster {
        Cluster::take("?scheme=redisson", &[NO_QUEUE, ONE_BY_ONE])
    }

    tenure_conformance::conformance!(cluster, Variant);
}

mod redisson_fair {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::take("?scheme=redisson-fair", &[&crate::schemes::redisson_fair::exceptions()])
    }

    tenure_conformance::conformance!(cluster, Variant);
}

pub(crate) fn slot_of(cluster: &RedisCluster, name: &[u8]) -> u16 {
    let slot = cluster.servers()[0].command(&[&b"CLUSTER"[..], b"KEYSLOT", name]).int();
    u16::try_from(slot).expect("a slot")
}

async fn store(url: &str) -> ClusterStore {
    Options::parse(url).unwrap().cluster().await.unwrap()
}

fn asks(name: &str, share: Share, ttl: Duration) -> Request {
    Request::new(Name::new(name).unwrap(), Owner::generate("cluster").unwrap(), share, ttl)
}

async fn takes(store: &ClusterStore, request: &Request) -> u64 {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant.fence.unwrap().get(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_url_that_names_the_wrong_kind_of_server_says_so() {
    let (cluster, alone) = (Lent::of(1), RedisServer::start());
    let node = Options::parse(&patient(&cluster.servers()[0].url())).unwrap().connect().await.unwrap();
    let error = node.acquire(&asks("door", Share::MUTEX, LONG)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("write redis+cluster://"), "{error:?}");
    assert!(!error.may_have_been_applied() && cluster.servers()[0].cli("EXISTS door") == "0", "{error:?}");
    let error = Options::parse(&format!("redis+cluster://{}", alone.addr())).unwrap().cluster().await.unwrap_err();
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::Refused && text.contains(&alone.addr().to_string()), "{error:?}");
    assert!(text.contains("no node of a cluster") && text.contains("write redis://"), "{text}");
    let error = Options::parse("redis+cluster://127.0.0.1:1").unwrap().cluster().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.to_string().contains("127.0.0.1:1"), "{error:?}");
}

/// Each step of a move, for each call: the name is in its old place, half way, and in its new place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_works_at_every_step_of_a_move() {
    let cluster = Lent::of(2);
    let (ours, other) = (store(&cluster.url()).await, store(&cluster.url()).await);
    let (mut mover, handle) = (cluster.mover(), tokio::runtime::Handle::current());
    let names: Vec<String> = (0..6).map(|at| format!("door {at}")).collect();
    for name in names {
        let slot = slot_of(&cluster, name.as_bytes());
        let from = cluster.serving(slot).unwrap();
        let (held, next) = (asks(&name, Share::MUTEX, LONG), asks(&name, Share::MUTEX, LONG));
        let first = takes(&ours, &held).await;
        let half_way = async || {
            assert!(matches!(other.acquire(&next).await.unwrap(), AcquireReply::Busy(_)), "{name}: two holders");
            let mut renewed = ours.renew(&[held.lease()]).await;
            renewed.pop().unwrap().unwrap();
            let shown = other.inspect(Some(&held.name)).await.unwrap();
            assert_eq!(shown[0].holders[0].owner, held.owner, "{name}");
            assert_eq!(other.release(&next.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
            assert_eq!(ours.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
            let second = takes(&other, &next).await;
            assert!(second > first, "{name}: {second} after {first}");
            // The same request again is the same holder.
            let again = takes(&other, &next).await;
            assert!(again >= second, "{name}: {again} after {second}");
            assert!(matches!(ours.acquire(&asks(&name, Share::MUTEX, LONG)).await.unwrap(), AcquireReply::Busy(_)));
            let lingers = asks(&format!("{{{name}}} lingers"), Share::MUTEX, LONG);
            takes(&ours, &lingers).await;
            assert_eq!(ours.release(&lingers.lease(), LONG).await.unwrap(), ReleaseReply::Released);
            assert!(matches!(other.acquire(&lingers).await.unwrap(), AcquireReply::Busy(_)), "{name}");
        };
        tokio::task::block_in_place(|| {
            mover.move_slot(slot, from, 1 - from, || handle.block_on(timeout(PATIENCE, half_way())).expect("it hangs"));
        });
        wait_until(PATIENCE, "both servers to agree", || cluster.serves(1 - from, slot) && !cluster.serves(from, slot));
        // As others have it that are in the same slot, all or none.
        let all = [asks(&format!("{{{name}}} one"), Share::MUTEX, LONG), asks(&format!("{{{name}}} two"), Share::MUTEX, LONG)];
        assert_eq!(ours.acquire_all(&all).await.unwrap().map(|grants| grants.len()), Some(2), "{name}");
        assert_eq!(other.acquire_all(&all[1..]).await.unwrap().map(|grants| grants.len()), Some(1), "the same owner, {name}");
        let lost = other.renew(&[next.lease()]).await.pop().unwrap().unwrap();
        assert_eq!(format!("{lost:?}"), "Renewed", "{name}");
        assert_eq!(other.release(&next.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        let third = asks(&name, Share::MUTEX, LONG);
        assert!(takes(&ours, &third).await > first);
        assert_eq!(cluster.serving(slot), Some(1 - from));
    }
}

/// A free name of a slot that is on its way.
fn half_way(cluster: &RedisCluster, name: &str, then: impl AsyncFnOnce()) {
    let slot = slot_of(cluster, name.as_bytes());
    let (from, handle) = (cluster.serving(slot).unwrap(), tokio::runtime::Handle::current());
    tokio::task::block_in_place(|| {
        let then = || handle.block_on(timeout(PATIENCE, then())).expect("it hangs");
        cluster.mover().move_slot(slot, from, (from + 1) % cluster.servers().len(), then);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_takes_nothing_in_a_slot_that_moves() {
    let cluster = Lent::of(2);
    let store = store(&cluster.url()).await;
    let late = asks("door", Share::MUTEX, LONG).with_enqueue(Enqueue::Heartbeat);
    half_way(&cluster, "door", async || {
        let answer = store.acquire(&late).await.unwrap();
        assert!(matches!(answer, AcquireReply::Busy(Busy { position: None, .. })), "{answer:?}");
        let next = asks("door", Share::MUTEX, LONG);
        takes(&store, &next).await;
        // The heartbeat of one that was served is granted.
        takes(&store, &next.with_enqueue(Enqueue::Heartbeat)).await;
    });
}

/// A lease that was taken in steps may have ended before it was counted. Then its number may be above that of the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_in_steps_that_was_lost_meanwhile_is_none() {
    let cluster = Lent::of(2);
    // Else a call about so short a lease would have no time.
    let store = store(&format!("{}?timeout=1s", cluster.url())).await;
    half_way(&cluster, "door", async || {
        for _ in 0..2_000 {
            let brief = asks("door", Share::MUTEX, Duration::from_millis(1));
            if matches!(store.acquire(&brief).await.unwrap(), AcquireReply::Busy(Busy { holder: None, .. })) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("each of 2,000 leases of a millisecond was granted though it had ended");
    });
}

/// The grant before was noted, and its answer was lost. The holder has a later number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_in_steps_shows_no_earlier_fence() {
    let cluster = Lent::of(2);
    let store = store(&cluster.url()).await;
    let held = asks("door", Share::MUTEX, LONG);
    let shown = async || store.inspect(Some(&held.name)).await.unwrap()[0].holders[0].fence.map(Fence::get);
    let lost = takes(&store, &held).await;
    assert_eq!(shown().await, Some(lost));
    half_way(&cluster, "door", async || {
        let again = takes(&store, &held).await;
        assert!(again > lost && shown().await.is_none_or(|shown| shown == again), "{:?}, {again} after {lost}", shown().await);
    });
    assert_eq!(shown().await, None, "the renewal has not noted it yet");
}

/// The same from several processes, and each of them counts in a file of its own: every turn is exact.
#[test]
fn a_crowd_does_not_notice_that_its_slots_move() {
    let cluster = Lent::of(3);
    let field = Field::new(6, 3_000).with(|load| (load.tasks, load.fickle) = (6, 100));
    let slots: Vec<u16> = field.load.names.iter().map(|(name, _)| slot_of(&cluster, name.as_bytes())).collect();
    let (mut mover, mut times) = (cluster.mover(), 0);
    let url = format!("{}?timeout=1s", cluster.url());
    let came = std::thread::scope(|scope| {
        let crowd = scope.spawn(|| field.crowd(&url, 3, Some(Duration::from_millis(700))));
        while !crowd.is_finished() {
            for slot in &slots {
                let from = cluster.serving(*slot).expect("it is served");
                mover.move_slot(*slot, from, (from + 1) % 3, || std::thread::sleep(Duration::from_millis(20)));
                times += 1;
            }
        }
        crowd.join().unwrap()
    });
    let visits = field.check(&came);
    println!("{visits} visits, {times} moves, {} killed, {} lost", came.killed, came.tally.lost);
    assert!(times > 6, "{times} moves");
    came.lost_none();
}

/// A writer waits for readers while the slot is on the way, and no such thing is an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_waits_for_readers_in_a_slot_that_moves() {
    let cluster = Lent::of(2);
    let (mut mover, locks) = (cluster.mover(), Locker::new(store(&cluster.url()).await));
    let slot = slot_of(&cluster, b"page");
    let from = cluster.serving(slot).unwrap();
    let reader = locks.read("page").acquire().await.unwrap();
    let (asked, handle) = (locks.mutex("page").acquire(), tokio::runtime::Handle::current());
    let writer = tokio::spawn(asked);
    tokio::task::block_in_place(|| {
        mover.move_slot(slot, from, 1 - from, || {
            let held = handle.block_on(locks.mutex("page").wait(Duration::from_millis(300)).acquire()).unwrap_err();
            assert!(held.kind() == ErrorKind::TimedOut, "it is held: {held:?}");
        });
    });
    assert!(!writer.is_finished());
    reader.release().await.unwrap();
    let _ = timeout(PATIENCE, writer).await.expect("it hangs").unwrap().unwrap();
}

/// Readers and permits are served again as soon as their keys are in one place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_outlast_a_move() {
    let cluster = Lent::of(2);
    let (mut mover, locks) = (cluster.mover(), Locker::new(store(&cluster.url()).await));
    let slot = slot_of(&cluster, b"pool");
    let ttl = Duration::from_secs(10);
    let one = locks.semaphore("pool", 2).ttl(ttl).acquire().await.unwrap();
    let two = locks.semaphore("pool", 2).ttl(ttl).acquire().await.unwrap();
    for _ in 0..6 {
        let from = cluster.serving(slot).unwrap();
        tokio::task::block_in_place(|| mover.move_slot(slot, from, 1 - from, || std::thread::sleep(Duration::from_millis(500))));
    }
    tokio::task::block_in_place(|| {
        wait_until(PATIENCE, "both to be held", || [one.state(), two.state()] == [State::Held; 2]);
    });
    let third = locks.semaphore("pool", 2).ttl(ttl).wait(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(third.kind(), ErrorKind::TimedOut);
    one.release().await.unwrap();
    let _ = locks.semaphore("pool", 2).ttl(ttl).acquire().await.unwrap();
}

/// A waiter is notified at once, by the channel of its slot, and by the common one on servers that have no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_reaches_the_waiter() {
    let of_slots = Lent::of(3);
    let common = Lent::of(3);
    for server in common.servers() {
        server.cli("ACL SETUSER default -ssubscribe");
    }
    for (cluster, sharded) in [(of_slots, true), (common, false)] {
        let [ours, theirs] = [store(&cluster.url()).await, store(&cluster.url()).await];
        let (ours, theirs) = (Locker::new(ours), Locker::new(theirs));
        // The first waiter of a process finds out what the servers can.
        for at in 0..12 {
            let name = format!("door {at}");
            let held = ours.mutex(&name).acquire().await.unwrap();
            let waits = tokio::spawn({
                let (locks, name) = (theirs.clone(), name.clone());
                async move { (locks.mutex(&name).acquire().await.unwrap(), Instant::now()) }
            });
            let queued = async {
                while ours.inspect(&name).await.unwrap().is_none_or(|entry| entry.waiters.is_empty()) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            timeout(PATIENCE, queued).await.expect("nobody queues");
            let released = Instant::now();
            held.release().await.unwrap();
            let (guard, got) = timeout(PATIENCE, waits).await.expect("it hangs").unwrap();
            let took = got - released;
            assert!(at == 0 || took < Duration::from_millis(500), "{name}, sharded {sharded}: told only after {took:?}");
            guard.release().await.unwrap();
        }
        let info = |server: &RedisServer| server.cli("INFO stats");
        let channels = |field: &str| {
            let count = |server: &RedisServer| {
                let info = info(server);
                let line = info.lines().find_map(|line| line.strip_prefix(field)).unwrap_or(":0").to_owned();
                line.trim_start_matches(':').trim().parse::<u64>().unwrap()
            };
            cluster.servers().iter().map(count).sum::<u64>()
        };
        assert_eq!(channels("pubsubshard_channels") > 0, sharded);
    }
}

/// A user may listen to the common channel, and not to those of the slots: a waiter polls until it is notified by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_slot_may_not_push_polls() {
    let cluster = Lent::of(1);
    for (channels, first, then) in [
        (&["allchannels"][..], true, true),
        (&["resetchannels", "&tenure:wake:*"], false, true),
        (&["resetchannels"], false, false),
    ] {
        cluster.servers()[0].command(&[&["ACL", "SETUSER", "default"][..], channels].concat());
        let (other, store) = (store(&cluster.url()).await, store(&cluster.url()).await);
        let (held, waits) = (asks("door", Share::MUTEX, LONG), asks("door", Share::MUTEX, LONG));
        takes(&other, &held).await;
        let mut notices = store.watch(&waits).await.unwrap();
        let join = Enqueue::Join { entry_ttl: LONG, handoff_ttl: LONG };
        for notified in [first, then, then] {
            let AcquireReply::Busy(busy) = store.acquire(&waits.clone().with_enqueue(join)).await.unwrap() else {
                panic!("held")
            };
            assert_eq!(busy.poll_interval >= Duration::from_secs(1), notified, "{channels:?}: {busy:?}");
        }
        assert_eq!(other.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        if then {
            assert_eq!(timeout(PATIENCE, notices.next()).await.unwrap(), Some(Notice::Changed), "{channels:?}");
        }
        // It was handed on, or is free.
        takes(&store, &waits).await;
        assert_eq!(store.release(&waits.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// The subscription follows the slot: it is asked for with each heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_listens_where_its_slot_has_gone() {
    let cluster = Lent::of(2);
    let locks = Locker::new(store(&cluster.url()).await);
    let held = locks.mutex("door").acquire().await.unwrap();
    let waits = tokio::spawn({
        let locks = Locker::new(store(&cluster.url()).await);
        async move { locks.mutex("door").acquire().await.unwrap().release().await.unwrap() }
    });
    let from = cluster.serving(slot_of(&cluster, b"door")).unwrap();
    let channels = |at: usize| cluster.servers()[at].command(&["PUBSUB", "SHARDCHANNELS"]).values().len();
    tokio::task::block_in_place(|| wait_until(PATIENCE, "the waiter to listen", || channels(from) == 1));
    half_way(&cluster, "door", async || ());
    tokio::task::block_in_place(|| {
        wait_until(PATIENCE, "the waiter to listen at the other node", || channels(1 - from) == 1 && channels(from) == 0);
    });
    held.release().await.unwrap();
    timeout(PATIENCE, waits).await.expect("it hangs").unwrap();
}

/// It waited while the slot was on its way for longer than a heartbeat: its place in the queue is lost, and it takes another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_served_at_once_when_its_slot_has_moved() {
    let cluster = Lent::of(2);
    let ttl = Duration::from_secs(5);
    let locks = Locker::new(store(&cluster.url()).await);
    let held = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    let waits = tokio::spawn({
        let locks = Locker::new(store(&cluster.url()).await);
        async move {
            let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
            (Instant::now(), guard.release().await)
        }
    });
    for _ in 0..3 {
        half_way(&cluster, "door", async || tokio::time::sleep(Duration::from_millis(1_500)).await);
    }
    let queued = async {
        while locks.inspect("door").await.unwrap().is_none_or(|entry| entry.waiters.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, queued).await.expect("nobody queues");
    let released = Instant::now();
    held.release().await.unwrap();
    let (came, _) = timeout(PATIENCE, waits).await.expect("it hangs").unwrap();
    assert!(came - released < Duration::from_millis(500), "served only after {:?}", came - released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_holds_up_no_renewal_at_another() {
    let cluster = RedisCluster::with(3, 0, |builder| builder.arg("cluster-require-full-coverage", "no"));
    let store = store(&format!("{}?timeout=4s", cluster.url())).await;
    let ttl = Duration::from_secs(12);
    let mut leases = Vec::new();
    for at in 0..9 {
        let request = asks(&format!("door {at}"), Share::MUTEX, ttl);
        takes(&store, &request).await;
        let node = cluster.serving(slot_of(&cluster, request.name.as_str().as_bytes())).unwrap();
        leases.push((node, request.lease()));
    }
    // Those at the silent node come first.
    leases.sort_by_key(|(node, _)| *node);
    assert!(leases[0].0 == 0 && leases[8].0 > 0, "{leases:?}");
    cluster.servers()[0].stop();
    let asked: Vec<Lease> = leases.iter().map(|(_, lease)| lease.clone()).collect();
    let (began, answers) = (Instant::now(), store.renew(&asked).await);
    let took = began.elapsed();
    for ((node, lease), answer) in leases.iter().zip(answers) {
        assert_eq!(answer.is_ok(), *node > 0, "{} at node {node}: {answer:?}", lease.name);
        if *node > 0 {
            // From when it was asked, and not from when the silent one was given up.
            let left = cluster.servers()[*node].command(&["PTTL", lease.name.as_str()]).int();
            let left = Duration::from_millis(left.try_into().unwrap());
            assert!(left + took / 2 < ttl, "{} at node {node} has {left:?} left after {took:?}", lease.name);
        }
    }
    cluster.servers()[0].cont();
}

/// Calls of the client fail from the moment at which the master falls silent. Its replica has the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_successor_of_a_silent_master_is_found_at_once() {
    let cluster = RedisCluster::start(3, 1);
    let (store, slot, held) = (store(&cluster.url()).await, slot_of(&cluster, b"door"), asks("door", Share::MUTEX, LONG));
    takes(&store, &held).await;
    let at = cluster.serving(slot).unwrap();
    let others = || (0..6).filter(|other| *other != at);
    let has = |other: usize| cluster.servers()[other].cli("DBSIZE") != "0";
    tokio::task::block_in_place(|| wait_until(PATIENCE, "the grant to be replicated", || others().any(has)));
    cluster.servers()[at].stop();
    let renewing = tokio::spawn(async move {
        while store.renew(&[held.lease()]).await.pop().unwrap().is_err() {}
        Instant::now()
    });
    let taken_over = || others().any(|other| cluster.serves(other, slot));
    tokio::task::block_in_place(|| wait_until(PATIENCE, "a replica to take over", taken_over));
    let taken_over = Instant::now();
    let renewed = timeout(PATIENCE, renewing).await.expect("the lease is never renewed").unwrap();
    cluster.servers()[at].cont();
    // A renewal that was under way takes all of its time, 0.9 s.
    let after = renewed.saturating_duration_since(taken_over);
    assert!(after < Duration::from_millis(1_900), "it is renewed only after {after:?}");
}

/// Each node has its slots, and they have not met yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_start_before_its_cluster_is_complete() {
    let start = |_| {
        let bus = RedisServer::start().port().to_string();
        (RedisServer::builder().arg("cluster-enabled", "yes").arg("cluster-port", &bus).start(), bus)
    };
    let nodes: Vec<(RedisServer, String)> = (0..2).map(start).collect();
    for (at, (server, _)) in nodes.iter().enumerate() {
        server.cli(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1));
        server.cli(&format!("CLUSTER ADDSLOTSRANGE {} {}", at * 8_192, at * 8_192 + 8_191));
    }
    let [(first, _), (second, bus)] = &nodes[..] else { unreachable!() };
    let store = store(&format!("redis+cluster://{},{}", first.addr(), second.addr())).await;
    first.cli(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", second.port()));
    tokio::task::block_in_place(|| {
        let is_up = |server: &RedisServer| server.cli("CLUSTER INFO").contains("cluster_state:ok");
        wait_until(PATIENCE, "the cluster to be up", || nodes.iter().all(|(server, _)| is_up(server)));
    });
    for at in 0..10 {
        takes(&store, &asks(&format!("door {at}"), Share::MUTEX, LONG)).await;
    }
}

/// A node that was cut off answers first, and names the dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_still_names_the_dead_is_not_believed() {
    let cluster = RedisCluster::with(3, 0, |builder| builder.arg("cluster-require-full-coverage", "no"));
    let slot = slot_of(&cluster, b"door");
    let dead = cluster.serving(slot).unwrap();
    let old_map = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{}\r\n", cluster.servers()[dead].port());
    let stale = listens_as(move |words| match &*words[0] {
        "CLUSTER" => old_map.clone().into(),
        "PING" => b"+PONG\r\n".to_vec(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    });
    let store = store(&cluster.url().replace("cluster://", &format!("cluster://{stale},"))).await;
    half_way(&cluster, "door", async || ());
    let others = || cluster.servers().iter().enumerate().filter(|(at, _)| *at != dead).map(|(_, server)| server);
    let known = |server: &RedisServer| server.cli("CLUSTER INFO").contains("cluster_state:ok");
    cluster.servers()[dead].kill();
    tokio::task::block_in_place(|| wait_until(PATIENCE, "the others to be up", || others().all(known)));
    // They answer, but later than the one that is cut off.
    for server in others() {
        server.cli("CLIENT PAUSE 100 ALL");
    }
    let request = asks("door", Share::MUTEX, LONG);
    let granted = async { while !matches!(store.acquire(&request).await, Ok(AcquireReply::Granted(_))) {} };
    timeout(PATIENCE, granted).await.expect("the node that serves the slot is never found");
    assert_ne!(cluster.serving(slot), Some(dead));
}

/// One key of a semaphore is at the one node, and one at the other, so none of the two can answer for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_in_a_slot_that_moves_is_waited_for() {
    let cluster = Lent::of(2);
    let locks = Locker::new(Options::parse(&patient(&cluster.url())).unwrap().open().await.unwrap());
    let slot = slot_of(&cluster, b"pool");
    let _one = locks.semaphore("pool", 2).acquire().await.unwrap();
    let (mut mover, from, handle) = (cluster.mover(), cluster.serving(slot).unwrap(), tokio::runtime::Handle::current());
    let asked = locks.semaphore("pool", 2).wait(Duration::ZERO).acquire();
    let waiting = tokio::task::block_in_place(|| {
        let mut waiting = None;
        mover.move_slot(slot, from, 1 - from, || {
            let error = handle.block_on(asked).unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("being moved"), "{error:?}");
            assert!(!error.may_have_been_applied(), "{error:?}");
            waiting = Some(handle.spawn(locks.semaphore("pool", 2).acquire()));
        });
        waiting.unwrap()
    });
    let _two = timeout(LONG, waiting).await.expect("it is served").unwrap().unwrap();
}

/// All keys of the name are there, so the script runs. It may touch none that it has deleted, because the server then ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_handed_over_in_a_slot_that_moves() {
    let cluster = Lent::of(2);
    let locks = Locker::new(Options::parse(&patient(&cluster.url())).unwrap().open().await.unwrap());
    let slot = slot_of(&cluster, b"door");
    let (mut mover, handle) = (cluster.mover(), tokio::runtime::Handle::current());
    let (all, one, linger) = (Share::from_parts(2, 2).unwrap(), Share::from_parts(1, 2).unwrap(), Duration::from_secs(3));
    let none = Duration::ZERO;
    for (share, next, linger) in [
        (Share::MUTEX, Share::MUTEX, none),
        (Share::READ, Share::MUTEX, none),
        (all, one, none),
        (Share::READ, Share::MUTEX, linger),
    ] {
        let from = cluster.serving(slot).unwrap();
        let first = locks.lock("door", share).acquire().await.unwrap().into_lease();
        // The number of the second owner is noted.
        let lease = locks.adopt(&first).await.unwrap().into_lease();
        let told = Arc::new(Notify::new());
        let tells = Arc::clone(&told);
        let waiter = tokio::spawn(locks.lock("door", next).on_wait(move |_| tells.notify_one()).acquire());
        told.notified().await;
        let released_at = tokio::task::block_in_place(|| {
            let mut released_at = None;
            mover.move_slot_by(
                slot,
                from,
                1 - from,
                |keys| keys.truncate(0),
                || {
                    let adopted = handle.block_on(locks.adopt(&lease)).expect("it is handed over").into_lease();
                    let released = handle.block_on(locks.release_lingering(&adopted, linger));
                    assert!(matches!(released, Ok(ReleaseOutcome::Released)), "{share:?} for {linger:?}: {released:?}");
                    released_at = Some(Instant::now());
                },
            );
            released_at.unwrap()
        });
        let served = timeout(LONG, waiter).await.expect("it is served").unwrap().unwrap();
        assert!(released_at.elapsed() >= linger, "{:?} of a linger of {linger:?}", released_at.elapsed());
        served.release().await.unwrap();
    }
}
