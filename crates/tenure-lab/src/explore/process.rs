//! A simulated process and what its tasks do: take names, work on the resource, and let go in every
//! way there is.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tenure::{Clock, EndReason, Error, ErrorKind, Guard, Lease, Locker, Name, ReleaseOutcome};
use tenure_testkit::history::{Rule, What};

use super::clock::{SimClock, ms};
use super::coverage::Met;
use super::plan::{Between, Cut, End, Looks, Plan, share, smaller};
use super::store::SimStore;
use super::world::{GRAIN, Held, World};
use crate::cut::cut_off;

pub(super) struct Process {
    pub(super) who: String,
    pub(super) world: Arc<World>,
    pub(super) clock: SimClock,
    pub(super) locker: Locker,
    claims: AtomicU32,
}

impl Process {
    pub(super) fn new(world: &Arc<World>, index: usize, who: impl Into<String>, clock: SimClock) -> Arc<Self> {
        let who = who.into();
        let store = SimStore { world: Arc::clone(world), process: index, clock: clock.clone() };
        let locker = Locker::builder(store).clock(clock.clone()).label(&who).build().expect("good settings");
        Arc::new(Self { who, world: Arc::clone(world), clock, locker, claims: AtomicU32::new(1) })
    }

    pub(super) fn record(&self, what: What) {
        self.world.record(&self.who, what);
    }

    pub(super) fn acquisition(&self) -> u32 {
        self.claims.fetch_add(1, Ordering::Relaxed)
    }

    /// A new acquisition that asks for a name.
    pub(super) fn asks(&self, name: &Name) -> u32 {
        let acquisition = self.acquisition();
        self.record(What::Ask { acquisition, name: name.as_str().to_owned() });
        acquisition
    }

    fn failed(&self, acquisition: u32, error: &Error) {
        self.world.met(match error.kind() {
            ErrorKind::TimedOut => Met::TimedOut,
            ErrorKind::Unreachable | ErrorKind::Unavailable | ErrorKind::Overloaded => Met::NoAnswer,
            _ => Met::Refusal,
        });
        if error.kind() == ErrorKind::Invalid {
            self.world.find(Rule::Untyped, format!("{}#{acquisition} was refused for its settings: {error}", self.who));
        }
        let kind = Some(format!("{:?}", error.kind()));
        self.record(What::Failed { acquisition, kind, text: error.to_string() });
    }

    /// Releases all that is held at once, though tasks work under it.
    async fn release_all(&self) {
        for acquisition in self.world.all_over(&self.who) {
            self.record(What::Release { acquisition });
        }
        self.locker.release_all().await;
    }
}

/// One task of a process.
pub(super) struct Task {
    pub(super) process: Arc<Process>,
    pub(super) rng: Rng,
}

impl Task {
    pub(super) fn new(process: Arc<Process>, rng: Rng) -> Self {
        Self { process, rng }
    }

    pub(super) async fn run(self) {
        let clock = self.process.clock.clone();
        clock.live(Box::pin(self.work_on())).await;
    }

    async fn work_on(mut self) {
        while !self.process.world.healed() {
            match self.rng.u8(0..30) {
                0 => self.process.release_all().await,
                1 => self.look().await,
                2 => self.foreign().await,
                3..=6 => self.adopt().await,
                _ => self.lock(false).await,
            }
            let pause = ms(self.rng.u64(0..120));
            self.process.clock.pause(pause).await;
        }
        for _ in 0..3 {
            self.part().await;
        }
    }

    /// When all is well, something is cancelled half-way: what it leaves behind would be seen when
    /// all has come to rest.
    async fn part(&mut self) {
        let index = self.rng.usize(0..self.process.world.names.len());
        let (name, kind) = (self.process.world.names[index].clone(), self.process.world.mix.names[index]);
        let ttl = self.rng.choice([900, 2_000]).unwrap_or(900);
        let wait = self.rng.choice([40, 400]).unwrap_or(40);
        let share = share(&mut self.rng, kind);
        let acquire = self.process.locker.lock(name.as_str(), share).ttl(Duration::from_millis(ttl));
        let acquire = acquire.wait(Duration::from_millis(wait));
        let (first, second, third) = (self.soon(), self.soon(), self.soon());
        if let Some(Ok(guard)) = self.unless_cut(first, acquire.acquire()).await {
            if let Some(part) = smaller(&mut self.rng, share) {
                let _ = self.unless_cut(second, guard.downgrade(part)).await;
            }
            let _ = self.unless_cut(third, guard.release()).await;
        }
    }

    /// Some point of a call that meets no fault, or none.
    fn soon(&mut self) -> Cut {
        let way = ms(3 * self.process.world.mix.way);
        match self.rng.u8(0..4) {
            0 => Cut::Never,
            1 => Cut::Poll(self.rng.u32(0..6)),
            _ => Cut::After(self.rng.u64(0..=way)),
        }
    }

    async fn look(&mut self) {
        let name = self.rng.choice(&self.process.world.names).expect("there are names").clone();
        let _ = self.process.locker.inspect(&name).await;
    }

    /// A lease that was handed on, if there is one. It may stay, so that two take it up.
    fn handed(&mut self) -> Option<Lease> {
        let mut state = self.process.world.state();
        let index = (!state.handed.is_empty()).then(|| self.rng.usize(0..state.handed.len()))?;
        Some(if self.rng.u8(0..4) == 0 { state.handed[index].clone() } else { state.handed.swap_remove(index) })
    }

    /// Uses a lease by its token alone.
    async fn foreign(&mut self) {
        let Some(lease) = self.handed() else { return };
        let locker = &self.process.locker;
        if self.rng.bool() {
            let _ = locker.release(&lease).await;
        } else if self.process.world.mix.odds(Met::Panicked) == 0 {
            let _ = locker.renew(&lease).await;
            self.process.world.state().handed.push(lease);
        }
    }

    async fn adopt(&mut self) {
        let Some(lease) = self.handed() else { return };
        let process = Arc::clone(&self.process);
        let plan = self.plan(true).adopt(&lease);
        let acquisition = process.asks(&lease.name);
        if let Some(guard) = self.taken(&[acquisition], plan.cut, process.locker.adopt(&lease)).await {
            process.world.met(Met::Adoption);
            self.hold(acquisition, plan, guard).await;
        }
    }

    fn plan(&mut self, nested: bool) -> Plan {
        let world = &self.process.world;
        Plan::choose(&mut self.rng, &world.mix, &world.names, nested)
    }

    pub(super) async fn lock(&mut self, nested: bool) {
        let process = Arc::clone(&self.process);
        let plan = self.plan(nested);
        if let Some(also) = plan.also.clone() {
            return self.lock_both(plan, &also).await;
        }
        let acquisition = process.asks(&plan.name);
        if let Some(guard) = self.taken(&[acquisition], plan.cut, plan.of(&process.locker).acquire()).await {
            self.hold(acquisition, plan, guard).await;
        }
    }

    /// Returns the result of a call for `claims`, unless it failed or was cut.
    pub(super) async fn taken<T>(&self, claims: &[u32], cut: Cut, work: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let taken = self.unless_cut(cut, work).await;
        for &acquisition in claims {
            match &taken {
                None => self.cancelled(acquisition),
                Some(Err(error)) => self.process.failed(acquisition, error),
                Some(Ok(_)) => {}
            }
        }
        taken.and_then(Result::ok)
    }

    pub(super) async fn unless_cut<T>(&self, cut: Cut, work: impl Future<Output = T>) -> Option<T> {
        match cut {
            Cut::Never => Some(work.await),
            Cut::After(span) => cut_off(u32::MAX, self.process.clock.pause(span), work).await,
            Cut::Poll(polls) => cut_off(polls, std::future::pending(), work).await,
        }
    }

    fn cancelled(&self, acquisition: u32) {
        self.process.world.met(Met::CancelledWait);
        self.process.record(What::Failed { acquisition, kind: Some("Cancelled".to_owned()), text: String::new() });
    }

    /// A tenure that begins now.
    pub(super) fn begin(&self, acquisition: u32, plan: &Plan, guard: Guard) -> Held {
        let Process { world, who, clock, .. } = &*self.process;
        let handed = world.state().tokens.get(guard.token()).is_some_and(|token| !token.answered);
        let stop = match (world.mix.fenced, handed) {
            (true, _) => 0,
            (_, true) => plan.guard().min(plan.claim_guard()),
            _ => plan.guard(),
        };
        let (share, shortest, longest) = (guard.share(), plan.shortest, plan.longest);
        let held = Held { acquisition, guard: Arc::new(guard), share, stop, shortest, longest };
        world.granted(who, clock, &held);
        held
    }

    pub(super) async fn hold(&mut self, acquisition: u32, plan: Plan, guard: Guard) {
        let process = Arc::clone(&self.process);
        let mut held = self.begin(acquisition, &plan, guard);
        for &(work, between, cut) in &plan.parts {
            if self.work(&plan, &held, work).await || process.world.healed() {
                break;
            }
            self.between(&mut held, between, cut).await;
        }
        if let Some(loss) = held.guard.end_reason() {
            self.lost(&plan, held, loss).await;
        } else {
            self.let_go(&plan, held).await;
        }
    }

    /// Works for `span`; true if it was notified of a loss.
    async fn work(&self, plan: &Plan, held: &Held, span: u64) -> bool {
        let (guard, looks) = (&held.guard, plan.looks);
        let work = self.labour(plan, held, span, looks == Looks::State);
        let told = async {
            match looks {
                Looks::Lost => drop(guard.lost().await),
                Looks::Cancellation => guard.cancellation().cancelled().await,
                _ => std::future::pending().await,
            }
        };
        if looks == Looks::Run {
            return guard.run(work).await.is_err();
        }
        tokio::select! {
            biased;
            () = told => true,
            () = work => looks == Looks::State && guard.end_reason().is_some(),
        }
    }

    /// Updates the resource, if this is the name that guards it, again and again.
    async fn labour(&self, plan: &Plan, held: &Held, span: u64, looks: bool) {
        let process = &*self.process;
        let began = process.clock.now();
        // One that shares the name only looks on.
        let guards = plan.name == process.world.names[0] && held.share.is_exclusive();
        loop {
            let left = span.saturating_sub(super::clock::nanos(process.clock.now().since(began)));
            if left == 0 || process.world.healed() || (looks && held.guard.end_reason().is_some()) {
                return;
            }
            if !guards {
                // Nobody sees what it does, but the end of the faults cuts it short.
                process.clock.pause(left.min(ms(100))).await;
                continue;
            }
            let read = process.world.read(&process.who, held);
            process.clock.pause(plan.step.min(left)).await;
            if let Some(read) = read {
                process.world.write(&process.who, held, read);
            }
        }
    }

    async fn lost(&mut self, plan: &Plan, held: Held, loss: EndReason) {
        let process = Arc::clone(&self.process);
        let world = &process.world;
        let acquisition = held.acquisition;
        world.met(match loss {
            EndReason::Expired => Met::LostExpired,
            EndReason::Gone => Met::LostGone,
            EndReason::MaxHold => Met::LostMaxHold,
            _ => Met::LostReleased,
        });
        self.judge(plan, &held, loss);
        let until = world.believed_until(&process.who, acquisition);
        if loss != EndReason::Released && until.is_some_and(|until| world.now() <= until + GRAIN) {
            self.labour_on(plan, &held).await;
        }
        if world.over(&process.who, acquisition).is_some() {
            process.record(What::Lost { acquisition, why: loss.to_string() });
        }
        if self.rng.bool() {
            drop(held);
            return;
        }
        let Some(guard) = Arc::into_inner(held.guard) else { return };
        let _ = guard.release().await;
    }

    /// Stops work, which takes all the time there is for that.
    async fn labour_on(&self, plan: &Plan, held: &Held) {
        let end = self.process.clock.pause(held.stop);
        tokio::select! {
            biased;
            () = end => {}
            () = async { loop { self.labour(plan, held, held.stop, false).await; self.process.clock.pause(ms(1)).await } } => {}
        }
    }

    /// Whether a loss was due, and told in time.
    fn judge(&self, plan: &Plan, held: &Held, loss: EndReason) {
        let Process { world, who, .. } = &*self.process;
        let Some(until) = world.believed_until(who, held.acquisition) else { return };
        let (acquisition, now) = (held.acquisition, world.now());
        if world.mix.tier == 1 && loss == EndReason::Gone {
            world.find(Rule::FalseLoss, format!("{who}#{acquisition}: {loss}, in a store that keeps its data"));
        }
        // With a short ttl, a command that is a little slow has no second try.
        let enough = Duration::from_millis(if world.mix.calm() { 300 } else { 900 });
        let healthy = world.mix.mild() && plan.ttl >= enough;
        if healthy && plan.renews && loss == EndReason::Expired {
            world.find(Rule::FalseLoss, format!("{who}#{acquisition}: {loss}, though hardly anything was broken"));
        }
        let told = matches!(plan.looks, Looks::Lost | Looks::Cancellation | Looks::Run) && !world.mix.fenced;
        if told && now > until + GRAIN && plan.parts.iter().all(|(_, between, _)| *between == Between::Nothing) {
            let late = Duration::from_nanos(now - until);
            world.find(Rule::LateLoss, format!("{who}#{acquisition} was notified {late:?} after its validity had ended"));
        }
    }

    async fn let_go(&mut self, plan: &Plan, held: Held) {
        let process = Arc::clone(&self.process);
        let world = &process.world;
        let acquisition = held.acquisition;
        // A supplied token is not released when others might hold by it before the release has run.
        let sure = held.guard.remaining() > Duration::from_millis(60) && plan.token.is_none();
        world.over(&process.who, acquisition);
        process.record(What::Release { acquisition });
        let Some(guard) = Arc::into_inner(held.guard) else { return };
        match plan.end {
            End::Drop => {
                world.met(Met::Dropped);
                drop(guard);
            }
            End::HandOn => {
                let lease = guard.into_lease();
                world.state().hands_on(lease);
            }
            End::Release => self.released(acquisition, sure, Some(guard.release().await)),
            End::CancelledRelease(cut) => {
                let how = self.unless_cut(cut, guard.release()).await;
                self.released(acquisition, sure, how);
            }
        }
    }

    fn released(&self, acquisition: u32, sure: bool, how: Option<Result<ReleaseOutcome, Error>>) {
        let process = &self.process;
        let (met, how) = match how {
            None => (Met::CancelledRelease, "cancelled".to_owned()),
            Some(Ok(ReleaseOutcome::Released | ReleaseOutcome::StillHeld(_))) => (Met::Released, "released".to_owned()),
            Some(Ok(ReleaseOutcome::WasLost)) => (Met::WasLost, "was lost".to_owned()),
            Some(Ok(ReleaseOutcome::Unknown { error, .. })) => (Met::UnknownRelease, error.to_string()),
            Some(Err(error)) => (Met::Refusal, error.to_string()),
        };
        process.world.met(met);
        if met == Met::WasLost && sure && process.world.mix.calm() {
            process.world.find(Rule::FalseLoss, format!("{}#{acquisition} was reported lost at its release", process.who));
        }
        process.record(What::Released { acquisition, how });
    }
}
