//! The stores that faults are done to, each ready to be reached by processes.

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use tempfile::TempDir;
use tenure::BootTime;
use tenure_testkit::{Proxy, RedisServer, redis};

use super::actor::Actor;
use super::database::ENGINES;
use super::rows::{Played, Row, Rows};
use super::scheme::{self, Held, NATIVE, Scheme, clock};
use super::stage::{Access, Line, Look, Stage};
use crate::item::Run;
use crate::{Item, Lab, Shown};

/// A Redis behind a proxy. Those who are near reach it through the proxy.
pub(super) struct Redis {
    pub(super) server: RedisServer,
    pub(super) proxy: Proxy,
    pub(super) scheme: Scheme,
}

impl Redis {
    pub(super) fn start(how: redis::Builder, scheme: Scheme) -> Self {
        let server = how.start();
        let proxy = Proxy::start(server.addr());
        Self { server, proxy, scheme }
    }

    pub(super) fn near(&self) -> String {
        let (server, proxy) = (self.server.port().to_string(), self.proxy.addr().port().to_string());
        self.scheme.url(&self.server.url().replace(&server, &proxy))
    }

    pub(super) fn far(&self) -> String {
        self.scheme.url(&self.server.url())
    }

    /// Where the lock of `name` is at the server.
    pub(super) fn key(&self, name: &str) -> String {
        self.scheme.key(name)
    }

    /// Whether there is anything where the lock of `name` is.
    pub(super) fn has(&self, name: &str) -> bool {
        self.server.command(&["EXISTS", &self.key(name)]) == 1
    }

    /// As another user.
    pub(super) fn as_user(&self, name_and_password: &str) -> String {
        self.near().replace("redis://", &format!("redis://{name_and_password}@"))
    }

    /// How far the server's wall clock is ahead of the lab's, in milliseconds.
    pub(super) fn clock_ahead(&self) -> i64 {
        clock(&self.server) - super::stage::wall_clock()
    }

    /// How often the server has seen a call of this command.
    pub(super) fn calls(&self, command: &str) -> u64 {
        number(&self.server.cli("INFO commandstats"), &format!("cmdstat_{command}:calls="))
    }

    /// How often the server has seen one of those commands of which every renewal and every release has one.
    pub(super) fn own_calls(&self) -> u64 {
        self.scheme.calls.iter().map(|command| self.calls(command)).sum()
    }

    /// How often the server has answered with this error.
    pub(super) fn errors(&self, error: &str) -> u64 {
        number(&self.server.cli("INFO errorstats"), &format!("errorstat_{error}:count="))
    }

    /// For how long `name` is held at the server.
    pub(super) fn left(&self, name: &str) -> Duration {
        self.look(name).and_then(|held| held.left).expect("a name that is held and ends")
    }

    /// The key of those who wait for `name`, in their order.
    pub(super) fn queue(&self, name: &str) -> Option<String> {
        scheme::queue(&self.server, name)
    }

    fn line(&self, name: &str) -> u64 {
        (self.scheme.line)(&self.server, &self.key(name))
    }

    /// The value by which `name` is held.
    pub(super) fn value(&self, name: &str) -> String {
        self.look(name).expect("a name that is held").value
    }

    pub(super) fn look(&self, name: &str) -> Option<Held> {
        (self.scheme.look)(&self.server, &self.key(name))
    }
}

/// A table of rows: given of what it is, and how a row is played.
type Table = fn(Rows, &dyn Fn(Row) -> Played) -> Vec<Item>;

/// The rows of a table on each of our own stores that processes share.
pub(super) fn on_each(rows: Table) -> Vec<Item> {
    let file = |row: Row| -> Played { Box::new(on_file(move |stage, _| row(stage))) };
    let in_tables = ENGINES.map(|engine| rows(engine.rows(), &|row| Box::new(engine.plain(row)))).concat();
    [in_scheme(NATIVE, rows), rows(Rows { id: "sqlite", fences: true }, &file), in_tables].concat()
}

/// The rows of a table on a Redis, in this scheme.
pub(super) fn in_scheme(scheme: Scheme, rows: Table) -> Vec<Item> {
    rows(scheme.rows(), &|row| Box::new(on_redis(scheme, |how| how, move |stage, _| row(stage))))
}

/// The rows of a table on the store that one process has to itself.
pub(super) fn alone(rows: Table) -> Vec<Item> {
    rows(Rows { id: "memory", fences: true }, &|row| Box::new(in_memory(row)))
}

/// The number behind `key`; none of them yet is 0.
fn number(text: &str, key: &str) -> u64 {
    let digits = text.split(key).nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.map_or(0, |digits| digits.parse().expect("digits"))
}

/// A scenario on a Redis that is started as it likes.
pub(super) fn on_redis(
    scheme: Scheme,
    how: fn(redis::Builder) -> redis::Builder,
    row: impl Fn(&mut Stage<'_>, &Redis) + Copy + Send + Sync + 'static,
) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| play_on_redis(lab, &id, seed, Redis::start(how(RedisServer::builder()), scheme), row))
    }
}

pub(super) fn play_on_redis(lab: &Lab, id: &str, seed: u64, redis: Redis, row: impl Fn(&mut Stage<'_>, &Redis)) -> Shown {
    let redis = Arc::new(redis);
    let (looked_at, lined_up) = (Arc::clone(&redis), Arc::clone(&redis));
    let look: Look = Box::new(move |name| looked_at.look(name).map(|held| (held.value, held.left.is_none())));
    let line: Line = Box::new(move |name| lined_up.line(name));
    let access = Access { near: redis.near(), far: redis.far(), alone: false, look: Some(look), line: Some(line) };
    let mut stage = Stage::new(lab, id, seed, access);
    (stage.fences, stage.longer) = (redis.scheme.fences, redis.scheme.longer);
    row(&mut stage, &redis);
    stage.finish()
}

/// A lock file.
pub(super) struct File {
    dir: TempDir,
}

impl File {
    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("locks.db")
    }

    /// The write-ahead log, which takes up the changes.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.path().join("locks.db-wal")
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A scenario on a lock file.
pub(super) fn on_file(row: impl Fn(&mut Stage<'_>, &File) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let file = File { dir: TempDir::with_prefix("tenure-lab-").expect("a temporary directory can be made") };
            let url = format!("sqlite:{}?timeout=250ms", file.path().display());
            let (path, lined_up) = (file.path(), file.path());
            let look: Look = Box::new(move |name| look_into(&path, name));
            let line: Line = Box::new(move |name| line_in(&lined_up, name));
            let access = Access { near: url.clone(), far: url, alone: false, look: Some(look), line: Some(line) };
            let mut stage = Stage::new(lab, &id, seed, access);
            row(&mut stage, &file);
            stage.finish()
        })
    }
}

/// A lock file on a small disk, which is mounted where nobody but the processes of the scenario sees it.
pub(super) struct Mount {
    dir: TempDir,
    /// The process that has made the mount name space.
    first: Actor,
}

impl Mount {
    /// The process that was there first.
    pub(super) fn first(&self) -> Actor {
        self.first.clone()
    }

    /// Another process on the same disk.
    pub(super) fn another(&self, stage: &mut Stage<'_>) -> Actor {
        stage.near_with(|command| *command = self.inside(command))
    }

    /// Runs a line of shell there, in which `disk` is where the disk is mounted.
    pub(super) fn run(&self, line: &str) {
        let mut shell = Command::new("sh");
        shell.args(["-ec", &format!("cd \"$0\"; {line}")]).arg(self.dir.path());
        let output = self.inside(&shell).output().expect("nsenter(1) can be run");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--preserve-credentials", "-U", "-m", "-t", &self.first.pid().to_string()]);
        wrap(inside, command)
    }
}

/// `outer` with `command` behind it, and what its environment has.
pub(super) fn wrap(mut outer: Command, command: &Command) -> Command {
    outer.arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    outer
}

/// A scenario on a lock file on a disk of 300 KiB.
pub(super) fn on_mount(row: impl Fn(&mut Stage<'_>, &Mount) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let dir = TempDir::with_prefix("tenure-lab-").expect("a temporary directory can be made");
            let disk = dir.path().join("disk");
            std::fs::create_dir(&disk).expect("a directory of ours can be written");
            let url = format!("sqlite:{}?timeout=250ms", disk.join("locks.db").display());
            let mut stage =
                Stage::new(lab, &id, seed, Access { near: url.clone(), far: url, alone: false, look: None, line: None });
            let first = stage.near_with(|command| {
                let mut unshare = Command::new("unshare");
                let mount = r#"mount -t tmpfs -o size=300k tmpfs "$0"; exec "$@""#;
                unshare.args(["-rm", "sh", "-ec", mount]).arg(&disk);
                *command = wrap(unshare, command);
            });
            row(&mut stage, &Mount { dir, first });
            stage.finish()
        })
    }
}

/// Who holds a name in a lock file now, without the help of the store.
fn look_into(path: &Path, name: &str) -> Option<(String, bool)> {
    let owner: Option<Vec<u8>> = read_one(path, "SELECT owner FROM lock WHERE name = ?1 AND until > ?2", name);
    owner.map(|owner| (String::from_utf8_lossy(&owner).into_owned(), false))
}

/// How many wait for a name in a lock file now.
fn line_in(path: &Path, name: &str) -> u64 {
    let count: Option<u32> = read_one(path, "SELECT count(*) FROM place WHERE name = ?1 AND until > ?2", name);
    count.expect("a count").into()
}

fn read_one<T: FromSql>(path: &Path, sql: &str, name: &str) -> Option<T> {
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).expect("the lock file can be read");
    file.busy_timeout(Duration::from_secs(5)).expect("a timeout can be set");
    let now = i64::try_from(BootTime::now().since_boot().as_nanos()).expect("the machine is young");
    file.query_row(sql, (name, now), |row| row.get(0)).optional().expect("the lock file can be read")
}

/// A scenario on the memory of one process.
pub(super) fn in_memory(row: Row) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let access = Access { near: "memory:".into(), far: "memory:".into(), alone: true, look: None, line: None };
            let mut stage = Stage::new(lab, &id, seed, access);
            row(&mut stage);
            stage.finish()
        })
    }
}

/// Where clients find the primary, whichever server that is.
pub(super) struct Switch {
    address: SocketAddr,
    upstream: Arc<Mutex<(SocketAddr, Vec<TcpStream>)>>,
}

impl Switch {
    pub(super) fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port is free");
        let address = listener.local_addr().expect("it is bound");
        let upstream = Arc::new(Mutex::new((upstream, Vec::new())));
        let theirs = Arc::downgrade(&upstream);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Some(upstream) = theirs.upgrade() else { return };
                let mut upstream = upstream.lock().unwrap_or_else(PoisonError::into_inner);
                // A client whose server is away is hung up on.
                if let Ok(server) = TcpStream::connect(upstream.0) {
                    upstream.1.extend([copy(&client, &server), copy(&server, &client)]);
                }
            }
        });
        Self { address, upstream }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Leads to another server from now on, and ends the connections to the one before.
    pub(super) fn to(&self, upstream: SocketAddr) {
        let mut present = self.upstream.lock().unwrap_or_else(PoisonError::into_inner);
        present.0 = upstream;
        present.1.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// Passes on what comes from `from`; the stream it is passed to.
fn copy(from: &TcpStream, to: &TcpStream) -> TcpStream {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor is free");
    let (mut from, mut into) = (clone(from), clone(to));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
        let _ = into.shutdown(Shutdown::Both);
    });
    clone(to)
}
