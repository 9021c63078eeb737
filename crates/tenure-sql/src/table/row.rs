//! The row of a name: as it was read, and as it is to be written.

use std::time::Duration;

use tenure::store::cas;
use tenure::store::record::{Held, Record};
use tenure::{Entry, Error, ErrorKind, Name, Owner, Share};

/// A row as the table has it. Points in time are microseconds since 1970.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) version: u64,
    pub(crate) fence: u64,
    pub(crate) owner: Option<String>,
    pub(crate) since: u64,
    pub(crate) until: u64,
    pub(crate) record: Option<String>,
}

/// The state of a name, as a statement found it. The database's clock counts since 1970.
pub(crate) type Found = cas::Found<Seen>;

/// The row of a name, if there is one.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The name, if there is a row.
    pub(crate) name: Option<String>,
    pub(crate) row: Option<Row>,
}

/// A row to write.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) name: &'a Name,
    /// The version that was read; 0 for no row.
    pub(crate) was: u64,
    pub(crate) version: u64,
    pub(crate) fence: u64,
    pub(crate) columns: Columns,
}

/// The columns that say who holds and who waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) owner: Option<String>,
    pub(crate) since: u64,
    pub(crate) until: u64,
    pub(crate) record: Option<String>,
}

impl Columns {
    /// `fence` is the largest counter of the name, which the holder has if it is in columns.
    fn of(record: &Record, fence: u64, now: Duration) -> Self {
        let mut holders = record.holders();
        let (first, second, waiter) = (holders.next(), holders.next(), record.waiters().next());
        if let (None, None) = (first, waiter) {
            return Self { owner: None, since: 0, until: micros(now), record: None };
        }
        if let (Some(held), None, None) = (first, second, waiter)
            && held.share == Share::MUTEX
            && !held.lingers
            && held.counter == fence
        {
            let (since, until) = (micros(held.since), micros(held.until));
            return Self { owner: Some(held.owner.to_string()), since, until, record: None };
        }
        let until = micros(record.last_end().unwrap_or(now));
        Self { owner: None, since: 0, until, record: Some(record.to_string()) }
    }
}

impl Seen {
    /// `floor`: the smallest counter that the next grant may have. It is above the database's clock as well, so that
    /// fences rise after the table was lost.
    pub(crate) fn found(self, now: Duration, floor: u64) -> Result<Found, Error> {
        let (record, counter) = (self.record()?, self.row.as_ref().map_or(0, |row| row.fence));
        let mut found = Found::new(record, now, counter, self);
        found.floor = found.floor.max(Some(floor));
        Ok(found)
    }

    fn record(&self) -> Result<Record, Error> {
        let Some(row) = &self.row else { return Ok(Record::default()) };
        if let Some(record) = &row.record {
            return Record::read(record.as_bytes())?.ok_or_else(|| odd("its record is none"));
        }
        let Some(owner) = &row.owner else { return Ok(Record::default()) };
        let owner: Owner = owner.parse().map_err(|_| odd("its owner is none"))?;
        Ok(Record::new([Held::new(owner, Share::MUTEX, row.fence, span(row.since), span(row.until))], []))
    }

    fn is_as(&self, columns: &Columns, counter: u64) -> bool {
        let is_free = columns.owner.is_none() && columns.record.is_none();
        let Some(row) = &self.row else { return is_free };
        row.fence == counter
            && row.owner == columns.owner
            && row.record == columns.record
            && (is_free || row.since == columns.since && row.until == columns.until)
    }
}

impl<'a> Write<'a> {
    /// The row that says what the new record does; `None` if the present one does.
    pub(crate) fn of(write: &cas::Write<'a, Seen>) -> Option<Self> {
        let cas::Write { name, found, counter, .. } = *write;
        let columns = Columns::of(&found.record, counter, found.now);
        if found.version.is_as(&columns, counter) {
            return None;
        }
        let was = found.version.row.as_ref().map_or(0, |row| row.version);
        // A row that was swept and made again has a version that no row of its name had.
        let version = if was == 0 { micros(found.now) } else { was + 1 };
        Some(Write { name, was, version, fence: counter, columns })
    }
}

pub(crate) fn entry(found: &Found) -> Result<Option<Entry>, Error> {
    let Some(name) = &found.version.name else { return Ok(None) };
    Ok(found.record.inspect(&Name::new(name)?, found.now))
}

fn odd(why: &str) -> Error {
    Error::new(ErrorKind::Mismatch, format!("the row of the name was not written by tenure: {why}"))
        .with_hint("give tenure a table of its own")
}

pub(crate) fn micros(span: Duration) -> u64 {
    // The largest bigint stands for a lease without an end.
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs())
}

fn span(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
