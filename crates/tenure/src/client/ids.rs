//! Numbers that rise and that no two processes get, in blocks: one lock acquired for 1,024 ids.
//!
//! A fence is a grant counter times 1,024, plus the index of a handoff within a process. So each
//! grant of a mutex has 1,024 fences that no other grant has. [`Ids`] takes the mutex, keeps the
//! fences of its grant as ids, and releases it in the background.
//!
//! # Which numbers does the job need
//! - *Unique, rising, any gaps*: [`Ids`]. A crash loses at most the rest of a block.
//! - *Unique, one request each, few gaps*: `INCR` of Redis, or a sequence of the database. It needs
//!   no lock. A crash between the number and its use leaves a gap.
//! - *No gaps* (floors of a thread, numbers of invoices): make the number in the transaction that
//!   writes its row. `docs/numbers.md` has the statements, and says when a lock is needed as well.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::acquire::Acquire;
use super::locker::Locker;
use crate::{Error, ErrorKind, Fence, Name};

/// Ttl of the mutex. A process that dies with it keeps the others from new blocks for that long.
const TTL: Duration = Duration::from_secs(3);

impl Locker {
    /// Returns a source of ids. No other source of this name in the same store gives the same id.
    ///
    /// Nothing happens before [`Ids::next`], which also reports a bad name.
    pub fn ids(&self, name: impl AsRef<str>) -> Ids {
        let features = self.store().features();
        let inner = Inner {
            locker: self.clone(),
            name: Name::new(name),
            is_single: !features.cohort,
            next: AtomicU64::new(USED_UP),
            last: Mutex::new(0),
        };
        Ids(Arc::new(inner))
    }
}

/// A source of ids. Clones share its blocks. See the [module](self).
///
/// - No id is given twice, by any process, for as long as the store's fences rise:
///   `GUARANTEES.md` says when a store may break that. A killed process leaves a gap.
/// - The ids of one source rise. Blocks of several sources interleave: an id of one that is made
///   later may be smaller.
/// - The lease does not matter: a block stays its process's after the mutex is lost. No clock is
///   compared.
/// - Ids come from the fences of the name, so use it for nothing but ids, and in one store only.
///
/// An id is above 0 and fits a `BIGINT`. It exceeds 2^53, so send it to JavaScript as a string.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let ids = tenure::Locker::new(tenure::MemoryStore::new()).ids("orders");
/// let (first, second) = (ids.next().await?, ids.next().await?);
/// assert!(0 < first && first < second);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Ids(Arc<Inner>);

struct Inner {
    locker: Locker,
    name: Result<Name, Error>,
    /// A grant of this store has one fence: others count with the same numbers.
    is_single: bool,
    /// The next id of the block.
    next: AtomicU64,
    /// The last id of the latest block. Held while the next block is fetched.
    last: Mutex<u64>,
}

/// In place of the next id: the block has no more.
const USED_UP: u64 = 0;

impl Ids {
    /// Returns the next id.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a store without fences. Else as
    /// [`Acquire::acquire`], with which it waits for a block: as long as another holds the name.
    /// [`Unavailable`](ErrorKind::Unavailable) if the store gives fences below those of this source.
    /// [`Invalid`](ErrorKind::Invalid) in the child of a `fork`: the block is the parent's.
    ///
    /// # Cancel safety
    /// A dropped future loses at most the rest of a block. Nothing stays taken.
    ///
    /// # Round trips
    /// None, and one at the beginning of a block, more if other processes fetch blocks meanwhile.
    /// The release goes in the background. A block has 1,024 ids. It has 1 in a store whose grants have
    /// one number each: ZooKeeper, and Redisson's layout.
    pub async fn next(&self) -> Result<i64, Error> {
        let ids = &*self.0;
        // The child of a fork has the rest of the block as well.
        ids.locker.session().check_process()?;
        if let Some(id) = ids.take() {
            return Ok(id.cast_signed());
        }
        let mut last = ids.last.lock().await;
        // Another task may have fetched a block meanwhile.
        if let Some(id) = ids.take() {
            return Ok(id.cast_signed());
        }
        let (first, block_end) = ids.block().await?;
        if first <= *last {
            let what = format!("the store gave the number {first} after {last}, so it may have given it before");
            return Err(
                Error::unavailable(what).with_hint("it has lost its counter: see whether its data was deleted or restored")
            );
        }
        // No await from here on: a block is entered as a whole or not at all.
        *last = block_end;
        ids.next.store(if first == block_end { USED_UP } else { first + 1 }, Ordering::Relaxed);
        Ok(first.cast_signed())
    }
}

impl Inner {
    /// Takes the next id of the block, if there is one.
    fn take(&self) -> Option<u64> {
        // All changes are of this one number, so they have one order whatever else is ordered.
        // `USED_UP` is no fence, so nothing comes after it.
        let after = |id: u64| Fence::from_token(id).map(|fence| fence.next().map_or(USED_UP, Fence::get));
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()
    }

    /// Fetches a block. Returns its first and its last id.
    async fn block(&self) -> Result<(u64, u64), Error> {
        let store = self.locker.store();
        if !store.features().fence {
            let what = format!("{store} gives no fences, and ids are made of them");
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("use another store or scheme"));
        }
        let Some(first) = self.mutex()?.acquire().await?.fence() else {
            return Err(Error::unavailable(format!("{store} gave a grant without a fence")));
        };
        let last = if self.is_single { first } else { first.last_of_grant() };
        Ok((first.get(), last.get()))
    }

    /// A fixed lease. A pushed hand-over is then a reason to ask, and no grant: a forged one would be
    /// found at a renewal, after its block was used. Nor does it go to another task of this process,
    /// which would get fences of the block.
    fn mutex(&self) -> Result<Acquire, Error> {
        let mutex = self.locker.mutex(self.name.as_ref().map_err(Error::clone)?.as_str()).fixed_lease();
        let usual = mutex.settings.terms.ttl;
        let short = mutex.ttl(TTL).safety_margin(Duration::ZERO);
        // A slow store needs a longer ttl. That of the locker was checked.
        Ok(if short.check().is_ok() { short } else { short.ttl(usual) })
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ids").field("name", &self.0.name).field("next", &self.0.next).finish_non_exhaustive()
    }
}
