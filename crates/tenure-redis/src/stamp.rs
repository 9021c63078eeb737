//! Locks whose value is a point in time: the end of the lease, or what PHP's class tells leases apart by.
//!
//! A number that anybody may compute says nothing about who holds, so our owner stands beside the key, for as long as its lease
//! lasts: a lease can then be renewed, given up and taken over by whoever has its token, and by nobody else. Other clients do not
//! look there.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use redis::Value;
use tenure::store::{AcquireReply, Busy, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Holder, Lease, Name, Share};

use crate::commands::Digits;
use crate::connection::Repeat;
use crate::failure::unexpected;
use crate::native::{RedisStore, check_from, millis, released, releases, told_apart};
use crate::plain::{check_mutex, whole_seconds};
use crate::reply::holder;
use crate::script;

/// What the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// The end of the lease, in Unix milliseconds.
    Millis,
    /// The end of the lease, in Unix seconds.
    Seconds,
    /// When it was to end when it was first asked for, in Unix seconds with decimals. The lease itself is a ttl.
    Php,
}

impl Stamp {
    pub(crate) const fn word(self) -> &'static [u8] {
        match self {
            Self::Millis => b"ms",
            Self::Seconds => b"s",
            Self::Php => b"php",
        }
    }
}

/// What the PHP class raises a shorter lease to.
const PHP_LEAST: Duration = Duration::from_secs(5);

/// Mutexes at keys that hold a point in time, see [`Scheme::Php`](crate::Scheme::Php) and [`Scheme::Getset`](crate::Scheme::Getset).
///
/// # Round trips
/// Acquire 1, renew 1 for each 1,000 leases, release 1, inspect 1, or as many as a `SCAN` of the whole database takes
/// and 1 for each name of ours.
pub(crate) struct StampStore {
    redis: RedisStore,
    stamp: Stamp,
}

impl StampStore {
    pub(crate) const fn new(redis: RedisStore, stamp: Stamp) -> Self {
        Self { redis, stamp }
    }

    /// For how long a lease of `ttl` is kept.
    fn kept(&self, ttl: Duration) -> Duration {
        match self.stamp {
            Stamp::Millis => ttl,
            Stamp::Seconds => whole_seconds(ttl),
            Stamp::Php => ttl.max(PHP_LEAST),
        }
    }

    /// The clock of this host where the end of a lease hangs on the clocks of all hosts, in Unix ms.
    fn clock(&self) -> Option<Digits> {
        let ms = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
        (self.stamp != Stamp::Php).then(|| Digits::of(ms()))
    }

    async fn look_at(&self, name: &Name) -> Result<Option<Entry>, Error> {
        let (keys, end) = (self.redis.layout.of(name), self.redis.end(Duration::MAX));
        let script_keys = [keys.name(), keys.owner()];
        let (answer, _) = self.redis.run(&script::STAMP_LOOK, &script_keys, &[self.stamp.word()], Repeat::Freely, end).await?;
        Ok(held(&answer)?.map(|holder| Entry::new(name.clone(), vec![holder], 0)))
    }
}

#[async_trait]
impl Store for StampStore {
    fn features(&self) -> Features {
        let features = self.redis.features();
        let min_ttl = if self.stamp == Stamp::Seconds { Duration::from_secs(1) } else { features.min_ttl };
        let server_clock = self.stamp == Stamp::Php;
        features
            .with_fence(false)
            .with_shares(false)
            .with_queue(false)
            .with_cohort(false)
            .with_push(false)
            .with_server_clock(server_clock)
            .with_min_ttl(min_ttl)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check(&request.name)?;
        check_mutex(request, &self.redis)?;
        check_from(request)?;
        let (keys, ttl, end) = (self.redis.layout.of(&request.name), self.kept(request.ttl), self.redis.end(request.ttl));
        let (clock, ms) = (self.clock(), Digits::of(millis(ttl)));
        let args = [
            self.stamp.word(),
            clock.as_ref().map_or(b"", Digits::as_bytes),
            request.owner.as_bytes(),
            ms.as_bytes(),
            if request.generated { b"1" } else { b"0" },
            request.from.as_ref().map_or(b"", |from| from.as_bytes()),
        ];
        let script_keys = [keys.name(), keys.owner()];
        let (answer, repeated) = self.redis.run(&script::STAMP_ACQUIRE, &script_keys, &args, Repeat::Settled, end).await?;
        if answer == Value::Int(1) {
            return Ok(AcquireReply::Granted(Grant::new(None, ttl)));
        }
        let holder = held(&answer).map_err(Error::maybe_applied)?;
        let answer = AcquireReply::Busy(Busy::new(self.redis.recheck).with_holder(holder));
        if repeated { told_apart(request, answer) } else { Ok(answer) }
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // Keys of others may lie anywhere.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let leases: Vec<Lease> = leases.iter().map(|lease| lease.clone().with_ttl(self.kept(lease.ttl))).collect();
        self.redis.renew_all(&leases, Some(self.stamp), self.redis.renewals_end(&leases)).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let (keys, end, linger) = (self.redis.layout.of(&lease.name), self.redis.end(lease.ttl), Digits::of(millis(linger)));
        let args = [self.stamp.word(), lease.owner.as_bytes(), linger.as_bytes()];
        released(self.redis.run(&script::STAMP_RELEASE, &[keys.name(), keys.owner()], &args, releases(lease), end).await?)
    }

    /// Silent: nobody tells.
    async fn watch(&self, _: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(stream::pending().boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            self.redis.layout.check(name)?;
            return Ok(self.look_at(name).await?.into_iter().collect());
        }
        let mut entries = Vec::new();
        for name in self.redis.names_beside().await? {
            // One that others have taken since, or put something else at, is none of ours.
            let ours = |entry: &Entry| entry.holders.iter().any(|holder| holder.owner.is_generated());
            entries.extend(self.look_at(&name).await.or_else(unless_foreign)?.filter(ours));
        }
        Ok(entries)
    }
}

/// Nothing, for a name at which others have put something that is no lock.
fn unless_foreign(error: Error) -> Result<Option<Entry>, Error> {
    if error.kind() == ErrorKind::Mismatch { Ok(None) } else { Err(error) }
}

/// Who holds, as the scripts say it.
fn held(answer: &Value) -> Result<Option<Holder>, Error> {
    match answer {
        Value::Array(parts) => match &parts[..] {
            [] => Ok(None),
            [Value::BulkString(owner), Value::Int(left)] => Ok(Some(holder(owner, *left, Share::MUTEX))),
            _ => Err(unexpected(format_args!("{parts:?} for a holder"))),
        },
        other => Err(unexpected(format_args!("{other:?} for a holder"))),
    }
}

impl fmt::Display for StampStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for StampStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StampStore({:?}, {:?})", self.redis, self.stamp)
    }
}
