//! `tenure acquire`: takes a lock and leaves it to the caller.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::json;

use crate::args::{Acquire, Output};
use crate::child::{Lease, Variables};
use crate::config::Settings;
use crate::exit::Failure;
use crate::give_up::give_up;
use crate::run::no_signals;
use crate::show::print;
use crate::signals::Signals;
use crate::take::{Plan, variables};
use crate::{block_on, keep};

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
    let settings = Settings::load(&args.common)?;
    let plan = Plan::fixed(&args.name, &args.taking, &settings)?;
    let mut signals = Signals::passed_on().map_err(|e| no_signals(&e))?;
    let (locker, guards) = plan.take(&mut signals).await?;
    let text = text(args.output, &variables(&guards), plan.ttl);
    if let Err(failure) = print(&text) {
        // Nobody knows the token: nobody could release it.
        return Err(give_up(&locker, guards, args.taking.min_hold, failure).await);
    }
    for guard in guards {
        drop(guard.into_lease());
    }
    Ok(0)
}

/// Tells a shell that evaluates what we print that there is no lease: evaluating nothing succeeds, and the script would go on.
pub(crate) fn stop_the_shell(code: u8) {
    if !wants_json(std::env::args_os().skip(2)) {
        // Whoever does not read it has the exit code.
        let _ = print(&format!("(exit {code})\n"));
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

/// What follows `-o`, which may stand behind other flags as in `-no`.
fn short_output(arg: &str) -> Option<&str> {
    let value = arg.strip_prefix('-')?.trim_start_matches(['n', 'q', 'v']).strip_prefix('o')?;
    Some(value.strip_prefix('=').unwrap_or(value))
}

/// The leases as lines that a shell can evaluate, or as JSON: an object, or an array of several.
pub(crate) fn text(output: Output, variables: &Variables, ttl: Duration) -> String {
    if output == Output::Text {
        let lines = variables.values().map(|(variable, value)| match value {
            Some(value) => format!("{variable}={}\n", quoted(&value)),
            None => format!("{variable}=\n"),
        });
        return lines.concat();
    }
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let leases = variables.0.iter().map(|Lease { name, token, fence, expires_at }| {
        json!({ "name": name, "token": token, "fence": fence, "expires_at": expires_at, "ttl_ms": ttl_ms })
    });
    let leases: Vec<_> = leases.collect();
    match &leases[..] {
        [lease] => format!("{lease}\n"),
        leases => format!("{}\n", json!(leases)),
    }
}

/// The text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
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

    #[test]
    fn words_survive_a_shell() {
        for (text, word) in [("web-1.42", "web-1.42"), ("two words", "'two words'"), ("it's", r"'it'\''s'"), ("$(x)", "'$(x)'")] {
            assert_eq!(quoted(text), word);
        }
    }

    fn lease(name: &str, fence: Option<&str>, expires_at: u64) -> Lease {
        Lease { name: name.into(), token: "t".into(), fence: fence.map(String::from), expires_at }
    }

    fn as_json(leases: Vec<Lease>) -> serde_json::Value {
        serde_json::from_str(&text(Output::Json, &Variables(leases), Duration::from_secs(1))).unwrap()
    }

    #[test]
    fn a_lease_without_a_fence_clears_an_older_one() {
        let printed = text(Output::Text, &Variables(vec![lease("n", None, 5)]), Duration::from_secs(1));
        assert_eq!(printed, "TENURE_NAME=n\nTENURE_TOKEN=t\nTENURE_FENCE=\nTENURE_EXPIRES_AT=5\n");
        let json = as_json(vec![lease("n", None, 5)]);
        assert_eq!(json, json!({ "name": "n", "token": "t", "fence": null, "expires_at": 5, "ttl_ms": 1000 }));
    }

    #[test]
    fn several_leases_have_a_line_each_and_the_earliest_end() {
        let two = || vec![lease("a", Some("8"), 9), lease("b c", Some("7"), 5)];
        let printed = text(Output::Text, &Variables(two()), Duration::from_secs(1));
        assert_eq!(printed, "TENURE_NAME='a\nb c'\nTENURE_TOKEN='t\nt'\nTENURE_FENCE='8\n7'\nTENURE_EXPIRES_AT=5\n");
        let json = as_json(two());
        assert_eq!((json[0]["name"].as_str(), json[1]["expires_at"].as_u64()), (Some("a"), Some(5)), "{json}");
    }
}
