//! A table in PostgreSQL that any number of machines share.

mod advisory;
mod client;
mod clock;
mod dial;
mod failure;
mod options;
#[cfg_attr(not(feature = "tokio-postgres-0_7"), allow(dead_code, unreachable_pub, reason = "only that feature has a pool"))]
mod pool;
mod read;
mod server;
mod session;
mod source;
mod statements;
mod tls;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::cas::Renewed;
use tenure::store::{RenewReply, Request};
use tenure::{Error, Lease, Name};
use tokio::time::Instant;
use tokio_postgres::types::Type;

use self::client::Argument;
pub use self::options::Options;
#[cfg(feature = "tokio-postgres-0_7")]
pub use self::options::over;
#[cfg(feature = "tokio-postgres-0_7")]
pub use self::pool::Pool;
use self::source::{How, Statements};
use crate::table::failure::unexpected;
use crate::table::{Connection, Found, Push, SWEEP_SPAN, Table, Tried, Write, Wrote};

/// The statements of [`statements`], on the server.
struct Postgres {
    connection: Connection<How>,
}

impl Postgres {
    fn statements(&self) -> &Statements {
        self.connection.server().statements()
    }

    /// The database's clock at which a statement that has to be done by `end` comes too late.
    fn latest(&self, end: Instant) -> i64 {
        self.connection.server().clock.at(end)
    }

    /// Learns the database's clock from an answer.
    fn reads(&self, rows: &[tokio_postgres::Row], sent_at: Instant) {
        if let Some(Ok(now)) = rows.first().map(|row| read::column(row, 1)) {
            self.connection.server().clock.reads(now, sent_at);
        }
    }
}

#[async_trait]
impl Table for Postgres {
    fn address(&self) -> Option<String> {
        self.connection.address()
    }

    fn pushes(&self) -> bool {
        self.connection.may_listen()
    }

    fn has_late_commands(&self) -> bool {
        self.connection.has_late_commands()
    }

    /// Every name fits into an entry of the index.
    fn max_name(&self) -> usize {
        Name::MAX_BYTES
    }

    /// One server at a time takes writes.
    fn spread(&self) -> Duration {
        Duration::ZERO
    }

    async fn take(&self, request: &Request, end: Instant) -> Result<Tried<u64>, Error> {
        let (name, owner) = (request.name.as_str(), request.owner.to_string());
        let (ttl, patience, latest, sent_at) = (micros(request.ttl), patience(end), self.latest(end), Instant::now());
        let arguments: [Argument<'_>; 6] = [
            (&name, Type::TEXT),
            (&owner, Type::TEXT),
            (&ttl, Type::INT8),
            (&patience, Type::TEXT),
            (&request.generated, Type::BOOL),
            (&latest, Type::INT8),
        ];
        let call: (&str, &[Argument<'_>]) = (&self.statements().take, &arguments);
        // A supplied token may be another client's, which a repetition would mistake for ours.
        let rows = if request.generated {
            self.connection.run_settled(call, end).await?
        } else {
            self.connection.run(call, end).await?
        };
        self.reads(&rows, sent_at);
        Ok(match read::tried(&rows)? {
            Tried::Done(counter) => Tried::Done(read::unsigned(counter)),
            Tried::Other(found) => Tried::Other(found),
        })
    }

    async fn free(&self, lease: &Lease, end: Instant) -> Result<Tried<()>, Error> {
        let (name, owner) = (lease.name.as_str(), lease.owner.to_string());
        let (patience, latest, sent_at) = (patience(end), self.latest(end), Instant::now());
        let arguments: [Argument<'_>; 4] =
            [(&name, Type::TEXT), (&owner, Type::TEXT), (&patience, Type::TEXT), (&latest, Type::INT8)];
        let rows = self.connection.run((&self.statements().free, &arguments), end).await?;
        self.reads(&rows, sent_at);
        Ok(match read::tried(&rows)? {
            Tried::Done(_) => Tried::Done(()),
            Tried::Other(found) => Tried::Other(found),
        })
    }

    async fn renew(&self, leases: &[Lease], end: Instant) -> Result<Renewed, Error> {
        let names: Vec<&str> = leases.iter().map(|lease| lease.name.as_str()).collect();
        let owners: Vec<String> = leases.iter().map(|lease| lease.owner.to_string()).collect();
        let ttls: Vec<i64> = leases.iter().map(|lease| micros(lease.ttl)).collect();
        let (patience, latest) = (patience(end), self.latest(end));
        let arguments: [Argument<'_>; 5] = [
            (&names, Type::TEXT_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&patience, Type::TEXT),
            (&latest, Type::INT8),
        ];
        let rows = self.connection.run_freely((&self.statements().renew, &arguments), end).await?;
        let index = |row| Ok(usize::try_from(read::column::<i64>(row, 0)? - 1).unwrap_or(usize::MAX));
        let indexes: Vec<usize> = rows.iter().map(index).collect::<Result<_, Error>>()?;
        Ok(indexes.into_iter().filter(|at| *at < leases.len()).map(|at| (at, Ok(RenewReply::Renewed))).collect())
    }

    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error> {
        let (texts, sent_at): (Vec<&str>, _) = (names.iter().map(|name| name.as_str()).collect(), Instant::now());
        let rows = self.connection.run_freely((&self.statements().read, &[(&texts, Type::TEXT_ARRAY)]), end).await?;
        if rows.len() != names.len() {
            return Err(unexpected("it has another number of rows"));
        }
        self.reads(&rows, sent_at);
        rows.iter().map(read::found).collect()
    }

    async fn write(&self, rows: &[Write<'_>], pushes: &[Push], end: Instant) -> Result<Wrote, Error> {
        let column = |of: fn(&Write<'_>) -> u64| rows.iter().map(|row| signed(of(row))).collect::<Vec<i64>>();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let (was, version, fence) = (column(|row| row.was), column(|row| row.version), column(|row| row.fence));
        let (since, until) = (column(|row| row.columns.since), column(|row| row.columns.until));
        let owners: Vec<Option<&str>> = rows.iter().map(|row| row.columns.owner.as_deref()).collect();
        let records: Vec<Option<&str>> = rows.iter().map(|row| row.columns.record.as_deref()).collect();
        // A longer one would be refused, with the write. Its waiter has its heartbeat.
        let pushes = || pushes.iter().filter(|push| push.message.len() < 8_000 && session::is_channel(&push.address));
        let channels: Vec<&str> = pushes().map(|push| &*push.address).collect();
        let messages: Vec<&str> = pushes().map(|push| &*push.message).collect();
        let (patience, latest) = (patience(end), self.latest(end));
        let arguments: [Argument<'_>; 12] = [
            (&names, Type::TEXT_ARRAY),
            (&was, Type::INT8_ARRAY),
            (&version, Type::INT8_ARRAY),
            (&fence, Type::INT8_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&since, Type::INT8_ARRAY),
            (&until, Type::INT8_ARRAY),
            (&records, Type::TEXT_ARRAY),
            (&channels, Type::TEXT_ARRAY),
            (&messages, Type::TEXT_ARRAY),
            (&patience, Type::TEXT),
            (&latest, Type::INT8),
        ];
        let answer = match self.connection.run((&self.statements().write, &arguments), end).await {
            Err(error) if failure::was_undone(&error) => return Ok(Wrote::nothing()),
            // The rows count more than the notifications: waiters poll with their heartbeats.
            Err(error) if failure::is_beyond_limit(&error) && !channels.is_empty() => return self.write(rows, &[], end).await,
            answer => answer?,
        };
        let row = answer.first().ok_or_else(|| unexpected("it has no row"))?;
        if usize::try_from(read::column::<i64>(row, 0)?) == Ok(rows.len()) {
            return Ok(Wrote::all());
        }
        Ok(Wrote::nothing().with_found(Some(read::found(row)?).filter(|found| found.version.row.is_some())))
    }

    async fn list(&self, end: Instant) -> Result<Vec<Found>, Error> {
        let rows = self.connection.run_freely((&self.statements().list, &[]), end).await?;
        rows.iter().map(read::found).collect()
    }

    async fn sweep(&self, after: &str, end: Instant) -> Result<Option<String>, Error> {
        let (patience, latest) = (patience(end), self.latest(end));
        let arguments: [Argument<'_>; 4] =
            [(&after, Type::TEXT), (&SWEEP_SPAN, Type::INT8), (&patience, Type::TEXT), (&latest, Type::INT8)];
        let rows = self.connection.run((&self.statements().sweep, &arguments), end).await?;
        rows.first().map_or(Ok(None), |row| read::column(row, 0))
    }

    async fn listen(&self, end: Instant) -> Result<(), Error> {
        self.connection.listen(end).await
    }
}

/// How long a statement waits for a row that somebody else has locked, in milliseconds. It may wait twice, for another that waits
/// and then for the row. Its answer is to be there in half of the time, after which it is sent again.
fn patience(end: Instant) -> String {
    let left = end.saturating_duration_since(Instant::now());
    (left.as_millis() / 6).max(1).to_string()
}

/// A span as the server adds it to its clock. Ten thousand years are long enough.
fn micros(span: Duration) -> i64 {
    const LONGEST: i64 = 10_000 * 366 * 24 * 3_600 * 1_000_000;
    i64::try_from(span.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl fmt::Display for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({self})")
    }
}
