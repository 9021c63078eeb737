//! The state of the file and of one name, and its changes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, Row};
use tenure::store::record::{Held, Record, Waiter};
use tenure::{Owner, Share};

use super::machine::LastUse;
use super::statements::{DROP_ENTRY, DROP_HELD, ENTRIES, FIND, PUT_ENTRY, PUT_HELD};

/// The state of the file and of one name.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) counter: u64,
    /// Of its last use.
    pub(super) last_use: LastUse,
    /// In the order of their owners.
    holders: Vec<Held>,
    /// In the order of their numbers.
    waiters: Vec<Waiter>,
}

impl Found {
    pub(super) fn read(conn: &Connection, name: &str) -> rusqlite::Result<Self> {
        let mut find = conn.prepare_cached(FIND)?;
        let mut rows = find.query([name])?;
        let first = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        let last_use = LastUse { boot: first.get(1)?, machine: first.get(2)?, booted: first.get(3)?, written: first.get(4)? };
        let (counter, queued) = (unsigned(first.get(0)?), first.get(5)?);
        let mut next = first.get::<_, Option<i64>>(9)?.is_some().then_some(first);
        while let Some(row) = next {
            holders.push(held(row, 6)?);
            next = rows.next()?;
        }
        // They come in this order. An ORDER BY would cost as much as the rest of the statement.
        holders.sort_unstable_by(|a, b| a.owner.cmp(&b.owner));
        if queued {
            let mut entries = conn.prepare_cached(ENTRIES)?;
            waiters = entries.query_map([name], waiter)?.collect::<rusqlite::Result<_>>()?;
        }
        Ok(Self { counter, last_use, holders, waiters })
    }

    /// Drops all holders and waiters.
    pub(super) fn forget(self) -> Self {
        Self { holders: Vec::new(), waiters: Vec::new(), ..self }
    }

    pub(super) fn is_free(&self, now: Duration) -> bool {
        self.holders.iter().all(|held| held.until <= now) && self.waiters.iter().all(|waiter| waiter.until <= now)
    }

    /// Whether the owner has a queue entry with a recent heartbeat.
    pub(super) fn is_fresh(&self, owner: &Owner, now: Duration) -> bool {
        let entry = self.waiters.iter().find(|waiter| waiter.owner == *owner);
        entry.is_some_and(|entry| entry.until >= now + entry.entry_ttl / 8 * 7)
    }

    pub(super) fn record(&self) -> Record {
        Record::new(self.holders.iter().cloned(), self.waiters.iter().cloned())
    }

    /// Writes the changes.
    pub(super) fn write(&self, conn: &Connection, name: &str, now: &Record) -> rusqlite::Result<()> {
        let holders = Change::between(&self.holders, now.holders(), |held| &held.owner);
        let waiters = Change::between(&self.waiters, now.waiters(), |waiter| waiter.number);
        for Held { owner, .. } in holders.dropped {
            conn.prepare_cached(DROP_HELD)?.execute((name, owner.as_bytes()))?;
        }
        for Held { owner, share, counter, since, until, lingers, .. } in holders.put {
            let (counter, since, until) = (signed(*counter), nanos(*since), nanos(*until));
            let row = (name, owner.as_bytes(), share.weight(), share.capacity(), counter, since, until, lingers);
            conn.prepare_cached(PUT_HELD)?.execute(row)?;
        }
        for Waiter { number, .. } in waiters.dropped {
            conn.prepare_cached(DROP_ENTRY)?.execute((name, signed(*number)))?;
        }
        for Waiter { number, owner, share, entry_ttl, handoff_ttl, until, wake, .. } in waiters.put {
            let (number, entry_ttl, handoff_ttl, until) =
                (signed(*number), nanos(*entry_ttl), nanos(*handoff_ttl), nanos(*until));
            let row = (name, number, owner.as_bytes(), share.weight(), share.capacity(), entry_ttl, handoff_ttl, until, wake);
            conn.prepare_cached(PUT_ENTRY)?.execute(row)?;
        }
        Ok(())
    }

    /// The counter of the grant after `last`: the next number, and for the first of a call the time
    /// where that is ahead.
    ///
    /// The time keeps fences rising after the file was deleted or an older one put in its place. A
    /// clock beyond the year 2168 is ignored: it would leave no numbers for later.
    pub(super) fn next_counter(&self, last: u64) -> u64 {
        const START: Duration = Duration::from_secs(1_767_225_600); // 2026-01-01T00:00:00Z
        const SANE: u64 = 1 << 52;
        if last != self.counter {
            return last + 1;
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_1970.saturating_sub(START).as_micros()).unwrap_or(0);
        let floor = if micros < SANE { micros } else { 0 };
        self.counter.saturating_add(1).max(floor)
    }
}

/// Changes of the rows of a table.
struct Change<'a, T> {
    dropped: Vec<&'a T>,
    put: Vec<&'a T>,
}

impl<'a, T: PartialEq> Change<'a, T> {
    /// Both sides are in the order of `key`, which no two of one side share.
    fn between<K: Ord>(before: &'a [T], now: impl Iterator<Item = &'a T>, key: impl Fn(&'a T) -> K) -> Self {
        let (mut dropped, mut put) = (Vec::new(), Vec::new());
        let mut before = before.iter().peekable();
        for new in now {
            while let Some(old) = before.next_if(|old| key(old) < key(new)) {
                dropped.push(old);
            }
            if before.next_if(|old| key(old) == key(new)) != Some(new) {
                put.push(new);
            }
        }
        dropped.extend(before);
        Self { dropped, put }
    }
}

/// Reads a holder from the columns that begin at `first`.
pub(super) fn held(row: &Row<'_>, first: usize) -> rusqlite::Result<Held> {
    Ok(Held::new(
        owner(row, first)?,
        share(row, first + 1)?,
        unsigned(row.get(first + 3)?),
        span(row.get(first + 4)?),
        span(row.get(first + 5)?),
    )
    .with_lingers(row.get(first + 6)?))
}

fn waiter(row: &Row<'_>) -> rusqlite::Result<Waiter> {
    Ok(Waiter::new(unsigned(row.get(0)?), owner(row, 1)?, share(row, 2)?, span(row.get(6)?))
        .with_entry_ttl(span(row.get(4)?))
        .with_handoff_ttl(span(row.get(5)?))
        .with_wake(row.get(7)?))
}

pub(super) fn owner(row: &Row<'_>, at: usize) -> rusqlite::Result<Owner> {
    Ok(Owner::from_bytes(row.get_ref(at)?.as_blob()?))
}

pub(super) fn share(row: &Row<'_>, at: usize) -> rusqlite::Result<Share> {
    let (weight, capacity) = (row.get(at)?, row.get(at + 1)?);
    match (weight, capacity) {
        (1, u32::MAX) => Ok(Share::READ),
        (u32::MAX, u32::MAX) => Ok(Share::WRITE),
        _ => Share::permits(weight, capacity)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Integer, error.into())),
    }
}

/// A duration, or a time of the boot-time clock, as the file keeps it.
pub(super) fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

fn span(nanos: i64) -> Duration {
    Duration::from_nanos(unsigned(nanos))
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// SQLite counts in signed numbers; a negative one was never written.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_written_and_nothing_else() {
        let between = |before: &[(u8, u8)], now: &[(u8, u8)]| {
            let change = Change::between(before, now.iter(), |row| row.0);
            let copied = |rows: Vec<&(u8, u8)>| rows.into_iter().copied().collect::<Vec<_>>();
            (copied(change.dropped), copied(change.put))
        };
        assert_eq!(between(&[], &[]), (vec![], vec![]));
        assert_eq!(between(&[(1, 0), (2, 0)], &[(1, 0), (2, 0)]), (vec![], vec![]));
        assert_eq!(between(&[(1, 0)], &[]), (vec![(1, 0)], vec![]));
        assert_eq!(between(&[], &[(1, 0)]), (vec![], vec![(1, 0)]));
        let (before, now) = ([(1, 0), (3, 0), (4, 0), (6, 0)], [(2, 0), (3, 1), (4, 0), (7, 0)]);
        assert_eq!(between(&before, &now), (vec![(1, 0), (6, 0)], vec![(2, 0), (3, 1), (7, 0)]));
    }
}
