//! Tasks that wait for names while nothing happens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tenure::{Error, Locker, Waiting};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::bench::count::Monitor;
use crate::bench::figures::Figures;
use crate::bench::job::Job;
use crate::bench::meter::{Run, Usage};
use crate::bench::plan::Stage;
use crate::bench::probe::Probe;

const WAITERS_OF_A_NAME: usize = 100;
/// Over so long it is seen whether the waiters have come to rest.
const REST: Duration = Duration::from_millis(500);
/// After this long they are measured as they are.
const LONGEST_UNREST: Duration = Duration::from_secs(10);

pub(super) async fn measure(job: &Job<'_>) -> Result<Figures, Error> {
    let tasks = job.plan.tasks;
    let names: Vec<String> = (0..tasks.div_ceil(WAITERS_OF_A_NAME)).map(|name| job.name(&format!("waiters-{name}"))).collect();
    let holder = job.place.address.locker().await?;
    let held = try_join_all(names.iter().map(|name| holder.mutex(name).ttl(job.plan.held()).fixed_lease().acquire())).await?;

    let store = job.place.address.open().await?;
    let queues = store.features().queue;
    let probe = Probe::new(store);
    let locks = Locker::new(probe.clone());
    let before = resident();
    let waiting = wait(&locks, &names, tasks).await?;
    // With many tasks, each asks the store for itself for a while. The time begins when only the leaders call the store, to keep
    // their queue entries alive. If the store cannot notify waiters, they go on polling, and the run measures that.
    let began = Instant::now();
    loop {
        probe.take();
        tokio::time::sleep(REST).await;
        if !queues || probe.take().calls.count() <= names.len() || began.elapsed() > LONGEST_UNREST {
            break;
        }
    }
    let memory = resident().zip(before).map(|(after, before)| after.saturating_sub(before) / tasks as u64);

    // The timed run is counted as well: what nearly nothing happens in is not slowed down by it.
    let monitor = job.place.monitor()?;
    probe.take();
    let usage = Usage::begin(job.place.servers())?;
    job.watched(tokio::time::sleep(job.plan.time)).await;
    let used = usage.end()?;
    (job.tell)(Stage::Counting);
    // Before the calls are, so that no command is counted without its call.
    let commands = monitor.map(Monitor::finish).transpose()?;
    let latencies = probe.take().calls;
    let done = latencies.count() as u64;
    let commands = commands.map(|commands| (commands, done));

    drop(waiting);
    locks.flush_releases().await;
    drop(held);
    holder.flush_releases().await;
    let memory = memory.map_or_else(String::new, |bytes| format!("; {bytes} bytes of memory a task"));
    let told = format!("tasks of one process waiting for {} names{memory}; an operation is a request to the store", names.len());
    Ok(Figures::of_run(&job.plan, Run { done, latencies, client_cpu: used.client }, commands, used.servers, told))
}

/// Starts the tasks, and waits until each knows that its name is taken.
async fn wait(locks: &Locker, names: &[String], tasks: usize) -> Result<JoinSet<Result<(), Error>>, Error> {
    let heard = Arc::new(Semaphore::new(0));
    let mut waiting = JoinSet::new();
    for task in 0..tasks {
        let (locks, name, heard) = (locks.clone(), names[task % names.len()].clone(), Arc::clone(&heard));
        waiting.spawn(async move {
            let tell = move |what: Waiting<'_>| {
                if matches!(what, Waiting::Busy(_)) {
                    heard.add_permits(1);
                }
            };
            locks.mutex(name).on_wait(tell).acquire().await.map(drop)
        });
    }
    let told = u32::try_from(tasks).unwrap_or(u32::MAX);
    tokio::select! {
        biased;
        ended = waiting.join_next() => match ended {
            Some(Ok(Err(error))) => Err(error),
            _ => Err(Error::unavailable("a name that is held was granted")),
        },
        _ = heard.acquire_many(told) => Ok(waiting),
    }
}

/// The memory that this process has in use, where the system tells.
fn resident() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes =
        told.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024)
}
