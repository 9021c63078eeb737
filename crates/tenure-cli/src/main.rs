//! The `tenure` command: run a program under a distributed lock.

mod acquire;
mod args;
#[cfg(feature = "lab")]
mod bench;
mod child;
mod command_line;
mod config;
mod docs;
mod event_loop;
mod exec;
mod exit;
mod give_up;
mod help;
#[cfg_attr(not(target_os = "linux"), path = "keep_elsewhere.rs")]
mod keep;
#[cfg(feature = "lab")]
mod lab;
mod lease;
mod log;
mod min_hold;
mod myself;
mod names;
mod nested;
mod observer;
mod output;
mod run;
mod show;
mod signals;
#[cfg(feature = "lab")]
mod soak;
mod store;
mod supervise;
mod take;
mod terminal;
mod variables;

use std::env::args_os;
use std::ffi::OsStr;
use std::process::ExitCode;

use rustix::process::Signal;

use crate::args::{Cli, Command};
use crate::command_line::parse;
use crate::event_loop::block_on;
use crate::exit::{Failure, say};

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
    #[cfg(feature = "lab")]
    if first.as_deref() == Some(lab::WORD.as_ref()) {
        return lab::worker(args).into();
    }
    log::listen();
    let ended =
        if first.as_deref() == Some(keep::WORD.as_ref()) { keep::main(args) } else { parse(args_os()).and_then(dispatch) };
    log::finish();
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
    // The starter of the keeper reads its exit code.
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
        #[cfg(feature = "lab")]
        Command::Bench(args) => block_on(bench::main(&args)),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::main(args),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man(args) => docs::man(&args),
        Command::Help { words } => help::main(&words),
    }
}
