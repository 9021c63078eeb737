//! A holder in a process of its own, told over its standard input what to do.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Fence, Guard, Lease, Locker, Release};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::{Counter, Signal, Spawned};

/// What a worker is told, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Acquire { name: String, ttl_ms: u64 },
    Adopt { lease: Lease },
    HandOver,
    State,
    Release,
    Visits { name: String, dir: PathBuf, times: u64 },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Held { fence: Option<Fence> },
    Lease(Lease),
    State(String),
    Done,
    Failed(String),
}

/// Does what standard input says until it ends.
pub async fn serve(locks: Locker) {
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let mut held = None;
    while let Some(line) = lines.next_line().await.expect("standard input can be read") {
        let order = serde_json::from_str(&line).expect("an order");
        let answer = obey(&locks, &mut held, order).await.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let mut text = serde_json::to_string(&answer).expect("an answer");
        text.push('\n');
        let mut out = tokio::io::stdout();
        out.write_all(text.as_bytes()).await.expect("standard output can be written");
        out.flush().await.expect("standard output can be written");
    }
}

async fn obey(locks: &Locker, held: &mut Option<Guard>, order: Order) -> Result<Answer, tenure::Error> {
    let none = || tenure::Error::invalid("nothing is held");
    match order {
        Order::Acquire { name, ttl_ms } => {
            let guard = locks.mutex(name).ttl(Duration::from_millis(ttl_ms)).acquire().await?;
            Ok(Answer::Held { fence: held.insert(guard).fence() })
        }
        Order::Adopt { lease } => {
            let guard = locks.adopt(&lease).await?;
            Ok(Answer::Held { fence: held.insert(guard).fence() })
        }
        Order::HandOver => Ok(Answer::Lease(held.take().ok_or_else(none)?.into_lease())),
        Order::State => Ok(Answer::State(format!("{:?}", held.as_ref().ok_or_else(none)?.state()))),
        Order::Release => match held.take().ok_or_else(none)?.release().await? {
            Release::Released => Ok(Answer::Done),
            other => Ok(Answer::Failed(format!("{other:?}"))),
        },
        Order::Visits { name, dir, times } => {
            visits(locks, &name, &dir, times).await?;
            Ok(Answer::Done)
        }
    }
}

async fn visits(locks: &Locker, name: &str, dir: &Path, times: u64) -> Result<(), tenure::Error> {
    let counter = Counter::open(dir);
    for _ in 0..times {
        let guard = locks.mutex(name).ttl(Duration::from_secs(30)).recheck(Duration::from_millis(3)).acquire().await?;
        let visit = counter.enter(guard.fence().map(Fence::get));
        tokio::time::sleep(Duration::from_micros(200)).await;
        visit.leave();
        match guard.release().await? {
            Release::Released => {}
            other => return Err(tenure::Error::invalid(format!("the release was {other:?}"))),
        }
    }
    Ok(())
}

/// The test's end of a worker. Killed when dropped.
#[derive(Debug)]
pub struct Worker {
    process: Spawned,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts `command`, which must [`serve`].
    pub fn start(mut command: Command) -> Self {
        let mut process = Spawned::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("the worker starts");
        let to = process.child().stdin.take().expect("piped");
        let from = BufReader::new(process.child().stdout.take().expect("piped"));
        Self { process, to, from }
    }

    /// Takes a lock, waiting for it, and renews it from then on.
    pub fn acquire(&mut self, name: &str, ttl: Duration) -> Option<Fence> {
        self.begin_acquire(name, ttl);
        self.fence()
    }

    /// Begins to wait for a lock.
    pub fn begin_acquire(&mut self, name: &str, ttl: Duration) {
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("a sane ttl");
        self.tell(&Order::Acquire { name: name.into(), ttl_ms });
    }

    /// Takes over a lease that another worker handed over.
    pub fn adopt(&mut self, lease: &Lease) -> Option<Fence> {
        self.tell(&Order::Adopt { lease: lease.clone() });
        self.fence()
    }

    /// Ends the worker's belief and gives the lease.
    pub fn hand_over(&mut self) -> Lease {
        match self.ask(&Order::HandOver) {
            Answer::Lease(lease) => lease,
            other => panic!("the worker answered {other:?}"),
        }
    }

    /// The state of what it holds.
    pub fn state(&mut self) -> String {
        match self.ask(&Order::State) {
            Answer::State(state) => state,
            other => panic!("the worker answered {other:?}"),
        }
    }

    /// Gives up what it holds.
    pub fn release(&mut self) {
        self.tell(&Order::Release);
        self.finish();
    }

    /// Begins a number of visits to the [`Counter`] in `dir`, each under the lock `name`.
    pub fn begin_visits(&mut self, name: &str, dir: &Path, times: u64) {
        self.tell(&Order::Visits { name: name.into(), dir: dir.into(), times });
    }

    /// Waits until what was begun is done.
    pub fn finish(&mut self) {
        match self.answer() {
            Answer::Done => {}
            other => panic!("the worker answered {other:?}"),
        }
    }

    /// Stops it or lets it go on.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal).expect("the worker runs");
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn fence(&mut self) -> Option<Fence> {
        match self.answer() {
            Answer::Held { fence } => fence,
            other => panic!("the worker answered {other:?}"),
        }
    }

    fn ask(&mut self, order: &Order) -> Answer {
        self.tell(order);
        self.answer()
    }

    fn tell(&mut self, order: &Order) {
        let line = serde_json::to_string(order).expect("an order");
        writeln!(self.to, "{line}").expect("the worker listens");
    }

    fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the worker answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the worker said {line:?}: {error}"))
    }
}
