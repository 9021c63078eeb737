//! Locks as articles and libraries write them, each under a fault that breaks it.
//!
//! The shortest counterexample is searched in a model ([`search`]), told as a [`story`], and then played on a real server by real
//! processes: what those see is judged by the checker that judges our own stores. Each reply of the real server is compared with that of the
//! model, so the model is tested as well.

mod beside;
mod catalogue;
mod command;
pub(crate) mod dialects;
mod judge;
mod matrix;
mod player;
mod program;
mod replay;
mod schemes;
mod search;
mod server;
mod setting;
mod stamp;
mod story;
mod wire;
mod world;

use std::sync::Arc;

use tenure_testkit::history::Verdict;

pub use catalogue::{Specimen, controls, specimens};
pub use matrix::{Cell, faults, matrix};
pub use player::play;
pub use search::{RULES, Searched, search};
pub use story::story;

use crate::{Item, Kind, Shown};

/// Every specimen.
pub fn items() -> Vec<Item> {
    specimens().into_iter().map(item).collect()
}

fn item(specimen: Specimen) -> Item {
    Item {
        id: specimen.id.to_owned(),
        kind: Kind::Specimen,
        subject: specimen.setting.scheme.about.to_owned(),
        fault: specimen.fault.to_owned(),
        tier: None,
        expected: Verdict::Broken,
        because: specimen.breaks,
        run: Arc::new(move |lab, seed| {
            let rules: Vec<_> = specimen.breaks.into_iter().collect();
            let path = search(&specimen.setting, &rules).path;
            let path = path.unwrap_or_else(|| panic!("{}: the model finds nothing", specimen.id));
            let played = replay::replay(lab, &specimen, &path, seed);
            let story = story(&specimen.setting, &path);
            Shown { story, starved: played.starved, ..Shown::new(played.history) }
        }),
    }
}
