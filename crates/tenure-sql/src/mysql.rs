//! A table in MariaDB or MySQL that any number of machines share.

mod advisory;
mod cluster;
mod failure;
mod options;
#[cfg_attr(not(feature = "mysql_async-0_37"), allow(dead_code, reason = "only that feature has a pool"))]
mod pool;
mod read;
mod server;
mod statements;
mod work;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::Value;
use tenure::store::cas::Renewed;
use tenure::store::{RenewReply, Request};
use tenure::{Error, ErrorKind, Lease, Name};
use tokio::time::Instant;

pub use self::options::Options;
#[cfg(feature = "mysql_async-0_37")]
pub use self::options::over;
use self::server::{How, Statements};
use self::work::{Done, Statement, Work};
use crate::table::failure::unexpected;
use crate::table::{Connection, Found, Push, SWEEP_SPAN, Table, Tried, Write, Wrote};

/// Leases in one statement.
const BATCH: usize = 100;

/// The statements of [`statements`], on the server.
struct MySql {
    connection: Connection<How>,
}

impl MySql {
    fn statements(&self) -> &Statements {
        &self.connection.server().statements
    }

    async fn run(&self, sql: &str, arguments: Vec<Value>, end: Instant) -> Result<Done, Error> {
        self.connection.run(Work::One(&Statement { sql: sql.to_owned(), arguments }), end).await
    }

    async fn run_freely(&self, sql: &str, arguments: Vec<Value>, end: Instant) -> Result<Done, Error> {
        self.connection.run_freely(Work::One(&Statement { sql: sql.to_owned(), arguments }), end).await
    }

    async fn read_one(&self, name: &Name, end: Instant) -> Result<Found, Error> {
        self.read(&[name], end).await?.pop().ok_or_else(|| unexpected("it has no row"))
    }

    /// As [`renew_batch`](Self::renew_batch), after it failed because of a row that somebody keeps locked: that one does not hold
    /// up the others again.
    async fn renew_unlocked(&self, leases: &[Lease], locked: Error, end: Instant) -> Result<Renewed, Error> {
        let names = leases.iter().map(|lease| text(lease.name.as_str())).collect();
        // An old server does not know how to ask.
        let Ok(done) = self.run_freely(&self.statements().unlocked(leases.len()), names, end).await else { return Err(locked) };
        let unlocked = done.rows.iter().map(|row| read::column(row, 0)).collect::<Result<HashSet<Vec<u8>>, Error>>()?;
        let is_unlocked = |lease: &Lease| unlocked.contains(lease.name.as_str().as_bytes());
        let (positions, free): (Vec<usize>, Vec<Lease>) =
            leases.iter().cloned().enumerate().filter(|(_, lease)| is_unlocked(lease)).unzip();
        let mut renewed: Renewed = Vec::with_capacity(leases.len());
        if !free.is_empty() {
            renewed.extend(self.renew_batch(&free, end).await?.into_iter().map(|(at, reply)| (positions[at], reply)));
        }
        let others = leases.iter().enumerate().filter(|(_, lease)| !is_unlocked(lease));
        renewed.extend(others.map(|(at, _)| (at, Err(locked.clone()))));
        Ok(renewed)
    }

    /// Renews at most [`BATCH`] leases. Leaves out those whose name others hold or wait for as well.
    async fn renew_batch(&self, leases: &[Lease], end: Instant) -> Result<Renewed, Error> {
        let (sent_at, mut arguments) = (Instant::now(), Vec::with_capacity(leases.len() * 3));
        for lease in leases {
            arguments.extend([text(lease.name.as_str()), owner(&lease.owner), micros(lease.ttl).into()]);
        }
        let done = self.run_freely(&self.statements().renew(leases.len()), arguments, end).await?;
        if usize::try_from(done.affected) == Ok(leases.len()) {
            return Ok((0..leases.len()).map(|at| (at, Ok(RenewReply::Renewed))).collect());
        }
        // It does not say which. Those that last their ttl from when this was sent are among them.
        let names: Vec<&Name> = leases.iter().map(|lease| &lease.name).collect();
        let found = self.read(&names, end).await?;
        let age = sent_at.elapsed();
        let reply = |(lease, found): (&Lease, &Found)| {
            let ours = found.version.row.as_ref().filter(|row| row.owner.as_ref() == Some(&lease.owner.to_string()));
            if ours.is_some_and(|row| Duration::from_micros(row.until) + age >= found.now + lease.ttl) {
                return Some(RenewReply::Renewed);
            }
            let is_gone = found.record.holders().all(|held| held.owner != lease.owner);
            is_gone.then_some(RenewReply::Gone)
        };
        let replies = leases.iter().zip(&found).map(reply).enumerate();
        Ok(replies.filter_map(|(at, reply)| Some((at, Ok(reply?)))).collect())
    }
}

#[async_trait]
impl Table for MySql {
    fn address(&self) -> Option<String> {
        None
    }

    fn pushes(&self) -> bool {
        false
    }

    fn has_late_commands(&self) -> bool {
        self.connection.has_late_commands()
    }

    fn max_name(&self) -> usize {
        Name::MAX_BYTES
    }

    fn spread(&self) -> Duration {
        if self.connection.server().is_cluster.load(Ordering::Relaxed) { cluster::SPREAD } else { Duration::ZERO }
    }

    async fn take(&self, request: &Request, end: Instant) -> Result<Tried<u64>, Error> {
        let (name, token, ttl) = (text(request.name.as_str()), owner(&request.owner), Value::from(micros(request.ttl)));
        let arguments = vec![
            token.clone(),
            token.clone(),
            ttl.clone(),
            ttl.clone(),
            token.clone(),
            name.clone(),
            token.clone(),
            i64::from(request.generated).into(),
        ];
        // A supplied token may be another client's, which a repetition would mistake for ours.
        let answer = if request.generated {
            let take = Statement { sql: self.statements().take.clone(), arguments };
            self.connection.run_settled(Work::One(&take), end).await?
        } else {
            self.run(&self.statements().take, arguments, end).await?
        };
        if answer.affected == 1 {
            return Ok(Tried::Done(answer.insert_id));
        }
        let found = self.read_one(&request.name, end).await?;
        if found.version.row.is_some() {
            return Ok(Tried::Other(Some(found)));
        }
        let added = self.run(&self.statements().add, vec![name, token, ttl], end).await?;
        if added.affected == 1 {
            return Ok(Tried::Done(added.insert_id));
        }
        Ok(Tried::Other(Some(self.read_one(&request.name, end).await?)))
    }

    async fn free(&self, lease: &Lease, end: Instant) -> Result<Tried<()>, Error> {
        let arguments = vec![text(lease.name.as_str()), owner(&lease.owner)];
        if self.run(&self.statements().free, arguments, end).await?.affected == 1 {
            return Ok(Tried::Done(()));
        }
        Ok(Tried::Other(Some(self.read_one(&lease.name, end).await?)))
    }

    async fn renew(&self, leases: &[Lease], end: Instant) -> Result<Renewed, Error> {
        let mut renewed = Vec::with_capacity(leases.len());
        for (part, batch) in leases.chunks(BATCH).enumerate() {
            let outcomes = match self.renew_batch(batch, end).await {
                Err(error) if batch.len() > 1 && error.kind() == ErrorKind::Overloaded => {
                    self.renew_unlocked(batch, error, end).await
                }
                replies => replies,
            };
            // What other batches were answered stays true.
            let failed = |error: Error| (0..batch.len()).map(|at| (at, Err(error.clone()))).collect();
            let outcomes: Renewed = outcomes.unwrap_or_else(failed);
            renewed.extend(outcomes.into_iter().map(|(at, outcome)| (part * BATCH + at, outcome)));
        }
        Ok(renewed)
    }

    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error> {
        let arguments = names.iter().zip(0_u64..).flat_map(|(name, at)| [at.into(), text(name.as_str())]).collect();
        let done = self.run_freely(&self.statements().read(names.len()), arguments, end).await?;
        if done.rows.len() != names.len() {
            return Err(unexpected("it has another number of rows"));
        }
        done.rows.iter().map(read::found).collect()
    }

    async fn write(&self, rows: &[Write<'_>], _: &[Push], end: Instant) -> Result<Wrote, Error> {
        let mut rows: Vec<&Write<'_>> = rows.iter().collect();
        // So that two who write several do not wait for each other.
        rows.sort_by_key(|row| row.name);
        let statement = |row: &&Write<'_>| {
            let columns = &row.columns;
            let optional = |text: &Option<String>| text.as_deref().map_or(Value::NULL, self::text);
            let mut arguments = vec![
                row.version.into(),
                row.fence.into(),
                optional(&columns.owner),
                columns.since.into(),
                columns.until.into(),
                optional(&columns.record),
                text(row.name.as_str()),
            ];
            let is_new = row.was == 0;
            arguments.extend((!is_new).then(|| Value::from(row.was)));
            let sql = if is_new { &self.statements().insert } else { &self.statements().change };
            Statement { sql: sql.clone(), arguments }
        };
        let statements: Vec<Statement> = rows.iter().map(statement).collect();
        let work = if let [one] = &statements[..] { Work::One(one) } else { Work::All(&statements) };
        let done = self.connection.run(work, end).await?;
        Ok(if done.affected == 1 { Wrote::all() } else { Wrote::nothing() })
    }

    async fn list(&self, end: Instant) -> Result<Vec<Found>, Error> {
        let done = self.run_freely(&self.statements().list, Vec::new(), end).await?;
        done.rows.iter().map(read::found).collect()
    }

    async fn sweep(&self, after: &str, end: Instant) -> Result<Option<String>, Error> {
        let looked = self.run_freely(&self.statements().look, vec![text(after), SWEEP_SPAN.into()], end).await?;
        let mut last = None;
        for row in &looked.rows {
            let name: Vec<u8> = read::column(row, 0)?;
            if read::column::<i64>(row, 3)? != 0 {
                let (version, fence): (u64, u64) = (read::column(row, 1)?, read::column(row, 2)?);
                self.run(&self.statements().keep, vec![fence.into()], end).await?;
                self.run(&self.statements().remove, vec![name.clone().into(), version.into()], end).await?;
            }
            last = String::from_utf8(name).ok();
        }
        Ok(last)
    }

    async fn listen(&self, _: Instant) -> Result<(), Error> {
        Ok(())
    }
}

fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

fn owner(owner: &tenure::Owner) -> Value {
    text(&owner.to_string())
}

/// A span as the server adds it to its clock. Ten thousand years are long enough.
fn micros(span: Duration) -> u64 {
    const LONGEST: u64 = 10_000 * 366 * 24 * 3_600 * 1_000_000;
    u64::try_from(span.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

impl fmt::Display for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

impl fmt::Debug for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MySql({self})")
    }
}
