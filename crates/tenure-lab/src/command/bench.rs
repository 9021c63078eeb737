//! `tenure bench`: what locks cost.

use std::ffi::OsString;
use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::Value;
use tenure::ErrorKind;
use tenure_lab::bench::{self, Case, Figures, HEAD, Place, Plan, Stage};

use super::exit::{Failure, say};
use super::output::{Output, print};
use super::programs::{find_server, processes};
use super::target;

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Bench {
    /// Kind of work to measure
    #[arg(value_name = "CASE", value_enum)]
    case: Chosen,
    /// Measure this store, as the other commands name it, instead of a redis-server that is started for it
    #[arg(long, value_name = "URL")]
    store: Option<OsString>,
    /// How many tasks, waiters or leases
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    tasks: Option<usize>,
    /// How long each case is timed
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Option<Duration>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// One case, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    One(Case),
    All,
}

impl ValueEnum for Chosen {
    fn value_variants<'a>() -> &'a [Self] {
        const VARIANTS: [Chosen; Case::ALL.len() + 1] = {
            let mut all = [Chosen::All; Case::ALL.len() + 1];
            let mut index = 0;
            while index < Case::ALL.len() {
                all[index] = Chosen::One(Case::ALL[index]);
                index += 1;
            }
            all
        };
        &VARIANTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::One(case) => PossibleValue::new(case.name()).help(case.what()),
            Self::All => PossibleValue::new("all").help("One after the other"),
        })
    }
}

const HELP: &str = "\
COMMANDS are counted by a Redis server, in a short run of its own under MONITOR:
those that clients send, and not what scripts call. CLIENT and SERVER are the CPU
of one operation, in microseconds; of several servers, that of all of them. Of
other stores neither COMMANDS nor SERVER are measured.
Whatever others send to a store that you name is counted as well: measure on a
server that nobody else uses. Nothing is left behind there but the counter of
the fences; by a run that is killed, names that become free by themselves,
within its time and ten minutes at most.

  tenure bench cycle --tasks 512            a redis-server of its own
  tenure bench all -o json                  the same for programs, in an array
  tenure bench handover --store redis://cache
  tenure bench cycle --store quorum+redis://a,b,c   commands are not counted
  tenure bench cycle --store 'redis://cache?scheme=set-nx'
  tenure bench cycle --store etcd://db1,db2,db3

What a store cannot do, such as readers in a scheme of mutexes, is left out of
all, and says so. Without --store it needs redis-server: TENURE_REDIS_SERVER, else the one in PATH.";

/// A time as `--seconds` takes it.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| format!("{text:?} is no number of seconds; write e.g. 5 or 0.5"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{text:?} is no time; write e.g. 5 or 0.5"))
}

pub(crate) async fn main(args: &Bench) -> Result<u8, Failure> {
    let cases = match args.case {
        Chosen::One(case) => vec![case],
        Chosen::All => Case::ALL.to_vec(),
    };
    let plans = cases.into_iter().map(|case| Plan::new(case, args.tasks, args.seconds)).collect::<Result<Vec<_>, _>>()?;
    if args.store.is_none() {
        find_server("without --store a benchmark starts one")?;
    }
    // Before the server is started: whatever is to be ended with us is started after it.
    let lab = processes()?;
    let place = place(args).await?;
    let say_so = |text: &dyn std::fmt::Display| {
        if !args.quiet {
            say(text);
        }
    };
    say_so(&format_args!("measures {}", place.topology()));
    if let Some(why) = place.uncounted() {
        say_so(&format_args!("commands are not counted: {why}"));
    }
    let text = args.output == Output::Text;
    let mut found = Vec::new();
    for plan in plans {
        let told = Told::new(plan, args.quiet);
        let figures = bench::run(&lab, &place, plan, &|stage| told.tell(stage)).await;
        told.clear();
        let figures = match figures.map_err(|error| error.context(plan.case())) {
            Ok(figures) => figures,
            Err(error) if args.case == Chosen::All && error.kind() == ErrorKind::Unsupported => {
                say_so(&format_args!("left out: {error}"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if text {
            let head = if found.is_empty() { format!("{HEAD}\n") } else { String::new() };
            print(&format!("{head}{}\n", figures.row()))?;
        }
        found.push(figures);
    }
    if text {
        let told: Vec<_> = found.iter().map(Figures::told).collect();
        print(&format!("\n{}\n", told.join("\n")))?;
    } else {
        let json = match (args.case, &found[..]) {
            (Chosen::One(_), [one]) => one.to_json(),
            _ => found.iter().map(Figures::to_json).collect::<Value>(),
        };
        print(&format!("{json}\n"))?;
    }
    Ok(0)
}

/// The store that was named, or a server of its own.
async fn place(args: &Bench) -> Result<Place, Failure> {
    let Some(store) = &args.store else { return Ok(Place::of_its_own()?) };
    Ok(Place::at(target::address(store).await?)?)
}

/// Tells on stderr what a case is at: each second on a terminal, once elsewhere.
struct Told {
    plan: Plan,
    terminal: bool,
}

impl Told {
    fn new(plan: Plan, quiet: bool) -> Self {
        let terminal = !quiet && stderr().is_terminal();
        if !terminal && !quiet {
            say(plan);
        }
        Self { plan, terminal }
    }

    fn tell(&self, stage: Stage) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K{}: {stage}", self.plan);
        }
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
