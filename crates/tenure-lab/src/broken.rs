//! Locks as articles and libraries write them, each under a fault that breaks it.
//!
//! The shortest counterexample is searched in a model, told as a story, and then played on a real
//! server by real processes: what those see is judged by the checker that judges our own stores.
//! Each reply of the real server is compared with that of the model, so the model is tested as
//! well.

mod beside;
mod case;
mod catalogue;
mod command;
mod engine;
mod judge;
mod link;
mod matrix;
mod memcached;
mod ours;
mod player;
mod program;
mod redisson;
mod replay;
mod schemes;
mod server;
mod story;
mod timestamp;
mod wire;
mod world;
mod zookeeper;

use std::sync::Arc;

use tenure_testkit::history::Verdict;

pub use case::Case;
pub use catalogue::{broken_locks, controls};
pub use matrix::{Cell, faults, matrix};
pub use player::play;

use crate::models::Model;
use crate::{Item, Kind, Shown};
use story::story;

/// Every broken lock.
pub fn items() -> Vec<Item> {
    catalogue::broken_locks().into_iter().map(item).collect()
}

/// Models of our own client in the schemes of others.
pub(crate) fn models() -> Vec<Model> {
    ours::cases().into_iter().map(Case::model).collect()
}

fn item(case: Case) -> Item {
    Item {
        id: case.id.to_owned(),
        kind: Kind::BrokenLock,
        subject: case.lock().to_owned(),
        fault: case.what.to_owned(),
        tier: None,
        expected: Verdict::Broken,
        because: case.breaks,
        run: Arc::new(move |lab, seed| {
            let (_, path, _) = case.find().broken.unwrap_or_else(|| panic!("{}: the model finds nothing", case.id));
            let played = replay::replay(lab, &case, &path, seed);
            Shown { story: story(&case.setting, &path), starved: played.starved, ..Shown::new(played.history) }
        }),
    }
}
