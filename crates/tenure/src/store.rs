//! The cut: a store makes one attempt; waiting, renewing and retrying stand above it.

pub(crate) mod call;
mod features;
pub(crate) mod lease;
pub(crate) mod memory;
pub mod record;
mod request;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub use self::features::{Features, operation_timeout};
pub use self::request::{AcquireReply, Busy, Enqueue, Grant, Notice, ReleaseReply, RenewReply, Request};
use crate::{Entry, Error, Lease, Name};

/// A place where names are held: a Redis, a file, a table.
///
/// This is the contract between tenure and those who write stores or wrap them; users talk to [`Locker`](crate::Locker).
/// Every method is one shot: it neither waits for a holder nor retries a refusal, and it has no default body, so that a
/// wrapper cannot forget one. A call may be repeated after an unknown outcome with the same effect as one call.
///
/// # Cancel safety
/// Any of these futures may be dropped at any point. What was sent may still run; the caller clears up with
/// [`release`](Store::release).
#[async_trait]
pub trait Store: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// What this store can promise, as far as it knows now.
    fn features(&self) -> Features;

    /// Asks for a share of a name, once.
    ///
    /// What a store does in one atomic step: leases that have ended and places that have lapsed are dropped; those who wait are
    /// served in order for as long as their shares fit, each with the `claim` of its own place; then the request is looked at.
    /// It is granted where its share fits and nobody waits in front of it. An owner that holds already is granted again, for no
    /// shorter than before, because it may be a late repetition; with a smaller share it is a downgrade, with a larger one it is
    /// refused. An owner that was served is granted for its full ttl. A place that has lapsed, or was served and given up, is not
    /// made again for a [`Enqueue::Heartbeat`]: it is answered busy without an [`position`](Busy::position), and its token is used up.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) when the name is held or waited for as another kind of lock.
    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error>;

    /// Asks for shares of several names, all or none, in one atomic step; the grants in the order of the requests.
    ///
    /// None where one of them was not to be had, or where the store cannot take several in one step: then nothing was taken, and
    /// the caller takes one after another. The requests are alike but for name and owner, for different names, repeatable, and
    /// leave no place and no one to take over from.
    ///
    /// # Errors
    /// As [`acquire`](Store::acquire); a mismatch says at which name, and comes before a name that is busy.
    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error>;

    /// Makes each lease that is still its owner's last at least its ttl from the moment the store executes it.
    ///
    /// A renewal never shortens a lease: one that runs late, or is for a shorter ttl, must not end what its holder believes. The
    /// answers stand in the order of the leases. A lease that is gone, or is another's, is left alone.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>>;

    /// Gives up a share or a place, if it is still this owner's, and serves those who wait.
    ///
    /// With a `linger` the name stays taken that long, by nobody: no renewal and no acquisition of the owner matches it.
    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error>;

    /// A stream of hints that the request's name is worth another look; armed when the call returns.
    ///
    /// A store that cannot push answers with a stream that stays silent: the caller looks again by itself in any case.
    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error>;

    /// Who holds `name` and how many wait; without a name, every name the store can tell to be a lock.
    ///
    /// For people and tests: what it says may be over when it arrives. A free name is not listed.
    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error>;
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn features(&self) -> Features {
        (**self).features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        (**self).acquire(request).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        (**self).acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        (**self).renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        (**self).release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        (**self).watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        (**self).inspect(name).await
    }
}
