//! Which models there are.

use super::promise::{Promise, Sight};
use super::protocol::Protocol;
use super::rules::{Bounds, Counting, Rules};
use super::state::Wire;
use super::{Expected, Model};

const LEASE: Bounds = Bounds { asks: 2, renewals: 1, releases: 2, reconnects: 1, ..Bounds::LEAST };
const AGAIN: Bounds = Bounds { attempts: 2, ttl: 2, asks: 1, releases: 1, ..LEASE };
const UNORDERED: Bounds = Bounds { wire: Wire::Unordered, reconnects: 0, ..LEASE };
const LATE: Bounds = Bounds { latest: Some(2), ..UNORDERED };
const FENCES: Bounds = Bounds {
    counting: Counting::InTwoSteps,
    ttl: 1,
    flushes: 1,
    attempts: 2,
    cancels: false,
    under_way: Some(2),
    ..Bounds::LEAST
};
const ONE_STEP: Bounds =
    Bounds { counting: Counting::InOneStep, attempts: 1, ttl: 2, asks: 2, cancels: true, under_way: None, ..FENCES };
const SUPPLIED: Bounds =
    Bounds { wire: Wire::Unordered, supplied: true, clients: 3, renewals: 1, latest: Some(1), ..Bounds::LEAST };
const PASSING: Bounds = Bounds { clients: 3, passes: 1, renewals: 1, ..Bounds::LEAST };
const LATE_PASS: Bounds = Bounds { clients: 2, latest: Some(1), ttl: 2, passes: 1, asks: 1, ..UNORDERED };

const QUEUE: Bounds = Bounds { beats: 2, under_way: Some(2), ..Bounds::QUEUED };
const QUEUE_AGAIN: Bounds = Bounds { asks: 2, renewals: 1, cancels: true, crashes: 1, under_way: Some(1), ..QUEUE };
const REPEATED: Bounds = Bounds { asks: 2, beats: 0, ttl: 2, ..QUEUE };
const SERVED: Bounds = Bounds { beats: 1, cancels: true, crashes: 1, under_way: Some(1), served_within: 3, ..QUEUE };
const QUEUE_LATE: Bounds = Bounds { wire: Wire::Unordered, beats: 1, ttl: 2, latest: Some(1), ..QUEUE };
const QUEUE_LATER: Bounds = Bounds { wire: Wire::Unordered, latest: Some(2), asks: 2, under_way: Some(3), ..QUEUE };
const TASKS: Bounds = Bounds { clients: 2, pushes: false, renewals: 1, tasks: 4, turn: 2, grants: 4, beats: 1, ..QUEUE };
const THREE: Bounds = Bounds { clients: 3, tasks: 2, renewals: 0, ..TASKS };

const TIER_1: &[Promise] = &[Promise::OneHolder, Promise::NoOrphan, Promise::LossIsFinal, Promise::NoFalseLoss];
/// However late a command runs, its name is taken for nobody then.
const LATER: &[Promise] = &[Promise::OneHolder, Promise::LossIsFinal, Promise::NoFalseLoss];
const TIER_2: &[Promise] = &[Promise::FencesRise, Promise::NoOrphan, Promise::LossIsFinal];
/// A supplied token is cleared up by nobody.
const VALUE: &[Promise] = &[Promise::OneHolder, Promise::LossIsFinal];
const SAFE: &[Promise] = &[Promise::OneHolder, Promise::FencesRise, Promise::NoOrphan];
/// A command that comes after the release of its token makes an entry that nobody has.
const SAFE_LATER: &[Promise] = &[Promise::OneHolder, Promise::FencesRise];
const FAIR: &[Promise] = &[Promise::OneHolder, Promise::FencesRise, Promise::NoOrphan, Promise::InOrder];
const ALL_SERVED: &[Promise] = &[Promise::OneHolder, Promise::FencesRise, Promise::NoOrphan, Promise::InOrder, Promise::Served];
const IN_TURN: &[Promise] = &[Promise::OneHolder, Promise::FencesRise, Promise::NoOrphan, Promise::InTurn];

/// Models that hold: `id = what it is of: how far it goes, keeps what it promises`, maybe `without
/// a rule`.
macro_rules! standing {
    ($($id:literal = $of:literal: $bounds:expr, keeps $promises:ident $(without $rule:ident)?;)*) => {
        vec![$(holds($id, $of, without!($($rule)?), $bounds, $promises),)*]
    };
}

/// Models that break: `id = what it is of: without [the rules that are left out] in how far it
/// goes, breaks a promise`.
macro_rules! broken {
    ($($id:literal = $of:literal: without [$($rule:ident),*] in $bounds:expr, breaks $promise:ident;)*) => {
        vec![$(breaks($id, $of, without!($($rule),*), $bounds, Promise::$promise),)*]
    };
}

macro_rules! without {
    () => { Rules::TENURE };
    ($($rule:ident),+) => { Rules { $($rule: false,)+ ..Rules::TENURE } };
}

fn holds(id: &str, of: &str, rules: Rules, bounds: Bounds, promises: &[Promise]) -> Model {
    let queued = bounds.queued;
    let sights = [
        (true, Sight::Granted),
        (true, Sight::Lost),
        (true, Sight::Over),
        (!queued, Sight::TakenOver),
        (!queued && bounds.renewals > 0, Sight::Renewed),
        (bounds.crashes > 0, Sight::AfterCrash),
        (bounds.passes > 0, Sight::Adopted),
        (bounds.flushes > 0, Sight::AfterFlush),
        (queued, Sight::Queued),
        (bounds.pushes, Sight::Pushed),
        (queued && bounds.asks > 1 && bounds.under_way != Some(1), Sight::Ignored),
        (bounds.tasks > 1, Sight::Passed),
    ];
    let sights = sights.into_iter().filter_map(|(must, sight)| must.then_some(sight)).collect();
    Model::of_protocol(id, of, Expected::Holds, Protocol { rules, bounds, promises: promises.to_vec(), sights })
}

fn breaks(id: &str, of: &str, rules: Rules, bounds: Bounds, promise: Promise) -> Model {
    let protocol = Protocol { rules, bounds, promises: vec![promise], sights: Vec::new() };
    Model::of_protocol(id, of, Expected::Breaks(promise), protocol)
}

/// The protocol as it stands.
#[rustfmt::skip]
pub(super) fn standing() -> Vec<Model> {
    standing! {
        "lease" = "lease, renewal, release and clean-up over connections that are replaced":
            Bounds { crashes: 1, ..LEASE }, keeps TIER_1;
        "lease-again" = "the same, each client more than once": Bounds { under_way: Some(3), ..AGAIN }, keeps TIER_1;
        "lease-three" = "the same, three clients":
            Bounds { clients: 3, ttl: 2, asks: 1, releases: 1, reconnects: 0, crashes: 1, ..LEASE }, keeps TIER_1;
        "lease-shorter" = "renewals of different lengths":
            Bounds { shorter: true, renewals: 2, asks: 1, releases: 1, ..LEASE }, keeps TIER_1;
        "late" = "commands that run late, where no connection can be ended":
            Bounds { latest: Some(1), ttl: 2, ..UNORDERED }, keeps TIER_1;
        "later" = "the same, however late": Bounds { ttl: 2, releases: 1, ..UNORDERED }, keeps LATER;
        "fence" = "fences of a server that loses its data": FENCES, keeps TIER_2;
        "fence-one-step" = "fences of a store that grants in one step, and loses its data": ONE_STEP, keeps TIER_2;
        "supplied" = "attempts by one supplied token": SUPPLIED, keeps VALUE;
        "adoption" = "a lease that is passed on and adopted": PASSING, keeps TIER_1;
        "adoption-late" = "the same, where commands run late": LATE_PASS, keeps TIER_1;
        "queue" = "a queue whose pushes are accepted": Bounds { beats: 1, ttl: 2, renewals: 1, ..QUEUE }, keeps FAIR;
        "queue-again" = "the same, with crashes and waits that are given up": QUEUE_AGAIN, keeps SAFE;
        "queue-repeated" = "the same, acquires sent twice": REPEATED, keeps SAFE;
        "queue-late" = "the same, where commands run late": QUEUE_LATE, keeps SAFE_LATER;
        "queue-served" = "the same, and one of those who wait is served": SERVED, keeps ALL_SERVED;
        "queue-unmarked" = "the same without marks, where nothing is sent twice: heartbeats make no places":
            Bounds { under_way: Some(1), ..QUEUE }, keeps SAFE without compares_marks;
        "cohort" = "a lease that is passed from task to task": TASKS, keeps IN_TURN;
        "cohort-again" = "the same, each process more than once":
            Bounds { attempts: 2, ttl: 2, under_way: Some(1), ..TASKS }, keeps IN_TURN;
    }
}

/// The same with more of everything.
#[rustfmt::skip]
pub(super) fn larger() -> Vec<Model> {
    standing! {
        "lease-long" = "two renewals": Bounds { renewals: 2, crashes: 1, ..LEASE }, keeps TIER_1;
        "lease-again-larger" = "each client more than once, any number of commands under way": AGAIN, keeps TIER_1;
        "lease-three-larger" = "three clients, each step repeated":
            Bounds { clients: 3, ttl: 2, releases: 1, ..LEASE }, keeps TIER_1;
        "late-larger" = "commands that run late, where no connection can be ended": LATE, keeps TIER_1;
        "later-larger" = "the same, however late": Bounds { ttl: 2, ..UNORDERED }, keeps LATER;
        "fence-larger" = "fences of a server that loses its data twice":
            Bounds { reconnects: 1, flushes: 2, ..FENCES }, keeps TIER_2;
        "adoption-larger" = "a lease that is passed on and adopted": Bounds { passes: 2, reconnects: 1, ..PASSING }, keeps TIER_1;
        "queue-larger" = "a queue whose pushes are accepted": Bounds { asks: 2, ..QUEUE }, keeps SAFE;
        "queue-cut" = "the same, with connections that are lost":
            Bounds { cuts: 1, ttl: 2, cancels: false, ..QUEUE_AGAIN }, keeps SAFE;
        "cohort-larger" = "a lease that is passed from task to task": Bounds { attempts: 2, ..TASKS }, keeps IN_TURN;
    }
}

/// The protocol without one of its rules, then what it does not promise with all of them.
#[rustfmt::skip]
pub(super) fn broken() -> Vec<Model> {
    broken! {
        "validity-from-reply" = "validity counts from the reply": without [valid_from_send] in LEASE, breaks OneHolder;
        "any-answer" = "the answer to an earlier request counts for a later one":
            without [matches_answers] in UNORDERED, breaks OneHolder;
        "late-answer" = "an answer after the deadline counts": without [deadline_is_final] in LEASE, breaks LossIsFinal;
        "passing-holder" = "a client that passes a lease on remains a holder":
            without [passing_ends_validity] in PASSING, breaks OneHolder;
        "renewal-of-any" = "a renewal extends whatever is there": without [renewal_compares] in LEASE, breaks NoOrphan;
        "renewal-creates" = "a renewal takes a name that is free":
            without [renewal_never_creates] in UNORDERED, breaks NoOrphan;
        "renewal-shortens" = "a renewal sets what is left, also to less":
            without [renewal_never_shortens] in Bounds { shorter: true, ..LEASE }, breaks OneHolder;
        "repeat-without-ttl" = "an acquire that finds its own token leaves the ttl as it is":
            without [repeat_extends] in LEASE, breaks OneHolder;
        "release-of-any" = "a release deletes whatever is there":
            without [release_compares] in Bounds { clients: 3, renewals: 0, reconnects: 0, ..LEASE }, breaks OneHolder;
        "adoption-of-any" = "adoption takes whatever is there": without [adoption_compares] in PASSING, breaks OneHolder;
        "token-again" = "a token is acquired again after its release was sent": without [one_way] in UNORDERED, breaks OneHolder;
        "no-clean-up" = "an attempt is given up without a release": without [clears_up] in LEASE, breaks NoOrphan;
        "no-kill" = "a connection is replaced without ending the old one":
            without [kills_predecessor, repeats_clean_up] in LEASE, breaks NoOrphan;
        "clean-up-once" = "a clean-up is sent once where commands run late": without [repeats_clean_up] in LATE, breaks NoOrphan;
        "release-once" = "a release is sent once where the acquire may still run":
            without [repeats_release] in LATE, breaks NoOrphan;
        "clean-up-early" = "the last clean-up is sent before the ttl has passed":
            without [last_clean_up_is_late] in LATE, breaks NoOrphan;
        "supplied-mine" = "a supplied token that is there already is success": without [supplied_is_busy] in SUPPLIED, breaks OneHolder;
        "supplied-late" = "a supplied token is released when its lease may have ended":
            without [supplied_released_in_time] in SUPPLIED, breaks OneHolder;
        "no-floor" = "the counter starts again when data is lost": without [raises] in FENCES, breaks FencesRise;
        "no-comparison" = "a counter that is not above the one seen before makes a fence":
            without [compares_fences] in FENCES, breaks FencesRise;
        "push-any-grant-seq" = "a push is accepted whatever its counter": without [compares_marks] in REPEATED, breaks OneHolder;
        "heartbeat-creates" = "a push is accepted whatever its counter, and a heartbeat makes places":
            without [compares_marks, keep_never_joins] in QUEUE, breaks OneHolder;
        "served-again" = "a push is accepted whatever its counter, and a token that was served queues again":
            without [compares_marks, served_once] in QUEUE, breaks OneHolder;
        "handoff-of-releaser" = "the handoff ttl is the number of the client that hands over": without [own_handoff_ttl] in QUEUE, breaks OneHolder;
        "push-from-reply" = "a push is accepted from the answer to the last heartbeat":
            without [valid_from_send] in QUEUE, breaks OneHolder;
        "push-from-push" = "a push is accepted from when it is heard":
            without [accepts_from_heartbeat] in QUEUE, breaks OneHolder;
        "place-again" = "a token queues again after its release was sent": without [one_way] in QUEUE_LATER, breaks OneHolder;
        "place-left" = "a wait is given up without a release":
            without [clears_up] in Bounds { cancels: true, ..QUEUE }, breaks NoOrphan;
        "newcomer-keeps" = "a newcomer keeps what others wait for": without [yields] in QUEUE, breaks InOrder;
        "heartbeat-blind" = "a heartbeat only looks after its place":
            without [heartbeat_serves] in Bounds { served_within: 3, ..QUEUE }, breaks Served;
        "index-again" = "the index begins again under the same counter": without [index_ends] in TASKS, breaks FencesRise;
        "passed-after-release" = "a lease is passed on after its release was sent":
            without [release_is_last] in TASKS, breaks OneHolder;
        "passed-for-a-ttl" = "a task that is passed a lease counts a whole ttl":
            without [deadline_stands] in Bounds { ttl: 2, ..TASKS }, breaks OneHolder;
        "no-turns" = "a process passes a lease on as long as it likes": without [takes_turns] in TASKS, breaks InTurn;
        "turn-from-answer" = "a turn counts from the answer": without [turn_from_send] in THREE, breaks InTurn;
        "turn-from-renewal" = "each renewal begins another turn": without [one_turn_a_grant] in TASKS, breaks InTurn;
        "hole-flush" = "validity when the server loses its data (tier 2)": without [] in FENCES, breaks OneHolder;
        "hole-copy" = "fences when data is lost and back before the counter is raised again (tier 3)":
            without [] in Bounds { older_copy: true, ..FENCES }, breaks FencesRise;
        "hole-supplied" = "a supplied token whose release runs later than its operation timeout":
            without [] in Bounds { latest: None, renewals: 0, ..SUPPLIED }, breaks OneHolder;
        "hole-later" = "a clean-up whose acquire runs later than its ttl":
            without [] in Bounds { ttl: 2, ..UNORDERED }, breaks NoOrphan;
        "hole-order" = "order, when the answer to the acquire that took a name is lost":
            without [] in REPEATED, breaks InOrder;
    }
}
