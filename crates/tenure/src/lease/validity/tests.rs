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
fn belief_counts_from_the_send_less_drift_and_guard() {
    let held = held(TERMS);
    assert_eq!(held.valid_until(), at(100) + Duration::from_millis(30_000 - 300 - 2 - 3_000));
    assert_eq!(held.state(held.valid_until() - Duration::from_nanos(1)), State::Held);
    assert_eq!(held.end_reason(held.valid_until()), Some(EndReason::Expired));
}

#[test]
fn an_answer_to_an_older_request_does_not_shorten_belief() {
    let held = held(TERMS);
    held.extend_validity(at(110), TERMS.ttl);
    let until = held.valid_until();
    held.extend_validity(at(105), TERMS.ttl);
    assert_eq!(held.valid_until(), until);
}

#[test]
fn max_hold_caps_what_renewals_give() {
    let held = held(Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS });
    held.extend_validity(at(130), TERMS.ttl);
    assert_eq!(held.valid_until(), at(140));
    assert_eq!(held.end_reason(at(140)), Some(EndReason::MaxHold));
}

#[test]
fn a_guard_above_the_ttl_leaves_nothing_to_believe() {
    let held = held(Terms { safety_margin: Duration::from_secs(60), ..TERMS });
    assert_eq!(held.state(at(100)), State::Lost);
}

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
fn a_name_is_given_up_by_one() {
    let held = held(TERMS);
    assert_eq!((held.claim_release(), held.claim_release()), (true, false));
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

#[test]
fn what_was_answered_tells_when_the_store_forgets() {
    let held = held(Terms { min_hold: Duration::from_secs(20), ..TERMS });
    assert_eq!(held.store_until(), at(130));
    held.extend_validity(at(110), Duration::from_secs(60));
    assert_eq!(held.store_until(), at(170));
    assert_eq!((held.linger(at(105)), held.linger(at(130))), (Duration::from_secs(15), Duration::ZERO));
}

#[test]
fn doubt_is_jeopardy_until_the_next_answer() {
    let held = held(TERMS);
    held.mark_overdue();
    assert_eq!(held.state(at(101)), State::Jeopardy);
    held.extend_validity(at(110), TERMS.ttl);
    assert_eq!(held.state(at(111)), State::Held);
}
