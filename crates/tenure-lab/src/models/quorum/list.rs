//! Which models of a quorum there are.

use super::{Bounds, Quorum, Rules};
use crate::models::promise::{Promise, Sight};
use crate::models::{Expected, Model};

const THREE: Bounds = Bounds { nodes: 3, attempts: 2, ttl: 1, doubles: 0, restarts: 0, copies: false, lead: 0, heard: false };
const TWICE: Bounds = Bounds { doubles: 1, ..THREE };
/// Counters disagree from the beginning.
const AHEAD: Bounds = Bounds { lead: 1, heard: true, ..THREE };
const FORGETFUL: Bounds = Bounds { restarts: 1, ttl: 2, ..THREE };
/// Two nodes lose their data, at once or in turn.
const FORGETFUL_TWICE: Bounds = Bounds { restarts: 2, ttl: 1, heard: true, ..THREE };
const OLDER: Bounds = Bounds { copies: true, ttl: 1, ..FORGETFUL };

const PROMISES: &[Promise] = &[Promise::OneHolder, Promise::FencesRise, Promise::FencesDiffer];

fn quorum(rules: Rules, bounds: Bounds, promises: &[Promise], sights: &[Sight]) -> Quorum {
    Quorum { rules, bounds, promises: promises.to_vec(), sights: sights.to_vec() }
}

fn holds(id: &str, of: &str, bounds: Bounds) -> Model {
    let after_loss = (bounds.restarts > 0).then_some(Sight::AfterFlush);
    let sights: Vec<_> =
        [Sight::Granted, Sight::TakenOver, Sight::Confirmed, Sight::Over].into_iter().chain(after_loss).collect();
    Model::of_quorum(id, of, Expected::Holds, quorum(Rules::TENURE, bounds, PROMISES, &sights))
}

fn breaks(id: &str, of: &str, rules: Rules, bounds: Bounds, promise: Promise) -> Model {
    Model::of_quorum(id, of, Expected::Breaks(promise), quorum(rules, bounds, &[promise], &[]))
}

/// The quorum as it stands.
pub(in crate::models) fn standing() -> Vec<Model> {
    vec![
        holds("quorum", "a quorum with fences", THREE),
        holds("quorum-twice", "the same, a command runs twice", TWICE),
        holds("quorum-forgetful", "the same, a node loses its data", FORGETFUL),
        holds("quorum-forgetful-twice", "the same, two nodes lose their data", FORGETFUL_TWICE),
        holds("quorum-older", "the same, a node comes back with an older copy of its data", OLDER),
    ]
}

/// The same with more of everything.
pub(in crate::models) fn larger() -> Vec<Model> {
    vec![
        holds("quorum-larger", "a quorum with fences, three attempts", Bounds { attempts: 3, ..THREE }),
        holds("quorum-five", "a quorum of five", Bounds { nodes: 5, ..THREE }),
        holds("quorum-twice-larger", "commands run twice, and a node loses its data", Bounds { doubles: 1, ..FORGETFUL }),
        breaks(
            "quorum-lower",
            "a node takes a fence up that is below its counter",
            Rules { never_lowers: false, ..Rules::TENURE },
            Bounds { attempts: 3, ..AHEAD },
            Promise::FencesRise,
        ),
    ]
}

/// The quorum without one of its rules.
pub(in crate::models) fn broken() -> Vec<Model> {
    let tenure = Rules::TENURE;
    vec![
        breaks(
            "quorum-at-least",
            "a majority with at least a fence hands it out",
            Rules { exact: false, ..tenure },
            THREE,
            Promise::FencesDiffer,
        ),
        breaks(
            "quorum-largest",
            "the largest counter is handed out without a second round",
            Rules { confirms: false, ..tenure },
            AHEAD,
            Promise::FencesRise,
        ),
        breaks(
            "quorum-confirm-any",
            "a node takes a fence up for an owner that does not hold there",
            Rules { compares_owner: false, ..tenure },
            AHEAD,
            Promise::FencesDiffer,
        ),
        breaks(
            "quorum-valid-from-second",
            "validity counts from the second round",
            Rules { valid_from_first: false, ..tenure },
            Bounds { ttl: 2, ..AHEAD },
            Promise::OneHolder,
        ),
        breaks(
            "quorum-no-wait",
            "a node that lost its data votes at once",
            Rules { waits: false, ..tenure },
            FORGETFUL,
            Promise::OneHolder,
        ),
        breaks(
            "quorum-asks-at-once",
            "a node that lost its data asks the others before all that counts has arrived there",
            Rules { settles: false, ..tenure },
            FORGETFUL,
            Promise::OneHolder,
        ),
        breaks(
            "quorum-late-answers",
            "an answer counts that comes after a node which lost its data may have asked",
            Rules { in_time: false, ..tenure },
            FORGETFUL,
            Promise::OneHolder,
        ),
        breaks(
            "quorum-trusts-copy",
            "a node votes because the copy with which it came back says that it does",
            Rules { trusts_copy: true, ..tenure },
            OLDER,
            Promise::OneHolder,
        ),
        breaks(
            "quorum-counts-on-from-copy",
            "a node that waited counts on from the copy with which it came back",
            Rules { counts_on: false, ..tenure },
            OLDER,
            Promise::FencesRise,
        ),
        breaks(
            "quorum-counts-anew",
            "a node that lost its data counts from the beginning",
            Rules { counts_on: false, ..tenure },
            FORGETFUL,
            Promise::FencesRise,
        ),
        breaks(
            "quorum-counts-of-few",
            "a node that waited counts on from those that vote, however few they are",
            Rules { notes_counter: false, ..tenure },
            FORGETFUL_TWICE,
            Promise::FencesRise,
        ),
    ]
}
