//! The item of a name as it was read, and the command that writes its new state.

use std::time::Duration;

use tenure::store::record::{Answer, Change, Held, Record};
use tenure::store::{Enqueue, Grant, ReleaseReply, RenewReply, Request};
use tenure::{Entry, Error, Fence, Holder, Name, Owner, Share};

use crate::clock::{BEHIND, LATEST, Now};
use crate::options::Scheme;
use crate::protocol::{Commands, Expect, Expiry, Key, Value};

/// The state of a name.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) record: Record,
    pub(crate) now: Now,
    scheme: Scheme,
    /// The value as it was read, with the numbers of its grants, and its version.
    found: Option<(Vec<u8>, u64)>,
    /// End of a value that is an owner token alone. In the scheme of records it is of another
    /// client.
    plain: Option<Duration>,
    /// Number of a grant that made this version.
    number: u64,
    /// Somebody was granted, and needs a version of its own.
    granted: bool,
}

impl Item {
    /// For a name without an item.
    pub(crate) fn missing(scheme: Scheme, now: Now) -> Self {
        Self { record: Record::default(), now, scheme, found: None, plain: None, number: 0, granted: false }
    }

    /// From what the server answered at `now`. `number`: that of a grant which made this version.
    ///
    /// # Errors
    /// `Mismatch` for a record that this version cannot read.
    pub(crate) fn read(scheme: Scheme, value: Value, now: Now, number: u64) -> Result<Self, Error> {
        let Value { bytes, version, left, .. } = value;
        if scheme == Scheme::Cas
            && let Some(record) = Record::read(&bytes)?
        {
            let record = counted(record, number);
            // A number that was filled in is no reason to write.
            let found = Some((record.to_string().into_bytes(), version));
            return Ok(Self { record, now, scheme, found, plain: None, number, granted: false });
        }
        let until = left.map_or(Duration::MAX, |left| now.shown + Duration::from_secs(left.into()));
        let owner = Owner::from_bytes(&bytes[..]);
        let lingers = owner.lingers_after().is_some();
        let held = Held::new(owner, Share::MUTEX, 0, now.shown, until).with_lingers(lingers);
        Ok(Self {
            record: Record::new([held], []),
            now,
            scheme,
            found: Some((bytes, version)),
            plain: Some(until),
            number,
            granted: false,
        })
    }

    /// As [`Record::acquire`].
    pub(crate) fn acquire(&mut self, request: &Request) -> Result<Change<Answer>, Error> {
        let Now { shown, pad } = self.now;
        let enqueue = match request.enqueue {
            // A holder of another client knows of no queue.
            _ if self.plain.is_some() || self.scheme == Scheme::Add => Enqueue::No,
            Enqueue::Join { entry_ttl, handoff_ttl } => {
                Enqueue::Join { entry_ttl: entry_ttl + pad, handoff_ttl: handoff_ttl + pad }
            }
            other => other,
        };
        let padded = request.clone().with_enqueue(enqueue).with_ttl(request.ttl.saturating_add(pad));
        let mut change = self.record.acquire(&padded, "", shown, &mut || 0)?;
        if let Answer::Granted(grant) = &mut change.answer {
            *grant = Grant::new(None, request.ttl);
            self.granted = true;
        }
        if let Answer::Busy { holder: Some(holder), .. } = &mut change.answer {
            Self::show(holder);
        }
        Ok(change)
    }

    /// As [`Record::inspect`].
    pub(crate) fn inspect(&self, name: &Name) -> Option<Entry> {
        let mut entry = self.record.inspect(name, self.now.shown)?;
        entry.holders.iter_mut().for_each(Self::show);
        Some(entry)
    }

    /// Shows of a lease what is left at least.
    fn show(holder: &mut Holder) {
        holder.ttl = holder.ttl.map(|ttl| ttl.saturating_sub(BEHIND + Duration::from_secs(1)));
    }

    /// Whether this is a lock as one of us keeps it, and not a value of another client.
    pub(crate) fn is_ours(&self) -> bool {
        self.plain.is_none() || self.record.holders().any(|held| held.owner.is_generated())
    }

    /// As [`Record::renew`].
    pub(crate) fn renew(&mut self, owner: &Owner, ttl: Duration) -> RenewReply {
        self.record.renew(owner, ttl.saturating_add(self.now.pad), self.now.shown)
    }

    /// As [`Record::release`].
    pub(crate) fn release(&mut self, owner: &Owner, linger: Duration) -> ReleaseReply {
        let linger = if linger.is_zero() { linger } else { linger.saturating_add(self.now.pad) };
        self.record.release(owner, linger, self.now.shown, &mut || 0).answer
    }

    /// Whether an owner holds until a ttl has passed on the clock that the server shows.
    pub(crate) fn keeps(&self, owner: &Owner, ttl: Duration) -> bool {
        // No item ends later than that.
        let latest = self.plain.map_or(Duration::MAX, |_| Duration::from_secs(LATEST));
        self.end(owner).is_some_and(|until| until >= self.now.shown.saturating_add(ttl).min(latest))
    }

    /// How long an owner still holds, on the clock that the server shows.
    pub(crate) fn rest(&self, owner: &Owner) -> Duration {
        self.end(owner).unwrap_or_default().saturating_sub(self.now.shown)
    }

    fn end(&self, owner: &Owner) -> Option<Duration> {
        self.record.holders().find(|held| held.owner == *owner).map(|held| held.until)
    }

    /// Fence of an owner that was granted. `None` if it does not hold any more.
    pub(crate) fn fence_of(&self, owner: &Owner) -> Option<Result<Fence, Error>> {
        let held = self.record.holders().find(|held| held.owner == *owner)?;
        let counter = if self.plain.is_some() { self.number } else { held.counter };
        Some(Fence::from_counter(counter).ok_or_else(|| {
            let what = "the server's clock and its number of writes are beyond what a fence can be made of";
            Error::refused(what).maybe_applied().with_hint("set the server's clock right, and start memcached again")
        }))
    }

    /// Adds the command that writes the new state. Returns false if there is none, because nothing
    /// has changed.
    pub(crate) fn add_write(&self, commands: &mut Commands, key: &Key) -> bool {
        let Some((until, held)) = self.last() else {
            return self.found.as_ref().is_some_and(|(_, version)| {
                commands.delete(key, *version);
                true
            });
        };
        let keeps = |owner: &Owner| self.plain.is_some() && self.found_is(owner.as_bytes());
        // A value of another client stays as it is, until one of us takes it over.
        let plain = held.filter(|held| self.scheme == Scheme::Add || keeps(&held.owner));
        let value = plain.map_or_else(|| self.record.to_string().into_bytes(), |held| held.owner.as_bytes().to_vec());
        let is_as_found = self.found_is(&value) && (plain.is_none() || self.plain.is_some_and(|found| until <= found));
        if is_as_found && !self.granted {
            return false;
        }
        let expiry = expiry(until);
        // By these a reader finds the server's time. Other clients take them for types of values.
        let flags = if plain.is_some() { 0 } else { expiry };
        let expect = self.found.as_ref().map_or(Expect::Nothing, |(_, version)| Expect::Version(*version));
        commands.set(key, &value, flags, expiry, expect);
        true
    }

    /// The last end of all holders and waiters, and one of the holders. `None` if there are none.
    fn last(&self) -> Option<(Duration, Option<&Held>)> {
        let ends = self.record.holders().map(|held| held.until).chain(self.record.waiters().map(|waiter| waiter.until));
        ends.max().map(|until| (until, self.record.holders().next()))
    }

    fn found_is(&self, value: &[u8]) -> bool {
        self.found.as_ref().is_some_and(|(bytes, _)| bytes == value)
    }
}

/// Grants that were written with number 0 have that of the version which they made.
fn counted(record: Record, counter: u64) -> Record {
    if record.holders().all(|held| held.counter > 0) {
        return record;
    }
    let number = |mut held: Held| {
        if held.counter == 0 {
            held.counter = counter;
        }
        held
    };
    Record::new(record.holders().cloned().map(number), record.waiters().cloned())
}

/// The first second at which a point is due.
fn expiry(until: Duration) -> Expiry {
    let seconds = until.as_secs().saturating_add(u64::from(until.subsec_nanos() > 0));
    if seconds > u64::MAX / 2 { 0 } else { Expiry::try_from(seconds.min(LATEST)).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_rounded_up_to_a_whole_second() {
        for (millis, seconds) in [(1_500_000, 1_500), (1_500_001, 1_501), (1_500_999, 1_501)] {
            assert_eq!(expiry(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(expiry(Duration::MAX), 0, "never");
    }
}
