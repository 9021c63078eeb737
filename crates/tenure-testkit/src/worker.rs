//! A holder in a process of its own. It takes orders on its standard input, and reports on its
//! standard output.
//!
//! The controller's end is a [`Worker`]; [`entry`] becomes the process itself. Acquisitions have
//! numbers, so one process can ask for many names at once. The process reports what it sees as
//! events of the [history](crate::history), each with the time at which it saw it.

mod acquisition;
mod clock;
mod controller;
mod load;
mod probe;
mod process;
mod program;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::Store;
use tenure::store::all::AllOf;
use tenure::{Error, Lease, Locker, MemoryStore, Share, parse_duration};
use tenure_stores::Options;

use crate::history::{At, What};

pub use self::controller::Worker;
pub use self::load::{Load, Tally, carry};
pub use self::probe::{Call, Deed, Moment, Probe};
pub use self::process::for_long;
pub use self::program::{Program, entry, role, serve};

use self::clock::SkewedClock;
use self::probe::Probed;
use self::process::Process;

/// Orders to a worker, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Acquire { acquisition: u32, name: String, terms: Terms },
    Adopt { acquisition: u32, lease: Lease },
    To { acquisition: u32, order: ClaimOrder },
    ByHand { what: ByHand, name: String, token: String },
    Visits { name: String, dir: PathBuf, times: u64 },
    Load(Load),
    Arm(Probe),
    Block { ms: u64 },
    Jump { ms: u64 },
    WallClock,
    Settle,
}

/// Call that a worker makes with an owner token alone, without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ByHand {
    /// Renews it for ten seconds.
    Renew,
    /// Gives it up.
    Release,
}

/// Orders about one acquisition.
#[derive(Debug, Serialize, Deserialize)]
enum ClaimOrder {
    /// Give up what is held, or stop asking for it.
    Drop,
    HandOver,
    Extend {
        ttl: Duration,
    },
    State,
    Release,
    /// Read and write the resource without asking the guard.
    Work {
        who: String,
        register: PathBuf,
    },
    /// Read and write the resource for as long as the guard allows.
    Run {
        who: String,
        register: PathBuf,
    },
    Rest,
}

/// Messages of a worker, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Ready,
    Event { at: At, what: What },
    Lease(Lease),
    State(String),
    Answer(String),
    Tally(Tally),
    Done,
}

/// How a worker asks for a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Terms {
    ttl: Duration,
    share: Share,
    wait: Option<Duration>,
    poll_interval: Option<Duration>,
    fixed: bool,
    min_hold: Duration,
    max_hold: Option<Duration>,
    token: Option<String>,
}

impl Terms {
    /// The mutex for `ttl`, renewed, waiting as long as it takes.
    pub fn new(ttl: Duration) -> Self {
        let (min_hold, share) = (Duration::ZERO, Share::MUTEX);
        Self { ttl, share, wait: None, poll_interval: None, fixed: false, min_hold, max_hold: None, token: None }
    }

    /// Asks for another kind of lock.
    #[must_use]
    pub fn share(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// Gives up after this long.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Polls this often, instead of as often as the store says.
    #[must_use]
    pub fn poll_interval(self, poll_interval: Duration) -> Self {
        Self { poll_interval: Some(poll_interval), ..self }
    }

    /// Is not renewed.
    #[must_use]
    pub fn fixed(self) -> Self {
        Self { fixed: true, ..self }
    }

    /// Keeps the name taken for at least this long.
    #[must_use]
    pub fn min_hold(self, min: Duration) -> Self {
        Self { min_hold: min, ..self }
    }

    /// Holds it for this long at most.
    #[must_use]
    pub fn max_hold(self, max: Duration) -> Self {
        Self { max_hold: Some(max), ..self }
    }

    /// Uses this value as the owner.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self }
    }
}

/// Becomes a worker on the store at `url`, until standard input ends: `memory:`, `sqlite:PATH[?timeout=SPAN]`, `postgres:`,
/// `mysql:`, `memcached:`, `zookeeper:`, one of Redis,
/// or `all:URL URL` for all of several.
///
/// If the store cannot be opened, the worker reports that as the failure of acquisition 0.
///
/// A panic anywhere in the process is reported as such a failure and ends the process. A runtime
/// would not report the panic of a task.
async fn run(url: &str) {
    process::dies_of_panics();
    let clock = SkewedClock::default();
    let (store, probes) = match url {
        "memory:" => Probed::new(MemoryStore::with_clock(clock.clone())),
        _ => match open(url).await {
            Ok(opened) => opened,
            Err(error) => return process::failed(0, &error),
        },
    };
    let locks = Locker::builder(store).clock(clock.clone()).build().expect("the defaults are sound");
    Process::new(locks, probes, clock).serve().await;
}

async fn open(url: &str) -> Result<(Probed, probe::Probes), Error> {
    let Some(urls) = url.strip_prefix("all:") else { return Ok(Probed::new(open_one(url).await?)) };
    let mut stores = Vec::new();
    for url in urls.split(' ') {
        stores.push(open_one(url).await?);
    }
    Ok(Probed::new(AllOf::new(stores)?))
}

async fn open_one(url: &str) -> Result<Arc<dyn Store>, Error> {
    let Some(file) = url.strip_prefix("sqlite:") else { return Options::parse(url)?.open().await };
    let (path, timeout) = file.split_once("?timeout=").map_or((file, None), |(path, timeout)| (path, Some(timeout)));
    let store = tenure_sql::sqlite::open(path)?;
    Ok(Arc::new(match timeout {
        Some(timeout) => store.with_operation_timeout(parse_duration(timeout)?),
        None => store,
    }))
}
