//! Locks as articles and libraries write them, each under a fault that breaks it.
//!
//! A lock that breaks is a story: what each client sends, what the server replies, and what the
//! client takes that to mean. The stories are data. One runner plays them with real processes on a
//! real server, and compares each reply with that of the story. The checker that judges our own
//! stores judges what came of it.

mod link;
mod play;
mod scale;
mod server;
mod story;
mod visitor;
mod zookeeper;

use std::sync::Arc;

use tenure_testkit::history::Verdict;

pub use visitor::visit;

use crate::{Item, Kind};
use story::Story;

/// Every broken lock.
pub fn items() -> Vec<Item> {
    story::all().into_iter().map(item).collect()
}

fn item(story: Story) -> Item {
    Item {
        id: story.id.to_owned(),
        kind: Kind::BrokenLock,
        subject: story.lock.to_owned(),
        fault: story.fault.to_owned(),
        tier: None,
        expected: Verdict::Broken,
        because: Some(story.breaks),
        run: Arc::new(move |lab, seed| play::play(lab, &story, seed)),
    }
}
