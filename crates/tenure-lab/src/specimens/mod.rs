//! Locks as articles and libraries write them, each under a fault that breaks it.

use crate::Item;

/// Every specimen.
pub fn items() -> Vec<Item> {
    Vec::new()
}
