//! MariaDB and MySQL as the connection of a store sees them.
//!
//! The client library has one statement under way at a time, and a dropped one leaves its connection
//! in an unknown state. So each connection has a task of [`Jobs`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use tenure::Error;
use tenure::store::{Credentials, Login};
use tokio::time::Instant;

use super::cluster::{self, Members};
use super::failure::{contact, failed, is_missing, other_version, read_only};
use super::pool::Lender;
use super::read::column;
use super::statements::{
    ADD, ASKED, CHANGE, CREATE, END_SESSION, FIND_SESSION, FREE, HELLO, INSERT, KEEP, LIST, LOOK, READ, REMOVE, RENEW, TABLE,
    TAKE, UNHURRIED, UNLOCKED, VERSION,
};
use super::work::{Done, Job, Statement, Work, run};
use crate::table::failure::unexpected;
use crate::table::{Failed, Jobs, Link, Server, Session, Worker, no_end};

/// The statements, with the name of the table.
pub(super) struct Statements {
    pub(super) hello: String,
    pub(super) take: String,
    pub(super) add: String,
    pub(super) free: String,
    pub(super) renew: [String; 2],
    pub(super) unlocked: String,
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
            unlocked: on(UNLOCKED),
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

    /// Finds which of so many names are not locked.
    pub(super) fn unlocked(&self, names: usize) -> String {
        self.unlocked.replace('?', &vec!["?"; names].join(", "))
    }

    /// Renews so many leases.
    pub(super) fn renew(&self, leases: usize) -> String {
        repeated(&self.renew, super::statements::RENEWED, leases)
    }
}

fn repeated(around: &[String; 2], part: &str, times: usize) -> String {
    [&*around[0], &vec![part; times].join(" UNION ALL "), &*around[1]].concat()
}

/// Where connections come from.
#[cfg_attr(not(feature = "mysql_async-0_37"), allow(dead_code, reason = "only that feature has a pool"))]
pub(super) enum Source {
    Server(Opts),
    Pool(Lender),
}

/// How connections are made.
pub(super) struct How {
    pub(super) source: Source,
    /// The options of the source have the rest of the login.
    pub(super) credentials: Credentials,
    pub(super) statements: Statements,
    /// The table as SQL writes it.
    pub(super) table: String,
    /// Without secrets.
    pub(super) shown: String,
    /// Other servers, as the URL has them.
    pub(super) members: Members,
    /// Several servers may be written to, each with its clock.
    pub(super) is_cluster: AtomicBool,
    /// For how long a session has a statement run. Those of a pool have settings of their own.
    pub(super) patience: Duration,
}

impl How {
    pub(super) fn new(source: Source, table: String, shown: String) -> Self {
        let (members, is_cluster, credentials) = (Members::default(), AtomicBool::new(false), Credentials::default());
        Self {
            source,
            credentials,
            statements: Statements::on(&table),
            table,
            shown,
            members,
            is_cluster,
            patience: Duration::MAX,
        }
    }

    /// Looks at a connection, and at the table. Returns the session, if it is one of the server.
    pub(super) async fn check(&self, conn: &mut Conn, create: bool) -> Result<Option<Session>, Error> {
        let row = self.hello(conn, create).await?;
        if column::<i64>(&row, 0)? != 0 {
            return Err(read_only());
        }
        let version: Option<u64> = column(&row, 3)?;
        if version != Some(VERSION) {
            return Err(other_version(&self.table, version));
        }
        let is_cluster = cluster::check(conn, &self.members, &self.table).await?;
        self.is_cluster.store(is_cluster, Ordering::Relaxed);
        let id: u64 = column(&row, 1)?;
        let host: Option<Vec<u8>> = column(&row, 2)?;
        // A pool names a number of its own when it greets.
        let began = host.filter(|_| u64::from(conn.id()) == id).map(|host| String::from_utf8_lossy(&host).into_owned());
        Ok(began.map(|began| Session { server: self.shown.clone(), id: i64::try_from(id).unwrap_or(-1), began }))
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

#[async_trait]
impl Server for How {
    /// The queue of its task.
    type Client = Jobs<Job, Result<Done, Failed>>;
    type Call<'a> = Work<'a>;
    type Answer = Done;

    async fn open(&self, create: bool, _: Duration) -> Result<Link<Self::Client>, Error> {
        let opts = match &self.source {
            Source::Server(opts) => opts,
            Source::Pool(lender) => {
                // Once is enough, unless the table was dropped: each statement may have another connection.
                if create || lender.lock_wait().is_zero() {
                    lender.check(async |conn| self.check(conn, create).await.map(|_| ())).await?;
                }
                let (jobs, driver) = Jobs::start(lender.clone());
                return Ok(Link::new(jobs, driver, None));
            }
        };
        let attempt = |Login { user, password }| {
            let mut opts = OptsBuilder::from_opts(opts.clone());
            opts = if user.is_some() { opts.user(user) } else { opts };
            opts = if password.is_some() { opts.pass(password) } else { opts };
            async { Conn::new(opts).await.map_err(|error| contact(&error, &self.table)) }
        };
        let mut conn = self.credentials.log_in(attempt).await?;
        let session = self.check(&mut conn, create).await?;
        let (jobs, driver) = Jobs::start(Owned { conn, table: self.table.clone(), patience: self.patience });
        Ok(Link::new(jobs, driver, session))
    }

    async fn run(&self, client: &Self::Client, work: Work<'_>, end: Instant) -> Result<Done, Failed> {
        let (statements, is_transaction) = match work {
            Work::One(statement) => (vec![statement.clone()], false),
            Work::All(statements) => (statements.to_vec(), true),
        };
        let ended = || {
            let error = Error::unreachable("the connection failed: it was closed").maybe_applied();
            Failed { error, answered: false, is_over: true }
        };
        client.run(Job { statements, is_transaction, end }).await.unwrap_or_else(|| Err(ended()))
    }

    async fn end_session(&self, client: &Self::Client, session: &Session) -> Result<bool, Failed> {
        let find = Statement { sql: FIND_SESSION.to_owned(), arguments: vec![session.id.into(), (&*session.began).into()] };
        let end = no_end();
        let found = self.run(client, Work::One(&find), end).await?;
        let left = found.rows.first().and_then(|row| row.get::<i64, usize>(0)).unwrap_or_default();
        if left > 0 {
            let kill = Statement { sql: format!("{END_SESSION}{}", session.id), arguments: Vec::new() };
            self.run(client, Work::One(&kill), end).await?;
        }
        Ok(left == 0)
    }

    /// These databases notify nobody.
    async fn listen(&self, _: &Self::Client) -> Result<(), Failed> {
        Ok(())
    }

    fn address(&self) -> Option<&str> {
        None
    }

    fn is_closed(&self, client: &Self::Client) -> bool {
        client.is_closed()
    }

    /// The kernel gives up what it could not send in 10 s, and a proxy drops what a closed connection
    /// waits for.
    fn lateness(&self, _: Duration) -> Duration {
        const ON_THE_WAY: Duration = Duration::from_secs(15);
        match &self.source {
            Source::Server(_) => ON_THE_WAY,
            Source::Pool(lender) => ON_THE_WAY + lender.lock_wait(),
        }
    }

    fn reconnected(&self) {}

    fn no_login(&self) -> Option<Error> {
        self.credentials.unanswered()
    }

    fn shown(&self) -> &str {
        &self.shown
    }
}

/// A connection of this store.
struct Owned {
    conn: Conn,
    table: String,
    /// For how long the session has a statement run.
    patience: Duration,
}

#[async_trait]
impl Worker for Owned {
    type Job = Job;
    type Answer = Result<Done, Failed>;

    async fn work(&mut self, job: Job) -> (Self::Answer, bool) {
        let done = run(&mut self.conn, &job, self.patience).await;
        // A transaction that failed may be open still.
        let goes_on = !done.as_ref().is_err_and(|error| job.is_transaction || error.is_fatal());
        (done.map_err(|error| failed(&error, &self.table)), goes_on)
    }

    async fn end(self) {
        let _ = self.conn.disconnect().await;
    }
}
