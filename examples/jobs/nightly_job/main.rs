//! A nightly job on five hosts: each tick runs once, though the hosts' clocks differ and hosts are killed.
//!
//! A period of some minutes takes two seconds here. This file starts the hosts and prints the outcome, without a lock,
//! with one, and with a name that stays taken for half of the period. `host.rs` has the hosts, `record.rs` the database.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]
#![allow(clippy::future_not_send, reason = "each process has one thread")]

mod host;
mod record;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};
use jobs::{Children, Error, Faults, Place, Table, open_locks};
use tenure::BootTime;

use crate::host::{Host, Mode, once_per};
use crate::record::{Audit, Record};

/// Runs a job at each tick of five hosts whose clocks differ.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Where the locks are: `embedded` (a file, the default), `redis` starts a server, a URL such as
    /// `redis://HOST` uses one
    #[arg(long)]
    store: Option<String>,
    /// Ticks; without it, as many as half a minute has
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    ticks: Option<u32>,
    /// Kills nobody
    #[arg(long)]
    no_crashes: bool,
    /// Shows this alone; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Mode>,
    #[arg(long, hide = true, value_enum)]
    mode: Option<Mode>,
    #[arg(long, hide = true)]
    record: Option<PathBuf>,
    /// Name of the lock
    #[arg(long, hide = true, default_value = "")]
    name: String,
    #[arg(long, hide = true, default_value_t = 0)]
    number: u32,
    /// Time of the first tick, in seconds since the machine started
    #[arg(long, hide = true, default_value_t = 0.0)]
    first: f64,
    /// In seconds
    #[arg(long, hide = true, default_value_t = 0.0)]
    period: f64,
    #[arg(long, hide = true, default_value_t = 0.0)]
    crashes: f64,
}

const HOSTS: u32 = 5;
/// Time between two ticks, where leases end in time.
const PERIOD: Duration = Duration::from_secs(2);
/// A store whose leases end late needs a period of so many times that.
const LATE_ENDS: u32 = 10;
/// Time that all ticks take, unless their number is given.
const LENGTH: Duration = Duration::from_secs(30);
/// Time until the first tick, in which the hosts start.
const LEAD: Duration = Duration::from_millis(1_500);
/// Probability that a host dies at one of two steps of the job.
const CRASHES: f64 = 0.1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let args = Args::parse();
    match (args.mode, &args.record) {
        (Some(mode), Some(record)) => {
            let period = Duration::from_secs_f64(args.period);
            let locks = open_locks(args.store.as_deref().unwrap_or_default(), period / 4).await?;
            let Args { name, number, first, crashes, .. } = args.clone();
            let host = Host { mode, number, locks, name, record: Record::open(record)?, first, period, crashes };
            host.run(args.ticks.unwrap_or_default()).await?;
            Ok(ExitCode::SUCCESS)
        }
        _ => show(&args).await,
    }
}

async fn show(args: &Args) -> Result<ExitCode, Error> {
    let place = Place::new(args.store.as_deref())?;
    let period = PERIOD.max(place.features().await?.late_end * LATE_ENDS);
    let all = Mode::value_variants().iter().copied();
    let modes: Vec<Mode> = all.filter(|mode| args.only.is_empty() || args.only.contains(mode)).collect();
    if modes.contains(&Mode::OncePer) {
        let locks = open_locks(&place.locks("features.db"), period / 4).await?;
        let unless = |error| format!("--store: {error}. Or leave it out with --only nothing --only lock");
        once_per(&locks, "job", period).check().map_err(unless)?;
    }
    let half_a_minute = u32::try_from(LENGTH.as_millis() / period.as_millis())?;
    let ticks = args.ticks.unwrap_or(half_a_minute.max(1));
    println!(
        "{ticks} ticks in {:.0} s, {HOSTS} hosts whose clocks differ by up to 2/5 of a period",
        (period * ticks).as_secs_f64()
    );
    let prefix = place.prefix("nightly_job");
    let done = run(args, &place, &prefix, &modes, period, ticks);
    place.forget(&prefix)?;
    let mut table = Table::new(&["", "ticks", "runs", "once", "twice", "not run", "lost", "late", "killed"]);
    let mut is_sound = true;
    for (mode, audit, killed) in done? {
        let name = match mode {
            Mode::Nothing => "no lock",
            Mode::Lock => "a lock",
            Mode::OncePer => "once per period",
        };
        let Audit { runs, once, twice, not_run, lost, late } = audit;
        let numbers = [ticks.into(), runs, once, twice, not_run, lost, late, killed.into()];
        table.row([name.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())));
        is_sound &= mode != Mode::OncePer || (twice == 0 && not_run == 0);
    }
    table.print();
    println!();
    println!("twice     ticks that ran twice or more");
    println!("not run   ticks that did not run, though each host came");
    println!("lost      ticks that did not run because a host was killed or did not come: at most once");
    println!("late      ticks that say nothing, because the machine stood still and a host came too late");
    println!("killed    hosts that were killed during the job");
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all ticks, in each mode at the same time. Returns the outcomes, and how many hosts were killed.
fn run(
    args: &Args,
    place: &Place,
    prefix: &str,
    modes: &[Mode],
    period: Duration,
    ticks: u32,
) -> Result<Vec<(Mode, Audit, u32)>, Error> {
    let first = BootTime::now().since_boot() + LEAD;
    let start = |mode: &Mode| -> Result<(Mode, Record, Children), Error> {
        let name = mode.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let path = place.file(&format!("{name}.db"));
        let record = Record::create(&path)?;
        let options = [
            ("--store", place.locks(&format!("{name}-locks.db"))),
            ("--record", path.display().to_string()),
            ("--name", format!("{prefix}{name}")),
            ("--ticks", ticks.to_string()),
            ("--first", first.as_secs_f64().to_string()),
            ("--period", period.as_secs_f64().to_string()),
            ("--crashes", if args.no_crashes { 0.0 } else { CRASHES }.to_string()),
            ("--mode", name),
        ];
        let command = options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect();
        // Hosts die by themselves, during the job.
        Ok((*mode, record, Children::start(usize::try_from(HOSTS)?, command, Faults::NONE)?))
    };
    let mut rows = modes.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut is_over = false;
    while !is_over {
        is_over = true;
        for (_, _, hosts) in &mut rows {
            is_over &= hosts.tend()?;
        }
    }
    rows.into_iter().map(|(mode, record, hosts)| Ok((mode, record.audit(ticks, HOSTS)?, hosts.killed))).collect()
}
