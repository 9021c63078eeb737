//! PostgreSQL as the connection of a store sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use rustls::ClientConfig;
use tenure::Error;
use tenure::store::record::Listeners;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Row};

use super::client::Client;
use super::clock::{Clock, LATE};
use super::statements::{END_SESSION, FREE, LIST, LISTEN, OWN_VERSION, READ, RENEW, SWEEP, TABLE, TAKE, WRITE};
use super::{Argument, dial, failure};
use crate::table::{Failed, Link, Server, Session};

/// How often a statement is run that the server has undone because of another transaction.
const TRIES: u32 = 10;

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

/// How connections are made.
pub(super) struct How {
    pub(super) config: Config,
    /// `None` if there is to be none.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// With the table's schema, once it was found.
    pub(super) statements: OnceLock<Statements>,
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
    pub(super) fn statements(&self) -> &Statements {
        self.statements.get_or_init(|| Statements::on(&self.table))
    }

    /// The table with its schema. Sessions of a pool may have other defaults than ours.
    pub(super) fn found(&self, table: &str) {
        self.statements.get_or_init(|| Statements::on(table));
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Failed {
        let (answered, is_over) = (error.as_db_error().is_some(), failure::ends_session(error));
        Failed { error: failure::translate(error, &self.table), answered, is_over }
    }
}

#[async_trait]
impl Server for How {
    type Client = Client;
    type Call<'a> = (&'a str, &'a [Argument<'a>]);
    type Answer = Vec<Row>;

    async fn open(&self, create: bool) -> Result<Link<Client>, Error> {
        dial::open(self, create).await
    }

    async fn run(&self, client: &Client, (sql, arguments): Self::Call<'_>) -> Result<Vec<Row>, Failed> {
        for _ in 1..TRIES {
            match client.query(sql, arguments).await {
                Err(error) if failure::is_overtaken(&error) => {}
                answer => return answer.map_err(|error| self.failed(&error)),
            }
        }
        client.query(sql, arguments).await.map_err(|error| self.failed(&error))
    }

    async fn end_session(&self, client: &Client, session: &Session) -> Result<bool, Failed> {
        let id = i32::try_from(session.id).unwrap_or(-1);
        let arguments: [Argument<'_>; 2] = [(&id, Type::INT4), (&session.began, Type::TEXT)];
        Ok(self.run(client, (&self.statements().end_session, &arguments)).await?.is_empty())
    }

    async fn listen(&self, client: &Client) -> Result<(), Failed> {
        let Some(channel) = &self.channel else { return Ok(()) };
        client.execute(&format!("{LISTEN}{channel}")).await.map_err(|error| self.failed(&error))
    }

    fn address(&self) -> Option<&str> {
        self.channel.as_deref().filter(|_| !self.is_pooled.load(Ordering::Acquire))
    }

    fn is_closed(&self, client: &Client) -> bool {
        client.is_closed()
    }

    fn lateness(&self, limit: Duration) -> Duration {
        // It may wait for a row when it has begun.
        LATE + limit / 4
    }

    fn reconnected(&self) {
        self.listeners.poll_all();
    }

    fn shown(&self) -> &str {
        &self.shown
    }
}
