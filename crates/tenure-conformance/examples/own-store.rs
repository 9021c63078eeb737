//! A store of one's own: rows of a table, each with a version, that change only if nobody else changed them meanwhile.
//!
//! `cargo test -p tenure-conformance --example own-store` runs every case on it. The rules of shares and queues are left to
//! [`tenure::store::record`]. What is left to do is to read a row, and to write it back if its version is still the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tenure::store::record::Record;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Entry, Error, Lease, Locker, Name};

/// The table. A database in its place would be asked over a connection.
#[derive(Debug, Default)]
struct Table {
    /// The version and the text of each row.
    rows: BTreeMap<Name, (u64, String)>,
    /// A sequence, for fences.
    granted: u64,
}

/// Interval at which a waiter polls: the table notifies nobody.
const POLL: Duration = Duration::from_millis(5);

/// Locks in the rows of a table. Clones are the same store.
#[derive(Clone, Debug, Default)]
struct TableStore(Arc<Mutex<Table>>);

impl TableStore {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `SELECT version, text`.
    fn read(&self, name: &Name) -> (u64, String) {
        self.table().rows.get(name).cloned().unwrap_or_default()
    }

    /// `UPDATE ... WHERE version = ?`: whether the row still had that version.
    fn write(&self, name: &Name, version: u64, text: String) -> bool {
        let mut table = self.table();
        let row = table.rows.entry(name.clone()).or_default();
        let unchanged = row.0 == version;
        if unchanged {
            *row = (version + 1, text);
        }
        unchanged
    }

    /// Lets one call change the record of a name.
    ///
    /// Nothing is awaited in between, so a future that is dropped has made its change or not begun. Over a connection it may have
    /// been made as well: then the error says so by [`Error::maybe_applied`].
    fn with<T>(&self, name: &Name, call: impl Fn(&mut Record, Duration, &mut dyn FnMut() -> u64) -> T) -> Result<T, Error> {
        loop {
            let (version, text) = self.read(name);
            let mut record = Record::read(text.as_bytes())?.unwrap_or_default();
            // A number that is not used, because somebody else was faster, is left out.
            let mut next = || {
                let mut table = self.table();
                table.granted += 1;
                table.granted
            };
            // The clock of the table: one for all who use it.
            let answer = call(&mut record, BootTime::now().since_boot(), &mut next);
            if self.write(name, version, record.to_string()) {
                return Ok(answer);
            }
        }
    }
}

#[async_trait]
impl Store for TableStore {
    fn features(&self) -> Features {
        Features::basic().with_fence(true).with_shares(true).with_queue(true).with_cohort(true).with_server_clock(true)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let turn = self.with(&request.name, |record, now, next| record.acquire(request, "", now, next))??;
        Ok(turn.answer.acquired(POLL, None))
    }

    /// Takes no two names in one step. The caller takes one after the other.
    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let renew = |lease: &Lease| self.with(&lease.name, |record, now, _| record.renew(&lease.owner, lease.ttl, now));
        leases.iter().map(renew).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let turn = self.with(&lease.name, |record, now, next| record.release(&lease.owner, linger, now, next))?;
        Ok(turn.answer)
    }

    async fn watch(&self, _: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(stream::pending().boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let names = name.map_or_else(|| self.table().rows.keys().cloned().collect(), |name| vec![name.clone()]);
        let entry = |name: &Name| self.with(name, |record, now, _| record.inspect(name, now));
        let entries: Result<Vec<Option<Entry>>, Error> = names.iter().map(entry).collect();
        Ok(entries?.into_iter().flatten().collect())
    }
}

impl fmt::Display for TableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("table:")
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = Locker::new(TableStore::default());
    let guard = locks.mutex("invoice/42").acquire().await?;
    println!("{} is held, fence {:?}", guard.name(), guard.fence());
    drop(guard.release().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tenure_conformance::{Subject, exceptions};

    use super::*;

    struct Fresh(TableStore);

    #[async_trait]
    impl Subject for Fresh {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.0.clone())
        }

        // A real table is shared by processes and has a connection: its subject has `process` and `silence` as well.
        fn exceptions(&self) -> Vec<&'static str> {
            use exceptions::{NEVER_SILENT, NO_FOREIGN_LOCKS, NO_PUSH, ONE_BY_ONE, ONE_PROCESS};
            [ONE_PROCESS, NO_FOREIGN_LOCKS, NEVER_SILENT, NO_PUSH, ONE_BY_ONE].concat()
        }
    }

    fn fresh() -> Fresh {
        Fresh(TableStore::default())
    }

    tenure_conformance::conformance!(fresh);
}
