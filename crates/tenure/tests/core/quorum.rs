//! A quorum with a node whose calls the test holds up: what is asked of it late must not outlive the lease.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::compose::quorum::{Confirmed, Memory, Node, Quorum, Vote};
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Lease, MemoryStore, Name, Owner, Share};
use tokio::sync::Semaphore;

use crate::{LONG, settle};

/// A store in memory that executes acquisitions, or answers renewals, when the test lets it.
#[derive(Clone, Debug)]
struct Late {
    inner: MemoryStore,
    acquires: Arc<Gate>,
    renewals: Arc<Gate>,
    /// It answers nothing that acquires.
    is_away: Arc<AtomicBool>,
    /// How far it is, in ms.
    distance: Arc<AtomicU64>,
    /// Times that it finds its data lost, when it is asked.
    losses: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Gate {
    passes: Semaphore,
    waiting: AtomicUsize,
}

/// More calls than any case makes.
const MANY: usize = 100;

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { passes: Semaphore::new(MANY), waiting: AtomicUsize::new(0) })
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.passes.acquire().await.unwrap().forget();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets so many calls pass, and no more.
    fn shut_after(&self, calls: usize) {
        self.passes.forget_permits(MANY);
        self.passes.add_permits(calls);
    }

    fn open(&self) {
        self.passes.add_permits(MANY);
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Late {
    fn new() -> Self {
        Self {
            inner: MemoryStore::new(),
            acquires: Gate::new(),
            renewals: Gate::new(),
            is_away: Arc::default(),
            distance: Arc::default(),
            losses: Arc::default(),
        }
    }

    async fn has(&self, owner: &Owner) -> bool {
        self.inner.inspect(None).await.unwrap().iter().any(|entry| entry.holders.iter().any(|holder| holder.owner == *owner))
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late:")
    }
}

#[async_trait]
impl Store for Late {
    fn features(&self) -> Features {
        self.inner.features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.acquires.pass().await;
        tokio::time::sleep(Duration::from_millis(self.distance.load(Ordering::Relaxed))).await;
        if self.is_away.load(Ordering::Relaxed) {
            return Err(Error::unreachable("it is away"));
        }
        self.inner.acquire(request).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.inner.acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let answers = self.inner.renew(leases).await;
        self.renewals.pass().await;
        answers
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        tokio::time::sleep(Duration::from_millis(self.distance.load(Ordering::Relaxed))).await;
        self.inner.release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.inner.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.inner.inspect(name).await
    }
}

#[async_trait]
impl Node for Late {
    fn counts_names(&self) -> bool {
        false
    }

    async fn confirm(&self, _: &Lease, _: Fence) -> Result<Confirmed, Error> {
        unreachable!("it counts no names")
    }

    async fn memory(&self) -> Result<Memory, Error> {
        let left = self.losses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let lost = |left: usize| Vote::Lost { loss: left.to_string(), note: String::new(), is_new: false };
        let vote = left.map_or(Vote::Given { counter: 0, new_beside: Vec::new() }, lost);
        Ok(Memory { vote, latest_end: Duration::ZERO, copy_end: Duration::ZERO, clock: None })
    }

    async fn note(&self, _: &str, _: &str, _: &str) -> Result<(), Error> {
        Ok(())
    }

    async fn admit(&self, _: &str, _: u64, _: &[&str]) -> Result<(), Error> {
        Ok(())
    }
}

fn three() -> (Vec<Late>, Quorum) {
    let nodes: Vec<Late> = (0..3).map(|_| Late::new()).collect();
    let quorum = Quorum::new(nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Node>).collect()).unwrap();
    (nodes, quorum)
}

fn asks() -> Request {
    asks_for(Share::MUTEX)
}

fn asks_for(share: Share) -> Request {
    Request::new(Name::new("door").unwrap(), Owner::generate("x").unwrap(), share, LONG)
}

async fn granted(quorum: &Quorum) -> Request {
    let request = asks();
    assert!(matches!(quorum.acquire(&request).await.unwrap(), AcquireReply::Granted(_)));
    request
}

async fn release(quorum: &Quorum, request: &Request) {
    assert_eq!(quorum.release(&request.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}

/// The first node may have lost its data meanwhile, and have asked the second before the second knew of the lease.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_does_not_count() {
    let (nodes, quorum) = three();
    let quorum = quorum.with_timeout(LONG);
    let held = granted(&quorum).await;
    settle().await;
    nodes[1].renewals.shut_after(0);
    nodes[2].renewals.shut_after(0);
    let renewal = async { quorum.renew(&[held.lease()]).await.remove(0) };
    let (renewed, ()) = tokio::join!(renewal, late(&nodes, |node| &node.renewals));
    assert!(renewed.is_err_and(|error| error.may_have_been_applied()));
    release(&quorum, &held).await;
    nodes[1].acquires.shut_after(0);
    nodes[2].acquires.shut_after(0);
    let request = asks();
    let (granted, ()) = tokio::join!(quorum.acquire(&request), late(&nodes, |node| &node.acquires));
    assert_eq!(granted.map(drop).unwrap_err().kind(), ErrorKind::Unreachable);
}

/// Lets the answers of the nodes come after 3 s.
async fn late(nodes: &[Late], gate: fn(&Late) -> &Gate) {
    tokio::time::sleep(Duration::from_secs(3)).await;
    for node in nodes {
        gate(node).open();
    }
}

/// Otherwise nobody could wait for the name while one server is away.
#[tokio::test(start_paused = true)]
async fn a_held_name_is_busy_for_a_supplied_token_as_well_while_a_node_is_silent() {
    let (nodes, quorum) = three();
    granted(&quorum).await;
    settle().await;
    nodes[2].acquires.shut_after(0);
    let supplied = asks().with_generated(false);
    let answer = quorum.acquire(&supplied).await;
    assert!(matches!(answer, Ok(AcquireReply::Busy(_))), "{answer:?}");
    // One that is free grants it, and is released again. It may be held at the silent one, which is no majority.
    let (nodes, quorum) = three();
    assert!(matches!(nodes[1].inner.acquire(&asks()).await.unwrap(), AcquireReply::Granted(_)));
    nodes[2].acquires.shut_after(0);
    let answer = quorum.acquire(&supplied).await;
    assert!(matches!(answer, Ok(AcquireReply::Busy(_))) && !nodes[0].has(&supplied.owner).await, "{answer:?}");
}

/// The connection to one node was just replaced: the acquisition needs a second try there, which comes after the release.
#[tokio::test(start_paused = true)]
async fn a_node_that_grants_after_the_release_is_free_again() {
    let (nodes, quorum) = three();
    nodes[2].acquires.shut_after(0);
    let held = granted(&quorum).await;
    release(&quorum, &held).await;
    nodes[2].acquires.open();
    settle().await;
    assert_eq!(nodes[2].acquires.waiting(), 0);
    assert!(!nodes[2].has(&held.owner).await, "it is held there for its ttl");
}

/// The same of the call that completes a grant at a node which was busy.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_completed_after_its_release_is_undone() {
    for released in [false, true] {
        let (nodes, quorum) = three();
        let before = asks();
        assert!(matches!(nodes[2].inner.acquire(&before).await.unwrap(), AcquireReply::Granted(_)));
        nodes[2].acquires.shut_after(1);
        let request = granted(&quorum).await;
        settle().await;
        assert_eq!(nodes[2].acquires.waiting(), 1, "it is asked once more");
        assert_eq!(nodes[2].inner.release(&before.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        if released {
            release(&quorum, &request).await;
        }
        nodes[2].acquires.open();
        settle().await;
        assert_eq!(nodes[2].has(&request.owner).await, !released);
    }
}

/// The release is sent while a renewal is under way, which finds out that one node has lost the lease.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_is_not_planted_again() {
    for released in [false, true] {
        let (nodes, quorum) = three();
        let held = granted(&quorum).await;
        settle().await;
        assert_eq!(nodes[2].inner.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        nodes[0].renewals.shut_after(0);
        let renewal = tokio::spawn({
            let (quorum, lease) = (quorum.clone(), held.lease());
            async move { quorum.renew(&[lease]).await }
        });
        settle().await;
        if released {
            release(&quorum, &held).await;
        }
        nodes[0].renewals.open();
        assert!(matches!(renewal.await.unwrap()[..], [Ok(RenewReply::Renewed)]));
        settle().await;
        assert_eq!(nodes[2].has(&held.owner).await, !released);
    }
}

/// Its holder does not know yet. Nodes that were away at the grant may be those without it, and would grant it to another.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_majority_has_lost_stays_at_the_others_until_its_holder_knows() {
    let (nodes, quorum) = three();
    let held = granted(&quorum).await;
    settle().await;
    for node in &nodes[1..] {
        assert_eq!(node.inner.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
    assert!(matches!(quorum.renew(&[held.lease()]).await[..], [Ok(RenewReply::Gone)]));
    settle().await;
    assert!(nodes[0].has(&held.owner).await, "another could be granted it beside the holder");
}

/// Else the slowest node would never take it again.
#[tokio::test(start_paused = true)]
async fn a_lease_is_planted_again_at_a_node_that_answers_after_the_majority() {
    let (nodes, quorum) = three();
    let held = granted(&quorum).await;
    settle().await;
    assert_eq!(nodes[2].inner.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    nodes[2].renewals.shut_after(0);
    assert!(matches!(quorum.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    nodes[2].renewals.open();
    settle().await;
    assert!(nodes[2].has(&held.owner).await);
}

/// Until the third has the lease, none of the other two may be lost.
#[tokio::test(start_paused = true)]
async fn a_lease_reaches_a_node_that_was_busy_for_a_moment() {
    let (nodes, quorum) = three();
    let rival = asks();
    assert!(matches!(nodes[2].inner.acquire(&rival).await.unwrap(), AcquireReply::Granted(_)));
    let held = granted(&quorum).await;
    settle().await;
    assert_eq!(nodes[2].inner.release(&rival.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(nodes[2].has(&held.owner).await);
    let left = async |at: usize| nodes[at].inner.inspect(None).await.unwrap()[0].holders[0].ttl.unwrap();
    assert!(left(2).await <= left(0).await, "it would outlive the lease");
    release(&quorum, &held).await;
    settle().await;
    assert!(!nodes[2].has(&held.owner).await);
}

/// It is away when a lease is granted, made smaller and taken over, and back a moment later.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_for_a_moment_has_the_lease_as_it_is() {
    let (nodes, quorum) = three();
    let after_a_moment = async |request: &Request| {
        nodes[2].is_away.store(true, Ordering::Relaxed);
        assert!(matches!(quorum.acquire(request).await.unwrap(), AcquireReply::Granted(_)));
        tokio::time::sleep(Duration::from_secs(2)).await;
        nodes[2].is_away.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let holders = nodes[2].inner.inspect(None).await.unwrap().remove(0).holders;
        holders.into_iter().map(|holder| (holder.owner, holder.share)).collect::<Vec<_>>()
    };
    let writer = asks_for(Share::WRITE);
    assert_eq!(after_a_moment(&writer).await, [(writer.owner.clone(), Share::WRITE)]);
    let mut reader = writer.with_enqueue(Enqueue::Heartbeat);
    reader.share = Share::READ;
    assert_eq!(after_a_moment(&reader).await, [(reader.owner.clone(), Share::READ)]);
    let adopter = asks_for(Share::READ).with_from(reader.owner);
    assert_eq!(after_a_moment(&adopter).await, [(adopter.owner.clone(), Share::READ)]);
}

/// The acquisition reaches the third node only then.
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_client_has_released_is_at_no_node_that_is_far() {
    let (nodes, quorum) = three();
    let near = Quorum::new(nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Node>).collect()).unwrap();
    nodes[2].acquires.shut_after(0);
    let held = granted(&quorum).await;
    release(&near, &held).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    nodes[2].acquires.open();
    settle().await;
    assert!(!nodes[2].has(&held.owner).await);
}

/// The third node was near, and another holds the name at the second one alone.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_become_far_is_heard_at_the_next_try() {
    let (nodes, quorum) = three();
    for _ in 0..8 {
        release(&quorum, &granted(&quorum).await).await;
        settle().await;
    }
    assert!(matches!(nodes[1].inner.acquire(&asks()).await.unwrap(), AcquireReply::Granted(_)));
    nodes[2].distance.store(600, Ordering::Relaxed);
    assert!(matches!(quorum.acquire(&asks()).await.unwrap(), AcquireReply::Busy(_)));
    // Its answer to the clean-up comes meanwhile.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(matches!(quorum.acquire(&asks()).await.unwrap(), AcquireReply::Granted(_)));
}

/// By then a renewal has found the node, or the process was stopped and the lease has ended.
#[tokio::test(start_paused = true)]
async fn a_node_that_stays_busy_is_not_asked_for_ever() {
    let (nodes, quorum) = three();
    let rival = asks();
    assert!(matches!(nodes[2].inner.acquire(&rival).await.unwrap(), AcquireReply::Granted(_)));
    let held = granted(&quorum).await;
    tokio::time::sleep(LONG / 2).await;
    assert_eq!(nodes[2].inner.release(&rival.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    tokio::time::sleep(LONG * 2 / 5).await;
    assert!(!nodes[2].has(&held.owner).await);
}

/// Its client does not know that, and goes on to ask the third node for it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_over_is_not_planted_for_its_first_owner() {
    let (nodes, quorum) = three();
    let other = Quorum::new(nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Node>).collect()).unwrap();
    let rival = asks();
    assert!(matches!(nodes[2].inner.acquire(&rival).await.unwrap(), AcquireReply::Granted(_)));
    let held = granted(&quorum).await;
    settle().await;
    let after = |ms| tokio::time::sleep(Duration::from_millis(ms));
    after(10).await;
    let adopter = asks().with_from(held.owner.clone());
    assert!(matches!(other.acquire(&adopter).await.unwrap(), AcquireReply::Granted(_)));
    // The first client asks after 635 ms, and the other after 645.
    after(620).await;
    assert_eq!(nodes[2].inner.release(&rival.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    after(1_000).await;
    assert!(!nodes[2].has(&held.owner).await);
    assert!(nodes[2].has(&adopter.owner).await);
}

/// Too few have answered the renewal, and one has kept the lease for longer than its holder counts on it. Another may have held
/// the name since.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_not_renewed_is_not_planted() {
    let (nodes, quorum) = three();
    let held = granted(&quorum).await;
    settle().await;
    assert_eq!(nodes[2].inner.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    nodes[1].renewals.shut_after(0);
    assert!(quorum.renew(&[held.lease()]).await.remove(0).is_err());
    settle().await;
    assert!(!nodes[2].has(&held.owner).await);
    nodes[1].renewals.open();
}

/// Else an operator would take it for one that votes.
#[tokio::test]
async fn a_node_that_loses_its_data_again_is_not_admitted() {
    let (nodes, quorum) = three();
    nodes[0].losses.store(1, Ordering::Relaxed);
    quorum.admit().await.unwrap();
    nodes[0].losses.store(2, Ordering::Relaxed);
    let error = quorum.admit().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("again"), "{error}");
}
