//! The contract between tenure and authors of stores.
//!
//! A store makes one attempt. Waiting, renewing and retrying stand above it, once for all stores.

mod address;
pub(crate) mod call;
pub mod cas;
mod connect;
mod credentials;
pub(crate) mod features;
pub(crate) mod lease;
pub(crate) mod memory;
mod parameters;
pub mod record;
mod refusals;
mod request;
mod several;
mod zone;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

#[doc(hidden)]
pub use self::address::{Address, Host, decoded, unescaped};
pub use self::connect::connect;
pub use self::credentials::{Credentials, Login};
pub use self::features::{Features, operation_timeout};
#[doc(hidden)]
pub use self::parameters::read_parameters;
pub use self::parameters::{Given, Parameter};
pub use self::refusals::Refusals;
pub use self::request::{AcquireReply, Busy, Durable, Enqueue, Grant, Notice, ReleaseReply, RenewReply, Request};
pub(crate) use self::several::check_certain;
pub use self::several::{too_few, turn};
#[doc(hidden)]
pub use self::zone::refuse_zone;
use crate::{Entry, Error, Lease, Name};

/// A place where names are held: a Redis, a file, a table.
///
/// This is the contract between tenure and authors of stores or of wrappers around them. Users call
/// [`Locker`](crate::Locker). Each method is one shot: it neither waits for a holder nor retries a
/// refusal. No method has a default body, so a wrapper cannot forget one. A call that is repeated
/// after an unknown outcome has the same effect as one call.
///
/// # Cancel safety
/// Any of these futures may be dropped at any point. Its command may still run. The caller cleans
/// up with [`release`](Store::release).
#[async_trait]
pub trait Store: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Returns what this store can promise, as far as it knows now.
    fn features(&self) -> Features;

    /// Asks for a share of a name, once.
    ///
    /// The store does this in one atomic step:
    /// - It drops leases that have ended, and queue entries that have lapsed.
    /// - It serves the waiters in order for as long as their shares fit. Each gets a lease of its
    ///   own entry's `handoff_ttl`.
    /// - Then it considers the request. It is granted if its share fits and nobody waits in front
    ///   of it.
    ///
    /// An owner that holds already is granted again, because the request may be a late repetition.
    /// Its lease does not get shorter. With a smaller share the request is a downgrade; with a
    /// larger one it is refused. An owner that was served is granted for its full ttl.
    ///
    /// A [`Enqueue::Heartbeat`] never makes an entry. If its entry has lapsed, or was served and
    /// released, the answer is busy without a [`position`](Busy::position). Its token is used up.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the name is held or waited for as another kind
    /// of lock. A mutex and a read/write lock of one name are no mismatch, see
    /// [`Share::counted`](crate::Share::counted).
    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error>;

    /// Asks for shares of several names in one atomic step. Returns the grants in the order of the
    /// requests.
    ///
    /// All are granted or none. `None` if one of them is busy, or if the store cannot take several
    /// in one step: then nothing was taken, and the caller takes one after another. The requests
    /// are for different names and differ in name and owner alone. Their tokens are generated. They
    /// join no queue and take over from nobody.
    ///
    /// # Errors
    /// As [`acquire`](Store::acquire). A mismatch says at which name, and comes before a name that
    /// is busy.
    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error>;

    /// Renews leases. Each that is still its owner's lasts at least its ttl from the moment the
    /// store executes the renewal.
    ///
    /// A renewal never shortens a lease: one that runs late, or is for a shorter ttl, must not end
    /// a lease on which its holder relies. The answers are in the order of the leases. A lease that
    /// is gone, or is another owner's, is left alone.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>>;

    /// Releases a share or a queue entry, if it is still this owner's, and serves the waiters.
    ///
    /// With a `linger` the name stays taken that long, by nobody: no renewal and no acquisition of
    /// the owner matches it.
    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error>;

    /// Returns a stream of notices that a poll of the request's name is useful. The stream is armed
    /// when the call returns.
    ///
    /// A request that joins the queue wants to know when it is served. One with [`Enqueue::No`] is
    /// an observer's: a store that can notices each change of the holders after the next
    /// [`inspect`](Store::inspect) of the name.
    ///
    /// A store that cannot push returns a stream that stays silent. The caller polls in any case.
    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error>;

    /// Waits for a moment until calls that were answered without their slower servers have reached those as well. A program that ends
    /// before may leave a server without its release.
    async fn settled(&self) {}

    /// Returns the holders of `name` and the number of its waiters. Without a name, every name that
    /// the store can tell to be a lock.
    ///
    /// For people and tests: the answer may be out of date on arrival. A free name is not listed.
    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error>;
}

// Without the macro, which would put each future of the store into one of its own.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn features(&self) -> Features {
        (**self).features()
    }

    fn acquire<'a, 'b, 'c>(&'a self, request: &'b Request) -> BoxFuture<'c, Result<AcquireReply, Error>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        (**self).acquire(request)
    }

    fn acquire_all<'a, 'b, 'c>(&'a self, requests: &'b [Request]) -> BoxFuture<'c, Result<Option<Vec<Grant>>, Error>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        (**self).acquire_all(requests)
    }

    fn renew<'a, 'b, 'c>(&'a self, leases: &'b [Lease]) -> BoxFuture<'c, Vec<Result<RenewReply, Error>>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        (**self).renew(leases)
    }

    fn release<'a, 'b, 'c>(&'a self, lease: &'b Lease, linger: Duration) -> BoxFuture<'c, Result<ReleaseReply, Error>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        (**self).release(lease, linger)
    }

    fn watch<'a, 'b, 'c>(&'a self, request: &'b Request) -> BoxFuture<'c, Result<BoxStream<'static, Notice>, Error>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        (**self).watch(request)
    }

    fn settled<'a, 'b>(&'a self) -> BoxFuture<'b, ()>
    where
        'a: 'b,
        Self: 'b,
    {
        (**self).settled()
    }

    fn inspect<'a, 'b, 'c>(&'a self, name: Option<&'b Name>) -> BoxFuture<'c, Result<Vec<Entry>, Error>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        (**self).inspect(name)
    }
}
