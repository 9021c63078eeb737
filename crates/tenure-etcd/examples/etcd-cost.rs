//! Compares a lock in etcd with its own requests, sent without a lock around them, in turn. Prints how long a
//! hand-over takes as well, from the call of release to the grant of a waiter.
//!
//! `cargo run --release -p tenure-etcd --example etcd-cost [-- PEER]`
//!
//! Starts an etcd, which does not wait for its disk. A round takes and releases a mutex for a while. Prints
//! the medians of all rounds. PEER is a program that does the same hand-overs by another library, in turns with
//! ours: `just etcd-cost` builds the one in `compare/go/etcd`, of etcd's own package `concurrency`, and names it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "it is what the program is for")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use prost::Message;
use tenure::Locker;
use tenure_testkit::EtcdCluster;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[allow(dead_code, reason = "three requests are measured")]
#[path = "../src/proto.rs"]
mod proto;

use proto::{
    Compare, LEASE_GRANT, LEASE_REVOKE, LeaseGrantRequest, LeaseGrantResponse, LeaseId, LeaseRevokeResponse, Op, PutRequest, TXN,
    TxnRequest, TxnResponse,
};

const ROUNDS: usize = 15;
const HANDOVERS: usize = 20;
/// Of so many hand-overs each.
const HANDOVER_ROUNDS: usize = 5;
/// As long as the peer waits for a watch to begin. It would need up to 90 ms more without that, and ours would not.
const WATCHES: Duration = Duration::from_millis(200);
const TIME: Duration = Duration::from_millis(500);
const TTL: Duration = Duration::from_secs(30);

async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> A
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let request = tonic::Request::new(request);
    grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await.unwrap().into_inner()
}

/// A lease, a key with it, and the end of both.
async fn raw(channel: &Channel, name: &str) {
    let lease: LeaseGrantResponse = call(channel, LEASE_GRANT, LeaseGrantRequest { ttl: 30, id: 0 }).await;
    let key = format!("{name}/{:x}", lease.id).into_bytes();
    let put = PutRequest { key: key.clone(), value: Vec::new(), lease: lease.id };
    let compare = vec![Compare::is_absent(&key)];
    let request = TxnRequest { compare, success: vec![Op::Put(put).into()], failure: Vec::new() };
    let done: TxnResponse = call(channel, TXN, request).await;
    assert!(done.succeeded);
    let _: LeaseRevokeResponse = call(channel, LEASE_REVOKE, LeaseId { id: lease.id }).await;
}

async fn rate(cycle: impl AsyncFn()) -> f64 {
    let (began, mut count) = (Instant::now(), 0_u32);
    while began.elapsed() < TIME {
        cycle().await;
        count += 1;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Two processes' worth of lockers pass a name to and fro. Returns the microseconds of each hand-over.
async fn handovers(url: &str, name: &str) -> Vec<f64> {
    let one = tenure_etcd::connect(url).await.unwrap();
    let other = tenure_etcd::connect(url).await.unwrap();
    let mut all = Vec::new();
    for turn in 0..HANDOVERS {
        let (here, there): (&Locker, &Locker) = if turn % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let guard = here.mutex(name).ttl(TTL).acquire().await.unwrap();
        let waits = there.mutex(name).ttl(TTL).acquire();
        let waits = tokio::spawn(async move { (waits.await.unwrap(), Instant::now()) });
        while one.inspect(name).await.unwrap().is_none_or(|entry| entry.waiters.is_empty()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(WATCHES).await;
        let began = Instant::now();
        let _released = guard.release().await.unwrap();
        let (guard, at) = waits.await.unwrap();
        all.push(at.duration_since(began).as_secs_f64() * 1e6);
        let _released = guard.release().await.unwrap();
    }
    all
}

/// The same by another program, which prints a line for each.
fn handovers_by(peer: &str, etcd: &EtcdCluster, name: &str) -> Vec<f64> {
    let mut peer = Command::new(peer);
    let output = peer.args([&etcd.addr(0).to_string(), name, &HANDOVERS.to_string()]).stderr(Stdio::inherit()).output();
    let output = output.expect("the peer can be run");
    assert!(output.status.success(), "the peer ended with {}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().expect("microseconds")).collect()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let etcd = EtcdCluster::shared();
    let channel = Endpoint::from_shared(format!("http://{}", etcd.addr(0))).unwrap().tcp_nodelay(true).connect().await.unwrap();
    let locks = tenure_etcd::connect(&etcd.url("cost/")).await.unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.push(rate(async || raw(&channel, "raw").await).await);
        ours.push(rate(async || drop(locks.mutex("x").ttl(TTL).acquire().await.unwrap().release().await.unwrap())).await);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("acquire and release: {ours:.0}/s, the requests alone {theirs:.0}/s: {:.0} %", ours / theirs * 100.0);
    let peer = std::env::args().nth(1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..HANDOVER_ROUNDS {
        ours.extend(handovers(&etcd.url("handed/"), &format!("ours {round}")).await);
        theirs.extend(peer.iter().flat_map(|peer| handovers_by(peer, etcd, &format!("theirs {round}"))));
    }
    let (ours, theirs) = (median(ours), if theirs.is_empty() { None } else { Some(median(theirs)) });
    let beside = theirs.map_or_else(String::new, |theirs| format!(", the peer {theirs:.0} us: {:.0} %", ours / theirs * 100.0));
    println!("hand-over: {ours:.0} us{beside}");
}
