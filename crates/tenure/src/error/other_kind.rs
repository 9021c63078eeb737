//! The error of a name that is in use as another kind of lock.

use std::fmt;

use super::{Error, ErrorKind};
use crate::{Kind, Name};

impl Error {
    /// Makes an [`ErrorKind::Mismatch`] of a name that is in use as another kind of lock.
    #[must_use]
    pub fn other_kind(name: &Name, in_use_as: impl fmt::Display, asked: Kind) -> Self {
        let what = format!("{name:?} is in use as {in_use_as}, and cannot be {asked} as well");
        Self::new(ErrorKind::Mismatch, what).with_hint("use one kind of lock for a name")
    }
}
