//! A pool as an application has it, in whose sessions it has set what it likes.

use std::net::SocketAddr;
use std::sync::Arc;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, Pool, PoolConstraints, PoolOpts};
use tenure::Error;
use tenure::store::Store;
use tenure_sql::mysql;

use crate::in_sql;

/// Not strict, and with all that changes what SQL means. MariaDB alone reads the comment.
const SETTINGS: &str = "SET SESSION autocommit = 0,
    SESSION sql_mode = CONCAT('ANSI,NO_UNSIGNED_SUBTRACTION' /*M! , ',ORACLE,EMPTY_STRING_IS_NULL' */),
    SESSION time_zone = '+09:00', SESSION completion_type = CHAIN, SESSION innodb_lock_wait_timeout = 1";
const LEVEL: &str = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE";

pub(crate) struct Theirs(Pool);

impl Theirs {
    pub(crate) fn at(addr: SocketAddr, size: usize) -> Self {
        // Else one that goes back is closed.
        let constraints = PoolConstraints::new(size, size).unwrap();
        let pool = PoolOpts::default().with_constraints(constraints).with_reset_connection(false);
        let opts = OptsBuilder::default().ip_or_hostname(addr.ip().to_string()).tcp_port(addr.port()).user(Some("root"));
        let opts = opts.prefer_socket(false);
        Self(Pool::new(opts.pool_opts(pool).setup(vec![SETTINGS, LEVEL]).client_found_rows(true)))
    }

    pub(crate) async fn over(&self, parameters: &str) -> Result<Arc<dyn Store>, Error> {
        mysql::over(self.0.clone(), parameters).await
    }

    pub(crate) async fn store(&self, table: &str, more: &str) -> Arc<dyn Store> {
        self.over(&format!("create=yes&table={}{more}", in_sql(table))).await.unwrap()
    }

    pub(crate) async fn lend(&self) -> Conn {
        self.0.get_conn().await.unwrap()
    }

    /// The first column of the first row. Ends its transaction, as this session does not by itself.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let mut conn = self.lend().await;
        let answer = conn.query_first(sql).await.unwrap().unwrap();
        conn.query_drop("ROLLBACK AND NO CHAIN").await.unwrap();
        answer
    }

    /// All that was set in the session.
    pub(crate) async fn settings(&self) -> String {
        self.ask(
            "SELECT CONCAT_WS(' ', @@autocommit, @@sql_mode, @@time_zone, @@completion_type, @@innodb_lock_wait_timeout,
                /*M! @@tx_isolation */ /*!80000 @@transaction_isolation */, DATABASE(), @@character_set_client)",
        )
        .await
    }

    /// Gives a connection back in the midst of a transaction.
    pub(crate) async fn leave_open(&self, statements: &[String]) {
        let mut conn = self.lend().await;
        conn.query_drop("START TRANSACTION").await.unwrap();
        for statement in statements {
            let _ = conn.query_drop(statement).await;
        }
    }
}
