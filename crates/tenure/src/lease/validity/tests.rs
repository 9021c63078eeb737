use super::*;

fn tenure(terms: Terms) -> Tenure {
    let (name, owner) = (Name::new("n").unwrap(), Owner::generate("").unwrap());
    let lease = Lease::new(name, owner, Share::MUTEX, terms.ttl);
    Tenure::new(lease, terms, "".into(), at(100), terms.ttl)
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
};

#[test]
fn belief_counts_from_the_send_less_drift_and_guard() {
    let tenure = tenure(TERMS);
    assert_eq!(tenure.believed_until(), at(100) + Duration::from_millis(30_000 - 300 - 2 - 3_000));
    assert_eq!(tenure.state(tenure.believed_until() - Duration::from_nanos(1)), State::Held);
    assert_eq!(tenure.loss(tenure.believed_until()), Some(EndReason::Expired));
}

#[test]
fn an_answer_to_an_older_request_does_not_shorten_belief() {
    let tenure = tenure(TERMS);
    tenure.believe(at(110), TERMS.ttl);
    let until = tenure.believed_until();
    tenure.believe(at(105), TERMS.ttl);
    assert_eq!(tenure.believed_until(), until);
}

#[test]
fn max_hold_caps_what_renewals_give() {
    let tenure = tenure(Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS });
    tenure.believe(at(130), TERMS.ttl);
    assert_eq!(tenure.believed_until(), at(140));
    assert_eq!(tenure.loss(at(140)), Some(EndReason::MaxHold));
}

#[test]
fn a_guard_above_the_ttl_leaves_nothing_to_believe() {
    let tenure = tenure(Terms { safety_margin: Duration::from_secs(60), ..TERMS });
    assert_eq!(tenure.state(at(100)), State::Lost);
}

#[test]
fn the_first_loss_is_the_one_told() {
    let tenure = tenure(TERMS);
    tenure.end(EndReason::Gone);
    tenure.end(EndReason::Expired);
    assert_eq!(tenure.loss(at(100)), Some(EndReason::Gone));
    assert!(tenure.ended.is_cancelled());
}

#[test]
fn only_a_longest_hold_that_was_reached_is_why_it_ended() {
    let terms = Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS };
    let fixed = tenure(terms);
    assert_eq!(fixed.loss(fixed.believed_until()), Some(EndReason::Expired));
    fixed.believe(at(111), TERMS.ttl);
    assert_eq!(fixed.deadline_loss(), EndReason::Expired, "{:?}", fixed.believed_until());
}

#[test]
fn a_name_is_given_up_by_one() {
    let tenure = tenure(TERMS);
    assert_eq!((tenure.give_up(), tenure.give_up()), (true, false));
}

#[test]
fn a_given_value_is_certainly_ours_until_a_command_could_run_too_late() {
    let limit = Duration::from_secs(1);
    let mut tenure = tenure(TERMS);
    let alone_until = at(100) + Duration::from_millis(30_000 - 300 - 2);
    let before = alone_until - limit - Duration::from_nanos(1);
    assert!(!tenure.may_be_anothers(alone_until, limit), "random bits are nobody else's");
    tenure.minted = false;
    assert!(!tenure.may_be_anothers(before, limit));
    assert!(tenure.may_be_anothers(alone_until - limit, limit));
    tenure.end(EndReason::MaxHold);
    assert!(!tenure.may_be_anothers(before, limit), "it was ended here, and stands at the store");
    let gone = Tenure { minted: false, ..self::tenure(TERMS) };
    gone.end(EndReason::Gone);
    assert!(gone.may_be_anothers(at(100), limit), "the store says it is not ours");
}

#[test]
fn what_was_answered_tells_when_the_store_forgets() {
    let tenure = tenure(Terms { min_hold: Duration::from_secs(20), ..TERMS });
    assert_eq!(tenure.store_until(), at(130));
    tenure.believe(at(110), Duration::from_secs(60));
    assert_eq!(tenure.store_until(), at(170));
    assert_eq!((tenure.linger(at(105)), tenure.linger(at(130))), (Duration::from_secs(15), Duration::ZERO));
}

#[test]
fn doubt_is_jeopardy_until_the_next_answer() {
    let tenure = tenure(TERMS);
    tenure.doubt();
    assert_eq!(tenure.state(at(101)), State::Jeopardy);
    tenure.believe(at(110), TERMS.ttl);
    assert_eq!(tenure.state(at(111)), State::Held);
}
