//! docs/fenced-writes.md on MariaDB: each statement as it stands on the page.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, Params};
use tenure_sql::fenced;
use tenure_testkit::MariaDbServer;
use tenure_testkit::page::blocks;
use tokio::time::timeout;

use crate::PATIENCE;

fn page(heading: &str) -> Vec<String> {
    blocks("fenced-writes.md", heading, "sql")
}

/// A database that no other test has.
struct Database(&'static str);

impl Database {
    fn new(name: &'static str) -> Self {
        MariaDbServer::shared().sql(&format!("CREATE DATABASE {name}"));
        Self(name)
    }

    async fn connect(&self, user: &str, counts_found: bool) -> Conn {
        let addr = MariaDbServer::shared().addr();
        let opts = OptsBuilder::default().ip_or_hostname(addr.ip().to_string()).tcp_port(addr.port()).user(Some(user));
        Conn::new(opts.db_name(Some(self.0)).client_found_rows(counts_found)).await.unwrap()
    }

    /// A row of id 7 with 10 units.
    async fn stock(&self) -> Conn {
        let mut conn = self.connect("root", true).await;
        conn.query_drop(&page("A column in the guarded row")[0]).await.unwrap();
        conn.query_drop("INSERT INTO stock (id, units) VALUES (7, 10)").await.unwrap();
        conn
    }
}

async fn rows(conn: &mut Conn, statement: &str, params: impl Into<Params> + Send) -> u64 {
    conn.exec_drop(statement, params).await.unwrap();
    conn.affected_rows()
}

async fn row(conn: &mut Conn) -> (i64, i64) {
    conn.query_first("SELECT units, fence FROM stock WHERE id = 7").await.unwrap().unwrap()
}

async fn write(conn: &mut Conn, units: i64, fence: i64) -> u64 {
    rows(conn, &page("A column in the guarded row")[2], (units, fence, 7, fence)).await
}

/// Whether the row has changed since the transaction first read. Only newer servers look.
fn has_changed(error: &mysql_async::Error) -> bool {
    const ER_CHECKREAD: u16 = 1020;
    matches!(error, mysql_async::Error::Server(error) if error.code == ER_CHECKREAD)
}

#[tokio::test]
async fn a_write_without_the_largest_fence_changes_no_row() {
    let database = Database::new("fenced_column");
    let mut conn = database.stock().await;
    for (units, fence, rows) in [(9, 3, 1), (8, 3, 1), (7, 5, 1), (6, 3, 0), (7, 5, 1)] {
        assert_eq!(write(&mut conn, units, fence).await, rows, "{units} with {fence}");
    }
    assert_eq!(row(&mut conn).await, (7, 5));
    let mut changed = database.connect("root", false).await;
    assert_eq!(write(&mut changed, 7, 5).await, 0, "the warning of the page is for nothing");
}

#[tokio::test]
async fn a_holder_that_has_read_is_followed_by_no_earlier_one() {
    let database = Database::new("fenced_read");
    database.stock().await;
    let [_, _, raise, read, write] = &page("Read, then write")[..] else { panic!("five statements") };
    // Whichever rows are counted.
    for (counts_found, first, second) in [(true, 3, 5), (false, 13, 15)] {
        let mut conn = database.connect("root", counts_found).await;
        for (fence, may_read) in [(first, true), (second, true), (second, true), (first, false)] {
            rows(&mut conn, raise, (fence, 7, fence)).await;
            let units: Option<i64> = conn.exec_first(read, (7, fence)).await.unwrap();
            assert_eq!(units.is_some(), may_read, "{fence}");
        }
        assert_eq!(rows(&mut conn, write, (9, 7, first)).await, 0);
        assert_eq!(rows(&mut conn, write, (second, 7, second)).await, 1);
        assert_eq!(row(&mut conn).await, (second, second));
    }
}

/// A stale write that waits for a row finds what the later holder left there, also in a transaction that has read before.
#[tokio::test]
async fn a_stale_write_that_waited_is_refused_at_each_isolation_level() {
    let database = Database::new("fenced_levels");
    let mut later = database.stock().await;
    let (mut stale, mut admin) = (database.connect("root", true).await, database.connect("root", true).await);
    for (level, fence) in [("READ COMMITTED", 5), ("REPEATABLE READ", 7)] {
        stale.query_drop(format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        stale.query_drop("BEGIN").await.unwrap();
        row(&mut stale).await;
        later.query_drop("BEGIN").await.unwrap();
        assert_eq!(write(&mut later, 1, fence).await, 1);
        let waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
        let both = async {
            let commit = async {
                while admin.query_first::<i64, _>(waiting).await.unwrap() == Some(0) {
                    // The server makes the list anew if nobody has read it for 100 ms.
                    tokio::time::sleep(Duration::from_millis(110)).await;
                }
                later.query_drop("COMMIT").await.unwrap();
            };
            let write = &page("A column in the guarded row")[2];
            tokio::join!(stale.exec_drop(write, (2, fence - 1, 7, fence - 1)), commit).0
        };
        match timeout(PATIENCE, both).await.expect("it never waits") {
            Ok(()) => assert_eq!(stale.affected_rows(), 0, "{level}"),
            Err(error) => assert!(level == "REPEATABLE READ" && has_changed(&error), "{level}: {error}"),
        }
        stale.query_drop("ROLLBACK").await.unwrap();
        assert_eq!(row(&mut later).await, (1, fence), "{level}");
    }
}

#[tokio::test]
async fn a_table_of_fences_refuses_a_stale_holder() {
    let database = Database::new("fenced_table");
    let [_, _, create, raise, largest] = &page("A table of fences")[..] else { panic!("five statements") };
    assert_eq!(
        [create, raise, largest].map(|sql| sql.trim_end()),
        [fenced::mysql::CREATE, fenced::mysql::RAISE, fenced::mysql::LARGEST]
    );
    let (mut conn, mut later) = (database.connect("root", false).await, database.connect("root", false).await);
    conn.query_drop(create).await.unwrap();
    let is_current = async |conn: &mut Conn, resource: &str, fence: i64| match conn.exec_drop(raise, (resource, fence)).await {
        Ok(()) => conn.exec_first::<i64, _, _>(largest, (resource,)).await.unwrap() == Some(fence),
        Err(error) => !has_changed(&error),
    };
    for (resource, fence, current) in
        [("stock/7", 3, true), ("stock/7", 3, true), ("stock/7", 5, true), ("stock/7", 3, false), ("STOCK/7", 1, true)]
    {
        assert_eq!(is_current(&mut conn, resource, fence).await, current, "{resource} {fence}");
    }
    // A transaction that has read before a later holder raised it.
    conn.query_drop("BEGIN").await.unwrap();
    assert_eq!(conn.query_first::<i64, _>("SELECT max(fence) FROM fences").await.unwrap(), Some(5));
    assert!(is_current(&mut later, "stock/7", 7).await);
    assert!(!is_current(&mut conn, "stock/7", 5).await);
    conn.query_drop("ROLLBACK").await.unwrap();
}

/// The steps of the page that differ from those of PostgreSQL, whose test runs them under load.
#[tokio::test]
async fn an_existing_table_gets_fences() {
    let database = Database::new("fenced_later");
    let server = MariaDbServer::shared();
    server.sql(
        "CREATE TABLE fenced_later.stock (id bigint PRIMARY KEY, units bigint NOT NULL);
        INSERT INTO fenced_later.stock VALUES (7, 10);
        CREATE USER unfenced, fenced;
        GRANT SELECT, INSERT, UPDATE, DELETE ON fenced_later.stock TO unfenced",
    );
    let steps = page("To an existing table, without downtime");
    let [_, add, grant, _, old_sessions, revoke] = &steps[..] else { panic!("six statements") };
    let mut admin = database.connect("root", true).await;
    let mut old = database.connect("unfenced", true).await;
    for statement in add.split(';') {
        admin.query_drop(statement).await.unwrap();
    }
    assert_eq!(rows(&mut old, "UPDATE stock SET units = 11 WHERE id = 7", ()).await, 1);
    admin.query_drop(grant).await.unwrap();
    let mut moved = database.connect("fenced", true).await;
    assert_eq!(write(&mut moved, 12, 5).await, 1);
    assert_eq!(admin.query_first::<i64, _>(old_sessions).await.unwrap(), Some(1));
    admin.query_drop(revoke).await.unwrap();
    old.exec_drop("UPDATE stock SET units = 13 WHERE id = 7", ()).await.unwrap_err();
    assert_eq!((write(&mut moved, 14, 3).await, write(&mut moved, 15, 5).await), (0, 1));
}

/// A number that was not committed is given again: no gap.
#[tokio::test]
async fn numbers_have_no_gap_and_a_stale_holder_gets_none() {
    let database = Database::new("fenced_numbers");
    let [_, _, create, next, number] = &blocks("numbers.md", "Without gaps", "sql")[..] else { panic!("five statements") };
    assert_eq!(
        [create, next, number].map(|sql| sql.trim_end()),
        [fenced::mysql::NUMBERS, fenced::mysql::NEXT, fenced::mysql::NUMBER]
    );
    let mut conn = database.connect("root", false).await;
    conn.query_drop(create).await.unwrap();
    for (fence, commits, expected) in
        [(3, true, Some(1)), (3, false, Some(2)), (5, true, Some(2)), (3, true, None), (5, true, Some(3))]
    {
        conn.query_drop("BEGIN").await.unwrap();
        conn.exec_drop(next, ("thread/42", fence)).await.unwrap();
        let (made, largest) = conn.exec_first::<(i64, i64), _, _>(number, ("thread/42",)).await.unwrap().unwrap();
        assert_eq!((largest == fence).then_some(made), expected, "with {fence}");
        conn.query_drop(if commits && largest == fence { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
    }
}
