//! A real MariaDB, or the MySQL of `TENURE_MYSQL_BIN`, for one test or for all tests of a process.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::guardian;
use crate::process::{Signal, Spawned, free_port};
use crate::session::SqlSession;
use crate::tls::Certificates;
use crate::unprivileged::User;

const START: Duration = Duration::from_secs(60);
const LOG: &str = "log";
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

/// How to start a [`MariaDbServer`].
#[derive(Debug, Default)]
pub struct Builder {
    certificates: Option<[PathBuf; 2]>,
    clock: Option<ShiftedClock>,
    galera: Option<Member>,
}

/// A member of a Galera cluster, with its ports for the group and for the transfer of data.
#[derive(Debug)]
struct Member {
    group: u16,
    transfers: [u16; 2],
    /// The group's port of the member that it joins.
    joins: Option<u16>,
}

impl Builder {
    /// Also takes connections with TLS.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some([certificates.server_cert(), certificates.server_key()]);
        self
    }

    /// Gives it a clock that jumps.
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = Some(ShiftedClock::new());
        self
    }

    /// Makes it the first server of a Galera cluster, or one that joins another and gets its data.
    #[must_use]
    pub fn member(mut self, of: Option<&MariaDbServer>) -> Self {
        let joins = of.and_then(|other| Some(other.how.galera.as_ref()?.group));
        self.galera = Some(Member { group: free_port(), transfers: [free_port(), free_port()], joins });
        self
    }

    /// Makes its data, and starts the server.
    pub fn start(self) -> MariaDbServer {
        guardian::watch_over_us().expect("a guardian can be started");
        let dir = TempDir::with_prefix("mariadb-").expect("a temporary directory can be made");
        let user = User::for_server(&["mysql"]);
        if let Some(user) = user {
            user.give(dir.path());
        }
        if let Some(clock) = &self.clock {
            clock.open_to_all();
        }
        let mut server = MariaDbServer { dir, port: 0, user, how: self, process: Mutex::default() };
        let joins = server.how.galera.as_ref().is_some_and(|member| member.joins.is_some());
        if joins {
            fs::create_dir(server.data()).expect("a directory of ours can be written");
            user.inspect(|user| user.give(&server.data()));
        } else {
            server.initialize();
        }
        loop {
            server.port = free_port();
            if server.launch() {
                if !joins {
                    server.sql("CREATE DATABASE locks");
                }
                return server;
            }
        }
    }
}

impl Member {
    fn arguments(&self) -> Vec<String> {
        let Self { group, transfers: [increments, all], joins } = self;
        let provider = ["/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"];
        let provider = provider.iter().find(|path| Path::new(path).exists()).expect("Galera is there: apt-get install galera-4");
        let mut arguments: Vec<String> =
            ["--wsrep-on=ON", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-sst-method=rsync"]
                .map(str::to_owned)
                .to_vec();
        arguments.extend([
            format!("--wsrep-provider={provider}"),
            format!("--wsrep-node-address=127.0.0.1:{group}"),
            format!("--wsrep-sst-receive-address=127.0.0.1:{all}"),
            format!(
                "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{increments};gcache.size=8M"
            ),
        ]);
        match joins {
            Some(other) => arguments.push(format!("--wsrep-cluster-address=gcomm://127.0.0.1:{other}")),
            None => arguments.extend(["--wsrep-cluster-address=gcomm://", "--wsrep-new-cluster"].map(str::to_owned)),
        }
        arguments
    }
}

/// A MariaDB with a database `locks` and a user `root` without a password. It and its data go when this is dropped.
#[derive(Debug)]
pub struct MariaDbServer {
    dir: TempDir,
    port: u16,
    user: Option<User>,
    how: Builder,
    process: Mutex<Option<Spawned>>,
}

impl MariaDbServer {
    /// Starts one with the defaults.
    pub fn start() -> Self {
        Builder::default().start()
    }

    /// For one with settings of its own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Whether it is a MySQL.
    pub fn is_mysql() -> bool {
        mysql().is_some()
    }

    /// The one that all tests of this process share, for those that do not harm it. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<MariaDbServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// The name of a table that nobody else in this process has.
    pub fn fresh_table() -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        format!("locks_{}_{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
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
        let mut client = self.client();
        let output = Spawned::output(client.args(["-e", statements])).expect("mariadb can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "mariadb refused {statements:?}: {said}");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// A session that stays open, in the database `locks`. The first error ends it.
    pub fn session(&self) -> SqlSession {
        let mut client = self.client();
        client.args(["--unbuffered", "--raw", "--skip-reconnect", "locks"]);
        SqlSession::of_mariadb(client)
    }

    /// Sets its clock this far off the true time.
    pub fn shift_clock(&self, milliseconds: i64) {
        self.how.clock.as_ref().expect("it was started with a clock of its own").shift(milliseconds);
    }

    /// Freezes it with all its sessions.
    pub fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Lets it go on.
    pub fn cont(&self) {
        self.signal(Signal::Cont);
    }

    fn signal(&self, signal: Signal) {
        self.process().as_mut().expect("it runs").signal(signal).expect("it runs");
    }

    /// Kills it, with all sessions, as `SIGKILL` does.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Starts it again with the data it had, on the same port.
    pub fn restart(&self) {
        self.kill();
        assert!(self.launch(), "the port of the server was taken meanwhile");
    }

    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Command {
        let mut client = mysql().map_or_else(|| Command::new("mariadb"), |bin| Command::new(bin.join("mysql")));
        client.args(["--no-defaults", "-BN", "-h", "127.0.0.1", "-P", &self.port.to_string(), "-u", "root"]);
        client.stdin(Stdio::null());
        client
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).arg("--no-defaults").stdin(Stdio::null());
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        command
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join(DATA)
    }

    fn initialize(&self) {
        // Two at once come into each other's way.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let mut install = if let Some(bin) = mysql() {
            let mut install = self.command(bin.join("mysqld"));
            let grants = self.dir.path().join("grants.sql");
            fs::write(&grants, MYSQL_GRANTS).expect("the server's directory can be written");
            install.args(["--initialize-insecure", NO_AIO]).arg(format!("--init-file={}", grants.display()));
            install
        } else {
            let mut install = self.command("mariadb-install-db");
            install.args(["--auth-root-authentication-method=normal", "--skip-test-db", NO_AIO]);
            install
        };
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        install.arg(format!("--datadir={}", self.data().display())).arg(format!("--tmpdir={}", self.dir.path().display()));
        let output = Spawned::output(&mut install).expect("the database can be made: apt-get install mariadb-server");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the database was not made: {}{said}", String::from_utf8_lossy(&output.stdout));
    }

    /// A copy that the user of the server may read.
    fn own_copy(&self, name: &str, file: &Path) -> PathBuf {
        let copy = self.dir.path().join(name);
        fs::copy(file, &copy).expect("a certificate can be copied");
        if let Some(user) = self.user {
            user.give(&copy);
        }
        copy
    }

    /// Starts the process and waits until it answers; false when its port was taken.
    fn launch(&self) -> bool {
        let log = fs::File::create(self.dir.path().join(LOG)).expect("the server's directory can be written");
        let mut server = if Self::is_mysql() {
            let mut server = self.command(program());
            server.arg("--mysqlx=OFF");
            if self.how.certificates.is_none() {
                // It would make some of its own.
                server.arg("--tls-version=");
            }
            server
        } else {
            self.command(program())
        };
        server.arg(format!("--datadir={}", self.data().display())).arg(format!("--port={}", self.port));
        server.arg(format!("--socket={}", self.dir.path().join("sock").display()));
        // Each one that starts removes all temporary tables that it finds where it keeps its own.
        server.arg(format!("--tmpdir={}", self.dir.path().display()));
        server.args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=500", NO_AIO]);
        // Survives a kill, and no crash of the machine. It waits for no disk.
        server.args(["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2"]);
        server.args(["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"]);
        if self.how.galera.is_some() {
            server.arg(format!("--wsrep-node-incoming-address=127.0.0.1:{}", self.port));
        }
        if let Some([certificate, key]) = &self.how.certificates {
            server.args(
                [self.own_copy("server.crt", certificate), self.own_copy("server.key", key)]
                    .iter()
                    .zip(["cert", "key"])
                    .map(|(copy, what)| format!("--ssl-{what}={}", copy.display())),
            );
        }
        if let Some(clock) = &self.how.clock {
            clock.apply(&mut server);
        }
        if let Some(member) = &self.how.galera {
            server.args(member.arguments());
        }
        server.stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        let mut process = Spawned::spawn(&mut server).expect("mariadbd can be started: apt-get install mariadb-server");
        let deadline = Instant::now() + START;
        let log = || fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
        while !log().contains("ready for connections") {
            if let Some(status) = process.child().try_wait().expect("a child of ours can be waited for") {
                assert!(log().contains("Address already in use"), "mariadbd ended with {status}:\n{}", log());
                return false;
            }
            assert!(Instant::now() < deadline, "mariadbd was not ready within {START:?}:\n{}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        *self.process() = Some(process);
        true
    }
}
