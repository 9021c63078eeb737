//! Our client in the schemes of others, in the surroundings of the broken locks: against itself,
//! beside the others, and without its rules.

use tenure_testkit::history::Rule::{FalseLoss, Leak, Overlap};

use super::beside::Mistake;
use super::case::{Case, Faults};
use super::program::Scheme;
use super::schemes::{TTL, getset, ours, php, token};
use super::timestamp::Rules;
use super::world::World;
use crate::models::Sight::{self, AfterCrash, Granted, TakenOver, WithoutTtl};

/// Our clients, if there are others: the first two. The third is of the others.
const OURS: u8 = 2;

/// Without renewals: each write of one is a version of its own to what is watched, so there would
/// be no end of states.
const WATCH_ONCE: Scheme = Scheme { renew: None, about: "tenure, scheme=watch", ..ours::WATCH };

/// Every case.
pub(crate) fn cases() -> Vec<Case> {
    [alone(), beside_others(), without(), mistakes()].into_iter().flatten().collect()
}

/// Ours alone.
fn new(id: &'static str, what: &'static str, scheme: Scheme) -> Case {
    Case::new(id, what, scheme, Overlap).clients(2)
}

/// Two of ours and one of the others, which makes none of its known mistakes.
fn beside(id: &'static str, what: &'static str, scheme: Scheme, others: Scheme) -> Case {
    new(id, what, scheme).clients(OURS + 1).with(|setting| setting.others = Some((others, OURS))).also(without_mistake)
}

fn php_beside(id: &'static str, what: &'static str, scheme: Scheme) -> Case {
    beside(id, what, scheme, php::WAITING).faults(Faults::CRASH)
}

/// A client regards itself as the holder, or a value that was not given up is not just passing:
/// ours takes it in the step in which the others do not yet.
fn still_taken(world: &World) -> bool {
    world.is_held() || world.server.is_taken(world.now + 1)
}

/// One of the holders is a client of ours.
fn ours_holds(world: &World) -> bool {
    world.clients[..usize::from(OURS)].iter().any(|client| client.is_valid(world.now))
}

fn with_mistakes(world: &World, mistakes: &[Mistake]) -> bool {
    ours_holds(world) && world.beside.mistakes.iter().eq(mistakes)
}

fn without_mistake(world: &World) -> bool {
    with_mistakes(world, &[])
}

/// The same scheme, without a rule.
fn left_out(mut scheme: Scheme, change: impl FnOnce(&mut Rules)) -> Scheme {
    change(&mut scheme.rules);
    scheme
}

#[rustfmt::skip]
fn alone() -> Vec<Case> {
    let new = |id, what, scheme, faults| {
        new(id, what, scheme).faults(faults).within(TTL).holds(&[Overlap, Leak, FalseLoss], &[Granted, TakenOver])
    };
    vec![
        new("php", "scheme=php among ourselves", ours::PHP, Faults::EACH),
        new("getset", "scheme=getset among ourselves", ours::GETSET, Faults::EACH).also(still_taken),
        new("watch", "scheme=watch among ourselves, whose connections break", WATCH_ONCE, Faults::LOST_REPLY),
        new("watch-late", "the same, where a command is late", WATCH_ONCE, Faults::SLOW),
    ]
}

#[rustfmt::skip]
fn beside_others() -> Vec<Case> {
    const AFTER_CRASH: &[Sight] = &[Granted, TakenOver, AfterCrash];
    let getset = |id, what| beside(id, what, ours::GETSET, getset::GETSET);
    vec![
        php_beside("php-beside", "scheme=php beside the class, which makes none of its mistakes", ours::PHP)
            .holds(&[Overlap], &[Granted, TakenOver, AfterCrash, WithoutTtl]),
        getset("getset-beside", "scheme=getset beside the articles' client, which makes none of its mistakes")
            .faults(Faults::CRASH).holds(&[Overlap], AFTER_CRASH),
        getset("getset-clocks", "the same, where the server's clock is behind all hosts'")
            .with(|setting| setting.clock_ahead = -TTL).holds(&[Overlap], &[]),
        beside("watch-beside", "scheme=watch beside one that uses one connection", WATCH_ONCE, token::WATCH)
            .within(TTL).holds(&[Overlap], &[Granted, TakenOver]),
    ]
}

#[rustfmt::skip]
fn without() -> Vec<Case> {
    let unpassed = left_out(ours::PHP, |rules| rules.value_passed = false);
    let unseen = left_out(ours::PHP, |rules| rules.seen_long = false);
    let any_value = left_out(ours::PHP, |rules| rules.changed_is_lost = false);
    let value_alone = left_out(ours::GETSET, |rules| rules.owner_beside = false);
    let two_steps = left_out(ours::GETSET, |rules| rules.one_step = false);
    let any_clock = left_out(ours::GETSET, |rules| rules.clocks_agree = false);
    let written_again = left_out(ours::WATCH, |rules| rules.looks_again = false);
    let at_once = Scheme { in_turn: false, ..ours::WATCH };
    vec![
        php_beside("php-unpassed", "a key without ttl is taken before its value has passed", unpassed),
        php_beside("php-unseen", "a key without ttl is taken the first time it is seen", unseen),
        php_beside("php-any-value", "an owner beside another value counts", any_value),
        new("getset-value-alone", "the value alone says whose it is", value_alone)
            .clients(3).faults(Faults::LOST_REPLY).within(0),
        new("getset-two-steps", "the look and the write are two steps", two_steps).within(0),
        beside("getset-any-clock", "a name is taken though the clocks are apart", any_clock, getset::GETSET)
            .with(|setting| setting.clock_ahead = -TTL),
        new("watch-written-again", "EXEC is sent again on the connection that replaced the one of the look", written_again)
            .faults(Faults::LOST_REQUEST).within(0),
        Case::new("watch-at-once", "two transactions at once on one connection", at_once, Leak).clients(2).within(0),
    ]
}

#[rustfmt::skip]
fn mistakes() -> Vec<Case> {
    let php = |id, what| php_beside(id, what, ours::PHP);
    let getset = |id, what| beside(id, what, ours::GETSET, getset::GETSET);
    vec![
        php("php-overwritten", "the class writes over who took a key between its two looks (tier 3)")
            .also(|world| with_mistakes(world, &[Mistake::WroteOver])),
        php("php-deleted", "the class deletes what was taken between its GET and its DEL (tier 3)")
            .also(|world| with_mistakes(world, &[Mistake::Deleted])),
        php("php-stopped", "the class is stopped between SETNX and EXPIRE for too long (tier 3)")
            .also(|world| with_mistakes(world, &[Mistake::Stopped])),
        getset("getset-deleted", "the articles' client deletes after its deadline (tier 3)")
            .faults(Faults::SLOW).also(|world| with_mistakes(world, &[Mistake::Deleted])),
        getset("getset-fast", "the other's clock is fast (tier 3)").skews([0, 0, TTL + 1]).also(ours_holds),
        getset("getset-slow", "the other's clock is slow (tier 3)").skews([0, 0, -TTL - 1]).also(ours_holds),
        beside("watch-pooled", "the other watches and writes on two connections (tier 3)", WATCH_ONCE, token::POOLED_RELEASE)
            .within(TTL).also(|world| with_mistakes(world, &[Mistake::Deleted])),
    ]
}
