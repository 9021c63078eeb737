use super::*;

fn held(terms: Terms) -> HeldLease {
    let (name, owner) = (Name::new("n").unwrap(), Owner::generate("").unwrap());
    let lease = Lease::new(name, owner, Share::MUTEX, terms.ttl);
    HeldLease::new(lease, terms, "".into(), at(100), terms.ttl)
}

fn at(seconds: u64) -> BootTime {
    BootTime::from_boot(Duration::from_secs(seconds))
}

const TERMS: Terms = Terms {
    ttl: Duration::from_secs(30),
    drift: 0.01,
    safety_margin: Duration::from_secs(3),
    renews: true,
    max_hold: None,
    min_hold: Duration::ZERO,
    linger: Duration::ZERO,
    hands_on: true,
};

#[test]
fn the_first_loss_is_the_one_told() {
    let held = held(TERMS);
    held.end(EndReason::Gone);
    held.end(EndReason::Expired);
    assert_eq!(held.end_reason(at(100)), Some(EndReason::Gone));
    assert!(held.ended().is_cancelled());
}

#[test]
fn only_a_longest_hold_that_was_reached_is_why_it_ended() {
    let terms = Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS };
    let fixed = held(terms);
    assert_eq!(fixed.end_reason(fixed.valid_until()), Some(EndReason::Expired));
    fixed.extend_validity(at(111), TERMS.ttl);
    assert_eq!(fixed.deadline_reason(), EndReason::Expired, "{:?}", fixed.valid_until());
}

#[test]
fn a_given_value_is_certainly_ours_until_a_command_could_run_too_late() {
    let limit = Duration::from_secs(1);
    let mut held = held(TERMS);
    let exclusive_until = at(100) + Duration::from_millis(30_000 - 300 - 2);
    let before = exclusive_until - limit - Duration::from_nanos(1);
    assert!(!held.may_be_of_another(exclusive_until, limit), "random bits are nobody else's");
    held.generated = false;
    assert!(!held.may_be_of_another(before, limit));
    assert!(held.may_be_of_another(exclusive_until - limit, limit));
    held.end(EndReason::MaxHold);
    assert!(!held.may_be_of_another(before, limit), "it was ended here, and stands at the store");
    let gone = HeldLease { generated: false, ..self::held(TERMS) };
    gone.end(EndReason::Gone);
    assert!(gone.may_be_of_another(at(100), limit), "the store says it is not ours");
}

/// Whenever it is given up, the name stays taken until the shortest hold is over.
#[test]
fn a_shortest_hold_counts_from_the_grant() {
    let held = held(Terms { min_hold: Duration::from_secs(20), ..TERMS });
    assert_eq!((held.linger(at(105)), held.linger(at(130))), (Duration::from_secs(15), Duration::ZERO));
}
