//! The commands `tenure lab` and `tenure bench`.

mod bench;
mod exit;
mod lab;
mod soak;
mod target;

use std::ffi::{OsStr, OsString};
use std::io::{Write, stdout};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum};
use tenure_lab::Lab;
use tenure_lab::soak::Engine;
use tenure_testkit::{Program, mariadb, postgres, zookeeper};

use self::exit::{DAMAGED, Failure, UNREACHABLE, USAGE, say};

/// The word by which this program is called to become a process under test.
const WORKER: &str = "__worker";

/// Breaks locks in front of you, and measures what they cost. `tenure lab` and `tenure bench` run this program.
#[derive(Debug, Parser)]
#[command(name = "tenure-lab", bin_name = "tenure", version, propagate_version = true, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure what locks cost: on a redis-server of its own, or on the store you name
    Bench(bench::Bench),
    /// Break locks in front of you, and see where tenure's own hold
    #[command(subcommand)]
    Lab(lab::Lab),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people and shells
    #[default]
    Text,
    /// For programs
    Json,
}

/// Does what the arguments say; returns the exit code.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = args.collect();
    let ended = match words.get(1) {
        Some(word) if word == OsStr::new(WORKER) => worker(),
        _ => parse(words).and_then(|cli| match cli.command {
            Command::Bench(args) => block_on(bench::main(&args)),
            Command::Lab(args) => lab::main(args),
        }),
    };
    ended.unwrap_or_else(|failure| {
        if let Some(text) = failure.text {
            say(text);
        }
        failure.code
    })
}

/// Becomes a process under test.
fn worker() -> Result<u8, Failure> {
    let role = tenure_testkit::worker::role().unwrap_or_default();
    tenure_lab::worker::serve(&role).map_err(|error| Failure::new(lab::UNEXPECTED, error.to_string()))?;
    Ok(0)
}

fn parse(args: Vec<OsString>) -> Result<Cli, Failure> {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    Cli::try_parse_from(args).map_err(|error| {
        if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
            let _ = error.print();
            return Failure { code: if error.use_stderr() { USAGE } else { 0 }, text: None };
        }
        let text = error.to_string();
        let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        Failure::usage(format!("{what}; see --help"))
    })
}

/// Runs on this thread alone, as `tenure run` does: what a benchmark measures is the client as the command has it.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tenure::BootTime::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let no_runtime = |error| Failure::new(UNREACHABLE, format!("no event loop, {error}; nothing was done; see `ulimit -n`"));
    runtime.map_err(no_runtime)?.block_on(work)
}

/// This program as the processes under test, with a process beside it that ends them when it is ended itself.
fn processes() -> Result<Lab, Failure> {
    let lost = |error| Failure::new(UNREACHABLE, format!("the file of this program cannot be found, {error}"));
    let program = std::env::current_exe().map_err(lost)?;
    let unwatched = |error| Failure::new(UNREACHABLE, format!("no process could be started to clean up after the run, {error}"));
    tenure_testkit::guardian::watch_over_us().map_err(unwatched)?;
    Ok(Lab { program: Program::new([program.as_os_str(), WORKER.as_ref()]) })
}

/// Tells of a missing server before anything is run; `why` it is needed.
fn find_server(why: &str) -> Result<(), Failure> {
    let named = std::env::var_os("TENURE_REDIS_SERVER").filter(|path| !path.is_empty());
    let program = named.unwrap_or_else(|| "redis-server".into());
    find(&program, "--version", why, "install redis-server or name one in TENURE_REDIS_SERVER")
}

/// As [`find_server`], of another engine; `instead` is what else can be done.
fn find_engine(engine: Engine, why: &str, instead: &str) -> Result<(), Failure> {
    let find = |program: &OsStr, argument, package| find(program, argument, why, &format!("install {package}, {instead}"));
    match engine {
        Engine::Etcd => {
            find("etcd".as_ref(), "--version", "etcd-server")?;
            find("etcdctl".as_ref(), "version", "etcd-client")
        }
        Engine::MariaDb => find(mariadb::program().as_os_str(), "--version", "mariadb-server"),
        Engine::Memcached => find("memcached".as_ref(), "--version", "memcached"),
        Engine::Postgres => find(postgres::program("postgres").as_os_str(), "--version", "postgresql"),
        Engine::ZooKeeper => {
            find("java".as_ref(), "--version", "zookeeper")?;
            if Path::new(zookeeper::CLASSES).exists() {
                return Ok(());
            }
            let text = format!("there is no {}, and {why}; install zookeeper, {instead}", zookeeper::CLASSES);
            Err(Failure::new(UNREACHABLE, text))
        }
    }
}

/// Tells of a missing program, `why` it is needed and the `fix`.
fn find(program: &OsStr, argument: &str, why: &str, fix: &str) -> Result<(), Failure> {
    let found = std::process::Command::new(program).arg(argument).stdout(std::process::Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(Failure::new(UNREACHABLE, format!("{} cannot be run, and {why}; {fix}", program.to_string_lossy())))
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        // The reader has enough. A filter ends like this by its signal.
        std::io::ErrorKind::BrokenPipe => Failure { code: 128 + 13, text: None },
        _ => Failure::new(DAMAGED, format!("the result cannot be written to stdout, {e}; give it a place to go")),
    })
}
