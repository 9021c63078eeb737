//! Calls on one name, one by one and at random.

mod model;

use super::*;
use crate::{ErrorKind, Share};

const TTL: Duration = Duration::from_secs(30);
const ENTRY_TTL: Duration = Duration::from_millis(2_500);
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);
const JOIN: Enqueue = Enqueue::Join { entry_ttl: ENTRY_TTL, handoff_ttl: HANDOFF_TTL };

/// A record with a clock and a counter.
#[derive(Default)]
struct Case {
    record: Record,
    now: Duration,
    counter: u64,
}

fn owner(name: &str) -> Owner {
    Owner::from_bytes(name.as_bytes())
}

fn ask(name: &str, share: Share, enqueue: Enqueue) -> Request {
    Request { name: Name::new("door").unwrap(), owner: owner(name), share, ttl: TTL, enqueue, generated: true, from: None }
}

fn permits(weight: u32) -> Share {
    Share::permits(weight, 5).unwrap()
}

impl Case {
    fn change(&mut self, request: &Request) -> Result<Change<Answer>, Error> {
        let counter = &mut self.counter;
        let mut next = || {
            *counter += 1;
            *counter
        };
        self.record.acquire(request, &format!("wake {}", request.owner), self.now, &mut next)
    }

    /// Returns the counter of a grant that must be made.
    fn takes(&mut self, name: &str, share: Share) -> u64 {
        self.granted(&ask(name, share, JOIN))
    }

    fn granted(&mut self, request: &Request) -> u64 {
        match self.change(request).unwrap().answer {
            Answer::Granted(grant) => grant.fence.unwrap().counter(),
            busy @ Answer::Busy { .. } => panic!("{:?}: {busy:?}", request.owner),
        }
    }

    /// Returns the position of a waiter that must not be granted.
    fn waits(&mut self, name: &str, share: Share, enqueue: Enqueue) -> Option<u32> {
        match self.change(&ask(name, share, enqueue)).unwrap().answer {
            Answer::Busy { position, .. } => position,
            granted @ Answer::Granted(_) => panic!("{name}: {granted:?}"),
        }
    }

    fn frees(&mut self, name: &str) -> Vec<String> {
        let change = self.release(name, Duration::ZERO);
        assert_eq!(change.answer, ReleaseReply::Released);
        change.served.into_iter().map(|served| served.owner.to_string()).collect()
    }

    fn release(&mut self, name: &str, linger: Duration) -> Change<ReleaseReply> {
        let counter = &mut self.counter;
        let mut next = || {
            *counter += 1;
            *counter
        };
        self.record.release(&owner(name), linger, self.now, &mut next)
    }

    fn passes(&mut self, span: Duration) {
        self.now += span;
    }

    fn entry(&self) -> Entry {
        let name = Name::new("door").unwrap();
        self.record.inspect(&name, self.now).unwrap_or_else(|| Entry::new(name, Vec::new(), Vec::new()))
    }

    fn holders(&self) -> Vec<String> {
        self.entry().holders.into_iter().map(|holder| holder.owner.to_string()).collect()
    }
}

#[test]
fn waiters_are_served_in_order_with_their_own_claim() {
    let mut case = Case::default();
    case.takes("a", Share::MUTEX);
    assert_eq!(["b", "c", "d"].map(|name| case.waits(name, Share::MUTEX, JOIN)), [Some(0), Some(1), Some(2)]);
    assert_eq!(case.waits("c", Share::MUTEX, JOIN), Some(1), "a repeated join keeps its entry");
    let change = case.release("a", Duration::ZERO);
    let served = Served { owner: owner("b"), counter: 2, handoff_ttl: HANDOFF_TTL, wake: "wake b".into() };
    assert_eq!((change.served, change.freed), (vec![served], false));
    assert_eq!(case.entry().holders[0].ttl, Some(HANDOFF_TTL));
    assert_eq!(case.granted(&ask("b", Share::MUTEX, Enqueue::Heartbeat)), 3);
    assert_eq!(case.entry().holders[0].ttl, Some(TTL), "a served one that comes has its full ttl");
    assert_eq!(case.frees("c"), [""; 0], "an entry is released");
    assert_eq!(case.frees("b"), ["d"]);
    assert!(case.release("d", Duration::ZERO).freed);
    assert!(case.record.is_empty());
}

#[test]
fn dead_heads_cost_their_claims_and_no_more() {
    let mut case = Case::default();
    case.takes("a", Share::MUTEX);
    for name in ["dead", "dead too", "late"] {
        case.waits(name, Share::MUTEX, JOIN);
    }
    assert_eq!(case.frees("a"), ["dead"]);
    case.passes(HANDOFF_TTL);
    let change = case.change(&ask("late", Share::MUTEX, Enqueue::Heartbeat)).unwrap();
    assert_eq!(change.served[0].owner, owner("dead too"));
    assert!(matches!(change.answer, Answer::Busy { position: Some(0), .. }));
    case.passes(HANDOFF_TTL);
    let change = case.change(&ask("late", Share::MUTEX, Enqueue::Heartbeat)).unwrap();
    assert!(matches!(change.answer, Answer::Granted(_)) && change.served.is_empty(), "{change:?}");
    assert_eq!(case.waits("dead", Share::MUTEX, Enqueue::Heartbeat), None, "one that was served is finished");
}

#[test]
fn a_place_without_heartbeat_lapses_and_a_heartbeat_never_makes_one() {
    let mut case = Case::default();
    case.takes("a", Share::MUTEX);
    assert_eq!(case.waits("b", Share::MUTEX, Enqueue::Heartbeat), None);
    assert_eq!(case.waits("b", Share::MUTEX, JOIN), Some(0));
    for _ in 0..5 {
        case.passes(ENTRY_TTL / 2);
        assert_eq!(case.waits("b", Share::MUTEX, Enqueue::Heartbeat), Some(0));
    }
    case.passes(ENTRY_TTL);
    assert_eq!(case.waits("b", Share::MUTEX, Enqueue::Heartbeat), None);
    assert_eq!(case.entry().waiters, []);
    case.frees("a");
    assert_eq!(case.waits("b", Share::MUTEX, Enqueue::Heartbeat), None, "its token is used up");
    case.takes("b", Share::MUTEX);
}

#[test]
fn a_heartbeat_tells_where_its_waiter_is() {
    let mut case = Case::default();
    case.takes("a", Share::MUTEX);
    case.waits("b", Share::MUTEX, JOIN);
    for (enqueue, wake) in [(Enqueue::Heartbeat, "there"), (Enqueue::No, "nowhere")] {
        let change = case.record.acquire(&ask("b", Share::MUTEX, enqueue), wake, case.now, &mut || 0).unwrap();
        assert!(matches!(change.answer, Answer::Busy { position: Some(0), .. }));
    }
    assert_eq!(case.release("a", Duration::ZERO).served[0].wake, "there");
}

/// An attempt neither queues nor overtakes, and a supplied token never queues.
#[test]
fn only_those_who_may_queue_do() {
    let mut case = Case::default();
    case.takes("a", permits(4));
    let given = Request { generated: false, ..ask("given", permits(3), JOIN) };
    assert!(matches!(case.change(&given).unwrap().answer, Answer::Busy { position: None, .. }));
    assert_eq!(case.waits("b", permits(3), JOIN), Some(0));
    assert_eq!(case.waits("c", permits(1), Enqueue::No), None, "it fits, and somebody waits");
    assert_eq!(case.frees("b"), [""; 0]);
    case.granted(&ask("c", permits(1), Enqueue::No));
}

#[test]
fn a_head_that_does_not_fit_blocks_those_behind_it() {
    let mut case = Case::default();
    case.takes("r1", Share::READ);
    case.takes("r2", Share::READ);
    assert_eq!(case.waits("w", Share::WRITE, JOIN), Some(0));
    assert_eq!(case.waits("r3", Share::READ, JOIN), Some(1));
    assert_eq!(case.waits("r4", Share::READ, JOIN), Some(2));
    assert_eq!(case.frees("r1"), [""; 0]);
    assert_eq!(case.frees("r2"), ["w"]);
    assert_eq!(case.frees("w"), ["r3", "r4"], "those at the head that fit are served together");
}

#[test]
fn a_smaller_share_lets_others_in_and_none_grows() {
    let mut case = Case::default();
    let first = case.takes("w", Share::WRITE);
    for name in ["r1", "r2"] {
        case.waits(name, Share::READ, JOIN);
    }
    let change = case.change(&ask("w", Share::READ, Enqueue::No)).unwrap();
    assert_eq!(change.served.iter().map(|served| served.owner.to_string()).collect::<Vec<_>>(), ["r1", "r2"]);
    assert!(matches!(change.answer, Answer::Granted(Grant { fence: Some(fence), .. }) if fence.counter() > first));
    let error = case.change(&ask("w", Share::WRITE, Enqueue::No)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    assert_eq!(case.holders(), ["r1", "r2", "w"]);
    assert!(case.change(&ask("w", Share::READ, Enqueue::No)).unwrap().served.is_empty());
    case.waits("late", Share::WRITE, JOIN);
    assert_eq!(case.change(&ask("late", Share::READ, Enqueue::Heartbeat)).unwrap().served, [], "an entry keeps its share");
    let small = Request { generated: false, ..ask("w", Share::READ, Enqueue::No) };
    assert!(matches!(case.change(&small).unwrap().answer, Answer::Busy { .. }), "a supplied token shrinks nobody");
}

#[test]
fn another_kind_is_refused_by_holders_and_by_waiters() {
    let mut case = Case::default();
    case.takes("a", Share::MUTEX);
    let error = case.change(&ask("b", permits(1), JOIN)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.to_string().contains("a mutex"), "{error}");
    case.waits("b", Share::MUTEX, JOIN);
    for _ in 1..TTL.as_secs() {
        case.passes(Duration::from_secs(1));
        assert_eq!(case.waits("b", Share::MUTEX, Enqueue::Heartbeat), Some(0));
    }
    case.passes(Duration::from_secs(1));
    assert_eq!(case.change(&ask("c", permits(1), JOIN)).unwrap_err().kind(), ErrorKind::Mismatch, "b waits for a mutex");
    case.passes(ENTRY_TTL);
    case.takes("c", permits(1));
}

#[test]
fn a_mutex_is_the_writer_of_a_read_write_lock() {
    let mut case = Case::default();
    case.takes("r1", Share::READ);
    assert_eq!(case.waits("m", Share::MUTEX, JOIN), Some(0));
    assert_eq!(case.waits("r2", Share::READ, JOIN), Some(1));
    assert_eq!(case.waits("w", Share::WRITE, JOIN), Some(2));
    assert_eq!(case.frees("r1"), ["m"]);
    let error = case.change(&ask("m", Share::READ, Enqueue::No)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "a mutex has no part: {error}");
    let adopts = Request { from: Some(owner("m")), ..ask("n", Share::WRITE, Enqueue::No) };
    assert!(matches!(case.change(&adopts).unwrap().answer, Answer::Busy { .. }), "it is taken over as what it is");
    assert_eq!(case.release("m", TTL).served, []);
    assert_eq!(case.waits("r3", Share::READ, Enqueue::No), None, "what lingers keeps readers out");
    case.passes(ENTRY_TTL / 2);
    for (name, share) in [("r2", Share::READ), ("w", Share::WRITE)] {
        case.waits(name, share, Enqueue::Heartbeat);
    }
    assert_eq!(case.release(&owner("m").lingering().to_string(), Duration::ZERO).served[0].owner, owner("r2"));
    assert_eq!(case.frees("r2"), ["w"]);
    assert_eq!(case.waits("late", Share::MUTEX, Enqueue::No), None);
    assert!(case.release("w", Duration::ZERO).freed);
}

#[test]
fn each_share_ends_at_its_own_time_and_a_renewal_never_shortens() {
    let mut case = Case::default();
    for name in ["a", "b"] {
        case.takes(name, Share::READ);
    }
    case.passes(TTL / 2);
    assert_eq!(case.record.renew(&owner("a"), TTL, case.now), RenewReply::Renewed);
    assert_eq!(case.record.renew(&owner("a"), Duration::ZERO, case.now), RenewReply::Renewed);
    case.waits("w", Share::WRITE, JOIN);
    assert_eq!(case.record.renew(&owner("a"), TTL, case.now), RenewReply::Renewed);
    case.passes(TTL / 2);
    assert_eq!(case.record.renew(&owner("b"), TTL, case.now), RenewReply::Gone);
    assert_eq!(case.holders(), ["a"]);
}

#[test]
fn a_lingering_share_is_nobodys() {
    let mut case = Case::default();
    for name in ["a", "b"] {
        case.takes(name, permits(2));
    }
    assert_eq!(case.release("a", HANDOFF_TTL).answer, ReleaseReply::Released);
    assert_eq!(case.release("a", TTL).answer, ReleaseReply::Released);
    assert_eq!(case.record.renew(&owner("a"), TTL, case.now), RenewReply::Gone);
    assert_eq!(case.record.renew(&owner("linger:a"), TTL, case.now), RenewReply::Gone);
    for name in ["a", "linger:a"] {
        assert_eq!(case.waits(name, permits(1), JOIN), None, "{name} is used up");
    }
    let adopt = Request { from: Some(owner("linger:a")), ..ask("c", permits(2), JOIN) };
    assert!(matches!(case.change(&adopt).unwrap().answer, Answer::Busy { position: None, .. }));
    assert_eq!(case.waits("c", permits(2), JOIN), Some(0));
    assert_eq!(case.frees("linger:a"), ["c"]);
    assert_eq!(case.release("linger:b", TTL).answer, ReleaseReply::NotHeld);
    assert_eq!(case.release("b", HANDOFF_TTL).answer, ReleaseReply::Released);
    case.passes(HANDOFF_TTL);
    assert_eq!(case.release("b", Duration::ZERO).answer, ReleaseReply::NotHeld);
}

#[test]
fn adoption_swaps_the_owner_and_keeps_the_share() {
    let mut case = Case::default();
    let first = case.takes("a", permits(3));
    let adopt = |to: &str| Request { from: Some(owner("a")), ..ask(to, permits(1), Enqueue::No) };
    assert!(case.granted(&adopt("b")) > first);
    assert_eq!(case.entry().holders[0].share, permits(3));
    assert!(matches!(case.change(&adopt("c")).unwrap().answer, Answer::Busy { .. }), "two adopters");
    assert_eq!(case.holders(), ["b"]);
    let given = Request { generated: false, from: Some(owner("b")), ..ask("b", permits(3), Enqueue::No) };
    assert!(matches!(case.change(&given).unwrap().answer, Answer::Busy { .. }), "from itself");
    case.waits("d", permits(5), JOIN);
    let waiter = Request { from: Some(owner("b")), ..ask("d", permits(5), Enqueue::No) };
    case.granted(&waiter);
    assert_eq!((case.holders(), case.entry().waiters), (vec!["d".to_owned()], vec![]));
}

/// One call serves a limited number, and none is forgotten.
#[test]
fn a_long_queue_is_served_in_parts() {
    let mut case = Case::default();
    case.takes("w", Share::WRITE);
    let name = |i: usize| format!("r{i:03}");
    for i in 0..300 {
        case.waits(&name(i), Share::READ, JOIN);
    }
    assert_eq!(case.frees("w").len(), SERVED_AT_ONCE);
    assert_eq!(case.waits("new", Share::READ, Enqueue::No), None);
    assert_eq!(case.entry().waiters.len(), 300 - 2 * SERVED_AT_ONCE);
    case.granted(&ask("new", Share::READ, Enqueue::No));
}

/// The work of a call does not grow with the number of holders.
#[test]
fn many_readers_cost_each_other_nothing() {
    let mut case = Case::default();
    let began = std::time::Instant::now();
    for i in 0..100_000 {
        case.takes(&i.to_string(), Share::READ);
    }
    for i in 0..100_000 {
        assert!(matches!(case.record.renew(&owner(&i.to_string()), TTL, case.now), RenewReply::Renewed));
        case.frees(&i.to_string());
    }
    assert!(began.elapsed() < Duration::from_secs(30), "300,000 calls took {:?}", began.elapsed());
}
