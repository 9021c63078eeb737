//! Compares a lock in a table with its own statements, sent by the database's driver alone, in turn.
//!
//! `cargo run --release -p tenure-sql --features mysql,postgres --example sql-cost`
//!
//! Starts a PostgreSQL and a MariaDB, which do not wait for their disk. Each task takes and releases a mutex of its own, again and
//! again. The driver has one connection, as the store has. Prints the medians of all rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "it is what the program is for")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::try_join_all;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use tenure::{Locker, Owner};
use tenure_testkit::{MariaDbServer, PostgresServer};
use tokio::sync::Mutex;

#[allow(dead_code, reason = "two of its statements are measured")]
#[path = "../src/mysql/statements.rs"]
mod on_mysql;
#[allow(dead_code, reason = "two of its statements are measured")]
#[path = "../src/postgres/statements.rs"]
mod on_postgres;

const ROUNDS: usize = 15;
const TIME: Duration = Duration::from_millis(400);
const TTL: Duration = Duration::from_secs(30);
const TTL_MICROS: i64 = 30_000_000;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Takes and releases a name.
#[async_trait]
trait Cycle: Send + Sync {
    async fn cycle(&self, name: &str, owner: &str) -> Outcome;
}

#[async_trait]
impl Cycle for Locker {
    async fn cycle(&self, name: &str, _: &str) -> Outcome {
        self.mutex(name).ttl(TTL).acquire().await?.release().await?;
        Ok(())
    }
}

struct Postgres {
    client: tokio_postgres::Client,
    take: tokio_postgres::Statement,
    free: tokio_postgres::Statement,
}

impl Postgres {
    async fn connect(server: &PostgresServer, table: &str) -> Self {
        let url = format!("postgres://tenure@{}/postgres", server.addr());
        let (client, driver) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(driver);
        let on = |statement: &str| statement.replace(on_postgres::TABLE, table);
        let take = client.prepare(&on(on_postgres::TAKE)).await.unwrap();
        let free = client.prepare(&on(on_postgres::FREE)).await.unwrap();
        Self { client, take, free }
    }
}

#[async_trait]
impl Cycle for Postgres {
    async fn cycle(&self, name: &str, owner: &str) -> Outcome {
        self.client.query(&self.take, &[&name, &owner, &TTL_MICROS, &"250", &true]).await?;
        self.client.query(&self.free, &[&name, &owner, &"250"]).await?;
        Ok(())
    }
}

struct MariaDb {
    conn: Mutex<Conn>,
    take: String,
    free: String,
}

impl MariaDb {
    async fn connect(server: &MariaDbServer, table: &str) -> Self {
        let opts = mysql_async::Opts::from_url(&format!("mysql://root@{}/locks", server.addr())).unwrap();
        let opts = mysql_async::OptsBuilder::from_opts(opts).prefer_socket(false);
        let on = |statement: &str| statement.replace(on_mysql::TABLE, table);
        Self { conn: Mutex::new(Conn::new(opts).await.unwrap()), take: on(on_mysql::TAKE), free: on(on_mysql::FREE) }
    }
}

#[async_trait]
impl Cycle for MariaDb {
    async fn cycle(&self, name: &str, owner: &str) -> Outcome {
        let take = (owner, owner, TTL_MICROS, TTL_MICROS, owner, name, owner, 1);
        self.conn.lock().await.exec_drop(&self.take, take).await?;
        self.conn.lock().await.exec_drop(&self.free, (name, owner)).await?;
        Ok(())
    }
}

/// How many cycles so many tasks make in a second.
async fn rate(subject: &Arc<dyn Cycle>, tasks: usize) -> f64 {
    let began = Instant::now();
    let task = |task: usize| {
        let (subject, name, owner) = (Arc::clone(subject), format!("task {task}"), Owner::generate("host.12345").unwrap());
        async move {
            let (owner, mut cycles) = (owner.to_string(), 0_u32);
            while began.elapsed() < TIME {
                subject.cycle(&name, &owner).await?;
                cycles += 1;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(cycles)
        }
    };
    let cycles: u32 =
        try_join_all((0..tasks).map(|number| tokio::spawn(task(number)))).await.unwrap().into_iter().map(Result::unwrap).sum();
    f64::from(cycles) / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn compare(what: &str, ours: Locker, raw: impl Cycle + 'static) {
    let (ours, raw): (Arc<dyn Cycle>, Arc<dyn Cycle>) = (Arc::new(ours), Arc::new(raw));
    for tasks in [1, 16] {
        // The rows are there, and the statements are prepared.
        rate(&ours, tasks).await;
        let (mut rates, mut raw_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let [of_raw, of_ours] = [rate(&raw, tasks).await, rate(&ours, tasks).await];
            rates.push(of_ours);
            raw_rates.push(of_raw);
            ratios.push(of_ours / of_raw);
        }
        let (ours, raw, ratio) = (median(rates), median(raw_rates), 100.0 * median(ratios));
        println!("{what}, {tasks:>2} tasks: {ours:6.0} cycles a second, the statements alone {raw:6.0}: {ratio:.0} %");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = PostgresServer::start();
    let ours = tenure_sql::postgres::Options::parse(&server.url("locks")).unwrap().connect().await.unwrap();
    compare("PostgreSQL", ours, Postgres::connect(&server, "locks").await).await;
    let server = MariaDbServer::start();
    let ours = tenure_sql::mysql::Options::parse(&server.url("locks")).unwrap().connect().await.unwrap();
    compare("MariaDB", ours, MariaDb::connect(&server, "locks").await).await;
}
