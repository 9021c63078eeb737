//! Taking a lock as the flags say, obeying signals meanwhile.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::{Duration, SystemTime};

use tenure::{AcquireAll, Error, ErrorKind, Guard, Guards, Locker, Name, Owner, Waiting};
use tokio::time::timeout;

use crate::args::Taking;
use crate::child::{Lease, Variables};
use crate::config::Settings;
use crate::exit::{Failure, Voice, about};
use crate::show::span;
use crate::signals::Signals;
use crate::store;

/// The ttl where nothing else was said.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// How long a clean-up may hold up our end.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(1);
/// What the end of a killed process group may take on a busy machine.
const REAPING: Duration = Duration::from_millis(100);

/// How a lock is to be taken.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) names: Names,
    pub(crate) ttl: Duration,
    /// Time for work to stop, of the end of the lease; `None` where nobody works on it here.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) renews: bool,
    pub(crate) taking: &'a Taking,
    pub(crate) settings: &'a Settings,
}

impl<'a> Plan<'a> {
    /// A lock that somebody works under.
    pub(crate) fn guarded(name: &OsStr, taking: &'a Taking, settings: &'a Settings) -> Result<Self, Failure> {
        let plan = Self::fixed(name, taking, settings)?;
        let kill_after = kill_after(plan.ttl, taking.kill_after, settings.kill_after)?;
        Ok(Self { kill_after: Some(kill_after), renews: true, ..plan })
    }

    /// A lease of one ttl that is left to others.
    pub(crate) fn fixed(name: &OsStr, taking: &'a Taking, settings: &'a Settings) -> Result<Self, Failure> {
        let names = Names::new(name, &taking.also)?;
        let ttl = taking.ttl.or(settings.ttl).unwrap_or(TTL);
        Ok(Self { names, ttl, kill_after: None, renews: false, taking, settings })
    }

    /// Opens the store and takes the lock, unless a signal ends the wait.
    pub(crate) async fn take(&self, signals: &mut Signals) -> Result<(Locker, Guards), Failure> {
        let locker = tokio::select! {
            biased;
            signal = signals.next() => return Err(self.interrupted(signal)),
            builder = store::open(self.settings) => {
                let builder = builder?.ttl(self.ttl).safety_margin(self.guard());
                let builder = match self.label() {
                    Some(label) => builder.label(valid(label)?),
                    None => builder,
                };
                builder.build().map_err(|error| self.bad_ttl(error.into()))?
            }
        };
        let acquire = self.acquire(&locker)?;
        let ended = tokio::select! {
            biased;
            signal = signals.next() => Err(self.interrupted(signal)),
            guards = acquire.acquire() => guards.map_err(|error| self.not_acquired(error)),
        };
        match ended {
            Ok(guards) => Ok((locker, guards)),
            // What the dropped wait may have taken is given up before we are gone.
            Err(failure) => match timeout(CLEAN_UP, locker.flush_releases()).await {
                Ok(()) => Err(failure),
                Err(_) => Err(failure.and(&format!("{} may stay taken for up to {}", self.names, span(self.ttl)))),
            },
        }
    }

    fn acquire(&self, locker: &Locker) -> Result<AcquireAll, Failure> {
        let Taking { kind, wait, no_wait, max_hold, min_hold, token, .. } = self.taking;
        let voice = self.settings.voice;
        let Names(first, others) = &self.names;
        let mut acquire = locker.lock(first, kind.share()).on_wait(move |waiting| tell(voice, &waiting));
        let wait = if *no_wait { Some(Duration::ZERO) } else { wait.or(self.settings.wait) };
        if let Some(wait) = wait {
            acquire = acquire.wait(wait);
        }
        if !self.renews {
            acquire = acquire.fixed_lease();
        }
        if let Some(max) = max_hold {
            acquire = acquire.max_hold(*max);
        }
        if let Some(min) = min_hold {
            acquire = acquire.min_hold(*min);
        }
        if let Some(token) = token {
            acquire = acquire.token(token.parse()?);
        }
        Ok(others.iter().fold(acquire.into(), AcquireAll::and))
    }

    fn guard(&self) -> Duration {
        self.kill_after.map_or(Duration::ZERO, |kill_after| kill_after + REAPING)
    }

    fn label(&self) -> Option<&str> {
        if self.taking.no_label { Some("") } else { self.taking.label.as_deref().or(self.settings.label.as_deref()) }
    }

    fn interrupted(&self, signal: rustix::process::Signal) -> Failure {
        let n = signal.as_raw();
        self.settings.voice.detail(format_args!("signal {n} ended the wait for {}", self.names));
        Failure::signalled(n)
    }

    /// A ttl that cannot work, wherever it came from.
    fn bad_ttl(&self, failure: Failure) -> Failure {
        if self.taking.ttl.is_none() { self.settings.bad_ttl(failure) } else { failure }
    }

    fn not_acquired(&self, error: Error) -> Failure {
        if error.kind() != ErrorKind::TimedOut {
            return about(&self.names, error);
        }
        let fix = match error.holder() {
            Some(holder) if holder.ttl.is_none() => {
                "see `tenure show`, and if its holder is gone, end it with `tenure break NAME`"
            }
            _ => "try again later, or see `tenure show`",
        };
        self.settings.voice.say(format_args!("{error}; {fix}"));
        Failure::told(self.taking.conflict_exit_code)
    }
}

/// A label that can be part of an owner.
fn valid(label: &str) -> Result<&str, Failure> {
    Owner::generate(label)?;
    Ok(label)
}

/// The time that work gets to stop: what was asked for, if it leaves room for renewals.
fn kill_after(ttl: Duration, asked: Option<Duration>, usual: Option<Duration>) -> Result<Duration, Failure> {
    let most = ttl / 3;
    match asked {
        // What is usual gives way to a short ttl; what was asked for does not.
        None => Ok(most.min(usual.unwrap_or(Duration::from_secs(5)))),
        Some(asked) if asked <= most => Ok(asked),
        Some(asked) => {
            let (asked, most, ttl) = (span(asked), span(most), span(ttl));
            Err(Failure::usage(format!(
                "--kill-after {asked} is more than {most}, a third of the ttl of {ttl}; raise --ttl or lower it"
            )))
        }
    }
}

/// What is to be taken: a name, and those that go with it.
#[derive(Debug)]
pub(crate) struct Names(Name, Vec<Name>);

impl Names {
    fn new(name: &OsStr, also: &[OsString]) -> Result<Self, Failure> {
        Ok(Self(lock_name(name)?, also.iter().map(|name| lock_name(name)).collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)?;
        self.1.iter().try_for_each(|name| write!(f, ", {name:?}"))
    }
}

/// A lock name from the command line.
pub(crate) fn lock_name(name: &OsStr) -> Result<Name, Failure> {
    let text = name
        .to_str()
        .ok_or_else(|| Failure::usage(format!("the lock name {} is not UTF-8; use another name", name.display())))?;
    Ok(Name::new(text)?)
}

fn tell(voice: Voice, waiting: &Waiting<'_>) {
    match waiting {
        Waiting::Busy(Some(holder)) => drop(voice.detail_aside(format_args!("waiting: held by {holder}"))),
        Waiting::Busy(None) => drop(voice.detail_aside("waiting: another holds it")),
        Waiting::Outage(error) => voice.say(format_args!("the store does not serve us, {error}; waiting goes on")),
        Waiting::Recovered => voice.say("the store serves us again"),
        _ => {}
    }
}

/// What a holder is told about each of its leases.
pub(crate) fn variables(guards: &Guards) -> Variables {
    let now = SystemTime::now();
    let lease = |guard: &Guard| {
        let since_epoch = (now + guard.lease_remaining()).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Lease {
            name: guard.name().to_string(),
            token: guard.token().to_string(),
            fence: guard.fence().map(|fence| fence.to_string()),
            expires_at: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
        }
    };
    Variables(guards.iter().map(lease).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_gets_at_most_a_third_of_the_ttl_to_stop() {
        let s = Duration::from_secs;
        assert_eq!(kill_after(s(30), None, None).unwrap(), s(5));
        assert_eq!(kill_after(s(3), None, Some(s(2))).unwrap(), s(1));
        assert_eq!(kill_after(s(30), None, Some(s(2))).unwrap(), s(2));
        assert_eq!(kill_after(s(30), Some(s(10)), None).unwrap(), s(10));
        assert_eq!(kill_after(s(30), Some(s(11)), None).unwrap_err().code, 64);
    }
}
