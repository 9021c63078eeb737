//! The locks of a database, as the store of session locks sees them.

use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tenure::{Error, Holder, Name, Owner};

use super::live::Live;
use crate::table::{Failed, Server, Session};

/// Sessions of a database, and the locks that they hold.
#[async_trait]
pub(crate) trait Locks: Send + Sync + 'static {
    /// How sessions are made and ended.
    type Server: Server;
    /// A lock, as the database names it.
    type Key: Clone + Send + Sync;

    fn server(&self) -> &Self::Server;

    /// Returns the lock of a name.
    fn key(&self, name: &Name) -> Result<Self::Key, Error>;

    /// Longest name, in bytes.
    fn max_name(&self) -> usize;

    /// Shortest ttl.
    fn min_ttl(&self) -> Duration;

    /// Makes sure that a new session can hold locks.
    async fn check(&self, live: &LiveOf<Self>) -> Result<(), Failed>;

    /// Takes a lock if it is free, with the ttl and a mark of its owner. Returns whether it did.
    async fn take(&self, live: &LiveOf<Self>, key: &Self::Key, owner: &Owner, ttl: Duration) -> Result<bool, Failed>;

    /// Begins the ttl anew. Returns whether the session holds the lock.
    async fn keep(&self, live: &LiveOf<Self>, key: &Self::Key, owner: &Owner, ttl: Duration) -> Result<bool, Failed>;

    /// Frees a lock. Returns whether the session held it.
    async fn free(&self, live: &LiveOf<Self>, key: &Self::Key, owner: &Owner) -> Result<bool, Failed>;

    /// Marks a lock with another owner.
    async fn pass(&self, live: &LiveOf<Self>, key: &Self::Key, from: &Owner, to: &Owner) -> Result<(), Failed>;

    /// Returns the session that holds a lock.
    async fn holder(&self, live: &LiveOf<Self>, key: &Self::Key) -> Result<Option<HolderSession>, Failed>;

    /// Returns the session that holds a lock with the mark of `owner`.
    async fn session_of(&self, live: &LiveOf<Self>, key: &Self::Key, owner: &Owner) -> Result<Option<Session>, Failed>;

    /// Returns the locks that are held, each with a name for it.
    async fn list(&self, live: &LiveOf<Self>) -> Result<Vec<(Name, HolderSession)>, Failed>;
}

/// A session of `L`.
pub(crate) type LiveOf<L> = Live<<<L as Locks>::Server as Server>::Client>;

/// A session that holds a lock, as the server shows it.
pub(crate) struct HolderSession {
    /// `None` if this user may not see enough of it to end it.
    pub(crate) session: Option<Session>,
    pub(crate) id: i64,
    pub(crate) holder: Holder,
}

/// The first bytes of the SHA-256 of a text.
pub(crate) fn digest<const N: usize>(text: &[u8]) -> [u8; N] {
    let digest = Sha256::digest(text);
    std::array::from_fn(|at| digest[at])
}

/// The digest in hexadecimal digits.
pub(crate) fn hex_digest<const N: usize>(text: &[u8]) -> String {
    digest::<N>(text).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}
