//! Benchmarks of tenure's own stores: what a lock costs, in time, in commands and in CPU.
//!
//! Each case is a load that goes from rest to rest. It is run three times: to warm up, to be timed, and for a moment under the
//! server's `MONITOR`, which tells each command that a client sent from those that scripts made. So the commands of an operation are
//! counted by the server, exactly, and the timed run is not slowed down by the counting.

mod count;
mod cycle;
mod figures;
mod handover;
mod job;
mod local;
mod meter;
mod place;
mod plan;
mod probe;
mod readers;
mod renew;
mod waiters;

use tenure::Error;

use crate::Lab;
use crate::bench::job::Job;

pub use crate::bench::figures::{Figures, HEAD};
pub(crate) use crate::bench::handover::serve;
pub use crate::bench::place::{Address, Place};
pub use crate::bench::plan::{Case, Plan, Stage, Tell};

/// Runs one case.
///
/// # Errors
/// The store's, and when a lock was lost meanwhile.
pub async fn run(lab: &Lab, place: &Place, plan: Plan, tell: Tell<'_>) -> Result<Figures, Error> {
    tell(Stage::Preparing);
    let job = Job { place, plan, tell };
    match plan.case {
        Case::Cycle => job.measure(&mut cycle::Cycles::prepare(place, plan.tasks).await?).await,
        Case::Handover => job.measure(&mut handover::Processes::prepare(lab, place, plan.tasks).await?).await,
        Case::LocalHandover => job.measure(&mut local::Tasks::prepare(place, plan.tasks).await?).await,
        Case::Renew => renew::measure(&job).await,
        Case::Waiters => waiters::measure(&job).await,
        Case::Readers => job.measure(&mut readers::Readers::prepare(place, plan).await?).await,
    }
}
