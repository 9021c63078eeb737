//! `tenure __exec PARENT FRONT GATE CMD...`: the last step before the command itself runs, in its own
//! process.
//!
//! Only a process can ask for its own parent-death signal, so the child starts as this, asks, and
//! becomes the command. Before that it waits for the end of the pipe GATE: then the guardian knows it.

use std::env;
use std::env::ArgsOs;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::process::{Signal, getpid, kill_process};

use crate::exit::{CANNOT_RUN, Failure, NOT_FOUND, USAGE, by_signal, say};
use crate::{myself, terminal};

/// First argument of this program when it is to become the command.
pub(crate) const WORD: &str = "__exec";
/// Asks for the death of a process that only its own handler keeps alive.
pub(crate) const DIE: &str = "__die";

/// The arguments that make this process's child run `command`.
pub(crate) fn arguments(front: bool, gate: RawFd, command: &[OsString]) -> impl Iterator<Item = OsString> + '_ {
    let [parent, gate] = [std::process::id().to_string(), gate.to_string()];
    let front = if front { "front" } else { "back" };
    [WORD.into(), parent.into(), front.into(), gate.into()].into_iter().chain(command.iter().cloned())
}

/// Becomes the command; returns the exit code if that fails.
pub(crate) fn main(mut args: ArgsOs) -> u8 {
    let parent = args.next().and_then(|pid| pid.to_str()?.parse().ok());
    let (Some(parent), Some(front), Some(gate), Some(program)) = (parent, args.next(), args.next(), args.next()) else {
        say("__exec is for tenure itself; use `tenure run`");
        return USAGE;
    };
    if !die_with(parent) {
        return CANNOT_RUN;
    }
    pass(&gate);
    if front == "front" {
        terminal::come_to_front();
    }
    let error = Command::new(&program).args(args).exec();
    let Failure { code, text, .. } = refused(&program, &error);
    say(text.unwrap_or_default());
    code
}

/// Waits until our parent has closed its end, and closes ours.
fn pass(gate: &OsStr) {
    // Without /proc it cannot be opened: then the guardian may be a moment late.
    if let Ok(mut end) = File::open(Path::new("/dev/fd").join(gate)) {
        let _ = end.read(&mut [0]);
    }
    if let Some(gate) = gate.to_str().and_then(|gate| gate.parse::<RawFd>().ok()) {
        let _ = nix::unistd::close(gate);
    }
}

/// Refuses a command that is not there or not executable, before anything is taken for it.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    let places: Vec<PathBuf> = match env::var_os("PATH") {
        _ if program.is_empty() || program.as_bytes().contains(&b'/') => vec![program.into()],
        Some(path) => env::split_paths(&path).map(|folder| folder.join(program)).collect(),
        // The C library has a path of its own then.
        None => return Ok(()),
    };
    if let Some(place) = places.iter().find(|place| can_run(place)) {
        return match interpreter(place) {
            Some(missing) if !can_run(&missing) => Err(refused(program, &ErrorKind::NotFound.into())),
            _ => Ok(()),
        };
    }
    let is_there = places.iter().any(|place| Path::exists(place));
    Err(refused(program, &if is_there { ErrorKind::PermissionDenied } else { ErrorKind::NotFound }.into()))
}

fn can_run(place: &Path) -> bool {
    place.is_file() && access(place, Access::EXEC_OK).is_ok()
}

/// Program that runs a script, from its first line.
fn interpreter(script: &Path) -> Option<PathBuf> {
    // The kernel reads no more of the line.
    let mut line = Vec::new();
    File::open(script).ok()?.take(256).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    words.next().map(|word| OsStr::from_bytes(word).into())
}

/// Dies of the interrupt key: a shell ends a script only if what it ran did not survive the key.
///
/// Away from a terminal there is no key and no such shell: returns, and our parent gets the exit
/// code that is promised. Only an `exec` takes back, without `unsafe`, that we listen to the
/// signal. Returns if that fails.
pub(crate) fn die_of_interrupt() {
    if !terminal::are_in_front() {
        return;
    }
    let _ = myself::command().arg(DIE).exec();
}

/// The rest of [`die_of_interrupt`].
pub(crate) fn die() -> u8 {
    let _ = kill_process(getpid(), Signal::INT);
    by_signal(Signal::INT.as_raw())
}

/// Has the kernel kill us when tenure dies; false if it is dead already.
fn die_with(parent: u32) -> bool {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        say(format_args!("the parent-death signal cannot be set, {error}; nothing was run"));
        return false;
    }
    std::os::unix::process::parent_id() == parent
}

fn refused(program: &OsStr, error: &Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => {
            let what = format!("cannot run {program:?}, there is no such command (or its interpreter is missing)");
            Failure::new(NOT_FOUND, format!("{what}; check PATH and spelling"))
        }
        _ => Failure::new(CANNOT_RUN, format!("cannot run {program:?}, {error}; is it an executable file?")),
    }
}
