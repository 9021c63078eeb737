//! A pool of the application's.
//!
//! Nothing of a lent connection is changed. A transaction that somebody has left open in it is never
//! joined: what is done in it might be undone.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use tenure::{Error, ErrorKind};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::client::Argument;
use super::failure::{self, translate_contact};
use super::statements::BETWEEN_TRANSACTIONS;
use crate::table::failure::open_transaction;
use crate::table::{Borrowed, Failed, Lent, Worker, lend, lend_by};

/// Limit of the first look at the table.
const CONTACT: Duration = Duration::from_secs(3);

/// A pool of connections to PostgreSQL, for [`over`](super::over).
pub trait Pool: Send + Sync + 'static {
    /// A connection that the pool has lent. Dropping it gives it back.
    type Lent: Send + Sync + 'static;

    /// Lends a connection.
    fn lend(&self) -> impl Future<Output = Result<Self::Lent, Box<dyn StdError + Send + Sync>>> + Send;

    /// Returns the connection itself.
    fn client(lent: &Self::Lent) -> &tokio_postgres::Client;

    /// Closes a connection, instead of giving it back: a statement on it has no answer.
    fn discard(lent: Self::Lent);
}

/// A [`Pool`], whatever its type.
#[async_trait]
pub(super) trait AnyPool: Send + Sync {
    async fn lend(&self) -> Result<Box<dyn AnyLent>, Box<dyn StdError + Send + Sync>>;
}

pub(super) trait AnyLent: Send + Sync {
    fn client(&self) -> &tokio_postgres::Client;
    fn discard(self: Box<Self>);
}

struct One<P: Pool>(P::Lent);

#[async_trait]
impl<P: Pool> AnyPool for P {
    async fn lend(&self) -> Result<Box<dyn AnyLent>, Box<dyn StdError + Send + Sync>> {
        let lent: Box<dyn AnyLent> = Box::new(One::<P>(Pool::lend(self).await?));
        Ok(lent)
    }
}

impl<P: Pool> AnyLent for One<P> {
    fn client(&self) -> &tokio_postgres::Client {
        P::client(&self.0)
    }

    fn discard(self: Box<Self>) {
        P::discard(self.0);
    }
}

impl Lent for Box<dyn AnyLent> {
    fn discard(self) {
        AnyLent::discard(self);
    }
}

/// A statement for a lent connection.
pub(super) struct Job {
    sql: String,
    arguments: Vec<(Encoded, Type)>,
    end: Instant,
}

impl Job {
    pub(super) fn new(sql: &str, arguments: &[Argument<'_>], end: Instant) -> Result<Self, Error> {
        let encoded = |(value, kind): &Argument<'_>| {
            let mut bytes = BytesMut::new();
            let is_null = value.to_sql_checked(kind, &mut bytes).map_err(|error| Error::invalid(error.to_string()))?;
            Ok((Encoded(matches!(is_null, IsNull::No).then_some(bytes)), kind.clone()))
        };
        let arguments = arguments.iter().map(encoded).collect::<Result<_, Error>>()?;
        Ok(Self { sql: sql.to_owned(), arguments, end })
    }
}

/// An argument as it is sent. `None` is NULL.
struct Encoded(Option<BytesMut>);

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encoded")
    }
}

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let Some(bytes) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Borrows a connection for each job.
#[derive(Clone)]
pub(super) struct Lender {
    pool: Arc<dyn AnyPool>,
    table: String,
}

impl Lender {
    pub(super) fn new(pool: impl Pool, table: String) -> Self {
        Self { pool: Arc::new(pool), table }
    }

    /// Looks at the table, as `look` does on a connection.
    pub(super) async fn check<T>(&self, look: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, Error>) -> Result<T, Error> {
        let mut borrowed = self.lend(Instant::now() + CONTACT).await.map_err(|failed| failed.error)?;
        let Some(lent) = borrowed.client() else { return Err(open_transaction()) };
        lent.client().batch_execute(BETWEEN_TRANSACTIONS).await.map_err(|error| self.failed(&error).error)?;
        let checked = look(lent.client()).await;
        if !checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unreachable) {
            borrowed.give_back();
        }
        checked
    }

    async fn lend(&self, by: Instant) -> Result<Borrowed<Box<dyn AnyLent>>, Failed> {
        let failed = |error: Box<dyn StdError + Send + Sync>| {
            let what = "the pool lent no connection";
            let mut cause: Option<&(dyn StdError + 'static)> = Some(&*error);
            while let Some(one) = cause {
                if let Some(answer) = one.downcast_ref::<tokio_postgres::Error>() {
                    return translate_contact(answer, &self.table).context(what);
                }
                cause = one.source();
            }
            Error::overloaded(format!("{what}: {error}"))
        };
        lend(by, self.pool.lend(), failed).await
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Failed {
        let failed = failure::failed(error, &self.table);
        if failure::is_in_transaction(error) { Failed { error: open_transaction(), ..failed } } else { failed }
    }
}

#[async_trait]
impl Worker for Lender {
    type Job = Job;
    type Answer = Result<Vec<Row>, Failed>;

    async fn work(&mut self, job: Job) -> (Self::Answer, bool) {
        let by = lend_by(job.end);
        let answer = loop {
            let mut borrowed = match self.lend(by).await {
                Ok(borrowed) => borrowed,
                Err(failed) => break Err(failed),
            };
            let Some(lent) = borrowed.client() else { continue };
            match lent.client().batch_execute(BETWEEN_TRANSACTIONS).await {
                Ok(()) => {}
                Err(error) if error.as_db_error().is_some() => break Err(self.failed(&error)),
                // It was dead, and nothing was sent.
                Err(_) => continue,
            }
            let done = run(lent.client(), &job).await.map_err(|error| self.failed(&error));
            if !done.as_ref().is_err_and(|failed| failed.is_over) {
                borrowed.give_back();
            }
            break done;
        };
        // The next job has another connection.
        (answer.map_err(|failed| Failed { is_over: false, ..failed }), true)
    }

    async fn end(self) {}
}

async fn run(client: &tokio_postgres::Client, job: &Job) -> Result<Vec<Row>, tokio_postgres::Error> {
    let arguments: Vec<Argument<'_>> =
        job.arguments.iter().map(|(value, kind)| (value as &(dyn ToSql + Sync), kind.clone())).collect();
    failure::while_overtaken(|| client.query_typed(&job.sql, &arguments)).await
}
