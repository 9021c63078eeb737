//! Reading the command line, and saying what is wrong with it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::exit::{Failure, USAGE};

/// Reads a command line.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, Failure> {
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
        _ => Failure::usage(match fix(error) {
            Some(fix) => {
                let what = one_line(&error.to_string());
                format!("{}; {fix}", what.split(';').next().unwrap_or_default())
            }
            None => one_line(&error.to_string()),
        }),
    }
}

/// Text to write instead, if clap does not know it.
fn fix(error: &Error) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => near(word(ContextKind::InvalidSubcommand)?).map(|name| format!("use `tenure {name}`")),
        ErrorKind::UnknownArgument => {
            let word = word(ContextKind::InvalidArg)?;
            let of_run = error.to_string().contains("Usage: tenure run");
            if of_run && !word.starts_with('-') {
                return Some("the command to run is written behind --: tenure run NAME -- CMD ARGS".to_owned());
            }
            instead_of(word).map(String::from)
        }
        _ => None,
    }
}

/// Our flag for one of flock(1), timeout(1) and their like.
fn instead_of(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "--timeout" | "--wait-timeout" | "--lock-timeout" => "how long to wait is --wait DUR, e.g. -w 5s",
        "--nonblock" | "--nb" | "--non-block" | "--no-block" | "--nonblocking" => "not to wait is --no-wait, -n",
        "-c" | "--command" => "there is no shell unless you name one: tenure run NAME -- sh -c 'COMMAND'",
        "-s" => "a lock for readers is --shared",
        "-x" | "-e" | "--exclusive" => "a lock is exclusive unless it is --shared; leave it out",
        "--safety-margin" => "it is --kill-after",
        "--poll-interval" => "it is a parameter of the store: ?poll_interval=50ms",
        _ => return None,
    })
}

/// The command that somebody meant who wrote another word.
fn near(word: &str) -> Option<&'static str> {
    const WORDS: [(&str, &[&str]); 8] = [
        ("run", &["lock", "exec", "with", "flock", "do", "start"]),
        ("acquire", &["take", "get", "grab", "hold"]),
        ("renew", &["extend", "refresh", "keep", "touch"]),
        ("release", &["unlock", "free", "give", "drop"]),
        ("show", &["ls", "list", "status", "ps", "info", "who", "inspect", "get-all"]),
        ("break", &["kill", "steal", "force", "rm", "delete", "del"]),
        ("completions", &["completion", "complete"]),
        ("man", &["manual", "docs", "doc"]),
    ];
    let known = WORDS.iter().find(|(name, others)| others.contains(&word) || is_typo(word, name));
    known.map(|(name, _)| *name)
}

/// Whether two words differ by one letter more, less, or other, or by the order of their letters.
fn is_typo(word: &str, name: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let (a, b): (Vec<char>, Vec<char>) = (word.chars().collect(), name.chars().collect());
    let same_ahead = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let same_behind = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let longer = a.len().max(b.len());
    a.len() > 1 && (sorted(word) == sorted(name) || a.len().abs_diff(b.len()) <= 1 && same_ahead + same_behind + 1 >= longer)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_command_is_named() {
        let table = [
            ("rnu", "run"),
            ("rn", "run"),
            ("runn", "run"),
            ("lock", "run"),
            ("exec", "run"),
            ("ls", "show"),
            ("status", "show"),
            ("shwo", "show"),
            ("unlock", "release"),
            ("relase", "release"),
            ("brek", "break"),
        ];
        for (word, name) in table {
            assert_eq!(near(word), Some(name), "{word}");
        }
        for word in ["frobnicate", "x", "", "nothing"] {
            assert_eq!(near(word), None, "{word}");
        }
    }
}
