//! Locks as Redisson keeps them, and the channels on which a release is published.
//!
//! A mutex is an `RLock`: a hash of owners and hold counts. A reader or a writer has a share of an
//! `RReadWriteLock`, which is a hash as well. Permits are those of an `RPermitExpirableSemaphore` or
//! of an `RSemaphore`. The fence is the token of an `RFencedLock`, which is the `RLock` and a counter.
//! The others count no token, so fences order those alone who count them.

mod inspect;
mod owner;
mod servers;
mod share;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::{BoxStream, SelectAll, StreamExt};
use redis::Value;
use tenure::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Fence, Kind, Lease, Name, Owner, Share};

use self::owner::{ours, theirs};
pub(crate) use self::servers::Servers;
use self::share::{check_weight, held_by, permits_of, share_of};
use crate::native::cluster::gathered;
use crate::native::foreign::{MODE, before_of_redisson, behind_of_redisson, beside_share, inside_braces, is_parted, what_of};
use crate::native::renew::At;
use crate::native::reply::{check_repeated, counter, refusal, released, releases};
use crate::native::store::{HEARTBEAT, RedisStore};
use crate::schemes::set_nx::check_mutex;
use crate::scripts::{self, Script};
use crate::transport::commands::{Commands, Digits, Key, millis, whole};
use crate::transport::connection::{Exchange, Repeat};
use crate::transport::failure::{is_moving, unexpected};
use crate::transport::link::Link;
use crate::transport::reply::only;

/// Channels, each of a name, on which the end of a lease is published.
const LOCK: &str = "redisson_lock__channel";
const READ_WRITE: &str = "redisson_rwlock";
const SEMAPHORE: &str = "redisson_sc";

/// Locks and semaphores that Redisson's clients share. See [`Scheme::Redisson`](crate::Scheme::Redisson).
///
/// # Round trips
/// Acquire 1, renew 1 for each 1,000 leases, release 1, watch 1 or in a cluster none, inspect 1. Without a
/// name, inspect takes as many as a `SCAN` of the whole database and 1 for each page of it. In a cluster each
/// 1 more if the slot of a name has moved, and one every 20 ms while it moves.
pub(crate) struct RedissonStore {
    servers: Servers,
    /// Mutexes are `RFairLock`s, with its queue. There are no other kinds.
    fair: bool,
}

impl RedissonStore {
    pub(crate) const fn new(servers: Servers, fair: bool) -> Self {
        Self { servers, fair }
    }

    async fn named(&self, redis: &RedisStore, error: Error, name: &Name) -> Error {
        redis.named(error, name, Some(if self.fair { "redisson-fair" } else { "redisson" })).await
    }

    /// The keys of the queue of `name`: of its waiters, and of when they are due.
    fn queue(&self, name: &Name) -> [String; 2] {
        ["redisson_lock_queue", "redisson_lock_timeout"].map(|what| before_of_redisson(what, &self.key(name)))
    }

    /// The key of `name`, as Redisson's objects are called after its `NameMapper`.
    fn key(&self, name: &Name) -> String {
        self.servers.any().layout.key(name)
    }

    /// The key of the token of `name`.
    fn token(&self, name: &Name) -> String {
        before_of_redisson("redisson_lock_token", &self.key(name))
    }

    /// In a cluster, a key beside `key` that is never there. A node that hands the slot over refuses a script
    /// about it. Else such a script finds a key of which it makes the name itself, as that of a reader's
    /// hold, elsewhere already, and takes the hold for ended.
    fn never(&self, key: &str) -> Option<String> {
        matches!(self.servers, Servers::Cluster(_)).then(|| behind_of_redisson(key, "tenure_never"))
    }

    /// The channels on which the end of a lease of this kind is published, that of its own kind first. A
    /// mutex and a read/write lock keep each other out.
    fn channels(&self, name: &Name, kind: Kind) -> Vec<String> {
        let channel = |what| before_of_redisson(what, &self.key(name));
        match kind {
            Kind::Mutex => vec![channel(LOCK)],
            Kind::ReadWrite => vec![channel(READ_WRITE), channel(LOCK)],
            Kind::Semaphore(_) => vec![channel(SEMAPHORE)],
        }
    }

    /// The channels that a waiter listens to.
    fn heard_by(&self, request: &Request) -> Vec<String> {
        let mut channels = self.channels(&request.name, request.share.kind());
        if self.fair {
            // Each waiter has one of its own.
            let owner = theirs(&request.owner);
            for channel in &mut channels {
                *channel = format!("{channel}:{}", String::from_utf8_lossy(owner.as_bytes()));
            }
        }
        channels
    }

    /// Refuses a name that no call is about, or whose keys are in two slots of a cluster.
    fn check(&self, name: &Name) -> Result<(), Error> {
        self.servers.any().layout.check(name)?;
        let key = self.key(name);
        if matches!(self.servers, Servers::Cluster(_)) && is_parted(&key) {
            let what = format!("Redisson keeps the keys beside {key:?} in another slot of the cluster");
            return Err(Error::invalid(what).with_hint("use a name without braces, or with one pair around a part of it"));
        }
        Ok(())
    }

    /// Refuses a name whose keys beside it are those of another name.
    fn check_beside(&self, request: &Request) -> Result<(), Error> {
        let key = self.key(&request.name);
        match inside_braces(&key) {
            Some(inner) if self.fair || request.share != Share::MUTEX => {
                let what = format!("Redisson keeps the same keys beside {key:?} as beside {inner:?}");
                Err(Error::invalid(what).with_hint("use a name without braces around it"))
            }
            _ => Ok(()),
        }
    }

    /// Runs the script of an acquisition. Returns its answer, and whether it may have run twice.
    async fn ask(&self, redis: &RedisStore, request: &Request, owner: &Owner) -> Result<(Value, bool), Error> {
        let Request { name, ttl, share, .. } = request;
        let (key, token) = (self.key(name), self.token(name));
        let never = self.never(&key);
        let (ms, from, lingering) =
            (Digits::of(millis(*ttl)), request.from.as_ref().map(theirs), theirs(&request.owner.lingering()));
        let flag = |set| if set { &b"1"[..] } else { b"0" };
        let mut args =
            vec![owner.as_bytes(), ms.as_bytes(), flag(request.generated), from.as_ref().map_or(b"", |from| from.as_bytes())];
        let (what, capacity) = (what_of(*share), Digits::of(u64::from(share.capacity())));
        let (beside, channels) = (beside_share(&key, owner.as_bytes(), *share), self.channels(name, share.kind()));
        let (key, token) = (whole(key.as_bytes()), whole(token.as_bytes()));
        let only_held = flag(request.enqueue == Enqueue::Heartbeat);
        let (enqueue, ttls) = match request.enqueue {
            Enqueue::No => (&b"none"[..], [Duration::ZERO; 2]),
            Enqueue::Join { entry_ttl, handoff_ttl } => (&b"join"[..], [entry_ttl, handoff_ttl]),
            Enqueue::Heartbeat => (&b"keep"[..], [Duration::ZERO; 2]),
        };
        let queue = if self.fair { self.queue(name) } else { Default::default() };
        let ttls = ttls.map(|ttl| Digits::of(millis(ttl)));
        let (script, mut keys): (&Script, Vec<Key<'_>>) = match share.kind() {
            Kind::Mutex if self.fair => {
                args.extend([enqueue, ttls[0].as_bytes(), ttls[1].as_bytes()]);
                (&scripts::REDISSON_FAIR_ACQUIRE, vec![key, token, whole(queue[0].as_bytes()), whole(queue[1].as_bytes())])
            }
            Kind::Mutex => (&scripts::REDISSON_ACQUIRE, vec![key, token]),
            Kind::ReadWrite => {
                args.extend([what.as_bytes(), lingering.as_bytes(), only_held]);
                (&scripts::REDISSON_RW_ACQUIRE, vec![key, token, whole(&beside)])
            }
            Kind::Semaphore(_) => {
                args.extend([what.as_bytes(), capacity.as_bytes(), lingering.as_bytes(), only_held]);
                (&scripts::REDISSON_PERMITS_ACQUIRE, vec![key, whole(&beside), token])
            }
        };
        if !matches!(share.kind(), Kind::Semaphore(_)) {
            keys.extend(never.iter().map(|key| whole(key.as_bytes())));
        }
        // No key, so that one who may not use it is served all the same.
        if *share != Share::MUTEX || self.fair {
            args.extend([channels[0].as_bytes(), self.servers.publish()]);
        }
        let call = |_: &Link, form| scripts::call(script, form, &keys, &args);
        let Exchange { answers, repeated, .. } = redis.connection.call(redis.end(*ttl), Repeat::Settled, &call).await?;
        let answer = only(answers)?.map_err(|error| refusal(&error, name, *share));
        Ok((answer.map_err(|error| if repeated { error.maybe_applied() } else { error })?, repeated))
    }

    async fn acquire_at(&self, redis: RedisStore, request: &Request) -> Result<AcquireReply, Error> {
        let owner = theirs(&request.owner);
        let (subscribed, asked) = match &self.servers {
            Servers::One(_) => (None, self.ask(&redis, request, &owner).await),
            // Before the question, so that no message is missed.
            Servers::Cluster(cluster) => {
                let (subscribed, asked) = (self.hear(&redis, request).await, self.ask(&redis, request, &owner).await);
                let is_busy = matches!(&asked, Ok((Value::Array(parts), _)) if parts.first() == Some(&Value::Int(0)));
                match cluster.serving(&request.name) {
                    // The slot has moved. A message may have come there before anybody listened.
                    Ok(there) if is_busy && subscribed == Some(false) && !Arc::ptr_eq(&there.connection, &redis.connection) => {
                        (self.hear(&there, request).await, self.ask(&there, request, &owner).await)
                    }
                    _ => (subscribed, asked),
                }
            }
        };
        let (answer, repeated) = match asked {
            Err(error) => return Err(Box::pin(self.named(&redis, error, &request.name)).await),
            Ok(answered) => answered,
        };
        let Value::Array(parts) = &answer else { return Err(odd(&answer)) };
        // In a fair lock the last part of a busy answer is the position.
        let (parts, position) = match &parts[..] {
            [busy @ .., Value::Int(position)] if self.fair => (busy, u32::try_from(*position).ok()),
            parts => (parts, None),
        };
        let holder = match parts {
            [Value::Int(1), token] => {
                let (token, name) = (counter(token).map_err(Error::maybe_applied)?, &request.name);
                let unfit = || Error::refused(format!("the token of {name:?} stands at {token}, beyond what a fence can be"));
                let fence = Fence::from_token(token).ok_or_else(|| unfit().maybe_applied())?;
                return Ok(AcquireReply::Granted(Grant::new(Some(fence), request.ttl)));
            }
            [Value::Int(0), Value::BulkString(field), Value::Int(left), Value::BulkString(mode)] => {
                Some(held_by(field, *left, share_of(mode).ok_or_else(|| odd(&answer))?))
            }
            [Value::Int(0), Value::BulkString(owner), Value::Int(left), Value::Int(weight), Value::Int(permits)] => {
                let share = u32::try_from(*weight).ok().and_then(|weight| permits_of(weight, *permits));
                Some(held_by(owner, *left, share.ok_or_else(|| odd(&answer))?))
            }
            [Value::Int(0)] => None,
            _ => return Err(odd(&answer)),
        };
        let polls = redis.poll_interval(false, None, None);
        // The end of a lease, and an unlock of an RSpinLock, are published by nobody.
        // In a fair lock one who has no queue entry is never notified.
        let hears = || match &self.servers {
            Servers::One(_) => self.heard_by(request).iter().all(|channel| redis.connection.hears_on(channel)),
            Servers::Cluster(_) => subscribed == Some(true),
        };
        let notified = (position.is_some() || !self.fair) && hears();
        let busy = Busy::new(if notified { HEARTBEAT.max(polls) } else { polls });
        let answer = AcquireReply::Busy(busy.with_holder(holder).with_position(position));
        if !repeated {
            return Ok(answer);
        }
        // A supplied token may be the field of one of ours. Then the holder is shown as that.
        check_repeated(&request.clone().with_owner(ours(owner.as_bytes())), answer)
    }

    /// Asks the node for the channels of a waiter. Returns whether it will be notified, if it waits.
    async fn hear(&self, redis: &RedisStore, request: &Request) -> Option<bool> {
        let (mut channels, end) = (self.heard_by(request), redis.end(request.ttl));
        channels.retain(|channel| redis.connection.has_listener_on(channel));
        let heard = join_all(channels.iter().map(|channel| redis.connection.hear_on(channel, end))).await;
        (!heard.is_empty()).then(|| heard.into_iter().all(|heard| heard))
    }
}

#[async_trait]
impl Store for RedissonStore {
    fn features(&self) -> Features {
        let features = match &self.servers {
            Servers::One(redis) => redis.features(),
            Servers::Cluster(cluster) => cluster.features(),
        };
        features.with_cohort(false).with_queue(self.fair).with_push(!self.fair).with_shares(!self.fair)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.servers.any().layout.check_request(request)?;
        self.check(&request.name)?;
        check_token(&request.owner)?;
        check_weight(request.share)?;
        self.check_beside(request)?;
        if self.fair {
            check_mutex(request, self)?;
        }
        self.servers.at(&request.name, request.ttl, |redis| self.acquire_at(redis, request)).await
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // As Redisson's RMultiLock: one after another.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let leases: Vec<Lease> = leases.iter().map(|lease| lease.clone().with_owner(theirs(&lease.owner))).collect();
        match &self.servers {
            Servers::One(redis) => redis.renew_all(&leases, At::Field, redis.renewals_end(&leases)).await,
            Servers::Cluster(cluster) => cluster.renew_all(&leases, At::Field).await,
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.check(&lease.name)?;
        let linger = Digits::of(millis(linger));
        let (owner, lingering) = (theirs(&lease.owner), theirs(&lease.owner.lingering()));
        let (key, channels, what) = (self.key(&lease.name), self.channels(&lease.name, lease.share.kind()), what_of(lease.share));
        let queue = if self.fair { self.queue(&lease.name) } else { Default::default() };
        let weight = Digits::of(u64::from(lease.share.weight()));
        let mut args = vec![owner.as_bytes(), lingering.as_bytes(), linger.as_bytes()];
        // No keys, so that one who may not use them releases all the same.
        args.extend(channels.iter().map(String::as_bytes));
        let (beside, never) = (beside_share(&key, lingering.as_bytes(), lease.share), self.never(&key));
        let mut keys = vec![whole(key.as_bytes())];
        let script = match lease.share.kind() {
            Kind::Mutex if self.fair => {
                keys.extend(queue.iter().map(|key| whole(key.as_bytes())));
                &scripts::REDISSON_FAIR_RELEASE
            }
            Kind::Mutex => &scripts::REDISSON_RELEASE,
            Kind::ReadWrite => {
                keys.push(whole(&beside));
                args.push(what.as_bytes());
                &scripts::REDISSON_RW_RELEASE
            }
            Kind::Semaphore(_) => {
                keys.push(whole(&beside));
                args.push(weight.as_bytes());
                &scripts::REDISSON_PERMITS_RELEASE
            }
        };
        args.push(self.servers.publish());
        let (end, alone) = (self.servers.any().end(lease.ttl), keys.clone());
        if !matches!(lease.share.kind(), Kind::Semaphore(_)) {
            keys.extend(never.iter().map(|key| whole(key.as_bytes())));
        }
        let (keys, alone, args) = (&keys, &alone, &args);
        let run = |redis: RedisStore, keys| async move { redis.run(script, keys, args, releases(lease), end).await };
        let cluster = match &self.servers {
            Servers::Cluster(cluster) if lease.share == Share::MUTEX && !self.fair => cluster,
            servers => return released(servers.at(&lease.name, lease.ttl, |redis| run(redis, keys)).await?),
        };
        match cluster.at_node(&lease.name, end, |redis| run(redis, keys)).await {
            Err(moving) if is_moving(&moving) && !moving.may_have_been_applied() => {}
            answer => return released(answer?),
        }
        // The slot moves, and the key is one alone. It may be where nobody listens, so the message is sent again.
        let answer = released(cluster.at_node(&lease.name, end, |redis| run(redis, alone)).await?);
        let publish = |_: &Link| Commands::of(&[self.servers.publish(), channels[0].as_bytes(), b"0"]);
        if let Ok(redis) = cluster.serving(&lease.name) {
            // Without it they look by themselves.
            let _ = redis.connection.exchange_here(end, Repeat::Freely, publish).await;
        }
        answer
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let mut all = SelectAll::new();
        for channel in self.heard_by(request) {
            all.push(match &self.servers {
                Servers::One(redis) => redis.connection.listen_on(&channel, redis.end(request.ttl)).await?,
                // Its node is asked for it with each acquisition.
                Servers::Cluster(cluster) => cluster.serving(&request.name)?.connection.register_on(&channel),
            });
        }
        Ok(all.map(|_| Notice::Changed).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let Some(name) = name else {
            return match &self.servers {
                Servers::One(redis) => self.list(redis).await,
                Servers::Cluster(cluster) => {
                    let list = |redis| async move { self.list(&redis).await };
                    gathered(join_all(cluster.at_each().map(list)).await)
                }
            };
        };
        self.servers.any().layout.check(name)?;
        Ok(self.look_at(name).await?.into_iter().collect())
    }
}

/// Refuses a token that means something else.
fn check_token(owner: &Owner) -> Result<(), Error> {
    if owner.as_bytes() == MODE {
        return Err(Error::invalid("the owner token `mode` means something else to Redisson").with_hint("use another token"));
    }
    Ok(())
}

fn odd(answer: &Value) -> Error {
    unexpected(format_args!("{answer:?} to an acquisition")).maybe_applied()
}

impl fmt::Display for RedissonStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.servers.any().fmt(f)
    }
}

impl fmt::Debug for RedissonStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedissonStore({:?})", self.servers.any())
    }
}
