//! `tenure lab soak`: random holders and waiters on a real store, while it is broken.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use tenure::parse_duration;
use tenure_lab::soak::{self, Engine, Plan, Where};

use super::event_loop::block_on;
use super::exit::{Failure, UNEXPECTED};
use super::output::print;
use super::programs::{find_engine, find_server, processes};
use super::target;

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Soak {
    /// Where: memory; sqlite (a file of its own); redis, etcd, mariadb, memcached, postgres or zookeeper (a server of its own);
    /// quorum (five of Redis); or the URL of a store that is there
    #[arg(long, value_name = "STORE", default_value = "memory")]
    store: OsString,
    /// For how long
    #[arg(long = "for", value_name = "DUR", value_parser = parse_duration, default_value = "10m")]
    time: Duration,
    /// By which tasks and faults make their choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many processes; memory has one
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// The server of its own loses its data again and again: two may hold then, and only the order of the fences is judged
    #[arg(long)]
    flush: bool,
    /// The password of the user changes every 10 s at a server of its own (redis, postgres, mariadb or etcd), which then ends
    /// the user's connections; nothing else is broken, and no lease may be lost
    #[arg(long)]
    rotate: bool,
    /// With --store quorum: so many servers, 3 or 5, one of which is always away, in each way in turn. No call may fail then
    #[arg(long, value_name = "SERVERS", value_parser = servers)]
    one_away: Option<usize>,
    /// End when the store has granted so often, if that is before the end of the time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    grants: Option<u64>,
}

const HELP: &str = "\
Every kind of lock, several names, hand-overs, take-overs, downgrades; every call
is dropped half-way now and then. Processes are stopped and killed. A server of
its own loses connections and stands still. etcd, MariaDB, PostgreSQL and
ZooKeeper are killed too, and come back with their data. A Redis loses scripts
and memory. At each step what a guard claims is compared with what the store says
of it. At the end there is one line of figures, after a line for each finding.

A store that you name is not broken: only our own processes are. The names there
begin with tenure-soak and random bits, and are free when the soak has ended.

  tenure lab soak --store redis --for 10m
  tenure lab soak --store sqlite --for 1h --seed 7
  tenure lab soak --store redis --flush --for 1m
  tenure lab soak --store quorum --grants 1000000 --for 1h
  tenure lab soak --store postgres --rotate --for 5m
  tenure lab soak --store quorum --one-away 3 --for 30m

On a quorum, many mutexes are taken one after the other. Servers are killed and
come back with their data or without. Replies are lost on the way to them.

With --one-away, a few mutexes are contended. One server is stopped, silent, or
refuses connections, or it was killed and is back with an older copy of its own,
with nothing, or with its log. Then it is the turn of the next. A call that fails
while a majority votes is a finding.

It needs the server that it starts, in PATH or where Debian has it. For redis and
quorum: TENURE_REDIS_SERVER, else the redis-server in PATH.";

fn servers(number: &str) -> Result<usize, &'static str> {
    match number {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("a quorum is of 3 or 5 servers here"),
    }
}

pub(crate) fn main(args: &Soak) -> Result<u8, Failure> {
    // Before the server is started: whatever is to be ended with us is started after it.
    let lab = processes()?;
    let place = match args.store.to_str() {
        Some("memory") => Where::Memory,
        Some("sqlite") => Where::Sqlite,
        Some("redis") => {
            find_server("the soak breaks one of its own")?;
            Where::Redis
        }
        Some("quorum") => {
            find_server("the soak breaks some of its own")?;
            args.one_away.map_or(Where::Quorum, Where::QuorumOneAway)
        }
        word => match word.and_then(Engine::of) {
            Some(engine) => {
                find_engine(engine, "the soak breaks one of its own", "or name another store, e.g. sqlite")?;
                Where::Engine(engine)
            }
            None => Where::At(block_on(target::address(&args.store))?),
        },
    };
    if args.flush && !matches!(place, Where::Redis) {
        return Err(Failure::usage("--flush is for --store redis: no other store is flushed"));
    }
    let has_passwords = match place {
        Where::Redis => true,
        Where::Engine(engine) => !matches!(engine, Engine::Memcached | Engine::ZooKeeper),
        _ => false,
    };
    if args.rotate && (args.flush || !has_passwords) {
        return Err(Failure::usage("--rotate is for --store redis, postgres, mariadb or etcd, without --flush"));
    }
    if args.one_away.is_some() && !matches!(place, Where::QuorumOneAway(_)) {
        return Err(Failure::usage("--one-away is for --store quorum: another store has one server"));
    }
    let Soak { time, seed, processes, flush: flushes, rotate: rotates, grants, .. } = *args;
    let report = soak::run(&lab, &Plan { place, time, seed, processes, flushes, rotates, grants })?;
    print(&format!("{report}\n"))?;
    Ok(if report.tally.findings.count() == 0 { 0 } else { UNEXPECTED })
}
