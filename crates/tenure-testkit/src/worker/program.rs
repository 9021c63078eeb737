//! The program that becomes a worker: the one that asks for it, executed once more.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::Arc;

use tenure::compose::AllOf;
use tenure::store::Store;
use tenure::{Error, Locker, MemoryStore, parse_duration};
use tenure_stores::Options;

use super::clock::SkewedClock;
use super::probe::{Probed, Probes};
use super::process::Process;
use super::report;

/// The variable that holds the words of a worker's role.
const ROLE: &str = "TENURE_WORKER";

/// How a process is started that becomes a worker.
#[derive(Clone, Debug)]
pub struct Program(Vec<OsString>);

impl Program {
    /// The program with its first arguments, which then looks for its [`role`].
    pub fn new(words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self(words.into_iter().map(Into::into).collect())
    }

    /// This test binary. Its main module has a test called `worker`, which calls [`entry`].
    pub fn this_test() -> Self {
        let program = std::env::current_exe().expect("a test binary knows its file");
        // With one thread a harness writes the name of a test before its output, in the same line.
        let words = ["--exact", "worker", "--nocapture", "--test-threads=2"];
        Self::new(std::iter::once(program.into_os_string()).chain(words.map(OsString::from)))
    }

    /// The command that starts it in a role.
    pub fn role(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]).env(ROLE, serde_json::to_string(words).expect("plain data"));
        command
    }

    /// The command that starts a holder on the store at `url`, as [`serve`] has them.
    pub fn on(&self, url: &str) -> Command {
        self.role(&["store", url])
    }
}

/// Returns what this process was started for, if it is to become a worker.
pub fn role() -> Option<Vec<String>> {
    serde_json::from_str(&std::env::var(ROLE).ok()?).ok()
}

/// Becomes the worker that `role` names, until standard input ends: `store URL`.
///
/// # Errors
/// For a role that nobody has.
pub fn serve(role: &[String]) -> io::Result<()> {
    let [_, url] = role.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no worker is called {role:?}")));
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(url));
    Ok(())
}

/// Becomes a worker if this process is to, and ends with it: what the test `worker` of a test binary calls.
pub fn entry() {
    if let Some(role) = role() {
        serve(&role).expect("a worker serves");
        // Before the harness says anything more.
        std::process::exit(0);
    }
}

/// Becomes a worker on the store at `url`, until standard input ends: `memory:`, `sqlite:PATH[?timeout=SPAN]`, `postgres:`,
/// `mysql:`, `memcached:`, `zookeeper:`, one of Redis,
/// or `all:URL URL` for all of several.
///
/// If the store cannot be opened, the worker reports that as the failure of acquisition 0.
///
/// A panic anywhere in the process is reported as such a failure and ends the process. A runtime
/// would not report the panic of a task.
async fn run(url: &str) {
    report::dies_of_panics();
    let clock = SkewedClock::default();
    let (store, probes) = match url {
        "memory:" => Probed::new(MemoryStore::with_clock(clock.clone())),
        _ => match open(url).await {
            Ok(opened) => opened,
            Err(error) => return report::failed(0, &error),
        },
    };
    let locks = Locker::builder(store).clock(clock.clone()).build().expect("the defaults are sound");
    Process::new(locks, probes, clock).serve().await;
}

async fn open(url: &str) -> Result<(Probed, Probes), Error> {
    let Some(urls) = url.strip_prefix("all:") else { return Ok(Probed::new(open_one(url).await?)) };
    let mut stores = Vec::new();
    for url in urls.split(' ') {
        stores.push(open_one(url).await?);
    }
    Ok(Probed::new(AllOf::new(stores)?))
}

async fn open_one(url: &str) -> Result<Arc<dyn Store>, Error> {
    let Some(file) = url.strip_prefix("sqlite:") else { return Options::parse(url)?.open().await };
    let (path, timeout) = file.split_once("?timeout=").map_or((file, None), |(path, timeout)| (path, Some(timeout)));
    let store = tenure_sql::sqlite::open(path)?;
    Ok(Arc::new(match timeout {
        Some(timeout) => store.with_operation_timeout(parse_duration(timeout)?),
        None => store,
    }))
}
