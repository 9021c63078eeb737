//! Uncontended: each task takes and releases a mutex of its own.

use std::time::Duration;

use async_trait::async_trait;
use tenure::{Acquire, BootTime, Error, Guard, Locker, ReleaseOutcome};
use tokio::task::JoinSet;

use crate::bench::job::Load;
use crate::bench::meter::{Run, client_cpu};
use crate::bench::place::Place;

pub(super) struct Cycles {
    locks: Locker,
    names: Vec<String>,
}

impl Cycles {
    pub(super) async fn prepare(place: &Place, tasks: usize) -> Result<Self, Error> {
        let names = (0..tasks).map(|task| place.name(&format!("cycle-{task}"))).collect();
        Ok(Self { locks: place.address.locker().await?, names })
    }
}

#[async_trait]
impl Load for Cycles {
    async fn run(&mut self, time: Duration) -> Result<Run, Error> {
        let until = BootTime::now() + time;
        all(self.names.iter().map(|name| {
            let (locks, name) = (self.locks.clone(), name.clone());
            cycles(move || locks.mutex(&name), until)
        }))
        .await
    }

    fn told(&self) -> String {
        "tasks of one process on one connection; an operation is an acquire and a release".into()
    }
}

/// Takes what `asks` for and releases it, again and again.
pub(super) async fn cycles(asks: impl Fn() -> Acquire, until: BootTime) -> Result<Run, Error> {
    let mut run = Run::default();
    let mut began = BootTime::now();
    while began < until {
        release(asks().acquire().await?).await?;
        let ended = BootTime::now();
        run.count(began, ended, until);
        began = ended;
    }
    Ok(run)
}

/// Releases a guard that nothing can have happened to.
pub(super) async fn release(guard: Guard) -> Result<(), Error> {
    released(guard.release().await?)
}

/// How the release of such a guard went.
pub(super) fn released(release: ReleaseOutcome) -> Result<(), Error> {
    match release {
        ReleaseOutcome::Released => Ok(()),
        ReleaseOutcome::StillHeld(_) | ReleaseOutcome::WasLost => Err(lost()),
        ReleaseOutcome::Unknown { error, .. } => Err(error),
    }
}

pub(super) fn lost() -> Error {
    Error::unavailable("a lock was lost in the middle of the benchmark")
        .with_hint("give it a store that nobody else changes, and time to run")
}

/// Runs tasks side by side; what they have done, and used, together.
pub(super) async fn all(
    tasks: impl Iterator<Item = impl Future<Output = Result<Run, Error>> + Send + 'static>,
) -> Result<Run, Error> {
    let before = client_cpu();
    let mut running: JoinSet<_> = tasks.collect();
    let mut sum = Run::default();
    while let Some(ended) = running.join_next().await {
        let run = ended.map_err(|error| Error::unavailable("a task broke down").with_source(error))?;
        sum.append(run?);
    }
    sum.client_cpu = client_cpu().saturating_sub(before);
    Ok(sum)
}
