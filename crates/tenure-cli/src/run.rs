//! `tenure run`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::time::Duration;

use rustix::process::Signal;
use tenure::store::Features;
use tenure::{BootTime, Error, Guards, Locker, Name, ReleaseOutcome, format_duration};

use crate::args::{Run, Taking};
use crate::child::Child;
use crate::config::{Settings, TTL};
use crate::exit::{Failure, LOST, USAGE, Voice, say};
use crate::give_up::{give_up, left_taken, settle};
use crate::guardian::Guardian;
use crate::loss::{lost_before, why_lost};
use crate::signals::{Signals, unheard, unheard_before};
use crate::supervise::{End, Supervisor, may_run_until};
use crate::take::Plan;
use crate::terminal::{self, Terminal};
use crate::variables::variables;
use crate::{exec, store};

/// Shortest period of a schedule: its ttl has to leave room for renewals.
const SHORTEST_PERIOD: Duration = Duration::from_secs(2);
/// Longest period. Some stores cannot count a longer one.
const LONGEST_PERIOD: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Shortest of the longest ttls for a name that is taken once in each period.
const SHORT_TTL: Duration = Duration::from_secs(1);
/// Most that a wait for such a name is longer than its ttl.
const LONGEST_MORE: Duration = Duration::from_secs(10);

/// Takes the lock, runs the command under it and ends with its exit code.
pub(crate) async fn main(args: &Run) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let taking = match args.once_per {
        Some(period) => {
            store::tell_whom_it_excludes(&settings);
            // It would use up the period of a host that can run it.
            args.command.first().map_or(Ok(()), |program| exec::check(program))?;
            Cow::Owned(once_per(period, &args.taking, &settings)?)
        }
        None => Cow::Borrowed(&args.taking),
    };
    let plan = Plan { renews: !args.no_renew, ..Plan::guarded(&args.name, &taking, &settings)? };
    let mut passed_on = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let (started, mut guardian) = (BootTime::now(), Guardian::start());
    // Settings that nobody wrote: they come of the period.
    let of_period = |failure: Failure| match args.once_per {
        Some(period) if failure.code == USAGE && args.taking.ttl.is_none() => {
            failure.and(&format!("--once-per {} takes a twentieth of it, or less, for the ttl", format_duration(period)))
        }
        _ => failure,
    };
    let locker = plan.locker_unless(&mut passed_on).await.map_err(of_period)?;
    args.once_per.map_or(Ok(()), |period| check_period(period, &locker.store().features()))?;
    let mut guards = plan.take_on(&locker, started, &mut passed_on).await?;
    loop {
        let Done { end, code, .. } = under_lock(&args.command, &plan, &locker, guards, &mut passed_on, &mut guardian).await?;
        if end != End::Lost || !args.restart {
            return Ok(code);
        }
        settings.voice.say(format_args!("waiting for {} once more, to start the command again", plan.names));
        guards = plan.take_on(&locker, BootTime::now(), &mut passed_on).await?;
    }
}

/// How a lock is taken once in each period of a schedule.
///
/// Let `s` be how far a host may come from the right time. Within one period the first host comes at
/// most `s` early and the last at most `s` late, so the name has to stay taken for more than `2s`. It
/// has to be free `2s` before the period ends. Half of the period leaves the same room on both sides.
/// No host's clock is read.
///
/// A host that dies late in a long job keeps the name for up to the ttl. So the hosts of the next period
/// wait somewhat longer than that. A wait counts as coming late: with an `s` of a fifth of the period it
/// has to end within a tenth. So the ttl is a twentieth. The wait is also for stores that answer "busy"
/// to all when several come at the same moment, and for an outage.
fn once_per(period: Duration, taking: &Taking, settings: &Settings) -> Result<Taking, Failure> {
    let (half, asked) = (period / 2, taking.ttl.or(settings.ttl));
    if period < SHORTEST_PERIOD {
        let [period, shortest] = [period, SHORTEST_PERIOD].map(format_duration);
        let what = format!("--once-per {period} is too short for one run on several hosts");
        return Err(Failure::usage(format!("{what}; the shortest period is {shortest}")));
    }
    if period > LONGEST_PERIOD {
        return Err(Failure::usage(format!("--once-per {period:?} is longer than a century; use a shorter period")));
    }
    let longest = (period / 20).max(SHORT_TTL);
    if let Some(ttl) = taking.ttl.filter(|ttl| *ttl > longest) {
        let [ttl, period, longest] = [ttl, period, longest].map(format_duration);
        let what =
            format!("a host that dies would keep the name for the ttl of {ttl}, into the next period of --once-per {period}");
        return Err(Failure::usage(format!("{what}; lower --ttl to {longest} at most")));
    }
    let ttl = asked.unwrap_or(TTL).min(longest);
    let wait = (ttl + (ttl / 2).min(LONGEST_MORE)).min(period * 3 / 40);
    Ok(Taking { ttl: Some(ttl), min_hold: Some(half), wait: Some(wait), no_wait: false, ..taking.clone() })
}

/// Refuses a period that the store cannot keep: its leases end late, or with the process.
///
/// Half of the period and what a lease lasts longer have to end a fifth of the period on both sides from
/// the next tick.
fn check_period(period: Duration, store: &Features) -> Result<(), Failure> {
    let asked = format_duration(period);
    if store.process_bound {
        let what = "keeps a name taken when the command has ended, and in this store a lease ends with its process";
        return Err(Failure::usage(format!("--once-per {asked} {what}; use another store")));
    }
    let shortest = store.late_end * 10;
    if period < shortest {
        let [late, shortest] = [store.late_end, shortest].map(format_duration);
        let what = format!("--once-per {asked} is too short for this store, where a lease may last {late} longer than it should");
        return Err(Failure::usage(format!("{what}; the shortest period is {shortest}")));
    }
    Ok(())
}

/// How a run of the command went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) end: End,
    /// The exit code that says so.
    pub(crate) code: u8,
    /// We were asked to end, and passed that on. A HUP that the command survived was for something else.
    pub(crate) was_asked: bool,
}

/// Runs the command once.
pub(crate) async fn under_lock(
    command: &[OsString],
    plan: &Plan<'_>,
    locker: &Locker,
    guards: Guards,
    passed_on: &mut Signals,
    guardian: &mut Guardian,
) -> Result<Done, Failure> {
    let (voice, names) = (plan.settings.voice, &plan.names);
    tell_held(plan, &guards).await;
    let mut jobs = match passed_on.job_control() {
        Ok(jobs) => jobs,
        Err(error) => return Err(give_up(locker, guards, unheard(&error)).await),
    };
    if let Some(lost) = guards.end_reason().map(|(name, loss)| lost_before(name, &why_lost(&guards, name, loss))) {
        return Err(give_up(locker, guards, lost).await);
    }
    guardian.wait();
    let (child, terminal) = match start(command, plan, &guards, guardian) {
        Ok(started) => started,
        Err(failure) => return Err(give_up(locker, guards, failure).await),
    };
    let mut supervisor = Supervisor::new(&guards, child, terminal, plan.kill_after.unwrap_or_default(), voice, guardian);
    supervisor.unrenewed = (!plan.renews).then_some("its ttl ran out, and with --no-renew nothing prolongs it");
    let end = supervisor.watch(passed_on, &mut jobs).await;
    supervisor.terminal.take_back();
    if plan.is_patient && end != End::Lost {
        // Another host leads next.
        supervisor.end_rest().await;
    }
    guardian.disarm();
    let left = supervisor.child.is_left();
    let hung_up = supervisor.child.died_of() == Some(Signal::HUP.as_raw());
    let was_asked = supervisor.asked.iter().any(|signal| *signal != Signal::HUP || hung_up);
    let interrupt = supervisor.interrupt();
    let code = match end {
        End::Ended(code) => released(locker, guards, code, voice).await,
        End::Lost => {
            // What the store may still keep for us is of no use to anyone.
            if let Some(left) = left_taken(locker, guards, false).await {
                say(left);
            }
            LOST
        }
    };
    if left && matches!(end, End::Ended(_)) {
        voice.say(format_args!("processes that the command left in the background are no longer protected by {names}"));
    }
    if code != LOST {
        interrupt.pass_on();
    }
    Ok(Done { end, code, was_asked })
}

async fn tell_held(plan: &Plan<'_>, guards: &Guards) {
    let (voice, names) = (plan.settings.voice, &plan.names);
    let fences: Option<Vec<_>> = guards.fences().map(|(_, fence)| Some(fence?.to_string())).collect();
    let told = match fences {
        Some(fences) => voice.detail_aside(format_args!("{names} is held, fence {}", fences.join(", "))),
        None => voice.detail_aside(format_args!("{names} is held")),
    };
    told.finish().await;
}

fn start(command: &[OsString], plan: &Plan<'_>, guards: &Guards, guardian: &Guardian) -> Result<(Child, Terminal), Failure> {
    // The keys of a candidate are for the candidate.
    let front = Terminal::is_wanted() && !plan.is_patient;
    // As it is before the command can change it.
    let mut terminal = if front { Terminal::remembered() } else { Terminal::default() };
    let child = Child::spawn(command, &variables(guards), &store::for_child(plan.settings), front, |group| {
        guardian.arm(group, Some(may_run_until(guards)));
    })?;
    terminal::write_from_background();
    if front {
        // The child comes to the front by itself, before it runs the command; we only have to know.
        terminal.expect(child.group());
    }
    Ok((child, terminal))
}

/// Gives the locks up after the command has ended with `code`.
async fn released(locker: &Locker, guards: Guards, code: u8, voice: Voice) -> u8 {
    let mut ends_with = code;
    for (name, release) in guards.release().await {
        if was_lost(&name, release, voice) {
            ends_with = LOST;
        }
    }
    settle(locker).await;
    ends_with
}

/// Says how a release went; whether the lock had been lost.
fn was_lost(name: &Name, release: Result<ReleaseOutcome, Error>, voice: Voice) -> bool {
    match release {
        Ok(ReleaseOutcome::Released | ReleaseOutcome::StillHeld(_)) => voice.detail(format_args!("{name:?} is released")),
        Ok(ReleaseOutcome::WasLost) => {
            say(format_args!("the lock {name:?} was lost before the command ended: the store has it as another's, or free"));
            return true;
        }
        Ok(ReleaseOutcome::Unknown { until, error }) => voice.say(format_args!(
            "whether {name:?} was released is unknown, {error}; it is free in {} at the latest",
            format_duration(until)
        )),
        Err(error) => {
            voice.say(format_args!("{name:?} could not be released, {error}; it is free when its ttl has passed"));
        }
    }
    false
}
