//! One leader of five candidates, who works in small steps. Leaders are killed, stopped past their lease, and resign.
//!
//! This file starts the candidates, observes who leads, and prints the outcome, with an election and its fence and
//! without. `candidate.rs` leads, `work.rs` is the database.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]
#![allow(clippy::future_not_send, reason = "the work of a candidate stays in one thread")]

mod candidate;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use futures_util::StreamExt as _;
use jobs::{Children, Error, Faults, Place, Quiet, Table, longest_lease, open_locks};
use tenure::{Election, Fence, Owner};

use crate::candidate::{Mode, Worker};
use crate::work::{Audit, Work};

/// Has one of several processes lead.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Where the election is: `embedded` (a file, the default), `redis` starts a server, a URL such as
    /// `redis://HOST` uses one
    #[arg(long)]
    store: Option<String>,
    /// Steps of the work
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(i64).range(1..))]
    steps: i64,
    /// Candidates, each a process
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    candidates: u16,
    /// Kills and stops nobody
    #[arg(long)]
    no_crashes: bool,
    /// Shows this alone; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Mode>,
    #[arg(long, hide = true, value_enum)]
    mode: Option<Mode>,
    #[arg(long, hide = true)]
    work: Option<PathBuf>,
    /// Name of the election
    #[arg(long, hide = true, default_value = "")]
    name: String,
    #[arg(long, hide = true, default_value_t = 0)]
    number: usize,
}

/// Ttl of a leadership, where the store has none that is longer.
const TTL: Duration = Duration::from_millis(600);
/// Time between two looks of the observer at a store that tells nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time without a step after which nobody is killed or stopped any more.
const CALM: Duration = Duration::from_millis(500);
/// Longest time between two looks at the work that counts in full.
const TICK: Duration = Duration::from_millis(25);
/// Leases without a step after which none will come: candidates that died in the queue may be handed the lead as well.
const QUIET: u32 = 20;
/// Lease from which on crashes are rarer.
const LONG_LEASE: Duration = Duration::from_secs(2);

#[tokio::main(worker_threads = 1)]
async fn main() -> Result<ExitCode, Error> {
    let args = Args::parse();
    match (args.mode, &args.work) {
        (Some(mode), Some(work)) => {
            let locks = open_locks(args.store.as_deref().unwrap_or_default(), TTL).await?;
            let candidate = locks.election(&args.name).candidate(args.number.to_string());
            Worker::new(mode, Work::open(work)?).run(&candidate).await?;
            Ok(ExitCode::SUCCESS)
        }
        _ => show(&args).await,
    }
}

async fn show(args: &Args) -> Result<ExitCode, Error> {
    let place = Place::new(args.store.as_deref())?;
    let features = place.features().await?;
    let is_wanted = |mode: &Mode| args.only.is_empty() || args.only.contains(mode);
    if !features.fence && is_wanted(&Mode::Fence) {
        return Err("the locks of this --store have no fence: leave the scheme out, or use --only election".into());
    }
    let faults = if args.no_crashes { "resign" } else { "are killed and stopped, and resign" };
    println!("{} steps, {} candidates. Leaders {faults}.", args.steps, args.candidates);
    let heads = ["", "steps", "lost", "refused", "leaders", "seen", "back", "killed", "stopped", "seconds"];
    let (mut table, mut is_sound) = (Table::new(&heads), true);
    for mode in Mode::value_variants().iter().copied().filter(is_wanted) {
        let (name, lease) = match mode {
            Mode::Nothing => ("no election", TTL),
            Mode::Election => ("an election, no fence", longest_lease(&features, TTL)),
            Mode::Fence => ("an election and its fence", longest_lease(&features, TTL)),
        };
        let prefix = place.prefix("one_leader");
        let done = run(args, &place, &prefix, lease, mode).await;
        place.forget(&prefix)?;
        let Run { audit, seen, killed, stopped, seconds } = done?;
        let Audit { steps, lost, refused, leaders } = audit;
        let numbers = [steps, lost, refused, leaders, seen.leaders, seen.back, killed.into(), stopped.into()];
        let cells = numbers.map(|number| number.to_string()).into_iter().chain([format!("{seconds:.1}")]);
        table.row([name.to_owned()].into_iter().chain(cells));
        is_sound &= seen.back == 0 && (mode != Mode::Fence || (lost == 0 && steps >= args.steps));
    }
    table.print();
    println!();
    println!("lost      steps that another one has overwritten");
    println!("refused   steps of leaders of before, by the fence");
    println!("seen      leaders that an observer saw, also those that died before their first step");
    println!("back      leaders that it saw after one with a larger fence");
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Run {
    audit: Audit,
    seen: Seen,
    killed: u32,
    stopped: u32,
    seconds: f64,
}

/// Does all steps, or as many as can be done.
async fn run(args: &Args, place: &Place, prefix: &str, lease: Duration, mode: Mode) -> Result<Run, Error> {
    let option = mode.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (path, name) = (place.file(&format!("{option}.db")), format!("{prefix}{option}"));
    let store = place.locks(&format!("{option}-locks.db"));
    let work = Work::create(&path)?;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let election = open_locks(&store, TTL).await?.election(&name).poll_interval(POLL_INTERVAL);
    let observer = tokio::spawn(observe(election, Arc::clone(&seen)));
    let faults = Faults {
        kill_every: Duration::from_millis(1_500),
        stop_every: Duration::from_millis(400),
        stop_for: lease + Duration::from_millis(300),
    };
    // Each costs a lease.
    let faults = faults.rarer(lease.div_duration_f64(LONG_LEASE).max(1.0));
    let faults = if args.no_crashes { Faults::NONE } else { faults };
    let options = [("--mode", option), ("--work", path.display().to_string()), ("--store", store), ("--name", name)];
    let command = options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect();
    let (mut quiet, mut still, mut steps, began) = (Quiet::begin(TICK), Duration::ZERO, 0, Instant::now());
    let mut candidates = Children::start(args.candidates.into(), command, faults)?;
    while steps < args.steps && still < lease * QUIET {
        candidates.tend()?;
        steps = work.audit()?.steps;
        still = quiet.look(steps);
        candidates.faults = if still < CALM { faults } else { Faults::NONE };
        // Faults are for the one that leads.
        candidates.aim = seen.lock().unwrap_or_else(PoisonError::into_inner).leader;
    }
    let (killed, stopped, seconds) = (candidates.killed, candidates.stops, began.elapsed().as_secs_f64());
    drop(candidates);
    if observer.is_finished() {
        observer.await??;
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Run { audit: work.audit()?, seen, killed, stopped, seconds })
}

/// Leaders that an observer has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Number of the one that leads.
    leader: Option<usize>,
    /// Token of the last leader.
    owner: Option<Owner>,
    /// The largest fence.
    fence: Option<Fence>,
    leaders: i64,
    /// Leaders whose fence was smaller than that of one before.
    back: i64,
}

/// Notes who leads. It ends by an error that no repetition mends.
async fn observe(election: Election, seen: Arc<Mutex<Seen>>) -> Result<(), Error> {
    let mut leaders = election.observe();
    while let Some(leader) = leaders.next().await {
        let leader = match leader {
            Err(error) if error.is_transient() => continue,
            leader => leader?,
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.leader = leader.as_ref().and_then(|leader| leader.label()?.parse().ok());
        if let Some(leader) = leader {
            // The fence of a leader may come later, as one more item.
            seen.leaders += i64::from(seen.owner.as_ref() != Some(&leader.owner));
            seen.back += i64::from(leader.fence.is_some() && leader.fence < seen.fence);
            seen.fence = seen.fence.max(leader.fence);
            seen.owner = Some(leader.owner);
        }
    }
    Ok(())
}
