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

mod begun;
mod found;
mod transaction;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::cas::{Cas, CasStore, Renewed, Write, Wrote, again_and_again};
use tenure::store::record::Served;
use tenure::store::{Busy, Features, Notice, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, Name};
use tokio::time::Instant;

use self::found::{Found, Value};
use self::transaction::{TransactionConnection, add_questions, read_found};
use crate::native::inspect::Listed;
use crate::native::store::{RedisStore, Settings};
use crate::transport::commands::{Commands, millis};
use crate::transport::connection::Repeat;
use crate::transport::link::Link;

/// Every kind of lock by `WATCH`, see [`Scheme::Watch`](crate::Scheme::Watch).
///
/// # Round trips
/// Each call 2, and 2 more whenever another client was faster; renew 2 for each 100 leases; a
/// hand-over 1 more, to notify. One call after another.
pub(crate) type OptimisticStore = CasStore<Watched>;

/// The values of names, each of which is watched from its read to its write.
pub(crate) struct Watched {
    /// For everything that needs no transaction, and for pushes.
    redis: RedisStore,
    transactions: TransactionConnection,
    /// Renewals have a connection of their own, so that they do not queue behind many waiters. A
    /// renewal that runs late changes nothing, because it only writes what nobody has changed.
    renewals: TransactionConnection,
}

/// Leases in one transaction: more would be overtaken more often.
const BATCH: usize = 100;

impl Watched {
    pub(crate) async fn connect(redis: RedisStore, settings: &Settings) -> Result<OptimisticStore, Error> {
        let transactions = TransactionConnection::open(settings, &redis, true).await?;
        let renewals = TransactionConnection::open(settings, &redis, false).await?;
        Ok(CasStore::new(Self { redis, transactions, renewals }))
    }

    /// Notifies those who were served. A waiter that misses it finds out by its next poll.
    async fn tell(&self, served: impl Iterator<Item = &Served>, end: Instant) {
        let mut commands = Commands::new();
        for Served { owner, counter, handoff_ttl, wake, .. } in served.filter(|served| !served.wake.is_empty()) {
            let message = [format!("{counter}:{} ", millis(*handoff_ttl)).as_bytes(), owner.as_bytes()].concat();
            commands.add(&[b"PUBLISH", wake.as_bytes(), &message]);
        }
        if commands.count() > 0 {
            let _ = self.redis.connection.exchange(end, Repeat::Freely, |_: &Link| commands.clone()).await;
        }
    }

    /// Tries to renew leases in one transaction. None if another client was faster.
    async fn renew_batch(&self, leases: &[Lease], end: Instant) -> Result<Option<Vec<RenewReply>>, Error> {
        // Leases of one name are changes to one record.
        let (mut indexes, mut names) = (Vec::with_capacity(leases.len()), Vec::<&Name>::new());
        for Lease { name, .. } in leases {
            let known = names.iter().position(|known| *known == name);
            indexes.push(known.unwrap_or(names.len()));
            if known.is_none() {
                names.push(name);
            }
        }
        let mut found = self.renewals.begin(&names, end).await?;
        let renew = |(lease, index): (&Lease, &usize)| {
            let Found { record, now, .. } = &mut found[*index];
            record.renew(&lease.owner, lease.ttl, *now)
        };
        let replies = leases.iter().zip(&indexes).map(renew).collect();
        let states: Vec<(&Name, &Found)> = names.into_iter().zip(&found).collect();
        let wrote = self.renewals.write(&states, None, Repeat::Settled, end).await?;
        Ok(wrote.all.then_some(replies))
    }

    async fn entries(&self, names: &[Name], end: Instant) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            add_questions(&mut commands, &self.redis.layout, &names.iter().collect::<Vec<_>>());
            commands
        };
        let answers = self.redis.connection.exchange(end, Repeat::Freely, ask).await?.answers;
        let (now, found) = read_found(answers)?;
        let entry = |(name, found): (&Name, Result<Found, Error>)| Ok(found?.record.inspect(name, now));
        Ok(names.iter().zip(found).map(entry).collect())
    }
}

#[async_trait]
impl Cas for Watched {
    type Version = Value;

    fn features(&self) -> Features {
        let late_commands = self.transactions.has_late_commands() || self.renewals.has_late_commands();
        self.redis.features().with_late_commands(late_commands).with_timed_calls(false)
    }

    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error> {
        self.transactions.begin(names, end).await
    }

    async fn write(&self, writes: &[Write<'_, Value>], repeat: Repeat, end: Instant) -> Result<Wrote<Value>, Error> {
        let states: Vec<(&Name, &Found)> = writes.iter().map(|write| (write.name, write.found)).collect();
        let last = writes.iter().filter(|write| write.granted).map(|write| write.counter).max();
        let wrote = self.transactions.write(&states, last, repeat, end).await?;
        if wrote.all {
            self.tell(writes.iter().flat_map(|write| write.served), end).await;
        }
        Ok(wrote)
    }

    async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error> {
        let mut listed = Listed::default();
        let mut scan = self.redis.scan("", "string");
        while let Some(keys) = scan.next().await? {
            let names: Vec<Name> = keys.iter().filter_map(|key| self.redis.name_of(key)).collect();
            // A foreign lock looks like any other value.
            let is_ours = |entry: &Entry| !entry.waiters.is_empty() || entry.holders.iter().any(|held| held.fence.is_some());
            listed.add(self.entries(&names, end).await?, is_ours);
        }
        listed.end()
    }

    fn busy(&self, busy: Busy, hears: bool) -> Busy {
        let every = self.redis.poll_interval(hears, busy.position, busy.holder.as_ref());
        busy.with_poll_interval(every)
    }

    fn check(&self, name: &Name) -> Result<(), Error> {
        self.redis.layout.check(name)
    }

    fn check_request(&self, request: &Request) -> Result<(), Error> {
        self.redis.layout.check_request(request)
    }

    fn writes_several(&self) -> bool {
        true
    }

    fn wake(&self) -> Option<String> {
        self.redis.connection.channel().map(str::to_owned)
    }

    async fn renew(&self, leases: &[Lease], _: Instant) -> Result<Renewed, Error> {
        let end = self.redis.renewals_end(leases);
        let checked = self.redis.check_pushed(leases, end).await;
        let leases = &checked.kept;
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = vec![None; leases.len()];
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
            let outcome = outcome.and_then(|renewals| renewals.ok_or_else(again_and_again));
            for at in part.clone() {
                let of_one = |renewals: &Vec<RenewReply>| renewals[at - part.start];
                answers[at] = Some(outcome.as_ref().map(of_one).map_err(Error::clone));
            }
        }
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(again_and_again()))).collect();
        Ok(self.redis.answered(checked, answers).into_iter().enumerate().collect())
    }

    async fn watch(&self, request: &Request, _: Instant) -> Result<BoxStream<'static, Notice>, Error> {
        self.redis.watch(request).await
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({:?})", self.redis)
    }
}
