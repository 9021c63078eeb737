//! A store over compare-and-swap.
//!
//! For authors of stores. A lock needs no more of a server than a value for each name, which is written
//! only if nobody has changed it since it was read: a version column, memcached's `cas`, `WATCH`.
//! [`Cas`] says how to read and write such a value. [`CasStore`] makes a [`Store`](super::Store) of that, with
//! shares, a queue and fences. It reads the [`Record`](super::record::Record) of a name, lets one call change it,
//! writes it back, and begins anew when another client was faster.
//!
//! The example `own-store` of the conformance kit is such a store, with its tests.

mod found;
mod store;
mod turns;

use std::fmt;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::time::Instant;

pub use self::found::{Found, Write, Wrote};
pub use self::store::{CasStore, again_and_again, used_up};
use super::record::Listeners;
use super::{Busy, Features, Grant, Notice, RenewReply, Request};
use crate::{Entry, Error, Holder, Lease, Name};

/// How a server keeps records.
///
/// Each call ends by itself at `end`.
///
/// # Cancel safety
/// Any of these futures may be dropped at any point. A write that was sent stays.
#[async_trait]
pub trait Cas: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The version of a state that was read, and all else that a write needs to know of it.
    type Version: Send + Sync;

    /// Returns what this store can promise, as [`Store::features`](super::Store::features) does.
    fn features(&self) -> Features;

    /// Reads names, in their order. A name that is not there has an empty record.
    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found<Self::Version>>, Error>;

    /// Writes the new states of names that nobody has changed since they were read: all of them, or none.
    /// A state that is as it was read needs no write. `repeat`: whether the write may be sent again if it
    /// has no answer.
    ///
    /// # Errors
    /// One that says so ([`Error::maybe_applied`]) if nobody knows whether it was written.
    async fn write(
        &self,
        writes: &[Write<'_, Self::Version>],
        repeat: Repeat,
        end: Instant,
    ) -> Result<Wrote<Self::Version>, Error>;

    /// Returns every name that looks like a lock, as [`Store::inspect`](super::Store::inspect) does.
    async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error>;

    /// Sets the poll interval of a waiter. `hears`: its entry in the queue says where to notify it.
    fn busy(&self, busy: Busy, hears: bool) -> Busy;

    /// Corrects what is shown of a holder.
    fn show(&self, _: &mut Holder) {}

    /// Refuses a name that the server cannot keep.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), with what can be done.
    fn check(&self, name: &Name) -> Result<(), Error> {
        let (length, most) = (name.as_str().len(), self.features().max_name);
        if length <= most {
            return Ok(());
        }
        let what = format!("the lock name has {length} bytes, more than the {most} that {self} can keep");
        Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"))
    }

    /// Refuses a request that the server cannot keep. Names are checked before.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with what can be done.
    fn check_request(&self, _: &Request) -> Result<(), Error> {
        Ok(())
    }

    /// Whether [`write`](Cas::write) takes several names.
    fn writes_several(&self) -> bool {
        false
    }

    /// Text by which other processes notify this one, as long as they can.
    fn wake(&self) -> Option<String> {
        None
    }

    /// The watchers of this process, for a store that has no push of its own.
    fn listeners(&self) -> Option<&Listeners> {
        None
    }

    /// Takes a name that is likely free, without reading it first. The request's owner has no entry in the
    /// queue.
    async fn take(&self, _: &Request, _: Instant) -> Result<Tried<Grant, Self::Version>, Error> {
        Ok(Tried::Other(None))
    }

    /// Frees a name that likely nobody waits for, without reading it first.
    async fn free(&self, _: &Lease, _: Instant) -> Result<Tried<(), Self::Version>, Error> {
        Ok(Tried::Other(None))
    }

    /// Renews leases together, without reading them first. Leaves out those that are another case.
    async fn renew(&self, _: &[Lease], _: Instant) -> Result<Renewed, Error> {
        Ok(Vec::new())
    }

    /// As [`Store::watch`](super::Store::watch).
    async fn watch(&self, request: &Request, _: Instant) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(self.listeners().map_or_else(|| stream::pending().boxed(), |listeners| listeners.listen(request)))
    }
}

/// Outcome of a call that does only the usual thing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Tried<T, V> {
    /// It is done.
    Done(T),
    /// It is another case, and nothing was done. With the state of the name, or a guess at it: a write finds
    /// out.
    Other(Option<Found<V>>),
}

/// Leases that were renewed, or failed by themselves, by their indexes.
pub type Renewed = Vec<(usize, Result<RenewReply, Error>)>;

/// Whether a command may be sent again after it had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Running twice, or late, is as good as running once.
    Freely,
    /// Running late is not as good: send it again only if the first can no longer run. If it still can, the
    /// caller has to know.
    Settled,
    /// Running twice is not as good.
    Never,
}
