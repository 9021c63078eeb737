//! Several names at once, all or nothing.

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
/// First it asks for all names at once, which the store grants all or none in one step. Where it does not, or cannot, they are taken one
/// after another in the order of their names: whoever waits for one holds smaller ones only, so nobody waits in a circle, in whatever
/// order names were said.
///
/// While a later name is waited for, those that are held are renewed: a [fixed lease](Acquire::fixed_lease) and a
/// [longest hold](Acquire::max_hold) begin when all are held. One that is lost meanwhile costs all that is held, and the wait begins
/// anew. A [shortest hold](Acquire::min_hold) counts for each name from its own request.
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
    /// One name, to which others can be added.
    fn from(Acquire { name, settings }: Acquire) -> Self {
        Self { names: name.map(|name| BTreeSet::from([name])), settings }
    }
}

impl AcquireAll {
    /// Takes `name` as well. One that was said before is taken once.
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
    /// As [`Acquire::check`]. A value that was [given](Acquire::token) is no owner of several names.
    pub fn check(&self) -> Result<(), Error> {
        let names = self.names.as_ref().map_err(Error::clone)?;
        self.settings.check(names)?;
        if names.len() > 1 && self.settings.token.is_some() {
            let what = "a supplied owner token cannot own several names: taking and releasing them may have to be repeated";
            return Err(Error::invalid(what).with_hint("leave the token out, or take the names one by one"));
        }
        Ok(())
    }

    /// Takes all of the names if nobody has any of them.
    ///
    /// Of those who try for the same names at once, one gets them.
    ///
    /// # Errors
    /// As [`Acquire::try_acquire`].
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: what it may have taken is released in the background.
    pub async fn try_acquire(mut self) -> Result<Option<Guards>, Error> {
        self.settings.wait = Some(Duration::ZERO);
        unless_busy(self.acquire().await)
    }

    /// Takes all of the names, waiting for them as long as [`wait`](Acquire::wait) says in all.
    ///
    /// # Errors
    /// As [`Acquire::acquire`], about the first name that was not to be had; nothing is held then.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: what it may have taken is released in the background.
    ///
    /// # Round trips
    /// One where all are free. Else one more for each name that is free when its turn comes.
    pub async fn acquire(self) -> Result<Guards, Error> {
        self.check()?;
        let (settings, names) = (&self.settings, Vec::from_iter(self.names?));
        let core = &settings.core;
        core.session.watchdog.ensure_running();
        let mut key = settings.key()?;
        // The longest hold of several counts from when all are held.
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

/// Several names on their way into one hand.
struct Taking<'a> {
    settings: &'a Settings,
    key: AcquireKey,
    /// Sorted.
    names: Vec<Name>,
    started: BootTime,
}

impl Taking<'_> {
    /// All in one step. None where there is nothing to gain by that, or where it did not get them: then they are taken in order.
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
            // With no time left, what an unheard try may have taken would be met as another's.
            Err(error) if !error.is_transient() || self.is_over() => return Err(error),
            // Whatever may pass is waited for when it is a name's turn.
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
            claim_release(guards).await;
            return Ok(None);
        }
        Ok(Some(guards))
    }

    /// The time to wait has passed.
    fn is_over(&self) -> bool {
        let waited = self.settings.core.session.clock.now().since(self.started);
        self.settings.wait.is_some_and(|wait| waited >= wait)
    }

    /// One after another.
    async fn in_order(&self) -> Result<Vec<Guard>, Error> {
        let mut held: Vec<Guard> = Vec::with_capacity(self.names.len());
        loop {
            let Some(name) = self.names.get(held.len()) else {
                self.prolong(&held).await;
                if held.iter().all(|guard| guard.end_reason().is_none()) {
                    return Ok(held);
                }
                claim_release(std::mem::take(&mut held)).await;
                continue;
            };
            tokio::select! {
                biased;
                () = self.ended(&held) => claim_release(std::mem::take(&mut held)).await,
                next = self.one(name) => match next {
                    Ok(guard) => held.push(guard),
                    Err(error) => {
                        claim_release(held).await;
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
        // A name that comes back unused is free at once.
        guard.keep_idle();
        Ok(guard)
    }

    /// Resolves when one of `held` has ended. Until then they are kept, whether or not they renew themselves.
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

    /// Has fixed leases last for their ttl from now.
    async fn prolong(&self, held: &[Guard]) {
        if !self.key.terms.renews && self.names.len() > 1 {
            // Who could not be prolonged is lost by its own clock, and told so.
            join_all(held.iter().map(|guard| guard.extend(self.key.terms.ttl))).await;
        }
    }
}

/// Releases names that nothing was done with.
async fn claim_release(guards: Vec<Guard>) {
    // What stays unknown is repeated in the background.
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

/// Proof of several tenures, for as long as [`state`](Guards::state) does not say otherwise: a [`Guard`] for each name.
///
/// Work that needs all of the names ends with the first that is lost. Dropping it gives all up in the background.
#[derive(Debug)]
#[must_use = "guards that are dropped at once give the locks up at once"]
pub struct Guards {
    /// Sorted by name.
    guards: Vec<Guard>,
}

impl Guards {
    /// The guard of each name, sorted by name.
    pub fn iter(&self) -> std::slice::Iter<'_, Guard> {
        self.guards.iter()
    }

    /// The number to hand to each guarded resource, sorted by name; `None` where the store does not count.
    pub fn fences(&self) -> impl Iterator<Item = (&Name, Option<Fence>)> {
        self.iter().map(|guard| (guard.name(), guard.fence()))
    }

    /// The state of the one that stands worst. No round trip.
    pub fn state(&self) -> State {
        self.iter().map(Guard::state).max().unwrap_or(State::Held)
    }

    /// Which one ended first in the order of names, and why; `None` while all stand.
    pub fn end_reason(&self) -> Option<(&Name, EndReason)> {
        self.iter().find_map(|guard| Some((guard.name(), guard.end_reason()?)))
    }

    /// Resolves when the first of them ends, with its name and the reason.
    pub fn lost(&self) -> impl Future<Output = (Name, EndReason)> + Send + use<> {
        first_lost(&self.guards)
    }

    /// How long all of them can be believed from now if no renewal is answered.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// How long until the first lease ends at the store if no renewal is answered.
    pub fn lease_remaining(&self) -> Duration {
        self.iter().map(Guard::lease_remaining).min().unwrap_or_default()
    }

    /// Runs `work` for as long as all tenures stand.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) the moment any of them ends; see [`Guard::run`]. The others go on until they are given up.
    ///
    /// # Cancel safety
    /// `work` is dropped with the future, and the guards go on.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        run_until(self.lost(), || self.iter().try_for_each(Guard::check), work).await
    }

    /// Takes the guard of `name` out, to be given up on its own.
    pub fn take(&mut self, name: &Name) -> Option<Guard> {
        let at = self.iter().position(|guard| guard.name() == name)?;
        Some(self.guards.remove(at))
    }

    /// Gives all names up, at once, and says how each release went.
    ///
    /// # Cancel safety
    /// A dropped future leaves the releases to the background.
    pub async fn release(self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        join_all(self.guards.into_iter().map(|guard| async move { (guard.name().clone(), guard.release().await) })).await
    }
}

impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    /// The guards on their own.
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
