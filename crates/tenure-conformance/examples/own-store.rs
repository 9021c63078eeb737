//! A store of one's own, in a table whose rows have versions.
//!
//! `cargo test -p tenure-conformance --example own-store` runs every case on it. The example reads a row, and writes it back if its
//! version is still the same. [`tenure::store::cas`] does the rest: shares, queues and fences.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::cas::{Cas, CasStore, Found, Repeat, Write, Wrote};
use tenure::store::record::Record;
use tenure::store::{Busy, Features};
use tenure::{BootTime, Entry, Error, Locker, Name};
use tokio::time::Instant;

/// A row: its version, the number of its last grant, and the text of its record.
type Row = (u64, u64, String);

/// The rows by their names. A database in their place would be asked over a connection, and would have to answer by `end`. Clones are
/// the same table.
#[derive(Clone, Debug, Default)]
struct Table(Arc<Mutex<BTreeMap<Name, Row>>>);

/// Interval at which a waiter polls: the table notifies nobody.
const POLL: Duration = Duration::from_millis(5);

impl Table {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<Name, Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Cas for Table {
    /// The version of the row that was read.
    type Version = u64;

    fn features(&self) -> Features {
        Features::basic().with_fence(true).with_shares(true).with_queue(true).with_cohort(true).with_server_clock(true)
    }

    /// `SELECT version, counter, text`.
    async fn read(&self, names: &[&Name], _: Instant) -> Result<Vec<Found<u64>>, Error> {
        let found = |name: &&Name| {
            let (version, counter, text) = self.rows().get(*name).cloned().unwrap_or_default();
            let record = Record::read(text.as_bytes())?.unwrap_or_default();
            // The clock of the table: one for all who use it.
            Ok(Found::new(record, BootTime::now().since_boot(), counter, version))
        };
        names.iter().map(found).collect()
    }

    /// `UPDATE ... WHERE version = ?`.
    ///
    /// Nothing is awaited in between, so a future that is dropped has made its change or not begun. Over a connection it may have
    /// been made as well: then the error says so by [`Error::maybe_applied`].
    async fn write(&self, writes: &[Write<'_, u64>], _: Repeat, _: Instant) -> Result<Wrote<u64>, Error> {
        let mut rows = self.rows();
        let version = |name: &Name| rows.get(name).map_or(0, |row| row.0);
        if writes.iter().any(|write| version(write.name) != write.found.version) {
            return Ok(Wrote::nothing());
        }
        for write in writes {
            rows.insert(write.name.clone(), (write.found.version + 1, write.counter, write.found.record.to_string()));
        }
        Ok(Wrote::all())
    }

    async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error> {
        let names: Vec<Name> = self.rows().keys().cloned().collect();
        let found = self.read(&names.iter().collect::<Vec<_>>(), end).await?;
        Ok(names.iter().zip(found).filter_map(|(name, found)| found.record.inspect(name, found.now)).collect())
    }

    fn busy(&self, busy: Busy, _: bool) -> Busy {
        busy.with_poll_interval(POLL)
    }

    fn writes_several(&self) -> bool {
        true
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("table:")
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = Locker::new(CasStore::new(Table::default()));
    let guard = locks.mutex("invoice/42").acquire().await?;
    println!("{} is held, fence {:?}", guard.name(), guard.fence());
    drop(guard.release().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tenure::store::Store;
    use tenure_conformance::{Subject, exceptions};

    use super::*;

    struct Fresh(Table);

    #[async_trait]
    impl Subject for Fresh {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(CasStore::new(self.0.clone()))
        }

        // A real table is shared by processes and has a connection: its subject has `process` and `silence` as well.
        fn exceptions(&self) -> Vec<&'static str> {
            use exceptions::{NEVER_SILENT, NO_FOREIGN_LOCKS, NO_PUSH, ONE_PROCESS};
            [ONE_PROCESS, NO_FOREIGN_LOCKS, NEVER_SILENT, NO_PUSH].concat()
        }
    }

    fn fresh() -> Fresh {
        Fresh(Table::default())
    }

    tenure_conformance::conformance!(fresh);
}
