//! The calls of a store, as changes to the state of a name.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tokio::time::{Instant, sleep_until};

use super::super::record::{Answer, Change};
use super::super::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use super::found::Next;
use super::turns::{Turn, Turns};
use super::{Cas, Found, Repeat, Tried, Write};
use crate::{Entry, Error, Fence, Lease, Name};

/// Longest time of a call: a timer cannot be set for ever.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// A [`Store`] over compare-and-swap. See [the module](super).
#[derive(Debug)]
pub struct CasStore<C> {
    cas: C,
    /// Acquisitions of this process, of which each would make the others read again.
    taking: Turns,
    /// Renewals and releases. None of them waits for one that takes.
    keeping: Turns,
}

/// The terms of a call.
struct Terms<'a, V> {
    /// How the name was a moment ago, if that is known.
    found: Option<Found<V>>,
    /// Without one, the call waits for its turn once another was faster.
    turn: Option<Turn<'a>>,
    repeat: Repeat,
    end: Instant,
}

/// A change that was written.
struct Written<T> {
    change: Change<T>,
    /// The largest number of a grant behind it.
    counter: Option<u64>,
    /// The waiters of this process can be notified.
    hears: bool,
    /// It was written once before, or may have been.
    repeated: bool,
}

impl<C: Cas> CasStore<C> {
    /// Makes a store of what a server keeps.
    pub fn new(cas: C) -> Self {
        Self { cas, taking: Turns::default(), keeping: Turns::default() }
    }

    fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl).min(LONGEST)
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        self.cas.check(&request.name)?;
        self.cas.check_request(request)
    }

    /// Applies `work` to the state of a name and writes the result, until nobody else was faster. `kept`
    /// looks at the state that the write has left, and returns whether it is as it should be.
    async fn change<'a, T: Send>(
        &'a self,
        name: &'a Name,
        terms: Terms<'a, C::Version>,
        mut work: impl FnMut(&mut Found<C::Version>, &str, Next<'_>) -> Result<Change<T>, Error> + Send,
        kept: impl Fn(&mut T, &Found<C::Version>) -> Result<bool, Error> + Send + Sync,
    ) -> Result<Written<T>, Error> {
        let Terms { mut found, mut turn, mut repeat, end } = terms;
        let (mut overtaken, mut repeated) = (0, false);
        loop {
            let told = |error: Error| if repeated { error.maybe_applied() } else { error };
            let mut seen = match found.take() {
                Some(found) => found,
                None => self.read(name, end).await.map_err(told)?,
            };
            let wake = self.cas.wake();
            let (first, floor) = (seen.counter, seen.floor);
            let (mut counter, mut granted) = (first, false);
            let mut next = || {
                (counter, granted) = (number(floor, counter), true);
                counter
            };
            let mut change = work(&mut seen, wake.as_deref().unwrap_or_default(), &mut next).map_err(told)?;
            check_counter(counter)?;
            let write = Write { name, found: &seen, counter, granted, served: &change.served };
            let outcome = self.cas.write(&[write], repeat, end).await.map_err(told)?;
            turn.iter().for_each(Turn::answered);
            if outcome.unheard {
                // It is sent again once.
                (repeated, repeat) = (true, Repeat::Never);
            }
            if !outcome.all {
                found = outcome.found;
            } else if outcome.found.map_or(Ok(true), |after| kept(&mut change.answer, &after))? {
                self.publish(name, &change);
                return Ok(Written { change, counter: floor.map(|_| counter), hears: wake.is_some(), repeated });
            } else {
                // The name is not as it should be, but some of what was written may be left.
                repeated = true;
            }
            // It may hold what the next read waits for.
            drop(seen);
            let told = |error: Error| if repeated { error.maybe_applied() } else { error };
            overtaken += 1;
            if turn.is_none() {
                let mine = self.keeping.take(name, end).await.map_err(told)?;
                found = found.filter(|_| !mine.waited);
                turn = Some(mine);
            } else if found.is_none() && !pause(overtaken, end).await {
                return Err(told(again_and_again()));
            }
        }
    }

    async fn read(&self, name: &Name, end: Instant) -> Result<Found<C::Version>, Error> {
        let found = self.cas.read(&[name], end).await?.pop();
        found.ok_or_else(|| Error::unavailable(format!("{} did not say how {name:?} is", self.cas)))
    }

    /// Notifies the watchers of this process. The write has notified those of others.
    fn publish<T>(&self, name: &Name, change: &Change<T>) {
        if let Some(listeners) = self.cas.listeners() {
            listeners.publish(name, change, |_, _| ());
        }
    }

    /// Renews leases of one name.
    async fn renew_name(&self, name: &Name, leases: &[&Lease], end: Instant) -> Result<Vec<RenewReply>, Error> {
        let kept = |replies: &mut Vec<RenewReply>, after: &Found<C::Version>| {
            let lasts = |lease: &Lease| after.held(&lease.owner).is_some_and(|held| after.rest(held) >= lease.ttl);
            Ok(leases.iter().zip(replies).all(|(lease, reply)| *reply == RenewReply::Gone || lasts(lease)))
        };
        let terms = Terms { found: None, turn: None, repeat: Repeat::Freely, end };
        Ok(self.change(name, terms, |found, _, _| Ok(found.renew(leases)), kept).await?.change.answer)
    }

    /// Tries once to take several names in one step. `None` if another client was faster; no grants if one of
    /// them is busy.
    async fn take_all(&self, requests: &[Request], names: &[&Name], end: Instant) -> Result<Option<Option<Vec<Grant>>>, Error> {
        let mut found = self.cas.read(names, end).await?;
        let (mut changes, mut last) = (Vec::with_capacity(requests.len()), 0);
        // Each name is looked at, even after a busy one: a name of another kind is an error.
        for (request, seen) in requests.iter().zip(&mut found) {
            let (mut counter, floor) = (seen.counter, seen.floor);
            // The fences of one step differ, so that each says which name it is for.
            let mut next = || {
                counter = number(floor, counter.max(last));
                counter
            };
            let Some(change) = seen.acquire(request, "", &mut next)?.granted() else { continue };
            check_counter(counter)?;
            last = counter;
            changes.push((change, counter));
        }
        if changes.len() < requests.len() {
            return Ok(Some(None));
        }
        let mut writes = Vec::with_capacity(changes.len());
        for ((name, found), (change, counter)) in names.iter().zip(&found).zip(&changes) {
            writes.push(Write { name, found, counter: *counter, granted: true, served: &change.served });
        }
        if !self.cas.write(&writes, Repeat::Settled, end).await?.all {
            return Ok(None);
        }
        for (name, (change, _)) in names.iter().zip(&changes) {
            self.publish(name, change);
        }
        Ok(Some(Some(changes.into_iter().map(|(change, _)| change.answer).collect())))
    }
}

#[async_trait]
impl<C: Cas> Store for CasStore<C> {
    fn features(&self) -> Features {
        self.cas.features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.check(request)?;
        let (end, mut found) = (self.end(request.ttl), None);
        let turn = self.taking.take(&request.name, end).await?;
        if request.from.is_none() && request.enqueue != Enqueue::Heartbeat {
            match self.cas.take(request, end).await? {
                Tried::Done(grant) => {
                    turn.answered();
                    if let Some(listeners) = self.cas.listeners() {
                        listeners.taken(&request.name);
                    }
                    return Ok(AcquireReply::Granted(grant));
                }
                Tried::Other(seen) => found = seen,
            }
        }
        let terms = Terms { found, turn: Some(turn), repeat: Repeat::Settled, end };
        let acquire = |found: &mut Found<_>, wake: &str, next: Next<'_>| found.acquire(request, wake, next);
        let kept = |answer: &mut Answer, after: &Found<_>| {
            let Answer::Granted(grant) = answer else { return Ok(true) };
            // It may be gone again: then another client was faster. Or it ends too soon, by the clock that the server has now.
            let Some(held) = after.held(&request.owner) else { return Ok(false) };
            let fence = Fence::from_counter(held.counter).ok_or_else(|| used_up().maybe_applied())?;
            let rest = after.rest(held);
            // A supplied token is not written twice. It is granted what the server keeps.
            *grant = Grant::new(Some(fence), request.ttl.min(rest));
            Ok(rest >= request.ttl || !request.generated)
        };
        let Written { change, counter, hears, repeated } = self.change(&request.name, terms, acquire, kept).await?;
        match change.answer {
            Answer::Granted(grant) => Ok(AcquireReply::Granted(grant)),
            Answer::Busy { holder: Some(holder), .. } if repeated && !request.generated && holder.owner == request.owner => {
                let what = "the first try had no answer, and the supplied owner token is in place: this client's or another's";
                Err(Error::unreachable(what).maybe_applied())
            }
            Answer::Busy { position, mut holder } => {
                if let Some(holder) = &mut holder {
                    self.cas.show(holder);
                }
                let busy = Busy::new(Duration::ZERO).with_position(position).with_grant_seq(counter).with_holder(holder);
                Ok(AcquireReply::Busy(self.cas.busy(busy, hears)))
            }
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(ttl) = requests.iter().map(|request| request.ttl).min() else { return Ok(Some(Vec::new())) };
        if !self.cas.writes_several() {
            return Ok(None);
        }
        requests.iter().try_for_each(|request| self.check(request))?;
        let (end, names): (_, Vec<&Name>) = (self.end(ttl), requests.iter().map(|request| &request.name).collect());
        for overtaken in 0.. {
            if let Some(taken) = self.take_all(requests, &names, end).await? {
                return Ok(taken);
            }
            if !pause(overtaken, end).await {
                break;
            }
        }
        Err(again_and_again())
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        // A server that is silent must not cost the others their answers, for which the caller waits until its limit.
        let end = Instant::now() + self.features().limit(shortest).min(LONGEST).mul_f64(0.9);
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = vec![None; leases.len()];
        match self.cas.renew(leases, end).await {
            Ok(renewed) => renewed.into_iter().for_each(|(at, answer)| answers[at] = Some(answer)),
            Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
        }
        // Leases of one name are changes to one record.
        let mut left: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (at, lease) in leases.iter().enumerate().filter(|(at, _)| answers[*at].is_none()) {
            left.entry(&lease.name).or_default().push(at);
        }
        let renewals = left.into_iter().map(|(name, indexes)| async move {
            let of_name: Vec<&Lease> = indexes.iter().map(|at| &leases[*at]).collect();
            (self.renew_name(name, &of_name, end).await, indexes)
        });
        for (answer, indexes) in join_all(renewals).await {
            for (nth, at) in indexes.into_iter().enumerate() {
                answers[at] = Some(answer.as_ref().map(|answers| answers[nth]).map_err(Error::clone));
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(again_and_again()))).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.cas.check(&lease.name)?;
        let (end, mut found) = (self.end(lease.ttl), None);
        // A linger begins now, and not when the name was written.
        if linger.is_zero() {
            match self.cas.free(lease, end).await? {
                Tried::Done(()) => {
                    if let Some(listeners) = self.cas.listeners() {
                        listeners.notify(&lease.name, None, &Notice::Changed);
                    }
                    return Ok(ReleaseReply::Released);
                }
                Tried::Other(seen) => found = seen,
            }
        }
        // Between two releases by a supplied token, another client may take the name with it.
        let repeat = if lease.owner.is_generated() { Repeat::Freely } else { Repeat::Never };
        let terms = Terms { found, turn: None, repeat, end };
        let release = |found: &mut Found<_>, _: &str, next: Next<'_>| Ok(found.release(lease, linger, next));
        let written = self.change(&lease.name, terms, release, |_, _| Ok(true)).await?;
        match written.change.answer {
            // The first one may have released it, or it was lost before: nobody knows.
            ReleaseReply::NotHeld if written.repeated => {
                Err(Error::unreachable("the first release had no answer, and the second found nothing").maybe_applied())
            }
            answer => Ok(answer),
        }
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.cas.watch(request, self.end(request.ttl)).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let end = self.end(Duration::MAX);
        let Some(name) = name else { return self.cas.list(end).await };
        self.cas.check(name)?;
        let found = self.read(name, end).await?;
        found.refusal.map_or(Ok(()), Err)?;
        let mut entry = found.record.inspect(name, found.now);
        entry.iter_mut().flat_map(|entry| &mut entry.holders).for_each(|holder| self.cas.show(holder));
        Ok(entry.into_iter().collect())
    }
}

impl<C: Cas> fmt::Display for CasStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cas, f)
    }
}

/// Number of the grant after the one with number `last`.
fn number(floor: Option<u64>, last: u64) -> u64 {
    floor.map_or(0, |floor| last.saturating_add(1).max(floor))
}

fn check_counter(counter: u64) -> Result<(), Error> {
    if counter <= Fence::MAX_COUNTER { Ok(()) } else { Err(used_up()) }
}

/// The error of a name whose grants have no more numbers.
pub fn used_up() -> Error {
    let what = "the fences of this name are used up";
    Error::refused(what).with_hint("use another name, and make sure that the server's clock is right")
}

/// The error of a call whose time was over before nobody else was faster.
pub fn again_and_again() -> Error {
    Error::overloaded("others changed the name again and again")
}

/// Lets others go on before a name is read again, for longer each time. Returns false if the time is over by then.
async fn pause(overtaken: u32, end: Instant) -> bool {
    let most = Duration::from_micros(100 << overtaken.min(7));
    let until = Instant::now() + most.mul_f64(fastrand::f64());
    if until < end {
        sleep_until(until).await;
    }
    until < end
}
