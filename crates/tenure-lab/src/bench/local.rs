//! Contended within one process: tasks pass one mutex on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::{BootTime, Error, Locker};

use crate::bench::cycle::{all, release};
use crate::bench::job::Load;
use crate::bench::meter::Run;
use crate::bench::place::Place;

pub(super) struct Tasks {
    locks: Locker,
    name: String,
    count: usize,
}

impl Tasks {
    pub(super) async fn prepare(place: &Place, tasks: usize) -> Result<Self, Error> {
        Ok(Self { locks: place.address.locker().await?, name: place.name("local-handover"), count: tasks })
    }
}

#[async_trait]
impl Load for Tasks {
    async fn run(&mut self, time: Duration) -> Result<Run, Error> {
        let until = BootTime::now() + time;
        let last = Arc::<Mutex<Option<Last>>>::default();
        all((0..self.count).map(|task| turns(self.locks.clone(), self.name.clone(), task, Arc::clone(&last), until))).await
    }

    fn told(&self) -> String {
        "tasks of one process; an operation is a hand-over, timed from the call of release to the grant of another task".into()
    }
}

/// Who began to release last, and when.
struct Last {
    task: usize,
    at: BootTime,
}

async fn turns(locks: Locker, name: String, task: usize, last: Arc<Mutex<Option<Last>>>, until: BootTime) -> Result<Run, Error> {
    let mut run = Run::default();
    while BootTime::now() < until {
        let guard = locks.mutex(&name).acquire().await?;
        let now = BootTime::now();
        let before = last.lock().unwrap_or_else(PoisonError::into_inner).replace(Last { task, at: now });
        // A task that takes the name again at once is no hand-over.
        if let Some(before) = before.filter(|before| before.task != task) {
            run.count(before.at, now, until);
        }
        release(guard).await?;
    }
    Ok(run)
}
