use super::*;
use crate::lease::{State, Terms};
use crate::{Name, Owner, Share};

const TTL: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> BootTime {
    BootTime::from_boot(Duration::from_secs(seconds))
}

fn held(book: &mut Book, since: u64) -> (Id, Arc<Tenure>) {
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
    };
    let tenure = Arc::new(Tenure::new(lease, terms, "".into(), at(since), TTL));
    (book.hold(Arc::clone(&tenure)).0, tenure)
}

const RENEWED: Result<RenewReply, Error> = Ok(RenewReply::Renewed);

#[test]
fn an_answer_after_the_deadline_changes_nothing() {
    let mut book = Book::default();
    let (_, tenure) = held(&mut book, 100);
    let sent = book.take_renewals(at(110)).remove(0);
    let until = tenure.believed_until();
    book.renewed(sent, at(110), RENEWED, until).tell();
    assert_eq!((tenure.believed_until(), tenure.state(until)), (until, State::Lost), "what was told lost was believed again");
}

#[test]
fn renewals_share_a_batch_when_they_are_near() {
    let mut book = Book::default();
    for since in [100, 101, 105] {
        let _ = held(&mut book, since);
    }
    assert_eq!(book.next_appointment(), Some(at(110)));
    assert!(book.take_renewals(at(109)).is_empty());
    assert_eq!(book.take_renewals(at(110)).len(), 2, "the one that is due, and the one that is within ttl/30");
    assert!(book.take_renewals(at(110)).is_empty(), "what is under way is not sent again");
    book.strand(at(120));
    assert_eq!(book.take_renewals(at(120)).len(), 3, "what died with its task is due again");
}

#[test]
fn tenures_end_at_their_deadline_and_not_before() {
    let mut book = Book::default();
    let (id, tenure) = held(&mut book, 100);
    let until = tenure.believed_until();
    book.end_due(until - Duration::from_nanos(1)).tell();
    assert!(book.holds(id) && !tenure.ended.is_cancelled());
    book.end_due(until).tell();
    assert!(!book.holds(id) && tenure.ended.is_cancelled());
    assert_eq!(book.next_appointment(), None);
}

#[test]
fn a_renewal_is_due_a_third_of_the_ttl_after_the_last_was_sent() {
    let mut book = Book::default();
    let (_, tenure) = held(&mut book, 100);
    let sent = book.take_renewals(at(112)).remove(0);
    book.renewed(sent, at(112), RENEWED, at(113)).tell();
    assert_eq!(book.next_appointment(), Some(at(122)));
    let sent = book.take_renewals(at(122)).remove(0);
    book.renewed(sent, at(122), Err(Error::unreachable("no answer")), at(123)).tell();
    assert_eq!(tenure.state(at(123)), State::Jeopardy);
    let next = book.next_appointment().unwrap();
    assert!(next > at(123) && next < at(124), "{next:?}");
}

#[test]
fn the_first_appointment_is_the_renewal_or_the_deadline() {
    let mut book = Book::default();
    let (_, renewed) = held(&mut book, 100);
    let lease = renewed.lease();
    for (renews, first) in [(true, at(110)), (false, renewed.believed_until())] {
        let terms = Terms { renews, ..renewed.terms };
        let (_, told) = book.hold(Arc::new(Tenure::new(lease.clone(), terms, "".into(), at(100), TTL)));
        assert_eq!(told, first);
    }
}

fn extension(ttl: Duration) -> (Extension, oneshot::Receiver<Result<(), Error>>) {
    let (answer, answered) = oneshot::channel();
    (Extension { ttl, answer }, answered)
}

#[test]
fn an_extension_is_the_next_renewal_and_its_ttl_stays() {
    let mut book = Book::default();
    let (id, tenure) = held(&mut book, 100);
    let (first, mut answered) = extension(TTL * 2);
    book.extend(id, extension(TTL * 3).0, at(101)).unwrap();
    book.extend(id, first, at(101)).expect("nobody waits for the one before");
    assert!(book.extend(id, extension(TTL).0, at(101)).is_err(), "one at a time");
    let sent = book.take_renewals(at(101)).remove(0);
    assert_eq!(sent.lease.ttl, TTL * 2);
    // The next is asked for while this one is under way.
    book.extend(id, extension(TTL * 3).0, at(102)).unwrap();
    assert!(book.take_renewals(at(110)).is_empty(), "it waits for the one under way");
    book.renewed(sent, at(101), RENEWED, at(103)).tell();
    assert!(answered.try_recv().unwrap().is_ok());
    assert_eq!((tenure.lease().ttl, tenure.store_until()), (TTL * 2, at(161)));
    assert_eq!(book.take_renewals(at(103)).remove(0).lease.ttl, TTL * 3);
}

#[test]
fn what_dies_with_its_task_is_due_again_unless_it_was_fixed() {
    let mut book = Book::default();
    let (_, waiting) = held(&mut book, 100);
    let terms = Terms { renews: false, ..waiting.terms };
    let (fixed, _) = book.hold(Arc::new(Tenure::new(waiting.lease(), terms, "".into(), at(100), TTL)));
    let (asked, mut answered) = extension(TTL);
    book.extend(fixed, asked, at(101)).unwrap();
    drop(book.take_renewals(at(101)));
    book.strand(at(102));
    assert!(answered.try_recv().is_err(), "nobody is told of what nobody knows");
    assert!(book.take_renewals(at(109)).is_empty(), "a fixed lease is renewed, or one that was not under way");
    assert_eq!(book.take_renewals(at(110)).len(), 1);
    assert!(book.holds(fixed));
}

#[test]
fn what_is_to_be_cleared_is_handed_out_once() {
    let mut book = Book::default();
    let (id, tenure) = held(&mut book, 100);
    let orphan = Orphan { lease: tenure.lease(), lingers_until: at(0), until: at(130), late: false, once: false };
    book.orphan(orphan);
    let taken = book.take_orphans();
    assert!(taken.len() == 1 && taken[0].0 != id && book.take_orphans().is_empty() && !book.all_cleared());
    book.strand(at(101));
    assert_eq!(book.take_orphans().len(), 1, "its task has died");
    book.cleared(taken[0].0);
    assert!(book.all_cleared());
}
