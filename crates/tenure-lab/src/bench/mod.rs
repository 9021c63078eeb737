//! Benchmarks of tenure's own stores: what a lock costs, in time, in commands and in CPU.
//!
//! Each case is a load that goes from rest to rest. It is run three times: to warm up, to be timed, and for a moment under the
//! server's `MONITOR`, which tells each command that a client sent from those that scripts made. So the commands of an operation are
//! counted by the server, exactly, and the timed run is not slowed down by the counting.

mod count;
mod cycle;
mod figures;
mod handover;
mod local;
mod meter;
mod place;
mod probe;
mod readers;
mod renew;
mod waiters;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use tenure::Error;

use crate::Lab;
use crate::bench::meter::{Run, Usage};

pub use crate::bench::figures::{Figures, HEAD};
pub(crate) use crate::bench::handover::serve;
pub use crate::bench::place::{Address, Place};

/// Kind of work that a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Each task takes and releases a mutex of its own.
    Cycle,
    /// Waiters in different processes pass one mutex on, which nobody keeps.
    Handover,
    /// Tasks of one process pass one mutex on, which nobody keeps.
    LocalHandover,
    /// Leases are held, and the watchdog renews them.
    Renew,
    /// Tasks wait for names that another holds, and nothing happens.
    Waiters,
    /// Many hold one name for reading, and a few of them come and go.
    Readers,
}

impl Case {
    /// All of them, in the order in which they are run: the one that looks at memory comes before those that use much of it.
    pub const ALL: [Self; 6] = [Self::Waiters, Self::Cycle, Self::Handover, Self::LocalHandover, Self::Renew, Self::Readers];

    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Handover => "handover",
            Self::LocalHandover => "local-handover",
            Self::Renew => "renew",
            Self::Waiters => "waiters",
            Self::Readers => "readers",
        }
    }

    /// Describes the work that it measures.
    pub fn what(self) -> &'static str {
        match self {
            Self::Cycle => "Each task takes and releases a mutex of its own",
            Self::Handover => "Waiters in different processes pass one mutex on, which nobody keeps",
            Self::LocalHandover => "Tasks of one process pass one mutex on, which nobody keeps",
            Self::Renew => "Leases are held, and the watchdog renews them",
            Self::Waiters => "Tasks wait for names that another holds, a hundred for each, and nothing happens",
            Self::Readers => "Readers hold one name, and ten of them come and go",
        }
    }

    /// How many tasks, and for how long, where nothing else is asked for.
    pub fn defaults(self) -> (usize, Duration) {
        let (tasks, seconds) = match self {
            Self::Cycle => (64, 5),
            Self::Handover => (16, 5),
            Self::LocalHandover => (128, 5),
            Self::Renew => (10_000, 20),
            Self::Waiters | Self::Readers => (1_000, 5),
        };
        (tasks, Duration::from_secs(seconds))
    }

    /// How few and how many tasks it can have, and why.
    fn bounds(self) -> (usize, usize, &'static str) {
        match self {
            Self::Handover => (2, 1_024, "two must be there to pass a name on, and each has a connection of its own"),
            Self::LocalHandover => (2, 100_000, "two must be there to pass a name on"),
            Self::Cycle | Self::Renew | Self::Waiters | Self::Readers => {
                (1, 1_000_000, "somebody must be there, and all have to fit into memory")
            }
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many acquisitions are under way while much is taken.
const AT_A_TIME: usize = 64;

/// One case to be run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub(crate) case: Case,
    pub(crate) tasks: usize,
    pub(crate) time: Duration,
}

impl Plan {
    /// The case with its own defaults for what is not given.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid), with the reason, for numbers of tasks or times that measure nothing.
    pub fn new(case: Case, tasks: Option<usize>, time: Option<Duration>) -> Result<Self, Error> {
        const SHORTEST: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(3_600);
        let (usual, usual_time) = case.defaults();
        let (tasks, time) = (tasks.unwrap_or(usual), time.unwrap_or(usual_time));
        let (fewest, most, why) = case.bounds();
        if !(fewest..=most).contains(&tasks) {
            let what = format!("{case} with {tasks} tasks is not between {fewest} and {most}");
            return Err(Error::invalid(what).with_hint(format!("{why}; without --tasks it has {usual}")));
        }
        if !(SHORTEST..=LONGEST).contains(&time) {
            let what = format!("{} seconds are not between 0.1 and 3600", time.as_secs_f64());
            return Err(Error::invalid(what).with_hint(format!("without --seconds {case} takes {}", usual_time.as_secs())));
        }
        Ok(Self { case, tasks, time })
    }

    /// Returns the case of the plan.
    pub fn case(&self) -> Case {
        self.case
    }

    /// The ttl of what is held all the while and not renewed: a run that is killed leaves it behind.
    fn held(&self) -> Duration {
        const AROUND_IT: Duration = Duration::from_secs(600);
        self.time + AROUND_IT
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, tasks, time } = self;
        write!(f, "{case}: {tasks} tasks, {} s", time.as_secs_f64())
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Connections are made, and what is to be held is taken.
    Preparing,
    /// The timed run has gone on for so long.
    Measuring(Duration),
    /// Commands are counted.
    Counting,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preparing => f.write_str("preparing"),
            Self::Measuring(so_far) => write!(f, "measuring, {} s", so_far.as_secs()),
            Self::Counting => f.write_str("counting commands"),
        }
    }
}

/// Is told what a run is at.
pub type Tell<'a> = &'a (dyn Fn(Stage) + Send + Sync);

/// Runs one case.
///
/// # Errors
/// The store's, and when a lock was lost meanwhile.
pub async fn run(lab: &Lab, place: &Place, plan: Plan, tell: Tell<'_>) -> Result<Figures, Error> {
    tell(Stage::Preparing);
    let job = Job { place, plan, tell };
    match plan.case {
        Case::Cycle => job.measure(&mut cycle::Cycles::prepare(place, plan.tasks).await?).await,
        Case::Handover => job.measure(&mut handover::Processes::prepare(lab, place, plan.tasks).await?).await,
        Case::LocalHandover => job.measure(&mut local::Tasks::prepare(place, plan.tasks).await?).await,
        Case::Renew => renew::measure(&job).await,
        Case::Waiters => waiters::measure(&job).await,
        Case::Readers => job.measure(&mut readers::Readers::prepare(place, plan).await?).await,
    }
}

/// Something that can be done for a while, again and again, and leaves nothing behind.
#[async_trait]
trait Load: Send {
    /// Does it for this long, and then to the end of what is under way.
    async fn run(&mut self, time: Duration) -> Result<Run, Error>;

    /// Gives up what was held all the while.
    async fn end(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// How it was set up, for people.
    fn told(&self) -> String;
}

/// A case on its way.
struct Job<'a> {
    place: &'a Place,
    plan: Plan,
    tell: Tell<'a>,
}

impl Job<'_> {
    async fn measure(&self, load: &mut dyn Load) -> Result<Figures, Error> {
        const WARM_UP: Duration = Duration::from_millis(200);
        const COUNTED: Duration = Duration::from_millis(500);
        load.run(WARM_UP).await?;
        let usage = Usage::begin(self.place.servers())?;
        let run = self.watched(load.run(self.plan.time)).await?;
        let server_cpu = usage.end()?.servers;
        (self.tell)(Stage::Counting);
        let commands = match self.place.monitor()? {
            Some(monitor) => {
                let counted = load.run(self.plan.time.min(COUNTED)).await?;
                Some((monitor.finish()?, counted.done))
            }
            None => None,
        };
        load.end().await?;
        Ok(Figures::of_run(&self.plan, run, commands, server_cpu, load.told()))
    }

    /// Tells each second how far `work` is.
    async fn watched<T>(&self, work: impl Future<Output = T> + Send) -> T {
        let began = tokio::time::Instant::now();
        let ticking = async {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            loop {
                ticks.tick().await;
                (self.tell)(Stage::Measuring(began.elapsed()));
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ticking => unreachable!("ticks for ever"),
        }
    }

    /// A name that no other run has.
    fn name(&self, what: &str) -> String {
        self.place.name(what)
    }
}
