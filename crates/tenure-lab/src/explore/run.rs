//! One run: faults until the heal, then everything must come to rest and be free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tenure::{Name, Share};
use tenure_testkit::History;
use tenure_testkit::history::{Finding, Rule, What, check};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};

use super::clock::{At, Life, SimClock, ms, nanos};
use super::coverage::Met;
use super::mix::Mix;
use super::plan::whole;
use super::process::{Process, Task};
use super::server::Origin;
use super::world::{Held, World};
use super::{Explored, Flaw};

/// The longest that anything may keep a name after the last fault: an extended lease, or a shortest
/// hold, from a command that was under way for as long as they can be, at a server whose clock went
/// back; and a wait for the next poll.
const FREE: Duration = Duration::from_secs(12);
/// The longest that every task may need to come to its end, one after another.
const REST: Duration = Duration::from_secs(120);

/// Makes the run of `seed`.
pub(super) fn one(seed: u64, flaw: Option<Flaw>) -> Explored {
    fastrand::seed(seed);
    let mut rng = Rng::with_seed(seed);
    let mix = Mix::choose(&mut rng, flaw);
    let world = Arc::new(World::new(seed, mix, rng.fork(), flaw));
    let settles = Arc::clone(&world);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || settles.settle())
        .build()
        .expect("a runtime needs nothing");
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(all(&world, &mut rng))));
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let mut state = world.state();
        let at = state.history.events.last().map_or(0, |event| event.at);
        state.findings.push(Finding { rule: Rule::Untyped, at, text: format!("it panicked: {}", text.unwrap_or_default()) });
    }
    // What is dropped with the runtime is no part of the run.
    let explored = take(&world, seed);
    drop(runtime);
    explored
}

fn take(world: &World, seed: u64) -> Explored {
    let mut state = world.state();
    let history = std::mem::replace(&mut state.history, History::new("", seed));
    let mut findings = std::mem::take(&mut state.findings);
    let judged = check(&history).into_iter();
    // Where data or time was lost, holders may overlap: that is what fences are for.
    findings.extend(judged.filter(|finding| world.mix.tier == 1 || finding.rule != Rule::Overlap));
    findings.sort_by_key(|finding| finding.at);
    Explored { seed, tier: world.mix.tier, history, findings, coverage: state.coverage.clone() }
}

struct Member {
    process: Arc<Process>,
    tasks: Vec<JoinHandle<()>>,
}

async fn all(world: &Arc<World>, rng: &mut Rng) {
    let began = world.began();
    tokio::spawn(Arc::clone(world).carry());
    let mut members: Vec<Member> = Vec::new();
    let most = if world.mix.alike { 4 } else { 2 };
    for (index, life) in world.mix.lives.iter().enumerate() {
        let process = Process::new(world, index, format!("P{}", index + 1), SimClock::new(life.clone(), began));
        let tasks = (0..rng.usize(1..=most)).map(|_| tokio::spawn(Task::new(Arc::clone(&process), rng.fork()).run())).collect();
        members.push(Member { process, tasks });
    }
    chaos(world, &members).await;
    heal(world, members).await;
}

/// Kills those that are to be killed, until the heal.
async fn chaos(world: &World, members: &[Member]) {
    let mut crashes: Vec<(At, usize)> =
        world.mix.lives.iter().zip(0..).filter_map(|(life, i)| Some((life.crash_at?, i))).collect();
    crashes.sort_unstable();
    for (at, index) in crashes {
        sleep_until(world.at(at)).await;
        let Member { process, tasks } = &members[index];
        world.met(Met::Crash);
        process.record(What::Died);
        world.all_over(&process.who);
        tasks.iter().for_each(JoinHandle::abort);
    }
    for _ in world.mix.lives.iter().flat_map(|life| &life.naps) {
        world.met(Met::Nap);
    }
    sleep_until(world.at(world.mix.heal)).await;
}

async fn heal(world: &Arc<World>, members: Vec<Member>) {
    world.fault("all is well");
    for name in &world.names {
        world.record("lab", What::GrantDue { name: name.as_str().to_owned(), within: nanos(FREE) });
    }
    let life = Life { speed: 1_000_000, offset: 0, crash_at: None, naps: Vec::new() };
    let prober = Process::new(world, world.mix.lives.len(), "Z", SimClock::new(life, world.began()));
    let places = world.names.iter().zip(&world.mix.names);
    let regranted = join_all(places.map(|(name, kind)| probe(&prober, name, whole(*kind))));
    let (mut processes, mut tasks) = (Vec::new(), Vec::new());
    for member in members {
        tasks.extend(member.tasks);
        processes.push(member.process);
    }
    processes.retain(|process| !process.clock.life().dead_at(world.now()));
    let rest = timeout(REST, async { futures_util::future::join(regranted, join_all(tasks)).await });
    match rest.await {
        Err(_) => return world.find(Rule::NotGranted, format!("a task had not come to its end {REST:?} after the last fault")),
        Ok((_, ends)) => {
            for panic in ends.into_iter().filter_map(Result::err).filter(tokio::task::JoinError::is_panic) {
                world.find(Rule::Untyped, format!("a task panicked: {panic}"));
            }
        }
    }
    let settled = join_all(processes.iter().chain([&prober]).map(|process| process.locker.flush_releases()));
    if timeout(REST, settled).await.is_err() {
        return world.find(Rule::Leak, format!("clean-ups had not come to their end {REST:?} after the last task"));
    }
    leaks(world);
    free(world).await;
}

/// Takes a name once, when everything is well again.
async fn probe(prober: &Process, name: &Name, share: Share) {
    let acquisition = prober.asks(name);
    match prober.locker.lock(name.as_str(), share).ttl(Duration::from_secs(2)).acquire().await {
        Err(error) => prober.world.find(Rule::NotGranted, format!("{name:?} after the last fault: {error}")),
        Ok(guard) => {
            let held = Held { acquisition, guard: Arc::new(guard), share, stop: 0, shortest: Duration::ZERO, longest: None };
            prober.world.granted(&prober.who, &prober.clock, &held);
            prober.world.over(&prober.who, acquisition);
            prober.record(What::Release { acquisition });
            let Some(guard) = Arc::into_inner(held.guard) else { return };
            match guard.release().await {
                // It may still be slow.
                Ok(tenure::ReleaseOutcome::Released | tenure::ReleaseOutcome::Unknown { .. }) => {}
                other => prober.world.find(Rule::FalseLoss, format!("a release when all is well: {other:?}")),
            }
        }
    }
}

/// When all has come to rest, a name is taken only for one who died, or by what nobody could clear
/// up.
fn leaks(world: &World) {
    let now = world.now();
    let mut state = world.state();
    for name in &world.names {
        let held = state.server.held(name, now).map(|(held, _)| (&held.owner, "still taken"));
        let waiting = state.server.waiters(name, now).map(|waiter| (&waiter.owner, "still waited for"));
        let left: Vec<_> = held.chain(waiting).map(|(owner, what)| (owner.clone(), what)).collect();
        for (owner, what) in left {
            let Some(token) = state.tokens.get(&owner) else { continue };
            let dead = world.mix.lives.get(token.process).is_some_and(|life| life.crash_at.is_some());
            // A refusal ends a clean-up, and a supplied token is never cleared up.
            let refused = world.mix.odds(Met::Forbidden) > 0;
            // Where commands run late, one may come when the clean-up has ended: after its ttl, or
            // for a second copy.
            let too_late = |from: Origin| from.copy || from.ran_at - from.sent_at > from.ttl / 100 * 95;
            let late = world.mix.late && state.server.origin(&owner).is_some_and(too_late);
            if !(dead || refused || late || token.handed || !owner.is_generated()) {
                let text = format!("{name:?} is {what} for P{}, which has come to rest", token.process + 1);
                state.findings.push(Finding { rule: Rule::Leak, at: now, text });
            }
        }
    }
}

async fn free(world: &World) {
    for name in &world.names {
        world.record("lab", What::FreeDue { name: name.as_str().to_owned(), within: nanos(FREE) });
    }
    for name in &world.names {
        loop {
            let now = world.now();
            let Some(left) = world.state().server.held(name, now).map(|(_, left)| left).min() else { break };
            if now > world.mix.heal + nanos(REST * 4) {
                break;
            }
            sleep_until(world.at(now + left + ms(1))).await;
        }
        let now = world.now();
        let taken = world.state().server.held(name, now).next().is_some();
        let (name, holder) = (name.as_str().to_owned(), taken.then(|| "somebody".to_owned()));
        world.record("lab", What::Seen { name, holder, forever: false });
    }
}
