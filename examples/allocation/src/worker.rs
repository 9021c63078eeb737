//! A process that allocates. Each allocation is one lock, one read and one write.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tenure::Locker;
use tenure::compose::AllOf;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use crate::stock::Stock;
use crate::{Args, Error};

/// Time between a read and the write that relies on it.
const THINKS: Duration = Duration::from_millis(5);
/// Longest wait for an item: longer than a stopped holder keeps it.
const WAITS: Duration = Duration::from_secs(10);
/// Allocations under way at a time.
const AT_ONCE: usize = 100;

/// Outcomes of allocations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) allocated: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
}

enum Outcome {
    Allocated,
    /// A later holder was there.
    Refused,
}

struct Worker {
    locks: Locker,
    stock: Stock,
}

/// Allocates at a rate, for as long as it shall.
pub(crate) async fn run(args: &Args) -> Result<Tally, Error> {
    let worker = Arc::new(Worker { locks: locks(args).await?, stock: Stock::connect(args).await? });
    let (items, at_once) = (args.items, Arc::new(Semaphore::new(AT_ONCE)));
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut ticks = interval(Duration::from_secs(1) / args.rate);
    let mut running = JoinSet::new();
    while Instant::now() < end {
        ticks.tick().await;
        let permit = Arc::clone(&at_once).acquire_owned().await?;
        let worker = Arc::clone(&worker);
        running.spawn(async move {
            let outcome = worker.allocate(fastrand::i64(1..=items)).await;
            drop(permit);
            outcome
        });
    }
    let mut tally = Tally::default();
    for outcome in running.join_all().await {
        match outcome {
            Ok(Outcome::Allocated) => tally.allocated += 1,
            Ok(Outcome::Refused) => tally.refused += 1,
            Err(_) => tally.failed += 1,
        }
    }
    Ok(tally)
}

/// The lock in Redis turns the others away at little cost. The one in the table is beside the data,
/// and its fences are those that the data compares.
async fn locks(args: &Args) -> Result<Locker, Error> {
    let redis = args.redis.as_deref().ok_or("no --redis")?;
    let postgres = args.postgres.as_deref().ok_or("no --postgres")?;
    let table = format!("{postgres}{}create=yes&table=allocation_lock", if postgres.contains('?') { "&" } else { "?" });
    let redis = tenure_redis::Options::parse(redis)?.open().await?;
    let table = tenure_sql::postgres::Options::parse(&table)?.open().await?;
    Ok(Locker::builder(AllOf::new(vec![redis, table])?).ttl(args.ttl()).build()?)
}

impl Worker {
    async fn allocate(&self, item: i64) -> Result<Outcome, Error> {
        let guard = self.locks.mutex(format!("stock/{item}")).wait(WAITS).acquire().await?;
        let fence = guard.fence().ok_or("a store without fences")?;
        // Without `guard.run`, which would end the work of a holder that was stopped here. No check could
        // end that of one that is stopped after it.
        let outcome = self.write(item, fence.into()).await;
        let _ = guard.release().await;
        outcome
    }

    async fn write(&self, item: i64, fence: i64) -> Result<Outcome, Error> {
        let Some(units) = self.stock.read(item, fence).await? else { return Ok(Outcome::Refused) };
        sleep(THINKS).await;
        let written = self.stock.write(item, fence, units + 1).await?;
        Ok(if written { Outcome::Allocated } else { Outcome::Refused })
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.allocated += other.allocated;
        self.refused += other.refused;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.allocated, self.refused, self.failed)
    }
}

impl FromStr for Tally {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let mut numbers = line.split_whitespace().map(str::parse);
        let mut next = || numbers.next().ok_or("a worker said less than it should")?.map_err(Error::from);
        Ok(Self { allocated: next()?, refused: next()?, failed: next()? })
    }
}
