//! Compares a lock in memcached with its commands, sent on a connection by nobody but this program, in turn.
//!
//! `cargo run --release -p tenure-memcached --example memcached-cost`
//!
//! One task takes and releases a mutex, again and again. By hand that is `add`, and for the release `gets` and a deletion of that
//! version: three round trips. Ours has the version from the grant, and needs two. Prints the medians of all rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "it is what the program is for")]

use std::time::{Duration, Instant};

use tenure::{Locker, Owner};
use tenure_testkit::MemcachedServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ROUNDS: usize = 15;
const TIME: Duration = Duration::from_millis(400);
const TTL: Duration = Duration::from_secs(30);

/// A connection that sends one command after another.
struct Raw {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    /// Sends a command, and reads what one piece of the connection has. These answers are short.
    async fn ask(&mut self, command: &str) -> &str {
        self.stream.write_all(command.as_bytes()).await.unwrap();
        let length = self.stream.read(&mut self.buffer).await.unwrap();
        std::str::from_utf8(&self.buffer[..length]).unwrap()
    }

    async fn cycle(&mut self, owner: &str) {
        let size = owner.len();
        let stored = self.ask(&format!("add raw 0 32 {size}\r\n{owner}\r\n")).await;
        assert_eq!(stored, "STORED\r\n");
        let found = self.ask("mg raw v c\r\n").await;
        assert!(found.contains(owner), "{found}");
        let version = found.split_whitespace().find_map(|word| word.strip_prefix('c')).unwrap().to_owned();
        assert_eq!(self.ask(&format!("md raw C{version}\r\n")).await, "HD\r\n");
    }
}

async fn ours(locks: &Locker) -> f64 {
    let (began, mut cycles) = (Instant::now(), 0_u32);
    while began.elapsed() < TIME {
        let guard = locks.mutex("ours").ttl(TTL).acquire().await.unwrap();
        let _ = guard.release().await.unwrap();
        cycles += 1;
    }
    f64::from(cycles) / began.elapsed().as_secs_f64()
}

async fn theirs(raw: &mut Raw) -> f64 {
    let owner = Owner::generate("host.12345").unwrap().to_string();
    let (began, mut cycles) = (Instant::now(), 0_u32);
    while began.elapsed() < TIME {
        raw.cycle(&owner).await;
        cycles += 1;
    }
    f64::from(cycles) / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = MemcachedServer::start();
    let stream = TcpStream::connect(server.addr()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut raw = Raw { stream, buffer: vec![0; 4_096] };
    for scheme in ["cas", "add"] {
        let locks = tenure_memcached::connect(&format!("{}?scheme={scheme}", server.url())).await.unwrap();
        let (mut rates, mut raw_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let [of_raw, of_ours] = [theirs(&mut raw).await, ours(&locks).await];
            rates.push(of_ours);
            raw_rates.push(of_raw);
            ratios.push(of_ours / of_raw);
        }
        let (ours, raw, ratio) = (median(rates), median(raw_rates), 100.0 * median(ratios));
        println!("scheme={scheme}: {ours:6.0} cycles a second, the commands alone {raw:6.0}: {ratio:.0} %");
    }
}
