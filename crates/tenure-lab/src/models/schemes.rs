//! Our own client in the schemes of others: against itself, beside the others, and without its
//! rules.

mod client;
mod command;
mod others;
mod ours;
mod rules;
mod server;
mod setting;
mod story;
mod theirs;
mod world;

use super::promise::Promise::{self, NoFalseLoss, NoOrphan, OneHolder};
use super::promise::Sight::{self, AfterCrash, Granted, TakenOver, WithoutTtl};
use super::search::{Subject, search};
use super::{Expected, Model, Searched};
use client::{Client, Scheme};
use others::Mistake;
use rules::{Faults, Rules, TTL, Tick};
use setting::{OURS, Setting};
use world::{Action, World};

/// A setting, with what is looked at in it.
#[derive(Clone, Debug)]
struct Case {
    setting: Setting,
    promises: &'static [Promise],
    /// A condition for a broken promise to count.
    also: fn(&World) -> bool,
    sights: &'static [Sight],
}

impl Case {
    /// Two of ours, over two leases, and nothing goes wrong.
    fn new(scheme: Scheme) -> Self {
        let (rules, faults) = (Rules::TENURE, Faults::NONE);
        let setting = Setting { scheme, rules, others: None, clients: OURS, horizon: 2 * TTL, skew: 0, clock_ahead: 0, faults };
        Self { setting, promises: &[OneHolder], also: |_| true, sights: &[] }
    }

    fn with(mut self, change: impl FnOnce(&mut Setting)) -> Self {
        change(&mut self.setting);
        self
    }

    fn faults(self, faults: Faults) -> Self {
        self.with(|setting| setting.faults = faults)
    }

    fn within(self, horizon: Tick) -> Self {
        self.with(|setting| setting.horizon = horizon)
    }

    fn server_ahead(self, ticks: Tick) -> Self {
        self.with(|setting| setting.clock_ahead = ticks)
    }

    fn without(self, leave_out: impl FnOnce(&mut Rules)) -> Self {
        self.with(|setting| leave_out(&mut setting.rules))
    }

    /// With one of the others, which makes none of its known mistakes.
    fn beside(self, others: Scheme) -> Self {
        let with = self.with(|setting| (setting.others, setting.clients) = (Some(others), OURS + 1));
        with.also(|world| with_mistakes(world, &[]))
    }

    fn also(self, also: fn(&World) -> bool) -> Self {
        Self { also, ..self }
    }

    fn sees(self, sights: &'static [Sight]) -> Self {
        Self { sights, ..self }
    }

    fn holds(self, id: &str, of: &str) -> Model {
        self.model(id, of, Expected::Holds)
    }

    fn breaks(self, id: &str, of: &str) -> Model {
        let promise = self.promises[0];
        self.model(id, of, Expected::Breaks(promise))
    }

    fn model(self, id: &str, of: &str, expected: Expected) -> Model {
        Model::new((id, of), self.setting.bounds(), expected, move || {
            Searched::of(search(&self), |promise, path, _| {
                let mut story = story::told(&self.setting, &path);
                story.push(format!("BROKEN: {}", promise.words()));
                (promise, story)
            })
        })
    }
}

impl Subject for Case {
    type State = World;
    type Action = Action;
    type Promise = Promise;

    fn first(&self) -> World {
        World::new(&self.setting)
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(&self.setting, actions);
    }

    fn apply(&self, world: &mut World, action: Action) {
        world.apply(&self.setting, action);
    }

    fn broken(&self, world: &World) -> Option<Promise> {
        let is_broken = |promise: &Promise| match promise {
            NoOrphan => world.leaks(&self.setting),
            NoFalseLoss => world.lost_falsely(),
            _ => world.overlaps(),
        };
        self.promises.iter().copied().find(|promise| is_broken(promise) && (self.also)(world))
    }

    fn sights(&self) -> &[Sight] {
        self.sights
    }

    fn sees(&self, world: &World, sight: Sight) -> bool {
        let held = world.is_held();
        match sight {
            WithoutTtl => world.others.adopted,
            AfterCrash => held && world.clients.iter().any(|client| client.died.is_some()),
            TakenOver => {
                let lapsed = |client: &Client| client.hold.is_some() && !client.is_valid(world.now);
                held && world.clients.iter().any(lapsed)
            }
            _ => held,
        }
    }
}

/// A client regards itself as the holder, or a value that was not given up is not just passing:
/// ours takes it in the step in which the others do not yet.
fn still_taken(world: &World) -> bool {
    world.is_held() || world.server.is_taken(world.now + 1)
}

/// One of the holders is a client of ours.
fn ours_holds(world: &World) -> bool {
    world.clients[..usize::from(OURS)].iter().any(|client| client.is_valid(world.now))
}

fn with_mistakes(world: &World, mistakes: &[Mistake]) -> bool {
    ours_holds(world) && world.others.mistakes.iter().eq(mistakes)
}

fn php() -> Case {
    Case::new(ours::STAMPED)
}

fn php_beside() -> Case {
    php().beside(theirs::PHP).faults(Faults::CRASH)
}

fn getset() -> Case {
    php().without(|rules| rules.by_value = true)
}

fn getset_beside() -> Case {
    getset().beside(theirs::GETSET)
}

/// Without renewals: each write of one is a version of its own to what is watched, so there would
/// be no end of states.
fn watch() -> Case {
    Case::new(Scheme { renew: None, ..ours::WATCH }).within(TTL)
}

/// The protocols as they stand.
pub(super) fn standing() -> Vec<Model> {
    let alone = |case: Case, faults| {
        let case = case.faults(faults).within(TTL).sees(&[Granted, TakenOver]);
        Case { promises: &[OneHolder, NoOrphan, NoFalseLoss], ..case }
    };
    vec![
        alone(php(), Faults::EACH).holds("php", "scheme=php among ourselves"),
        alone(getset(), Faults::EACH).also(still_taken).holds("getset", "scheme=getset among ourselves"),
        alone(watch(), Faults::LOST_REPLY).holds("watch", "scheme=watch among ourselves, whose connections break"),
        alone(watch(), Faults::SLOW).holds("watch-late", "the same, where a command is late"),
        php_beside()
            .sees(&[Granted, TakenOver, AfterCrash, WithoutTtl])
            .holds("php-beside", "scheme=php beside the class, which makes none of its mistakes"),
        getset_beside()
            .faults(Faults::CRASH)
            .sees(&[Granted, TakenOver, AfterCrash])
            .holds("getset-beside", "scheme=getset beside the articles' client, which makes none of its mistakes"),
        getset_beside().server_ahead(-TTL).holds("getset-clocks", "the same, where the server's clock is behind all hosts'"),
        watch()
            .beside(theirs::WATCH)
            .sees(&[Granted, TakenOver])
            .holds("watch-beside", "scheme=watch beside one that uses one connection"),
    ]
}

/// The protocols without one of their rules, then where they promise nothing.
pub(super) fn broken() -> Vec<Model> {
    let renewed = || Case::new(ours::WATCH).within(0);
    let at_once = Case { promises: &[NoOrphan], ..renewed() }.with(|setting| setting.scheme.in_turn = false);
    let skewed = |skew| getset_beside().also(ours_holds).with(|setting| setting.skew = skew);
    vec![
        php_beside()
            .without(|rules| rules.value_passed = false)
            .breaks("php-unpassed", "a key without ttl is taken before its value has passed"),
        php_beside()
            .without(|rules| rules.seen_long = false)
            .breaks("php-unseen", "a key without ttl is taken the first time it is seen"),
        php_beside()
            .without(|rules| rules.changed_is_lost = false)
            .breaks("php-any-value", "an owner beside another value counts"),
        getset()
            .with(|setting| setting.clients = 3)
            .faults(Faults::LOST_REPLY)
            .within(0)
            .without(|rules| rules.owner_beside = false)
            .breaks("getset-value-alone", "the value alone says whose it is"),
        getset()
            .within(0)
            .without(|rules| rules.one_step = false)
            .breaks("getset-two-steps", "the look and the write are two steps"),
        getset_beside()
            .server_ahead(-TTL)
            .without(|rules| rules.clocks_agree = false)
            .breaks("getset-any-clock", "a name is taken though the clocks are apart"),
        renewed()
            .faults(Faults::LOST_REQUEST)
            .without(|rules| rules.looks_again = false)
            .breaks("watch-written-again", "EXEC is sent again on the connection that replaced the one of the look"),
        at_once.breaks("watch-at-once", "two transactions at once on one connection"),
        php_beside()
            .also(|world| with_mistakes(world, &[Mistake::WroteOver]))
            .breaks("php-overwritten", "the class writes over who took a key between its two looks (tier 3)"),
        php_beside()
            .also(|world| with_mistakes(world, &[Mistake::Deleted]))
            .breaks("php-deleted", "the class deletes what was taken between its GET and its DEL (tier 3)"),
        php_beside()
            .also(|world| with_mistakes(world, &[Mistake::Stopped]))
            .breaks("php-stopped", "the class is stopped between SETNX and EXPIRE for too long (tier 3)"),
        getset_beside()
            .faults(Faults::SLOW)
            .also(|world| with_mistakes(world, &[Mistake::Deleted]))
            .breaks("getset-deleted", "the articles' client deletes after its deadline (tier 3)"),
        skewed(TTL + 1).breaks("getset-fast", "the other's clock is fast (tier 3)"),
        skewed(-TTL - 1).breaks("getset-slow", "the other's clock is slow (tier 3)"),
        watch()
            .beside(theirs::POOLED)
            .also(|world| with_mistakes(world, &[Mistake::Deleted]))
            .breaks("watch-pooled", "the other watches and writes on two connections (tier 3)"),
    ]
}
