//! A real MariaDB, or the MySQL of `TENURE_MYSQL_BIN`, for one test or for all tests of a process.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::process::fresh;
use crate::server::{self, Kind, Server, Tls};
use crate::session::SqlSession;

const DATA: &str = "data";
/// A superuser without a password, who comes by TCP. `mariadb-install-db` makes one by itself.
const MYSQL_GRANTS: &str = "CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";
/// The system has a limit for all servers together.
const NO_AIO: &str = "--innodb-use-native-aio=0";

/// The directory of the programs of a MySQL, where the tests are to run on one.
fn mysql() -> Option<PathBuf> {
    std::env::var_os("TENURE_MYSQL_BIN").map(PathBuf::from)
}

/// Where the program of the server is.
pub fn program() -> PathBuf {
    mysql().map_or_else(|| "mariadbd".into(), |bin| bin.join("mysqld"))
}

/// A MariaDB with a database `locks` and a user `root` without a password. It and its data go when this is dropped.
///
/// Its ports are for clients, and in a Galera cluster for the group, for the latest changes, and for all data.
pub type MariaDbServer = Server<MariaDb>;

/// How to start a [`MariaDbServer`].
pub type Builder = server::Builder<MariaDb>;

/// The particulars of MariaDB.
#[derive(Debug, Default)]
pub struct MariaDb(Galera);

/// Its part in a Galera cluster.
#[derive(Debug, Default)]
enum Galera {
    #[default]
    None,
    First,
    /// It gets its data from the member with this port for the group.
    Joins(u16),
}

impl Builder {
    /// Makes it the first server of a Galera cluster, or one that joins another and gets its data.
    #[must_use]
    pub fn member(mut self, of: Option<&MariaDbServer>) -> Self {
        self.kind.0 = of.map_or(Galera::First, |other| Galera::Joins(other.ports[1]));
        self
    }
}

impl Galera {
    fn arguments(&self, [port, group, increments, all]: [u16; 4]) -> Vec<String> {
        let (other, first) = match self {
            Self::None => return Vec::new(),
            Self::First => (String::new(), Some("--wsrep-new-cluster".to_owned())),
            Self::Joins(other) => (format!("127.0.0.1:{other}"), None),
        };
        let provider = ["/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"];
        let provider = provider.iter().find(|path| Path::new(path).exists()).expect("Galera is there: apt-get install galera-4");
        let options = format!("gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{increments};gcache.size=8M");
        let fixed = ["--wsrep-on=ON", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-sst-method=rsync"];
        let mut arguments = fixed.map(str::to_owned).to_vec();
        arguments.extend([
            format!("--wsrep-cluster-address=gcomm://{other}"),
            format!("--wsrep-provider={provider}"),
            format!("--wsrep-provider-options={options}"),
            format!("--wsrep-node-address=127.0.0.1:{group}"),
            format!("--wsrep-node-incoming-address=127.0.0.1:{port}"),
            format!("--wsrep-sst-receive-address=127.0.0.1:{all}"),
        ]);
        arguments.extend(first);
        arguments
    }
}

impl Kind for MariaDb {
    const NAME: &str = "mariadbd";
    const REMEDY: &str = "apt-get install mariadb-server";
    const USER: Option<&str> = Some("mysql");

    fn prepare(server: &MariaDbServer) {
        // Two at once come into each other's way.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        if matches!(server.how.kind.0, Galera::Joins(_)) {
            let data = server.dir().join(DATA);
            fs::create_dir(&data).expect("a directory of ours can be written");
            server.user.inspect(|user| user.give(&data));
            return;
        }
        let mut install = if MariaDbServer::is_mysql() {
            let grants = server.write("grants.sql", MYSQL_GRANTS);
            let mut install = server.own_program(program());
            install.arg("--initialize-insecure").arg(format!("--init-file={}", grants.display()));
            install
        } else {
            let mut install = server.own_program("mariadb-install-db".into());
            install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
            install
        };
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        MariaDbServer::run(&mut install);
    }

    fn command(server: &MariaDbServer) -> Command {
        let mut command = server.own_program(program());
        if MariaDbServer::is_mysql() {
            command.arg("--mysqlx=OFF");
            if server.how.certificates.is_none() {
                // It would make some of its own.
                command.arg("--tls-version=");
            }
        }
        command.arg(format!("--port={}", server.port())).arg(format!("--socket={}", server.dir().join("sock").display()));
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=500"]);
        // Survives a kill, and no crash of the machine. It waits for no disk.
        command.args(["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2"]);
        command.args(["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"]);
        if let Some([certificate, key]) = server.certificate() {
            command.arg(format!("--ssl-cert={}", certificate.display())).arg(format!("--ssl-key={}", key.display()));
        }
        command.args(server.how.kind.0.arguments(server.ports));
        command
    }

    fn is_ready(server: &MariaDbServer, _pid: u32) -> bool {
        server.log().contains("ready for connections")
    }

    fn complete(server: &MariaDbServer) {
        if !matches!(server.how.kind.0, Galera::Joins(_)) {
            server.sql("CREATE DATABASE locks");
        }
    }
}

impl Tls for MariaDb {}

impl MariaDbServer {
    /// Whether it is a MySQL.
    pub fn is_mysql() -> bool {
        mysql().is_some()
    }

    /// The name of a table that nobody else in this process has.
    pub fn fresh_table() -> String {
        fresh("locks")
    }

    /// A store URL for a way to it: its own address, or that of a proxy. The table is made.
    pub fn url_at(addr: SocketAddr, table: &str) -> String {
        format!("mysql://root@{addr}/locks?create=yes&table={table}")
    }

    /// The store URL of a table.
    pub fn url(&self, table: &str) -> String {
        Self::url_at(self.addr(), table)
    }

    /// Runs statements, and returns the rows with tabs between columns; panics if they are refused.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> Vec<String> {
        let rows = Self::run(self.client().args(["-e", statements]));
        rows.lines().map(str::to_owned).collect()
    }

    /// A session that stays open, in the database `locks`. The first error ends it.
    pub fn session(&self) -> SqlSession {
        let mut client = self.client();
        client.args(["--unbuffered", "--raw", "--skip-reconnect", "locks"]);
        SqlSession::of_mariadb(client)
    }

    fn client(&self) -> Command {
        let mut client = mysql().map_or_else(|| Command::new("mariadb"), |bin| Command::new(bin.join("mysql")));
        client.args(["--no-defaults", "-BN", "-h", "127.0.0.1", "-P", &self.port().to_string(), "-u", "root"]);
        client.stdin(Stdio::null());
        client
    }

    /// A command of the server or of the program that makes its data.
    fn own_program(&self, program: PathBuf) -> Command {
        let (dir, mut command) = (self.dir().display(), self.command_of(program));
        // Each one that starts removes all temporary tables that it finds where it keeps its own.
        command.args(["--no-defaults", NO_AIO, &format!("--datadir={dir}/{DATA}"), &format!("--tmpdir={dir}")]);
        command
    }
}
