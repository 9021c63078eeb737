//! The guarded database: what is left of each item, and the orders.
//!
//! A buyer reads what is left, pays, and writes one less. `fence` is `None` for a lock without one.

use std::path::Path;
use std::time::SystemTime;

use jobs::{Error, open_database, touch};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

const CREATE: &str = "
CREATE TABLE stock (item INTEGER PRIMARY KEY, left INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
-- Each order is for one unit of an item: the one that was the last of those left.
-- From when to when, in Unix seconds, and whether the buyer's lock was valid by its own ttl.
CREATE TABLE orders (
  seq INTEGER PRIMARY KEY, item INTEGER NOT NULL, unit INTEGER NOT NULL,
  began REAL NOT NULL, ended REAL NOT NULL, in_time INTEGER NOT NULL);
-- Writes of stale holders, which changed nothing.
CREATE TABLE refused (item INTEGER NOT NULL)";

/// Leaves the fence, and reads. From then on no earlier holder can write.
const READ: &str = "UPDATE stock SET fence = ?2 WHERE item = ?1 AND fence <= ?2 RETURNING left";
const WRITE: &str = "UPDATE stock SET left = ?3 - 1 WHERE item = ?1 AND fence = ?2";
const READ_UNFENCED: &str = "SELECT left FROM stock WHERE item = ?1";
const WRITE_UNFENCED: &str = "UPDATE stock SET left = ?2 - 1 WHERE item = ?1";
/// One step that reads and writes. It needs no lock.
const SELL: &str = "UPDATE stock SET left = left - 1 WHERE item = ?1 AND left > 0 RETURNING left + 1";
const ORDER: &str = "INSERT INTO orders (item, unit, began, ended, in_time) VALUES (?1, ?2, ?3, ?4, ?5)";

/// Orders; units that were sold; orders that began before another of the same item had ended, each of
/// a valid lock; refused writes.
const AUDIT: &str = "
SELECT count(*), (SELECT count(DISTINCT item * 1000000 + unit) FROM orders),
  (SELECT count(*) FROM orders AS one WHERE in_time AND EXISTS (
     SELECT 1 FROM orders AS other
     WHERE other.item = one.item AND other.seq < one.seq AND other.in_time AND other.ended > one.began)),
  (SELECT count(*) FROM refused)
FROM orders";

pub(crate) struct Shop(Connection);

/// A buyer's hold of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// In Unix seconds.
    pub(crate) began: f64,
    /// Whether the lock is valid by its own ttl.
    pub(crate) in_time: bool,
}

/// Unix seconds. All buyers are on one machine.
pub(crate) fn unix() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// Outcome of a sale.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Audit {
    /// Orders.
    pub(crate) sold: i64,
    /// Orders of units that were sold before.
    pub(crate) twice: i64,
    /// Orders by buyers who held the same lock at once, each within its own ttl.
    pub(crate) at_once: i64,
    /// Units that nobody could buy.
    pub(crate) dead: i64,
    /// Writes of stale holders that the fence refused.
    pub(crate) refused: i64,
}

impl Shop {
    pub(crate) fn create(path: &Path, items: i64, units: i64) -> Result<Self, Error> {
        let shop = Self::open(path)?;
        shop.0.execute_batch(CREATE)?;
        for item in 1..=items {
            shop.0.execute("INSERT INTO stock (item, left) VALUES (?1, ?2)", [item, units])?;
        }
        Ok(shop)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(open_database(path)?))
    }

    /// Units of an item that are left; `None` if a later holder was here.
    pub(crate) fn read(&self, item: i64, fence: Option<i64>) -> Result<Option<i64>, Error> {
        Ok(match fence {
            Some(fence) => self.0.query_row(READ, [item, fence], |row| row.get(0)).optional()?,
            None => Some(self.0.query_row(READ_UNFENCED, [item], |row| row.get(0))?),
        })
    }

    /// Sells the last of the `left` units. Returns false if a later holder was here.
    pub(crate) fn write(&mut self, item: i64, fence: Option<i64>, left: i64, held: &Span) -> Result<bool, Error> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let rows = match fence {
            Some(fence) => transaction.execute(WRITE, [item, fence, left])?,
            None => transaction.execute(WRITE_UNFENCED, [item, left])?,
        };
        if rows == 1 {
            transaction.execute(ORDER, params![item, left, held.began, unix(), held.in_time])?;
            transaction.commit()?;
        }
        Ok(rows == 1)
    }

    /// Reads and writes in one step. Returns false if nothing is left.
    pub(crate) fn sell(&mut self, item: i64) -> Result<bool, Error> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let unit: Option<i64> = transaction.query_row(SELL, [item], |row| row.get(0)).optional()?;
        if let Some(unit) = unit {
            transaction.execute(ORDER, params![item, unit, unix(), unix(), true])?;
            transaction.commit()?;
        }
        Ok(unit.is_some())
    }

    pub(crate) fn note_refused(&self, item: i64) -> Result<(), Error> {
        self.0.execute("INSERT INTO refused (item) VALUES (?1)", [item])?;
        Ok(())
    }

    /// Items that are not sold out.
    pub(crate) fn open_items(&self) -> Result<Vec<i64>, Error> {
        let mut statement = self.0.prepare_cached("SELECT item FROM stock WHERE left > 0")?;
        let items = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        Ok(items)
    }

    /// Writes, as a buyer would.
    pub(crate) fn touch(&self) -> Result<(), Error> {
        touch(&self.0, "UPDATE stock SET fence = fence WHERE item = 1")
    }

    pub(crate) fn orders(&self) -> Result<i64, Error> {
        Ok(self.0.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?)
    }

    pub(crate) fn audit(&self, stock: i64) -> Result<Audit, Error> {
        let audit = |row: &rusqlite::Row<'_>| {
            let (sold, units): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(Audit { sold, twice: sold - units, at_once: row.get(2)?, dead: stock - units, refused: row.get(3)? })
        };
        Ok(self.0.query_row(AUDIT, [], audit)?)
    }
}
