//! A scheme in surroundings that may break it: who is there, for how long, what may go wrong, and
//! what must be found.

use tenure_testkit::history::Rule;

use super::program::{Scheme, Tick};
use super::schemes::TTL;
use super::world::{Action, World};
use crate::models::search::{Found, Subject, search};
use crate::models::{Expected, Model, Promise, Searched, Sight};
use crate::tables::settings;

/// A scheme in its surroundings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) scheme: Scheme,
    /// The scheme of others at the same name, and the first of them; those before are ours.
    pub(crate) others: Option<(Scheme, u8)>,
    pub(crate) clients: u8,
    /// How much of the name there is.
    pub(crate) capacity: u32,
    /// How much of it each client takes.
    pub(crate) weights: [u32; 3],
    /// When the run ends.
    pub(crate) horizon: Tick,
    /// By how much the wall clock of each is ahead.
    pub(crate) skews: [Tick; 3],
    /// By how much the server's clock is ahead.
    pub(crate) clock_ahead: Tick,
    /// Renewals are never later than this after the last; otherwise they may be as late as they
    /// like.
    pub(crate) punctual: Option<Tick>,
    /// No client is slow: one that lives finishes what it does within a step, and gives up before
    /// its lease ends.
    pub(crate) prompt: bool,
    /// A condition for a broken rule to be the one that is searched for.
    pub(crate) also: fn(&World) -> bool,
    pub(crate) faults: Faults,
}

settings! {
    /// Faults, and how often each may occur; clients are slow besides.
    Faults::NONE {
        /// Processes killed.
        crashes: u8 = 0,
        /// Commands that are executed though their reply is lost.
        lost_replies: u8 = 0,
        /// Commands that are lost.
        lost_requests: u8 = 0,
        /// Commands that travel slowly, either way.
        slow: u8 = 0,
        /// The server loses its data: flushed, or killed without persistence.
        flushes: u8 = 0,
        /// A replica takes over that has none of the writes.
        failovers: u8 = 0,
        /// The server's clock jumps forward, by this much.
        jump: Tick = 0,
        /// Subscriptions that are lost without a word.
        deaf: u8 = 0,
        /// Machines of clients that sleep through a step.
        sleeps: u8 = 0,
        /// Processes that are stopped while they hold, and go on.
        stops: u8 = 0,
        /// Times that the server evicts the lock.
        evictions: u8 = 0,
    }
}

impl Faults {
    pub(crate) const CRASH: Self = Self { crashes: 1, ..Self::NONE };
    pub(crate) const LOST_REPLY: Self = Self { lost_replies: 1, ..Self::NONE };
    pub(crate) const LOST_REQUEST: Self = Self { lost_requests: 1, ..Self::NONE };
    pub(crate) const SLOW: Self = Self { slow: 1, ..Self::NONE };
    pub(crate) const FLUSH: Self = Self { flushes: 1, ..Self::NONE };
    pub(crate) const STOP: Self = Self { stops: 1, ..Self::NONE };
    pub(crate) const EVICTION: Self = Self { evictions: 1, ..Self::NONE };
    pub(crate) const FAILOVER: Self = Self { failovers: 1, ..Self::NONE };
    /// One of each that a careful client survives.
    pub(crate) const EACH: Self = Self { crashes: 1, lost_replies: 1, lost_requests: 1, slow: 1, ..Self::NONE };
}

impl Setting {
    /// Three clients that ask once each, for a mutex, over two leases, and nothing goes wrong.
    pub(crate) const fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            others: None,
            clients: 3,
            capacity: 1,
            weights: [1; 3],
            horizon: 2 * TTL,
            skews: [0; 3],
            clock_ahead: 0,
            punctual: None,
            prompt: false,
            also: |_| true,
            faults: Faults::NONE,
        }
    }

    pub(crate) fn is_other(&self, who: u8) -> bool {
        self.others.is_some_and(|(_, first)| who >= first)
    }

    /// Returns the scheme of a client.
    pub(crate) fn scheme_of(&self, who: u8) -> &Scheme {
        match &self.others {
            Some((scheme, first)) if who >= *first => scheme,
            _ => &self.scheme,
        }
    }
}

/// A setting, with what must not be broken in it, or what must.
#[derive(Clone, Debug)]
pub struct Case {
    /// Short; of a broken lock `scheme/fault`.
    pub id: &'static str,
    /// The fault, in words.
    pub what: &'static str,
    /// The rule that must be broken; `None` for one that must hold.
    pub breaks: Option<Rule>,
    pub(crate) setting: Setting,
    /// The rules to be searched for.
    pub(crate) rules: Vec<Rule>,
    /// The sights that must occur.
    pub(crate) sights: &'static [Sight],
}

impl Case {
    pub(crate) fn new(id: &'static str, what: &'static str, scheme: Scheme, breaks: Rule) -> Self {
        Self { id, what, breaks: Some(breaks), setting: Setting::new(scheme), rules: vec![breaks], sights: &[] }
    }

    /// Nothing of `rules` is broken here.
    pub(crate) fn holds(self, rules: &[Rule], sights: &'static [Sight]) -> Self {
        Self { breaks: None, rules: rules.to_vec(), sights, ..self }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Setting)) -> Self {
        change(&mut self.setting);
        self
    }

    pub(crate) fn faults(self, faults: Faults) -> Self {
        self.with(|setting| setting.faults = faults)
    }

    pub(crate) fn clients(self, clients: u8) -> Self {
        self.with(|setting| setting.clients = clients)
    }

    pub(crate) fn within(self, horizon: Tick) -> Self {
        self.with(|setting| setting.horizon = horizon)
    }

    pub(crate) fn skews(self, skews: [Tick; 3]) -> Self {
        self.with(|setting| setting.skews = skews)
    }

    pub(crate) fn also(self, also: fn(&World) -> bool) -> Self {
        self.with(|setting| setting.also = also)
    }

    /// The lock, in words.
    pub fn lock(&self) -> &'static str {
        self.setting.scheme.about
    }

    pub(crate) fn find(&self) -> Found<Self> {
        search(self)
    }

    /// Visits every state.
    pub fn search(&self) -> Searched {
        Searched::of(self.find(), |rule, path, _| (promise(rule), super::story(&self.setting, &path)))
    }

    /// The case among the models of our own protocol.
    pub(crate) fn model(self) -> Model {
        let expected = self.breaks.map_or(Expected::Holds, |rule| Expected::Breaks(promise(rule)));
        Model::new((self.id, self.what), self.bounds(), expected, move || {
            let mut searched = self.search();
            if let (Some(story), Some(promise)) = (&mut searched.counterexample, searched.broken) {
                story.push(format!("BROKEN: {}", promise.words()));
            }
            searched
        })
    }

    /// How far it goes, in words.
    fn bounds(&self) -> String {
        let Setting { clients, others, horizon, faults, clock_ahead, skews, .. } = &self.setting;
        let theirs = others.map_or(0, |(_, first)| clients - first);
        let mut words = vec![format!("{} clients of ours", clients - theirs)];
        words.extend((theirs > 0).then(|| format!("{theirs} of the others")));
        words.push(format!("each asks once, for {TTL} ticks, within {horizon} ticks"));
        for (count, what) in [
            (faults.crashes, "crash"),
            (faults.lost_replies, "lost reply"),
            (faults.lost_requests, "lost command"),
            (faults.slow, "late command"),
        ] {
            words.extend((count > 0).then(|| format!("up to {count} {what}")));
        }
        words.extend((*clock_ahead != 0).then(|| format!("the server's clock is ahead by {clock_ahead} ticks")));
        words.extend((skews[2] != 0).then(|| format!("the other's clock is ahead by {} ticks", skews[2])));
        words.push("clients pause at will".to_owned());
        words.join("; ")
    }
}

const fn promise(rule: Rule) -> Promise {
    match rule {
        Rule::Leak => Promise::NoOrphan,
        Rule::FalseLoss => Promise::NoFalseLoss,
        _ => Promise::OneHolder,
    }
}

impl Subject for Case {
    type State = World;
    type Action = Action;
    type Promise = Rule;

    fn first(&self) -> World {
        World::new(&self.setting)
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(&self.setting, actions);
    }

    fn apply(&self, world: &mut World, action: Action) {
        world.apply(&self.setting, action);
    }

    fn broken(&self, world: &World) -> Option<Rule> {
        self.rules.iter().copied().find(|rule| world.breaks(&self.setting, *rule))
    }

    fn sights(&self) -> &[Sight] {
        self.sights
    }

    fn sees(&self, world: &World, sight: Sight) -> bool {
        let held = world.is_held();
        match sight {
            Sight::WithoutTtl => world.beside.adopted,
            Sight::AfterCrash => held && world.clients.iter().any(|client| client.died.is_some()),
            Sight::TakenOver => held && world.clients.iter().any(|client| world.has_lapsed(client)),
            _ => held,
        }
    }
}
