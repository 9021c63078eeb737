//! The password of a server changes again and again, while locks are in use.

use std::io;
use std::time::Duration;

use tempfile::TempDir;
use tenure::{BootTime, Error, ErrorKind, State};
use tenure_testkit::{EtcdCluster, MariaDbServer, Passwords, PostgresServer, RedisServer};

use super::plan::{Engine, Where, unmade};
use super::report::Tally;
use super::task::{Task, now};
use crate::bench::Address;

/// How often it changes.
const EVERY: Duration = Duration::from_secs(10);
/// How long the server knows a password before the file has it, in every second change.
const AHEAD: Duration = Duration::from_millis(500);
const FIRST: &str = "first";
/// A lease that is not renewed ends before the second change. Logins take their time where all processes make one at once.
const TTL: Duration = Duration::from_secs(15);
/// A task with a margin of its own confirms each hand-over first, as the command does. Others have to renew it within a second,
/// and the password may be wrong for half of that.
const MARGIN: Duration = Duration::from_secs(1);

/// A server of its own with a user, and the file of the password.
pub(super) struct Logins {
    server: Server,
    address: Address,
    file: std::path::PathBuf,
    _dir: TempDir,
}

enum Server {
    Redis(RedisServer),
    Other(Engine, Box<dyn Passwords>),
}

impl Logins {
    pub(super) fn start(place: &Where) -> Result<Self, Error> {
        let as_app = |url: String| url.replace("root@", "").replace("tenure@", "").replace("://", "://app@");
        let (server, url) = match place {
            Where::Redis => {
                let server = RedisServer::start();
                let url = server.url();
                (Server::Redis(server), url)
            }
            Where::Engine(engine @ Engine::Postgres) => {
                let server = PostgresServer::builder().password("s3cret").set("max_connections", "300").start();
                let url = server.url("locks");
                (Server::Other(*engine, Box::new(server)), url)
            }
            Where::Engine(engine @ Engine::MariaDb) => {
                let server = MariaDbServer::start();
                let url = server.url("locks");
                (Server::Other(*engine, Box::new(server)), url)
            }
            Where::Engine(engine @ Engine::Etcd) => {
                let server = EtcdCluster::of(1).start();
                let url = server.url("locks/");
                (Server::Other(*engine, Box::new(server)), url)
            }
            _ => return Err(Error::invalid("no password is changed in this store")),
        };
        let dir = TempDir::with_prefix("tenure-soak-").map_err(unmade)?;
        let file = dir.path().join("password");
        let address = Address { password_file: Some(file.clone()), ..Address::of(&as_app(url)) };
        let logins = Self { server, address, file, _dir: dir };
        logins.write(FIRST).map_err(unmade)?;
        logins.server().make_app(FIRST);
        Ok(logins)
    }

    pub(super) fn word(&self) -> &'static str {
        match &self.server {
            Server::Redis(_) => "redis",
            Server::Other(engine, _) => engine.word(),
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn redis(&self) -> Option<&RedisServer> {
        if let Server::Redis(server) = &self.server { Some(server) } else { None }
    }

    fn server(&self) -> &dyn Passwords {
        match &self.server {
            Server::Redis(server) => server,
            Server::Other(_, server) => &**server,
        }
    }

    fn write(&self, password: &str) -> io::Result<()> {
        std::fs::write(&self.file, password)
    }

    /// Changes the password until `end`; how often.
    pub(super) fn change_until(&self, end: BootTime) -> Result<u64, Error> {
        let mut count = 0;
        loop {
            std::thread::sleep(EVERY.min(end.since(BootTime::now())));
            if BootTime::now() >= end {
                return Ok(count);
            }
            count += 1;
            let password = format!("password-{count}");
            if count % 2 == 0 {
                self.write(&password).map_err(unmade)?;
                self.server().change_password(&password);
            } else {
                self.server().change_password(&password);
                std::thread::sleep(AHEAD);
                self.write(&password).map_err(unmade)?;
            }
        }
    }
}

impl Task {
    /// Holds a name until `end`, or takes and releases one after the other. No lease is lost, and no call is refused.
    ///
    /// # Errors
    /// When the place has gone.
    pub(super) async fn beside_rotations(mut self, holds: bool, end: BootTime) -> io::Result<Tally> {
        while BootTime::now() < end && !self.over {
            let (asked, name) = (now(), self.one_of_several());
            let acquire = self.locker.mutex(name).ttl(TTL).safety_margin(MARGIN);
            let taken = if holds || self.rng.bool() {
                acquire.try_acquire().await
            } else {
                let wait = self.millis(2_000);
                acquire.wait(wait).acquire().await.map(Some)
            };
            if let Err(error) = &taken
                && error.kind() != ErrorKind::TimedOut
                && !error.is_transient()
            {
                self.finds(format_args!("a call fails for good: {error}"));
            }
            let Some(guard) = self.heard(Some(taken)).flatten() else {
                self.pause(200).await;
                continue;
            };
            let Some(held) = self.enter(guard, asked).await? else { continue };
            let entered = BootTime::now();
            let until = if holds { end } else { BootTime::now() + self.millis(20) };
            let mut left = held.guard.lease_remaining();
            while BootTime::now() < until && held.guard.state() != State::Lost {
                self.pause(100).await;
                self.look(&held).await?;
                let before = std::mem::replace(&mut left, held.guard.lease_remaining());
                self.tally.renewed += u64::from(left > before);
            }
            if held.guard.state() == State::Lost {
                let why = held.guard.renewal_error().map_or_else(|| "no error".to_owned(), |error| error.to_string());
                let (name, how, age) = (held.guard.name(), held.guard.end_reason(), BootTime::now().since(entered));
                self.finds(format_args!("the lease of {name} is lost {age:?} after it came, {how:?}: {why}"));
            }
            self.leave(held).await?;
            self.pause(200).await;
        }
        Ok(self.tally)
    }
}
