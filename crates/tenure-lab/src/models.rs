//! Models of tenure's own protocols, searched exhaustively within stated bounds.
//!
//! A model is every order in which clients, a server and what carries commands between them can
//! act, under tenure's rules. A search visits each state once. What holds says how many there were;
//! and to show that each rule is needed, and that the search would see it missing, there is a model
//! without it, whose shortest counterexample is written as a story.
//!
//! A client may do nothing for as long as it likes, which is its pause; what is never delivered is
//! lost. All clocks run alike; drift and the safety margin are arithmetic on top.

mod lease;
mod list;
mod model;
mod promise;
mod protocol;
mod queue;
mod quorum;
mod rules;
mod schemes;
pub(crate) mod search;
mod state;
mod story;
mod traffic;

pub use model::{Expected, Model, Searched};
pub use promise::{Promise, Sight};
pub use story::Story;

/// Every model, within bounds for each build: the protocols as they stand, then without each of
/// their rules, then where they promise nothing.
pub fn all() -> Vec<Model> {
    let standing = [list::standing(), quorum::list::standing(), schemes::standing()];
    let broken = [list::broken(), quorum::list::broken(), schemes::broken()];
    standing.into_iter().chain(broken).flatten().collect()
}

/// The protocols as they stand, within bounds that take minutes and some gigabytes.
pub fn larger() -> Vec<Model> {
    list::larger().into_iter().chain(quorum::list::larger()).collect()
}
