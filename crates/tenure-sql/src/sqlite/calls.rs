//! The calls of a store, each one transaction on the file.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::Transaction;
use tenure::store::record::{Answer, Change, Record};
use tenure::store::{AcquireReply, Enqueue, Grant, ReleaseReply, RenewReply, Request};
use tenure::{BootTime, Entry, Error, Fence, Lease, Name, Queued};

use super::failure::{Failure, damaged};
use super::file::LockFile;
use super::rows::{Found, held, nanos, owner, share, signed};
use super::statements::{COUNT, LIST, LIST_WAITERS, MOVE_HAND, NEXT_HAND, RENEW, SWEEP};

/// Each such grant sweeps the next names and drops leases that have ended. That is four names for
/// each new one, so ended leases never outnumber the others for long.
const SWEEP_EVERY: u64 = 16;
const SWEEP_SPAN: u32 = 64;

/// Poll interval of a waiter that is notified: the heartbeat of its queue entry.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Returns the counter of the next grant.
type Next<'a> = &'a mut dyn FnMut() -> u64;

impl LockFile {
    /// `poll_interval` is for waiters that are not notified.
    pub(super) fn acquire(&mut self, request: &Request, poll_interval: Duration) -> Result<AcquireReply, Error> {
        self.follow()?;
        if let Some((busy, grant_seq)) = self.poll(request)? {
            return Ok(busy.acquired(poll_interval, Some(grant_seq)));
        }
        let address = self.wake.address();
        let ask = |record: &mut Record, now, next: Next<'_>| record.acquire(request, address, now, next);
        let (change, grant_seq) = self.call(&request.name, ask)?;
        self.wake.notify(&request.name, &change);
        let notified = matches!(change.answer, Answer::Busy { position: Some(_), .. }) && !self.wake.address().is_empty();
        Ok(change.answer.acquired(if notified { HEARTBEAT } else { poll_interval }, Some(grant_seq)))
    }

    pub(super) fn acquire_all(&mut self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.follow()?;
        let all = |tx: &Transaction<'_>, file: &Found| {
            let (mut counter, now) = (file.counter, BootTime::now().since_boot());
            let mut next = || {
                counter = file.next_counter(counter);
                counter
            };
            let mut changed = Vec::with_capacity(requests.len());
            for request in requests {
                let found = self.find(tx, request.name.as_str())?;
                let mut record = found.record();
                let change = record.acquire(request, "", now, &mut next)?.granted();
                changed.extend(change.map(|change| (request, found, record, change)));
            }
            // All were read, because a name of another kind is an error. Nothing was written.
            if changed.len() < requests.len() {
                return Ok(None);
            }
            self.count(tx, file.counter, counter, now)?;
            for (request, found, record, _) in &changed {
                found.write(tx, request.name.as_str(), record)?;
            }
            Ok(Some(changed.into_iter().map(|(request, _, _, change)| (request, change)).collect::<Vec<_>>()))
        };
        let Some(changes) = self.write(all, "")? else { return Ok(None) };
        let notify = |(request, change): (&Request, Change<Grant>)| {
            self.wake.notify(&request.name, &change);
            change.answer
        };
        Ok(Some(changes.into_iter().map(notify).collect()))
    }

    /// Answers without a lock on the file if nothing would change. Waiters that are not notified
    /// poll often, and must not hold up writers.
    fn poll(&mut self, request: &Request) -> Result<Option<(Answer, u64)>, Error> {
        if request.enqueue != Enqueue::No && !self.wake.address().is_empty() {
            return Ok(None);
        }
        let now = BootTime::now().since_boot();
        let found = self.peek(request.name.as_str())?;
        if found.is_free(now) {
            return Ok(None);
        }
        if let Enqueue::Join { .. } = request.enqueue {
            self.wake.listen();
            return Ok(None);
        }
        if request.enqueue == Enqueue::Heartbeat && !found.is_fresh(&request.owner, now) {
            return Ok(None);
        }
        let change = found.record().acquire(request, "", now, &mut || found.next_counter(found.counter))?;
        let nothing_changes = matches!(change.answer, Answer::Busy { .. }) && change.served.is_empty();
        Ok(nothing_changes.then_some((change.answer, found.counter)))
    }

    /// Applies a call to the record of a name, and writes the changes. Returns the counter as well.
    fn call<T>(
        &self,
        name: &Name,
        work: impl Fn(&mut Record, Duration, Next<'_>) -> Result<Change<T>, Error>,
    ) -> Result<(Change<T>, u64), Error> {
        let name = name.as_str();
        let call = |tx: &Transaction<'_>, found: &Found| {
            let (mut record, mut counter, now) = (found.record(), found.counter, BootTime::now().since_boot());
            let mut next = || {
                counter = found.next_counter(counter);
                counter
            };
            let change = work(&mut record, now, &mut next)?;
            if counter != found.counter {
                self.count(tx, found.counter, counter, now)?;
            }
            found.write(tx, name, &record)?;
            Ok((change, counter))
        };
        self.write(call, name)
    }

    fn count(&self, tx: &Transaction<'_>, before: u64, counter: u64, now: Duration) -> Result<(), Failure> {
        if Fence::from_counter(counter).is_none() {
            return Err(damaged(&self.path, "its fences are used up", "give another path, and tell the guarded resources").into());
        }
        tx.prepare_cached(COUNT)?.execute([signed(counter)])?;
        if counter / SWEEP_EVERY != before / SWEEP_EVERY {
            sweep(tx, now)?;
        }
        Ok(())
    }

    /// All in one transaction: a failure is that of every lease. It does not read the whole record:
    /// a batch may have ten thousand shares of one name.
    pub(super) fn renew(&mut self, leases: &[Lease]) -> Result<Vec<RenewReply>, Error> {
        self.follow()?;
        let renew = |tx: &Transaction<'_>, _: &Found| {
            let mut statement = tx.prepare_cached(RENEW)?;
            let mut one = |Lease { name, owner, ttl, .. }: &Lease| {
                let now = BootTime::now();
                let (now, until) = (nanos(now.since_boot()), nanos((now + *ttl).since_boot()));
                let changed = statement.execute((name.as_str(), owner.as_bytes(), now, until))?;
                Ok(if changed == 1 { RenewReply::Renewed } else { RenewReply::Gone })
            };
            leases.iter().map(&mut one).collect()
        };
        self.write(renew, "")
    }

    pub(super) fn release(&mut self, Lease { name, owner, .. }: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.follow()?;
        let give_up = |record: &mut Record, now, next: Next<'_>| Ok(record.release(owner, linger, now, next));
        let (change, _) = self.call(name, give_up)?;
        // Notified here, so that a dropped future does not keep it from the waiters.
        self.wake.notify(name, &change);
        Ok(change.answer)
    }

    pub(super) fn inspect(&mut self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.follow()?;
        let now = BootTime::now().since_boot();
        self.read(|tx| {
            let Some(name) = name else {
                let here = self.is_here(tx)?;
                return if here { list(tx, now) } else { Ok(Vec::new()) };
            };
            Ok(self.find(tx, name.as_str())?.record().inspect(name, now).into_iter().collect())
        })
    }
}

fn sweep(tx: &Transaction<'_>, now: Duration) -> Result<(), Failure> {
    let hand: Option<String> = tx.prepare_cached(NEXT_HAND)?.query_row([SWEEP_SPAN], |row| row.get(0))?;
    for sweep in SWEEP {
        tx.prepare_cached(sweep)?.execute((nanos(now), &hand))?;
    }
    tx.prepare_cached(MOVE_HAND)?.execute([hand.unwrap_or_default()])?;
    Ok(())
}

fn list(tx: &Transaction<'_>, now: Duration) -> Result<Vec<Entry>, Failure> {
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    let entry = |name: &String| Ok::<_, Error>(Entry::new(Name::new(name.as_str())?, Vec::new(), Vec::new()));
    let mut leases = tx.prepare(LIST)?;
    let mut rows = leases.query([nanos(now)])?;
    while let Some(row) = rows.next()? {
        let (name, held) = (row.get(0)?, held(row, 1)?);
        let new = entry(&name)?;
        entries.entry(name).or_insert(new).holders.push(held.holder(now));
    }
    let mut places = tx.prepare(LIST_WAITERS)?;
    let mut rows = places.query([nanos(now)])?;
    while let Some(row) = rows.next()? {
        let name = row.get(0)?;
        let new = entry(&name)?;
        entries.entry(name).or_insert(new).waiters.push(Queued::new(owner(row, 1)?, share(row, 2)?));
    }
    Ok(entries.into_values().collect())
}
