//! Notes for `inspect`: the number of a grant, in the hash beside its name.
//!
//! A note costs the server a script, and no holder needs it. So one grant in a second is noted at
//! once. The others are noted beside their first renewal: short holds do not pay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure::{Fence, Lease, Owner};

use crate::native::keys::{Keys, Layout};
use crate::scripts;
use crate::transport::commands::{Commands, Digits, Key, millis};
use crate::transport::contact::now_ms;
use crate::transport::form::Form;

/// Time in ms between grants that are noted at once.
const EVERY_MS: u64 = 1_000;
/// Largest number of leases that are noted beside one exchange of renewals: a slow link has room for
/// them.
const AT_ONCE: usize = 50;
/// Largest number of remembered owners. Others are not noted.
const MOST: usize = 10_000;
/// For how many ttls the number of a mutex stands. It is noted again after half of them.
const STANDS: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// When a grant was last noted at once, ms since boot; 0 for never.
    granted_at: AtomicU64,
    /// When the number of an owner is to be noted again, ms since boot.
    again: Mutex<HashMap<Owner, u64>>,
}

impl Notes {
    /// Whether a grant at `now` is to be noted at once.
    pub(crate) fn due_grant(&self, now: u64) -> bool {
        let last = self.granted_at.load(Ordering::Relaxed);
        let is_due = last == 0 || now.saturating_sub(last) >= EVERY_MS;
        is_due && self.granted_at.compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Leaves the turn to the next request: this one was granted nothing.
    pub(crate) fn not_granted(&self) {
        self.granted_at.store(0, Ordering::Relaxed);
    }

    /// Returns those of the leases that are to be noted now, with their numbers.
    pub(crate) fn due<'a>(&self, leases: &[&'a Lease]) -> Vec<(&'a Lease, Fence)> {
        self.due_at(leases, now_ms())
    }

    /// Makes these due again: nobody knows whether they were noted.
    pub(crate) fn forget(&self, due: &[(&Lease, Fence)]) {
        let mut again = self.again();
        for (lease, _) in due {
            again.remove(&lease.owner);
        }
    }

    fn again(&self) -> MutexGuard<'_, HashMap<Owner, u64>> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due_at<'a>(&self, leases: &[&'a Lease], now: u64) -> Vec<(&'a Lease, Fence)> {
        let mut again = self.again();
        let mut due = Vec::new();
        for lease in leases {
            let is_due = || lease.owner.is_generated() && again.get(&lease.owner).is_none_or(|again| *again <= now);
            let Some(fence) = lease.fence.filter(|_| is_due()) else { continue };
            if again.len() >= MOST {
                again.retain(|_, again| *again > now);
            }
            if due.len() >= AT_ONCE || again.len() >= MOST {
                break;
            }
            again.insert(lease.owner.clone(), now + millis(lease.ttl * STANDS / 2));
            due.push((*lease, fence));
        }
        due
    }
}

/// Adds commands that note the leases. Their answers say nothing.
pub(crate) fn add(commands: &mut Commands, layout: &Layout, due: &[(&Lease, Fence)]) {
    // A script reaches one slot of a cluster.
    for due in due.chunks(if layout.by_slot { 1 } else { AT_ONCE }) {
        add_some(commands, layout, due);
    }
}

fn add_some(commands: &mut Commands, layout: &Layout, due: &[(&Lease, Fence)]) {
    let of_each: Vec<Keys<'_>> = due.iter().map(|(lease, _)| layout.of(&lease.name)).collect();
    let beside = of_each.iter().flat_map(|keys| [keys.name(), keys.shares()]);
    let keys: Vec<Key<'_>> = beside.chain(of_each.iter().take(1).map(Keys::grants)).collect();
    let digits = |(lease, fence): &(&Lease, Fence)| [fence.counter(), millis(lease.ttl * STANDS)].map(Digits::of);
    let digits: Vec<[Digits; 2]> = due.iter().map(digits).collect();
    let args = due.iter().zip(&digits);
    let args: Vec<&[u8]> =
        args.flat_map(|((lease, _), [number, ms])| [lease.owner.as_bytes(), number.as_bytes(), ms.as_bytes()]).collect();
    scripts::add_call(commands, &scripts::NOTE_HOLDERS, Form::Text, &keys, &args);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::{Name, Share};

    use super::*;

    fn lease(n: u64) -> Lease {
        let owner = Owner::generate("notes").unwrap();
        Lease::new(Name::new("door").unwrap(), owner, Share::MUTEX, Duration::from_secs(30)).with_fence(Fence::from_counter(n))
    }

    #[test]
    fn one_grant_in_a_second_is_noted() {
        let notes = Notes::default();
        let due: Vec<u64> =
            [0, 1, 500, 1_000, 1_001, 1_999, 2_002, 9_000, 9_001].into_iter().filter(|now| notes.due_grant(*now)).collect();
        assert_eq!(due, [0, 1_001, 2_002, 9_000]);
    }

    #[test]
    fn a_lease_is_noted_in_turn_and_again_before_its_note_ends() {
        let notes = Notes::default();
        let leases: Vec<Lease> = (1..=70).map(lease).chain([lease(71).with_fence(None)]).collect();
        let leases: Vec<&Lease> = leases.iter().collect();
        assert_eq!([5, 6, 7, 60_004, 60_005, 60_006].map(|now| notes.due_at(&leases, now).len()), [50, 20, 0, 0, 50, 20]);
    }

    #[test]
    fn no_more_owners_are_remembered_than_there_is_room_for() {
        let notes = Notes::default();
        let leases: Vec<Lease> = (1..=MOST as u64 + 100).map(lease).collect();
        let leases: Vec<&Lease> = leases.iter().collect();
        let all: usize = (0..300).map(|now| notes.due_at(&leases, now).len()).sum();
        assert_eq!(all, MOST);
        assert_eq!(notes.due_at(&leases[MOST..], 60_300).len(), 50, "those before are forgotten");
    }
}
