//! Waiters of a name: in order, by owner, and by the end of their entries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::setters::setters;
use crate::{Owner, Share};

/// A waiter, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Number that orders the waiters. Rises from entry to entry, and begins anew after an empty
    /// queue.
    pub number: u64,
    /// Owner token of a grant.
    pub owner: Owner,
    /// Share that it waits for. An entry keeps the share it was made for.
    pub share: Share,
    /// Lifetime of the entry, counted from each heartbeat.
    pub entry_ttl: Duration,
    /// Ttl of a lease that is handed to it. The waiter's own number, not that of the client that serves it.
    pub handoff_ttl: Duration,
    /// Time at which the entry lapses.
    pub until: Duration,
    /// Text by which the store finds the waiter. Has no meaning here.
    pub wake: String,
}

impl Waiter {
    /// Makes an entry that lapses at `until`.
    pub const fn new(number: u64, owner: Owner, share: Share, until: Duration) -> Self {
        let (entry_ttl, handoff_ttl) = (Duration::ZERO, Duration::ZERO);
        Self { number, owner, share, entry_ttl, handoff_ttl, until, wake: String::new() }
    }
}

setters! { Waiter:
    with_entry_ttl(entry_ttl: Duration),
    with_handoff_ttl(handoff_ttl: Duration),
    with_wake(wake: String),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// By number.
    waiters: VecDeque<Waiter>,
    numbers: BTreeMap<Owner, u64>,
    by_end: BTreeSet<(Duration, u64)>,
}

impl Queue {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Waiter> {
        self.waiters.front()
    }

    pub(super) fn get(&self, owner: &Owner) -> Option<&Waiter> {
        self.waiters.get(self.at(owner)?)
    }

    /// Number of waiters in front of the owner's entry.
    pub(super) fn position_of(&self, owner: &Owner) -> Option<u32> {
        self.at(owner).map(|at| u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// Adds an entry at the end, and numbers it.
    pub(super) fn join(&mut self, waiter: Waiter) {
        let number = self.waiters.back().map_or(1, |last| last.number + 1);
        self.push(Waiter { number, ..waiter });
    }

    /// Keeps the owner's entry alive, if it has one.
    pub(super) fn refresh(&mut self, owner: &Owner, wake: &str, now: Duration) {
        let Some(waiter) = self.at(owner).and_then(|at| self.waiters.get_mut(at)) else { return };
        self.by_end.remove(&(waiter.until, waiter.number));
        waiter.until = end(now, waiter.entry_ttl);
        if waiter.wake != wake {
            wake.clone_into(&mut waiter.wake);
        }
        self.by_end.insert((waiter.until, waiter.number));
    }

    /// Takes the head out of the queue if it is `fit`.
    pub(super) fn next_if(&mut self, fit: impl FnOnce(&Waiter) -> bool) -> Option<Waiter> {
        self.waiters.front().filter(|head| fit(head))?;
        self.take(0)
    }

    /// Removes the owner's entry. Returns false if it has none.
    pub(super) fn leave(&mut self, owner: &Owner) -> bool {
        self.at(owner).and_then(|at| self.take(at)).is_some()
    }

    pub(super) fn expire(&mut self, now: Duration) {
        while let Some(&(_, number)) = self.by_end.first().filter(|(until, _)| *until <= now) {
            self.take(self.position(number));
        }
    }

    fn push(&mut self, waiter: Waiter) {
        self.numbers.insert(waiter.owner.clone(), waiter.number);
        self.by_end.insert((waiter.until, waiter.number));
        self.waiters.push_back(waiter);
    }

    fn take(&mut self, at: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(at)?;
        self.numbers.remove(&waiter.owner);
        self.by_end.remove(&(waiter.until, waiter.number));
        Some(waiter)
    }

    fn at(&self, owner: &Owner) -> Option<usize> {
        self.numbers.get(owner).map(|&number| self.position(number))
    }

    fn position(&self, number: u64) -> usize {
        self.waiters.partition_point(|waiter| waiter.number < number)
    }
}

/// Returns the end of a span that begins now.
pub(super) fn end(now: Duration, span: Duration) -> Duration {
    now.saturating_add(span)
}

impl FromIterator<Waiter> for Queue {
    fn from_iter<I: IntoIterator<Item = Waiter>>(all: I) -> Self {
        let mut waiters: Vec<Waiter> = all.into_iter().collect();
        waiters.sort_unstable_by_key(|waiter| waiter.number);
        let mut queue = Self::default();
        for waiter in waiters {
            queue.push(waiter);
        }
        queue
    }
}
