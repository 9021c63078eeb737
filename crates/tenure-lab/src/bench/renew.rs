//! Leases that are held, and renewed by the watchdog.

use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tenure::{Error, Guard, Locker, State};

use crate::bench::cycle::lost;
use crate::bench::figures::Figures;
use crate::bench::job::{AT_A_TIME, Job};
use crate::bench::meter::{Run, Usage};
use crate::bench::plan::Stage;
use crate::bench::probe::Probe;

/// The ttl of locks for which none is asked.
const USUAL_TTL: Duration = Duration::from_secs(30);

pub(super) async fn measure(job: &Job<'_>) -> Result<Figures, Error> {
    // Renewed at a third of the ttl: twice in the time that is measured.
    let store = job.place.address.open().await?;
    let ttl = (job.plan.time * 3 / 2).min(USUAL_TTL).max(store.features().min_ttl);
    let probe = Probe::new(store);
    let locks = Locker::builder(probe.clone()).ttl(ttl).build()?;
    let held = acquire(&locks, job).await?;

    probe.take();
    let usage = Usage::begin(job.place.servers())?;
    job.watched(tokio::time::sleep(job.plan.time)).await;
    let (latencies, used) = (probe.take().renewals, usage.end()?);

    (job.tell)(Stage::Counting);
    let commands = match job.place.monitor()? {
        Some(monitor) => {
            probe.take();
            // A third of the ttl and some more, or all renewals may fall beside it.
            tokio::time::sleep(ttl / 2).await;
            Some((monitor.finish()?, probe.take().renewals.count() as u64))
        }
        None => None,
    };
    let all_held = held.iter().all(|guard| guard.state() == State::Held);
    locks.release_all().await;
    if !all_held {
        return Err(lost());
    }
    let run = Run { done: latencies.count() as u64, latencies, client_cpu: used.client };
    let told =
        format!("leases with a ttl of {ttl:?}, none lost; an operation is the renewal of one, timed as long as its batch took");
    Ok(Figures::of_run(&job.plan, run, commands, used.servers, told))
}

async fn acquire(locks: &Locker, job: &Job<'_>) -> Result<Vec<Guard>, Error> {
    let acquiring = (0..job.plan.tasks).map(|task| locks.mutex(job.name(&format!("renew-{task}"))).acquire());
    stream::iter(acquiring).buffer_unordered(AT_A_TIME).try_collect().await
}
