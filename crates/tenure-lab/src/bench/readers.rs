//! Shared: many hold one name, and a few of them come and go.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tenure::{BootTime, Error, Guard, Locker};

use crate::bench::cycle::{all, cycles, released};
use crate::bench::job::{AT_A_TIME, Load};
use crate::bench::meter::Run;
use crate::bench::place::Place;
use crate::bench::plan::Plan;

/// How many come and go: the same however many hold, so that what they find can be compared.
const COMING: usize = 10;

pub(super) struct Readers {
    locks: Locker,
    name: String,
    coming: usize,
    held: Vec<Guard>,
}

impl Readers {
    pub(super) async fn prepare(place: &Place, plan: Plan) -> Result<Self, Error> {
        let (locks, name, coming) = (place.address.locker().await?, place.name("readers"), plan.tasks.min(COMING));
        let holding = (coming..plan.tasks).map(|_| locks.read(&name).ttl(plan.held()).fixed_lease().acquire());
        let held = stream::iter(holding).buffer_unordered(AT_A_TIME).try_collect().await?;
        Ok(Self { locks, name, coming, held })
    }
}

#[async_trait]
impl Load for Readers {
    async fn run(&mut self, time: Duration) -> Result<Run, Error> {
        let until = BootTime::now() + time;
        let (locks, name) = (self.locks.clone(), self.name.clone());
        all((0..self.coming).map(|_| {
            let (locks, name) = (locks.clone(), name.clone());
            cycles(move || locks.read(&name), until)
        }))
        .await
    }

    async fn end(&mut self) -> Result<(), Error> {
        for (_, ended) in self.locks.release_all().await {
            released(ended?)?;
        }
        self.held.clear();
        Ok(())
    }

    fn told(&self) -> String {
        let coming = self.coming;
        format!("readers of one name, {coming} of which take and release it while the others hold; an operation is both")
    }
}
