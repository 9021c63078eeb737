//! The calls of a store, each one transaction on the file.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::Transaction;
use tenure::store::record::{Answer, Change, Record};
use tenure::store::{AcquireReply, Enqueue, Grant, ReleaseReply, RenewReply, Request};
use tenure::{BootTime, Entry, Error, Fence, Lease, Name};

use super::failure::{Failure, damaged};
use super::file::LockFile;
use super::rows::{Found, held, nanos, signed};
use super::statements::{COUNT, LIST, LIST_WAITERS, MOVE_HAND, NEXT_HAND, RENEW, SWEEP};

/// One grant in so many looks at the next so many names and drops what has ended there. That is four for each that comes in, so the
/// dead never outnumber the living for long.
const SWEEP_EVERY: u64 = 16;
const SWEEP_SPAN: u32 = 64;

/// When one that waits, and is told, looks after its place.
const TOLD: Duration = Duration::from_secs(1);

/// Gives the numbers of grants.
type Next<'a> = &'a mut dyn FnMut() -> u64;

impl LockFile {
    /// `recheck` is for those who wait and are not told.
    pub(super) fn acquire(&mut self, request: &Request, recheck: Duration) -> Result<AcquireReply, Error> {
        self.follow()?;
        if let Some((busy, mark)) = self.look(request)? {
            return Ok(busy.acquired(recheck, Some(mark)));
        }
        let address = self.wake.address();
        let ask = |record: &mut Record, now, next: Next<'_>| record.acquire(request, address, now, next);
        let (turn, mark) = self.call(&request.name, ask)?;
        self.wake.tell(&request.name, &turn);
        let told = matches!(turn.answer, Answer::Busy { position: Some(_), .. }) && !self.wake.address().is_empty();
        Ok(turn.answer.acquired(if told { TOLD } else { recheck }, Some(mark)))
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
                let turn = record.acquire(request, "", now, &mut next)?.granted();
                changed.extend(turn.map(|turn| (request, found, record, turn)));
            }
            // All were looked at, because one of another kind is an error, and nothing was written.
            if changed.len() < requests.len() {
                return Ok(None);
            }
            self.count(tx, file.counter, counter, now)?;
            for (request, found, record, _) in &changed {
                found.write(tx, request.name.as_str(), record)?;
            }
            Ok(Some(changed.into_iter().map(|(request, _, _, turn)| (request, turn)).collect::<Vec<_>>()))
        };
        let Some(turns) = self.write(all, "")? else { return Ok(None) };
        let told = |(request, turn): (&Request, Change<Grant>)| {
            self.wake.tell(&request.name, &turn);
            turn.answer
        };
        Ok(Some(turns.into_iter().map(told).collect()))
    }

    /// Answers without a lock on the file where nothing would change: those who are not told look often, and must not stand in the
    /// way of those who write.
    fn look(&mut self, request: &Request) -> Result<Option<(Answer, u64)>, Error> {
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
        let turn = found.record().acquire(request, "", now, &mut || found.next_counter(found.counter))?;
        let nothing_changes = matches!(turn.answer, Answer::Busy { .. }) && turn.served.is_empty();
        Ok(nothing_changes.then_some((turn.answer, found.counter)))
    }

    /// Runs a call on the record of a name, and writes what it changed. Answers with the counter as well.
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
            let turn = work(&mut record, now, &mut next)?;
            if counter != found.counter {
                self.count(tx, found.counter, counter, now)?;
            }
            found.write(tx, name, &record)?;
            Ok((turn, counter))
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

    /// All in one transaction: a failure is that of every lease. A name is not read whole for it: a batch may be of ten thousand
    /// shares of one.
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
        let (turn, _) = self.call(name, give_up)?;
        // Told here, so that a dropped future does not keep it from those who wait.
        self.wake.tell(name, &turn);
        Ok(turn.answer)
    }

    pub(super) fn inspect(&mut self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.follow()?;
        let now = BootTime::now().since_boot();
        self.read(|tx| {
            let Some(name) = name else {
                let here = self.is_here(tx)?;
                return if here { list(tx, now) } else { Ok(Vec::new()) };
            };
            let (holders, waiters) = self.find(tx, name.as_str())?.record().inspect(now);
            let anybody = waiters > 0 || !holders.is_empty();
            Ok(anybody.then(|| Entry::new(name.clone(), holders, waiters)).into_iter().collect())
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
    let entry = |name: &String| Ok::<_, Error>(Entry::new(Name::new(name.as_str())?, Vec::new(), 0));
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
        entries.entry(name).or_insert(new).waiters = row.get::<_, i64>(1)?.unsigned_abs();
    }
    Ok(entries.into_values().collect())
}
