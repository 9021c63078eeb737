//! One model: its subject, its search, and what that must find.

use std::fmt;
use std::time::Duration;

use super::promise::{Promise, Sight};
use super::protocol::Protocol;
use super::quorum::{self, Quorum};
use super::search::{self, Found, Subject};
use super::story::{self, Story};

/// The kind of a [`Model`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The protocol as it stands: nothing breaks.
    Holds,
    /// The protocol without one of its rules, or where it promises nothing: this breaks.
    Breaks(Promise),
}

/// One model.
pub struct Model {
    /// Short.
    pub id: String,
    /// Its subject, in words.
    pub of: String,
    /// How far it goes, in words.
    pub bounds: String,
    /// The result that a search must have.
    pub expected: Expected,
    search: Box<dyn Fn() -> Searched + Send + Sync>,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Different states that were reached.
    pub states: usize,
    /// Steps to the farthest of them.
    pub depth: usize,
    /// No state was left out: a search ends early only at a counterexample.
    pub complete: bool,
    /// The sights that never occurred, though they should.
    pub missed: Vec<Sight>,
    /// The promise that does not hold.
    pub broken: Option<Promise>,
    /// The shortest way to break it.
    pub counterexample: Option<Story>,
    /// How long it took.
    pub took: Duration,
}

impl Searched {
    /// `told` says how a promise is broken, and which it is.
    pub(crate) fn of<S: Subject>(
        found: Found<S>,
        told: impl FnOnce(S::Promise, search::Path<S>, S::State) -> (Promise, Story),
    ) -> Self {
        let Found { states, depth, complete, missed, broken, took } = found;
        let (broken, counterexample) = broken.map(|(promise, path, last)| told(promise, path, last)).unzip();
        Self { states, depth, complete, missed, broken, counterexample, took }
    }
}

impl Model {
    /// Visits every state. A counterexample is the shortest.
    pub fn search(&self) -> Searched {
        (self.search)()
    }

    /// Whether a search has found what it must.
    pub fn is_as_expected(&self, searched: &Searched) -> bool {
        match self.expected {
            Expected::Holds => searched.complete && searched.missed.is_empty(),
            Expected::Breaks(promise) => searched.broken == Some(promise),
        }
    }

    /// A model whose search is this.
    pub(crate) fn new(
        (id, of): (&str, &str),
        bounds: String,
        expected: Expected,
        search: impl Fn() -> Searched + Send + Sync + 'static,
    ) -> Self {
        Self { id: id.to_owned(), of: of.to_owned(), bounds, expected, search: Box::new(search) }
    }

    pub(super) fn of_protocol(id: &str, of: &str, expected: Expected, protocol: Protocol) -> Self {
        Self::new((id, of), protocol.bounds.words(), expected, move || {
            let told = |promise, path, last| (promise, story::told(&protocol, &path, &last, promise));
            Searched::of(search::search(&protocol), told)
        })
    }

    pub(super) fn of_quorum(id: &str, of: &str, expected: Expected, quorum: Quorum) -> Self {
        Self::new((id, of), quorum.bounds.words(), expected, move || {
            let told = |promise, path, last| (promise, quorum::story::told(&quorum, &path, &last, promise));
            Searched::of(search::search(&quorum), told)
        })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("id", &self.id).field("expected", &self.expected).finish_non_exhaustive()
    }
}
