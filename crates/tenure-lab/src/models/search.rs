//! Looks at every state that can be reached.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};

use super::promise::Sight;

/// A system that a search goes through, with what it promises.
pub(crate) trait Subject: Clone + Send + Sync + 'static {
    type State: Clone + Debug + Hash + PartialEq + Send + Sync;
    type Action: Copy + Debug + PartialEq + Send + Sync;
    type Promise: Copy;

    fn first(&self) -> Self::State;

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);

    /// Lets an action happen.
    fn apply(&self, state: &mut Self::State, action: Self::Action);

    fn is_within(&self, _: &Self::State) -> bool {
        true
    }

    /// The first promise that `state` breaks.
    fn broken(&self, state: &Self::State) -> Option<Self::Promise>;

    /// The sights that must occur in one of the states.
    fn sights(&self) -> &[Sight];

    fn sees(&self, state: &Self::State, sight: Sight) -> bool;
}

/// Each state on a way, and what happens in it next.
pub(crate) type Path<S> = Vec<(<S as Subject>::State, <S as Subject>::Action)>;

/// The result of a search.
#[derive(Debug)]
pub(crate) struct Found<S: Subject> {
    /// Different states that were reached.
    pub(crate) states: usize,
    /// Steps to the farthest of them.
    pub(crate) depth: usize,
    /// No state was left out: a search ends early only where a promise is broken.
    pub(crate) complete: bool,
    pub(crate) missed: Vec<Sight>,
    /// The broken promise, the shortest way to break it, and the state that does.
    pub(crate) broken: Option<(S::Promise, Path<S>, S::State)>,
    pub(crate) took: Duration,
}

/// Searches breadth first on one thread, so that what is found first is the shortest, and the same
/// each time.
pub(crate) fn search<S: Subject>(subject: &S) -> Found<S> {
    let began = Instant::now();
    let searched = Searched { subject: subject.clone(), seen: AtomicU32::new(0) };
    let checker = searched.checker().threads(1).spawn_bfs().join();
    let broken = checker.discovery(KEPT).and_then(|path| {
        let last = path.last_state().clone();
        let path = path.into_vec().into_iter().filter_map(|(state, action)| Some((state, action?))).collect();
        Some((subject.broken(&last)?, path, last))
    });
    let seen = checker.model().seen.load(Ordering::Relaxed);
    Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth().saturating_sub(1),
        complete: checker.is_done() && broken.is_none(),
        missed: subject.sights().iter().copied().filter(|sight| seen & bit(*sight) == 0).collect(),
        broken,
        took: began.elapsed(),
    }
}

const KEPT: &str = "all promises are kept";

const fn bit(sight: Sight) -> u32 {
    1 << sight as u32
}

struct Searched<S> {
    subject: S,
    /// The sights so far, a bit each.
    seen: AtomicU32,
}

impl<S: Subject> Searched<S> {
    /// Whether `state` keeps all promises; notes what is seen in it.
    fn keeps_all(&self, state: &S::State) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        let missing = self.subject.sights().iter().filter(|sight| seen & bit(**sight) == 0);
        let new = missing.filter(|sight| self.subject.sees(state, **sight)).fold(0, |new, sight| new | bit(*sight));
        self.seen.store(seen | new, Ordering::Relaxed);
        self.subject.broken(state).is_none()
    }
}

impl<S: Subject> Model for Searched<S> {
    type State = S::State;
    type Action = S::Action;

    fn init_states(&self) -> Vec<S::State> {
        vec![self.subject.first()]
    }

    fn actions(&self, state: &S::State, actions: &mut Vec<S::Action>) {
        self.subject.actions(state, actions);
    }

    fn next_state(&self, last: &S::State, action: S::Action) -> Option<S::State> {
        let mut state = last.clone();
        self.subject.apply(&mut state, action);
        Some(state)
    }

    fn within_boundary(&self, state: &S::State) -> bool {
        self.subject.is_within(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(KEPT, Self::keeps_all)]
    }
}
