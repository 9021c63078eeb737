//! Taking a lock as the flags say, obeying signals meanwhile.

use std::ffi::OsStr;
use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{
    AcquireAll, BootTime, Error, ErrorKind, Guards, Holder, Locker, LockerBuilder, Name, Owner, default_label, format_duration,
};
use tokio::time::{sleep, timeout};

use crate::args::Taking;
use crate::config::{Settings, TTL};
use crate::exit::{Failure, UNREACHABLE, about};
use crate::give_up::settle;
use crate::names::Names;
use crate::observer::Observer;
use crate::outage::Outage;
use crate::signals::Signals;
use crate::{min_hold, nested, store};

/// Time that the end of a killed process group may take on a busy machine.
const REAPING: Duration = Duration::from_millis(100);
/// For how long a store that gives no answer is asked again where no `--wait` says so.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// The pause before a store that gave no answer is asked again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How long a wait goes on before a line says for whom.
const SILENCE: Duration = Duration::from_secs(1);

/// How a lock is to be taken.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) names: Names,
    pub(crate) ttl: Duration,
    /// Time for work to stop, of the end of the lease; `None` if nobody works on it here.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) renews: bool,
    /// It waits for ever, whatever the settings say.
    pub(crate) is_patient: bool,
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
        Ok(Self { names, ttl, kill_after: None, renews: false, is_patient: false, taking, settings })
    }

    /// Nobody works under it here, and nobody keeps it.
    fn is_left_to_others(&self) -> bool {
        self.kill_after.is_none() && !self.renews
    }

    /// Opens the store and takes the lock, unless a signal ends the wait.
    pub(crate) async fn take(&self, signals: &mut Signals) -> Result<(Locker, Guards), Failure> {
        let started = BootTime::now();
        let locker = self.locker_unless(signals).await?;
        let guards = self.take_on(&locker, started, signals).await?;
        Ok((locker, guards))
    }

    /// Opens the store, unless a signal ends that.
    pub(crate) async fn locker_unless(&self, signals: &mut Signals) -> Result<Locker, Failure> {
        tokio::select! {
            biased;
            signal = self.asked(signals) => Err(self.interrupted(signal)),
            locker = self.locker(BootTime::now()) => locker,
        }
    }

    /// Opens the store and waits for its first answer.
    pub(crate) async fn locker(&self, started: BootTime) -> Result<Locker, Failure> {
        store::tell_which(self.settings).await;
        let builder = self.contact(started).await?.ttl(self.ttl).safety_margin(self.safety_margin());
        let builder = match self.label() {
            Some(label) => builder.label(valid(&label)?),
            None => builder,
        };
        let locker = builder.build().map_err(|error| self.bad_ttl(error.into()))?;
        if self.is_left_to_others() && locker.store().features().process_bound {
            let what = "the lock would end with this command: in this store a lease is bound to the process that takes it";
            return Err(Failure::usage(format!("{what}; use --watch-pid, or tenure run")));
        }
        nested::check(&locker, &self.names, self.taking.kind.share()).await?;
        Ok(locker)
    }

    /// Opens the store. One that gives no answer is asked again: at boot, a command may come before
    /// its server.
    async fn contact(&self, started: BootTime) -> Result<LockerBuilder, Failure> {
        let (mut pause, mut outage, voice) = (PAUSE.0, Outage::default(), self.settings.voice);
        let mut limit = if self.is_patient { None } else { Some(self.wait().unwrap_or(FIRST_CONTACT)) };
        let options = store::prepare(self.settings, limit != Some(Duration::ZERO))?;
        let left = |limit: Option<Duration>| limit.map(|limit| limit.saturating_sub(BootTime::now().since(started)));
        loop {
            // One operation longer than the wait, and as long as an answer may take.
            let patience = left(limit).filter(|left| !left.is_zero()).unwrap_or(FIRST_CONTACT) + PAUSE.1;
            let opened = match timeout(patience, store::open(self.settings, options.clone())).await {
                Ok(Err(failure)) if failure.code == UNREACHABLE => failure,
                Ok(opened) => {
                    if opened.is_ok() && outage.is_over() {
                        drop(voice.say_aside("the store answers now"));
                    }
                    return opened;
                }
                Err(_) => Failure::new(UNREACHABLE, format!("the store gave no answer within {}", format_duration(patience))),
            };
            if opened.is_answer && self.wait().is_none() {
                // The store is there. Its name was no mistake.
                limit = None;
            }
            let left = left(limit);
            if left.is_some_and(|left| left.is_zero()) {
                return Err(opened);
            }
            let why = opened.text.unwrap_or_default();
            if let Some(lasting) = outage.failed(&why, BootTime::now()) {
                let trying = left.map_or_else(
                    || format!("trying again{lasting} now"),
                    |left| format!("trying again for {}", format_duration(left)),
                );
                drop(voice.say_aside(format_args!("{why}; {trying}")));
            }
            sleep(left.map_or(pause, |left| pause.min(left))).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Takes the lock in a store that is open, unless a signal ends the wait that began at
    /// `started`.
    pub(crate) async fn take_on(&self, locker: &Locker, started: BootTime, signals: &mut Signals) -> Result<Guards, Failure> {
        let observer = Observer::new(&self.names, self.wait(), self.settings.voice);
        let acquire = self.acquire(locker, started, &observer)?;
        let ended = {
            let (mut acquiring, mut silence, mut told) = (pin!(acquire.acquire()), pin!(sleep(SILENCE)), false);
            loop {
                tokio::select! {
                    biased;
                    signal = self.asked(signals) => break Err(self.interrupted(signal)),
                    guards = &mut acquiring => match guards {
                        Ok(guards) => break Ok(guards),
                        Err(error) => break Err(self.not_acquired(locker, error).await),
                    },
                    () = &mut silence => {
                        // A store that is slow to answer has not said yet for whom.
                        told |= !told && observer.say_who_holds();
                        silence.set(sleep(SILENCE));
                    }
                }
            }
        };
        let Err(failure) = ended else { return ended };
        // The dropped wait may have taken the lock. It is released before we exit.
        if settle(locker).await {
            return Err(failure);
        }
        Err(failure.and(&format!("{} may stay taken for up to {}", self.names, format_duration(self.first_ttl()))))
    }

    /// How long an acquisition takes the names, if nothing is heard of it again.
    pub(crate) fn first_ttl(&self) -> Duration {
        self.ttl.max(self.taking.min_hold.unwrap_or_default())
    }

    /// The next signal that ends the wait. A candidate goes on if a signal is for its command.
    async fn asked(&self, signals: &mut Signals) -> Signal {
        loop {
            let signal = signals.next().await;
            if !self.is_patient || signals.end_candidate(signal) {
                return signal;
            }
        }
    }

    /// How long to wait; `None` is for ever.
    fn wait(&self) -> Option<Duration> {
        match self {
            Self { is_patient: true, .. } => None,
            Self { taking: Taking { no_wait: true, .. }, .. } => Some(Duration::ZERO),
            _ => self.taking.wait.or(self.settings.wait),
        }
    }

    fn acquire(&self, locker: &Locker, started: BootTime, observer: &Observer) -> Result<AcquireAll, Failure> {
        let Taking { kind, max_hold, min_hold, token, .. } = self.taking;
        let Names(first, others) = &self.names;
        let mut acquire = locker.lock(first, kind.share()).on_wait(observer.callback());
        if let Some(wait) = self.wait() {
            // What is left of it, if the store had to be asked more than once.
            let spent = BootTime::now().since(started);
            acquire = acquire.wait(if spent < PAUSE.0 { wait } else { wait.saturating_sub(spent) });
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

    fn safety_margin(&self) -> Duration {
        self.kill_after.map_or(Duration::ZERO, |kill_after| kill_after + REAPING)
    }

    fn label(&self) -> Option<String> {
        let asked = self.taking.label.as_ref().or(self.settings.label.as_ref());
        let label = if self.taking.no_label { Some(String::new()) } else { asked.cloned() };
        match self.taking.min_hold {
            // A lease that is left to others is released by its token alone.
            Some(min) if self.kill_after.is_none() => Some(min_hold::note(&label.unwrap_or_else(default_label), min)),
            _ => label,
        }
    }

    fn interrupted(&self, signal: Signal) -> Failure {
        let n = signal.as_raw();
        self.settings.voice.detail(format_args!("signal {n} ended the wait for {}", self.names));
        Failure::signalled(n)
    }

    /// A ttl that cannot work, wherever it came from.
    fn bad_ttl(&self, failure: Failure) -> Failure {
        if self.taking.ttl.is_none() { self.settings.bad_ttl(failure) } else { failure }
    }

    async fn not_acquired(&self, locker: &Locker, error: Error) -> Failure {
        if error.kind() == ErrorKind::Mismatch
            && let Some(failure) = self.of_another_kind(locker).await
        {
            return failure;
        }
        if error.kind() != ErrorKind::TimedOut {
            return about(&self.names, error);
        }
        let name = word(&self.names.0);
        let fix = match error.holder() {
            Some(holder) if is_endless_number(holder) => {
                let what = "a number without an expiry may be a counter, an RSemaphore or an RCountDownLatch of Redisson, or the lock \
                     of a client that died";
                format!("{what}: see `tenure show {name}`, and find out who wrote it")
            }
            Some(holder) if holder.ttl.is_none() => {
                format!("see `tenure show {name}`, and if its holder is gone, end it with `tenure break {name}`")
            }
            _ => format!("try again later, or see `tenure show {name}`"),
        };
        self.settings.voice.say(format_args!("{error}; {fix}"));
        Failure::told(self.taking.conflict_exit_code)
    }

    /// Says as which kind of lock a name is in use, if the store tells. The store's error says more of
    /// what may be no lock.
    async fn of_another_kind(&self, locker: &Locker) -> Option<Failure> {
        let ours = self.taking.kind.share();
        for name in self.names.iter() {
            let entry = locker.inspect(name).await.ok().flatten();
            let holder = entry.and_then(|entry| entry.holders.into_iter().next());
            let is_other = |holder: &Holder| holder.share.counted().capacity() != ours.counted().capacity();
            if let Some(holder) = holder.filter(|holder| is_other(holder) && !is_endless_number(holder)) {
                let theirs = format!("{} by {holder}", holder.share.kind());
                return Some(Error::other_kind(name, theirs, ours.kind()).into());
            }
        }
        None
    }
}

/// Whether somebody counts at the name, so far as one sees.
fn is_endless_number(holder: &Holder) -> bool {
    let owner = holder.owner.as_bytes();
    let digits = owner.strip_prefix(b"-").unwrap_or(owner);
    holder.ttl.is_none() && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// A name as it can be typed.
fn word(name: &Name) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:-".contains(c);
    if name.as_str().chars().all(plain) { name.to_string() } else { format!("{name:?}") }
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
            let [asked, most, ttl] = [asked, most, ttl].map(format_duration);
            Err(Failure::usage(format!(
                "--kill-after {asked} is more than {most}, a third of the ttl of {ttl}; raise --ttl or lower it"
            )))
        }
    }
}

#[cfg(test)]
mod tests;
