//! Requests of tests, and what they expect of the answers.
#![allow(dead_code, reason = "every test program uses a part of it")]

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure::store::{AcquireReply, Busy, Enqueue, Grant, Request, Store};
use tenure::{Lease, Locker, Name, Owner, Share};

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) fn owner() -> Owner {
    Owner::generate("test").unwrap()
}

pub(crate) fn request(name: &str, owner: &Owner) -> Request {
    let (name, owner) = (Name::new(name).unwrap(), owner.clone());
    Request::new(name, owner, Share::MUTEX, TTL)
}

/// A request with a place, looked after as a locker does.
pub(crate) fn joining(name: &str) -> Request {
    let place = Enqueue::Join { entry_ttl: Duration::from_millis(2_500), handoff_ttl: Duration::from_millis(1_500) };
    request(name, &owner()).with_enqueue(place)
}

pub(crate) fn lease(name: &str, owner: &Owner) -> Lease {
    let (name, owner) = (Name::new(name).unwrap(), owner.clone());
    Lease::new(name, owner, Share::MUTEX, TTL)
}

pub(crate) async fn granted(store: &dyn Store, request: &Request) -> Grant {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn busy(store: &dyn Store, request: &Request) -> Busy {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Busy(busy) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

/// Polls so often, each time when it is woken, and drops.
pub(crate) async fn drop_after<T>(polls: usize, call: impl Future<Output = T>) {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        match call.as_mut().poll(cx) {
            Poll::Pending if left > 0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

pub(crate) const CALLS: [&str; 8] = ["acquire", "wait", "keep", "acquire all", "renew", "release", "watch", "inspect"];

/// The owners of calls that are dropped: one that is to be cleared away, and one that holds `taken` and `mine`.
pub(crate) struct Case<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) owner: Owner,
    pub(crate) held: Owner,
}

impl Case<'_> {
    /// Makes one of the [`CALLS`], and drops it.
    pub(crate) async fn call(&self, what: &str, polls: usize) {
        let store = self.store;
        let joining = joining("taken").with_owner(self.owner.clone());
        let renewed = [lease("mine", &self.held)];
        match what {
            "acquire" => drop_after(polls, store.acquire(&request("x", &self.owner))).await,
            "wait" => drop_after(polls, store.acquire(&joining)).await,
            "keep" => drop_after(polls, store.acquire(&joining.with_enqueue(Enqueue::Heartbeat))).await,
            "acquire all" => {
                let all = [request("x", &self.owner), request("y", &self.owner)];
                drop_after(polls, store.acquire_all(&all)).await;
            }
            "renew" => drop_after(polls, store.renew(&renewed)).await,
            "release" => drop_after(polls, store.release(&renewed[0], Duration::ZERO)).await,
            "watch" => drop_after(polls, store.watch(&joining)).await,
            "inspect" => drop_after(polls, store.inspect(None)).await,
            other => panic!("no call {other}"),
        }
    }
}

/// Several names are taken in one step, while another client takes and frees one of them all the time.
pub(crate) async fn all_or_none(ours: &dyn Store, theirs: &dyn Store) {
    let (mut taken, mut refused) = (0, 0);
    let done = std::sync::atomic::AtomicBool::new(false);
    let meddle = async {
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let held = owner();
            if let Ok(AcquireReply::Granted(_)) = theirs.acquire(&request("b", &held)).await {
                theirs.release(&lease("b", &held), Duration::ZERO).await.unwrap();
            }
        }
    };
    let take = async {
        for _ in 0..200 {
            let held = owner();
            let all = ["c", "b", "a"].map(|name| request(name, &held));
            let grants = ours.acquire_all(&all).await.unwrap();
            for name in ["a", "b", "c"] {
                let entry = ours.inspect(Some(&Name::new(name).unwrap())).await.unwrap();
                let is_ours = entry.iter().any(|entry| entry.holders.iter().any(|holder| holder.owner == held));
                assert_eq!(is_ours, grants.is_some(), "{name} is ours with all others, or none of them is");
            }
            if grants.is_some() {
                taken += 1;
                for name in ["a", "b", "c"] {
                    ours.release(&lease(name, &held), Duration::ZERO).await.unwrap();
                }
            } else {
                refused += 1;
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    tokio::join!(meddle, take);
    println!("taken {taken} times, refused {refused} times");
}

/// An observer that hardly polls, beside the candidates in their process.
pub(crate) async fn each_leader_is_seen(locks: &Locker) {
    let election = locks.election("billing").poll_interval(Duration::from_secs(3_600));
    let mut leaders = election.observe();
    let mut sees = async |label: Option<&str>| {
        let seen = async { while leaders.next().await.unwrap().unwrap().as_ref().and_then(|leader| leader.label()) != label {} };
        tokio::time::timeout(TTL, seen).await.unwrap_or_else(|_| panic!("{label:?} was not seen"));
    };
    let campaign = |label| {
        let candidate = election.candidate(label).ttl(2 * TTL);
        async move { candidate.campaign().await.unwrap() }
    };
    sees(None).await;
    let first = campaign("first").await;
    sees(Some("first")).await;
    let second = tokio::spawn(campaign("second"));
    while locks.inspect("billing").await.unwrap().unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.resign().await.unwrap();
    let second = second.await.unwrap();
    sees(Some("second")).await;
    second.resign().await.unwrap();
    sees(None).await;
}
