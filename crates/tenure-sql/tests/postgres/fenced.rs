//! docs/fenced-writes.md on PostgreSQL: each statement as it stands on the page.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tenure_sql::fenced;
use tenure_testkit::PostgresServer;
use tenure_testkit::page::blocks;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use crate::PATIENCE;

fn page(heading: &str) -> Vec<String> {
    blocks("fenced-writes.md", heading, "sql")
}

/// Tables that no other test has.
struct Schema(String);

impl Schema {
    async fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let schema = Self(format!("fenced_{}", LAST.fetch_add(1, Ordering::Relaxed)));
        schema.connect("tenure").await.batch_execute(&format!("CREATE SCHEMA {}", schema.0)).await.unwrap();
        schema
    }

    async fn connect(&self, user: &str) -> Client {
        let addr = PostgresServer::shared().addr();
        let mut config = tokio_postgres::Config::new();
        config.host(addr.ip().to_string()).port(addr.port()).user(user).dbname("postgres");
        config.options(format!("-c search_path={}", self.0));
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A row of id 7 with 10 units.
    async fn stock(&self) -> Client {
        let client = self.connect("tenure").await;
        client.batch_execute(&page("A column in the guarded row")[0]).await.unwrap();
        client.batch_execute("INSERT INTO stock (id, units) VALUES (7, 10)").await.unwrap();
        client
    }
}

async fn row(client: &Client) -> (i64, i64) {
    let row = client.query_one("SELECT units, fence FROM stock WHERE id = 7", &[]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn write(client: &Client, units: i64, fence: i64) -> Result<u64, tokio_postgres::Error> {
    client.execute(&page("A column in the guarded row")[1], &[&7_i64, &fence, &units]).await
}

#[tokio::test]
async fn a_write_without_the_largest_fence_changes_no_row() {
    let client = Schema::new().await.stock().await;
    for (units, fence, rows) in [(9, 3, 1), (8, 3, 1), (7, 5, 1), (6, 3, 0), (7, 5, 1)] {
        assert_eq!(write(&client, units, fence).await.unwrap(), rows, "{units} with {fence}");
    }
    assert_eq!(row(&client).await, (7, 5));
}

#[tokio::test]
async fn a_holder_that_has_read_is_followed_by_no_earlier_one() {
    let client = Schema::new().await.stock().await;
    let [read, write, ..] = &page("Read, then write")[..] else { panic!("two statements") };
    let read = async |fence: i64| {
        let row = client.query_opt(read, &[&7_i64, &fence]).await.unwrap();
        row.map(|row| row.get::<_, i64>(0))
    };
    let write = async |units: i64, fence: i64| client.execute(write, &[&7_i64, &fence, &units]).await.unwrap();
    assert_eq!((read(3).await, read(5).await), (Some(10), Some(10)));
    assert_eq!((write(9, 3).await, write(8, 5).await), (0, 1));
    assert_eq!((read(3).await, row(&client).await), (None, (8, 5)));
}

/// A stale write that waits for a row finds what the later holder left there.
#[tokio::test]
async fn a_stale_write_that_waited_is_refused_at_each_isolation_level() {
    let schema = Schema::new().await;
    let mut later = schema.stock().await;
    let stale = schema.connect("tenure").await;
    for (level, fence) in [("READ COMMITTED", 5), ("REPEATABLE READ", 7), ("SERIALIZABLE", 9)] {
        stale.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1")).await.unwrap();
        let transaction = later.transaction().await.unwrap();
        transaction.execute(&page("A column in the guarded row")[1], &[&7_i64, &fence, &1_i64]).await.unwrap();
        let waits = async {
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1";
            let pid: i32 = stale.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
            let write = write(&stale, 2, fence - 1);
            let commit = async {
                while transaction.query_one(waiting, &[&pid]).await.unwrap().get::<_, i64>(0) == 0 {}
                transaction.commit().await.unwrap();
            };
            tokio::join!(write, commit).0
        };
        match timeout(PATIENCE, waits).await.expect("it never waits") {
            Ok(rows) => assert_eq!((rows, level), (0, "READ COMMITTED")),
            Err(error) => assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{level}: {error}"),
        }
        stale.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(row(&later).await, (1, fence), "{level}");
    }
}

#[tokio::test]
async fn of_several_rows_all_are_written_or_none() {
    let mut client = Schema::new().await.stock().await;
    client.batch_execute("INSERT INTO stock (id, units, fence) VALUES (8, 10, 5)").await.unwrap();
    let write = &page("A column in the guarded row")[1];
    for (fence, written) in [(3_i64, false), (5, true)] {
        let transaction = client.transaction().await.unwrap();
        let mut all = true;
        for id in [7_i64, 8] {
            all &= transaction.execute(write, &[&id, &fence, &1_i64]).await.unwrap() == 1;
        }
        assert_eq!(all, written);
        if all {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        assert_eq!(row(&client).await, if written { (1, 5) } else { (10, 0) });
    }
}

#[tokio::test]
async fn a_table_of_fences_refuses_a_stale_holder() {
    let schema = Schema::new().await;
    let client = schema.connect("tenure").await;
    let [create, raise, ..] = &page("A table of fences")[..] else { panic!("two statements") };
    assert_eq!((create.trim_end(), raise.trim_end()), (fenced::postgres::CREATE, fenced::postgres::RAISE));
    client.batch_execute(create).await.unwrap();
    for (resource, fence, rows) in
        [("stock/7", 3_i64, 1), ("stock/7", 3, 1), ("stock/7", 5, 1), ("stock/7", 3, 0), ("stock/8", 1, 1)]
    {
        let params: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] = &[(&resource, Type::TEXT), (&fence, Type::INT8)];
        assert_eq!(client.execute_typed(raise, params).await.unwrap(), rows, "{resource} {fence}");
    }
}

/// One writer of the migration: a service that adds to a row, with or without a fence.
struct Service<'a> {
    schema: &'a Schema,
    /// It sends fences, as the other user.
    has_moved: AtomicBool,
    ends: AtomicBool,
    writes: AtomicU64,
    slowest: AtomicU64,
}

impl Service<'_> {
    /// Writes until it ends. Returns how often it has.
    async fn run(&self) -> u64 {
        let mut writes = 0;
        let mut client = self.schema.connect("unfenced").await;
        let mut moved = false;
        while !self.ends.load(Ordering::Relaxed) {
            if !moved && self.has_moved.load(Ordering::Relaxed) {
                // As a new version of the service begins.
                (client, moved) = (self.schema.connect("fenced").await, true);
            }
            let began = Instant::now();
            let rows = if moved {
                let fenced = "UPDATE stock SET units = units + 1, fence = $2 WHERE id = $1 AND fence <= $2";
                client.execute(fenced, &[&7_i64, &5_i64]).await
            } else {
                client.execute("UPDATE stock SET units = units + 1 WHERE id = $1", &[&7_i64]).await
            };
            assert_eq!(rows.unwrap(), 1, "a write failed during the migration");
            writes += 1;
            self.writes.store(writes, Ordering::Relaxed);
            let took = u64::try_from(began.elapsed().as_micros()).unwrap();
            self.slowest.fetch_max(took, Ordering::Relaxed);
        }
        writes
    }

    async fn goes_on(&self) {
        let before = self.writes.load(Ordering::Relaxed);
        let more = async {
            while self.writes.load(Ordering::Relaxed) < before + 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, more).await.expect("a service stands still");
    }
}

/// The steps of the page, while three services write without a pause.
#[tokio::test]
async fn an_existing_table_gets_fences_without_downtime() {
    let schema = Schema::new().await;
    let admin = schema.connect("tenure").await;
    let make = "CREATE TABLE stock (id bigint PRIMARY KEY, units bigint NOT NULL);
        INSERT INTO stock SELECT n, 0 FROM generate_series(1, 100000) n;
        CREATE USER unfenced; CREATE USER fenced;
        GRANT SELECT, INSERT, UPDATE, DELETE ON stock TO unfenced";
    admin.batch_execute(make).await.unwrap();
    admin.batch_execute(&format!("GRANT USAGE ON SCHEMA {} TO unfenced, fenced", schema.0)).await.unwrap();
    let steps = page("To an existing table, without downtime");
    let [add, _, grant, old_sessions, _, revoke] = &steps[..] else { panic!("six statements") };
    let service = || Service {
        schema: &schema,
        has_moved: AtomicBool::new(false),
        ends: AtomicBool::new(false),
        writes: AtomicU64::new(0),
        slowest: AtomicU64::new(0),
    };
    let services = [service(), service(), service()];
    let [one, two, three] = &services;
    let all = async || {
        for service in &services {
            service.goes_on().await;
        }
    };
    let migration = async {
        all().await;
        admin.batch_execute(add).await.unwrap();
        all().await;
        admin.batch_execute(grant).await.unwrap();
        for service in &services {
            service.has_moved.store(true, Ordering::Relaxed);
            all().await;
        }
        let old = async { admin.query_one(old_sessions, &[]).await.unwrap().get::<_, i64>(0) };
        let left = async {
            let mut left = old.await;
            while left > 0 {
                left = admin.query_one(old_sessions, &[]).await.unwrap().get(0);
            }
        };
        timeout(PATIENCE, left).await.expect("the old services have not left");
        admin.batch_execute(revoke).await.unwrap();
        all().await;
        for service in &services {
            service.ends.store(true, Ordering::Relaxed);
        }
    };
    let (a, b, c, ()) = tokio::join!(one.run(), two.run(), three.run(), migration);
    // None is lost, and from now on a fence is needed.
    assert_eq!(row(&admin).await, (i64::try_from(a + b + c).unwrap(), 5));
    let forgotten = schema.connect("unfenced").await;
    let error = forgotten.execute("UPDATE stock SET units = 0 WHERE id = 7", &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    assert_eq!(write(&admin, 0, 3).await.unwrap(), 0);
    let slowest = services.iter().map(|service| service.slowest.load(Ordering::Relaxed)).max().unwrap();
    println!("{} writes, the slowest in {slowest} us", a + b + c);
}

/// A number that was not committed is given again: no gap.
#[tokio::test]
async fn numbers_have_no_gap_and_a_stale_holder_gets_none() {
    let schema = Schema::new().await;
    let mut client = schema.connect("tenure").await;
    let [create, next, ..] = &blocks("numbers.md", "Without gaps", "sql")[..] else { panic!("two statements") };
    assert_eq!((create.trim_end(), next.trim_end()), (fenced::postgres::NUMBERS, fenced::postgres::NEXT));
    client.batch_execute(create).await.unwrap();
    for (fence, commits, number) in
        [(3_i64, true, Some(1_i64)), (3, false, Some(2)), (5, true, Some(2)), (3, true, None), (5, true, Some(3))]
    {
        let transaction = client.transaction().await.unwrap();
        let row = transaction.query_opt(next, &[&"thread/42", &fence]).await.unwrap();
        assert_eq!(row.map(|row| row.get::<_, i64>(0)), number, "with {fence}");
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }
}
