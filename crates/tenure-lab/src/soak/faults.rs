//! Faults of the store and of the processes of a soak. All of them keep the store's data and clock, but for the flushes of a run
//! that asks for them.

use std::time::Duration;

use fastrand::Rng;
use tenure::{BootTime, Error};
use tenure_testkit::RedisServer;

use super::Plan;
use super::process::Crew;

pub(super) struct Faults<'a> {
    rng: Rng,
    server: Option<&'a RedisServer>,
    flushes: bool,
}

/// Commands that the faults send to a server, which they also stop.
const COMMANDS: [&[&str]; 8] = [
    &["SCRIPT", "FLUSH"],
    &["FUNCTION", "FLUSH"],
    &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    &["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"],
    &["CLIENT", "PAUSE", "150", "WRITE"],
    &["CLIENT", "PAUSE", "150", "ALL"],
    &["CONFIG", "SET", "maxmemory", "1"],
    ENOUGH_MEMORY,
];
const ENOUGH_MEMORY: &[&str] = &["CONFIG", "SET", "maxmemory", "0"];
const FLUSH: &[&str] = &["FLUSHALL"];

/// How long the server is stopped.
const STOP: Duration = Duration::from_millis(150);

impl<'a> Faults<'a> {
    pub(super) fn new(plan: &Plan, server: Option<&'a RedisServer>) -> Self {
        Self { rng: Rng::with_seed(plan.seed), server, flushes: plan.flushes }
    }

    /// Breaks things until `end`; how often.
    pub(super) fn go_on(mut self, crew: &mut Crew<'_>, end: BootTime) -> Result<u64, Error> {
        let mut count = 0;
        loop {
            let pause = Duration::from_millis(self.rng.u64(50..=500));
            std::thread::sleep(pause.min(end.since(BootTime::now())));
            if BootTime::now() >= end {
                break;
            }
            count += 1;
            match self.server {
                Some(server) if self.rng.u8(0..5) > 0 => self.at_server(server),
                _ => self.at_process(crew)?,
            }
        }
        if let Some(server) = self.server {
            tell(server, ENOUGH_MEMORY)?;
        }
        Ok(count)
    }

    fn at_server(&mut self, server: &RedisServer) {
        if self.flushes && self.rng.u8(0..3) == 0 {
            let _ = tell(server, FLUSH);
            return;
        }
        if let Some(command) = COMMANDS.get(self.rng.usize(0..=COMMANDS.len())) {
            // One that an older server does not know does no harm.
            let _ = tell(server, command);
        } else {
            server.stop();
            std::thread::sleep(STOP);
            server.cont();
        }
    }

    fn at_process(&mut self, crew: &mut Crew<'_>) -> Result<(), Error> {
        let index = self.rng.usize(0..crew.count());
        match self.rng.u8(0..10) {
            0 => crew.kill(index)?,
            // Longer than its leases last.
            1 => crew.stop(index, Duration::from_millis(self.rng.u64(1_200..2_500))),
            _ => crew.stop(index, Duration::from_millis(self.rng.u64(10..300))),
        }
        Ok(())
    }
}

fn tell(server: &RedisServer, words: &[&str]) -> Result<(), Error> {
    let told = server.connect().and_then(|mut client| client.command(words));
    told.map(drop).map_err(|error| Error::unreachable("the server of the soak gave no answer").with_source(error))
}
