//! The commands `tenure lab` and `tenure bench`.

mod bench;
mod event_loop;
mod exit;
mod lab;
mod output;
mod programs;
mod soak;
mod target;

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use self::event_loop::block_on;
use self::exit::{Failure, UNEXPECTED, USAGE, say};
use self::programs::WORKER;

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
    tenure_lab::worker::serve(&role).map_err(|error| Failure::new(UNEXPECTED, error.to_string()))?;
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
