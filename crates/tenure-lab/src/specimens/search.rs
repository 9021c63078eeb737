//! Searches everything that can happen in a setting, shortest first.

use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};
use tenure_testkit::history::Rule;

use super::setting::Setting;
use super::world::{Action, World};
use crate::models::Sight;

/// The rules that a specimen can break.
pub const RULES: [Rule; 7] =
    [Rule::Overlap, Rule::FenceOrder, Rule::Leak, Rule::Overtaken, Rule::NotGranted, Rule::FalseLoss, Rule::RefusedHolder];

/// What a search found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// How many states were looked at.
    pub states: usize,
    /// How many steps it went.
    pub depth: usize,
    /// What never came about, though it should.
    pub missed: Vec<Sight>,
    /// The shortest way to break the rule: each world, and what happens in it next.
    pub path: Option<Vec<(World, Action)>>,
    /// How long it took.
    pub took: Duration,
}

struct Search {
    setting: Setting,
    rules: Vec<Rule>,
    sights: Vec<Sight>,
}

impl Model for Search {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.setting)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        state.actions(&self.setting, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut next = last.clone();
        next.apply(&self.setting, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let intact = |model: &Self, state: &World| !model.rules.iter().any(|rule| state.breaks(&model.setting, *rule));
        let sights = self.sights.iter().map(|sight| {
            let seen = match sight {
                Sight::Orphan => |_: &Self, state: &World| state.beside.adopted,
                Sight::AfterCrash => {
                    |_: &Self, state: &World| state.is_held() && state.clients.iter().any(|client| client.died.is_some())
                }
                Sight::TakenOver => {
                    |_: &Self, state: &World| state.is_held() && state.clients.iter().any(|client| state.has_lapsed(client))
                }
                _ => |_: &Self, state: &World| state.is_held(),
            };
            Property::sometimes(sight.words(), seen)
        });
        std::iter::once(Property::always("no rule is broken", intact)).chain(sights).collect()
    }
}

/// The shortest way to break one of `rules`, or the certainty that there is none within the setting's bounds.
pub fn search(setting: &Setting, rules: &[Rule]) -> Searched {
    search_seeing(setting, rules, &[])
}

/// The same, with what must come about in one of the states.
pub(crate) fn search_seeing(setting: &Setting, rules: &[Rule], sights: &[Sight]) -> Searched {
    let began = Instant::now();
    let model = Search { setting: setting.clone(), rules: rules.to_vec(), sights: sights.to_vec() };
    // One thread: only then is the first that is found the shortest, and the same every time.
    let checker = model.checker().threads(1).spawn_bfs().join();
    let path = checker.discovery("no rule is broken").map(|path| {
        let steps = path.into_vec().into_iter();
        steps.filter_map(|(world, action)| action.map(|action| (world, action))).collect()
    });
    let missed = sights.iter().copied().filter(|sight| checker.discovery(sight.words()).is_none()).collect();
    let depth = checker.max_depth().saturating_sub(1);
    Searched { states: checker.unique_state_count(), depth, missed, path, took: began.elapsed() }
}
