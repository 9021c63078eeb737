//! The calls of a store, each one transaction on the file.

use std::time::Duration;

use rusqlite::Transaction;
use tenure::{Acquired, BootTime, Busy, Entry, Error, Fence, Grant, Holder, Lease, Name, Released, Renewal, Request};

use super::failure::{Failure, damaged};
use super::file::LockFile;
use super::lease::{Found, Standing, nanos};
use super::machine::Origin;
use super::statements::{COUNT, FIND, FREE, GRANT, LINGER, LIST, MOVE_HAND, NEXT_HAND, RENEW, SWEEP};

/// One grant in so many looks at the next so many names and frees those whose lease has ended. That is four for each that comes in,
/// so the dead never outnumber the living for long.
const SWEEP_EVERY: u64 = 16;
const SWEEP_SPAN: u32 = 64;

impl LockFile {
    pub(super) fn acquire(&mut self, request: &Request, recheck: Duration) -> Result<Acquired, Error> {
        self.follow()?;
        let busy = |holder| Acquired::Busy(Busy { ahead: None, recheck, mark: None, holder });
        // Those who wait look often: they read, so that they do not stand in the way of those who write.
        if let Some(standing) = self.peek(request.name.as_str())?.filter(|standing| !standing.gives_way_to(request)) {
            return Ok(busy(Some(standing.holder(BootTime::now()))));
        }
        let take = |tx: &Transaction<'_>, found: Found| match &found.standing {
            Some(standing) if !standing.gives_way_to(request) => {
                Ok(busy(found.standing.map(|standing| standing.holder(BootTime::now()))))
            }
            None if request.from.is_some() => Ok(busy(None)),
            _ => self.grant(tx, request, found.next_counter()).map(Acquired::Granted),
        };
        self.write(take, request.name.as_str())
    }

    fn grant(&self, tx: &Transaction<'_>, request: &Request, counter: u64) -> Result<Grant, Failure> {
        let Some(fence) = Fence::from_counter(counter) else {
            return Err(damaged(&self.path, "its fences are used up", "give another path, and tell the guarded resources").into());
        };
        let now = BootTime::now();
        let number = i64::try_from(counter).unwrap_or(i64::MAX);
        let Request { name, owner, ttl, .. } = request;
        tx.prepare_cached(COUNT)?.execute([number])?;
        let row = (name.as_str(), owner.as_bytes(), number, nanos(now), nanos(now + *ttl));
        tx.prepare_cached(GRANT)?.execute(row)?;
        if counter.is_multiple_of(SWEEP_EVERY) {
            sweep(tx, now)?;
        }
        Ok(Grant { fence: Some(fence), ttl: *ttl, waiting: false })
    }

    /// All in one transaction: a failure is that of every lease.
    pub(super) fn renew(&mut self, leases: &[Lease]) -> Result<Vec<Renewal>, Error> {
        self.follow()?;
        let renew = |tx: &Transaction<'_>, _| {
            let mut statement = tx.prepare_cached(RENEW)?;
            let mut one = |Lease { name, owner, ttl, .. }: &Lease| {
                let now = BootTime::now();
                let changed = statement.execute((name.as_str(), owner.as_bytes(), nanos(now), nanos(now + *ttl)))?;
                Ok(if changed == 1 { Renewal::Renewed { waiting: false } } else { Renewal::Gone })
            };
            leases.iter().map(&mut one).collect()
        };
        self.write(renew, "")
    }

    pub(super) fn release(&mut self, lease: &Lease, linger: Duration) -> Result<Released, Error> {
        self.follow()?;
        let name = lease.name.as_str();
        let free = |tx: &Transaction<'_>, found: Found| {
            let Some(standing) = found.standing else { return Ok(Released::NotHeld) };
            if standing.released_by.is_some() && standing.released_by == lease.owner.lingers_after() {
                tx.prepare_cached(FREE)?.execute([name])?;
                return Ok(Released::Released);
            }
            if standing.released_by.as_ref() == Some(&lease.owner) {
                return Ok(Released::Released);
            }
            if !standing.is_owned_by(&lease.owner) {
                return Ok(Released::NotHeld);
            }
            if linger.is_zero() {
                tx.prepare_cached(FREE)?.execute([name])?;
            } else {
                tx.prepare_cached(LINGER)?.execute((name, nanos(BootTime::now() + linger)))?;
            }
            Ok(Released::Released)
        };
        self.write(free, name)
    }

    pub(super) fn inspect(&mut self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.follow()?;
        if let Some(name) = name {
            let standing = self.peek(name.as_str())?;
            return Ok(standing.map(|standing| entry(name.clone(), standing.holder(BootTime::now()))).into_iter().collect());
        }
        self.read(|tx| {
            let found = tx.prepare_cached(FIND)?.query_row([""], Found::from_row)?;
            if self.origin(&found)? != Origin::Here {
                return Ok(Vec::new());
            }
            list(tx)
        })
    }
}

fn sweep(tx: &Transaction<'_>, now: BootTime) -> Result<(), Failure> {
    let hand: Option<String> = tx.prepare_cached(NEXT_HAND)?.query_row([SWEEP_SPAN], |row| row.get(0))?;
    if let Some(hand) = &hand {
        tx.prepare_cached(SWEEP)?.execute((nanos(now), hand))?;
    }
    tx.prepare_cached(MOVE_HAND)?.execute([hand.unwrap_or_default()])?;
    Ok(())
}

fn list(tx: &Transaction<'_>) -> Result<Vec<Entry>, Failure> {
    let now = BootTime::now();
    let mut entries = Vec::new();
    let mut list = tx.prepare(LIST)?;
    let mut rows = list.query([nanos(now)])?;
    while let Some(row) = rows.next()? {
        let name = Name::new(row.get::<_, String>(0)?)?;
        entries.push(entry(name, Standing::from_row(row, 1)?.holder(now)));
    }
    Ok(entries)
}

fn entry(name: Name, holder: Holder) -> Entry {
    Entry { name, holders: vec![holder], waiters: 0 }
}
