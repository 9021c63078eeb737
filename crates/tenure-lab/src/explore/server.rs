//! The far end of the simulated network: names, owners, queues and a grant counter, by the server's own clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tenure::store::record::{Change, Held, Record, Served, Waiter};
use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request};
use tenure::{Entry, Error, Fence, Lease, Name, Owner, Share};

use super::Flaw;
use super::clock::{At, ms, nanos};

const MS: u64 = ms(1);
const RECHECK: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(super) struct Server {
    flaw: Flaw,
    counter: u64,
    names: Vec<(Name, Record)>,
    /// What the last acquisition of each owner was.
    origins: HashMap<Owner, Origin>,
    /// Every number that was given, and to whom.
    given: HashSet<(Owner, u64)>,
    /// What its clock shows more than the virtual time, and less.
    ahead: u64,
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

/// What a command made of a name.
pub(super) struct Done<T> {
    pub(super) answer: T,
    /// To be told that they hold.
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
    pub(super) fn new(names: &[Name], grain: u64, flaw: Flaw) -> Self {
        // The counter begins high, so that a flaw may let it fall; the clock starts ahead, so that it can go back.
        let (counter, ahead) = (1_000, (1 << 40) + grain);
        let names = names.iter().map(|name| (name.clone(), Record::default())).collect();
        Self { flaw, counter, names, origins: HashMap::new(), given: HashSet::new(), ahead, behind: 0 }
    }

    /// What its clock shows.
    fn clock(&self, now: At) -> Duration {
        // In whole milliseconds, as servers count.
        Duration::from_nanos((now + self.ahead - self.behind) / MS * MS)
    }

    pub(super) fn jump_forward(&mut self, by: u64) {
        self.ahead += by;
    }

    pub(super) fn jump_back(&mut self, by: u64) {
        self.behind += by;
    }

    /// Forgets everything but the counter, or one name.
    pub(super) fn forget(&mut self, name: Option<usize>) {
        for (index, (_, record)) in self.names.iter_mut().enumerate() {
            if name.is_none_or(|name| name == index) {
                *record = Record::default();
            }
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
            if flaw == Flaw::FenceFallsBack && counter.is_multiple_of(5) {
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
        let turn = self.on(&request.name, now, |record, clock, next| {
            let turn = record.acquire(&asked, "", clock, next)?;
            if flaw == Flaw::RepeatShortens {
                shorten(record, &asked.owner, clock + asked.ttl);
            }
            Ok::<_, Error>(turn)
        })?;
        self.origins.insert(request.owner.clone(), Origin { sent_at, ran_at: now, copy, ttl: nanos(request.ttl) });
        let mark = Some(self.counter);
        let mut done = Done::of(turn, |answer| answer.acquired(RECHECK, mark));
        if let AcquireReply::Granted(grant) = &mut done.answer {
            grant.ttl = request.ttl;
            self.given.extend(grant.fence.map(|fence| (request.owner.clone(), fence.counter())));
            if flaw == Flaw::TellsOldFence {
                grant.fence = grant.fence.and_then(|fence| Fence::from_counter(fence.counter() - 1));
            }
        }
        self.notes(&done.served);
        Ok(done)
    }

    fn notes(&mut self, served: &[Served]) {
        self.given.extend(served.iter().map(|served| (served.owner.clone(), served.counter)));
    }

    /// What a server that is broken on purpose makes of a request.
    fn as_flawed(&self, request: &Request, now: At) -> Request {
        let mut request = request.clone();
        let holder = || anyone(self.held(&request.name, now).map(|(held, _)| held)).map(|held| held.owner.clone());
        match (self.flaw, &mut request.enqueue) {
            (Flaw::ShortClaim, Enqueue::Join { handoff_ttl: claim, .. }) => *claim /= 2,
            (Flaw::ShortLease, _) => request.ttl -= request.ttl / 10,
            (Flaw::GivenIsMine, _) => request.generated = true,
            (Flaw::AdoptsAnything, _) if request.from.is_some() => request.from = holder(),
            _ => {}
        }
        request
    }

    pub(super) fn renew(&mut self, lease: &Lease, now: At) -> RenewReply {
        let flaw = self.flaw;
        self.on(&lease.name, now, |record, clock, _| {
            let held = anyone(record.holders()).cloned();
            let owner = match held {
                Some(held) if flaw == Flaw::RenewsLinger && held.lingers && held.owner == lease.owner.lingering() => {
                    let revived = held.with_owner(lease.owner.clone()).with_lingers(false);
                    *record = Record::new([revived], record.waiters().cloned().collect::<Vec<_>>());
                    lease.owner.clone()
                }
                Some(held) if flaw == Flaw::RenewsAnyone && !held.lingers => held.owner,
                _ => lease.owner.clone(),
            };
            let renewal = record.renew(&owner, lease.ttl, clock);
            if flaw == Flaw::RenewalShortens {
                shorten(record, &owner, clock + lease.ttl);
            }
            if flaw == Flaw::ShrinksShare {
                change(record, &owner, |held| {
                    let share = least(held.share);
                    held.with_share(share)
                });
            }
            renewal
        })
    }

    pub(super) fn release(&mut self, lease: &Lease, linger: Duration, now: At) -> Done<ReleaseReply> {
        let flaw = self.flaw;
        if flaw == Flaw::LosesReleases {
            return Done { answer: ReleaseReply::Released, served: Vec::new(), freed: false };
        }
        let turn = self.on(&lease.name, now, |record, clock, next| {
            let any = anyone(record.holders()).map(|held| held.owner.clone()).filter(|_| flaw == Flaw::ReleasesAnyone);
            record.release(any.as_ref().unwrap_or(&lease.owner), linger, clock, next)
        });
        self.notes(&turn.served);
        Done::of(turn, |answer| answer)
    }

    pub(super) fn inspect(&self, name: Option<&Name>, now: At) -> Vec<Entry> {
        let clock = self.clock(now);
        let names = self.names.iter().filter(|(key, _)| name.is_none_or(|name| name == key));
        let entry = |(name, record): &(Name, Record)| {
            let (holders, waiters) = record.inspect(clock);
            (!holders.is_empty() || waiters > 0).then(|| Entry::new(name.clone(), holders, waiters))
        };
        names.filter_map(entry).collect()
    }
}

/// One of those who hold, the same in every run: owners are random, and their order is.
fn anyone<'a>(holders: impl Iterator<Item = &'a Held>) -> Option<&'a Held> {
    holders.min_by_key(|held| held.counter)
}

/// The owner's lease ends at `until`, whatever it was.
fn shorten(record: &mut Record, owner: &Owner, until: Duration) {
    change(record, owner, |held| held.with_until(until));
}

/// The owner's lease becomes another.
fn change(record: &mut Record, owner: &Owner, into: impl Fn(Held) -> Held) {
    let holders: Vec<Held> = record.holders().cloned().collect();
    let holders = holders.into_iter().map(|held| if held.owner == *owner { into(held) } else { held });
    *record = Record::new(holders, record.waiters().cloned().collect::<Vec<_>>());
}

/// The smallest share of a kind.
fn least(share: Share) -> Share {
    Share::from_parts(1, share.capacity()).expect("one of something")
}
