//! Processes with many tasks that want the same few names, and change their minds, and die.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure::Locker;

use crate::worker::{Load, Tally};
use crate::{Counter, Program, Worker};

/// How many visits all processes make together in the long form; else each test has a number of its own.
const SOAK: &str = "TENURE_SOAK";
/// For as long as it takes.
const DAY: Duration = Duration::from_secs(86_400);
/// For how long one load may go on in the short form.
const PATIENCE: Duration = Duration::from_secs(120);

/// The resources behind the names: an unprotected number each.
#[derive(Debug)]
pub struct Field {
    _dir: TempDir,
    /// The load of each process.
    pub load: Load,
}

/// The outcome of a crowd.
#[derive(Debug)]
pub struct Came {
    /// The counts of the processes that were not killed.
    pub tally: Tally,
    /// How many processes were killed.
    pub killed: u64,
}

impl Field {
    /// With so many names, and a load on them of so many visits.
    pub fn new(names: usize, visits: u64) -> Self {
        let dir = TempDir::new().unwrap();
        let names = (0..names).map(|number| (format!("door {number}"), dir.path().join(number.to_string())));
        let names: Vec<_> = names.collect();
        for (_, dir) in &names {
            std::fs::create_dir(dir).unwrap();
            Counter::create(dir);
        }
        let (ttl, seed) = (Duration::from_secs(2), std::process::id().into());
        let load = Load { names, tasks: 1, visits, time: DAY, ttl, stay: Duration::ZERO, fickle: 0, seed };
        Self { _dir: dir, load }
    }

    /// The same field, with more to its load.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Load)) -> Self {
        change(&mut self.load);
        self
    }

    /// Has `processes` carry the load together, while others that carry it as well are killed every so often.
    pub fn crowd(&self, url: &str, processes: u64, kill_every: Option<Duration>) -> Came {
        let part = Load { visits: self.load.visits / processes, ..self.load.clone() };
        let carriers = (0..processes).map(|number| {
            let mut worker = worker(url);
            worker.begin_load(&Load { seed: part.seed + number, ..part.clone() });
            let patience = if soak().is_some() { DAY } else { PATIENCE };
            std::thread::spawn(move || worker.tally(patience))
        });
        let carriers: Vec<_> = carriers.collect();
        let mut killed = 0;
        while let Some(every) = kill_every
            && !carriers.iter().all(std::thread::JoinHandle::is_finished)
        {
            let mut mortal = worker(url);
            mortal.begin_load(&Load { visits: u64::MAX / 2, seed: part.seed + 1_000 + killed, ..part.clone() });
            let lived = Instant::now();
            while lived.elapsed() < every && !carriers.iter().all(std::thread::JoinHandle::is_finished) {
                std::thread::sleep(Duration::from_millis(5));
            }
            mortal.kill();
            killed += 1;
        }
        let tallies = carriers.into_iter().map(|carrier| carrier.join().expect("a load was not carried"));
        Came { tally: tallies.reduce(Tally::and).unwrap(), killed }
    }

    /// That nobody was inside with another, fences rose, and no update was lost; how many visits there were.
    pub fn check(&self, came: &Came) -> u64 {
        let visits = self.load.names.iter().map(|(name, dir)| {
            Counter::open(dir).check_with_killed(came.killed).unwrap_or_else(|damage| panic!("{name}: {damage}"))
        });
        let (visits, ours) = (visits.sum(), came.tally.visits);
        assert!(ours == visits || (came.killed > 0 && ours < visits), "{ours} visits were counted, and {visits} were made");
        visits
    }
}

impl Came {
    /// Says what it was.
    pub fn told(&self, what: &str, visits: u64, began: Instant) {
        let Tally { visits: ours, through_store, given_up, lost, .. } = self.tally;
        let (took, longest, local) = (began.elapsed(), self.tally.longest_wait(), ours.saturating_sub(through_store));
        let killed = self.killed;
        println!(
            "{what}: {visits} visits in {took:.1?}; of {ours} counted {through_store} were granted by the store and {local} passed on; \
             {given_up} gave up, {killed} processes killed, {lost} leases lost; longest wait {longest:.1?}"
        );
    }

    /// That no lease was lost. A process that stood still for a second loses one.
    pub fn lost_none(&self) {
        let Tally { lost, pause, .. } = self.tally;
        assert!(lost == 0 || pause < Duration::from_secs(1), "{lost} leases were lost: a process went on only after {pause:?}");
        assert_eq!(lost, 0, "leases were lost");
    }
}

/// How many visits the long form makes.
pub fn soak() -> Option<u64> {
    std::env::var(SOAK).ok().filter(|visits| !visits.is_empty()).map(|visits| visits.parse().expect("TENURE_SOAK is a number"))
}

/// A process of this test binary on the store at `url`.
pub fn worker(url: &str) -> Worker {
    Worker::start(Program::this_test().on(url))
}

/// Leases and places of the dead have ended by then.
pub const OVER: Duration = Duration::from_secs(6);

/// Waits until nobody holds, and nobody waits.
pub async fn is_left_clean(locks: &Locker) {
    let began = Instant::now();
    loop {
        let left = locks.list().await.unwrap();
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < OVER, "left behind: {left:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
