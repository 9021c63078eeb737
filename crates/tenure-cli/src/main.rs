//! The `tenure` command: run a program under a distributed lock.

mod acquire;
mod args;
mod child;
mod config;
mod docs;
mod exec;
mod exit;
mod give_up;
#[cfg_attr(not(target_os = "linux"), path = "keep_elsewhere.rs")]
mod keep;
mod lab;
mod lease;
mod run;
mod show;
mod signals;
mod store;
mod supervise;
mod take;
mod terminal;

use std::env::args_os;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use rustix::process::Signal;
use tokio::runtime::{Builder, Runtime};

use crate::args::{Cli, Command};
use crate::exit::{Failure, USAGE, say};

fn main() -> ExitCode {
    let mut args = args_os();
    let first = args.nth(1);
    // Before anything else: this process is about to become the user's command.
    if first.as_deref() == Some(exec::WORD.as_ref()) {
        return exec::main(args).into();
    }
    if first.as_deref() == Some(exec::DIE.as_ref()) {
        return exec::die().into();
    }
    let ended =
        if first.as_deref() == Some(keep::WORD.as_ref()) { keep::main(args) } else { parse(args_os()).and_then(dispatch) };
    match ended {
        Ok(code) => code.into(),
        Err(failure) => failed(failure, first.as_deref()).into(),
    }
}

/// Says why we failed; returns the exit code.
fn failed(failure: Failure, first: Option<&OsStr>) -> u8 {
    if let Some(text) = failure.text {
        say(text);
    }
    if failure.code != 0 && first == Some("acquire".as_ref()) {
        acquire::stop_the_shell(failure.code);
    }
    // Whoever started the keeper reads its exit code.
    if failure.signal == Some(Signal::INT.as_raw()) && first != Some(keep::WORD.as_ref()) {
        exec::die_of_interrupt();
    }
    failure.code
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Run(args) => block_on(run::main(&args)),
        Command::Acquire(args) => acquire::main(&args),
        Command::Renew(args) => block_on(lease::renew(&args)),
        Command::Release(args) => block_on(lease::release(&args)),
        Command::Show(args) => block_on(show::main(&args)),
        Command::Break(args) => block_on(lease::break_lease(&args)),
        Command::Bench(_) | Command::Lab(_) => Err(lab::main(args_os().skip(1))),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man { dir } => docs::man(dir.as_deref()),
    }
}

/// What the shortest run needs of descriptors, and a little more. Some of those who need one can only panic without.
const DESCRIPTORS: usize = 32;

/// Whether there are enough descriptors to begin anything that has to be ended.
fn has_descriptors() -> io::Result<()> {
    let spare: io::Result<Vec<OwnedFd>> = (0..DESCRIPTORS).map(|_| io::stdin().as_fd().try_clone_to_owned()).collect();
    spare.map(drop)
}

/// The runtime, which panics where it gets no sockets to hear of signals by.
fn event_loop() -> io::Result<Runtime> {
    let before = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let built = panic::catch_unwind(|| Builder::new_current_thread().enable_all().build());
    panic::set_hook(before);
    built.unwrap_or_else(|_| Err(io::Error::other("the system gives no sockets for signals")))
}

/// Runs on this thread alone: a child dies with the thread that started it, and one thread starts fastest.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tenure::BootTime::check()?;
    let runtime = has_descriptors().and_then(|()| event_loop());
    let runtime =
        runtime.map_err(|e| Failure::new(exit::UNREACHABLE, format!("no event loop, {e}; nothing was done; see `ulimit -n`")))?;
    let ended = runtime.block_on(work);
    // A name look-up that hangs must not hold up our end.
    runtime.shutdown_background();
    ended
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, Failure> {
    let matches = Cli::command().try_get_matches_from(args);
    matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)).map_err(|error| usage(&error))
}

/// clap's answer: help as it is, anything else as one line.
fn usage(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Failure::told(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Failure::told(USAGE)
        }
        _ if is_command_without_dashes(error) => {
            let what = one_line(&error.to_string());
            let what = what.split(';').next().unwrap_or_default();
            Failure::usage(format!("{what}; the command to run is written behind --: tenure run NAME -- CMD ARGS"))
        }
        _ => Failure::usage(one_line(&error.to_string())),
    }
}

/// Whether `tenure run` was given a command as flock takes it.
fn is_command_without_dashes(error: &Error) -> bool {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return false };
    let of_run = error.to_string().contains("Usage: tenure run");
    error.kind() == ErrorKind::UnknownArgument && of_run && !word.starts_with('-')
}

fn one_line(text: &str) -> String {
    let mut paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    if what.contains("not provided: <CMD>") {
        return "no command was given to run; write it behind --, e.g. tenure run NAME -- CMD ARGS".into();
    }
    let tip = paragraphs.find_map(|p| p.strip_prefix("tip: ").map(String::from));
    format!("{what}; {}", tip.as_deref().unwrap_or("see --help"))
}
