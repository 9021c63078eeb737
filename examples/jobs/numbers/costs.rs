//! Numbers a second of one process, for each way to make them.

use std::hint::black_box;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jobs::{Error, Place, Table, open_database, open_locks};
use rusqlite::{Connection, TransactionBehavior, params};
use tenure::{Locker, MemoryStore};
use tenure_sql::fenced::postgres::{NEXT, NUMBERS};

use crate::floors::post;

/// Time for which each is measured.
const TIME: Duration = Duration::from_secs(1);
/// Numbers between two looks at the clock, for the quick ones.
const BATCH: u32 = 10_000;

/// Measures all that there is, and prints it. Returns the ids a second of the store.
pub(crate) async fn measure(place: &Place, store: &str, prefix: &str) -> Result<f64, Error> {
    let mut table = Table::new(&["one process", "numbers a second", "requests for a number", "gaps"]);
    let mut row = |name: &str, rate: f64, requests: &str, gaps: &str| {
        table.row([name, &format!("{rate:.0}"), requests, gaps].map(str::to_owned));
    };
    let counter = AtomicI64::new(0);
    let add = rate(BATCH, async || Ok(black_box(counter.fetch_add(1, Ordering::Relaxed)))).await?;
    row("atomic add: one process, no store", add, "0", "yes");
    let ids = Locker::new(MemoryStore::new()).ids("ids");
    row("ids, a store in memory", rate(BATCH, async || Ok(ids.next().await?)).await?, "1/1024", "yes");
    let locks = open_locks(store, Duration::from_secs(3)).await?;
    let ids = locks.ids(format!("{prefix}ids"));
    let name = match (place.redis(), place.url()) {
        (Some(_), _) => "ids, Redis",
        (None, Some(_)) => "ids, the store",
        (None, None) => "ids, an SQLite file",
    };
    let first = ids.next().await?;
    let in_blocks = ids.next().await? == first + 1;
    let of_store = rate(if in_blocks { BATCH } else { 1 }, async || Ok(ids.next().await?)).await?;
    row(name, of_store, if in_blocks { "1/1024" } else { "1" }, "yes");
    if let Some(url) = place.redis() {
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let key = format!("{prefix}incr");
        let mut incr = redis::cmd("INCR");
        incr.arg(key);
        row("INCR", rate(1, async || Ok(incr.query_async::<i64>(&mut connection).await?)).await?, "1", "after a crash");
    }
    let mut database = open_database(&place.file("costs.db"))?;
    database.execute_batch(NUMBERS)?;
    database.execute_batch("CREATE TABLE posts (floor INTEGER PRIMARY KEY, author INTEGER NOT NULL)")?;
    row("UNIQUE, and the largest + 1", rate(1, async || largest(&database)).await?, "1, again if taken", "no");
    database.execute_batch("DROP TABLE posts; CREATE TABLE posts (floor INTEGER NOT NULL, author INTEGER NOT NULL)")?;
    row("a counter in the transaction", rate(1, async || counted(&mut database)).await?, "1 transaction", "no");
    let locked = async || post(&locks, &format!("{prefix}posts"), &mut database, 0).await?.ok_or_else(|| "stale".into());
    row("the same under a lock, with its fence", rate(1, locked).await?, "2, and 1 transaction", "no");
    locks.flush_releases().await;
    table.print();
    Ok(of_store)
}

async fn rate(batch: u32, mut number: impl AsyncFnMut() -> Result<i64, Error>) -> Result<f64, Error> {
    let (began, mut numbers) = (Instant::now(), 0);
    while began.elapsed() < TIME {
        for _ in 0..batch {
            black_box(number().await?);
        }
        numbers += batch;
    }
    Ok(f64::from(numbers) / began.elapsed().as_secs_f64())
}

fn largest(database: &Connection) -> Result<i64, Error> {
    let insert = "INSERT INTO posts SELECT coalesce(max(floor), 0) + 1, 0 FROM posts RETURNING floor";
    Ok(database.prepare_cached(insert)?.query_row([], |row| row.get(0))?)
}

fn counted(database: &mut Connection) -> Result<i64, Error> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let floor: i64 = transaction.query_row(NEXT, params!["plain", 0], |row| row.get(0))?;
    transaction.execute("INSERT INTO posts (floor, author) VALUES (?1, 0)", [floor])?;
    transaction.commit()?;
    Ok(floor)
}
