//! MariaDB and MySQL as the connection of a store sees them.
//!
//! The client library has one statement under way at a time, and a dropped one leaves its connection
//! in an unknown state. So each connection has a task that runs one job after another to its end, also
//! if nobody waits for it any more.

use async_trait::async_trait;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error as Answer, Opts, Params, Row, Value};
use tenure::Error;
use tokio::sync::{mpsc, oneshot};

use super::failure::{contact, failed, is_missing, other_version, read_only};
use super::read::column;
use super::statements::{
    ADD, ASKED, CHANGE, CREATE, END_SESSION, FIND_SESSION, FREE, HELLO, INSERT, KEEP, LIST, LOOK, READ, REMOVE, RENEW, TABLE,
    TAKE, UNHURRIED, VERSION,
};
use crate::table::failure::unexpected;
use crate::table::{Failed, Link, Server, Session};

/// How often a statement is run that the server has given up because of a deadlock.
const TRIES: u32 = 5;

/// The statements, with the name of the table.
pub(super) struct Statements {
    pub(super) hello: String,
    pub(super) take: String,
    pub(super) add: String,
    pub(super) free: String,
    pub(super) renew: [String; 2],
    pub(super) read: [String; 2],
    pub(super) list: String,
    pub(super) change: String,
    pub(super) insert: String,
    pub(super) look: String,
    pub(super) keep: String,
    pub(super) remove: String,
}

impl Statements {
    fn on(table: &str) -> Self {
        let on = |text: &str| text.replace(TABLE, table);
        Self {
            hello: on(&[UNHURRIED, HELLO].concat()),
            take: on(TAKE),
            add: on(ADD),
            free: on(FREE),
            renew: RENEW.map(on),
            read: READ.map(on),
            list: on(LIST),
            change: on(CHANGE),
            insert: on(INSERT),
            look: on(LOOK),
            keep: on(KEEP),
            remove: on(REMOVE),
        }
    }

    /// Reads so many names.
    pub(super) fn read(&self, names: usize) -> String {
        repeated(&self.read, ASKED, names)
    }

    /// Renews so many leases.
    pub(super) fn renew(&self, leases: usize) -> String {
        repeated(&self.renew, super::statements::RENEWED, leases)
    }
}

fn repeated(around: &[String; 2], part: &str, times: usize) -> String {
    [&*around[0], &vec![part; times].join(" UNION ALL "), &*around[1]].concat()
}

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

pub(super) struct Job {
    statements: Vec<Statement>,
    is_transaction: bool,
    reply: oneshot::Sender<Result<Done, Answer>>,
}

/// How connections are made.
pub(super) struct How {
    pub(super) opts: Opts,
    pub(super) statements: Statements,
    /// The table as SQL writes it.
    pub(super) table: String,
    /// Without secrets.
    pub(super) shown: String,
}

impl How {
    pub(super) fn new(opts: Opts, table: String, shown: String) -> Self {
        Self { opts, statements: Statements::on(&table), table, shown }
    }

    fn failed(&self, error: &Answer) -> Failed {
        failed(error, &self.table)
    }

    async fn hello(&self, conn: &mut Conn, create: bool) -> Result<Row, Error> {
        let mut asked = conn.query_first(&self.statements.hello).await;
        // Another process may have made the table a moment ago, and not yet its own row.
        let is_half_made = |row: &Option<Row>| row.as_ref().is_some_and(|row| matches!(row.get::<Option<u64>, _>(3), Some(None)));
        let is_to_be_made = match &asked {
            Ok(row) => is_half_made(row),
            Err(error) => is_missing(error),
        };
        if create && is_to_be_made {
            for step in CREATE {
                conn.query_drop(UNHURRIED.to_owned() + &step.replace(TABLE, &self.table))
                    .await
                    .map_err(|error| contact(&error, &self.table))?;
            }
            asked = conn.query_first(&self.statements.hello).await;
        }
        asked.map_err(|error| contact(&error, &self.table))?.ok_or_else(|| unexpected("it has no row"))
    }
}

/// One connection: the queue of its task.
pub(super) type Jobs = mpsc::UnboundedSender<Job>;

#[async_trait]
impl Server for How {
    type Client = Jobs;
    type Call<'a> = Work<'a>;
    type Answer = Done;

    async fn open(&self, create: bool) -> Result<Link<Jobs>, Error> {
        let mut conn = Conn::new(self.opts.clone()).await.map_err(|error| contact(&error, &self.table))?;
        let row = self.hello(&mut conn, create).await?;
        if column::<i64>(&row, 0)? != 0 {
            return Err(read_only());
        }
        let version: Option<u64> = column(&row, 3)?;
        if version != Some(VERSION) {
            return Err(other_version(&self.table, version));
        }
        let id: u64 = column(&row, 1)?;
        let host: Option<Vec<u8>> = column(&row, 2)?;
        // A pool names a number of its own when it greets.
        let began = host.filter(|_| u64::from(conn.id()) == id).map(|host| String::from_utf8_lossy(&host).into_owned());
        let session = began.map(|began| Session { server: self.shown.clone(), id: i64::try_from(id).unwrap_or(-1), began });
        let (jobs, work) = mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(conn, work)).abort_handle();
        Ok(Link::new(jobs, driver, session))
    }

    async fn run(&self, client: &Jobs, work: Work<'_>) -> Result<Done, Failed> {
        let (statements, is_transaction) = match work {
            Work::One(statement) => (vec![statement.clone()], false),
            Work::All(statements) => (statements.to_vec(), true),
        };
        let (reply, answer) = oneshot::channel();
        let ended = || {
            let error = Error::unreachable("the connection failed: it was closed").maybe_applied();
            Failed { error, answered: false, is_over: true }
        };
        client.send(Job { statements, is_transaction, reply }).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?.map_err(|error| self.failed(&error))
    }

    async fn end_session(&self, client: &Jobs, session: &Session) -> Result<bool, Failed> {
        let find = Statement { sql: FIND_SESSION.to_owned(), arguments: vec![session.id.into(), (&*session.began).into()] };
        let found = self.run(client, Work::One(&find)).await?;
        let left = found.rows.first().and_then(|row| row.get::<i64, usize>(0)).unwrap_or_default();
        if left > 0 {
            let end = Statement { sql: format!("{END_SESSION}{}", session.id), arguments: Vec::new() };
            self.run(client, Work::One(&end)).await?;
        }
        Ok(left == 0)
    }

    /// These databases notify nobody.
    async fn listen(&self, _: &Jobs) -> Result<(), Failed> {
        Ok(())
    }

    fn address(&self) -> Option<&str> {
        None
    }

    fn is_closed(&self, client: &Jobs) -> bool {
        client.is_closed()
    }

    fn reconnected(&self) {}

    fn shown(&self) -> &str {
        &self.shown
    }
}

/// Runs one job after another, until the store is gone or the connection is over.
async fn drive(mut conn: Conn, mut jobs: mpsc::UnboundedReceiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let done =
            if job.is_transaction { all(&mut conn, &job.statements).await } else { one(&mut conn, &job.statements[0]).await };
        let is_over = done.as_ref().is_err_and(Answer::is_fatal);
        let _ = job.reply.send(done);
        if is_over {
            return;
        }
    }
    let _ = conn.disconnect().await;
}

async fn one(conn: &mut Conn, statement: &Statement) -> Result<Done, Answer> {
    for _ in 1..TRIES {
        match exec(conn, statement).await {
            // The server has undone it.
            Err(Answer::Server(error)) if error.code == super::failure::DEADLOCK => {}
            answer => return answer,
        }
    }
    exec(conn, statement).await
}

async fn exec(conn: &mut Conn, Statement { sql, arguments }: &Statement) -> Result<Done, Answer> {
    if arguments.is_empty() {
        let mut result = conn.query_iter(sql).await?;
        let (affected, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
        return Ok(Done { rows: result.collect().await?, affected, insert_id });
    }
    let mut result = conn.exec_iter(sql, Params::Positional(arguments.clone())).await?;
    let (affected, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    Ok(Done { rows: result.collect().await?, affected, insert_id })
}

/// Runs a transaction. It is over when this returns: if anything fails, also by the end of the
/// connection.
async fn all(conn: &mut Conn, statements: &[Statement]) -> Result<Done, Answer> {
    conn.query_drop("START TRANSACTION").await?;
    for statement in statements {
        let done = exec(conn, statement).await;
        if !done.as_ref().is_ok_and(|done| done.affected == 1) {
            conn.query_drop("ROLLBACK").await?;
            return match done {
                // Another transaction has some of the rows, and was there first.
                Err(Answer::Server(error)) if error.code == super::failure::DEADLOCK => Ok(Done::default()),
                Ok(_) => Ok(Done::default()),
                Err(error) => Err(error),
            };
        }
    }
    conn.query_drop("COMMIT").await?;
    Ok(Done { affected: 1, ..Done::default() })
}
