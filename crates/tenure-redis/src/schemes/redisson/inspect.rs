//! Who holds what of Redisson's, and who waits.

use std::time::Duration;

use redis::{RedisResult, Value};
use tenure::{Entry, Error, ErrorKind, Holder, Name, Owner, Queued, Share};

use super::owner::{ours, theirs};
use super::share::{held_by, permits_of, share_of};
use super::{RedissonStore, Servers};
use crate::native::foreign::{behind_of_redisson, inside_braces, is_owner_of_redisson};
use crate::native::store::RedisStore;
use crate::scripts;
use crate::transport::commands::{Commands, Key, whole};
use crate::transport::connection::Repeat;
use crate::transport::failure::{is_moving, unexpected};
use crate::transport::link::Link;
use crate::transport::reply::read;

impl RedissonStore {
    /// The name that has this key, or permits whose ends are at this key.
    fn name_of(&self, key: &[u8], kind: &str) -> Option<Name> {
        if kind == "hash" {
            return self.servers.any().name_of(key);
        }
        let key = std::str::from_utf8(key.strip_suffix(b":timeout")?).ok()?;
        self.servers.any().name_of(inside_braces(key).unwrap_or(key).as_bytes())
    }

    /// The entries of names, whatever of Redisson's has them. A free name has none.
    /// `alone`: of those that are one key alone, while others may be elsewhere. The rest is refused as one whose
    /// slot moves.
    async fn look(&self, redis: &RedisStore, names: &[Name], alone: bool) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        let keys = names.iter().map(|name| {
            let key = self.key(name);
            let (ends, never) = (behind_of_redisson(&key, "timeout"), self.never(&key).filter(|_| !alone));
            let [queue, dues] = self.queue(name);
            ([key, ends, queue, dues], never)
        });
        let keys: Vec<([String; 4], Option<String>)> = keys.collect();
        let build = |_: &Link, form| {
            let mut commands = Commands::new();
            for ([key, beside @ ..], never) in &keys {
                let keys: Vec<Key<'_>> = std::iter::once(key).chain(never).map(|key| whole(key.as_bytes())).collect();
                let [ends, queue, dues] = beside.each_ref().map(String::as_bytes);
                let args = [ends, queue, dues, if alone { b"1" } else { b"0" }];
                scripts::add_call(&mut commands, &scripts::REDISSON_INSPECT, form, &keys, &args);
            }
            commands
        };
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let answers = redis.connection.call(redis.end(Duration::MAX), Repeat::Freely, build).await?.answers;
        let entry = |(name, answer): (&Name, RedisResult<Value>)| {
            let (found, waiters): (Vec<Value>, Vec<Vec<u8>>) = read(answer).map_err(|error: Error| match error.kind() {
                ErrorKind::Mismatch => no_lock(),
                _ => error,
            })?;
            let holders = holders(&found)?;
            let waiters = waiters.iter().map(|owner| Queued::new(ours(owner), Share::MUTEX)).collect();
            Ok(Some(Entry::new(name.clone(), holders, waiters)).filter(Entry::is_in_use))
        };
        Ok(names.iter().zip(answers).map(entry).collect())
    }

    /// The entry of one name. While its slot moves, that of one whose key says all of it.
    pub(super) async fn look_at(&self, name: &Name) -> Result<Option<Entry>, Error> {
        self.check(name)?;
        let look = |alone| {
            move |redis: RedisStore| async move {
                let mut found = self.look(&redis, std::slice::from_ref(name), alone).await?;
                match found.pop() {
                    Some(Err(error)) => Err(self.named(&redis, error, name).await),
                    Some(entry) => entry,
                    None => Err(unexpected("no reply")),
                }
            }
        };
        let cluster = match &self.servers {
            Servers::One(redis) => return look(false)(redis.clone()).await,
            Servers::Cluster(cluster) => cluster,
        };
        let end = cluster.redis.end(Duration::MAX);
        for alone in [false, true] {
            match cluster.at_node(name, end, look(alone)).await {
                Err(error) if is_moving(&error) => {}
                answer => return answer,
            }
        }
        cluster.at_one_node(name, end, look(false)).await
    }

    /// All that is held at one server.
    pub(super) async fn list(&self, redis: &RedisStore) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        // The prefix of ends stands behind a brace.
        for (kind, mut scan) in [("hash", redis.scan("", "hash")), ("zset", redis.scan_behind("", "*:timeout", "zset"))] {
            while let Some(keys) = scan.next().await? {
                let names: Vec<Name> = keys.iter().filter_map(|key| self.name_of(key, kind)).collect();
                // Any hash of one number looks like an RLock.
                let is_theirs = |holder: &Holder| kind == "zset" || is_owner_of_redisson(theirs(&holder.owner).as_bytes());
                for (name, found) in names.iter().zip(self.look(redis, &names, false).await?) {
                    let found = match found {
                        Err(error) if is_moving(&error) => self.look_at(name).await,
                        found => found,
                    };
                    match found {
                        // It is anything else, or not to be read.
                        Err(error) if !error.is_transient() => {}
                        found => entries.extend(found?.filter(|entry| entry.holders.iter().any(is_theirs))),
                    }
                }
            }
        }
        Ok(entries)
    }
}

/// The holders in the reply of `redisson-inspect.lua`.
fn holders(found: &[Value]) -> Result<Vec<Holder>, Error> {
    let odd = || unexpected(format_args!("{found:?} to an inspection"));
    let [what, holders @ ..] = found else { return Ok(Vec::new()) };
    let mut shares: Vec<(Owner, i64, u32)> = Vec::with_capacity(holders.len() / 2);
    for pair in holders.chunks(2) {
        let [Value::BulkString(owner), Value::Int(left)] = pair else { return Err(odd()) };
        let owner = if matches!(what, Value::Int(_)) { owner_of(owner) } else { owner };
        match shares.iter_mut().find(|share| matches!(what, Value::Int(_)) && share.0.as_bytes() == owner) {
            Some(share) => share.2 += 1,
            None => shares.push((Owner::from_bytes(owner), *left, 1)),
        }
    }
    let share = |weight| match what {
        Value::Int(permits) => permits_of(weight, *permits),
        Value::BulkString(word) => share_of(word),
        _ => None,
    };
    let holder = |(owner, left, weight): (Owner, i64, u32)| Some(held_by(owner.as_bytes(), left, share(weight)?));
    shares.into_iter().map(|share| holder(share).ok_or_else(odd)).collect()
}

/// The owner of one permit. Redisson's have 16 bytes, mostly none of text, and no owner.
fn owner_of(member: &[u8]) -> &[u8] {
    let digits = member.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    match member[..member.len() - digits].strip_suffix(b"#") {
        Some(owner) if digits > 0 => owner,
        _ => member,
    }
}

/// The error of a key that is no lock of Redisson.
fn no_lock() -> Error {
    Error::new(ErrorKind::Mismatch, "the key is no lock or semaphore of Redisson: another of its objects, or none at all")
        .with_hint("use another name, or a prefix= of your own")
}
