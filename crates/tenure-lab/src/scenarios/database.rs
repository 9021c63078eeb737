//! Databases in whose tables locks are kept, each behind a proxy.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tenure_testkit::{MariaDbServer, PostgresServer, Proxy, SqlSession};

use super::rows::{Row, Rows};
use super::scheme::in_record;
use super::server::{Breakable, Fixture, OwnServer, Seen, Target, by_record, play};
use super::stage::{Access, Stage, wall_clock};
use crate::item::Run;

/// Which database, and what its SQL calls things.
#[derive(Clone, Copy)]
pub(super) struct Engine {
    /// How the ids of its rows begin.
    id: &'static str,
    start: fn(Own) -> Arc<dyn Server>,
    shared: fn() -> Arc<dyn Server>,
    /// The store URL of a table at an address.
    url: fn(SocketAddr, &str) -> String,
    /// The statements that make the table of a URL.
    migration: fn(&str) -> String,
    /// Statements that let a user called as the table use it.
    user: &'static str,
    /// Microseconds since 1970.
    clock: &'static str,
    line_break: &'static str,
    /// A renewal of several names waits for a row that another transaction has locked.
    pub(super) renewals_wait: bool,
    /// Statements that end the sessions of the table's users.
    end_sessions: &'static str,
    /// Statements after which nobody may write, and statements that end that.
    pub(super) read_only: [&'static str; 2],
    /// How many statements of the table's users wait for a row.
    waiting: &'static str,
}

/// For what a server of its own is started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// To be killed, stopped or changed as a whole.
    Plain,
    /// To have its clock set.
    Clock,
}

pub(super) const ENGINES: [Engine; 2] = [POSTGRES, MARIADB];

pub(super) const POSTGRES: Engine = Engine {
    id: "postgres",
    start: |own| Arc::new(if own == Own::Clock { postgres().shifted_clock() } else { postgres() }.start()),
    shared: || {
        static SHARED: OnceLock<Arc<PostgresServer>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(postgres().start())).clone()
    },
    url: |addr, table| format!("postgres://tenure@{addr}/postgres?table={table}&application_name={table}"),
    migration: |url| tenure_sql::postgres::Options::parse(url).expect("a URL of ours").migration(),
    user: "",
    clock: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    line_break: "chr(10)",
    renewals_wait: false,
    end_sessions: "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '$t'",
    read_only: [
        "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()",
        "ALTER SYSTEM SET default_transaction_read_only = off; SELECT pg_reload_conf()",
    ],
    waiting: "SELECT count(*) FROM pg_stat_activity WHERE application_name = '$t' AND wait_event_type = 'Lock'",
};

/// It looks for deadlocks as soon as somebody waits.
fn postgres() -> tenure_testkit::postgres::Builder {
    PostgresServer::builder().set("max_connections", "500").set("deadlock_timeout", "5ms")
}

pub(super) const MARIADB: Engine = Engine {
    id: "mariadb",
    start: |own| {
        Arc::new(if own == Own::Clock { MariaDbServer::builder().shifted_clock().start() } else { MariaDbServer::start() })
    },
    shared: || {
        static SHARED: OnceLock<Arc<MariaDbServer>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(MariaDbServer::start())).clone()
    },
    url: |addr, table| format!("mysql://{table}@{addr}/locks?table={table}"),
    migration: |url| "USE locks; ".to_owned() + &tenure_sql::mysql::Options::parse(url).expect("a URL of ours").migration(),
    user: "CREATE USER $t; GRANT ALL ON locks.* TO $t",
    clock: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    line_break: "CHAR(10)",
    renewals_wait: true,
    end_sessions: "KILL CONNECTION USER $t",
    read_only: ["SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"],
    waiting: "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '$t' AND command <> 'Sleep' AND time_ms > 3",
};

/// A server as scenarios break it.
pub(super) trait Server: Send + Sync {
    fn addr(&self) -> SocketAddr;
    fn sql(&self, statements: &str) -> Vec<String>;
    fn session(&self) -> SqlSession;
    fn stop(&self);
    fn cont(&self);
    fn kill(&self);
    fn restart(&self);
    fn shift_clock(&self, milliseconds: i64);
    /// How many deadlocks there were.
    fn deadlocks(&self) -> usize;
    fn as_postgres(&self) -> &PostgresServer;
}

macro_rules! server {
    ($($type:ty: $deadlocks:expr;)*) => {$(
        impl Server for $type {
            fn addr(&self) -> SocketAddr {
                self.addr()
            }

            fn sql(&self, statements: &str) -> Vec<String> {
                self.sql(statements)
            }

            fn session(&self) -> SqlSession {
                self.session()
            }

            fn stop(&self) {
                self.stop();
            }

            fn cont(&self) {
                self.cont();
            }

            fn kill(&self) {
                self.kill();
            }

            fn restart(&self) {
                self.restart();
            }

            fn shift_clock(&self, milliseconds: i64) {
                self.shift_clock(milliseconds);
            }

            fn deadlocks(&self) -> usize {
                let deadlocks: fn(&Self) -> usize = $deadlocks;
                deadlocks(self)
            }

            fn as_postgres(&self) -> &PostgresServer {
                (self as &dyn Any).downcast_ref().expect("a row of PostgreSQL")
            }
        }
    )*};
}

server! {
    // Its own count lags behind.
    PostgresServer: |server| server.log().matches("deadlock detected").count();
    MariaDbServer: |server| {
        let row = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").concat();
        row.rsplit('\t').next().and_then(|count| count.parse().ok()).expect("a count")
    };
}

/// A table of its own in a database. Those who are near reach it through the proxy.
pub(super) struct Database {
    pub(super) server: Arc<dyn Server>,
    pub(super) proxy: Proxy,
    pub(super) engine: Engine,
    pub(super) table: String,
    /// To look at the table.
    eye: Mutex<Option<SqlSession>>,
}

impl Database {
    fn new(engine: Engine, server: Arc<dyn Server>) -> Self {
        let (proxy, table) = (Proxy::start_opaque(server.addr()), PostgresServer::fresh_table());
        let database = Self { server, proxy, engine, table, eye: Mutex::default() };
        if !engine.user.is_empty() {
            database.run(engine.user);
        }
        database.make_table();
        database
    }

    pub(super) fn make_table(&self) {
        self.server.sql(&(self.engine.migration)(&self.url_at(self.server.addr())));
    }

    /// The store URL, by way of this address.
    pub(super) fn url_at(&self, addr: SocketAddr) -> String {
        format!("{}&timeout=250ms", (self.engine.url)(addr, &self.table))
    }

    /// A statement with the name of the table.
    pub(super) fn with_table(&self, statement: &str) -> String {
        statement.replace("$t", &self.table)
    }

    /// Runs statements in which `$t` stands for the table.
    #[track_caller]
    pub(super) fn run(&self, statements: &str) -> Vec<String> {
        self.ask(&format!("{};", self.with_table(statements)))
    }

    /// In the session that looks at the table. It ends with a server that is killed.
    fn ask(&self, statements: &str) -> Vec<String> {
        let mut eye = self.eye.lock().unwrap_or_else(PoisonError::into_inner);
        let known = eye.as_mut().and_then(|eye| eye.try_run(statements));
        known.unwrap_or_else(|| eye.insert(self.server.session()).run(statements))
    }

    pub(super) fn end_sessions(&self) {
        self.run(self.engine.end_sessions);
    }

    pub(super) fn waiting(&self) -> u64 {
        self.number(self.engine.waiting)
    }

    /// How far the server's clock is ahead of the lab's, in milliseconds.
    pub(super) fn clock_ahead(&self) -> i64 {
        let clock = self.number(&format!("SELECT {}", self.engine.clock));
        i64::try_from(clock / 1_000).expect("a sane clock") - wall_clock()
    }

    fn number(&self, question: &str) -> u64 {
        self.run(question).pop().and_then(|last| last.parse().ok()).expect("a number")
    }

    /// Those who hold a name or wait for it, as [`in_record`] has them.
    fn look(&self, name: &str) -> Vec<Seen> {
        let Engine { clock, line_break, .. } = self.engine;
        let question = format!(
            "SELECT concat({clock}, {line_break}, until, {line_break}, coalesce(owner, ''), {line_break}, coalesce(record, '')) \
             FROM {} WHERE name = '{}' AND until > {clock};",
            self.table,
            name.replace('\'', "''")
        );
        let rows = self.ask(&question);
        let [now, until, owner, record @ ..] = &rows[..] else { return Vec::new() };
        let number = |text: &str| text.parse::<i64>().expect("a number");
        if owner.is_empty() {
            return in_record(&record.join("\n"), number(now));
        }
        vec![("holds".to_owned(), number(until) - number(now), owner.clone())]
    }
}

impl Fixture for Database {
    fn access(self: Arc<Self>) -> Access {
        let (near, far) = (self.url_at(self.proxy.addr()), self.url_at(self.server.addr()));
        by_record(near, far, move |name| self.look(name))
    }
}

impl Target for Database {}

impl Breakable for Database {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn stop(&self) {
        self.server.stop();
    }

    fn cont(&self) {
        self.server.cont();
    }

    fn kill(&self) {
        self.server.kill();
    }

    fn restart(&self) {
        self.server.restart();
    }
}

impl Engine {
    /// A server to be broken.
    pub(super) fn own_server(self) -> OwnServer {
        OwnServer::of(Database::new(self, (self.start)(Own::Plain)))
    }

    /// The table of its rows.
    pub(super) const fn rows(self) -> Rows {
        Rows { id: self.id, fences: true }
    }

    /// On a table of the server that all rows share.
    pub(super) fn shared(self, row: impl Fn(&mut Stage<'_>, &Database) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
        self.on(self.shared, row)
    }

    /// On a server of its own.
    pub(super) fn own(
        self,
        own: Own,
        row: impl Fn(&mut Stage<'_>, &Database) + Copy + Send + Sync + 'static,
    ) -> impl Fn(&str) -> Run {
        self.on(move || (self.start)(own), row)
    }

    fn on(
        self,
        server: impl Fn() -> Arc<dyn Server> + Copy + Send + Sync + 'static,
        row: impl Fn(&mut Stage<'_>, &Database) + Copy + Send + Sync + 'static,
    ) -> impl Fn(&str) -> Run {
        play(move || Database::new(self, server()), row)
    }

    /// A row that is the same on every store.
    pub(super) fn plain(self, row: Row) -> impl Fn(&str) -> Run {
        self.shared(move |stage, _| row(stage))
    }
}
