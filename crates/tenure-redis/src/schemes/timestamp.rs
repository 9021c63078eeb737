//! Locks whose value is a timestamp value: the end of the lease, or what distinguishes leases of a
//! PHP class.
//!
//! Anybody may compute the same number, so it does not identify the holder. The owner stands at a
//! key beside, for as long as the lease lasts. So the lease can be renewed, released and taken over
//! with its owner token only. Other clients do not read that key.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use redis::Value;
use tenure::store::{AcquireReply, Busy, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Holder, Lease, Name, Share};

use crate::native::renew::At;
use crate::native::reply::{check_repeated, holder, released, releases};
use crate::native::store::RedisStore;
use crate::schemes::set_nx::{check_mutex, whole_seconds};
use crate::scripts;
use crate::transport::commands::{Digits, millis};
use crate::transport::connection::Repeat;
use crate::transport::failure::unexpected;

/// The unit of a timestamp value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The end of the lease, in Unix milliseconds.
    Millis,
    /// The end of the lease, in Unix seconds.
    Seconds,
    /// The time when the lease was to end when it was acquired, in Unix seconds with decimals. The
    /// lease itself is a ttl.
    Php,
}

impl Unit {
    pub(crate) const fn word(self) -> &'static [u8] {
        match self {
            Self::Millis => b"ms",
            Self::Seconds => b"s",
            Self::Php => b"php",
        }
    }
}

/// The least ttl of the PHP class.
const PHP_LEAST: Duration = Duration::from_secs(5);

/// Mutexes at keys that hold timestamp values. See [`Scheme::Php`](crate::Scheme::Php) and
/// [`Scheme::Getset`](crate::Scheme::Getset).
///
/// # Round trips
/// Acquire 1, renew 1 for each 1,000 leases, release 1, inspect 1. Without a name, inspect takes as
/// many as a `SCAN` of the whole database and 1 for each name of ours.
pub(crate) struct TimestampStore {
    redis: RedisStore,
    unit: Unit,
}

impl TimestampStore {
    pub(crate) const fn new(redis: RedisStore, unit: Unit) -> Self {
        Self { redis, unit }
    }

    /// The time that a lease of `ttl` lasts at the server.
    fn kept(&self, ttl: Duration) -> Duration {
        match self.unit {
            Unit::Millis => ttl,
            Unit::Seconds => whole_seconds(ttl),
            Unit::Php => ttl.max(PHP_LEAST),
        }
    }

    /// The clock of this host in Unix ms, if the end of a lease depends on the clocks of all hosts.
    fn clock(&self) -> Option<Digits> {
        let ms = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
        (self.unit != Unit::Php).then(|| Digits::of(ms()))
    }

    async fn inspect_one(&self, name: &Name) -> Result<Option<Entry>, Error> {
        let (keys, end) = (self.redis.layout.of(name), self.redis.end(Duration::MAX));
        let script_keys = [keys.name(), keys.owner()];
        let (answer, _) =
            self.redis.run(&scripts::TIMESTAMP_INSPECT, &script_keys, &[self.unit.word()], Repeat::Freely, end).await?;
        Ok(held(&answer)?.map(|holder| Entry::new(name.clone(), vec![holder], Vec::new())))
    }
}

#[async_trait]
impl Store for TimestampStore {
    fn features(&self) -> Features {
        let features = self.redis.features();
        let min_ttl = if self.unit == Unit::Seconds { Duration::from_secs(1) } else { features.min_ttl };
        let late_end = match self.unit {
            Unit::Millis => features.late_end,
            Unit::Seconds => Duration::from_secs(1),
            Unit::Php => PHP_LEAST,
        };
        let server_clock = self.unit == Unit::Php;
        features
            .with_fence(false)
            .with_shares(false)
            .with_queue(false)
            .with_cohort(false)
            .with_push(false)
            .with_server_clock(server_clock)
            .with_min_ttl(min_ttl)
            .with_late_end(late_end)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check_request(request)?;
        check_mutex(request, &self.redis)?;
        let (keys, ttl, end) = (self.redis.layout.of(&request.name), self.kept(request.ttl), self.redis.end(request.ttl));
        let (clock, ms) = (self.clock(), Digits::of(millis(ttl)));
        let args = [
            self.unit.word(),
            clock.as_ref().map_or(b"", Digits::as_bytes),
            request.owner.as_bytes(),
            ms.as_bytes(),
            if request.generated { b"1" } else { b"0" },
            request.from.as_ref().map_or(b"", |from| from.as_bytes()),
        ];
        let script_keys = [keys.name(), keys.owner()];
        let (answer, repeated) = self.redis.run(&scripts::TIMESTAMP_ACQUIRE, &script_keys, &args, Repeat::Settled, end).await?;
        if answer == Value::Int(1) {
            return Ok(AcquireReply::Granted(Grant::new(None, ttl)));
        }
        let holder = held(&answer).map_err(Error::maybe_applied)?;
        let answer = AcquireReply::Busy(Busy::new(self.redis.poll_interval(false, None, None)).with_holder(holder));
        if repeated { check_repeated(request, answer) } else { Ok(answer) }
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // Keys of other libraries may be in any slot.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        let kept: Vec<Lease> = leases.iter().map(|lease| lease.clone().with_ttl(self.kept(lease.ttl))).collect();
        self.redis.renew_all(&kept, At::Beside(self.unit.word()), end).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let (keys, end, linger) = (self.redis.layout.of(&lease.name), self.redis.end(lease.ttl), Digits::of(millis(linger)));
        let args = [self.unit.word(), lease.owner.as_bytes(), linger.as_bytes()];
        released(self.redis.run(&scripts::TIMESTAMP_RELEASE, &[keys.name(), keys.owner()], &args, releases(lease), end).await?)
    }

    /// Silent: nobody notifies.
    async fn watch(&self, _: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(stream::pending().boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            self.redis.layout.check(name)?;
            return Ok(self.inspect_one(name).await?.into_iter().collect());
        }
        let mut entries = Vec::new();
        for name in self.redis.names_beside().await? {
            // A name that another client has taken since, or uses for something else, is left out.
            let ours = |entry: &Entry| entry.holders.iter().any(|holder| holder.owner.is_generated());
            entries.extend(self.inspect_one(&name).await.or_else(unless_foreign)?.filter(ours));
        }
        Ok(entries)
    }
}

/// None for a name that other clients use for something that is no lock.
fn unless_foreign(error: Error) -> Result<Option<Entry>, Error> {
    if error.kind() == ErrorKind::Mismatch { Ok(None) } else { Err(error) }
}

/// Reads the holder from the reply of a script.
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

impl fmt::Display for TimestampStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for TimestampStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimestampStore({:?}, {:?})", self.redis, self.unit)
    }
}
