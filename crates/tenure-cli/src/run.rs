//! `tenure run`.

use tenure::{Guard, Locker, Loss, Release};
use tokio::time::timeout;

use crate::args::Run;
use crate::child::Child;
use crate::config::Settings;
use crate::exit::{Failure, LOST, UNREACHABLE, Voice, say};
use crate::show::span;
use crate::signals::Signals;
use crate::supervise::{End, Supervisor};
use crate::take::{CLEAN_UP, Plan, variables};
use crate::terminal::{self, Terminal};

/// Takes the lock, runs the command under it and ends with its exit code.
pub(crate) async fn main(args: &Run) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let plan = Plan { renews: !args.no_renew, ..Plan::guarded(&args.name, &args.taking, &settings)? };
    let mut passed_on = Signals::passed_on().map_err(|e| no_signals(&e))?;
    let (locker, guard) = plan.take(&mut passed_on).await?;
    let voice = settings.voice;
    let name = &plan.name;
    let told = match guard.fence() {
        Some(fence) => voice.detail_aside(format_args!("{name:?} is held, fence {fence}")),
        None => voice.detail_aside(format_args!("{name:?} is held")),
    };
    told.finish().await;
    let mut jobs = passed_on.job_control().map_err(|e| no_signals(&e))?;
    if let Some(loss) = guard.loss() {
        return Ok(lost_before(&guard, loss));
    }
    let mut supervisor = start(args, &guard, plan.kill_after.unwrap_or_default(), voice)?;
    let end = supervisor.watch(&mut passed_on, &mut jobs).await;
    supervisor.terminal.take_back();
    let left = supervisor.child.is_left();
    let interrupt = supervisor.interrupt();
    let code = match end {
        End::Ended(code) => released(&locker, guard, code, voice).await,
        End::Lost(_) => {
            // What the store may still keep for us is of no use to anyone.
            let _ = guard.release().await;
            LOST
        }
    };
    if left && matches!(end, End::Ended(_)) {
        voice.say(format_args!("processes that the command left in the background are no longer protected by {name:?}"));
    }
    if code != LOST {
        interrupt.pass_on();
    }
    Ok(code)
}

fn start<'a>(args: &Run, guard: &'a Guard, kill_after: std::time::Duration, voice: Voice) -> Result<Supervisor<'a>, Failure> {
    let front = Terminal::is_wanted();
    let child = Child::spawn(&args.command, variables(guard), front)?;
    terminal::write_from_background();
    let mut terminal = Terminal::default();
    if front {
        // The child comes to the front by itself, before it runs the command; we only have to know.
        terminal.expect(child.group());
    }
    Ok(Supervisor { guard, child, terminal, kill_after, voice, stop_at: None, echo: false, woken: false, interrupted: false })
}

/// Gives the lock up after the command has ended with `code`.
async fn released(locker: &Locker, guard: Guard, code: u8, voice: Voice) -> u8 {
    let name = guard.name();
    match guard.release().await {
        Ok(Release::Released | Release::StillHeld(_)) => {
            voice.detail(format_args!("{name:?} is released"));
            code
        }
        Ok(Release::WasLost) => {
            say(format_args!("the lock {name:?} was lost before the command ended: the store has it as another's, or free"));
            LOST
        }
        Ok(Release::Unknown { until, error }) => {
            let _ = timeout(CLEAN_UP, locker.settled()).await;
            voice.say(format_args!(
                "whether {name:?} was released is unknown, {error}; it is free in {} at the latest",
                span(until)
            ));
            code
        }
        Err(error) => {
            voice.say(format_args!("{name:?} could not be released, {error}; it is free when its ttl has passed"));
            code
        }
    }
}

fn lost_before(guard: &Guard, loss: Loss) -> u8 {
    say(format_args!("the lock {:?} was lost before the command was started: {loss}; nothing was run", guard.name()));
    LOST
}

pub(crate) fn no_signals(error: &std::io::Error) -> Failure {
    Failure::new(UNREACHABLE, format!("signals cannot be received, {error}; nothing was taken"))
}
