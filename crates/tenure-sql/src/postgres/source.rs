//! Where connections come from, and how they are made.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;
use tenure::store::Credentials;
use tenure::store::record::Listeners;
use tokio_postgres::{Config, Row};

use super::client::Prepared;
use super::clock::Clock;
use super::pool::{Job, Lender};
use super::statements::{END_SESSION, FREE, LIST, OWN_VERSION, READ, RENEW, SWEEP, TABLE, TAKE, WRITE};
use crate::table::{Failed, Jobs};

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
