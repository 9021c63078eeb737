//! `tenure run`.

use tenure::{BootTime, EndReason, Error, Guards, Locker, Name, ReleaseOutcome, format_duration};
use tokio::time::timeout;

use crate::args::Run;
use crate::child::Child;
use crate::config::Settings;
use crate::exit::{Failure, LOST, Voice, say};
use crate::give_up::{give_up, left_taken};
use crate::signals::{Signals, unheard, unheard_before};
use crate::store;
use crate::supervise::{End, Supervisor};
use crate::take::{CLEAN_UP, Plan};
use crate::terminal::{self, Terminal};
use crate::variables::variables;

/// Takes the lock, runs the command under it and ends with its exit code.
pub(crate) async fn main(args: &Run) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let plan = Plan { renews: !args.no_renew, ..Plan::guarded(&args.name, &args.taking, &settings)? };
    let mut passed_on = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let (locker, mut guards) = plan.take(&mut passed_on).await?;
    loop {
        let (end, code) = under_lock(args, &plan, &locker, guards, &mut passed_on).await?;
        if end != End::Lost || !args.restart {
            return Ok(code);
        }
        settings.voice.say(format_args!("waiting for {} once more, to start the command again", plan.names));
        guards = plan.take_on(&locker, BootTime::now(), &mut passed_on).await?;
    }
}

/// Runs the command once.
async fn under_lock(
    args: &Run,
    plan: &Plan<'_>,
    locker: &Locker,
    guards: Guards,
    passed_on: &mut Signals,
) -> Result<(End, u8), Failure> {
    let (voice, names, min_hold) = (plan.settings.voice, &plan.names, args.taking.min_hold);
    tell_held(plan, &guards).await;
    let mut jobs = match passed_on.job_control() {
        Ok(jobs) => jobs,
        Err(error) => return Err(give_up(locker, guards, min_hold, unheard(&error)).await),
    };
    if let Some(lost) = guards.end_reason().map(|(name, loss)| lost_before(name, loss)) {
        return Err(give_up(locker, guards, min_hold, lost).await);
    }
    let (child, terminal) = match start(args, plan.settings, &guards) {
        Ok(started) => started,
        Err(failure) => return Err(give_up(locker, guards, min_hold, failure).await),
    };
    let mut supervisor = Supervisor::new(&guards, child, terminal, plan.kill_after.unwrap_or_default(), voice);
    supervisor.unrenewed = (!plan.renews).then_some("its ttl ran out, and with --no-renew nothing prolongs it");
    let end = supervisor.watch(passed_on, &mut jobs).await;
    supervisor.terminal.take_back();
    let left = supervisor.child.is_left();
    let interrupt = supervisor.interrupt();
    let code = match end {
        End::Ended(code) => released(locker, guards, code, voice).await,
        End::Lost => {
            // What the store may still keep for us is of no use to anyone.
            if let Some(left) = left_taken(locker, guards).await {
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
    Ok((end, code))
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

fn start(args: &Run, settings: &Settings, guards: &Guards) -> Result<(Child, Terminal), Failure> {
    let front = Terminal::is_wanted();
    let child = Child::spawn(&args.command, &variables(guards), &store::for_child(settings), front)?;
    terminal::write_from_background();
    let mut terminal = Terminal::default();
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
        if matches!(release, Ok(ReleaseOutcome::Unknown { .. })) {
            let _ = timeout(CLEAN_UP, locker.flush_releases()).await;
        }
        if was_lost(&name, release, voice) {
            ends_with = LOST;
        }
    }
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

fn lost_before(name: &Name, loss: EndReason) -> Failure {
    Failure::new(LOST, format!("the lock {name:?} was lost before the command was started: {loss}; nothing was run"))
}
