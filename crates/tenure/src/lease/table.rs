//! State of the watchdog: deadlines of held leases, renewals that are due, and pending releases.
//!
//! Plain data without waiting, under the watchdog's lock. Wake-ups are returned as [`After`] and
//! done outside the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::debug;

use super::state::EndReason;
use super::validity::HeldLease;
use crate::store::call::backoff;
use crate::store::{RenewReply, operation_timeout};
use crate::{BootTime, Error, Lease};

pub(crate) type Id = u64;

/// A release that the watchdog repeats in the background.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) lease: Lease,
    /// End of the time in which the name stays taken by nobody.
    pub(crate) lingers_until: BootTime,
    /// Time at which the lease has certainly ended at the store by itself.
    pub(crate) until: BootTime,
    /// An acquire with this token may still run, even after an answered release.
    pub(crate) late: bool,
    /// The token was supplied. Another client may hold with it after the first release, so only one
    /// is sent.
    pub(crate) once: bool,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseTable {
    pub(crate) closed: bool,
    /// Number of the task that reads the table now.
    pub(crate) runner: Option<u64>,
    pub(crate) runners: u64,
    /// Time at which it will next read it by itself.
    pub(crate) awake_at: Option<BootTime>,
    last_id: Id,
    held: HashMap<Id, Entry>,
    deadlines: BTreeSet<(BootTime, Id)>,
    renewals: BTreeSet<(BootTime, Id)>,
    pending: BTreeMap<Id, (PendingRelease, bool)>,
}

#[derive(Debug)]
struct Entry {
    lease: Arc<HeldLease>,
    deadline: BootTime,
    /// Time of the next renewal; `None` while one is under way, and for a fixed lease.
    renew_at: Option<BootTime>,
    in_flight: bool,
    extension: Option<Extension>,
}

#[derive(Debug)]
pub(crate) struct Extension {
    pub(crate) ttl: Duration,
    pub(crate) answer: oneshot::Sender<Result<(), Error>>,
}

/// A renewal that was sent for one entry.
#[derive(Debug)]
pub(crate) struct Sent {
    id: Id,
    pub(crate) lease: Lease,
    extension: Option<Extension>,
}

/// Notifications for after the unlock: their receivers may lock the table at once.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct After {
    ended: Vec<(Arc<HeldLease>, EndReason)>,
    answers: Vec<(Extension, Result<(), Error>)>,
}

impl After {
    pub(crate) fn notify(self) {
        for (held, reason) in self.ended {
            held.end(reason);
        }
        for (extension, outcome) in self.answers {
            // The caller may be gone.
            let _ = extension.answer.send(outcome);
        }
    }
}

impl LeaseTable {
    /// Enters a lease. Returns the time of its first deadline.
    pub(crate) fn insert(&mut self, held: Arc<HeldLease>) -> (Id, BootTime) {
        let id = self.next_id();
        let deadline = held.valid_until();
        let renew_at = held.terms.renews.then_some(held.renew_at);
        self.held.insert(id, Entry { lease: held, deadline, renew_at, in_flight: false, extension: None });
        self.deadlines.insert((deadline, id));
        self.renewals.extend(renew_at.map(|at| (at, id)));
        (id, renew_at.map_or(deadline, |at| at.min(deadline)))
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<Arc<HeldLease>> {
        let entry = self.held.remove(&id)?;
        self.deadlines.remove(&(entry.deadline, id));
        if let Some(at) = entry.renew_at {
            self.renewals.remove(&(at, id));
        }
        Some(entry.lease)
    }

    /// Hands a lease to the next task of this process, with the next fence. Its deadlines stay.
    pub(crate) fn hand_on(&mut self, id: Id, now: BootTime) -> Option<Arc<HeldLease>> {
        // A request that is under way for this holder must not count for the next one.
        let entry = self.held.get_mut(&id).filter(|entry| entry.extension.is_none() && !entry.in_flight)?;
        let next = Arc::new(entry.lease.successor(now)?);
        entry.lease = Arc::clone(&next);
        Some(next)
    }

    /// Ends a lease at `at`, even if its renewals succeed. Returns its deadline.
    pub(crate) fn end_at(&mut self, id: Id, at: BootTime) -> Option<BootTime> {
        self.held.get(&id)?.lease.end_at(at);
        self.update_deadline(id)
    }

    /// Moves the deadline of a lease to the end of its validity, and returns it.
    fn update_deadline(&mut self, id: Id) -> Option<BootTime> {
        let entry = self.held.get_mut(&id)?;
        let deadline = entry.lease.valid_until();
        let old = std::mem::replace(&mut entry.deadline, deadline);
        self.deadlines.remove(&(old, id));
        self.deadlines.insert((deadline, id));
        Some(deadline)
    }

    pub(crate) fn remove_all(&mut self) -> Vec<Arc<HeldLease>> {
        self.deadlines.clear();
        self.renewals.clear();
        let mut all: Vec<_> = self.held.drain().collect();
        // In the order of acquisition, not in that of a hash.
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, entry)| entry.lease).collect()
    }

    pub(crate) fn holds(&self, id: Id) -> bool {
        self.held.contains_key(&id)
    }

    /// Makes the next renewal this extension: now, or after the one that is under way.
    pub(crate) fn extend(&mut self, id: Id, extension: Extension, now: BootTime) -> Result<(), Error> {
        let entry = self.held.get_mut(&id).ok_or_else(Error::lost)?;
        // An extension that was not sent, and whose caller is gone, gives way.
        if entry.extension.as_ref().is_some_and(|other| !other.answer.is_closed()) {
            return Err(Error::invalid("the lease is being extended already").with_hint("await the other extend first"));
        }
        entry.extension = Some(extension);
        if !entry.in_flight {
            self.schedule(id, now);
        }
        Ok(())
    }

    pub(crate) fn add_pending(&mut self, release: PendingRelease) {
        let id = self.next_id();
        self.pending.insert(id, (release, false));
    }

    /// Takes the pending releases that no task repeats yet.
    pub(crate) fn take_pending(&mut self) -> Vec<(Id, PendingRelease)> {
        let waiting = self.pending.iter_mut().filter(|(_, (_, taken))| !taken);
        waiting
            .map(|(id, (release, taken))| {
                *taken = true;
                (*id, release.clone())
            })
            .collect()
    }

    pub(crate) fn remove_pending(&mut self, id: Id) {
        self.pending.remove(&id);
    }

    pub(crate) fn nothing_pending(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<BootTime> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let renewal = self.renewals.first().map(|(at, _)| *at);
        deadline.into_iter().chain(renewal).min()
    }

    /// Ends the leases whose deadline has passed.
    pub(crate) fn end_due(&mut self, now: BootTime) -> After {
        let mut after = After::default();
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.deadlines.remove(&(at, id));
            after.ended.extend(self.remove(id).map(|held| {
                let reason = held.deadline_reason();
                (held, reason)
            }));
        }
        after
    }

    /// Takes the renewals that are due, and those that soon will be, so that they share a batch.
    pub(crate) fn take_renewals(&mut self, now: BootTime) -> Vec<Sent> {
        let mut taken = Vec::new();
        while let Some(&(at, id)) = self.renewals.first() {
            let Some(entry) = self.held.get_mut(&id) else {
                self.renewals.remove(&(at, id));
                continue;
            };
            let mut lease = entry.lease.snapshot();
            let early = if taken.is_empty() { Duration::ZERO } else { lease.ttl / 30 };
            if at > now + early {
                break;
            }
            let extension = entry.extension.take();
            if let Some(extension) = &extension {
                lease.ttl = extension.ttl;
            }
            entry.renew_at = None;
            entry.in_flight = true;
            self.renewals.remove(&(at, id));
            taken.push(Sent { id, lease, extension });
        }
        taken
    }

    /// Enters the answer to a renewal that was sent at `sent_at`.
    pub(crate) fn renewed(&mut self, sent: Sent, sent_at: BootTime, answer: Result<RenewReply, Error>, now: BootTime) -> After {
        let Sent { id, lease, extension } = sent;
        let mut after = After::default();
        let Some(entry) = self.held.get_mut(&id) else { return after };
        entry.in_flight = false;
        let held = Arc::clone(&entry.lease);
        let outcome = match answer {
            // An answer after the deadline is too late: the guard may have reported the loss
            // already.
            _ if held.end_reason(now).is_some() => Err(Error::lost()),
            Ok(RenewReply::Renewed) => {
                if let Some(extension) = &extension {
                    held.set_ttl(extension.ttl);
                }
                held.extend_validity(sent_at, lease.ttl);
                self.update_deadline(id);
                if held.terms.renews {
                    self.schedule(id, sent_at + held.current().ttl / 3);
                }
                Ok(())
            }
            Ok(RenewReply::Gone) => {
                self.remove(id);
                after.ended.push((held, EndReason::Gone));
                Err(Error::lost())
            }
            Err(error) => {
                debug!(name = %lease.name, %error, "renewal failed");
                if held.terms.renews {
                    held.renewal_failed(error.clone());
                    // A handed-over lease has little time. More than one attempt must fit in it.
                    let left = held.valid_until().since(now);
                    self.schedule(id, now + backoff(operation_timeout(lease.ttl)).min(left / 4));
                }
                Err(error)
            }
        };
        after.answers.extend(extension.map(|extension| (extension, outcome)));
        // An extension that was requested during this renewal goes out next.
        if self.held.get(&id).is_some_and(|entry| entry.extension.is_some()) {
            self.schedule(id, now);
        }
        after
    }

    /// Plans again what was under way in a task that has died, for `at`. Extensions are dropped,
    /// and their callers get an error.
    pub(crate) fn requeue(&mut self, at: BootTime) {
        for (_, taken) in self.pending.values_mut() {
            *taken = false;
        }
        let mut due = Vec::new();
        for (id, entry) in &mut self.held {
            entry.extension = None;
            if std::mem::take(&mut entry.in_flight) && entry.lease.terms.renews {
                due.push(*id);
            }
        }
        for id in due {
            self.schedule(id, at);
        }
    }

    fn schedule(&mut self, id: Id, at: BootTime) {
        let Some(entry) = self.held.get_mut(&id) else { return };
        if let Some(old) = entry.renew_at.replace(at) {
            self.renewals.remove(&(old, id));
        }
        self.renewals.insert((at, id));
    }

    fn next_id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }
}
