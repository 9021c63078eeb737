//! Units of a stock are allocated by several processes, under a lock in Redis and in PostgreSQL.
//! Holders are stopped for longer than their lease, and write when they go on.
//!
//! This file starts the workers, stops them, and counts what is left. `worker.rs` has the locks.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]

mod stock;
mod worker;

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use tenure_testkit::{PostgresServer, RedisServer, Signal, Spawned};

use crate::stock::Stock;
use crate::worker::Tally;

const REDIS: &str = "ALLOCATION_REDIS";
const POSTGRES: &str = "ALLOCATION_POSTGRES";

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Allocates units of a stock, and reports stale writes and lost updates.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Redis to lock in first; one is started without it
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// PostgreSQL that has the stock, and the second lock; one is started without it
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Stops a random worker again and again, each time for longer than its lease
    #[arg(long)]
    stop: bool,
    /// Writes without comparing fences
    #[arg(long)]
    no_fence: bool,
    /// Processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    workers: u32,
    /// Items of the stock; each has a lock of its own
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..))]
    items: i64,
    /// Allocations in a second, by all workers together
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// How long to allocate
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Ttl of a lock, in milliseconds
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    ttl: u64,
    /// Becomes one of the workers
    #[arg(long, hide = true)]
    worker: bool,
}

impl Args {
    const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl)
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let mut args = Args::parse();
    // URLs may have passwords, which are not for a list of processes.
    args.redis = args.redis.or_else(|| std::env::var(REDIS).ok());
    args.postgres = args.postgres.or_else(|| std::env::var(POSTGRES).ok());
    if args.worker {
        println!("{}", worker::run(&args).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let redis = args.redis.is_none().then(RedisServer::start);
    let postgres = args.postgres.is_none().then(|| PostgresServer::builder().set("max_connections", "100").start());
    if let Some(redis) = &redis {
        args.redis = Some(redis.url());
    }
    if let Some(postgres) = &postgres {
        args.postgres = Some(format!("postgres://tenure@{}/postgres", postgres.addr()));
    }
    let stock = Stock::create(&args).await?;
    let began = Instant::now();
    let mut workers = (0..args.workers).map(|_| start(&args)).collect::<Result<Vec<_>, _>>()?;
    let stops = if args.stop { stop_and_go(&args, &mut workers)? } else { 0 };
    let mut tally = Tally::default();
    for worker in workers {
        let output = worker.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("a worker failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        tally += String::from_utf8(output.stdout)?.parse()?;
    }
    let took = began.elapsed();
    let found = stock.audit().await?;
    let allocated = tally.allocated;
    println!("allocations            {allocated} in {:.1} s", took.as_secs_f64());
    println!("allocations a second   {:.0}", f64::from(u32::try_from(allocated)?) / took.as_secs_f64());
    println!("holders stopped        {stops} times");
    println!("stale writes refused   {}", tally.refused);
    println!("stale writes accepted  {}", found.stale);
    println!("lost updates           {}", i64::try_from(allocated)? - found.units);
    println!("not in time, or failed {}", tally.failed);
    let is_sound = found.stale == 0 && i64::try_from(allocated)? == found.units;
    Ok(if is_sound || args.no_fence { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts this program once more, as a worker.
fn start(args: &Args) -> Result<Spawned, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--worker", "--items", &args.items.to_string(), "--ttl", &args.ttl.to_string()]);
    command.args(["--seconds", &args.seconds.to_string(), "--rate", &(args.rate / args.workers).max(1).to_string()]);
    command.args(args.no_fence.then_some("--no-fence"));
    command.envs(args.redis.iter().map(|url| (REDIS, url)));
    command.envs(args.postgres.iter().map(|url| (POSTGRES, url)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(Spawned::spawn(&mut command)?)
}

/// Stops one worker after another, each past its leases. Returns how often.
fn stop_and_go(args: &Args, workers: &mut [Spawned]) -> Result<u32, Error> {
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut stops = 0;
    loop {
        std::thread::sleep(args.ttl().mul_f64(fastrand::f64() / 2.0));
        let pause = args.ttl().mul_f64(1.5 + fastrand::f64());
        if Instant::now() + pause >= end {
            return Ok(stops);
        }
        let chosen = fastrand::usize(..workers.len());
        // One that has failed says so at its end.
        if workers[chosen].signal(Signal::Stop).is_ok() {
            std::thread::sleep(pause);
            workers[chosen].signal(Signal::Cont)?;
            stops += 1;
        }
    }
}
