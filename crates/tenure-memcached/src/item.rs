//! The item of a name as it was read, and the command that writes its new state.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::cas;
use tenure::store::record::{Held, Record};
use tenure::{Error, Owner, Share};

use crate::clock::{LATEST, Now};
use crate::link::Link;
use crate::options::Scheme;
use crate::protocol::{Commands, Expect, Expiry, Key, Value};

/// An item that ends within so many seconds of the latest time that servers read stands for one without an end.
const NO_END: u64 = 60;

/// The state of a name.
pub(crate) type Found = cas::Found<Item>;

/// The item of a name, besides its record.
#[derive(Clone, Debug)]
pub struct Item {
    scheme: Scheme,
    /// The value as it was read, with the numbers of its grants, and its version.
    value: Option<(Vec<u8>, u64)>,
    /// End of a value that is an owner token alone. In the scheme of records it is of another client.
    plain: Option<Duration>,
    /// Where it was read: another connection may be to a later life of the server, which gives the same versions again.
    pub(crate) link: Arc<Link>,
    /// Number of a grant that made this version.
    pub(crate) number: u64,
}

impl Item {
    /// For a name without an item.
    pub(crate) fn missing(scheme: Scheme, now: Now, link: &Arc<Link>) -> Found {
        Self { scheme, value: None, plain: None, link: Arc::clone(link), number: 0 }.found(Record::default(), now)
    }

    /// From what the server answered at `now`. `number`: that of a grant which made this version.
    ///
    /// # Errors
    /// `Mismatch` for a record that this version cannot read.
    pub(crate) fn read(scheme: Scheme, value: Value, now: Now, number: u64, link: &Arc<Link>) -> Result<Found, Error> {
        let Value { bytes, version, left, .. } = value;
        let item = Self { scheme, value: None, plain: None, link: Arc::clone(link), number };
        if scheme == Scheme::Cas
            && let Some(record) = Record::read(&bytes)?
        {
            let record = counted(record, number);
            // A number that was filled in is no reason to write.
            let value = Some((record.to_string().into_bytes(), version));
            return Ok(Self { value, ..item }.found(record, now));
        }
        let until = left.map_or(Duration::MAX, |left| now.shown + Duration::from_secs(left.into()));
        let until = if until.as_secs().saturating_add(NO_END) > LATEST { Duration::MAX } else { until };
        let owner = Owner::from_bytes(&bytes[..]);
        let lingers = owner.lingers_after().is_some();
        let held = Held::new(owner, Share::MUTEX, 0, now.shown, until).with_lingers(lingers);
        Ok(Self { value: Some((bytes, version)), plain: Some(until), ..item }.found(Record::new([held], []), now))
    }

    fn found(self, record: Record, now: Now) -> Found {
        let mut found = Found::new(record, now.shown, 0, self);
        found.pad = now.pad;
        // The version that the write makes is the number of its grants.
        found.floor = None;
        // A holder of another client knows of no queue.
        found.queues = found.version.plain.is_none() && found.version.scheme == Scheme::Cas;
        found
    }

    fn is_as_read(&self, value: &[u8]) -> bool {
        self.value.as_ref().is_some_and(|(bytes, _)| bytes == value)
    }
}

/// Whether this is a lock as one of us keeps it, and not a value of another client.
pub(crate) fn is_ours(found: &Found) -> bool {
    found.version.plain.is_none() || found.record.holders().any(|held| held.owner.is_generated())
}

/// The owner of a lease that is all there is of the name.
pub(crate) fn only_owner(found: &Found) -> Option<&Owner> {
    let mut holders = found.record.holders();
    let first = holders.next()?;
    let is_alone = holders.next().is_none() && found.record.waiters().next().is_none();
    is_alone.then_some(&first.owner)
}

/// The state right after a grant. A value that is an owner token alone has the number of the version as its fence, until
/// somebody else writes it.
pub(crate) fn just_granted(mut found: Found) -> Found {
    found.record = counted(found.record, found.version.number);
    found
}

/// How long the last of all holders and waiters stays.
pub(crate) fn rest(found: &Found) -> Duration {
    found.record.last_end().unwrap_or_default().saturating_sub(found.now)
}

/// Adds the command that writes a new state. Returns false if there is none, because nothing has changed. `granted`:
/// somebody was granted, and needs a version of its own.
pub(crate) fn add_write(found: &Found, granted: bool, commands: &mut Commands, key: &Key) -> bool {
    let (item, holder) = (&found.version, found.record.holders().next());
    let Some(until) = found.record.last_end() else {
        return item.value.as_ref().is_some_and(|(_, version)| {
            commands.delete(key, *version);
            true
        });
    };
    let keeps = |owner: &Owner| item.plain.is_some() && item.is_as_read(owner.as_bytes());
    // A value of another client stays as it is, until one of us takes it over.
    let plain = holder.filter(|held| item.scheme == Scheme::Add || keeps(&held.owner));
    let value = plain.map_or_else(|| found.record.to_string().into_bytes(), |held| held.owner.as_bytes().to_vec());
    let is_as_read = item.is_as_read(&value) && (plain.is_none() || item.plain.is_some_and(|end| until <= end));
    if is_as_read && !granted {
        return false;
    }
    let expiry = expiry(until);
    // By these a reader finds the server's time. Other clients take them for types of values.
    let flags = if plain.is_some() { 0 } else { expiry };
    let expect = item.value.as_ref().map_or(Expect::Nothing, |(_, version)| Expect::Version(*version));
    commands.set(key, &value, flags, expiry, expect);
    true
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
