//! `tenure lab`: locks under faults, on real servers.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write, stderr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use tenure::parse_duration;
use tenure_lab::explore::{self, Extent, Report};
use tenure_lab::soak::Engine;
use tenure_lab::{Item, Kind, Lab as Processes, Outcome, items, models, report, run};
use tenure_testkit::History;
use tenure_testkit::history::timeline::{self, wrapped};
use tenure_testkit::history::{Verdict, check};

use super::exit::{DAMAGED, Failure, UNEXPECTED};
use super::output::{Output, print};
use super::programs::{find, find_engine, find_server, processes};
use super::soak::{self, Soak};
use super::target;

#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// List what can be run: faults done to tenure's own stores, and locks as others write them
    #[command(after_help = LIST_HELP)]
    List {
        /// Only what has one of these in its id or in its words: redis/, A4, clock
        #[arg(value_name = "FILTER")]
        filters: Vec<String>,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Run all of it, or some; exit 1 if anything is not as expected
    Run(Run),
    /// Search tenure's own protocol, and itself without each of its rules, in every order of steps
    Models {
        /// Also within larger bounds, which takes minutes and gigabytes
        #[arg(long)]
        larger: bool,
    },
    /// Make random runs of the core against a simulated store in virtual time; a single one is drawn
    Explore(Explore),
    /// Random holders and waiters on a real store, in several processes, while it is broken; exit 1 if anything is not as expected
    Soak(Soak),
    /// Judge histories that `run --save` wrote, once more
    Check {
        /// Which
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct Run {
    /// Which, as `list` names them, or the beginning of that: redis/, A4, redis/07. Without one, all
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Only those that break a store like this, with the scheme of its scheme=: on servers of the lab's own, never on it
    #[arg(long, value_name = "URL")]
    store: Option<OsString>,
    /// The seed of the first run; the next has the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run each so many times, with different seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// How many at a time
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Tell the story of each and draw its timeline, also where it is as expected
    #[arg(short, long)]
    verbose: bool,
    /// Write every history into this directory, for `lab check`
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Write the page docs/lab.md from this run
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Explore {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many runs
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    runs: u64,
    /// For how long, instead: a soak
    #[arg(long = "for", value_name = "DUR", value_parser = parse_duration, conflicts_with = "runs")]
    time: Option<Duration>,
    /// How many at a time
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

const LIST_HELP: &str = "\
A tier is what tenure promises under that fault (GUARANTEES.md). In tier 1 nobody
else holds; in tier 2 the fence protects the resource; tier 3 is a hole that is
known, and the run shows it: what is expected there is \"broken\". Broken locks
have no tier: they are locks of others, and expected to break.";

const RUN_HELP: &str = "\
Verdicts: holds; fenced (two clients regarded themselves as the holder, or a
stale holder wrote on, and the fence kept the resource whole); broken;
inconclusive (the machine was too slow, twice).
A broken lock is expected to be broken: it shows that the checker sees.

  tenure lab run A1/crash            one broken lock, with its story and timeline
  tenure lab run redis/ --repeat 50  every fault of one Redis, fifty times
  tenure lab run --store 'redis://cache?scheme=php'  every fault with that scheme

Needs redis-server: TENURE_REDIS_SERVER, else the one in PATH. Rows of postgres/
need PostgreSQL and PgBouncer, those of mariadb/ MariaDB, those of etcd/ etcd,
those of memcached/ memcached, those of zookeeper/ ZooKeeper and Java. Of the
broken locks, B1/ and B2/ need memcached, B4/ ZooKeeper, row/ nothing.";

pub(crate) fn main(args: Lab) -> Result<u8, Failure> {
    match args {
        Lab::List { filters, output } => list(&filters, output),
        Lab::Run(args) => run_items(&args),
        Lab::Models { larger } => search(larger),
        Lab::Explore(args) => explore(&args),
        Lab::Soak(args) => soak::main(&args),
        Lab::Check { files } => judge_again(&files),
    }
}

fn list(filters: &[String], output: Output) -> Result<u8, Failure> {
    let has = |item: &Item, filter: &str| [&item.id, &item.subject, &item.fault].iter().any(|text| text.contains(filter));
    let mut items = items();
    items.retain(|item| filters.is_empty() || filters.iter().any(|filter| has(item, filter)));
    if items.is_empty() {
        return Err(Failure::usage(format!("the lab has nothing with {filters:?} in it; see tenure lab list")));
    }
    print(&match output {
        Output::Json => format!("{}\n", items.iter().map(report::listed).collect::<Value>()),
        Output::Text => items.iter().map(report::listed_as_text).collect(),
    })?;
    Ok(0)
}

/// The items whose ids begin as one of `ids` says, of those that break a store like the one at `url`.
fn chosen(ids: &[String], url: Option<&OsStr>) -> Result<Vec<Item>, Failure> {
    let rows = url.map(target::rows).transpose()?.unwrap_or_default();
    let items: Vec<Item> = items().into_iter().filter(|item| item.id.starts_with(&rows)).collect();
    if let Some(id) = ids.iter().find(|id| !items.iter().any(|item| item.id.starts_with(*id))) {
        let rows = if rows.is_empty() { rows } else { format!(" among {rows}") };
        return Err(Failure::usage(format!("the lab has nothing called {id:?}{rows}; see tenure lab list")));
    }
    let is_chosen = |item: &Item| {
        // A whole id is meant, though it may be the beginning of another.
        ids.is_empty()
            || ids.iter().any(|id| item.id == *id || (item.id.starts_with(id) && !items.iter().any(|other| other.id == *id)))
    };
    Ok(items.iter().filter(|item| is_chosen(item)).cloned().collect())
}

fn run_items(args: &Run) -> Result<u8, Failure> {
    let items = chosen(&args.ids, args.store.as_deref())?;
    find_servers(&items)?;
    if items.iter().any(|item| item.kind == Kind::Scenario) {
        find_tools()?;
    }
    if let Some(dir) = &args.save {
        std::fs::create_dir_all(dir).map_err(|error| unwritten(dir, &error))?;
    }
    let lab = processes()?;
    let table = Table { text: args.output == Output::Text, all: args.verbose || items.len() <= 3 };
    let seeds = (0..args.repeat).map(|n| args.seed.wrapping_add(n));
    let work: Vec<_> = seeds.flat_map(|seed| items.iter().cloned().map(move |item| (item, seed))).collect();
    let outcomes = perform(&lab, work, args, &table)?;
    conclude(args, &table, &outcomes)?;
    Ok(if outcomes.iter().all(|outcome| outcome.ok) { 0 } else { UNEXPECTED })
}

/// Runs all of it, and tells of each as it comes.
fn perform(lab: &Processes, work: Vec<(Item, u64)>, args: &Run, table: &Table) -> Result<Vec<Outcome>, Failure> {
    let (mut outcomes, mut trouble, count) = (Vec::new(), None, work.len());
    // The outcome of a run reports the message of its panic.
    let told_otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(run::RUNNER) {
            told_otherwise(panic);
        }
    }));
    let progress = Progress::new();
    run::all(lab, work, args.jobs.into(), |outcome| {
        progress.clear();
        let told = table.tell(&outcome).and_then(|()| save(args.save.as_deref(), &outcome));
        outcomes.push(outcome);
        progress.show(outcomes.len(), count);
        trouble = told.err();
        if trouble.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.clear();
    drop(std::panic::take_hook());
    outcomes.sort_by(|a, b| (&a.item.id, a.seed).cmp(&(&b.item.id, b.seed)));
    trouble.map_or(Ok(outcomes), Err)
}

fn conclude(args: &Run, table: &Table, outcomes: &[Outcome]) -> Result<(), Failure> {
    if table.text {
        let told = report::told_after(outcomes);
        if !told.is_empty() {
            table.say(&format!("\nDelay of each reported loss after it was due:\n{told}"))?;
        }
        let good = outcomes.iter().filter(|outcome| outcome.ok).count();
        let unsure = outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Inconclusive).count();
        let unsure = if unsure == 0 { String::new() } else { format!(", {unsure} inconclusive: the machine was too slow") };
        table.say(&format!("{good} of {} as expected{unsure}", outcomes.len()))?;
    } else {
        print(&format!("{}\n", outcomes.iter().map(report::to_json).collect::<Value>()))?;
    }
    if let Some(file) = &args.report {
        let mut ordered = outcomes.to_vec();
        let place = |outcome: &Outcome| (outcome.item.kind == Kind::BrokenLock, outcome.item.id.clone());
        ordered.sort_by_key(place);
        let models: Vec<_> =
            models::all().into_iter().map(|model| (model.search(), model)).map(|(found, model)| (model, found)).collect();
        std::fs::write(file, report::page(&ordered, &models)).map_err(|error| unwritten(file, &error))?;
    }
    Ok(())
}

/// Form in which outcomes are printed.
struct Table {
    text: bool,
    /// The story also of what is as expected.
    all: bool,
}

impl Table {
    fn say(&self, line: &str) -> Result<(), Failure> {
        if self.text { print(&format!("{line}\n")) } else { Ok(()) }
    }

    fn tell(&self, outcome: &Outcome) -> Result<(), Failure> {
        self.say(report::row(outcome).trim_end())?;
        if self.all || !outcome.ok {
            let account = report::account(outcome);
            self.say(&account)?;
            if !self.text && !outcome.ok {
                let _ = stderr().write_all(account.as_bytes());
            }
        }
        Ok(())
    }
}

/// A line on the terminal that says how far it is.
struct Progress(bool);

impl Progress {
    fn new() -> Self {
        Self(stderr().is_terminal())
    }

    fn show(&self, done: usize, count: usize) {
        if self.0 && done < count {
            let _ = write!(stderr(), "{done} of {count}");
        }
    }

    fn clear(&self) {
        if self.0 {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn save(dir: Option<&Path>, outcome: &Outcome) -> Result<(), Failure> {
    let (Some(dir), Some(shown)) = (dir, &outcome.shown) else { return Ok(()) };
    let file = dir.join(format!("{}-{}.jsonl", outcome.item.id.replace('/', "-"), outcome.seed));
    shown.history.save(&file).map_err(|error| unwritten(&file, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(DAMAGED, format!("{} cannot be written, {error}; give it a place that can", path.display()))
}

/// Tells of a missing server before anything is run.
fn find_servers(items: &[Item]) -> Result<(), Failure> {
    let why = "the lab breaks locks on a real one";
    let is_of = |item: &Item, stores: &[&str]| stores.iter().any(|store| item.id.starts_with(store));
    let any_of = |stores: &[&str]| items.iter().any(|item| is_of(item, stores));
    let without_redis =
        ["memory/", "sqlite/", "postgres/", "mariadb/", "etcd/", "memcached/", "zookeeper/", "row/", "B1/", "B2/", "B4/"];
    if items.iter().any(|item| !is_of(item, &without_redis)) {
        find_server(why)?;
    }
    let instead = "or name other rows, e.g. redis/";
    for (engine, rows) in [
        (Engine::Postgres, &["postgres/"][..]),
        (Engine::Etcd, &["etcd/"]),
        (Engine::Memcached, &["memcached/", "B1/", "B2/"]),
        (Engine::ZooKeeper, &["zookeeper/", "B4/"]),
        (Engine::MariaDb, &["mariadb/"]),
    ] {
        if any_of(rows) {
            find_engine(engine, why, instead)?;
        }
    }
    if any_of(&["postgres/"]) {
        find("pgbouncer".as_ref(), "--version", why, &format!("install pgbouncer, {instead}"))?;
    }
    Ok(())
}

/// Tells of a missing tool before anything is run.
fn find_tools() -> Result<(), Failure> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    find(&compiler, "--version", "the shim that sets a server's clock is compiled with it", "install it")?;
    find("openssl".as_ref(), "version", "certificates are made with it", "install it")
}

fn search(larger: bool) -> Result<u8, Failure> {
    let mut all_well = true;
    let more = if larger { models::larger() } else { Vec::new() };
    for model in models::all().into_iter().chain(more) {
        let searched = model.search();
        let well = model.is_as_expected(&searched);
        all_well &= well;
        let verdict = match (searched.broken.is_some(), well) {
            (false, true) => "holds",
            (true, true) => "broken, as expected",
            (false, false) => "HOLDS, NOT broken",
            (true, false) => "BROKEN, NOT as expected",
        };
        let (took, states) = (searched.took.as_secs_f64(), searched.states);
        print(&wrapped(&format!("{verdict:19}  "), &format!("{}  ({states} states, {took:.1} s)", model.id), 21))?;
        print(&wrapped("    ", &format!("{}; {}", model.of, model.bounds), 4))?;
        for line in searched.counterexample.iter().flatten() {
            print(&wrapped("      ", line, 10))?;
        }
    }
    Ok(if all_well { 0 } else { UNEXPECTED })
}

fn explore(args: &Explore) -> Result<u8, Failure> {
    let progress = Progress::new();
    let extent = args.time.map_or(Extent::Runs(args.runs), Extent::Time);
    let report = explore::many(args.seed, extent, args.jobs.into(), |so_far: &Report| {
        if progress.0 {
            progress.clear();
            let _ = write!(stderr(), "{} runs, {} a second", so_far.runs, so_far.per_second());
        }
    });
    progress.clear();
    if report.runs == 1 {
        print(&explore::one(args.seed).story())?;
    }
    print(&format!("{report}\n"))?;
    Ok(if report.failed.is_empty() { 0 } else { UNEXPECTED })
}

fn judge_again(files: &[PathBuf]) -> Result<u8, Failure> {
    let (items, mut all_well) = (items(), true);
    for file in files {
        let unread = |error| Failure::new(DAMAGED, format!("{error}; give the files that `lab run --save` wrote"));
        let history = History::load(file).map_err(unread)?;
        let findings = check(&history);
        let verdict = Verdict::of(&history, &findings);
        // A saved history of a broken lock is as bad now as it was then.
        all_well &= items.iter().find(|item| item.id == history.id).is_none_or(|item| item.expects(verdict, &findings));
        print(&format!("{verdict}\n{}\n", timeline::picture(&history)))?;
    }
    Ok(if all_well { 0 } else { UNEXPECTED })
}
