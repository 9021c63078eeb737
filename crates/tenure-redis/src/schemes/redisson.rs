//! Locks as Redisson keeps them: a hash of owners and hold counts, and a channel on which a release is
//! published.
//!
//! A mutex is an `RLock`. Its fence is the token of an `RFencedLock`, which is the same lock. An
//! `RLock` itself counts no token, so fences order those alone who count them.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use redis::{Value, pipe};
use tenure::store::{AcquireReply, Busy, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Holder, Lease, Name, Owner, Share};

use crate::native::foreign::{DASHES, MODE, UUID, is_owner_of_redisson};
use crate::native::renew::At;
use crate::native::reply::{check_repeated, counter, holder, released, releases};
use crate::native::store::{HEARTBEAT, RedisStore};
use crate::schemes::set_nx::check_mutex;
use crate::scripts;
use crate::transport::commands::{Digits, Key, millis, whole};
use crate::transport::connection::Repeat;
use crate::transport::failure::unexpected;
use crate::transport::reply::read;

/// Mutexes that Redisson's clients share. See [`Scheme::Redisson`](crate::Scheme::Redisson).
///
/// # Round trips
/// Acquire 1, renew 1 for each 1,000 leases, release 1, watch 1, inspect 1. Without a name, inspect
/// takes as many as a `SCAN` of the whole database and 1 for each page of it.
pub(crate) struct RedissonStore {
    redis: RedisStore,
}

/// The owner as Redisson has it: `<uuid>:<thread>`, where the thread of a generated token is its label
/// and a dot. So it is no number, as the threads of Java are.
fn theirs(owner: &Owner) -> Owner {
    let Some(label) = owner.label() else { return owner.clone() };
    let digits = &owner.as_bytes()[label.len() + 1..];
    let mut field = Vec::with_capacity(UUID + label.len() + 2);
    for digit in digits {
        if DASHES.contains(&field.len()) {
            field.push(b'-');
        }
        field.push(*digit);
    }
    field.push(b':');
    field.extend_from_slice(label.as_bytes());
    field.push(b'.');
    Owner::from_bytes(field)
}

/// The owner that [`theirs`] has made a field of; any other as it is.
fn ours(field: &[u8]) -> Owner {
    let token = field.split_at_checked(UUID).and_then(|(uuid, thread)| {
        let label = thread.strip_prefix(b":")?.strip_suffix(b".")?;
        let digits: Vec<u8> = uuid.iter().copied().filter(|byte| *byte != b'-').collect();
        Some(Owner::from_bytes([label, b".", &digits].concat()))
    });
    token.filter(|token| theirs(token).as_bytes() == field).unwrap_or_else(|| Owner::from_bytes(field))
}

impl RedissonStore {
    pub(crate) const fn new(redis: RedisStore) -> Self {
        Self { redis }
    }

    /// The key of `name`, as Redisson's objects are called after its `NameMapper`.
    fn key(&self, name: &Name) -> String {
        format!("{}{name}", self.redis.layout.prefix)
    }

    /// A key beside that of `name`. Braces are put around it unless it has some.
    fn beside(&self, what: &str, name: &Name) -> String {
        let key = self.key(name);
        if key.contains('{') { format!("{what}:{key}") } else { format!("{what}:{{{key}}}") }
    }

    fn channel(&self, name: &Name) -> String {
        self.beside("redisson_lock__channel", name)
    }

    /// The entries of names at which one owner stands. A free name has none.
    async fn look(&self, names: &[Name], is_owner: fn(&[u8]) -> bool) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut questions = pipe();
        for name in names {
            let key = self.key(name);
            // Of a large hash a few fields are enough.
            questions.cmd("HLEN").arg(&key).cmd("HSCAN").arg(&key).arg(0).arg("COUNT").arg(2).cmd("PTTL").arg(&key);
        }
        let end = self.redis.end(Duration::MAX);
        let mut answers = self.redis.connection.call(end, Repeat::Freely, |_, _| questions.clone()).await?.answers.into_iter();
        let mut answer = || answers.next().unwrap_or_else(|| Err((redis::ErrorKind::Parse, "too few replies").into()));
        let entry = |name: &Name| {
            let (fields, scanned, ttl) = (answer(), answer(), answer());
            let (fields, (_, scanned), ttl): (u64, (Value, Vec<Vec<u8>>), i64) = (read(fields)?, read(scanned)?, read(ttl)?);
            match &scanned[..] {
                [] => Ok(None),
                [field, count] if fields == 1 && is_owner(field) && count.iter().all(u8::is_ascii_digit) => {
                    Ok(Some(Entry::new(name.clone(), vec![held_by(field, ttl)], Vec::new())))
                }
                _ => Err(no_rlock()),
            }
        };
        Ok(names.iter().map(entry).collect())
    }
}

/// The error of a name that is no `RLock`.
fn no_rlock() -> Error {
    Error::new(ErrorKind::Mismatch, "the hash at the key is no RLock of Redisson: another of its objects, or no lock at all")
        .with_hint("use another name, or a prefix= of your own")
}

fn held_by(field: &[u8], ttl: i64) -> Holder {
    holder(ours(field).as_bytes(), ttl, Share::MUTEX)
}

#[async_trait]
impl Store for RedissonStore {
    fn features(&self) -> Features {
        self.redis.features().with_shares(false).with_queue(false).with_cohort(false)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check_request(request)?;
        check_mutex(request, self)?;
        let Request { name, ttl, .. } = request;
        check_token(&request.owner)?;
        let (end, ms) = (self.redis.end(*ttl), Digits::of(millis(*ttl)));
        let (owner, from) = (theirs(&request.owner), request.from.as_ref().map(theirs));
        let args: [&[u8]; 4] = [
            owner.as_bytes(),
            ms.as_bytes(),
            if request.generated { b"1" } else { b"0" },
            from.as_ref().map_or(b"", |from| from.as_bytes()),
        ];
        let (key, token) = (self.key(name), self.beside("redisson_lock_token", name));
        let keys: [Key<'_>; 2] = [whole(key.as_bytes()), whole(token.as_bytes())];
        let (answer, repeated) = self.redis.run(&scripts::REDISSON_ACQUIRE, &keys, &args, Repeat::Settled, end).await?;
        let Value::Array(parts) = &answer else { return Err(odd(&answer)) };
        let holder = match &parts[..] {
            [Value::Int(1), token] => {
                let token = counter(token).map_err(Error::maybe_applied)?;
                let unfit = || Error::refused(format!("the token of {name:?} stands at {token}, beyond what a fence can be"));
                let fence = Fence::from_token(token).ok_or_else(|| unfit().maybe_applied())?;
                return Ok(AcquireReply::Granted(Grant::new(Some(fence), *ttl)));
            }
            [Value::Int(0), Value::BulkString(field), Value::Int(left)] => Some(held_by(field, *left)),
            [Value::Int(0)] => None,
            _ => return Err(odd(&answer)),
        };
        let polls = self.redis.poll_interval(false, None, None);
        // The end of a lease, and an unlock of an RSpinLock, are published by nobody.
        let busy = Busy::new(if self.redis.connection.hears() { HEARTBEAT.max(polls) } else { polls });
        let answer = AcquireReply::Busy(busy.with_holder(holder));
        if !repeated {
            return Ok(answer);
        }
        // A supplied token may be the field of one of ours. Then the holder is shown as that.
        check_repeated(&request.clone().with_owner(ours(owner.as_bytes())), answer)
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // As Redisson's RMultiLock: one after another.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        let leases: Vec<Lease> = leases.iter().map(|lease| lease.clone().with_owner(theirs(&lease.owner))).collect();
        self.redis.renew_all(&leases, At::Field, end).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let (end, linger) = (self.redis.end(lease.ttl), Digits::of(millis(linger)));
        let (owner, lingering) = (theirs(&lease.owner), theirs(&lease.owner.lingering()));
        let args = [owner.as_bytes(), lingering.as_bytes(), linger.as_bytes()];
        let (key, channel) = (self.key(&lease.name), self.channel(&lease.name));
        let keys: [Key<'_>; 2] = [whole(key.as_bytes()), whole(channel.as_bytes())];
        released(self.redis.run(&scripts::REDISSON_RELEASE, &keys, &args, releases(lease), end).await?)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let listener = self.redis.connection.listen_on(&self.channel(&request.name), self.redis.end(request.ttl)).await?;
        Ok(listener.map(|_| Notice::Changed).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            self.redis.layout.check(name)?;
            // Whatever holds it: a supplied token may be anything.
            let found = self.look(std::slice::from_ref(name), |field| field != MODE).await?;
            return found.into_iter().filter_map(Result::transpose).collect();
        }
        let mut entries = Vec::new();
        let mut scan = self.redis.scan("", "hash");
        while let Some(keys) = scan.next().await? {
            let names: Vec<Name> = keys.iter().filter_map(|key| self.redis.name_of(key)).collect();
            entries.extend(self.look(&names, is_owner_of_redisson).await?.into_iter().filter_map(Result::ok).flatten());
        }
        Ok(entries)
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
        self.redis.fmt(f)
    }
}

impl fmt::Debug for RedissonStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedissonStore({:?})", self.redis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_field_and_back() {
        for label in ["web-1", "", "42", "a:b.", "x:write"] {
            let owner = Owner::generate(label).unwrap();
            let field = theirs(&owner);
            assert_eq!((&ours(field.as_bytes()), is_owner_of_redisson(field.as_bytes())), (&owner, true), "{field}");
            assert_eq!(ours(theirs(&owner.lingering()).as_bytes()), owner.lingering());
            assert!(theirs(&field) == field && !field.is_generated(), "{field}");
        }
        for foreign in ["00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48", "00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:-7", "mine", ""] {
            let owner = Owner::from_bytes(foreign.as_bytes());
            assert_eq!((theirs(&owner), ours(foreign.as_bytes())), (owner.clone(), owner), "{foreign}");
            assert_eq!(is_owner_of_redisson(foreign.as_bytes()), foreign.len() > 36, "{foreign}");
        }
    }
}
