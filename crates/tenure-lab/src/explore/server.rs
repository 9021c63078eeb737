//! The far end of the simulated network: names, owners, queues and a grant counter, by the server's
//! own clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tenure::store::record::{Change, Held, Record, Served, Waiter};
use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request};
use tenure::{Entry, Error, Fence, Lease, Name, Owner, Share};

use super::Flaw;
use super::clock::{At, ms, nanos};
use super::mix::Blow;

const MS: u64 = ms(1);
const POLL_INTERVAL: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(super) struct Server {
    flaw: Option<Flaw>,
    counter: u64,
    names: Vec<(Name, Record)>,
    /// The last acquisition of each owner.
    origins: HashMap<Owner, Origin>,
    /// Every number that was given, and to whom.
    given: HashSet<(Owner, u64)>,
    /// How far its clock is before the virtual time, and behind.
    fast_by: u64,
    behind: u64,
}

/// Where an acquisition came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// When it was sent, and when it ran.
    pub(super) sent_at: At,
    pub(super) ran_at: At,
    /// It was a second copy of the command.
    pub(super) copy: bool,
    pub(super) ttl: u64,
}

/// The effect of a command on a name.
pub(super) struct Done<T> {
    pub(super) answer: T,
    /// Owners to be notified that they hold.
    pub(super) served: Vec<Served>,
    /// Those who wait without a place should look.
    pub(super) freed: bool,
}

impl<T> Done<T> {
    fn of<U>(turn: Change<U>, answer: impl FnOnce(U) -> T) -> Self {
        Self { answer: answer(turn.answer), served: turn.served, freed: turn.freed }
    }
}

impl Server {
    pub(super) fn new(names: &[Name], grain: u64, flaw: Option<Flaw>) -> Self {
        // The counter begins high, so that a flaw may let it fall; the clock starts ahead, so that
        // it can go back.
        let (counter, fast_by) = (1_000, (1 << 40) + grain);
        let names = names.iter().map(|name| (name.clone(), Record::default())).collect();
        Self { flaw, counter, names, origins: HashMap::new(), given: HashSet::new(), fast_by, behind: 0 }
    }

    /// The time on its clock.
    fn clock(&self, now: At) -> Duration {
        // In whole milliseconds, as servers count.
        Duration::from_nanos((now + self.fast_by - self.behind) / MS * MS)
    }

    /// All but the counter is lost, or one name; or the clock jumps.
    pub(super) fn suffer(&mut self, blow: Blow) {
        match blow {
            Blow::Flush => self.names.iter_mut().for_each(|(_, record)| *record = Record::default()),
            Blow::Delete(name) => self.names[name].1 = Record::default(),
            Blow::Forward(by) => self.fast_by += by,
            Blow::Back(by) => self.behind += by,
        }
    }

    fn record(&self, name: &Name) -> &Record {
        &self.names.iter().find(|(key, _)| key == name).expect("the names of a run are known").1
    }

    /// Those who have a name by leases that have not ended, and what is left of these.
    pub(super) fn held(&self, name: &Name, now: At) -> impl Iterator<Item = (&Held, u64)> {
        let clock = self.clock(now);
        let standing = self.record(name).holders().filter(move |held| held.until > clock);
        standing.map(move |held| (held, nanos(held.until.saturating_sub(clock))))
    }

    /// Whether a number was ever given to `owner`.
    pub(super) fn gave(&self, owner: &Owner, counter: u64) -> bool {
        self.given.contains(&(owner.clone(), counter))
    }

    /// Those who have places that have not lapsed.
    pub(super) fn waiters(&self, name: &Name, now: At) -> impl Iterator<Item = &Waiter> {
        let clock = self.clock(now);
        self.record(name).waiters().filter(move |waiter| waiter.until > clock)
    }

    pub(super) fn origin(&self, owner: &Owner) -> Option<Origin> {
        self.origins.get(owner).copied()
    }

    /// Runs a command on a name, with what stands there and the clock.
    fn on<T>(&mut self, name: &Name, now: At, run: impl FnOnce(&mut Record, Duration, &mut dyn FnMut() -> u64) -> T) -> T {
        let (clock, flaw, counter) = (self.clock(now), self.flaw, &mut self.counter);
        let mut next = || {
            *counter += 1;
            if flaw == Some(Flaw::FenceFallsBack) && counter.is_multiple_of(5) {
                *counter -= 9;
            }
            *counter
        };
        let record = &mut self.names.iter_mut().find(|(key, _)| key == name).expect("the names of a run are known").1;
        record.expire(clock);
        run(record, clock, &mut next)
    }

    pub(super) fn acquire(&mut self, request: &Request, now: At, sent_at: At, copy: bool) -> Result<Done<AcquireReply>, Error> {
        let flaw = self.flaw;
        let asked = self.as_flawed(request, now);
        let turn = self.on(&request.name, now, |record, clock, next| record.acquire(&asked, "", clock, next))?;
        self.origins.insert(request.owner.clone(), Origin { sent_at, ran_at: now, copy, ttl: nanos(request.ttl) });
        let grant_seq = Some(self.counter);
        let mut done = Done::of(turn, |answer| answer.acquired(POLL_INTERVAL, grant_seq));
        if let AcquireReply::Granted(grant) = &mut done.answer {
            grant.ttl = request.ttl;
            self.given.extend(grant.fence.map(|fence| (request.owner.clone(), fence.counter())));
            if flaw == Some(Flaw::ReportsOldFence) {
                grant.fence = grant.fence.and_then(|fence| Fence::from_counter(fence.counter() - 1));
            }
        }
        self.notes(&done.served);
        Ok(done)
    }

    fn notes(&mut self, served: &[Served]) {
        self.given.extend(served.iter().map(|served| (served.owner.clone(), served.counter)));
    }

    /// Changes a request as a server that is broken on purpose does.
    fn as_flawed(&self, request: &Request, now: At) -> Request {
        let mut request = request.clone();
        let holder = || anyone(self.held(&request.name, now).map(|(held, _)| held)).map(|held| held.owner.clone());
        match (self.flaw, &mut request.enqueue) {
            (Some(Flaw::ShortClaim), Enqueue::Join { handoff_ttl: ttl, .. }) => *ttl /= 2,
            (Some(Flaw::ShortLease), _) => request.ttl -= request.ttl / 10,
            (Some(Flaw::SuppliedIsMine), _) => request.generated = true,
            (Some(Flaw::AdoptsAnything), _) if request.from.is_some() => request.from = holder(),
            _ => {}
        }
        request
    }

    pub(super) fn renew(&mut self, lease: &Lease, now: At) -> RenewReply {
        let flaw = self.flaw;
        self.on(&lease.name, now, |record, clock, _| {
            let renewal = record.renew(&lease.owner, lease.ttl, clock);
            match flaw {
                Some(Flaw::RenewalShortens) => change(record, &lease.owner, |held| held.until = clock + lease.ttl),
                Some(Flaw::ShrinksShare) => change(record, &lease.owner, |held| held.share = least(held.share)),
                _ => {}
            }
            renewal
        })
    }

    pub(super) fn release(&mut self, lease: &Lease, linger: Duration, now: At) -> Done<ReleaseReply> {
        let flaw = self.flaw;
        if flaw == Some(Flaw::LosesReleases) {
            return Done { answer: ReleaseReply::Released, served: Vec::new(), freed: false };
        }
        let turn = self.on(&lease.name, now, |record, clock, next| {
            let any = anyone(record.holders()).map(|held| held.owner.clone()).filter(|_| flaw == Some(Flaw::ReleasesAnyone));
            record.release(any.as_ref().unwrap_or(&lease.owner), linger, clock, next)
        });
        self.notes(&turn.served);
        Done::of(turn, |answer| answer)
    }

    pub(super) fn inspect(&self, name: Option<&Name>, now: At) -> Vec<Entry> {
        let clock = self.clock(now);
        let names = self.names.iter().filter(|(key, _)| name.is_none_or(|name| name == key));
        names.filter_map(|(name, record)| record.inspect(name, clock)).collect()
    }
}

/// One of those who hold, the same in every run: owners are random, and their order is.
fn anyone<'a>(holders: impl Iterator<Item = &'a Held>) -> Option<&'a Held> {
    holders.min_by_key(|held| held.counter)
}

/// The owner's lease becomes another.
fn change(record: &mut Record, owner: &Owner, change: impl Fn(&mut Held)) {
    let mut holders: Vec<Held> = record.holders().cloned().collect();
    holders.iter_mut().filter(|held| held.owner == *owner).for_each(change);
    *record = Record::new(holders, record.waiters().cloned().collect::<Vec<_>>());
}

/// The smallest share of a kind.
fn least(share: Share) -> Share {
    Share::from_parts(1, share.capacity()).expect("one of something")
}
