//! The state of a name as it was read, and the command that writes its new state.

use std::time::Duration;

use tenure::store::record::{Answer, Change, Held, Record};
use tenure::store::{Enqueue, Request};
use tenure::{Error, Owner, Share};

use crate::transport::commands::{Commands, Digits, Key, millis};

/// The state of a name.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) record: Record,
    /// The value as it was read.
    value: Option<Vec<u8>>,
    /// The value is of another library: its end and its owner.
    foreign: Option<Held>,
    /// The key is of another type, which is why nobody can take the name. Nobody holds it.
    other_type: Option<Error>,
}

impl Found {
    /// For a key without a record.
    fn none() -> Self {
        Self { record: Record::default(), value: None, foreign: None, other_type: None }
    }

    /// For a key of another type, with its `error`.
    pub(super) fn of_another_type(error: Error) -> Self {
        Self { other_type: Some(error), ..Self::none() }
    }

    /// Refuses a key of another type.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.other_type.clone().map_or(Ok(()), Err)
    }

    /// From the value of a key and the rest of its ttl in ms.
    pub(super) fn new(value: Option<Vec<u8>>, left: i64, now: Duration) -> Result<Self, Error> {
        // The key may end between the two questions.
        let Some(bytes) = value.filter(|_| left != -2) else {
            return Ok(Self::none());
        };
        if let Some(record) = Record::read(&bytes)? {
            return Ok(Self { record, value: Some(bytes), ..Self::none() });
        }
        let until = u64::try_from(left).map_or(Duration::MAX, |left| now + Duration::from_millis(left));
        let owner = Owner::from_bytes(&bytes[..]);
        let held = Held::new(owner, Share::MUTEX, 0, now, until);
        Ok(Self { record: Record::new([held.clone()], []), value: Some(bytes), foreign: Some(held), other_type: None })
    }

    /// As [`Record::acquire`].
    pub(super) fn acquire(
        &mut self,
        request: &Request,
        wake: &str,
        now: Duration,
        next: &mut dyn FnMut() -> u64,
    ) -> Result<Change<Answer>, Error> {
        self.check()?;
        let enqueue = if self.foreign.is_some() { Enqueue::No } else { request.enqueue };
        self.record.acquire(&request.clone().with_enqueue(enqueue), wake, now, next)
    }

    /// Adds the command that writes the new state, if it differs.
    pub(super) fn add_write(&self, commands: &mut Commands, key: &Key<'_>, now: Duration) {
        let until = self.record.holders().map(|held| held.until).chain(self.record.waiters().map(|waiter| waiter.until)).max();
        let Some(until) = until else {
            if self.value.is_some() {
                commands.about(key, b"DEL", &[]);
            }
            return;
        };
        let foreign = self.foreign.as_ref().filter(|foreign| self.record.holders().any(|held| held.owner == foreign.owner));
        let value = match (foreign, &self.value) {
            (Some(foreign), _) if foreign.until == until => return,
            (Some(_), Some(value)) => value.clone(),
            _ => self.record.to_string().into_bytes(),
        };
        if foreign.is_none() && self.value.as_ref() == Some(&value) {
            return;
        }
        let left = Digits::of(millis(until.saturating_sub(now)) + 1);
        commands.about(key, b"SET", &[&value, b"PX", left.as_bytes()]);
    }
}
