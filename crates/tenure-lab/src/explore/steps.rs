//! Calls of a task that holds a name, between two parts of its work. Each call may be dropped on
//! its way.

use std::sync::Arc;

use tenure::{Name, ReleaseOutcome};
use tenure_testkit::history::{Rule, What};

use super::coverage::Met;
use super::plan::{Between, Cut, Plan, smaller};
use super::process::Task;
use super::world::Held;

impl Task {
    pub(super) async fn between(&mut self, held: &mut Held, between: Between, cut: Cut) {
        let process = Arc::clone(&self.process);
        match between {
            Between::Nothing => {}
            Between::Extend(ttl) => {
                let extended = matches!(self.unless_cut(cut, held.guard.extend(ttl)).await, Some(Ok(())));
                process.world.met(if extended { Met::Extended } else { Met::NotExtended });
            }
            Between::Verify => {
                let _ = self.unless_cut(cut, held.guard.verify()).await;
                process.world.met(Met::Verified);
            }
            Between::Downgrade => self.downgrade(held, cut).await,
            Between::Reenter => self.reenter(held, cut).await,
            Between::Nested => Box::pin(self.lock(true)).await,
        }
    }

    /// Keeps a part: it acts by that alone from now on, whatever comes of the call.
    async fn downgrade(&mut self, held: &mut Held, cut: Cut) {
        let process = Arc::clone(&self.process);
        let Some(part) = smaller(&mut self.rng, held.share) else { return };
        process.world.shrinks(&process.who, held, process.acquisition(), part);
        let met = match self.unless_cut(cut, held.guard.downgrade(part)).await {
            Some(Ok(())) => Met::Downgraded,
            Some(Err(_)) => Met::NotDowngraded,
            None => Met::CancelledDowngrade,
        };
        process.world.met(met);
    }

    /// A second guard comes and one of the two goes: the tenure stands.
    async fn reenter(&mut self, held: &mut Held, cut: Cut) {
        let process = Arc::clone(&self.process);
        process.world.met(Met::Reentered);
        let mut goes = held.guard.reenter();
        if self.rng.bool() {
            let first = std::mem::replace(&mut held.guard, Arc::new(goes));
            process.world.reentered(&process.who, held);
            let Some(first) = Arc::into_inner(first) else { return };
            goes = first;
        }
        match self.unless_cut(cut, goes.release()).await {
            None | Some(Ok(ReleaseOutcome::StillHeld(1))) => {}
            how => process.world.find(Rule::FalseLoss, format!("a guard beside another was released: {how:?}")),
        }
    }

    /// Takes two names, all or nothing, and works under the first.
    pub(super) async fn lock_both(&mut self, plan: Plan, also: &Name) {
        let process = Arc::clone(&self.process);
        let claims = [&plan.name, also].map(|name| process.asks(name));
        let work = plan.of(&process.locker).and(also).acquire();
        let Some(mut guards) = self.taken(&claims, plan.cut, work).await else { return };
        process.world.met(Met::Together);
        let [first, second] = [&plan.name, also].map(|name| guards.take(name).expect("all or nothing"));
        let beside = self.begin(claims[1], &plan, second);
        self.hold(claims[0], plan, first).await;
        process.world.over(&process.who, beside.acquisition);
        process.record(What::Release { acquisition: beside.acquisition });
    }
}
