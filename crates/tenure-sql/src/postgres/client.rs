//! A connection of the client library, and the statements that the server has prepared for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row, Statement};

/// Use at which a statement is prepared. A short command does not pay for it, and others save the
/// server more than half of its work.
const PREPARED_FROM: u32 = 4;

/// An argument of a statement.
pub(super) type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection.
pub(super) struct Prepared {
    client: tokio_postgres::Client,
    /// By their text. `None` behind a pool: the next session does not have what this one has prepared.
    statements: Option<Mutex<HashMap<String, Uses>>>,
}

#[derive(Default)]
struct Uses {
    count: u32,
    prepared: Option<Statement>,
}

impl Prepared {
    /// `prepares`: the connection is a session of the server.
    pub(super) fn new(client: tokio_postgres::Client, prepares: bool) -> Self {
        Self { client, statements: prepares.then(Mutex::default) }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs statements without arguments.
    pub(super) async fn execute(&self, statements: &str) -> Result<(), Error> {
        self.client.batch_execute(statements).await
    }

    /// Runs a statement.
    pub(super) async fn query(&self, sql: &str, arguments: &[Argument<'_>]) -> Result<Vec<Row>, Error> {
        let Some(statement) = self.statement(sql, arguments).await? else { return self.client.query_typed(sql, arguments).await };
        let values: Vec<&(dyn ToSql + Sync)> = arguments.iter().map(|(value, _)| *value).collect();
        self.client.query(&statement, &values).await
    }

    async fn statement(&self, sql: &str, arguments: &[Argument<'_>]) -> Result<Option<Statement>, Error> {
        let Some(known) = &self.statements else { return Ok(None) };
        {
            let mut statements = lock(known);
            let Some(uses) = statements.get_mut(sql) else {
                statements.insert(sql.to_owned(), Uses { count: 1, prepared: None });
                return Ok(None);
            };
            uses.count = uses.count.saturating_add(1);
            if uses.prepared.is_some() || uses.count != PREPARED_FROM {
                return Ok(uses.prepared.clone());
            }
        }
        let types: Vec<Type> = arguments.iter().map(|(_, kind)| kind.clone()).collect();
        let prepared = self.client.prepare_typed(sql, &types).await?;
        if let Some(uses) = lock(known).get_mut(sql) {
            uses.prepared = Some(prepared.clone());
        }
        Ok(Some(prepared))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
