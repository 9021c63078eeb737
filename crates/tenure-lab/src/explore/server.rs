//! The far end of the simulated network: names, owners and a grant counter, by the server's own clock.

use std::time::Duration;

use tenure::{Acquired, Busy, Entry, Error, Fence, Grant, Holder, Lease, Name, Owner, Place, Released, Renewal, Request, Share};

use super::Flaw;
use super::clock::{At, ms, nanos};

const MS: u64 = ms(1);

#[derive(Debug)]
pub(super) struct Server {
    flaw: Flaw,
    counter: u64,
    names: Vec<(Name, Option<Row>)>,
    /// What its clock shows more than the virtual time, and less.
    ahead: u64,
    behind: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) owner: Owner,
    /// The owner has given it up, and the name is kept taken by nobody.
    pub(super) lingers: bool,
    /// When the command was sent that took it, and when it ran.
    pub(super) sent_at: At,
    pub(super) ran_at: At,
    /// It was a second copy of the command.
    pub(super) copy: bool,
    pub(super) ttl: u64,
    fence: u64,
    /// By the server's clock.
    until: u64,
}

/// Where an acquisition came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) sent_at: At,
    pub(super) copy: bool,
}

impl Server {
    pub(super) fn new(names: &[Name], grain: u64, flaw: Flaw) -> Self {
        // The counter begins high, so that a flaw may let it fall.
        let counter = 1_000;
        // Starts ahead, so that it can go back.
        Self {
            flaw,
            counter,
            names: names.iter().map(|name| (name.clone(), None)).collect(),
            ahead: (1 << 40) + grain,
            behind: 0,
        }
    }

    /// What its clock shows.
    fn clock(&self, now: At) -> u64 {
        // In whole milliseconds, as servers count.
        (now + self.ahead - self.behind) / MS * MS
    }

    pub(super) fn jump_forward(&mut self, by: u64) {
        self.ahead += by;
    }

    pub(super) fn jump_back(&mut self, by: u64) {
        self.behind += by;
    }

    /// Forgets everything but the counter, or one name.
    pub(super) fn forget(&mut self, name: Option<usize>) {
        for (index, (_, row)) in self.names.iter_mut().enumerate() {
            if name.is_none_or(|name| name == index) {
                *row = None;
            }
        }
    }

    /// The row of a name whose lease has not ended, and what is left of it.
    pub(super) fn row(&self, name: &Name, now: At) -> Option<(&Row, u64)> {
        let clock = self.clock(now);
        let row = self.names.iter().find(|(key, _)| key == name)?.1.as_ref().filter(|row| row.until > clock)?;
        Some((row, row.until - clock))
    }

    fn slot(&mut self, name: &Name, now: At) -> &mut Option<Row> {
        let clock = self.clock(now);
        let slot = &mut self.names.iter_mut().find(|(key, _)| key == name).expect("the names of a run are known").1;
        slot.take_if(|row| row.until <= clock);
        slot
    }

    fn grant(&mut self, request: &Request, now: At, origin: Origin) -> Acquired {
        self.counter += 1;
        if self.flaw == Flaw::FenceFallsBack && self.counter.is_multiple_of(5) {
            self.counter -= 9;
        }
        let (clock, fence, flaw) = (self.clock(now), self.counter, self.flaw);
        let mut ttl = nanos(request.ttl);
        if flaw == Flaw::ShortLease {
            ttl -= ttl / 10;
        }
        let mut until = clock + ttl;
        if flaw != Flaw::RepeatShortens
            && let Some(row) = self.slot(&request.name, now).as_ref().filter(|row| row.owner == request.owner)
        {
            // A repeated acquisition that runs late must not end what a renewal has prolonged.
            until = until.max(row.until);
        }
        let (owner, Origin { sent_at, copy }) = (request.owner.clone(), origin);
        *self.slot(&request.name, now) = Some(Row { owner, lingers: false, sent_at, ran_at: now, copy, ttl, fence, until });
        Acquired::Granted(Grant { fence: Fence::from_counter(fence), ttl: request.ttl })
    }

    pub(super) fn acquire(&mut self, request: &Request, now: At, origin: Origin) -> Result<Acquired, Error> {
        if request.share != Share::MUTEX || request.place != Place::None {
            return Err(Error::invalid("the simulated store keeps mutexes without a queue only"));
        }
        let flaw = self.flaw;
        let Some(row) = self.slot(&request.name, now).clone() else {
            let free = request.from.is_none() || flaw == Flaw::AdoptsAnything;
            return Ok(if free { self.grant(request, now, origin) } else { busy(None) });
        };
        let standing = |owner: &Owner| !row.lingers && row.owner == *owner;
        let repeated = (request.repeatable || flaw == Flaw::GivenIsMine) && standing(&request.owner);
        let taken_over = request.from.as_ref().is_some_and(|from| standing(from) || flaw == Flaw::AdoptsAnything);
        if repeated || taken_over {
            return Ok(self.grant(request, now, origin));
        }
        Ok(busy(Some(holder(&row, row.until - self.clock(now)))))
    }

    pub(super) fn renew(&mut self, lease: &Lease, now: At) -> Renewal {
        let (clock, flaw) = (self.clock(now), self.flaw);
        let until = clock + nanos(lease.ttl);
        let Some(row) = self.slot(&lease.name, now) else { return Renewal::Gone };
        let lingers = row.lingers && flaw != Flaw::RenewsLinger;
        if flaw != Flaw::RenewsAnyone && (lingers || row.owner != lease.owner) {
            return Renewal::Gone;
        }
        row.lingers = false;
        row.until = if flaw == Flaw::RenewalShortens { until } else { row.until.max(until) };
        Renewal::Renewed
    }

    pub(super) fn release(&mut self, lease: &Lease, linger: Duration, now: At) -> Released {
        let (clock, flaw) = (self.clock(now), self.flaw);
        if flaw == Flaw::LosesReleases {
            return Released::Released;
        }
        let slot = self.slot(&lease.name, now);
        let Some(row) = slot else { return Released::NotHeld };
        if flaw != Flaw::ReleasesAnyone && row.owner != lease.owner {
            return Released::NotHeld;
        }
        if row.lingers && flaw != Flaw::ReleasesAnyone {
            return Released::Released;
        }
        if linger.is_zero() {
            *slot = None;
        } else {
            (row.lingers, row.until) = (true, clock + nanos(linger));
        }
        Released::Released
    }

    pub(super) fn inspect(&self, name: Option<&Name>, now: At) -> Vec<Entry> {
        let names = self.names.iter().map(|(key, _)| key).filter(|key| name.is_none_or(|name| name == *key));
        let entry = |key: &Name| {
            let (row, left) = self.row(key, now)?;
            Some(Entry { name: key.clone(), holders: vec![holder(row, left)], waiters: 0 })
        };
        names.filter_map(entry).collect()
    }
}

fn holder(row: &Row, left: u64) -> Holder {
    let owner = if row.lingers { row.owner.lingering() } else { row.owner.clone() };
    Holder { owner, share: Share::MUTEX, fence: Fence::from_counter(row.fence), ttl: Some(Duration::from_nanos(left)), age: None }
}

fn busy(holder: Option<Holder>) -> Acquired {
    Acquired::Busy(Busy { ahead: None, recheck: Duration::from_millis(400), mark: None, holder })
}
