//! Holds many guards in one process on one Redis and says what their renewal costs.
//!
//! `cargo run --release -p tenure-testkit --example many-guards -- [GUARDS] [SECONDS] [TTL_SECONDS]`

#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "it prints figures")]

use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tenure::{Locker, State};
use tenure_testkit::RedisServer;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tenure::Error> {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let (guards, seconds, ttl) = (args.next().unwrap_or(10_000), args.next().unwrap_or(60), args.next().unwrap_or(30));
    let server = RedisServer::start();
    let locks = tenure_redis::connect(&server.url()).await?;
    let held = acquire(&locks, guards, Duration::from_secs(ttl)).await?;

    let before = Usage::of(&server);
    let started = Instant::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let took = started.elapsed().as_secs_f64();
    let after = Usage::of(&server);

    let lost = held.iter().filter(|guard| guard.state() != State::Held).count();
    let scripts = (after.scripts - before.scripts) as f64;
    let renewals = (after.renewals - before.renewals) as f64;
    println!("{guards} guards, ttl {ttl} s, {took:.0} s: {lost} not held");
    println!("renewals: {renewals:.0} in {scripts:.0} commands, {:.1} leases a command", renewals / scripts);
    println!("commands per lease and second: {:.5}", scripts / guards as f64 / took);
    println!("server CPU: {:.2} us per renewal", (after.server_cpu - before.server_cpu) / renewals * 1e6);
    let client = after.client_cpu - before.client_cpu;
    println!("client CPU: {:.2} us per renewal, {:.2} % of one core", client / renewals * 1e6, client / took * 100.0);
    let outcomes = locks.release_all().await;
    println!(
        "released: {}",
        outcomes.iter().filter(|(_, outcome)| matches!(outcome, Ok(tenure::ReleaseOutcome::Released))).count()
    );
    drop(held);
    if lost > 0 { Err(tenure::Error::refused("guards were lost")) } else { Ok(()) }
}

async fn acquire(locks: &Locker, guards: u64, ttl: Duration) -> Result<Vec<tenure::Guard>, tenure::Error> {
    let acquiring = (0..guards).map(|i| locks.mutex(format!("door {i}")).ttl(ttl).acquire());
    stream::iter(acquiring).buffer_unordered(64).try_collect().await
}

struct Usage {
    scripts: u64,
    renewals: u64,
    server_cpu: f64,
    client_cpu: f64,
}

impl Usage {
    fn of(server: &RedisServer) -> Self {
        let stats = server.cli("INFO commandstats");
        let calls = |command: &str| {
            let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:calls=")));
            line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or(0)
        };
        let cpu = server.cli("INFO cpu");
        let second = |key: &str| cpu.lines().find_map(|line| line.trim().strip_prefix(key)?.parse::<f64>().ok()).unwrap_or(0.0);
        Self {
            scripts: calls("fcall") + calls("evalsha") + calls("eval"),
            renewals: calls("pexpire"),
            server_cpu: second("used_cpu_user:") + second("used_cpu_sys:"),
            client_cpu: own_cpu(),
        }
    }
}

/// User and system time of this process, in seconds.
fn own_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: f64 = after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}
