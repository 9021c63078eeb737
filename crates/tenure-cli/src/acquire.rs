//! `tenure acquire`: takes a lock and leaves it to the caller.

use std::ffi::OsString;

use crate::args::Acquire;
use crate::config::Settings;
use crate::event_loop::block_on;
use crate::exit::Failure;
use crate::give_up::{give_up, settle};
use crate::keep;
use crate::output::deliver;
use crate::signals::{Signals, unheard_before};
use crate::take::Plan;
use crate::variables::{text, variables};

/// Takes a fixed lease and prints it, or has it kept for as long as a process lives.
pub(crate) fn main(args: &Acquire) -> Result<u8, Failure> {
    match args.watch_pid {
        Some(pid) => keep::start(pid, args),
        None => block_on(take(args)),
    }
}

async fn take(args: &Acquire) -> Result<u8, Failure> {
    if args.taking.max_hold.is_some() || args.taking.kill_after.is_some() {
        let what = "--max-hold and --kill-after need --watch-pid: without it nobody watches the lease";
        return Err(Failure::usage(format!("{what}; use --ttl")));
    }
    if args.taking.min_hold.is_some() && args.taking.token.is_some() {
        // `release` knows it by the token.
        let what = "--min-hold and --token together need --watch-pid: nothing else would remember the shortest hold";
        return Err(Failure::usage(format!("{what}; leave one of them out")));
    }
    let settings = Settings::load(&args.common)?;
    let plan = Plan::fixed(&args.name, &args.taking, &settings)?;
    let mut signals = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let (locker, guards) = plan.take(&mut signals).await?;
    let text = text(args.output, &variables(&guards), plan.ttl);
    if let Err(failure) = deliver(&text) {
        // Nobody knows the token: nobody could release it.
        return Err(give_up(&locker, guards, failure).await);
    }
    for guard in guards {
        drop(guard.into_lease());
    }
    settle(&locker).await;
    Ok(0)
}

/// Tells a shell that evaluates what we print that there is no lease: evaluating nothing succeeds,
/// and the script would go on.
pub(crate) fn stop_the_shell(code: u8) {
    if !wants_json(std::env::args_os().skip(2)) {
        // A caller that does not read it has the exit code.
        let _ = deliver(&format!("(exit {code})\n"));
    }
}

/// Whether `-o json` is among the arguments, which may be wrong in any other way.
fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let mut args = args.map(|arg| arg.into_string().unwrap_or_default()).take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        let value = match arg.strip_prefix("--") {
            Some("output") => args.next(),
            Some(long) => long.strip_prefix("output=").map(String::from),
            None => match short_output(&arg) {
                Some("") => args.next(),
                value => value.map(String::from),
            },
        };
        if value.as_deref() == Some("json") {
            return true;
        }
    }
    false
}

/// Text behind `-o`, which may stand behind other flags as in `-no`.
fn short_output(arg: &str) -> Option<&str> {
    let value = arg.strip_prefix('-')?.trim_start_matches(['n', 'q', 'v']).strip_prefix('o')?;
    Some(value.strip_prefix('=').unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_output_flag_asks_for_json() {
        let asked = |line: &str| wants_json(line.split(' ').map(OsString::from));
        for line in ["-o json x", "-ojson x", "-o=json x", "--output json x", "--output=json x", "x -no json", "-qojson x"] {
            assert!(asked(line), "{line}");
        }
        for line in ["data.json", "json", "-o text json", "--label json x", "-- -o json", "-ofjson", "-E 9 -w json"] {
            assert!(!asked(line), "{line}");
        }
    }
}
