//! A task queue: each task is done once in effect, though producers and workers are killed and stopped.
//!
//! This file starts the processes and prints the outcome, with a lock and its fence and without.
//! `worker.rs` has the producers and the workers, `tasks.rs` the table, `queue.rs` the queue.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]
#![allow(clippy::future_not_send, reason = "each process has one thread")]

mod queue;
mod tasks;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use jobs::{Children, Error, Faults, Place, Quiet, Table, longest_lease, open_locks};

use crate::queue::Queue;
use crate::tasks::{Audit, Tasks};
use crate::worker::{Mode, Worker};

/// Does the tasks of a queue by several processes.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Where the queue and the locks are: `embedded` (files, the default), `redis` starts a server,
    /// `redis://HOST` uses one. With the URL of another store the queue is in a file
    #[arg(long)]
    store: Option<String>,
    /// Tasks
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(i64).range(PRODUCERS..))]
    tasks: i64,
    /// Workers, each a process
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Kills and stops nobody
    #[arg(long)]
    no_crashes: bool,
    /// Shows this alone; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Mode>,
    #[arg(long, hide = true)]
    role: Option<String>,
    #[arg(long, hide = true, default_value_t = 0)]
    number: i64,
    #[arg(long, hide = true, value_enum)]
    mode: Option<Mode>,
    #[arg(long, hide = true)]
    table: Option<PathBuf>,
    #[arg(long, hide = true, default_value_t = 0.0)]
    crashes: f64,
    /// In front of the names of the locks
    #[arg(long, hide = true, default_value = "")]
    prefix: String,
    /// Redis of the queue
    #[arg(long, hide = true)]
    redis: Option<String>,
}

/// Ttl of the locks, where the store has none that is longer.
const TTL: Duration = Duration::from_millis(600);
const PRODUCERS: i64 = 2;
/// Time without a done task after which nobody is killed or stopped any more.
const CALM: Duration = Duration::from_millis(500);
/// Leases without one after which none will come. A name stays taken for a lease, and for a stop.
const QUIET: u32 = 5;
/// Longest time between two looks at the tasks that counts in full.
const TICK: Duration = Duration::from_millis(50);
/// Leases that a run takes at most.
const LONGEST: u32 = 42;
/// Lease from which on crashes are rarer.
const LONG_LEASE: Duration = Duration::from_secs(2);
/// Probability of a crash between two steps, where leases are short.
const CRASHES: f64 = 0.01;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let args = Args::parse();
    match (&args.role, args.mode, &args.table) {
        (Some(role), Some(mode), Some(table)) => {
            let store = args.store.as_deref().unwrap_or_default();
            let locks = open_locks(store, TTL).await?;
            let queue = Queue::open(args.redis.as_deref(), &format!("{}queue", args.prefix), table).await?;
            let mut worker = Worker::new(mode, locks, args.prefix.clone(), Tasks::open(table)?, queue, args.crashes);
            if role == "produce" {
                let each = args.tasks / PRODUCERS;
                worker.produce(args.number * each..(args.number + 1) * each).await?;
            } else {
                worker.work().await?;
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => show(&args).await,
    }
}

async fn show(args: &Args) -> Result<ExitCode, Error> {
    let place = Place::new(args.store.as_deref())?;
    let features = place.features().await?;
    if !features.fence && (args.only.is_empty() || args.only.contains(&Mode::Fence)) {
        return Err("the locks of this --store have no fence: leave the scheme out, or use --only lock".into());
    }
    let wanted = args.tasks / PRODUCERS * PRODUCERS;
    let queue = match (place.redis(), place.url()) {
        (Some(_), _) => "a list in Redis, and locks there",
        (None, Some(_)) => "a table, locks in the store",
        (None, None) => "a table, locks in a file",
    };
    println!("{wanted} tasks, {PRODUCERS} producers, {} workers. The queue is {queue}.", args.workers);
    let mut table = Table::new(&["", "made", "done", "twice", "lost", "refused", "killed", "stopped", "seconds"]);
    let mut is_sound = true;
    for mode in Mode::value_variants().iter().copied().filter(|mode| args.only.is_empty() || args.only.contains(mode)) {
        let name = match mode {
            Mode::Fence => "lock and fence",
            Mode::Lock => "lock, no fence",
            Mode::Nothing => "no lock, removed when done",
            Mode::Pop => "no lock, removed first",
        };
        let lease = if matches!(mode, Mode::Fence | Mode::Lock) { longest_lease(&features, TTL) } else { TTL };
        let Run { audit, killed, stopped, seconds } = run(args, &place, lease, mode)?;
        let lost = audit.made - audit.done;
        let numbers = [audit.made, audit.done, audit.twice, lost, audit.refused, killed.into(), stopped.into()];
        let cells = numbers.map(|number| number.to_string()).into_iter().chain([format!("{seconds:.1}")]);
        table.row([name.to_owned()].into_iter().chain(cells));
        is_sound &= mode != Mode::Fence || (audit.twice == 0 && lost == 0 && audit.made == wanted);
    }
    table.print();
    println!();
    println!("twice     tasks that had their effect once more");
    println!("lost      tasks that never had it");
    println!("refused   writes of stale holders, by the fence");
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Run {
    audit: Audit,
    killed: u32,
    stopped: u32,
    seconds: f64,
}

/// Does all tasks, or as many as can be done.
fn run(args: &Args, place: &Place, lease: Duration, mode: Mode) -> Result<Run, Error> {
    let name = mode.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (path, prefix) = (place.file(&format!("{name}.db")), format!("{}{name}/", place.prefix("task_queue")));
    let store = place.locks(&format!("{name}-locks.db"));
    let tasks = Tasks::create(&path)?;
    let faults = Faults {
        kill_every: Duration::from_millis(400),
        stop_every: Duration::from_millis(100),
        stop_for: lease + Duration::from_millis(300),
    };
    // Each costs a lease.
    let rarer = lease.div_duration_f64(LONG_LEASE).max(1.0);
    let (faults, crashes) = if args.no_crashes { (Faults::NONE, 0.0) } else { (faults.rarer(rarer), CRASHES / rarer) };
    let command = |role: &str| -> Vec<String> {
        let (table, tasks, crashes) = (path.display().to_string(), args.tasks.to_string(), crashes.to_string());
        let options = [
            ("--role", role),
            ("--mode", &name),
            ("--table", &table),
            ("--store", &store),
            ("--prefix", &prefix),
            ("--tasks", &tasks),
            ("--crashes", &crashes),
        ];
        let redis = place.redis().map(|url| ("--redis", url));
        options.into_iter().chain(redis).flat_map(|(option, value)| [option.to_owned(), value.to_owned()]).collect()
    };
    let producers = Faults { stop_every: Duration::ZERO, ..faults };
    let work = || -> Result<Run, Error> {
        let producers = Children::start(usize::try_from(PRODUCERS)?, command("produce"), producers)?;
        let workers = Children::start(args.workers.into(), command("work"), faults)?;
        tend(&tasks, producers, workers, lease)
    };
    let done = work();
    place.forget(&prefix)?;
    done
}

/// Tends the processes until all is done, or nothing more.
fn tend(tasks: &Tasks, mut producers: Children, mut workers: Children, lease: Duration) -> Result<Run, Error> {
    let (faults, began) = (workers.faults, Instant::now());
    let (mut last, mut is_made) = (began, false);
    let (mut quiet, mut still) = (Quiet::begin(TICK), Duration::ZERO);
    while still < lease * QUIET && quiet.whole < lease * LONGEST {
        is_made = is_made || producers.tend()?;
        workers.tend()?;
        let audit = tasks.audit()?;
        still = quiet.look(audit.done);
        if still.is_zero() {
            last = Instant::now();
        }
        // The last ones may still be done twice.
        let is_over = is_made && audit.done == audit.made && last.elapsed() > CALM && workers.all_went_on_for(CALM);
        if is_over {
            break;
        }
        workers.faults = if last.elapsed() < CALM { faults } else { Faults::NONE };
    }
    let (killed, stopped) = (producers.killed + workers.killed, workers.stops);
    drop((producers, workers));
    Ok(Run { audit: tasks.audit()?, killed, stopped, seconds: last.duration_since(began).as_secs_f64() })
}
