//! Columns of an answer.

use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::FromValue;
use tenure::Error;

use crate::table::failure::unexpected;
use crate::table::{self, Found, Seen};

pub(super) fn column<T: FromValue>(row: &Row, at: usize) -> Result<T, Error> {
    let read = row.get_opt(at).ok_or_else(|| unexpected("it has too few columns"))?;
    read.map_err(unexpected)
}

fn text(row: &Row, at: usize) -> Result<Option<String>, Error> {
    let bytes: Option<Vec<u8>> = column(row, at)?;
    bytes.map(|bytes| String::from_utf8(bytes).map_err(unexpected)).transpose()
}

pub(super) fn found(row: &Row) -> Result<Found, Error> {
    let name = text(row, 2)?;
    let found = match &name {
        None => None,
        Some(_) => Some(table::Row {
            version: column(row, 3)?,
            fence: column(row, 4)?,
            owner: text(row, 5)?,
            since: column(row, 6)?,
            until: column(row, 7)?,
            record: text(row, 8)?,
        }),
    };
    Seen { name, row: found }.found(Duration::from_micros(column(row, 0)?), column(row, 1)?)
}
