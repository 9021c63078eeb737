//! PostgreSQL as the connection of a store sees it.

use std::sync::Arc;

use async_trait::async_trait;
use rustls::ClientConfig;
use tenure::Error;
use tenure::store::record::Listeners;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Row};

use super::client::Client;
use super::statements::{CREATE, END_SESSION, FREE, HELLO, LIST, LISTEN, READ, RENEW, SWEEP, TABLE, TAKE, WRITE};
use super::{Argument, dial, failure};
use crate::table::{Failed, Link, Server, Session};

/// The statements, with the name of the table.
pub(super) struct Statements {
    pub(super) create: String,
    pub(super) hello: String,
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
        let [create, hello, end_session, take, free, renew, read, list, write, sweep] =
            [CREATE, HELLO, END_SESSION, TAKE, FREE, RENEW, READ, LIST, WRITE, SWEEP].map(|text| text.replace(TABLE, table));
        Self { create, hello, end_session, take, free, renew, read, list, write, sweep }
    }
}

/// How connections are made.
pub(super) struct How {
    pub(super) config: Config,
    /// `None` if there is to be none.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) statements: Statements,
    /// The table as SQL writes it.
    pub(super) table: String,
    /// The channel of this store, if it is to listen.
    pub(super) channel: Option<String>,
    pub(super) listeners: Listeners,
    /// Without secrets.
    pub(super) shown: String,
}

impl How {
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
        client.query(sql, arguments).await.map_err(|error| self.failed(&error))
    }

    async fn end_session(&self, client: &Client, session: &Session) -> Result<bool, Failed> {
        let id = i32::try_from(session.id).unwrap_or(-1);
        let arguments: [Argument<'_>; 2] = [(&id, Type::INT4), (&session.began, Type::TEXT)];
        Ok(self.run(client, (&self.statements.end_session, &arguments)).await?.is_empty())
    }

    async fn listen(&self, client: &Client) -> Result<(), Failed> {
        let Some(channel) = &self.channel else { return Ok(()) };
        client.execute(&format!("{LISTEN}{channel}")).await.map_err(|error| self.failed(&error))
    }

    fn address(&self) -> Option<&str> {
        self.channel.as_deref()
    }

    fn is_closed(&self, client: &Client) -> bool {
        client.is_closed()
    }

    fn reconnected(&self) {
        self.listeners.poll_all();
    }

    fn shown(&self) -> &str {
        &self.shown
    }
}
