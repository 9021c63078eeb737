//! Statements on a connection, and transactions of several.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, DriverError, Error as Answer, Params, Row, Value};
use tokio::time::Instant;

use super::failure::{is_overtaken, is_without_effect};
use super::statements::in_time;

/// How often a statement is run that the server has given up because of a deadlock.
const TRIES: u32 = 5;

/// A statement and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) arguments: Vec<Value>,
}

/// Work for a connection, which is done as a whole or not at all.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    One(&'a Statement),
    /// One transaction, in which each statement has to affect one row.
    All(&'a [Statement]),
}

/// Result of the work.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) rows: Vec<Row>,
    /// Rows affected; 0 if a transaction was undone.
    pub(super) affected: u64,
    pub(super) insert_id: u64,
}

/// Work for the task of a connection.
pub(super) struct Job {
    pub(super) statements: Vec<Statement>,
    pub(super) is_transaction: bool,
    pub(super) end: Instant,
}

/// Does a job in a session that has a statement run for up to `patience`.
pub(super) async fn run(conn: &mut Conn, job: &Job, patience: Duration) -> Result<Done, Answer> {
    let left = job.end.saturating_duration_since(Instant::now());
    let in_time = |statement: &Statement| {
        let sql = in_time(&statement.sql, left, patience).into_owned();
        Statement { sql, arguments: statement.arguments.clone() }
    };
    let statements: Vec<Statement> = job.statements.iter().map(in_time).collect();
    if job.is_transaction { all(conn, &statements).await } else { one(conn, &statements[0]).await }
}

async fn one(conn: &mut Conn, statement: &Statement) -> Result<Done, Answer> {
    for _ in 1..TRIES {
        match exec(conn, statement).await {
            // The server has undone it.
            Err(Answer::Server(error)) if is_overtaken(&error) => {}
            answer => return answer,
        }
    }
    exec(conn, statement).await
}

async fn exec(conn: &mut Conn, statement: &Statement) -> Result<Done, Answer> {
    match send(conn, statement).await {
        Err(Answer::Server(error)) if is_without_effect(&error) => Ok(Done::default()),
        answer => answer,
    }
}

async fn send(conn: &mut Conn, Statement { sql, arguments }: &Statement) -> Result<Done, Answer> {
    if arguments.is_empty() {
        let mut result = conn.query_iter(sql).await?;
        let (affected, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
        return Ok(Done { rows: result.collect().await?, affected, insert_id });
    }
    let mut result = conn.exec_iter(sql, Params::Positional(arguments.clone())).await?;
    let (affected, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    Ok(Done { rows: result.collect().await?, affected, insert_id })
}

/// Ends a transaction, whatever the session's `completion_type` says.
pub(super) const COMMIT: &str = "COMMIT AND NO CHAIN NO RELEASE";
pub(super) const ROLLBACK: &str = "ROLLBACK AND NO CHAIN NO RELEASE";

/// Ends a transaction. The server's error is that it has undone it. After any other nobody knows, and the
/// connection is not to be used any more.
pub(super) async fn end(conn: &mut Conn, statement: &str) -> Result<(), Answer> {
    conn.query_drop(statement).await.map_err(|error| match error {
        Answer::Server(error) if !is_overtaken(&error) => DriverError::ConnectionClosed.into(),
        error => error,
    })
}

/// Runs a transaction. It is over when this returns: if anything fails, also by the end of the
/// connection.
async fn all(conn: &mut Conn, statements: &[Statement]) -> Result<Done, Answer> {
    conn.query_drop("START TRANSACTION").await?;
    for statement in statements {
        let done = exec(conn, statement).await;
        if !done.as_ref().is_ok_and(|done| done.affected == 1) {
            end(conn, ROLLBACK).await?;
            return match done {
                // Another transaction has some of the rows, and was there first.
                Err(Answer::Server(error)) if is_overtaken(&error) => Ok(Done::default()),
                Ok(_) => Ok(Done::default()),
                Err(error) => Err(error),
            };
        }
    }
    match end(conn, COMMIT).await {
        Ok(()) => Ok(Done { affected: 1, ..Done::default() }),
        Err(Answer::Server(_)) => Ok(Done::default()),
        Err(error) => Err(error),
    }
}
