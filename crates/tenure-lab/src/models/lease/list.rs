//! Which models there are.

use super::protocol::Protocol;
use super::rules::{Bounds, Counting, Rules};
use crate::models::promise::{Promise, Sight};
use crate::models::traffic::Wire;
use crate::models::{Expected, Model};

const TIER_1: &[Promise] = &[Promise::OneHolder, Promise::NoOrphan, Promise::LossIsFinal, Promise::NoFalseLoss];
/// However late a command runs, its name is taken for nobody then.
const LATER: &[Promise] = &[Promise::OneHolder, Promise::LossIsFinal, Promise::NoFalseLoss];
const TIER_2: &[Promise] = &[Promise::FencesRise, Promise::NoOrphan, Promise::LossIsFinal];
/// A value that was given is cleared up by nobody.
const VALUE: &[Promise] = &[Promise::OneHolder, Promise::LossIsFinal];

const LEASE: Bounds = Bounds { asks: 2, renewals: 1, releases: 2, reconnects: 1, ..Bounds::LEAST };
const UNORDERED: Bounds = Bounds { wire: Wire::Unordered, reconnects: 0, ..LEASE };
const FENCES: Bounds =
    Bounds { counting: Counting::InTwoSteps, ttl: 1, flushes: 1, claims: 2, cancels: false, under_way: Some(2), ..Bounds::LEAST };
const GIVEN: Bounds = Bounds { wire: Wire::Unordered, given: true, clients: 3, renewals: 1, latest: Some(1), ..Bounds::LEAST };
const PASSING: Bounds = Bounds { clients: 3, passes: 1, renewals: 1, ..Bounds::LEAST };

fn holds(id: &'static str, of: &'static str, bounds: Bounds, promises: &'static [Promise]) -> Model {
    let mut sights = vec![Sight::Granted, Sight::Lost, Sight::Over, Sight::TakenOver];
    let more = [
        (bounds.renewals > 0, Sight::Renewed),
        (bounds.crashes > 0, Sight::AfterCrash),
        (bounds.passes > 0, Sight::Adopted),
        (bounds.flushes > 0, Sight::AfterFlush),
    ];
    sights.extend(more.into_iter().filter_map(|(there, sight)| there.then_some(sight)));
    let promises = promises.to_vec();
    Model::new(id, of, bounds.words(), Expected::Holds, Protocol { rules: Rules::TENURE, bounds, promises, sights })
}

/// The protocol as it stands.
pub(crate) fn standing() -> Vec<Model> {
    let again = Bounds { claims: 2, ttl: 2, asks: 1, releases: 1, under_way: Some(3), ..LEASE };
    let three = Bounds { clients: 3, ttl: 2, asks: 1, releases: 1, reconnects: 0, crashes: 1, ..LEASE };
    let shorter = Bounds { shorter: true, renewals: 2, asks: 1, releases: 1, ..LEASE };
    let one_step = Bounds { counting: Counting::InOneStep, claims: 1, ttl: 2, asks: 2, cancels: true, under_way: None, ..FENCES };
    let late_pass = Bounds { clients: 2, latest: Some(1), ttl: 2, passes: 1, asks: 1, ..UNORDERED };
    vec![
        holds(
            "lease",
            "lease, renewal, release and clean-up over connections that are replaced",
            Bounds { crashes: 1, ..LEASE },
            TIER_1,
        ),
        holds("lease-again", "the same, each client more than once", again, TIER_1),
        holds("lease-three", "the same, three clients", three, TIER_1),
        holds("lease-shorter", "renewals of different lengths", shorter, TIER_1),
        holds(
            "late",
            "commands that run late, where no connection can be ended",
            Bounds { latest: Some(1), ttl: 2, ..UNORDERED },
            TIER_1,
        ),
        holds("later", "the same, however late", Bounds { ttl: 2, releases: 1, ..UNORDERED }, LATER),
        holds("fence", "fences of a server that loses its data", FENCES, TIER_2),
        holds("fence-one-step", "fences of a store that grants in one step, and loses its data", one_step, TIER_2),
        holds("given", "claims by one value that was given", GIVEN, VALUE),
        holds("adoption", "a lease that is passed on and adopted", PASSING, TIER_1),
        holds("adoption-late", "the same, where commands run late", late_pass, TIER_1),
    ]
}

/// The same with more of everything.
pub(crate) fn larger() -> Vec<Model> {
    let again = Bounds { claims: 2, ttl: 2, asks: 1, releases: 1, ..LEASE };
    let three = Bounds { clients: 3, ttl: 2, releases: 1, ..LEASE };
    let late = Bounds { latest: Some(2), ..UNORDERED };
    let fences = Bounds { reconnects: 1, flushes: 2, ..FENCES };
    vec![
        holds("lease-long", "two renewals", Bounds { renewals: 2, crashes: 1, ..LEASE }, TIER_1),
        holds("lease-again-larger", "each client more than once, any number of commands under way", again, TIER_1),
        holds("lease-three-larger", "three clients, each step repeated", three, TIER_1),
        holds("late-larger", "commands that run late, where no connection can be ended", late, TIER_1),
        holds("later-larger", "the same, however late", Bounds { ttl: 2, ..UNORDERED }, LATER),
        holds("fence-larger", "fences of a server that loses its data twice", fences, TIER_2),
        holds("adoption-larger", "a lease that is passed on and adopted", Bounds { passes: 2, reconnects: 1, ..PASSING }, TIER_1),
    ]
}

fn without_rule(id: &'static str, of: &'static str, rules: Rules, bounds: Bounds, breaks: Promise) -> Model {
    let protocol = Protocol { rules, bounds, promises: vec![breaks], sights: Vec::new() };
    Model::new(id, of, bounds.words(), Expected::Breaks(breaks), protocol)
}

/// The protocol without one of its rules.
pub(crate) fn without() -> Vec<Model> {
    [of_belief(), of_commands(), of_clean_up(), of_values(), of_fences()].into_iter().flatten().collect()
}

fn of_belief() -> Vec<Model> {
    const BREAKS: Promise = Promise::OneHolder;
    let from_reply = Rules { believes_from_send: false, ..Rules::TENURE };
    let any_answer = Rules { matches_answers: false, ..Rules::TENURE };
    let late_answer = Rules { deadline_is_final: false, ..Rules::TENURE };
    let believer = Rules { passing_ends_belief: false, ..Rules::TENURE };
    vec![
        without_rule("belief-from-reply", "belief counts from the reply", from_reply, LEASE, BREAKS),
        without_rule("any-answer", "the answer to an earlier request counts for a later one", any_answer, UNORDERED, BREAKS),
        without_rule("late-answer", "an answer after the deadline counts", late_answer, LEASE, Promise::LossIsFinal),
        without_rule("passing-believer", "who passes a lease on goes on believing", believer, PASSING, BREAKS),
    ]
}

fn of_commands() -> Vec<Model> {
    const BREAKS: Promise = Promise::OneHolder;
    let renews_any = Rules { renewal_compares: false, ..Rules::TENURE };
    let creates = Rules { renewal_never_creates: false, ..Rules::TENURE };
    let shortens = Rules { renewal_never_shortens: false, ..Rules::TENURE };
    let keeps_ttl = Rules { repeat_extends: false, ..Rules::TENURE };
    let releases_any = Rules { release_compares: false, ..Rules::TENURE };
    let adopts_any = Rules { adoption_compares: false, ..Rules::TENURE };
    let shorter = Bounds { shorter: true, ..LEASE };
    let three = Bounds { clients: 3, renewals: 0, reconnects: 0, ..LEASE };
    vec![
        without_rule("renewal-of-any", "a renewal extends whatever is there", renews_any, LEASE, Promise::NoOrphan),
        without_rule("renewal-creates", "a renewal takes a name that is free", creates, UNORDERED, Promise::NoOrphan),
        without_rule("renewal-shortens", "a renewal sets what is left, also to less", shortens, shorter, BREAKS),
        without_rule(
            "repeat-without-ttl",
            "an acquire that finds its own token leaves the ttl as it is",
            keeps_ttl,
            LEASE,
            BREAKS,
        ),
        without_rule("release-of-any", "a release deletes whatever is there", releases_any, three, BREAKS),
        without_rule("adoption-of-any", "adoption takes whatever is there", adopts_any, PASSING, BREAKS),
    ]
}

fn of_clean_up() -> Vec<Model> {
    const BREAKS: Promise = Promise::NoOrphan;
    let late = Bounds { latest: Some(2), ..UNORDERED };
    let reused = Rules { one_way: false, ..Rules::TENURE };
    let no_clean_up = Rules { clears_up: false, ..Rules::TENURE };
    let no_kill = Rules { kills_predecessor: false, repeats_clean_up: false, ..Rules::TENURE };
    let once = Rules { repeats_clean_up: false, ..Rules::TENURE };
    let released_once = Rules { repeats_release: false, ..Rules::TENURE };
    let early = Rules { last_clean_up_is_late: false, ..Rules::TENURE };
    vec![
        without_rule(
            "token-again",
            "a token is acquired again after its release was sent",
            reused,
            UNORDERED,
            Promise::OneHolder,
        ),
        without_rule("no-clean-up", "an attempt is given up without a release", no_clean_up, LEASE, BREAKS),
        without_rule("no-kill", "a connection is replaced without ending the old one", no_kill, LEASE, BREAKS),
        without_rule("clean-up-once", "a clean-up is sent once where commands run late", once, late, BREAKS),
        without_rule("release-once", "a release is sent once where the acquire may still run", released_once, late, BREAKS),
        without_rule("clean-up-early", "the last clean-up is sent before the ttl has passed", early, late, BREAKS),
    ]
}

fn of_values() -> Vec<Model> {
    const BREAKS: Promise = Promise::OneHolder;
    let mine = Rules { given_is_busy: false, ..Rules::TENURE };
    let late = Rules { given_released_in_time: false, ..Rules::TENURE };
    vec![
        without_rule("given-mine", "a given value that is there already is success", mine, GIVEN, BREAKS),
        without_rule("given-late", "a given value is released when its lease may have ended", late, GIVEN, BREAKS),
    ]
}

fn of_fences() -> Vec<Model> {
    const BREAKS: Promise = Promise::FencesRise;
    let no_floor = Rules { lifts: false, ..Rules::TENURE };
    let no_recheck = Rules { rechecks: false, ..Rules::TENURE };
    vec![
        without_rule("no-floor", "the counter starts again when data is lost", no_floor, FENCES, BREAKS),
        without_rule("no-recheck", "a counter that is not above the one seen before makes a fence", no_recheck, FENCES, BREAKS),
    ]
}

/// What the protocol does not promise, shown with all its rules.
pub(crate) fn holes() -> Vec<Model> {
    let hole = |id, of, bounds, breaks| without_rule(id, of, Rules::TENURE, bounds, breaks);
    let later = Bounds { latest: None, renewals: 0, ..GIVEN };
    let copy = Bounds { older_copy: true, ..FENCES };
    vec![
        hole("hole-flush", "belief when the server loses its data (tier 2)", FENCES, Promise::OneHolder),
        hole(
            "hole-copy",
            "fences when data is lost and back before the counter is lifted again (tier 3)",
            copy,
            Promise::FencesRise,
        ),
        hole("hole-given", "a given value whose release runs later than its operation timeout", later, Promise::OneHolder),
        hole("hole-later", "a clean-up whose acquire runs later than its ttl", Bounds { ttl: 2, ..UNORDERED }, Promise::NoOrphan),
    ]
}
