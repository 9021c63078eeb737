//! Lock names from the command line.

use std::ffi::{OsStr, OsString};
use std::fmt;

use tenure::Name;

use crate::exit::Failure;

/// Names to be taken: the first, and those that go with it.
#[derive(Debug)]
pub(crate) struct Names(pub(crate) Name, pub(crate) Vec<Name>);

impl Names {
    pub(crate) fn new(name: &OsStr, also: &[OsString]) -> Result<Self, Failure> {
        Ok(Self(lock_name(name)?, also.iter().map(|name| lock_name(name)).collect::<Result<_, _>>()?))
    }
}

impl Names {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.0).chain(&self.1)
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)?;
        self.1.iter().try_for_each(|name| write!(f, ", {name:?}"))
    }
}

/// A lock name from the command line.
pub(crate) fn lock_name(name: &OsStr) -> Result<Name, Failure> {
    let text = name
        .to_str()
        .ok_or_else(|| Failure::usage(format!("the lock name {} is not UTF-8; use another name", name.display())))?;
    Ok(Name::new(text)?)
}
