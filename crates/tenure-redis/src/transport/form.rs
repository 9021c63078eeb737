//! How a server is asked to run a script.

use redis::RedisError;

use crate::transport::failure::{is_no_function, is_noscript, is_unknown_function};

/// How a script is named to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As a function of the library, where it is one; else by its digest.
    Function,
    /// The same, behind a command that has the server keep the library.
    Loaded,
    /// By its digest: short, and unknown to a server that has restarted or was flushed.
    Digest,
    /// By its text, which the server then knows by its digest as well.
    Text,
}

impl Form {
    /// The form for another try, where `error` says that this one does not do.
    pub(crate) fn instead(self, error: &RedisError) -> Option<Self> {
        match self {
            Self::Function if is_unknown_function(error) => Some(Self::Loaded),
            Self::Function | Self::Loaded if is_no_function(error) => Some(Self::Digest),
            Self::Function | Self::Loaded | Self::Digest if is_noscript(error) => Some(Self::Text),
            _ => None,
        }
    }
}
