//! From options to a store that is connected.

use tenure::store::Credentials;
use tenure::{Error, Locker};

use super::{Options, words};
use crate::store::{Items, MemcachedStore};

impl Options {
    /// Connects to every server. One that is lost is tried again by the calls about its names.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if none answers within 5 s,
    /// [`Refused`](tenure::ErrorKind::Refused) if a login is refused, or a server is too old or has a wrong clock.
    pub async fn open(self) -> Result<MemcachedStore, Error> {
        self.logins.iter().filter_map(Credentials::fixed).try_for_each(|login| words(&login).map(drop))?;
        Items::open(self).await
    }

    /// Returns a [`Locker`] on the store.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }
}
