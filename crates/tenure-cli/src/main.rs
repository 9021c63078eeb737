//! The `tenure` command: run a program under a distributed lock.

mod acquire;
mod args;
mod break_name;
mod child;
mod command_line;
mod config;
mod docs;
mod event_loop;
mod exec;
mod exit;
mod give_up;
#[cfg_attr(not(target_os = "linux"), path = "guardian_elsewhere.rs")]
mod guardian;
mod help;
#[cfg_attr(not(target_os = "linux"), path = "keep_elsewhere.rs")]
mod keep;
mod lab;
mod lead;
mod lease;
mod log;
mod loss;
mod min_hold;
mod myself;
mod names;
mod nested;
mod observer;
mod outage;
mod output;
mod run;
mod servers;
mod show;
mod signals;
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
    if first.as_deref() == Some(guardian::WORD.as_ref()) {
        return guardian::main(args).into();
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
        Command::Lead(args) => block_on(lead::main(&args)),
        Command::Acquire(args) => acquire::main(&args),
        Command::Renew(args) => block_on(lease::renew(&args)),
        Command::Release(args) => block_on(lease::release(&args)),
        Command::Show(args) => block_on(show::main(&args)),
        Command::Break(args) => block_on(break_name::main(&args)),
        Command::Admit(args) => block_on(store::admit(&args)),
        Command::Migration(args) => store::migration(&args),
        Command::Bench(_) | Command::Lab(_) => Err(lab::main(args_os().skip(1))),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man(args) => docs::man(&args),
        Command::Help { words } => help::main(&words),
    }
}
