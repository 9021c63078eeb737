//! A password that is changed again and again while locks are in use.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tenure::store::Credentials;
use tenure::{ErrorKind, Guard, Locker, ReleaseOutcome, State};

use crate::{EtcdCluster, MariaDbServer, PostgresServer, RedisServer};

const TTL: Duration = Duration::from_secs(60);
/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 6;

/// Changes the password of a store in several rounds, and makes sure that no lease is lost and no wait ends.
///
/// `open` makes a locker with credentials whose first password is `first`. `change` sets another at the server, and ends
/// all connections there. The password file is written before that in one round, and in the next only after the server
/// has refused the old password.
///
/// # Panics
/// If a lease is lost, or a wait fails.
pub async fn rotation<F: Future<Output = Locker>>(first: &str, open: impl FnOnce(Credentials) -> F, change: impl Fn(&str)) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let file = dir.path().join("password");
    let write = |password: &str| std::fs::write(&file, password).expect("the file can be written");
    write(first);
    let locks = open(Credentials::password_file(&file)).await;
    let held = locks.mutex("held").ttl(TTL).acquire().await.expect("it is free");
    for round in 0..ROUNDS {
        let password = format!("password-{round}");
        if round % 2 == 0 {
            write(&password);
        }
        change(&password);
        let brief = locks.mutex("brief").ttl(TTL).wait(PATIENCE);
        let brief = tokio::spawn(async move { brief.acquire().await });
        if round % 2 == 1 {
            let refused = is_extended(&held, |outcome| outcome.is_err_and(|kind| kind == ErrorKind::Unavailable)).await;
            assert!(refused, "the old password was not refused in round {round}: {:?}", held.renewal_error());
            write(&password);
        }
        let brief = brief.await.expect("it does not panic").unwrap_or_else(|error| panic!("round {round}: {error}"));
        brief.release().await.expect("it is not refused");
        assert!(is_extended(&held, |outcome| outcome.is_ok()).await, "round {round}: {:?}", held.renewal_error());
    }
    assert_eq!(held.state(), State::Held);
    assert!(matches!(held.release().await, Ok(ReleaseOutcome::Released)));
}

/// Renews until the outcome is as wished.
async fn is_extended(held: &Guard, is_wished: impl Fn(Result<(), ErrorKind>) -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_wished(held.extend(TTL).await.map_err(|error| error.kind())) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// A server with a user `app` for locks, whose password is changed.
pub trait Passwords {
    /// Makes the user.
    fn make_app(&self, password: &str);

    /// Sets another password, and ends the user's connections if the server can.
    fn change_password(&self, password: &str);
}

impl Passwords for RedisServer {
    fn make_app(&self, password: &str) {
        let set = ["ACL", "SETUSER", "app", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"];
        assert_eq!(self.command(&set).text(), "OK", "the user is not made");
    }

    fn change_password(&self, password: &str) {
        self.make_app(password);
        self.command(&["CLIENT", "KILL", "USER", "app"]);
    }
}

/// The server wants a password of everybody.
impl Passwords for PostgresServer {
    fn make_app(&self, password: &str) {
        self.sql(&format!("CREATE USER app PASSWORD '{password}'; GRANT ALL ON SCHEMA public TO app"));
    }

    fn change_password(&self, password: &str) {
        self.sql(&format!("ALTER USER app PASSWORD '{password}'"));
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    }
}

impl Passwords for MariaDbServer {
    fn make_app(&self, password: &str) {
        self.sql(&format!("CREATE USER app IDENTIFIED BY '{password}'; GRANT ALL ON locks.* TO app"));
    }

    fn change_password(&self, password: &str) {
        self.sql(&format!("ALTER USER app IDENTIFIED BY '{password}'"));
        for kill in self.sql("SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = 'app'") {
            // It may have ended.
            self.session().try_run(&format!("{kill};"));
        }
    }
}

/// The user may do everything. etcd ends no connection, but forgets the tokens of the user.
impl Passwords for EtcdCluster {
    fn make_app(&self, password: &str) {
        self.ctl(&["user", "add", "root:s3cret"]);
        self.ctl(&["user", "grant-role", "root", "root"]);
        self.ctl(&["user", "add", &format!("app:{password}")]);
        self.ctl(&["user", "grant-role", "app", "root"]);
        self.ctl(&["auth", "enable"]);
    }

    fn change_password(&self, password: &str) {
        let mut passwd = self.etcdctl();
        passwd.args(["--user=root:s3cret", "--command-timeout=30s", "user", "passwd", "app", "--interactive=false"]);
        let mut passwd = passwd.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("etcdctl can be started");
        let mut words = passwd.stdin.take().expect("it is piped");
        words.write_all(format!("{password}\n").as_bytes()).expect("it reads them");
        drop(words);
        assert!(passwd.wait().expect("it is ours").success(), "the password is not changed");
    }
}
