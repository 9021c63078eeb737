//! The command line: commands, flags and their help.

mod common;
mod help;
mod stores;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tenure::{Fence, Share, parse_duration};

pub(crate) use self::common::Common;
use self::help::{ACQUIRE_HELP, AFTER, BREAK_HELP, LEAD_HELP, RUN_HELP, SHOW_HELP};
pub(crate) use self::stores::{Admit, Migration};

/// Let one process at a time do a thing, across processes and machines.
///
/// A lock is a name in a store: a file of this user on this machine, unless --store names another
/// file or a Redis. It is held as a lease: it ends after its ttl unless it is renewed, which `run`
/// does. Every holder gets a larger number (a fence, also called fencing token) by which the
/// guarded resource can refuse a stale one.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, propagate_version = true, subcommand_required = true, after_help = AFTER)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Box<Run>),
    /// Run a command whenever this host leads, and campaign again when it has ended
    Lead(Box<Lead>),
    /// Take a lock and leave it to the caller: prints the token, the fence and the expiry
    Acquire(Box<Acquire>),
    /// Renew a lease that acquire left, by its token
    Renew(Renew),
    /// Release a lease that acquire left, by its token
    Release(Release),
    /// Show who holds what
    Show(Show),
    /// Take a name from its holder, who finds out at its next renewal: within a third of its ttl.
    /// The next holder may start at once
    Break(Break),
    /// Let the servers of a new quorum vote at once: you know that no lease from before can stand
    Admit(Admit),
    /// Print the statements that make the table of a store in a database, for you to run. Connects to
    /// nothing
    Migration(Migration),
    /// Measure what locks cost: on a redis-server of its own, or on the store you name
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(PassedOn),
    /// Break locks in front of you, and see where tenure's own hold
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Lab(PassedOn),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of a command, or write all pages into a directory
    Man(Man),
    /// Print the help of a command, or a page: store, config, codes, words
    Help {
        /// Which command or page
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
}

/// Arguments of `tenure-lab`, a program of its own, which reads them.
#[derive(Args, Debug)]
pub(crate) struct PassedOn {
    /// See --help behind it
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    _args: Vec<OsString>,
}

/// Kind of the lock. All clients of a name say the same.
#[derive(Args, Clone, Copy, Debug, Default)]
#[group(multiple = false)]
pub(crate) struct Kind {
    /// Read under a read/write lock: any number of readers hold it together, and nobody else
    #[arg(long)]
    shared: bool,
    /// Write under a read/write lock, alone. Without --shared and --write a name keeps readers out
    /// as well
    #[arg(long)]
    write: bool,
    /// Take K of the N permits of a semaphore
    #[arg(long, value_name = "K/N", value_parser = permits)]
    permits: Option<Share>,
}

impl Kind {
    /// Share that is asked for: a mutex if nothing else was said.
    pub(crate) fn share(self) -> Share {
        match self {
            Self { shared: true, .. } => Share::READ,
            Self { write: true, .. } => Share::WRITE,
            Self { permits, .. } => permits.unwrap_or(Share::MUTEX),
        }
    }
}

fn permits(text: &str) -> Result<Share, String> {
    let parts = text.split_once('/').and_then(|(some, all)| Some((some.parse().ok()?, all.parse().ok()?)));
    let (some, all) = parts.ok_or_else(|| "write how many of how many, e.g. 1/5 for one of five".to_owned())?;
    Share::permits(some, all).map_err(|error| error.to_string())
}

/// How to take a lock.
#[derive(Args, Clone, Debug)]
pub(crate) struct Taking {
    #[command(flatten)]
    pub(crate) kind: Kind,
    /// Take this name as well: the command gets all of them or does not start. While it waits for
    /// one it may hold others. May be said several times
    #[arg(short, long, value_name = "NAME")]
    pub(crate) also: Vec<OsString>,
    /// Give up after this long: the lock timeout, first contact with the store included. Without it,
    /// wait for ever for the lock, and 5s for the store
    #[arg(short, long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: the same as --wait 0
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// How long the lease lasts from each renewal [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// The command (or the watched process) gets TERM after this long, however well renewals go
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the name taken for at least this long, though the work is done or released before
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) min_hold: Option<Duration>,
    /// If the lock is lost, send KILL this long after TERM; TERM comes as much before the lease
    /// ends. At most ttl/3
    /// [default: 5s or ttl/3]
    #[arg(short, long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// The exit code when another holds the name
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) conflict_exit_code: u8,
    /// Label of this holder for others to see [default: host.pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Show nothing to others but random bits
    #[arg(long, conflicts_with = "label")]
    pub(crate) no_label: bool,
    /// Use this value as the owner, for a peer that expects it, instead of a random one. Less is
    /// safe then
    #[arg(long, value_name = "T", conflicts_with_all = ["label", "no_label"])]
    pub(crate) token: Option<String>,
}

impl Default for Taking {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            also: Vec::new(),
            wait: None,
            no_wait: false,
            ttl: None,
            max_hold: None,
            min_hold: None,
            kill_after: None,
            conflict_exit_code: crate::exit::NOT_ACQUIRED,
            label: None,
            no_label: false,
            token: None,
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Take a fixed lease of one ttl and do not renew it
    #[arg(long)]
    pub(crate) no_renew: bool,
    /// If the lock is lost, wait for it and start the command again
    #[arg(long, conflicts_with_all = ["max_hold", "no_renew"])]
    pub(crate) restart: bool,
    /// One run in each period of a schedule, on however many hosts: the name stays taken for half
    /// the period, so a host may start up to a fifth of it late or early. The ttl is a twentieth of
    /// it at most. The others wait somewhat longer than that: 40 s at most with the usual ttl. The
    /// shortest period is 2 s, 55 s in memcached, 15 s in etcd
    #[arg(long, value_name = "DUR", value_parser = parse_duration, conflicts_with_all = ["wait", "no_wait", "min_hold", "max_hold", "restart", "shared", "permits"])]
    pub(crate) once_per: Option<Duration>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The thing that must not be done twice at once, e.g. invoice/42
    #[arg(value_name = "NAME", allow_negative_numbers = true)]
    pub(crate) name: OsString,
    /// The command and its arguments, run as they are: no shell
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// A command that runs on the host that leads.
#[derive(Args, Debug)]
#[command(after_help = LEAD_HELP)]
pub(crate) struct Lead {
    /// How long a leader that died keeps its place [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// If the leadership is lost, send KILL this long after TERM; TERM comes as much before the
    /// lease ends. At most ttl/3
    /// [default: 5s or ttl/3]
    #[arg(short, long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Label of this candidate for others to see [default: host.pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The election, e.g. billing
    #[arg(value_name = "NAME", allow_negative_numbers = true)]
    pub(crate) name: OsString,
    /// The command and its arguments, run as they are: no shell
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

impl Lead {
    /// How the mutex of the leader is taken.
    pub(crate) fn taking(&self) -> Taking {
        Taking { ttl: self.ttl, kill_after: self.kill_after, label: self.label.clone(), ..Taking::default() }
    }
}

#[derive(Args, Debug)]
#[command(after_help = ACQUIRE_HELP)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Renew in the background until this process ends, then release; tell it with TERM if the lock
    /// is lost
    #[arg(long, value_name = "PID")]
    pub(crate) watch_pid: Option<i32>,
    /// Sent to the watched process when the lock is lost: a TERM signal, or none and a line on
    /// stderr
    #[arg(long, value_enum, default_value_t = OnLost::Term, requires = "watch_pid")]
    pub(crate) on_lost: OnLost,
    /// How to print the lease
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The thing that must not be done twice at once
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    Term,
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    // Without help of their own, the help of a command keeps its short form.
    #[default]
    Text,
    Json,
}

#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// The token that acquire printed
    #[arg(long, value_name = "T")]
    pub(crate) token: String,
    /// How long the lease lasts from now on [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The name that is held
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The token that acquire printed
    #[arg(long, value_name = "T")]
    pub(crate) token: String,
    #[command(flatten)]
    pub(crate) common: Common,
    /// The name that is held
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
}

#[derive(Args, Debug)]
#[command(after_help = SHOW_HELP)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Show {
    /// Print nothing; exit 0 if NAME is held or waited for, 1 if it is free
    #[arg(short, long, requires = "name", conflicts_with_all = ["until_free", "wait", "watch"])]
    pub(crate) check: bool,
    /// Follow NAME: a line whenever its holders change
    #[arg(short, long, requires = "name", conflicts_with_all = ["until_free", "wait"])]
    pub(crate) watch: bool,
    /// Wait until NAME is free, without taking it
    #[arg(short = 'f', long, requires = "name")]
    pub(crate) until_free: bool,
    /// Wait at most this long until NAME is free; exit 75 if it is still held then
    #[arg(long, value_name = "DUR", value_parser = parse_duration, requires = "name")]
    pub(crate) wait: Option<Duration>,
    /// Of a quorum: each server, whether it votes, how many names it holds, and what keeps it out
    #[arg(long, conflicts_with_all = ["check", "watch", "until_free", "wait", "matching", "limit"])]
    pub(crate) servers: bool,
    /// Only names like this: * is any text, ? any character
    #[arg(short, long = "match", value_name = "PATTERN", conflicts_with = "name")]
    pub(crate) matching: Option<String>,
    /// At most so many names
    #[arg(short, long, value_name = "N", conflicts_with = "name")]
    pub(crate) limit: Option<usize>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Which name; without it, every name the store can tell to be a lock
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<OsString>,
}

impl Show {
    /// Whether it waits until the name is free.
    pub(crate) fn waits(&self) -> bool {
        self.until_free || self.wait.is_some()
    }
}

/// Which manual page.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Write all pages into this directory: tenure.1, tenure-run.1 and so on
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
    /// The page of this command; without it, the one of tenure
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args, Debug)]
#[command(after_help = BREAK_HELP)]
pub(crate) struct Break {
    /// Only if this token or this label holds it
    #[arg(long, value_name = "TOKEN|LABEL")]
    pub(crate) if_held_by: Option<String>,
    /// Only if it is held with this fence
    #[arg(long, value_name = "N")]
    pub(crate) fence: Option<Fence>,
    /// Also if its value is no lock of tenure, and no scheme in the store URL says that it is a lock.
    /// It may be data of an application
    #[arg(long)]
    pub(crate) foreign: bool,
    /// Do not ask, on a terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Which name
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,
}
