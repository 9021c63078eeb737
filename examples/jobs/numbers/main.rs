//! Numbers without gaps from many processes, some of which are killed; and what each kind of number
//! costs.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]
#![allow(clippy::future_not_send, reason = "each process has one thread")]

mod costs;
mod floors;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use jobs::{Children, Error, Faults, Place, longest_lease, open_locks};

use crate::floors::Thread;

/// Numbers the floors of a thread by several processes, and measures other kinds of numbers.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Where the locks are: `embedded` (a file, the default), `redis` starts a server, a URL such as
    /// `redis://HOST` uses one
    #[arg(long)]
    store: Option<String>,
    /// Processes
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    processes: u16,
    /// Numbers of each process
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..))]
    numbers: i64,
    /// Kills nobody
    #[arg(long)]
    no_crashes: bool,
    /// Measures nothing else
    #[arg(long)]
    no_costs: bool,
    #[arg(long, hide = true)]
    thread: Option<PathBuf>,
    /// Name of the lock
    #[arg(long, hide = true, default_value = "")]
    name: String,
    #[arg(long, hide = true, default_value_t = 0)]
    number: i64,
}

/// Time for which a killed process keeps the others waiting.
const TTL: Duration = Duration::from_millis(500);

/// Ids a second that one process gets at least.
const LEAST_IDS: f64 = 1_000_000.0;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let args = Args::parse();
    if let Some(path) = &args.thread {
        let locks = open_locks(args.store.as_deref().unwrap_or_default(), TTL).await?;
        floors::write(&locks, &args.name, &mut Thread::open(path)?, args.number, args.numbers).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let place = Place::new(args.store.as_deref())?;
    if !place.features().await?.fence {
        return Err("the locks of this --store have no fence, and numbers need one: leave the scheme out".into());
    }
    let prefix = place.prefix("numbers");
    let is_sound = show(&args, &place, &prefix).await;
    place.forget(&prefix)?;
    Ok(if is_sound? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns whether no number is missing or there twice, and ids are quick.
async fn show(args: &Args, place: &Place, prefix: &str) -> Result<bool, Error> {
    let store = place.locks("locks.db");
    let is_whole = number_floors(args, place, &store, prefix).await?;
    if args.no_costs {
        return Ok(is_whole);
    }
    println!();
    let ids = costs::measure(place, &store, prefix).await?;
    // Without optimisation it says nothing. A block of another store or scheme may be one id, or far away.
    let counts = !cfg!(debug_assertions) && !place.has_scheme() && (place.url().is_none() || place.redis().is_some());
    Ok(is_whole && (ids >= LEAST_IDS || !counts))
}

/// Has the processes write their floors, and looks for gaps.
async fn number_floors(args: &Args, place: &Place, store: &str, prefix: &str) -> Result<bool, Error> {
    let path = place.file("thread.db");
    let thread = Thread::create(&path)?;
    let options = [
        ("--store", store.to_owned()),
        ("--thread", path.display().to_string()),
        ("--name", format!("{prefix}thread/42")),
        ("--numbers", args.numbers.to_string()),
    ];
    let command = options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect();
    // A dead holder, or a dead waiter in front, keeps the others waiting.
    let kill_every = Duration::from_secs(1).max(longest_lease(&place.features().await?, TTL) * 2);
    let kills = Faults { kill_every, ..Faults::NONE };
    let began = Instant::now();
    let mut processes = Children::start(args.processes.into(), command, if args.no_crashes { Faults::NONE } else { kills })?;
    while !processes.tend()? {}
    let (seconds, wanted) = (began.elapsed().as_secs_f64(), i64::from(args.processes) * args.numbers);
    let audit = thread.audit()?;
    println!("{} processes x {} floors in {seconds:.1} s, {} killed", args.processes, args.numbers, processes.killed);
    println!("floors      {} of {wanted}", audit.floors);
    println!("duplicates  {}", audit.floors - audit.distinct);
    println!("gaps        {}", audit.largest - audit.distinct);
    Ok(audit.floors == wanted && audit.distinct == wanted && audit.largest == wanted)
}
