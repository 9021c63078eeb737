//! `tenure lead`.

use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{BootTime, format_duration};
use tokio::time::{Instant, sleep_until};

use crate::args::Lead;
use crate::config::Settings;
use crate::exit::{Failure, LOST, UNREACHABLE};
use crate::guardian::Guardian;
use crate::run::{Done, under_lock};
use crate::signals::{Signals, unheard_before};
use crate::supervise::End;
use crate::take::Plan;
use crate::{child, exec, store};

/// A command that ran for less time ended too soon.
const LONG_ENOUGH: Duration = Duration::from_secs(60);
/// Pause after a command that ended too soon, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Runs the command whenever this host leads, until a signal ends that.
pub(crate) async fn main(args: &Lead) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let taking = args.taking();
    store::tell_whom_it_excludes(&settings);
    let plan = Plan { is_patient: true, ..Plan::guarded(&args.name, &taking, &settings)? };
    let mut passed_on = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let mut children = Signals::of_children().map_err(|e| unheard_before(&e))?;
    let mut guardian = Guardian::start();
    let locker = plan.locker_unless(&mut passed_on).await?;
    let (names, voice, mut pauses) = (&plan.names, settings.voice, Pauses::default());
    loop {
        // Another candidate can run it. One that ran and ended with 127 is run again.
        args.command.first().map_or(Ok(()), |program| exec::check(program))?;
        let guards = match collecting(&mut children, plan.take_on(&locker, BootTime::now(), &mut passed_on)).await {
            Ok(guards) => guards,
            // No outage ends a candidate.
            Err(Failure { code: UNREACHABLE, text, .. }) => {
                let pause = pauses.after(Duration::ZERO);
                let (why, after) = (text.unwrap_or_default(), format_duration(pause));
                voice.say(format_args!("{why}; campaigning for {names} again in {after}"));
                if let Some(signal) = collecting(&mut children, asked_within(pause, &mut passed_on)).await {
                    return Err(Failure::signalled(signal.as_raw()));
                }
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let began = BootTime::now();
        let done = under_lock(&args.command, &plan, &locker, guards, &mut passed_on, &mut guardian).await;
        let ran = BootTime::now().since(began);
        let (what, pause) = match done {
            // Before the command was started.
            Err(Failure { code: LOST, text, .. }) => (text.unwrap_or_default(), pauses.after(ran)),
            Ok(Done { end: End::Lost, was_asked: false, .. }) => {
                pauses.lost_after(ran);
                (String::new(), Duration::ZERO)
            }
            done => {
                let Done { end, code, was_asked } = done?;
                if was_asked {
                    return Ok(code);
                }
                // A lead that was broken meanwhile has another code.
                let ended = if let End::Ended(ended) = end { ended } else { code };
                (format!("the command ended with {ended} after {}", format_duration(ran)), pauses.after(ran))
            }
        };
        let (what, mark) = (what.as_str(), if what.is_empty() { "" } else { "; " });
        if pause.is_zero() {
            voice.say(format_args!("{what}{mark}campaigning for {names} again"));
            continue;
        }
        voice.say(format_args!("{what}{mark}campaigning for {names} again in {}", format_duration(pause)));
        if let Some(signal) = collecting(&mut children, asked_within(pause, &mut passed_on)).await {
            return Err(Failure::signalled(signal.as_raw()));
        }
    }
}

/// Pauses before the next campaign.
#[derive(Debug)]
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pauses {
    /// A lead that was lost needs no pause.
    fn lost_after(&mut self, ran: Duration) {
        if ran >= LONG_ENOUGH {
            *self = Self::default();
        }
    }

    /// Pause after a lead that ended by itself, or before the command was started.
    fn after(&mut self, ran: Duration) -> Duration {
        if ran >= LONG_ENOUGH {
            *self = Self::default();
            return Duration::ZERO;
        }
        let next = (self.0 * 2).min(LONGEST_PAUSE);
        std::mem::replace(&mut self.0, next)
    }
}

/// The signal that ends a pause and the candidate.
async fn asked_within(pause: Duration, signals: &mut Signals) -> Option<Signal> {
    let until = Instant::now() + pause;
    loop {
        tokio::select! {
            signal = signals.next() => if signals.end_candidate(signal) {
                return Some(signal);
            },
            () = sleep_until(until) => return None,
        }
    }
}

/// Waits while no command runs, and collects what ends meanwhile. The first process of a container gets
/// every process whose parent has ended.
async fn collecting<T>(children: &mut Signals, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        child::collect();
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = children.next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_that_ends_too_soon_is_followed_by_ever_longer_pauses() {
        let mut pauses = Pauses::default();
        let seconds: Vec<u64> = (0..8).map(|_| pauses.after(Duration::ZERO).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!((pauses.after(LONG_ENOUGH), pauses.after(Duration::ZERO)), (Duration::ZERO, FIRST_PAUSE));
    }

    #[test]
    fn a_long_lead_that_was_lost_forgets_the_ends_before() {
        let mut pauses = Pauses::default();
        for _ in 0..5 {
            pauses.after(Duration::ZERO);
        }
        pauses.lost_after(Duration::ZERO);
        assert_eq!(pauses.after(Duration::ZERO), 32 * FIRST_PAUSE);
        pauses.lost_after(LONG_ENOUGH);
        assert_eq!(pauses.after(Duration::ZERO), FIRST_PAUSE);
    }
}
