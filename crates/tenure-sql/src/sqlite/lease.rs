//! A row of the file as a value, and who may have the name it stands for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Row;
use tenure::{BootTime, Fence, Holder, Owner, Request, Share};

/// What the file says of itself and of one name.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) counter: u64,
    pub(super) boot: String,
    pub(super) machine: String,
    pub(super) standing: Option<Standing>,
}

/// A name that is not free.
#[derive(Debug)]
pub(super) struct Standing {
    /// `None` while the name lingers.
    pub(super) owner: Option<Owner>,
    /// Whose release made it linger.
    pub(super) released_by: Option<Owner>,
    fence: Option<Fence>,
    since: BootTime,
    pub(super) until: BootTime,
}

impl Found {
    /// Reads a reply to `FIND`.
    pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let held = row.get::<_, Option<i64>>(7)?.is_some();
        let standing = if held { Some(Standing::from_row(row, 3)?) } else { None };
        Ok(Self { counter: unsigned(row.get(0)?), boot: row.get(1)?, machine: row.get(2)?, standing })
    }

    /// The counter of the next grant: the next number, or the time where that is ahead.
    ///
    /// The time keeps fences from falling back when the file was deleted or an older one put in its place. A clock that is wrong
    /// beyond the year 2168 is not followed: it would leave no numbers for later.
    pub(super) fn next_counter(&self) -> u64 {
        const START: Duration = Duration::from_secs(1_767_225_600); // 2026-01-01T00:00:00Z
        const SANE: u64 = 1 << 52;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_1970.saturating_sub(START).as_micros()).unwrap_or(0);
        let floor = if micros < SANE { micros } else { 0 };
        self.counter.saturating_add(1).max(floor)
    }
}

impl Standing {
    /// Reads owner, `released_by`, fence, since and until from the columns that begin at `first`.
    pub(super) fn from_row(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        let owner = |at| row.get::<_, Option<Vec<u8>>>(at).map(|bytes| bytes.map(Owner::from_bytes));
        Ok(Self {
            owner: owner(first)?,
            released_by: owner(first + 1)?,
            fence: Fence::from_counter(unsigned(row.get(first + 2)?)),
            since: boot_time(row.get(first + 3)?),
            until: boot_time(row.get(first + 4)?),
        })
    }

    /// Whether the request may have the name although it is taken.
    pub(super) fn gives_way_to(&self, request: &Request) -> bool {
        let repeated = request.repeatable && self.owner.as_ref() == Some(&request.owner);
        let taken_over = request.from.is_some() && self.owner == request.from;
        repeated || taken_over
    }

    pub(super) fn is_owned_by(&self, owner: &Owner) -> bool {
        self.owner.as_ref() == Some(owner)
    }

    /// For people.
    pub(super) fn holder(self, now: BootTime) -> Holder {
        Holder {
            owner: self.owner.or(self.released_by.map(|by| by.lingering())).unwrap_or_else(|| Owner::from_bytes(&b"linger:"[..])),
            share: Share::MUTEX,
            fence: self.fence,
            ttl: Some(self.until.since(now)),
            age: Some(now.since(self.since)),
        }
    }
}

/// A point on the clock as the file keeps it.
pub(super) fn nanos(at: BootTime) -> i64 {
    i64::try_from(at.since_boot().as_nanos()).unwrap_or(i64::MAX)
}

fn boot_time(nanos: i64) -> BootTime {
    BootTime::from_boot(Duration::from_nanos(unsigned(nanos)))
}

/// SQLite counts in signed numbers; a negative one was never written.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
