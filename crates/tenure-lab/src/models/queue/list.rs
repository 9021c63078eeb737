//! Which models there are.

use super::protocol::Protocol;
use super::rules::{Bounds, Rules};
use crate::models::promise::{Promise, Sight};
use crate::models::{Expected, Model};

const QUEUE: Bounds = Bounds { beats: 2, under_way: 2, ..Bounds::LEAST };
const AGAIN: Bounds = Bounds { asks: 2, renewals: 1, cancels: true, crashes: 1, under_way: 1, ..QUEUE };
const REPEATED: Bounds = Bounds { asks: 2, beats: 0, ttl: 2, ..QUEUE };
const SERVED: Bounds = Bounds { beats: 1, cancels: true, crashes: 1, under_way: 1, served_within: 3, ..QUEUE };
const LATE: Bounds = Bounds { beats: 1, ttl: 2, unordered: Some(1), ..QUEUE };
const TASKS: Bounds =
    Bounds { clients: 2, pushes: false, renewals: 1, tasks: 4, turn: 2, grants: 4, under_way: 2, ..Bounds::LEAST };

const SAFE: &[Promise] = &[Promise::OneHolder, Promise::FencesRise, Promise::NoOrphan];
/// A command that comes after the release of its token makes a place that nobody has.
const LATER: &[Promise] = &[Promise::OneHolder, Promise::FencesRise];

fn holds(id: &str, of: &str, bounds: Bounds, promises: &[Promise], sights: &[Sight]) -> Model {
    holds_under(Rules::TENURE, id, of, bounds, promises, sights)
}

fn holds_under(rules: Rules, id: &str, of: &str, bounds: Bounds, promises: &[Promise], more: &[Sight]) -> Model {
    let sights = [&[Sight::Granted, Sight::Queued, Sight::Lost, Sight::Over], more].concat();
    let protocol = Protocol { rules, bounds, promises: promises.to_vec(), sights };
    Model::new(id, of, bounds.words(), Expected::Holds, protocol)
}

/// The protocol as it stands.
pub(crate) fn standing() -> Vec<Model> {
    use Sight::{AfterCrash, Ignored, Passed, Pushed};
    let fair = [SAFE, &[Promise::InOrder]].concat();
    let served = [&fair[..], &[Promise::Served]].concat();
    let in_turn = [SAFE, &[Promise::InTurn]].concat();
    let unmarked = Rules { compares_marks: false, ..Rules::TENURE };
    vec![
        holds("queue", "a queue whose pushes are believed", Bounds { beats: 1, ttl: 2, renewals: 1, ..QUEUE }, &fair, &[Pushed]),
        holds("queue-again", "the same, with crashes and waits that are given up", AGAIN, SAFE, &[Pushed, AfterCrash]),
        holds("queue-repeated", "the same, acquires sent twice", REPEATED, SAFE, &[Pushed, Ignored]),
        holds("queue-late", "the same, where commands run late", LATE, LATER, &[Pushed]),
        holds("queue-served", "the same, and whoever waits is served", SERVED, &served, &[Pushed, AfterCrash]),
        holds_under(
            unmarked,
            "queue-unmarked",
            "the same without marks, where nothing is sent twice: heartbeats make no places",
            Bounds { under_way: 1, ..QUEUE },
            SAFE,
            &[Pushed],
        ),
        holds("cohort", "a lease that is passed from task to task", TASKS, &in_turn, &[Passed]),
        holds(
            "cohort-again",
            "the same, each process more than once",
            Bounds { claims: 2, ttl: 2, under_way: 1, ..TASKS },
            &in_turn,
            &[Passed],
        ),
    ]
}

/// The same with more of everything.
pub(crate) fn larger() -> Vec<Model> {
    use Sight::{Ignored, Passed, Pushed};
    let in_turn = [SAFE, &[Promise::InTurn]].concat();
    let cut = Bounds { cuts: 1, ttl: 2, cancels: false, ..AGAIN };
    vec![
        holds("queue-larger", "a queue whose pushes are believed", Bounds { asks: 2, ..QUEUE }, SAFE, &[Pushed, Ignored]),
        holds("queue-cut", "the same, with connections that are lost", cut, SAFE, &[Pushed]),
        holds("cohort-larger", "a lease that is passed from task to task", Bounds { claims: 2, ..TASKS }, &in_turn, &[Passed]),
    ]
}

fn without_rule(id: &str, of: &str, rules: Rules, bounds: Bounds, breaks: Promise) -> Model {
    let protocol = Protocol { rules, bounds, promises: vec![breaks], sights: Vec::new() };
    Model::new(id, of, bounds.words(), Expected::Breaks(breaks), protocol)
}

/// The protocol without one of its rules.
pub(crate) fn without() -> Vec<Model> {
    [of_queue(), of_cohort()].into_iter().flatten().collect()
}

fn of_queue() -> Vec<Model> {
    use Promise::{InOrder, NoOrphan, OneHolder, Served};
    let no_mark = Rules { compares_marks: false, ..Rules::TENURE };
    let creates = Rules { keep_never_joins: false, ..no_mark };
    let again = Rules { served_once: false, ..no_mark };
    let own_claim = Rules { own_claim: false, ..Rules::TENURE };
    let from_reply = Rules { believes_from_send: false, ..Rules::TENURE };
    let from_push = Rules { believes_from_heartbeat: false, ..Rules::TENURE };
    let reused = Rules { one_way: false, ..Rules::TENURE };
    let left = Rules { clears_up: false, ..Rules::TENURE };
    let keeps = Rules { yields: false, ..Rules::TENURE };
    let blind = Rules { rechecks: false, ..Rules::TENURE };
    let late = Bounds { unordered: Some(2), asks: 2, under_way: 3, ..QUEUE };
    let watched = Bounds { served_within: SERVED.served_within, ..QUEUE };
    let cancelled = Bounds { cancels: true, ..QUEUE };
    vec![
        without_rule("push-any-mark", "a push is believed whatever its counter", no_mark, REPEATED, OneHolder),
        without_rule(
            "heartbeat-creates",
            "a push is believed whatever its counter, and a heartbeat makes places",
            creates,
            QUEUE,
            OneHolder,
        ),
        without_rule(
            "served-again",
            "a push is believed whatever its counter, and a token that was served queues again",
            again,
            QUEUE,
            OneHolder,
        ),
        without_rule("claim-of-releaser", "the claim is the number of whoever hands over", own_claim, QUEUE, OneHolder),
        without_rule("push-from-reply", "a push is believed from the answer to the last heartbeat", from_reply, QUEUE, OneHolder),
        without_rule("push-from-push", "a push is believed from when it is heard", from_push, QUEUE, OneHolder),
        without_rule("place-again", "a token queues again after its release was sent", reused, late, OneHolder),
        without_rule("place-left", "a wait is given up without a release", left, cancelled, NoOrphan),
        without_rule("newcomer-keeps", "a newcomer keeps what others wait for", keeps, QUEUE, InOrder),
        without_rule("heartbeat-blind", "a heartbeat only looks after its place", blind, watched, Served),
    ]
}

fn of_cohort() -> Vec<Model> {
    let wraps = Rules { index_ends: false, ..Rules::TENURE };
    let after = Rules { release_is_last: false, ..Rules::TENURE };
    let renewed = Rules { deadline_stands: false, ..Rules::TENURE };
    let endless = Rules { takes_turns: false, ..Rules::TENURE };
    let from_answer = Rules { turn_from_send: false, ..Rules::TENURE };
    let from_renewal = Rules { one_turn_a_grant: false, ..Rules::TENURE };
    let short = Bounds { ttl: 2, ..TASKS };
    let three = Bounds { clients: 3, tasks: 2, renewals: 0, ..TASKS };
    vec![
        without_rule("index-again", "the index begins again under the same counter", wraps, TASKS, Promise::FencesRise),
        without_rule("passed-after-release", "a lease is passed on after its release was sent", after, TASKS, Promise::OneHolder),
        without_rule("passed-for-a-ttl", "whoever is passed a lease believes for a ttl", renewed, short, Promise::OneHolder),
        without_rule("no-turns", "a process passes a lease on as long as it likes", endless, TASKS, Promise::InTurn),
        without_rule("turn-from-answer", "a turn counts from the answer", from_answer, three, Promise::InTurn),
        without_rule("turn-from-renewal", "each renewal begins another turn", from_renewal, TASKS, Promise::InTurn),
    ]
}

/// What the protocol does not promise, shown with all its rules.
pub(crate) fn holes() -> Vec<Model> {
    let of = "order, when the answer to the acquire that took a name is lost";
    vec![without_rule("hole-order", of, Rules::TENURE, REPEATED, Promise::InOrder)]
}
