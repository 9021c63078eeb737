//! Compares a lock in ZooKeeper with its own requests, sent on a connection by nobody but this program, in turn.
//!
//! `cargo run --release -p tenure-zookeeper --example zookeeper-cost`
//!
//! Starts a ZooKeeper, which does not wait for its disk. One task takes and releases a mutex, again and again. By
//! itself that is a create with a list behind it in one packet, and for the release a delete: two round trips.
//! Prints the medians of all rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "it is what the program is for")]

use std::time::{Duration, Instant};

use tenure::Locker;
use tenure_testkit::ZooKeeperServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[allow(dead_code, reason = "a few requests are measured")]
#[path = "../src/wire.rs"]
mod wire;

use wire::{Acl, CONTAINER, CREATE, CREATE_CONTAINER, Connected, EPHEMERAL_SEQUENTIAL, Frame, Reading, connect};

const ROUNDS: usize = 15;
const TIME: Duration = Duration::from_millis(500);
const TTL: Duration = Duration::from_secs(30);
/// As much as a node of ours has in its name and its data.
const NODE: &str = "_c_00000000-0000-0000-0000-000000000000-lock-";
const DATA: [u8; 60] = [b'x'; 60];

/// A session that sends one packet after another.
struct Raw {
    stream: TcpStream,
    sent: i32,
}

impl Raw {
    async fn connect(server: &ZooKeeperServer) -> Self {
        let mut stream = TcpStream::connect(server.addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&connect(0, 30_000, 0, &[0; 16])).await.unwrap();
        let mut raw = Self { stream, sent: 0 };
        let answer = raw.read().await;
        assert!(Connected::read(&answer).unwrap().session != 0);
        raw
    }

    async fn read(&mut self) -> Vec<u8> {
        let length = self.stream.read_i32().await.unwrap();
        let mut answer = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut answer).await.unwrap();
        answer
    }

    /// Sends requests in one packet. Returns their answers behind the heads.
    async fn ask<const N: usize>(&mut self, frames: [Frame; N]) -> [Vec<u8>; N] {
        let mut packet = Vec::new();
        for frame in frames {
            self.sent += 1;
            frame.write(self.sent, &mut packet);
        }
        self.stream.write_all(&packet).await.unwrap();
        let mut answers = [const { Vec::new() }; N];
        for answer in &mut answers {
            let all = self.read().await;
            let mut head = Reading(&all);
            let (_xid, _zxid, code) = (head.int().unwrap(), head.long().unwrap(), head.int().unwrap());
            assert_eq!(code, 0);
            *answer = head.0.to_vec();
        }
        answers
    }

    async fn cycle(&mut self, path: &str) {
        let create = Frame::create(CREATE, &format!("{path}/{NODE}"), &DATA, Acl::Open, EPHEMERAL_SEQUENTIAL);
        let [created, listed] = self.ask([create, Frame::list(path, false)]).await;
        let node = Reading(&created).text().unwrap();
        assert!(Reading(&listed).texts().unwrap().iter().any(|child| node.ends_with(child)));
        self.ask([Frame::delete(&node)]).await;
    }
}

async fn rate(mut cycle: impl AsyncFnMut()) -> f64 {
    let (began, mut count) = (Instant::now(), 0_u32);
    while began.elapsed() < TIME {
        cycle().await;
        count += 1;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

async fn ours(locks: &Locker) {
    let guard = locks.mutex("ours").ttl(TTL).acquire().await.unwrap();
    let _released = guard.release().await.unwrap();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = ZooKeeperServer::shared();
    let locks = tenure_zookeeper::connect(&server.url("cost")).await.unwrap();
    ours(&locks).await;
    let mut raw = Raw::connect(server).await;
    raw.ask([Frame::create(CREATE_CONTAINER, "/cost/raw", &[], Acl::Open, CONTAINER)]).await;
    let (mut rates, mut raw_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let of_raw = rate(async || raw.cycle("/cost/raw").await).await;
        let of_ours = rate(async || ours(&locks).await).await;
        rates.push(of_ours);
        raw_rates.push(of_raw);
        ratios.push(of_ours / of_raw);
    }
    let (ours, raw, ratio) = (median(rates), median(raw_rates), 100.0 * median(ratios));
    println!("acquire and release: {ours:.0}/s, the requests alone {raw:.0}/s: {ratio:.0} %");
}
