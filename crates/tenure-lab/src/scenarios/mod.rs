//! Faults done to tenure's own stores.

use crate::Item;

/// Every scenario.
pub fn items() -> Vec<Item> {
    Vec::new()
}
