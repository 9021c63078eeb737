//! Models of tenure's own protocols, searched exhaustively within stated bounds.
//!
//! A model is every order in which clients, a server and what carries commands between them can act, under tenure's rules. A search
//! visits each state once. What holds says how many there were; and to show that each rule is needed, and that the search would see
//! it missing, there is a model without it, whose shortest counterexample is told as a story.
//!
//! A client may do nothing for as long as it likes, which is its pause; what is never delivered is lost. All clocks run alike; drift
//! and the guard are arithmetic on top.

mod dialects;
mod lease;
mod promise;
mod queue;
mod search;
mod story;
mod traffic;

use std::fmt;

pub use promise::{Promise, Sight};
pub use search::Searched;
pub use story::Story;

use promise::Subject;

/// Of what kind a [`Model`] is.
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
    /// What it is of, in words.
    pub of: String,
    /// How far it goes, in words.
    pub bounds: String,
    /// What a search must find.
    pub expected: Expected,
    search: Box<dyn Fn() -> Searched + Send + Sync>,
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

    fn new(id: &str, of: &str, bounds: String, expected: Expected, subject: impl Subject) -> Self {
        let (id, of) = (id.to_owned(), of.to_owned());
        Self { id, of, bounds, expected, search: Box::new(move || search::search(&subject)) }
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("id", &self.id).field("expected", &self.expected).finish_non_exhaustive()
    }
}

/// Every model, within bounds for each build: the protocols as they stand, then without each of their rules, then where they promise
/// nothing.
pub fn all() -> Vec<Model> {
    let standing = [lease::standing(), queue::standing(), dialects::standing()];
    let broken = [lease::without(), queue::without(), lease::holes(), queue::holes(), dialects::broken()];
    let all = standing.into_iter().chain(broken);
    all.flatten().collect()
}

/// The protocols as they stand, within bounds that take minutes and some gigabytes.
pub fn larger() -> Vec<Model> {
    [lease::larger(), queue::larger()].into_iter().flatten().collect()
}

/// `1 claim`, `2 claims`.
fn counted(count: u8, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
