//! A password, or the file that has it.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use tenure::store::{Credentials, Login};

use crate::exit::{CONFIG, Failure};

/// A text that does not show itself.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A password, or its file, which is read for each login.
#[derive(Debug)]
pub(crate) enum Password {
    Here(Secret),
    File { path: PathBuf, named_by: &'static str },
}

impl Password {
    /// Refuses a file that cannot be read. An empty file is not refused, because somebody may be writing it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Here(_) => Ok(()),
            Self::File { path, named_by } => {
                let unread =
                    |error| format!("the password file {} of {named_by} cannot be read, {error}; check the path", path.display());
                fs::read_to_string(path).map(drop).map_err(|error| Failure::new(CONFIG, unread(error)))
            }
        }
    }

    pub(crate) fn credentials(&self) -> Credentials {
        match self {
            Self::Here(Secret(password)) => Login::of_password(password).into(),
            Self::File { path, .. } => Credentials::password_file(path),
        }
    }
}

/// The same file after a change of the directory.
pub(super) fn absolute(path: impl Into<PathBuf>) -> PathBuf {
    let path = path.into();
    std::path::absolute(&path).unwrap_or(path)
}
