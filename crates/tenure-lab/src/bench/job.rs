//! A case on its way.

use std::time::Duration;

use async_trait::async_trait;
use tenure::Error;

use crate::bench::figures::Figures;
use crate::bench::meter::{Run, Usage};
use crate::bench::place::Place;
use crate::bench::plan::{Plan, Stage, Tell};

/// How many acquisitions are under way while much is taken.
pub(super) const AT_A_TIME: usize = 64;

/// Something that can be done for a while, again and again, and leaves nothing behind.
#[async_trait]
pub(super) trait Load: Send {
    /// Does it for this long, and then to the end of what is under way.
    async fn run(&mut self, time: Duration) -> Result<Run, Error>;

    /// Gives up what was held all the while.
    async fn end(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// How it was set up, for people.
    fn told(&self) -> String;
}

/// A case on its way.
pub(super) struct Job<'a> {
    pub(super) place: &'a Place,
    pub(super) plan: Plan,
    pub(super) tell: Tell<'a>,
}

impl Job<'_> {
    pub(super) async fn measure(&self, load: &mut dyn Load) -> Result<Figures, Error> {
        const WARM_UP: Duration = Duration::from_millis(200);
        const COUNTED: Duration = Duration::from_millis(500);
        load.run(WARM_UP).await?;
        let usage = Usage::begin(self.place.servers())?;
        let run = self.watched(load.run(self.plan.time)).await?;
        let server_cpu = usage.end()?.servers;
        (self.tell)(Stage::Counting);
        let commands = match self.place.monitor()? {
            Some(monitor) => {
                let counted = load.run(self.plan.time.min(COUNTED)).await?;
                Some((monitor.finish()?, counted.done))
            }
            None => None,
        };
        load.end().await?;
        Ok(Figures::of_run(&self.plan, run, commands, server_cpu, load.told()))
    }

    /// Tells each second how far `work` is.
    pub(super) async fn watched<T>(&self, work: impl Future<Output = T> + Send) -> T {
        let began = tokio::time::Instant::now();
        let ticking = async {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            loop {
                ticks.tick().await;
                (self.tell)(Stage::Measuring(began.elapsed()));
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ticking => unreachable!("ticks for ever"),
        }
    }

    /// A name that no other run has.
    pub(super) fn name(&self, what: &str) -> String {
        self.place.name(what)
    }
}
