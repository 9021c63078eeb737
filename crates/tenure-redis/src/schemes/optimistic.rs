//! Locks by `WATCH`, `MULTI` and `EXEC`, for servers and proxies that run no scripts.
//!
//! A name holds its whole record as one value: holders, waiters, and their ends. A call reads the
//! value, changes it here, and writes it back unless anybody has changed it meanwhile. Then it
//! begins anew. A watch belongs to a connection, so there are transaction connections with one
//! transaction at a time: an `EXEC` of another caller would end the watch, and pass its change as
//! unharmed.
//!
//! A value that is no record is a lock of another library. It is left as it is, so nobody can queue
//! behind it.

mod found;
mod transaction;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::store::record::{Answer, Change, Served};
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, Name};
use tokio::time::Instant;

use self::found::Found;
use self::transaction::{Done, TransactionConnection, Tried, add_questions, overtaken, read_found};
use crate::native::reply::{check_repeated, released, releases};
use crate::native::store::{RedisStore, Settings};
use crate::transport::commands::{Commands, millis};
use crate::transport::connection::Repeat;
use crate::transport::link::Link;

/// Every kind of lock by `WATCH`, see [`Scheme::Watch`](crate::Scheme::Watch).
///
/// # Round trips
/// Each call 2, and 2 more whenever another client was faster; renew 2 for each 100 leases; a
/// hand-over 1 more, to notify. One call after another.
pub(crate) struct OptimisticStore {
    /// For everything that needs no transaction, and for pushes.
    redis: RedisStore,
    transactions: TransactionConnection,
    /// Renewals have a connection of their own, so that they do not queue behind many waiters. A
    /// renewal that runs late changes nothing, because it only writes what nobody has changed.
    renewals: TransactionConnection,
}

/// Leases in one transaction: more would be overtaken more often.
const BATCH: usize = 100;

impl OptimisticStore {
    pub(crate) async fn connect(redis: RedisStore, settings: &Settings) -> Result<Self, Error> {
        let transactions = TransactionConnection::open(settings, &redis, true).await?;
        let renewals = TransactionConnection::open(settings, &redis, false).await?;
        Ok(Self { redis, transactions, renewals })
    }

    /// Notifies those who were served. A waiter that misses it finds out by its next poll.
    async fn tell<T>(&self, change: Change<T>, end: Instant) -> T {
        let notified: Vec<&Served> = change.served.iter().filter(|served| !served.wake.is_empty()).collect();
        if !notified.is_empty() {
            let publish = |_: &Link| {
                let mut commands = Commands::new();
                for Served { owner, counter, handoff_ttl, wake, .. } in &notified {
                    let message = [format!("{counter}:{} ", millis(*handoff_ttl)).as_bytes(), owner.as_bytes()].concat();
                    commands.add(&[b"PUBLISH", wake.as_bytes(), &message]);
                }
                commands
            };
            let _ = self.redis.connection.exchange(end, Repeat::Freely, publish).await;
        }
        change.answer
    }

    /// Tries to renew leases in one transaction. None if another client was faster.
    async fn renew_batch(&self, leases: &[Lease], end: Instant) -> Result<Option<Vec<RenewReply>>, Error> {
        let names: Vec<&Name> = leases.iter().map(|lease| &lease.name).collect();
        // Leases of one name are changes to one record.
        let (mut indexes, mut distinct) = (Vec::with_capacity(names.len()), Vec::<&Name>::new());
        for name in names {
            let known = distinct.iter().position(|known| *known == name);
            indexes.push(known.unwrap_or(distinct.len()));
            if known.is_none() {
                distinct.push(name);
            }
        }
        let mut renew = |found: &mut [Found], now, _: &mut dyn FnMut() -> u64| {
            let renew = |(lease, index): (&Lease, &usize)| found[*index].record.renew(&lease.owner, lease.ttl, now);
            Ok(leases.iter().zip(&indexes).map(renew).collect())
        };
        let _turn = self.renewals.turn(end).await?;
        Ok(match self.renewals.attempt(&distinct, false, Repeat::Settled, end, &mut renew).await? {
            Tried::Done(done) => Some(done.outcome),
            Tried::FarBehind | Tried::Overtaken { .. } => None,
        })
    }

    async fn inspect_names(&self, names: &[&Name]) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            add_questions(&mut commands, &self.redis.layout, names);
            commands
        };
        let answers = self.redis.connection.exchange(self.redis.end(Duration::MAX), Repeat::Freely, ask).await?.answers;
        let (now, found) = read_found(answers)?;
        let entry = |(name, found): (&&Name, Result<Found, Error>)| {
            let found = found?;
            found.check()?;
            Ok(found.record.inspect(name, now))
        };
        Ok(names.iter().zip(found).map(entry).collect())
    }
}

#[async_trait]
impl Store for OptimisticStore {
    fn features(&self) -> Features {
        let late_commands = self.transactions.has_late_commands() || self.renewals.has_late_commands();
        self.redis.features().with_late_commands(late_commands).with_timed_calls(false)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check_request(request)?;
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        let (end, channel) = (self.redis.end(request.ttl), self.redis.connection.channel().unwrap_or_default());
        let acquire = |found: &mut [Found], now, next: &mut dyn FnMut() -> u64| found[0].acquire(request, channel, now, next);
        let Done { outcome, grant_seq, repeated } =
            self.transactions.transact(&[&request.name], Repeat::Settled, end, acquire).await?;
        let answer = self.tell(outcome, end).await;
        let poll_interval = match &answer {
            Answer::Busy { position, holder } => self.redis.poll_interval(!channel.is_empty(), *position, holder.as_ref()),
            Answer::Granted(_) => {
                self.redis.counter.confirmed(&request.owner);
                Duration::ZERO
            }
        };
        let answer = answer.acquired(poll_interval, Some(grant_seq));
        if repeated && !request.generated { check_repeated(request, answer) } else { Ok(answer) }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(Request { ttl, .. }) = requests.first() else { return Ok(Some(Vec::new())) };
        for request in requests {
            self.redis.layout.check(&request.name)?;
        }
        let (names, end): (Vec<&Name>, _) = (requests.iter().map(|request| &request.name).collect(), self.redis.end(*ttl));
        let acquire = |found: &mut [Found], now, next: &mut dyn FnMut() -> u64| {
            let mut tried = found.to_vec();
            let one = |(request, found): (&Request, &mut Found)| found.acquire(request, "", now, next).map(Change::granted);
            // Each name is read, even after a busy one: a name of another kind is an error.
            let changes: Vec<Option<Change<Grant>>> = requests.iter().zip(&mut tried).map(one).collect::<Result<_, Error>>()?;
            let changes: Option<Vec<Change<Grant>>> = changes.into_iter().collect();
            if changes.is_some() {
                found.clone_from_slice(&tried);
            }
            Ok(changes)
        };
        let Some(changes) = self.transactions.transact(&names, Repeat::Settled, end, acquire).await?.outcome else {
            return Ok(None);
        };
        let mut grants = Vec::with_capacity(changes.len());
        for change in changes {
            grants.push(self.tell(change, end).await);
        }
        Ok(Some(grants))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        let checked = self.redis.check_pushed(leases, end).await;
        let leases = &checked.kept;
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = leases.iter().map(|_| None).collect();
        let mut parts: VecDeque<Range<usize>> =
            (0..leases.len()).step_by(BATCH).map(|at| at..leases.len().min(at + BATCH)).collect();
        while let Some(part) = parts.pop_front() {
            let outcome = self.renew_batch(&leases[part.clone()], end).await;
            let again = match &outcome {
                Ok(renewals) => renewals.is_none() && Instant::now() < end,
                Err(error) => part.len() > 1 && !error.is_transient(),
            };
            if again {
                // Halved, until the lease that is refused stands alone and does not hold up the
                // others.
                let middle = part.start + part.len() / 2;
                parts.extend([part.start..middle, middle..part.end].into_iter().filter(|part| !part.is_empty()));
                continue;
            }
            let outcome = outcome.and_then(|renewals| renewals.ok_or_else(overtaken));
            for at in part.clone() {
                let of_one = |renewals: &Vec<RenewReply>| renewals[at - part.start];
                answers[at] = Some(outcome.as_ref().map(of_one).map_err(Error::clone));
            }
        }
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(overtaken()))).collect();
        self.redis.answered(checked, answers)
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let end = self.redis.end(lease.ttl);
        let release = |found: &mut [Found], now, next: &mut dyn FnMut() -> u64| {
            Ok(found[0].record.release(&lease.owner, linger, now, next))
        };
        let Done { outcome, repeated, .. } = self.transactions.transact(&[&lease.name], releases(lease), end, release).await?;
        self.redis.counter.confirmed(&lease.owner);
        let answer = Value::Int(i64::from(self.tell(outcome, end).await == ReleaseReply::Released));
        released((answer, repeated))
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.redis.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            self.redis.layout.check(name)?;
            return self.inspect_names(&[name]).await?.into_iter().filter_map(Result::transpose).collect();
        }
        let mut entries = Vec::new();
        let mut scan = self.redis.scan("", "string");
        while let Some(keys) = scan.next().await? {
            let names: Vec<Name> = keys.iter().filter_map(|key| self.redis.name_of(key)).collect();
            let found = self.inspect_names(&names.iter().collect::<Vec<_>>()).await?.into_iter().filter_map(Result::ok).flatten();
            // A foreign lock looks like any other value.
            entries.extend(
                found.filter(|entry| !entry.waiters.is_empty() || entry.holders.iter().any(|holder| holder.fence.is_some())),
            );
        }
        Ok(entries)
    }
}

impl fmt::Display for OptimisticStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for OptimisticStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OptimisticStore({:?})", self.redis)
    }
}
