//! Models of tenure's own protocols, searched exhaustively within stated bounds.
//!
//! A model is every order in which clients, a server and what carries commands between them can act, under tenure's rules. A search
//! visits each state once. What holds says how many there were; and to show that each rule is needed, and that the search would see
//! it missing, there is a model without it, whose shortest counterexample is told as a story.
//!
//! There is one name. A client may do nothing for as long as it likes, which is its pause; what is never delivered is lost. All clocks
//! run alike, and no time is kept back to stop work, so that what is shown needs neither; drift and the guard are arithmetic on top.
//! Lifting the counter and taking the name are one step here.

mod client;
mod list;
mod promise;
mod protocol;
mod rules;
mod search;
mod server;
mod state;
mod story;

pub use promise::{Promise, Sight};
pub use search::Searched;
pub use story::Story;

use list::Recipe;
use protocol::Protocol;

/// Of what kind a [`Model`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The protocol as it stands: nothing breaks.
    Holds,
    /// The protocol without one of its rules, or where it promises nothing: this breaks.
    Breaks(Promise),
}

/// One model.
#[derive(Debug)]
pub struct Model {
    /// Short.
    pub id: String,
    /// What it is of, in words.
    pub of: String,
    /// How far it goes, in words.
    pub bounds: String,
    /// What a search must find.
    pub expected: Expected,
    protocol: Protocol,
}

impl Model {
    /// Visits every state. A counterexample is the shortest.
    pub fn search(&self) -> Searched {
        search::search(&self.protocol)
    }

    /// What is looked at in every state.
    pub fn promises(&self) -> &[Promise] {
        &self.protocol.promises
    }

    /// Whether a search has found what it must.
    pub fn is_as_expected(&self, searched: &Searched) -> bool {
        match self.expected {
            Expected::Holds => searched.complete && searched.missed.is_empty(),
            Expected::Breaks(promise) => searched.broken == Some(promise),
        }
    }

    fn new(Recipe { id, of, rules, bounds, promises, breaks, sights }: Recipe) -> Self {
        let (id, of, words) = (id.to_owned(), of.to_owned(), bounds.words());
        let expected = if breaks { Expected::Breaks(promises[0]) } else { Expected::Holds };
        Self { id, of, bounds: words, expected, protocol: Protocol { rules, bounds, promises: promises.to_vec(), sights } }
    }
}

/// Every model, within bounds for each build: the protocol as it stands, then without each of its rules, then where it promises
/// nothing.
pub fn all() -> Vec<Model> {
    [list::standing(), list::without(), list::holes()].into_iter().flatten().map(Model::new).collect()
}

/// The protocol as it stands, within bounds that take minutes and some gigabytes.
pub fn larger() -> Vec<Model> {
    list::larger().into_iter().map(Model::new).collect()
}
