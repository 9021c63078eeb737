//! The state of a name as it was read, and the command that writes its new state.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::cas;
use tenure::store::record::{Held, Record};
use tenure::{Error, Owner, Share};

use super::begun::Begun;
use crate::transport::commands::{Commands, Digits, Key, millis};

/// The state of a name.
pub(super) type Found = cas::Found<Value>;

/// The value of a name, besides its record.
#[derive(Debug, Default)]
pub(crate) struct Value {
    /// The value as it was read.
    bytes: Option<Vec<u8>>,
    /// The value is of another library: its end and its owner.
    foreign: Option<Held>,
    /// The transaction that watches the name.
    pub(super) begun: Option<Arc<Begun>>,
}

/// The state of a name without a record.
fn none(now: Duration) -> Found {
    Found::new(Record::default(), now, 0, Value::default())
}

/// The state of a name whose key is of another type, with the `error` of that.
pub(super) fn refused(error: Error, now: Duration) -> Found {
    let mut found = none(now);
    found.refusal = Some(error);
    found
}

/// From the value of a key and the rest of its ttl in ms.
pub(super) fn read(value: Option<Vec<u8>>, left: i64, now: Duration) -> Result<Found, Error> {
    // The key may end between the two questions.
    let Some(bytes) = value.filter(|_| left != -2) else {
        return Ok(none(now));
    };
    let record = Record::read(&bytes)?;
    let foreign = record.is_none().then(|| {
        let until = u64::try_from(left).map_or(Duration::MAX, |left| now + Duration::from_millis(left));
        Held::new(Owner::from_bytes(&bytes[..]), Share::MUTEX, 0, now, until)
    });
    let record = record.unwrap_or_else(|| Record::new(foreign.clone(), []));
    let mut found = Found::new(record, now, 0, Value { bytes: Some(bytes), foreign, begun: None });
    // Nobody can queue behind a lock of another library.
    found.queues = found.version.foreign.is_none();
    Ok(found)
}

/// Adds the command that writes the new state, if it differs.
pub(super) fn add_write(found: &Found, commands: &mut Commands, key: &Key<'_>) {
    let (record, Value { bytes, foreign, .. }) = (&found.record, &found.version);
    let Some(until) = record.last_end() else {
        if bytes.is_some() {
            commands.about(key, b"DEL", &[]);
        }
        return;
    };
    let foreign = foreign.as_ref().filter(|foreign| record.holders().any(|held| held.owner == foreign.owner));
    let value = match (foreign, bytes) {
        (Some(foreign), _) if foreign.until == until => return,
        (Some(_), Some(bytes)) => bytes.clone(),
        _ => record.to_string().into_bytes(),
    };
    if foreign.is_none() && bytes.as_ref() == Some(&value) {
        return;
    }
    let left = Digits::of(millis(until.saturating_sub(found.now)) + 1);
    commands.about(key, b"SET", &[&value, b"PX", left.as_bytes()]);
}
