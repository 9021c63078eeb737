//! PostgreSQL as the connection of a store sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use rustls::ClientConfig;
use tenure::Error;
use tenure::store::Credentials;
use tenure::store::record::Listeners;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Row};

use super::client::Prepared;
use super::clock::{Clock, LATE};
use super::pool::{Job, Lender};
use super::statements::{END_SESSION, FREE, LIST, LISTEN, OWN_VERSION, READ, RENEW, SWEEP, TABLE, TAKE, WRITE};
use super::{Argument, dial, failure};
use crate::table::{Failed, Jobs, Link, Server, Session, no_end};

/// How often a statement is run that the server has undone because of another transaction.
pub(super) const TRIES: u32 = 10;

/// The statements, with the name of the table.
pub(super) struct Statements {
    pub(super) version: String,
    pub(super) end_session: String,
    pub(super) take: String,
    pub(super) free: String,
    pub(super) renew: String,
    pub(super) read: String,
    pub(super) list: String,
    pub(super) write: String,
    pub(super) sweep: String,
}

impl Statements {
    /// `table` is a name as SQL writes it.
    pub(super) fn on(table: &str) -> Self {
        let [version, end_session, take, free, renew, read, list, write, sweep] =
            [OWN_VERSION, END_SESSION, TAKE, FREE, RENEW, READ, LIST, WRITE, SWEEP].map(|text| text.replace(TABLE, table));
        Self { version, end_session, take, free, renew, read, list, write, sweep }
    }
}

/// Where connections come from.
#[cfg_attr(not(feature = "tokio-postgres-0_7"), allow(dead_code, reason = "only that feature has a pool"))]
pub(super) enum Source {
    /// `tls`: `None` if there is to be none.
    Servers {
        config: Box<Config>,
        tls: Option<Arc<ClientConfig>>,
    },
    Pool(Lender),
}

/// How connections are made.
pub(super) struct How {
    pub(super) source: Source,
    /// The configuration of the source has the rest of the login.
    pub(super) credentials: Credentials,
    /// With the table's schema, once it was found.
    pub(super) statements: OnceLock<Statements>,
    /// Locks of sessions need none.
    pub(super) needs_table: bool,
    /// The table as the URL names it, and SQL writes it.
    pub(super) table: String,
    /// The present connection is lent by a pool, for single transactions.
    pub(super) is_pooled: AtomicBool,
    /// Runs while a pool is in between.
    pub(super) clock: Clock,
    /// The channel of this store, if it is to listen.
    pub(super) channel: Option<String>,
    pub(super) listeners: Listeners,
    /// Without secrets.
    pub(super) shown: String,
}

impl How {
    pub(super) fn new(source: Source, table: String, channel: Option<String>, listeners: Listeners, shown: String) -> Self {
        let (statements, is_pooled, clock) = (OnceLock::new(), AtomicBool::new(false), Clock::default());
        let credentials = Credentials::default();
        Self { source, credentials, statements, needs_table: true, table, is_pooled, clock, channel, listeners, shown }
    }

    pub(super) fn statements(&self) -> &Statements {
        self.statements.get_or_init(|| Statements::on(&self.table))
    }

    /// The table with its schema. Sessions of a pool may have other defaults than ours.
    pub(super) fn found(&self, table: &str) {
        self.statements.get_or_init(|| Statements::on(table));
    }
}

/// A connection.
pub(super) enum Client {
    Own(Box<Prepared>),
    /// The queue of a task that borrows one for each statement.
    Lent(Jobs<Job, Result<Vec<Row>, Failed>>),
}

#[async_trait]
impl Server for How {
    type Client = Client;
    type Call<'a> = (&'a str, &'a [Argument<'a>]);
    type Answer = Vec<Row>;

    async fn open(&self, create: bool, limit: Duration) -> Result<Link<Client>, Error> {
        let lender = match &self.source {
            Source::Servers { config, tls } => return dial::open(self, (config, tls.as_ref()), create, limit).await,
            Source::Pool(lender) => lender,
        };
        // Once is enough, unless the table was dropped: each statement may have another connection.
        if create || self.statements.get().is_none() {
            let (hello, sent_at) = lender.check(self, create).await?;
            self.clock.start(hello.now, sent_at);
        }
        let (jobs, driver) = Jobs::start(lender.clone());
        Ok(Link::new(Client::Lent(jobs), driver, None))
    }

    async fn run(&self, client: &Client, (sql, arguments): Self::Call<'_>, end: Instant) -> Result<Vec<Row>, Failed> {
        match client {
            Client::Own(client) => {
                let answer = failure::while_overtaken(TRIES, || client.query(sql, arguments)).await;
                answer.map_err(|error| failure::failed(&error, &self.table))
            }
            Client::Lent(jobs) => {
                let unsent = |error| Failed { error, answered: true, is_over: false };
                let ended = || {
                    let error = Error::unreachable("the connection failed: it was closed").maybe_applied();
                    Failed { error, answered: false, is_over: true }
                };
                let job = Job::new(sql, arguments, end).map_err(unsent)?;
                jobs.run(job).await.unwrap_or_else(|| Err(ended()))
            }
        }
    }

    async fn end_session(&self, client: &Client, session: &Session) -> Result<bool, Failed> {
        let id = i32::try_from(session.id).unwrap_or(-1);
        let arguments: [Argument<'_>; 2] = [(&id, Type::INT4), (&session.began, Type::TEXT)];
        Ok(self.run(client, (&self.statements().end_session, &arguments), no_end()).await?.is_empty())
    }

    async fn listen(&self, client: &Client) -> Result<(), Failed> {
        let (Some(channel), Client::Own(client)) = (&self.channel, client) else { return Ok(()) };
        client.execute(&format!("{LISTEN}{channel}")).await.map_err(|error| failure::failed(&error, &self.table))
    }

    fn address(&self) -> Option<&str> {
        self.channel.as_deref().filter(|_| !self.is_pooled.load(Ordering::Acquire))
    }

    fn is_closed(&self, client: &Client) -> bool {
        match client {
            Client::Own(client) => client.is_closed(),
            Client::Lent(jobs) => jobs.is_closed(),
        }
    }

    fn lateness(&self, limit: Duration) -> Duration {
        // It may wait for a row when it has begun.
        LATE + limit / 3
    }

    fn reconnected(&self) {
        self.listeners.poll_all();
    }

    fn no_login(&self) -> Option<Error> {
        self.credentials.unanswered()
    }

    fn shown(&self) -> &str {
        &self.shown
    }
}
