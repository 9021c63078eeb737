//! A candidate: it leads whenever it is elected, and works in steps while it leads.

use std::time::Duration;

use jobs::Error;
use tenure::{Candidate, State};
use tokio::time::sleep;

use crate::work::Work;

/// Probability that a leader resigns after a step.
const RESIGNS: f64 = 0.02;
/// Time until a candidate asks a store again that gave no answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Means that keep two processes from working at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// None: all of them work.
    Nothing,
    /// The leader works.
    Election,
    /// The leader works, and writes with its fence.
    Fence,
}

pub(crate) struct Worker {
    mode: Mode,
    work: Work,
}

impl Worker {
    pub(crate) const fn new(mode: Mode, work: Work) -> Self {
        Self { mode, work }
    }

    /// Works until it is ended.
    pub(crate) async fn run(&mut self, candidate: &Candidate) -> Result<(), Error> {
        loop {
            if self.mode == Mode::Nothing {
                self.step(None).await?;
            } else {
                self.lead(candidate).await?;
            }
        }
    }

    /// Leads once, until it has resigned or another leads.
    async fn lead(&mut self, candidate: &Candidate) -> Result<(), Error> {
        let leadership = match candidate.campaign().await {
            Err(error) if error.is_transient() => {
                sleep(PAUSE).await;
                return Ok(());
            }
            leadership => leadership?,
        };
        self.work.note("leader")?;
        let fence = leadership.fence().filter(|_| self.mode == Mode::Fence).map(i64::from);
        // A leader that is stopped after this look still writes. Only the fence keeps that out.
        while leadership.state() != State::Lost && self.step(fence).await? {
            if fastrand::f64() < RESIGNS {
                break;
            }
        }
        // The next candidate leads at once. If this fails, it leads when the lease has ended.
        let _ = leadership.resign().await;
        Ok(())
    }

    /// Does one step: reads, works, and writes. Returns false if a later leader was here.
    async fn step(&mut self, fence: Option<i64>) -> Result<bool, Error> {
        if let Some(step) = self.work.read(fence)? {
            sleep(Duration::from_millis(10 + fastrand::u64(..10))).await;
            if self.work.write(step + 1, fence)? {
                return Ok(true);
            }
        }
        self.work.note("refused")?;
        Ok(false)
    }
}
