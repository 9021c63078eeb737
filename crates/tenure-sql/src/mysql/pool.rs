//! A pool of the application's.
//!
//! Nothing of a lent connection is changed. It may have `autocommit` off: then the transaction of a
//! statement is ended here. A transaction that somebody has left open in it is never joined.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::OkPacket;
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error as Answer, Pool};
use tenure::Error;
use tokio::time::{Instant, timeout};

use super::failure::{contact, failed};
use super::statements::LOCK_WAIT;
use super::work::{COMMIT, Done, Job, ROLLBACK, end, run};
use crate::table::{Borrowed, Failed, Lent, Worker, lend, lend_by};

/// Limit of the first look at the table.
const CONTACT: Duration = Duration::from_secs(3);

/// Borrows a connection for each job.
#[derive(Clone)]
pub(super) struct Lender {
    pool: Pool,
    table: String,
    /// How long the server has a statement of this pool wait for a row, in seconds.
    lock_wait: Arc<AtomicU64>,
}

impl Lent for Conn {
    fn discard(self) {
        // Its farewell might wait for an answer.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(timeout(Duration::from_secs(1), self.disconnect()));
        }
    }
}

impl Lender {
    pub(super) fn new(pool: Pool, table: String) -> Self {
        Self { pool, table, lock_wait: Arc::default() }
    }

    pub(super) fn lock_wait(&self) -> Duration {
        Duration::from_secs(self.lock_wait.load(Ordering::Relaxed))
    }

    /// Looks at the table, as `look` does on a connection.
    pub(super) async fn check(&self, look: impl AsyncFnOnce(&mut Conn) -> Result<(), Error>) -> Result<(), Error> {
        let mut borrowed = self.lend(Instant::now() + CONTACT).await.map_err(|failed| failed.error)?;
        let checked = match borrowed.client() {
            Some(conn) => self.check_on(conn, look).await,
            None => Ok(()),
        };
        if !checked.as_ref().is_err_and(|error| error.kind() == tenure::ErrorKind::Unreachable) {
            borrowed.give_back();
        }
        checked
    }

    async fn check_on(&self, conn: &mut Conn, look: impl AsyncFnOnce(&mut Conn) -> Result<(), Error>) -> Result<(), Error> {
        let failed = |error: Answer| contact(&error, &self.table);
        is_between_transactions(conn).await.map_err(failed)?.map_err(|failed| failed.error)?;
        let checked = look(conn).await;
        let lock_wait: Option<u64> = conn.query_first(LOCK_WAIT).await.map_err(failed)?;
        self.lock_wait.store(lock_wait.unwrap_or_default(), Ordering::Relaxed);
        // If it does not commit by itself.
        conn.query_drop(COMMIT).await.map_err(failed)?;
        checked
    }

    async fn lend(&self, by: Instant) -> Result<Borrowed<Conn>, Failed> {
        let failed = |error: Answer| contact(&error, &self.table).context("the pool lent no connection");
        lend(by, self.pool.get_conn(), failed).await
    }
}

#[async_trait]
impl Worker for Lender {
    type Job = Job;
    type Answer = Result<Done, Failed>;

    async fn work(&mut self, job: Job) -> (Self::Answer, bool) {
        let by = lend_by(job.end);
        let answer = loop {
            let mut borrowed = match self.lend(by).await {
                Ok(borrowed) => borrowed,
                Err(failed) => break Err(failed),
            };
            let Some(conn) = borrowed.client() else { continue };
            let commits = match is_between_transactions(conn).await {
                Ok(Ok(commits)) => commits,
                Ok(Err(failed)) => break Err(failed),
                // It was dead, and nothing was sent.
                Err(_) => continue,
            };
            let done = run_and_end(conn, &job, commits).await;
            let done = done.map_err(|error| failed(&error, &self.table));
            if !done.as_ref().is_err_and(|failed| failed.is_over) {
                borrowed.give_back();
            }
            // The next job has another connection.
            break done.map_err(|failed| Failed { is_over: false, ..failed });
        };
        (answer, true)
    }

    async fn end(self) {}
}

/// Whether each statement commits by itself. It is an error if a transaction is open.
async fn is_between_transactions(conn: &mut Conn) -> Result<Result<bool, Failed>, Answer> {
    conn.ping().await?;
    let status = conn.last_ok_packet().map_or(StatusFlags::SERVER_STATUS_IN_TRANS, OkPacket::status_flags);
    if status.contains(StatusFlags::SERVER_STATUS_IN_TRANS) {
        let error = crate::table::failure::open_transaction();
        return Ok(Err(Failed { error, answered: true, is_over: false }));
    }
    Ok(Ok(status.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)))
}

async fn run_and_end(conn: &mut Conn, job: &Job, commits: bool) -> Result<Done, Answer> {
    let done = run(conn, job, Duration::MAX).await;
    let is_fatal = done.as_ref().is_err_and(Answer::is_fatal);
    if commits || is_fatal {
        return done;
    }
    end(conn, if done.is_ok() { COMMIT } else { ROLLBACK }).await?;
    done
}
