//! Faults of one or two of five Redis servers, and of three.
//!
//! The faults are those of one Redis, and the rows of a majority are its rows. A minority that has one costs nobody a lease.

mod majority;
mod minority;
mod nodes;
mod three;

use super::anywhere;
use super::rows::{Played, Row};
use crate::Item;
use nodes::{OF, PLAIN, on_five};

pub(super) fn items() -> Vec<Item> {
    let on = |row: Row| -> Played { Box::new(on_five(PLAIN, move |stage, _| row(stage))) };
    [minority::items(), majority::items(), three::items(), anywhere::shared(OF, &on)].concat()
}
