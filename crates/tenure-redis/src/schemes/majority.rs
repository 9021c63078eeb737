//! Locks at a majority of several keys of one server, as rueidislock keeps them.
//!
//! All keys are taken in one step, and held as long as most of them are. So two holders would need
//! more keys than there are, whatever single key a client of the library takes meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, Name, Share};

use crate::native::inspect::Listed;
use crate::native::renew::At;
use crate::native::reply::{holder, released, releases};
use crate::native::store::RedisStore;
use crate::schemes::scheme::{Prefixes, Wakes};
use crate::schemes::set_nx::{ask, check_mutex, mutexes_only, watch};
use crate::scripts;
use crate::transport::commands::{Digits, Key, millis};
use crate::transport::connection::Repeat;
use crate::transport::failure::unexpected;
use crate::transport::reply::read;

/// Names in one question.
const TOGETHER: usize = 100;

/// Mutexes at the keys of the layout and its further ones. See
/// [`Options::profile`](crate::Options::profile).
///
/// # Round trips
/// Acquire 1; renew 1 for each 1,000 leases; release 1; watch 1; inspect 1. Without a name, inspect
/// takes as many as a `SCAN` of the whole database for most of the keys, and 1 for each page.
pub(crate) struct MajorityStore {
    redis: RedisStore,
    wakes: Wakes,
}

impl MajorityStore {
    pub(crate) fn new(redis: RedisStore, prefixes: Prefixes) -> Self {
        Self { redis: redis.with_further_keys(prefixes.further), wakes: prefixes.wakes }
    }

    /// For each name its entry, if it has a holder.
    async fn look(&self, names: &[Name]) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        let keys: Vec<Key<'_>> = names.iter().flat_map(|name| self.redis.layout.all_of(name)).collect();
        let (count, end) = (Digits::of(names.len() as u64), self.redis.end(Duration::MAX));
        let (answer, _) = self.redis.run(&scripts::MAJORITY_INSPECT, &keys, &[count.as_bytes()], Repeat::Freely, end).await?;
        let Value::Array(answers) = answer else { return Err(unexpected(format_args!("{answer:?} to a question"))) };
        let held = |(name, answer): (&Name, Value)| {
            let held: Vec<Value> = read(answer.extract_error())?;
            Ok(match &held[..] {
                [Value::BulkString(value), Value::Int(left)] => {
                    Some(Entry::new(name.clone(), vec![holder(value, *left, Share::MUTEX)], Vec::new()))
                }
                _ => None,
            })
        };
        Ok(names.iter().zip(answers).map(held).collect())
    }
}

#[async_trait]
impl Store for MajorityStore {
    fn features(&self) -> Features {
        mutexes_only(self.redis.features(), self.wakes)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check_request(request)?;
        check_mutex(request, self)?;
        let (ttl, end) = (request.ttl, self.redis.end(request.ttl));
        let keys: Vec<Key<'_>> = self.redis.layout.all_of(&request.name).collect();
        ask(&self.redis, &scripts::MAJORITY_ACQUIRE, &keys, self.wakes, request, ttl, false, end).await
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.redis.renew_all(leases, At::Majority, self.redis.renewals_end(leases)).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let (end, linger) = (self.redis.end(lease.ttl), Digits::of(millis(linger)));
        let keys: Vec<Key<'_>> = self.redis.layout.all_of(&lease.name).collect();
        let args = [lease.owner.as_bytes(), linger.as_bytes()];
        released(self.redis.run(&scripts::MAJORITY_RELEASE, &keys, &args, releases(lease), end).await?)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        watch(&self.redis, self.wakes, request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            self.redis.layout.check(name)?;
            let found = self.look(std::slice::from_ref(name)).await?;
            return found.into_iter().filter_map(Result::transpose).collect();
        }
        let layout = &self.redis.layout;
        let mut names = BTreeSet::new();
        // The holder of most keys holds one of these.
        for prefix in std::iter::once(&layout.prefix).chain(&layout.further).take(layout.further.len() / 2 + 1) {
            let mut scan = self.redis.scan_behind(prefix, "", "string");
            while let Some(keys) = scan.next().await? {
                let behind = |key: &Vec<u8>| Name::new(std::str::from_utf8(key).ok()?.strip_prefix(prefix)?).ok();
                names.extend(keys.iter().filter_map(behind));
            }
        }
        let names: Vec<Name> = names.into_iter().collect();
        let mut listed = Listed::default();
        for some in names.chunks(TOGETHER) {
            listed.add(self.look(some).await?, |entry| entry.holders.iter().any(|holder| holder.owner.is_generated()));
        }
        listed.end()
    }
}

impl fmt::Display for MajorityStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for MajorityStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MajorityStore({:?})", self.redis)
    }
}
