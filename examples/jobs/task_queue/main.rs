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
use jobs::{Children, Error, Faults, Place, Table, open_locks};

use crate::queue::Queue;
use crate::tasks::{Audit, Tasks};
use crate::worker::{Mode, Worker};

/// Does the tasks of a queue by several processes.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Where the queue and the locks are: `embedded` (files, the default), `redis` starts a server,
    /// `redis://HOST` uses one
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
    #[arg(long, hide = true, default_value = "")]
    prefix: String,
}

const TTL: Duration = Duration::from_millis(600);
const PRODUCERS: i64 = 2;
/// Time without a done task after which nobody is killed or stopped any more.
const CALM: Duration = Duration::from_millis(500);
/// Time without one after which none will come. A name stays taken for a ttl, and for a stop.
const QUIET: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(25);
/// Probability of a crash between two steps.
const CRASHES: f64 = 0.01;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let args = Args::parse();
    match (&args.role, args.mode, &args.table) {
        (Some(role), Some(mode), Some(table)) => {
            let store = args.store.as_deref().unwrap_or_default();
            let redis = (!store.starts_with("sqlite:")).then_some(store);
            let parameters = if redis.is_some() {
                format!("{}prefix={}", if store.contains('?') { '&' } else { '?' }, args.prefix)
            } else {
                String::new()
            };
            let locks = open_locks(&format!("{store}{parameters}"), TTL).await?;
            let queue = Queue::open(redis, &format!("{}queue", args.prefix), table).await?;
            let mut worker = Worker::new(mode, locks, Tasks::open(table)?, queue, args.crashes);
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
    let has_fence = match place.redis() {
        Some(url) => open_locks(url, TTL).await?.store().features().fence,
        None => true,
    };
    if !has_fence && (args.only.is_empty() || args.only.contains(&Mode::Fence)) {
        return Err("the locks of this --store have no fence: leave the scheme out, or use --only lock".into());
    }
    let wanted = args.tasks / PRODUCERS * PRODUCERS;
    let queue = place.redis().map_or("a table, locks in a file", |_| "a list in Redis, and locks there");
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
        let Run { audit, killed, stopped, seconds } = run(args, &place, mode)?;
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
fn run(args: &Args, place: &Place, mode: Mode) -> Result<Run, Error> {
    let name = mode.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (path, prefix) = (place.file(&format!("{name}.db")), format!("{}{name}/", place.prefix("task_queue")));
    let store =
        place.redis().map_or_else(|| format!("sqlite:{}", place.file(&format!("{name}-locks.db")).display()), str::to_owned);
    let tasks = Tasks::create(&path)?;
    let faults =
        Faults { kill_every: Duration::from_millis(400), stop_every: Duration::from_millis(100), stop_for: TTL + TTL / 2 };
    let (faults, crashes) = if args.no_crashes { (Faults::NONE, 0.0) } else { (faults, CRASHES) };
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
        options.into_iter().flat_map(|(option, value)| [option.to_owned(), value.to_owned()]).collect()
    };
    let began = Instant::now();
    let mut producers =
        Children::start(usize::try_from(PRODUCERS)?, command("produce"), Faults { stop_every: Duration::ZERO, ..faults })?;
    let mut workers = Children::start(args.workers.into(), command("work"), faults)?;
    let (mut done, mut last, mut is_made) = (0, began, false);
    while last.elapsed() < QUIET && began.elapsed() < LONGEST {
        is_made = is_made || producers.tend()?;
        workers.tend()?;
        let audit = tasks.audit()?;
        if audit.done != std::mem::replace(&mut done, audit.done) {
            last = Instant::now();
        }
        // The last ones may still be done twice.
        let is_over = is_made && audit.done == audit.made && last.elapsed() > faults.stop_for;
        if is_over {
            break;
        }
        workers.faults = if last.elapsed() < CALM { faults } else { Faults::NONE };
    }
    let (killed, stopped) = (producers.killed + workers.killed, workers.stops);
    drop((producers, workers));
    place.forget(&prefix)?;
    Ok(Run { audit: tasks.audit()?, killed, stopped, seconds: last.duration_since(began).as_secs_f64() })
}
