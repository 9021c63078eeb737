use super::*;
use crate::lease::{State, Terms};
use crate::{Name, Owner, Share};

const TTL: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> BootTime {
    BootTime::from_boot(Duration::from_secs(seconds))
}

fn held(table: &mut LeaseTable, since: u64) -> (Id, Arc<HeldLease>) {
    let (name, owner) = (Name::new("n").unwrap(), Owner::generate("").unwrap());
    let lease = Lease::new(name, owner, Share::MUTEX, TTL);
    let guard = Duration::from_secs(3);
    let terms = Terms {
        ttl: TTL,
        drift: 0.01,
        safety_margin: guard,
        renews: true,
        max_hold: None,
        min_hold: Duration::ZERO,
        linger: Duration::ZERO,
        hands_on: true,
    };
    let held = Arc::new(HeldLease::new(lease, terms, "".into(), at(since), TTL));
    (table.insert(Arc::clone(&held)).0, held)
}

const RENEWED: Result<RenewReply, Error> = Ok(RenewReply::Renewed);

#[test]
fn an_answer_after_the_deadline_changes_nothing() {
    let mut table = LeaseTable::default();
    let (_, held) = held(&mut table, 100);
    let sent = table.take_renewals(at(110)).remove(0);
    let until = held.valid_until();
    table.renewed(sent, at(110), RENEWED, until).notify();
    assert_eq!((held.valid_until(), held.state(until)), (until, State::Lost), "a lease that was reported lost is valid again");
}

#[test]
fn renewals_share_a_batch_when_they_are_near() {
    let mut table = LeaseTable::default();
    for since in [100, 101, 105] {
        let _ = held(&mut table, since);
    }
    assert_eq!(table.next_deadline(), Some(at(110)));
    assert!(table.take_renewals(at(109)).is_empty());
    assert_eq!(table.take_renewals(at(110)).len(), 2, "the one that is due, and the one that is within ttl/30");
    assert!(table.take_renewals(at(110)).is_empty(), "what is under way is not sent again");
    table.requeue(at(120));
    assert_eq!(table.take_renewals(at(120)).len(), 3, "what died with its task is due again");
}

#[test]
fn tenures_end_at_their_deadline_and_not_before() {
    let mut table = LeaseTable::default();
    let (id, held) = held(&mut table, 100);
    let until = held.valid_until();
    table.end_due(until - Duration::from_nanos(1)).notify();
    assert!(table.holds(id) && !held.ended().is_cancelled());
    table.end_due(until).notify();
    assert!(!table.holds(id) && held.ended().is_cancelled());
    assert_eq!(table.next_deadline(), None);
}

#[test]
fn a_renewal_is_due_a_third_of_the_ttl_after_the_last_was_sent() {
    let mut table = LeaseTable::default();
    let (_, held) = held(&mut table, 100);
    let sent = table.take_renewals(at(112)).remove(0);
    table.renewed(sent, at(112), RENEWED, at(113)).notify();
    assert_eq!(table.next_deadline(), Some(at(122)));
    let sent = table.take_renewals(at(122)).remove(0);
    table.renewed(sent, at(122), Err(Error::unreachable("no answer")), at(123)).notify();
    assert_eq!(held.state(at(123)), State::Jeopardy);
    let next = table.next_deadline().unwrap();
    assert!(next > at(123) && next < at(124), "{next:?}");
}

#[test]
fn the_first_appointment_is_the_renewal_or_the_deadline() {
    let mut table = LeaseTable::default();
    let (_, renewed) = held(&mut table, 100);
    let lease = renewed.snapshot();
    for (renews, first) in [(true, at(110)), (false, renewed.valid_until())] {
        let terms = Terms { renews, ..renewed.terms };
        let (_, told) = table.insert(Arc::new(HeldLease::new(lease.clone(), terms, "".into(), at(100), TTL)));
        assert_eq!(told, first);
    }
}

fn extension(ttl: Duration) -> (Extension, oneshot::Receiver<Result<(), Error>>) {
    let (answer, answered) = oneshot::channel();
    (Extension { ttl, answer }, answered)
}

#[test]
fn an_extension_is_the_next_renewal_and_its_ttl_stays() {
    let mut table = LeaseTable::default();
    let (id, held) = held(&mut table, 100);
    let (first, mut answered) = extension(TTL * 2);
    table.extend(id, extension(TTL * 3).0, at(101)).unwrap();
    table.extend(id, first, at(101)).expect("nobody waits for the one before");
    assert!(table.extend(id, extension(TTL).0, at(101)).is_err(), "one at a time");
    let sent = table.take_renewals(at(101)).remove(0);
    assert_eq!(sent.lease.ttl, TTL * 2);
    // The next extension is requested while this one is under way.
    table.extend(id, extension(TTL * 3).0, at(102)).unwrap();
    assert!(table.take_renewals(at(110)).is_empty(), "it waits for the one under way");
    table.renewed(sent, at(101), RENEWED, at(103)).notify();
    assert!(answered.try_recv().unwrap().is_ok());
    assert_eq!((held.snapshot().ttl, held.store_until()), (TTL * 2, at(161)));
    assert_eq!(table.take_renewals(at(103)).remove(0).lease.ttl, TTL * 3);
}

#[test]
fn what_dies_with_its_task_is_due_again_unless_it_was_fixed() {
    let mut table = LeaseTable::default();
    let (_, waiting) = held(&mut table, 100);
    let terms = Terms { renews: false, ..waiting.terms };
    let (fixed, _) = table.insert(Arc::new(HeldLease::new(waiting.snapshot(), terms, "".into(), at(100), TTL)));
    let (asked, mut answered) = extension(TTL);
    table.extend(fixed, asked, at(101)).unwrap();
    drop(table.take_renewals(at(101)));
    table.requeue(at(102));
    assert!(answered.try_recv().is_err(), "an outcome that nobody knows is reported");
    assert!(table.take_renewals(at(109)).is_empty(), "a fixed lease is renewed, or one that was not under way");
    assert_eq!(table.take_renewals(at(110)).len(), 1);
    assert!(table.holds(fixed));
}

#[test]
fn what_is_to_be_cleared_is_handed_out_once() {
    let mut table = LeaseTable::default();
    let (id, held) = held(&mut table, 100);
    let release = PendingRelease { lease: held.snapshot(), lingers_until: at(0), until: at(130), late: false, once: false };
    table.add_pending(release);
    let taken = table.take_pending();
    assert!(taken.len() == 1 && taken[0].0 != id && table.take_pending().is_empty() && !table.nothing_pending());
    table.requeue(at(101));
    assert_eq!(table.take_pending().len(), 1, "its task has died");
    table.remove_pending(taken[0].0);
    assert!(table.nothing_pending());
}
