//! Acquisition of several names, all or nothing.

use std::collections::BTreeSet;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::acquire::{Acquire, settings, unless_busy};
use super::guard::run_until;
use crate::lease::{EndReason, ReleaseOutcome, State};
use crate::wait::{AcquireKey, Attempt, Guard, Settings, Wait};
use crate::{BootTime, Error, ErrorKind, Fence, Name};

/// An acquisition of several names, all or nothing; see [`Acquire::and`].
///
/// The first attempt asks the store for all names in one atomic step. If that fails, or the store
/// cannot do it, the names are taken one after another in their order. A waiter then holds smaller
/// names only, so clients that list the names in different orders cannot deadlock.
///
/// Held names are renewed while a later one is waited for. A [fixed lease](Acquire::fixed_lease)
/// and a [longest hold](Acquire::max_hold) begin when all are held. If one is lost meanwhile, all
/// are released and the wait begins anew. A [shortest hold](Acquire::min_hold) counts for each name
/// from its own request.
#[derive(Debug)]
#[must_use = "nothing is acquired before acquire() or try_acquire() is awaited"]
pub struct AcquireAll {
    pub(crate) names: Result<BTreeSet<Name>, Error>,
    pub(crate) settings: Settings,
}

settings!(AcquireAll, settings);

impl Acquire {
    /// Takes `name` as well, with the same settings: all or nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let locks = tenure::Locker::new(tenure::MemoryStore::new());
    /// let guards = locks.mutex("account/1").and("account/2").acquire().await?;
    /// guards.run(async { /* move the money */ }).await?;
    /// # drop(guards); Ok(()) }
    /// ```
    pub fn and(self, name: impl AsRef<str>) -> AcquireAll {
        AcquireAll::from(self).and(name)
    }
}

impl From<Acquire> for AcquireAll {
    /// Starts with one name, to which others can be added.
    fn from(Acquire { name, settings }: Acquire) -> Self {
        Self { names: name.map(|name| BTreeSet::from([name])), settings }
    }
}

impl AcquireAll {
    /// Takes `name` as well. A name that is listed twice is taken once.
    pub fn and(mut self, name: impl AsRef<str>) -> Self {
        self.names = self.names.and_then(|mut names| {
            names.insert(Name::new(name)?);
            Ok(names)
        });
        self
    }

    /// Checks the settings without taking anything.
    ///
    /// # Errors
    /// As [`Acquire::check`]. A [supplied](Acquire::token) owner token cannot own several names.
    pub fn check(&self) -> Result<(), Error> {
        let names = self.names.as_ref().map_err(Error::clone)?;
        self.settings.check(names)?;
        if names.len() > 1 && self.settings.token.is_some() {
            let what = "a supplied owner token cannot own several names: taking and releasing them may have to be repeated";
            return Err(Error::invalid(what).with_hint("leave the token out, or take the names one by one"));
        }
        Ok(())
    }

    /// Takes all of the names if all are free, and returns `None` if another client holds any of
    /// them.
    ///
    /// Of several clients that try the same names at once, one gets them.
    ///
    /// # Errors
    /// As [`Acquire::try_acquire`].
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: the watchdog releases what it may have taken.
    pub async fn try_acquire(mut self) -> Result<Option<Guards>, Error> {
        self.settings.wait = Some(Duration::ZERO);
        unless_busy(self.acquire().await)
    }

    /// Takes all of the names, and waits as long as [`wait`](Acquire::wait) says for all of them
    /// together.
    ///
    /// # Errors
    /// As [`Acquire::acquire`], about the first name that could not be taken. Nothing is held then.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: the watchdog releases what it may have taken.
    ///
    /// # Round trips
    /// One if all are free. Else one more for each name that is free when its turn comes.
    pub async fn acquire(self) -> Result<Guards, Error> {
        self.check()?;
        let (settings, names) = (&self.settings, Vec::from_iter(self.names?));
        let core = &settings.core;
        core.session.watchdog.ensure_running();
        let mut key = settings.key()?;
        // The longest hold of several names counts from the moment when all are held.
        let max_hold = if names.len() > 1 { key.terms.max_hold.take() } else { None };
        let taking = Taking { settings, key, names, started: core.session.clock.now() };
        let guards = match taking.at_once().await? {
            Some(guards) => guards,
            None => taking.in_order().await?,
        };
        for guard in &guards {
            guard.begin(max_hold);
        }
        Ok(Guards { guards })
    }
}

/// An acquisition of several names that has begun.
struct Taking<'a> {
    settings: &'a Settings,
    key: AcquireKey,
    /// Sorted.
    names: Vec<Name>,
    started: BootTime,
}

impl Taking<'_> {
    /// Takes all names in one step. `None` if that has no use or did not succeed: then they are
    /// taken in order.
    async fn at_once(&self) -> Result<Option<Vec<Guard>>, Error> {
        let Self { settings, key, names, .. } = self;
        let core = &settings.core;
        if names.len() < 2 || names.iter().any(|name| core.queues.is_contended(name, self.started)) {
            return Ok(None);
        }
        let attempts = names.iter().map(|name| settings.attempt(name, key));
        let mut attempts = attempts.collect::<Result<Vec<_>, _>>()?;
        let sent_at = core.session.clock.now();
        let grants = match Attempt::send_all(&mut attempts).await {
            Ok(Some(grants)) => grants,
            // With no time left, a lease that an unanswered attempt may have left would count as
            // another client's.
            Err(error) if !error.is_transient() || self.is_over() => return Err(error),
            // What may pass is waited for when the name's turn comes.
            Ok(None) | Err(_) => return Ok(None),
        };
        let guards: Vec<Guard> = attempts
            .iter_mut()
            .zip(grants)
            .filter_map(|(attempt, grant)| attempt.granted(key.terms, &key.label, sent_at, &grant))
            .map(|held| Guard::new(core, held))
            .collect();
        guards.iter().for_each(Guard::keep_idle);
        if guards.len() < names.len() {
            release_unused(guards).await;
            return Ok(None);
        }
        Ok(Some(guards))
    }

    /// Whether the time to wait has passed.
    fn is_over(&self) -> bool {
        let waited = self.settings.core.session.clock.now().since(self.started);
        self.settings.wait.is_some_and(|wait| waited >= wait)
    }

    /// Takes the names one after another.
    async fn in_order(&self) -> Result<Vec<Guard>, Error> {
        let mut held: Vec<Guard> = Vec::with_capacity(self.names.len());
        loop {
            let Some(name) = self.names.get(held.len()) else {
                self.prolong(&held).await;
                if held.iter().all(|guard| guard.end_reason().is_none()) {
                    return Ok(held);
                }
                release_unused(std::mem::take(&mut held)).await;
                continue;
            };
            tokio::select! {
                biased;
                () = self.ended(&held) => release_unused(std::mem::take(&mut held)).await,
                next = self.one(name) => match next {
                    Ok(guard) => held.push(guard),
                    Err(error) => {
                        release_unused(held).await;
                        return Err(error);
                    }
                },
            }
        }
    }

    async fn one(&self, name: &Name) -> Result<Guard, Error> {
        let mut one = Wait::new(self.settings, name.clone(), self.key.clone()).since(self.started);
        let guard = one.guard().await.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => error,
            _ if self.names.len() == 1 => error,
            _ => error.context(format_args!("{name:?}")),
        })?;
        // A name that comes back unused is free at once, without a shortest hold.
        guard.keep_idle();
        Ok(guard)
    }

    /// Resolves when one of `held` has ended. Renews them until then, fixed leases too.
    async fn ended(&self, held: &[Guard]) {
        let clock = &self.settings.core.session.clock;
        let mut lost = pin!(first_lost(held));
        loop {
            tokio::select! {
                biased;
                _ = &mut lost => return,
                () = clock.nap_until(clock.now() + self.key.terms.ttl / 3) => {}
            }
            tokio::select! {
                biased;
                _ = &mut lost => return,
                () = self.prolong(held) => {}
            }
        }
    }

    /// Renews fixed leases for their ttl from now.
    async fn prolong(&self, held: &[Guard]) {
        if !self.key.terms.renews && self.names.len() > 1 {
            // A lease that was not renewed ends by its own clock, and its guard reports that.
            join_all(held.iter().map(|guard| guard.extend(self.key.terms.ttl))).await;
        }
    }
}

/// Releases leases under which no work has begun.
async fn release_unused(guards: Vec<Guard>) {
    // A release with an unknown outcome is repeated in the background.
    join_all(guards.into_iter().map(Guard::release)).await;
}

/// Resolves when the first of `guards` has ended.
fn first_lost(guards: &[Guard]) -> impl Future<Output = (Name, EndReason)> + Send + use<> {
    let each = guards.iter().map(|guard| {
        let (name, lost) = (guard.name().clone(), guard.lost());
        Box::pin(async move { (name, lost.await) })
    });
    let first = if guards.is_empty() { None } else { Some(select_all(each)) };
    async move {
        match first {
            Some(first) => first.await.0,
            None => pending().await,
        }
    }
}

/// Proof that several names are held, until [`state`](Guards::state) says otherwise: a [`Guard`]
/// for each name.
///
/// Work that needs all of the names ends with the first that is lost. A drop releases all in the
/// background.
#[derive(Debug)]
#[must_use = "guards that are dropped at once give the locks up at once"]
pub struct Guards {
    /// Sorted by name.
    guards: Vec<Guard>,
}

impl Guards {
    /// Returns the guard of each name, sorted by name.
    pub fn iter(&self) -> std::slice::Iter<'_, Guard> {
        self.guards.iter()
    }

    /// Fencing token of each name, sorted by name; `None` if the store does not count grants.
    pub fn fences(&self) -> impl Iterator<Item = (&Name, Option<Fence>)> {
        self.iter().map(|guard| (guard.name(), guard.fence()))
    }

    /// State of the guard that stands worst. No round trip.
    pub fn state(&self) -> State {
        self.iter().map(Guard::state).max().unwrap_or(State::Held)
    }

    /// First ended guard in the order of names, and the reason; `None` while all stand.
    pub fn end_reason(&self) -> Option<(&Name, EndReason)> {
        self.iter().find_map(|guard| Some((guard.name(), guard.end_reason()?)))
    }

    /// Resolves when the first guard ends, with its name and the reason.
    pub fn lost(&self) -> impl Future<Output = (Name, EndReason)> + Send + use<> {
        first_lost(&self.guards)
    }

    /// Time for which the holder may go on with all of them if no renewal is answered.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Time until the first lease ends at the store if no renewal is answered.
    pub fn lease_remaining(&self) -> Duration {
        self.iter().map(Guard::lease_remaining).min().unwrap_or_default()
    }

    /// Runs `work` for as long as all leases stand.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) as soon as any of them ends; see [`Guard::run`]. The others go on
    /// until they are released.
    ///
    /// # Cancel safety
    /// `work` is dropped with the future. The guards go on.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        run_until(self.lost(), || self.iter().try_for_each(Guard::check), work).await
    }

    /// Takes the guard of `name` out, to be released on its own.
    pub fn take(&mut self, name: &Name) -> Option<Guard> {
        let at = self.iter().position(|guard| guard.name() == name)?;
        Some(self.guards.remove(at))
    }

    /// Releases all names at once, and returns how each release went.
    ///
    /// # Cancel safety
    /// A dropped future leaves the releases to the background.
    pub async fn release(self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        join_all(self.guards.into_iter().map(|guard| async move { (guard.name().clone(), guard.release().await) })).await
    }

    /// Releases all names as [`release`](Guards::release) does, because no work has begun: without a
    /// [shortest hold](crate::Acquire::min_hold) and without a [pause](crate::Acquire::linger).
    ///
    /// # Cancel safety
    /// A dropped future leaves the releases to the background.
    pub async fn release_unused(self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        self.iter().for_each(Guard::keep_idle);
        self.release().await
    }
}

impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    /// Returns the guards, to be used on their own.
    fn into_iter(self) -> Self::IntoIter {
        self.guards.into_iter()
    }
}

impl<'a> IntoIterator for &'a Guards {
    type Item = &'a Guard;
    type IntoIter = std::slice::Iter<'a, Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
