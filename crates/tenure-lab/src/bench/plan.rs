//! Plan of a measurement, and how far that is.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure::Error;

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
    pub(super) fn held(&self) -> Duration {
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
