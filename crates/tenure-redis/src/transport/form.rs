//! The form in which a script is called.

use redis::RedisError;

use crate::transport::failure::{is_no_function, is_noscript, is_unknown_function};

/// A way to call a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As a function of the library. By its digest if it is not in the library.
    Function,
    /// The same, after a command that loads the library.
    Loaded,
    /// By its digest: short, but unknown to a server that has restarted or was flushed.
    Digest,
    /// By its text. The server then knows the digest as well.
    Text,
}

impl Form {
    /// The form for another try, if `error` says that this one cannot be used.
    pub(crate) fn instead(self, error: &RedisError) -> Option<Self> {
        match self {
            Self::Function if is_unknown_function(error) => Some(Self::Loaded),
            Self::Function | Self::Loaded if is_no_function(error) => Some(Self::Digest),
            Self::Function | Self::Loaded | Self::Digest if is_noscript(error) => Some(Self::Text),
            _ => None,
        }
    }
}
