//! A host: at each tick of its own clock it starts the job, as cron does.

use std::cell::Cell;
use std::time::Duration;

use jobs::{Error, crash};
use tenure::{Acquire, BootTime, ErrorKind, Locker};
use tokio::time::sleep;

use crate::HOSTS;
use crate::record::{Record, Turn};

/// How late the last clock is, in periods.
const LATEST: f64 = 0.4;
/// Length of the job, in periods.
const JOB: f64 = 0.15;

/// Means that keep a tick from running twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// None.
    Nothing,
    /// A lock for as long as the job runs.
    Lock,
    /// A name that stays taken for half of the period, as with `tenure run --once-per`.
    OncePer,
}

/// Lock of a job that runs once in each period, on several hosts. The first host that comes has it.
///
/// The name stays taken for half of the period, also when the job has ended or its host has died. So a host whose clock
/// is late finds it taken, and it is free before the next tick. No host's clock is read: a host may come late or early by
/// a fifth of the period. A tick whose host dies before it has done its work is lost: it runs at most once.
pub(crate) fn once_per(locks: &Locker, name: &str, period: Duration) -> Acquire {
    locks.mutex(name).ttl(period / 4).min_hold(period / 2)
}

/// Runs a job, unless another host has its lock. `None`: that host runs it, or has run it.
async fn run<T>(lock: Acquire, job: impl Future<Output = T>) -> Result<Option<T>, tenure::Error> {
    // It does not wait: a host that waited would run the job a second time.
    let Some(guard) = lock.try_acquire().await? else { return Ok(None) };
    // The job ends if the lease is lost.
    let done = guard.run(job).await?;
    // A failed release undoes nothing: the lease ends by itself.
    let _ = guard.release().await;
    Ok(Some(done))
}

pub(crate) struct Host {
    pub(crate) mode: Mode,
    pub(crate) number: u32,
    pub(crate) locks: Locker,
    /// Name of the lock.
    pub(crate) name: String,
    pub(crate) record: Record,
    /// Time of the first tick, in seconds since the machine started.
    pub(crate) first: f64,
    pub(crate) period: Duration,
    pub(crate) crashes: f64,
}

impl Host {
    /// Starts the job at each tick.
    pub(crate) async fn run(&self, ticks: u32) -> Result<(), Error> {
        let shift = LATEST * f64::from(self.number) / f64::from(HOSTS - 1);
        let started = self.now();
        for tick in 0..ticks {
            let due = f64::from(tick) + shift;
            // A host that takes the place of a dead one goes on with the next tick.
            if due < started {
                continue;
            }
            while self.now() < due {
                sleep(self.period.mul_f64((due - self.now()).max(0.0))).await;
            }
            self.turn(tick).await?;
        }
        Ok(())
    }

    /// Time since the first tick, in periods, by the one clock that all hosts share.
    fn now(&self) -> f64 {
        (BootTime::now().since_boot().as_secs_f64() - self.first) / self.period.as_secs_f64()
    }

    /// Starts the job of a tick, and notes how that went.
    async fn turn(&self, tick: u32) -> Result<(), Error> {
        let began = Cell::new(None);
        let job = async {
            began.set(Some(self.now()));
            self.crash(tick, began.get())?;
            self.record.ran(tick, self.number)?;
            let part = JOB * fastrand::f64();
            sleep(self.period.mul_f64(part)).await;
            self.crash(tick, began.get())?;
            sleep(self.period.mul_f64(JOB - part)).await;
            Ok::<_, Error>(())
        };
        let done = match self.mode {
            Mode::Nothing => Ok(Some(job.await)),
            Mode::Lock => run(self.locks.mutex(&self.name), job).await,
            Mode::OncePer => run(once_per(&self.locks, &self.name, self.period), job).await,
        };
        match done {
            Ok(done) => done.transpose()?,
            // As if the host had not come.
            Err(error) if error.is_transient() || error.kind() == ErrorKind::Lost => {
                return self.note(tick, began.get(), true);
            }
            Err(error) => return Err(error.into()),
        };
        self.note(tick, began.get(), false)
    }

    /// Dies, as by `kill -9`, with the probability of a crash.
    fn crash(&self, tick: u32, began: Option<f64>) -> Result<(), Error> {
        if fastrand::f64() < self.crashes {
            self.note(tick, began, true)?;
            crash(1.0);
        }
        Ok(())
    }

    /// Notes a turn that ends now. The job `began` then, or another host had the lock.
    fn note(&self, tick: u32, began: Option<f64>, is_gone: bool) -> Result<(), Error> {
        let ended = self.now();
        // Half of the period after the first host it may run the tick again, and its work may reach into the next tick.
        let is_late = began.unwrap_or(ended) > f64::from(tick) + 0.5 || ended > f64::from(tick) + 1.0;
        self.record.note(&Turn { tick, ended, is_late, is_gone })
    }
}
