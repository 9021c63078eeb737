//! `tenure lead`.

use std::time::Duration;

use tenure::{BootTime, format_duration};
use tokio::time::{Instant, sleep_until};

use crate::args::Lead;
use crate::config::Settings;
use crate::exit::{CANNOT_RUN, Failure, LOST, NOT_FOUND};
use crate::run::{Done, under_lock};
use crate::signals::{Signals, unheard_before};
use crate::supervise::{End, asks_to_end};
use crate::take::Plan;

/// A command that ran for less time ended too soon.
const LONG_ENOUGH: Duration = Duration::from_secs(60);
/// A command that cannot be run ends in less.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Pause after a command that ended too soon, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Runs the command whenever this host leads, until a signal ends that.
pub(crate) async fn main(args: &Lead) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let taking = args.taking();
    let plan = Plan { is_patient: true, ..Plan::guarded(&args.name, &taking, &settings)? };
    let mut passed_on = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let locker = plan.locker_unless(&mut passed_on).await?;
    let mut pause = FIRST_PAUSE;
    loop {
        let guards = plan.take_on(&locker, BootTime::now(), &mut passed_on).await?;
        let began = BootTime::now();
        let done = under_lock(&args.command, &plan, &locker, guards, &mut passed_on).await;
        let Done { end, code, was_asked } = match done {
            // Before the command was started.
            Err(Failure { code: LOST, text, .. }) => {
                settings.voice.say(text.unwrap_or_default());
                continue;
            }
            done => done?,
        };
        let (names, voice, ran) = (&plan.names, settings.voice, BootTime::now().since(began));
        let never_ran = [CANNOT_RUN, NOT_FOUND].contains(&code) && ran < AT_ONCE;
        if was_asked || never_ran {
            return Ok(code);
        }
        if end == End::Lost {
            voice.say(format_args!("campaigning for {names} again"));
            continue;
        }
        if ran >= LONG_ENOUGH {
            pause = FIRST_PAUSE;
            voice.say(format_args!("the command ended with {code}; campaigning for {names} again"));
            continue;
        }
        let [ran, next] = [ran, pause].map(format_duration);
        voice.say(format_args!("the command ended with {code} after {ran}; campaigning for {names} again in {next}"));
        let until = Instant::now() + pause;
        loop {
            tokio::select! {
                signal = passed_on.next() => if asks_to_end(signal) {
                    return Err(Failure::signalled(signal.as_raw()));
                },
                () = sleep_until(until) => break,
            }
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
