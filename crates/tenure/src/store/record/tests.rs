//! Calls on one name at random, and what the lists of the model do not say.

mod model;

use super::*;
use crate::Share;

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
    assert_eq!(case.record.waiters().count(), 300 - 2 * SERVED_AT_ONCE);
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
