//! Comparison of the record with plain lists that have no shortcuts.

use super::*;
use crate::{ErrorKind, Name, Share};

const OWNERS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "linger:a"];

#[derive(Debug, Clone, PartialEq)]
struct Lease {
    owner: Owner,
    share: Share,
    counter: u64,
    since: u64,
    until: u64,
    lingers: bool,
}

#[derive(Debug, Clone)]
struct Spot {
    owner: Owner,
    share: Share,
    entry_ttl: u64,
    handoff_ttl: u64,
    until: u64,
}

/// The contract, word for word.
#[derive(Default)]
struct Lists {
    held: Vec<Lease>,
    queue: Vec<Spot>,
    counter: u64,
}

/// An answer in the terms of both.
#[derive(Debug, PartialEq)]
enum Told {
    Granted { counter: u64 },
    Busy { position: Option<u32>, holder: bool },
    Failed(ErrorKind),
    Renewed,
    Gone,
    Released(ReleaseReply),
}

type Said = (Told, Vec<(Owner, u64, u64)>, bool);

fn seconds(span: Duration) -> u64 {
    span.as_secs()
}

impl Lists {
    fn drop_dead(&mut self, now: u64) {
        self.held.retain(|lease| lease.until > now);
        self.queue.retain(|place| place.until > now);
    }

    fn taken(&self) -> u64 {
        self.held.iter().map(|lease| u64::from(lease.share.counted().weight())).sum()
    }

    fn fits(&self, share: Share) -> bool {
        let share = share.counted();
        self.taken() + u64::from(share.weight()) <= u64::from(share.capacity())
    }

    fn is_open(&self) -> bool {
        let capacity = self.held.first().map_or(1, |lease| u64::from(lease.share.counted().capacity()));
        self.queue.is_empty() && self.taken() < capacity
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn serve(&mut self, now: u64) -> Vec<(Owner, u64, u64)> {
        let mut served = Vec::new();
        while !self.queue.is_empty() && self.fits(self.queue[0].share) {
            let Spot { owner, share, handoff_ttl, .. } = self.queue.remove(0);
            let counter = self.count();
            self.held.push(Lease { owner: owner.clone(), share, counter, since: now, until: now + handoff_ttl, lingers: false });
            served.push((owner, counter, handoff_ttl));
        }
        served
    }

    fn known(&self, owner: &Owner) -> bool {
        self.held.iter().any(|lease| lease.owner == *owner || lease.lingers && lease.owner == owner.lingering())
    }

    fn acquire(&mut self, request: &Request, now: u64) -> Said {
        self.drop_dead(now);
        let Request { owner, share, ttl, generated, .. } = request;
        let shares = self.held.iter().map(|lease| (&lease.owner, lease.share));
        let mut shares = shares.chain(self.queue.iter().map(|place| (&place.owner, place.share)));
        if shares.clone().any(|(_, other)| other.counted().capacity() != share.counted().capacity()) {
            return (Told::Failed(ErrorKind::Mismatch), Vec::new(), false);
        }
        if *generated
            && shares.any(|(of, has)| of == owner && (has.capacity() != share.capacity() || has.weight() < share.weight()))
        {
            return (Told::Failed(ErrorKind::Invalid), Vec::new(), false);
        }
        let place = self.queue.iter_mut().find(|place| place.owner == *owner && request.enqueue != Enqueue::No);
        if let Some(place) = place {
            place.until = now + place.entry_ttl;
        }
        let mut served = self.serve(now);
        let until = now + seconds(*ttl);
        let mine = self.held.iter().position(|lease| lease.owner == *owner && *generated);
        let theirs = request.from.as_ref().filter(|_| !self.known(owner));
        let theirs = theirs.and_then(|from| {
            self.held.iter().position(|lease| lease.owner == *from && lease.share.capacity() == share.capacity())
        });
        if let Some(at) = mine.or(theirs).filter(|at| !self.held[*at].lingers) {
            served.retain(|(of, ..)| of != owner);
            let counter = self.count();
            let lease = &mut self.held[at];
            let (shrinks, same) = (share.weight() < lease.share.weight(), lease.owner == *owner);
            lease.counter = counter;
            if same {
                (lease.share, lease.until) = (*share, lease.until.max(until));
            } else {
                (lease.owner, lease.since, lease.until) = (owner.clone(), now, until);
                self.queue.retain(|place| place.owner != *owner);
            }
            let freed = if same && shrinks {
                served.extend(self.serve(now));
                self.is_open()
            } else {
                false
            };
            return (Told::Granted { counter }, served, freed);
        }
        let new = request.from.is_none() && !self.known(owner);
        if new && request.enqueue != Enqueue::Heartbeat && self.queue.is_empty() && self.fits(*share) {
            let counter = self.count();
            self.held.push(Lease { owner: owner.clone(), share: *share, counter, since: now, until, lingers: false });
            return (Told::Granted { counter }, served, false);
        }
        let has_place = self.queue.iter().any(|place| place.owner == *owner);
        if let Enqueue::Join { entry_ttl, handoff_ttl } = request.enqueue
            && new
            && *generated
            && !has_place
        {
            let (entry_ttl, handoff_ttl) = (seconds(entry_ttl), seconds(handoff_ttl));
            self.queue.push(Spot { owner: owner.clone(), share: *share, entry_ttl, handoff_ttl, until: now + entry_ttl });
        }
        let position = self.queue.iter().position(|place| place.owner == *owner).map(|at| u32::try_from(at).unwrap());
        (Told::Busy { position, holder: !self.held.is_empty() }, served, false)
    }

    fn renew(&mut self, owner: &Owner, ttl: u64, now: u64) -> Said {
        self.drop_dead(now);
        let lease = self.held.iter_mut().find(|lease| lease.owner == *owner && !lease.lingers);
        let told = lease.map_or(Told::Gone, |lease| {
            lease.until = lease.until.max(now + ttl);
            Told::Renewed
        });
        (told, Vec::new(), false)
    }

    fn release(&mut self, owner: &Owner, linger: u64, now: u64) -> Said {
        self.drop_dead(now);
        let (holders, places) = (self.held.len(), self.queue.len());
        self.queue.retain(|place| place.owner != *owner);
        let lease = self.held.iter().find(|lease| lease.owner == *owner).cloned();
        self.held.retain(|lease| lease.owner != *owner);
        let gave_up = (self.held.len(), self.queue.len()) != (holders, places);
        let lingers = self.held.iter().any(|lease| lease.lingers && lease.owner == owner.lingering());
        if let Some(lease) = lease.filter(|lease| !lease.lingers && linger > 0) {
            self.held.retain(|other| other.owner != owner.lingering());
            self.held.push(Lease { owner: owner.lingering(), until: now + linger, lingers: true, ..lease });
        }
        let served = self.serve(now);
        let released = if gave_up || lingers { ReleaseReply::Released } else { ReleaseReply::NotHeld };
        (Told::Released(released), served, gave_up && self.is_open())
    }
}

fn said<T>(change: Change<T>, told: impl FnOnce(T) -> Told) -> Said {
    let served = change.served.into_iter().map(|served| (served.owner, served.counter, seconds(served.handoff_ttl))).collect();
    (told(change.answer), served, change.freed)
}

fn told(answer: Answer) -> Told {
    match answer {
        Answer::Granted(grant) => Told::Granted { counter: grant.fence.unwrap().counter() },
        Answer::Busy { position, holder } => Told::Busy { position, holder: holder.is_some() },
    }
}

fn random_request(random: &mut fastrand::Rng, capacity: u32) -> Request {
    let capacity = match random.u8(..40) {
        0 => 2,
        // A mutex is the writer of a read/write lock.
        1..10 if capacity == u32::MAX => 1,
        _ => capacity,
    };
    let weights = [1, capacity.div_ceil(2), capacity];
    let share: Share =
        serde_json::from_value(serde_json::json!({ "weight": weights[random.usize(..3)], "capacity": capacity })).unwrap();
    let span = |random: &mut fastrand::Rng| Duration::from_secs(random.u64(1..9));
    let place = match random.u8(..5) {
        0 | 1 => Enqueue::Join { entry_ttl: span(random), handoff_ttl: span(random) },
        2 | 3 => Enqueue::Heartbeat,
        _ => Enqueue::No,
    };
    let from = (random.u8(..8) == 0).then(|| owner(OWNERS[random.usize(..7)]));
    let (name, owner) = (Name::new("door").unwrap(), owner(OWNERS[random.usize(..7)]));
    Request { name, owner, share, ttl: span(random), enqueue: place, generated: random.u8(..6) > 0, from }
}

/// Calls in any order have the answers of the lists, and never more is granted than there is.
#[test]
fn the_record_is_as_the_lists() {
    for seed in 0..3_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let capacity = [1, 3, 5, u32::MAX][random.usize(..4)];
        let (mut case, mut lists) = (Case::default(), Lists::default());
        for step in 0..60 {
            case.passes(Duration::from_secs(random.u64(..3)));
            let now = seconds(case.now);
            let who = owner(OWNERS[random.usize(..7)]);
            let span = if random.bool() { 0 } else { random.u64(1..9) };
            let (call, got, expected) = match random.u8(..10) {
                0 => {
                    let renewal = case.record.renew(&who, Duration::from_secs(span), case.now);
                    let told = match renewal {
                        RenewReply::Renewed => Told::Renewed,
                        RenewReply::Gone => Told::Gone,
                    };
                    (format!("renew {who} {span}"), (told, Vec::new(), false), lists.renew(&who, span, now))
                }
                1..=3 => {
                    let change = case.release(&who.to_string(), Duration::from_secs(span));
                    (format!("release {who} {span}"), said(change, Told::Released), lists.release(&who, span, now))
                }
                _ => {
                    let request = random_request(&mut random, capacity);
                    let got = match case.change(&request) {
                        Ok(change) => said(change, told),
                        Err(error) => (Told::Failed(error.kind()), Vec::new(), false),
                    };
                    (format!("{request:?}"), got, lists.acquire(&request, now))
                }
            };
            let at = format!("seed {seed}, step {step}, at {now}: {call}");
            assert_eq!(got, expected, "{at}");
            same_state(&case, &lists, &at);
            // What a store writes and reads back is the same record.
            case.record = Record::new(case.record.holders().cloned(), case.record.waiters().cloned());
        }
    }
}

fn same_state(case: &Case, lists: &Lists, at: &str) {
    let mut held: Vec<Lease> = lists.held.clone();
    held.sort_by(|a, b| a.owner.cmp(&b.owner));
    let ours: Vec<Lease> = case
        .record
        .holders()
        .map(|held| {
            let Held { owner, share, counter, since, until, lingers } = held.clone();
            Lease { owner, share, counter, since: seconds(since), until: seconds(until), lingers }
        })
        .collect();
    assert_eq!(ours, held, "{at}");
    let places = |waiter: &Waiter| (waiter.owner.clone(), waiter.share, seconds(waiter.until));
    let ours: Vec<_> = case.record.waiters().map(places).collect();
    let theirs: Vec<_> = lists.queue.iter().map(|place| (place.owner.clone(), place.share, place.until)).collect();
    assert_eq!(ours, theirs, "{at}");
    let capacity = held.first().map_or(1, |lease| lease.share.counted().capacity());
    assert!(lists.taken() <= u64::from(capacity), "{at}: more is taken than there is");
}
