//! Contended between processes: waiters pass one mutex on.
//!
//! Up to sixteen waiters are a process each. More are spread over sixteen processes, each waiter with a locker and a connection of its
//! own: to the store they are as far from each other as processes are.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tenure::{BootTime, Error, Locker};
use tenure_testkit::lines::{Process, hear, say};
use tokio::task::JoinSet;

use crate::Lab;
use crate::bench::cycle::release;
use crate::bench::job::Load;
use crate::bench::meter::{Run, client_cpu};
use crate::bench::place::{Address, Place};

const MOST_PROCESSES: usize = 16;

/// Message to a process: first `Open`, then `Run` for each run.
#[derive(Serialize, Deserialize)]
enum Order {
    Open { address: Address, name: String, waiters: usize },
    Run { until: Duration },
}

/// Message from a process.
#[derive(Serialize, Deserialize)]
enum Said {
    Ready,
    Ran { holds: Vec<Hold>, client_cpu: Duration },
    Failed(String),
}

/// When a waiter got the name and when it began to release it, since boot: the clock is the same in all processes.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Hold {
    waiter: usize,
    granted: Duration,
    released: Duration,
}

pub(super) struct Processes {
    processes: Vec<Option<Process>>,
    waiters: usize,
}

impl Processes {
    pub(super) async fn prepare(lab: &Lab, place: &Place, waiters: usize) -> Result<Self, Error> {
        let count = waiters.min(MOST_PROCESSES);
        let mut processes = Vec::new();
        for number in 0..count {
            let failed = |error| Error::unavailable("no process can be started").with_source(error);
            let mut process = Process::start(lab.worker(&["bench"])).map_err(failed)?;
            let waiters = waiters / count + usize::from(number < waiters % count);
            process.tell(&Order::Open { address: place.address.clone(), name: place.name("handover"), waiters }).map_err(gone)?;
            processes.push(Some(process));
        }
        let mut all = Self { processes, waiters };
        all.answers().await?;
        Ok(all)
    }

    /// One answer of each process.
    async fn answers(&mut self) -> Result<Vec<Said>, Error> {
        let taken: Vec<Process> =
            self.processes.iter_mut().map(|process| process.take().ok_or_else(ended)).collect::<Result<_, _>>()?;
        let asked = taken.into_iter().map(|mut process| async {
            // Reading a pipe blocks.
            tokio::task::spawn_blocking(move || answer(&mut process).map(|said| (process, said))).await.map_err(|_| ended())?
        });
        let answered = try_join_all(asked).await?;
        let (processes, said) = answered.into_iter().map(|(process, said)| (Some(process), said)).unzip();
        self.processes = processes;
        Ok(said)
    }
}

#[async_trait]
impl Load for Processes {
    async fn run(&mut self, time: Duration) -> Result<Run, Error> {
        let until = BootTime::now() + time;
        for process in self.processes.iter_mut().flatten() {
            process.tell(&Order::Run { until: until.since_boot() }).map_err(gone)?;
        }
        let mut run = Run::default();
        let mut all = Vec::new();
        for (process, said) in self.answers().await?.into_iter().enumerate() {
            let Said::Ran { holds, client_cpu } = said else { return Err(ended()) };
            run.client_cpu += client_cpu;
            all.extend(holds.into_iter().map(|hold| (process, hold)));
        }
        all.sort_by_key(|(_, hold)| hold.granted);
        for pair in all.windows(2) {
            let [(process, before), (other, after)] = pair else { continue };
            // A waiter that takes the name again at once is no hand-over.
            if (process, before.waiter) != (other, after.waiter) {
                run.count(BootTime::from_boot(before.released), BootTime::from_boot(after.granted), until);
            }
        }
        Ok(run)
    }

    fn told(&self) -> String {
        let spread: String = if self.waiters > MOST_PROCESSES {
            format!("waiters in {MOST_PROCESSES} processes, each with a connection of its own")
        } else {
            "waiters, each a process".into()
        };
        format!("{spread}; an operation is a hand-over, timed from the call of release to the grant of another waiter")
    }
}

fn answer(process: &mut Process) -> Result<Said, Error> {
    match process.hear().map_err(gone)? {
        Said::Failed(why) => Err(Error::unavailable(why)),
        said => Ok(said),
    }
}

fn gone(error: io::Error) -> Error {
    ended().with_source(error)
}

fn ended() -> Error {
    Error::unavailable("a process of the benchmark has ended")
}

/// Becomes a process with waiters, until standard input ends.
pub(crate) async fn serve() -> io::Result<()> {
    let Some(Order::Open { address, name, waiters }) = next()? else { return Ok(()) };
    let lockers = try_join_all((0..waiters).map(|_| address.locker())).await;
    let lockers = match lockers {
        Ok(lockers) => lockers,
        Err(error) => return say(io::stdout(), &Said::Failed(error.to_string())),
    };
    say(io::stdout(), &Said::Ready)?;
    // Blocking this thread stops the watchdogs as well, and between runs nothing is held.
    while let Some(Order::Run { until }) = next()? {
        let said = turns_of_all(&lockers, &name, BootTime::from_boot(until)).await;
        say(io::stdout(), &said.unwrap_or_else(|error| Said::Failed(error.to_string())))?;
    }
    Ok(())
}

fn next() -> io::Result<Option<Order>> {
    hear(&mut io::stdin().lock())
}

async fn turns_of_all(lockers: &[Locker], name: &str, until: BootTime) -> Result<Said, Error> {
    let before = client_cpu();
    let waiting = lockers.iter().enumerate().map(|(waiter, locks)| turns(locks.clone(), name.to_owned(), waiter, until));
    let mut waiting: JoinSet<_> = waiting.collect();
    let mut holds = Vec::new();
    while let Some(joined) = waiting.join_next().await {
        holds.extend(joined.map_err(|_| ended())??);
    }
    Ok(Said::Ran { holds, client_cpu: client_cpu().saturating_sub(before) })
}

async fn turns(locks: Locker, name: String, waiter: usize, until: BootTime) -> Result<Vec<Hold>, Error> {
    let mut holds = Vec::new();
    while BootTime::now() < until {
        let guard = locks.mutex(&name).acquire().await?;
        let granted = BootTime::now().since_boot();
        holds.push(Hold { waiter, granted, released: BootTime::now().since_boot() });
        release(guard).await?;
    }
    Ok(holds)
}
