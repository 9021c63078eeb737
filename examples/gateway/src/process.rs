//! The service as a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_testkit::{RedisServer, Spawned};

use crate::Error;
use crate::service::LISTENING;

/// A running service, which ends with this value.
pub(crate) struct Service {
    process: Spawned,
    pub(crate) at: SocketAddr,
}

impl Service {
    /// Starts this program once more; without a store, without the layer.
    pub(crate) fn start(store: Option<&str>, threads: u16) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", &threads.to_string()]);
        match store {
            Some(url) => command.args(["--store", url]),
            None => command.arg("--no-lock"),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Spawned::spawn(&mut command)?;
        let mut line = String::new();
        if let Some(said) = process.stdout.take() {
            BufReader::new(said).read_line(&mut line)?;
        }
        let at = line.trim().strip_prefix(LISTENING).ok_or("the service did not start")?.parse()?;
        Ok(Self { process, at })
    }

    pub(crate) fn cpu(&self) -> Result<Duration, Error> {
        cpu(self.process.pid())
    }
}

/// A store for a run: the one that was named, or a Redis that ends with this value.
pub(crate) struct Store {
    pub(crate) url: String,
    server: Option<RedisServer>,
}

impl Store {
    pub(crate) fn start(url: Option<&str>) -> Self {
        if let Some(url) = url {
            return Self { url: url.to_owned(), server: None };
        }
        let server = RedisServer::start();
        // A server that gets no processor for a second is no outage.
        Self { url: tenure_testkit::patient(&server.url(), "5s"), server: Some(server) }
    }

    /// Processor time of a server that we have started.
    pub(crate) fn cpu(&self) -> Result<Duration, Error> {
        self.server.as_ref().map_or(Ok(Duration::ZERO), |server| cpu(server.pid()))
    }
}

/// Processor time of all threads of a process: of the scheduler, in nanoseconds.
fn cpu(pid: u32) -> Result<Duration, Error> {
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}
