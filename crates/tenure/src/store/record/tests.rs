//! Calls on one name, one by one and at random.

mod model;

use super::*;
use crate::{Name, Share};

const TTL: Duration = Duration::from_secs(30);
const KEEP: Duration = Duration::from_millis(2_500);
const CLAIM: Duration = Duration::from_millis(1_500);
const JOIN: Enqueue = Enqueue::Join { entry_ttl: KEEP, handoff_ttl: CLAIM };

/// A record with a clock and a counter.
#[derive(Default)]
struct Desk {
    record: Record,
    now: Duration,
    counter: u64,
}

fn owner(name: &str) -> Owner {
    Owner::from_bytes(name.as_bytes())
}

fn ask(name: &str, share: Share, place: Enqueue) -> Request {
    Request { name: Name::new("door").unwrap(), owner: owner(name), share, ttl: TTL, enqueue: place, generated: true, from: None }
}

fn permits(weight: u32) -> Share {
    Share::permits(weight, 5).unwrap()
}

impl Desk {
    fn turn(&mut self, request: &Request) -> Result<Change<Answer>, Error> {
        let counter = &mut self.counter;
        let mut next = || {
            *counter += 1;
            *counter
        };
        self.record.acquire(request, &format!("wake {}", request.owner), self.now, &mut next)
    }

    /// The counter of a grant that must be given.
    fn takes(&mut self, name: &str, share: Share) -> u64 {
        self.granted(&ask(name, share, JOIN))
    }

    fn granted(&mut self, request: &Request) -> u64 {
        match self.turn(request).unwrap().answer {
            Answer::Granted(grant) => grant.fence.unwrap().counter(),
            busy @ Answer::Busy { .. } => panic!("{:?}: {busy:?}", request.owner),
        }
    }

    /// How many are ahead of one who must not be granted.
    fn waits(&mut self, name: &str, share: Share, place: Enqueue) -> Option<u32> {
        match self.turn(&ask(name, share, place)).unwrap().answer {
            Answer::Busy { position: ahead, .. } => ahead,
            granted @ Answer::Granted(_) => panic!("{name}: {granted:?}"),
        }
    }

    fn frees(&mut self, name: &str) -> Vec<String> {
        let turn = self.release(name, Duration::ZERO);
        assert_eq!(turn.answer, ReleaseReply::Released);
        turn.served.into_iter().map(|served| served.owner.to_string()).collect()
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

    fn holders(&self) -> Vec<String> {
        self.record.inspect(self.now).0.into_iter().map(|holder| holder.owner.to_string()).collect()
    }
}

#[test]
fn waiters_are_served_in_order_with_their_own_claim() {
    let mut desk = Desk::default();
    desk.takes("a", Share::MUTEX);
    assert_eq!(["b", "c", "d"].map(|name| desk.waits(name, Share::MUTEX, JOIN)), [Some(0), Some(1), Some(2)]);
    assert_eq!(desk.waits("c", Share::MUTEX, JOIN), Some(1), "a repeated join has the place it had");
    let turn = desk.release("a", Duration::ZERO);
    let served = Served { owner: owner("b"), counter: 2, handoff_ttl: CLAIM, wake: "wake b".into() };
    assert_eq!((turn.served, turn.freed), (vec![served], false));
    assert_eq!(desk.record.inspect(desk.now).0[0].ttl, Some(CLAIM));
    assert_eq!(desk.granted(&ask("b", Share::MUTEX, Enqueue::Heartbeat)), 3);
    assert_eq!(desk.record.inspect(desk.now).0[0].ttl, Some(TTL), "a served one that comes has its full ttl");
    assert_eq!(desk.frees("c"), [""; 0], "a place is given up");
    assert_eq!(desk.frees("b"), ["d"]);
    assert!(desk.release("d", Duration::ZERO).freed);
    assert!(desk.record.is_empty());
}

#[test]
fn dead_heads_cost_their_claims_and_no_more() {
    let mut desk = Desk::default();
    desk.takes("a", Share::MUTEX);
    for name in ["dead", "dead too", "late"] {
        desk.waits(name, Share::MUTEX, JOIN);
    }
    assert_eq!(desk.frees("a"), ["dead"]);
    desk.passes(CLAIM);
    let turn = desk.turn(&ask("late", Share::MUTEX, Enqueue::Heartbeat)).unwrap();
    assert_eq!(turn.served[0].owner, owner("dead too"));
    assert!(matches!(turn.answer, Answer::Busy { position: Some(0), .. }));
    desk.passes(CLAIM);
    let turn = desk.turn(&ask("late", Share::MUTEX, Enqueue::Heartbeat)).unwrap();
    assert!(matches!(turn.answer, Answer::Granted(_)) && turn.served.is_empty(), "{turn:?}");
    assert_eq!(desk.waits("dead", Share::MUTEX, Enqueue::Heartbeat), None, "one that was served is finished");
}

#[test]
fn a_place_without_heartbeat_lapses_and_a_heartbeat_never_makes_one() {
    let mut desk = Desk::default();
    desk.takes("a", Share::MUTEX);
    assert_eq!(desk.waits("b", Share::MUTEX, Enqueue::Heartbeat), None);
    assert_eq!(desk.waits("b", Share::MUTEX, JOIN), Some(0));
    for _ in 0..5 {
        desk.passes(KEEP / 2);
        assert_eq!(desk.waits("b", Share::MUTEX, Enqueue::Heartbeat), Some(0));
    }
    desk.passes(KEEP);
    assert_eq!(desk.waits("b", Share::MUTEX, Enqueue::Heartbeat), None);
    assert_eq!(desk.record.inspect(desk.now).1, 0);
    desk.frees("a");
    assert_eq!(desk.waits("b", Share::MUTEX, Enqueue::Heartbeat), None, "its token is used up");
    desk.takes("b", Share::MUTEX);
}

#[test]
fn a_heartbeat_tells_where_its_waiter_is() {
    let mut desk = Desk::default();
    desk.takes("a", Share::MUTEX);
    desk.waits("b", Share::MUTEX, JOIN);
    for (place, wake) in [(Enqueue::Heartbeat, "there"), (Enqueue::No, "nowhere")] {
        let turn = desk.record.acquire(&ask("b", Share::MUTEX, place), wake, desk.now, &mut || 0).unwrap();
        assert!(matches!(turn.answer, Answer::Busy { position: Some(0), .. }));
    }
    assert_eq!(desk.release("a", Duration::ZERO).served[0].wake, "there");
}

/// A try neither queues nor overtakes, and a given value never queues.
#[test]
fn only_those_who_may_queue_do() {
    let mut desk = Desk::default();
    desk.takes("a", permits(4));
    let given = Request { generated: false, ..ask("given", permits(3), JOIN) };
    assert!(matches!(desk.turn(&given).unwrap().answer, Answer::Busy { position: None, .. }));
    assert_eq!(desk.waits("b", permits(3), JOIN), Some(0));
    assert_eq!(desk.waits("c", permits(1), Enqueue::No), None, "it fits, and somebody waits");
    assert_eq!(desk.frees("b"), [""; 0]);
    desk.granted(&ask("c", permits(1), Enqueue::No));
}

#[test]
fn a_head_that_does_not_fit_blocks_those_behind_it() {
    let mut desk = Desk::default();
    desk.takes("r1", Share::READ);
    desk.takes("r2", Share::READ);
    assert_eq!(desk.waits("w", Share::WRITE, JOIN), Some(0));
    assert_eq!(desk.waits("r3", Share::READ, JOIN), Some(1));
    assert_eq!(desk.waits("r4", Share::READ, JOIN), Some(2));
    assert_eq!(desk.frees("r1"), [""; 0]);
    assert_eq!(desk.frees("r2"), ["w"]);
    assert_eq!(desk.frees("w"), ["r3", "r4"], "those at the head that fit are served together");
}

#[test]
fn a_smaller_share_lets_others_in_and_none_grows() {
    let mut desk = Desk::default();
    let first = desk.takes("w", Share::WRITE);
    for name in ["r1", "r2"] {
        desk.waits(name, Share::READ, JOIN);
    }
    let turn = desk.turn(&ask("w", Share::READ, Enqueue::No)).unwrap();
    assert_eq!(turn.served.iter().map(|served| served.owner.to_string()).collect::<Vec<_>>(), ["r1", "r2"]);
    assert!(matches!(turn.answer, Answer::Granted(Grant { fence: Some(fence), .. }) if fence.counter() > first));
    let error = desk.turn(&ask("w", Share::WRITE, Enqueue::No)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    assert_eq!(desk.holders(), ["r1", "r2", "w"]);
    assert!(desk.turn(&ask("w", Share::READ, Enqueue::No)).unwrap().served.is_empty());
    desk.waits("late", Share::WRITE, JOIN);
    assert_eq!(desk.turn(&ask("late", Share::READ, Enqueue::Heartbeat)).unwrap().served, [], "a place keeps its share");
    let small = Request { generated: false, ..ask("w", Share::READ, Enqueue::No) };
    assert!(matches!(desk.turn(&small).unwrap().answer, Answer::Busy { .. }), "a given value shrinks nobody");
}

#[test]
fn another_kind_is_refused_by_holders_and_by_waiters() {
    let mut desk = Desk::default();
    desk.takes("a", Share::MUTEX);
    for other in [Share::READ, Share::WRITE, permits(1)] {
        let error = desk.turn(&ask("b", other, JOIN)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("a mutex"), "{error}");
    }
    desk.waits("b", Share::MUTEX, JOIN);
    for _ in 1..TTL.as_secs() {
        desk.passes(Duration::from_secs(1));
        assert_eq!(desk.waits("b", Share::MUTEX, Enqueue::Heartbeat), Some(0));
    }
    desk.passes(Duration::from_secs(1));
    assert_eq!(desk.turn(&ask("c", Share::READ, JOIN)).unwrap_err().kind(), ErrorKind::Mismatch, "b waits for a mutex");
    desk.passes(KEEP);
    desk.takes("c", Share::READ);
}

#[test]
fn each_share_ends_at_its_own_time_and_a_renewal_never_shortens() {
    let mut desk = Desk::default();
    for name in ["a", "b"] {
        desk.takes(name, Share::READ);
    }
    desk.passes(TTL / 2);
    assert_eq!(desk.record.renew(&owner("a"), TTL, desk.now), RenewReply::Renewed);
    assert_eq!(desk.record.renew(&owner("a"), Duration::ZERO, desk.now), RenewReply::Renewed);
    desk.waits("w", Share::WRITE, JOIN);
    assert_eq!(desk.record.renew(&owner("a"), TTL, desk.now), RenewReply::Renewed);
    desk.passes(TTL / 2);
    assert_eq!(desk.record.renew(&owner("b"), TTL, desk.now), RenewReply::Gone);
    assert_eq!(desk.holders(), ["a"]);
}

#[test]
fn a_lingering_share_is_nobodys() {
    let mut desk = Desk::default();
    for name in ["a", "b"] {
        desk.takes(name, permits(2));
    }
    assert_eq!(desk.release("a", CLAIM).answer, ReleaseReply::Released);
    assert_eq!(desk.release("a", TTL).answer, ReleaseReply::Released);
    assert_eq!(desk.record.renew(&owner("a"), TTL, desk.now), RenewReply::Gone);
    assert_eq!(desk.record.renew(&owner("linger:a"), TTL, desk.now), RenewReply::Gone);
    for name in ["a", "linger:a"] {
        assert_eq!(desk.waits(name, permits(1), JOIN), None, "{name} is used up");
    }
    let adopt = Request { from: Some(owner("linger:a")), ..ask("c", permits(2), JOIN) };
    assert!(matches!(desk.turn(&adopt).unwrap().answer, Answer::Busy { position: None, .. }));
    assert_eq!(desk.waits("c", permits(2), JOIN), Some(0));
    assert_eq!(desk.frees("linger:a"), ["c"]);
    assert_eq!(desk.release("linger:b", TTL).answer, ReleaseReply::NotHeld);
    assert_eq!(desk.release("b", CLAIM).answer, ReleaseReply::Released);
    desk.passes(CLAIM);
    assert_eq!(desk.release("b", Duration::ZERO).answer, ReleaseReply::NotHeld);
}

#[test]
fn adoption_swaps_the_owner_and_keeps_the_share() {
    let mut desk = Desk::default();
    let first = desk.takes("a", permits(3));
    let adopt = |to: &str| Request { from: Some(owner("a")), ..ask(to, permits(1), Enqueue::No) };
    assert!(desk.granted(&adopt("b")) > first);
    assert_eq!(desk.record.inspect(desk.now).0[0].share, permits(3));
    assert!(matches!(desk.turn(&adopt("c")).unwrap().answer, Answer::Busy { .. }), "two adopters");
    assert_eq!(desk.holders(), ["b"]);
    let given = Request { generated: false, from: Some(owner("b")), ..ask("b", permits(3), Enqueue::No) };
    assert!(matches!(desk.turn(&given).unwrap().answer, Answer::Busy { .. }), "from itself");
    desk.waits("d", permits(5), JOIN);
    let waiter = Request { from: Some(owner("b")), ..ask("d", permits(5), Enqueue::No) };
    desk.granted(&waiter);
    assert_eq!((desk.holders(), desk.record.inspect(desk.now).1), (vec!["d".to_owned()], 0));
}

/// One call serves so many, and none is forgotten.
#[test]
fn a_long_queue_is_served_in_parts() {
    let mut desk = Desk::default();
    desk.takes("w", Share::WRITE);
    let name = |i: usize| format!("r{i:03}");
    for i in 0..300 {
        desk.waits(&name(i), Share::READ, JOIN);
    }
    assert_eq!(desk.frees("w").len(), SERVED_AT_ONCE);
    assert_eq!(desk.waits("new", Share::READ, Enqueue::No), None);
    assert_eq!(desk.record.inspect(desk.now).1, 300 - 2 * SERVED_AT_ONCE as u64);
    desk.granted(&ask("new", Share::READ, Enqueue::No));
}

/// The work of a call does not grow with the number of those who hold.
#[test]
fn many_readers_cost_each_other_nothing() {
    let mut desk = Desk::default();
    let began = std::time::Instant::now();
    for i in 0..100_000 {
        desk.takes(&i.to_string(), Share::READ);
    }
    for i in 0..100_000 {
        assert!(matches!(desk.record.renew(&owner(&i.to_string()), TTL, desk.now), RenewReply::Renewed));
        desk.frees(&i.to_string());
    }
    assert!(began.elapsed() < Duration::from_secs(30), "300,000 calls took {:?}", began.elapsed());
}
