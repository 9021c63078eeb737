//! Looks at every state that can be reached.

use std::time::{Duration, Instant};

use stateright::Checker;

use super::promise::{Promise, Sight, Subject};
use super::story::Story;

/// What came of a search.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Different states that were reached.
    pub states: usize,
    /// Steps to the farthest of them.
    pub depth: usize,
    /// No state was left out: a search ends early only at a counterexample.
    pub complete: bool,
    /// What never came about, though it should.
    pub missed: Vec<Sight>,
    /// The promise that does not hold.
    pub broken: Option<Promise>,
    /// The shortest way to break it.
    pub counterexample: Option<Story>,
    /// How long it took.
    pub took: Duration,
}

/// Searches breadth first on one thread, so that what is found first is the shortest.
pub(crate) fn search<P: Subject>(protocol: &P) -> Searched {
    let began = Instant::now();
    let checker = protocol.clone().checker().threads(1).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let missed = protocol.sights().iter().copied().filter(|sight| !discoveries.contains_key(sight.words())).collect();
    let found = protocol.promises().iter().filter_map(|promise| Some((*promise, discoveries.get(promise.words())?.clone())));
    let shortest = found.map(|(promise, path)| (promise, path.into_actions())).min_by_key(|(_, actions)| actions.len());
    Searched {
        missed,
        states: checker.unique_state_count(),
        depth: checker.max_depth().saturating_sub(1),
        complete: checker.is_done() && shortest.is_none(),
        broken: shortest.as_ref().map(|(promise, _)| *promise),
        counterexample: shortest.map(|(promise, actions)| protocol.told(&actions, promise)),
        took: began.elapsed(),
    }
}
