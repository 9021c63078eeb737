//! A hand-over as text: the message by which the process that serves a waiter notifies it.

use std::time::Duration;

use tenure::store::Notice;
use tenure::{Fence, Name, Owner};

pub(crate) fn write(name: &Name, owner: &Owner, fence: Fence, handoff_ttl: Duration) -> String {
    format!("{}\n{}\n{owner}\n{name}", fence.counter(), handoff_ttl.as_nanos())
}

pub(crate) fn read(message: &str) -> Option<(Name, Owner, Notice)> {
    let mut lines = message.splitn(4, '\n');
    let fence = Fence::from_counter(lines.next()?.parse().ok()?)?;
    let handoff_ttl = Duration::from_nanos(lines.next()?.parse().ok()?);
    let owner: Owner = lines.next()?.parse().ok()?;
    let name = Name::new(lines.next()?).ok()?;
    Some((name, owner.clone(), Notice::Granted { owner, fence, handoff_ttl }))
}
