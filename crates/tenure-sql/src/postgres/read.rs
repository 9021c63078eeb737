//! Columns of an answer.

use std::time::Duration;

use tenure::Error;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::table::failure::unexpected;
use crate::table::{self, Found, Seen, Tried};

pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Error> {
    row.try_get(at).map_err(unexpected)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Reads the row of a statement that answers with a number, or with what it found.
pub(super) fn tried(rows: &[Row]) -> Result<Tried<i64>, Error> {
    let row = rows.first().ok_or_else(|| unexpected("it has no row"))?;
    Ok(match column(row, 0)? {
        Some(done) => Tried::Done(done),
        None => Tried::Other(Some(found(row)?)),
    })
}

pub(super) fn found(row: &Row) -> Result<Found, Error> {
    let number = |at| column(row, at).map(unsigned);
    let name: Option<String> = column(row, 3)?;
    let found = match &name {
        None => None,
        Some(_) => Some(table::Row {
            version: number(4)?,
            fence: number(5)?,
            owner: column(row, 6)?,
            since: number(7)?,
            until: number(8)?,
            record: column(row, 9)?,
        }),
    };
    Seen { name, row: found }.found(Duration::from_micros(number(1)?), number(2)?)
}
