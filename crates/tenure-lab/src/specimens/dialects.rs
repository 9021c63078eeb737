//! Our client in the dialects of others, in the surroundings of the specimens: against itself, beside the others, and without its rules.

use tenure_testkit::history::Rule;

use super::beside::{Flaw, Others};
use super::program::{Scheme, Tick};
use super::schemes::{TTL, getset, ours, php, token};
use super::search::{Searched, search_seeing};
use super::setting::{Faults, Setting};
use super::stamp::Rules;
use super::world::{Action, World};
use crate::models::Sight;

/// One search.
pub(crate) struct Dialect {
    pub(crate) id: &'static str,
    /// In words.
    pub(crate) of: &'static str,
    pub(crate) setting: Setting,
    /// What must not be broken.
    rules: Vec<Rule>,
    /// What must come about.
    sights: Vec<Sight>,
    /// What must be found, where something must.
    pub(crate) breaks: Option<Rule>,
}

/// Our clients, where there are others: the first two. The third is of the others.
const OURS: u8 = 2;

const FAULTS: Faults = Faults { crashes: 1, lost_replies: 1, lost_requests: 1, slow: 1, ..Faults::NONE };
const CRASH: Faults = Faults { crashes: 1, ..Faults::NONE };
const LOST_REPLY: Faults = Faults { lost_replies: 1, ..Faults::NONE };
const SLOW: Faults = Faults { slow: 1, ..Faults::NONE };
const LOST_REQUEST: Faults = Faults { lost_requests: 1, ..Faults::NONE };

/// Every search.
pub(crate) fn dialects() -> Vec<Dialect> {
    [alone(), beside(), without(), mistakes()].into_iter().flatten().collect()
}

impl Dialect {
    /// Ours alone, which keeps all it promises.
    fn new(id: &'static str, of: &'static str, scheme: Scheme) -> Self {
        let setting = Setting { clients: 2, ..Setting::new(scheme) };
        Self { id, of, setting, rules: vec![Rule::Overlap, Rule::Leak, Rule::FalseLoss], sights: Vec::new(), breaks: None }
    }

    /// Two of ours and one of the others, who makes none of its known mistakes.
    fn beside(id: &'static str, of: &'static str, scheme: Scheme, others: Scheme) -> Self {
        let others = Some(Others { scheme: others, from: OURS });
        let setting = Setting { clients: OURS + 1, others, also: without_mistake, ..Setting::new(scheme) };
        Self { setting, rules: vec![Rule::Overlap], ..Self::new(id, of, scheme) }
    }

    fn faults(mut self, faults: Faults) -> Self {
        self.setting.faults = faults;
        self
    }

    fn within(mut self, horizon: Tick) -> Self {
        self.setting.horizon = horizon;
        self
    }

    fn clients(mut self, clients: u8) -> Self {
        self.setting.clients = clients;
        self
    }

    fn ahead(mut self, ahead: Tick) -> Self {
        self.setting.ahead = ahead;
        self
    }

    fn sees(self, sights: &[Sight]) -> Self {
        Self { sights: sights.to_vec(), ..self }
    }

    fn also(mut self, also: fn(&World) -> bool) -> Self {
        self.setting.also = also;
        self
    }

    /// Two hold at once, and this is how.
    fn overlaps(mut self, also: fn(&World) -> bool) -> Self {
        self.setting.also = also;
        self.breaking(Rule::Overlap)
    }

    /// This is broken, though ours is alone.
    fn breaking(self, rule: Rule) -> Self {
        Self { rules: vec![rule], sights: Vec::new(), breaks: Some(rule), ..self }
    }

    /// The clock of the other one is wrong.
    fn skewed(mut self, by: Tick) -> Self {
        self.setting.skews = [0, 0, by];
        self
    }

    pub(crate) fn search(&self) -> Searched {
        search_seeing(&self.setting, &self.rules, &self.sights)
    }

    /// Which of the rules is broken at the end of `path`.
    pub(crate) fn broken_by(&self, path: &[(World, Action)]) -> Rule {
        let last = path.last().map(|(world, action)| {
            let mut world = world.clone();
            world.apply(&self.setting, *action);
            world
        });
        let broken = |rule: &&Rule| last.as_ref().is_some_and(|world| world.breaks(&self.setting, **rule));
        self.rules.iter().find(broken).copied().unwrap_or(Rule::Overlap)
    }

    /// How far it goes, in words.
    pub(crate) fn bounds(&self) -> String {
        let Setting { clients, others, horizon, faults, ahead, skews, .. } = &self.setting;
        let theirs = others.map_or(0, |others| clients - others.from);
        let mut words = vec![format!("{} clients of ours", clients - theirs)];
        if theirs > 0 {
            words.push(format!("{theirs} of the others"));
        }
        words.push(format!("each asks once, for {TTL} ticks, within {horizon} ticks"));
        let all = [
            (faults.crashes, "crash"),
            (faults.lost_replies, "lost reply"),
            (faults.lost_requests, "lost command"),
            (faults.slow, "late command"),
        ];
        words.extend(all.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("up to {count} {what}")));
        if *ahead != 0 {
            words.push(format!("the server's clock is ahead by {ahead} ticks"));
        }
        if skews[2] != 0 {
            words.push(format!("the other's clock is ahead by {} ticks", skews[2]));
        }
        words.push("clients pause at will".to_owned());
        words.join("; ")
    }
}

/// Somebody holds, or a value that nobody gave up is not just passing: ours takes it in the step in which the others do not yet.
fn still_taken(world: &World) -> bool {
    world.is_held() || world.server.is_taken(world.now + 1)
}

/// One of ours is among those who hold.
fn ours_holds(world: &World) -> bool {
    world.clients[..usize::from(OURS)].iter().any(|client| client.believes(world.now))
}

fn with_mistakes(world: &World, flaws: &[Flaw]) -> bool {
    ours_holds(world) && world.beside.flaws.iter().eq(flaws)
}

fn without_mistake(world: &World) -> bool {
    with_mistakes(world, &[])
}

/// The same scheme, without a rule.
fn left_out(scheme: Scheme, change: impl FnOnce(&mut Rules)) -> Scheme {
    let mut scheme = scheme;
    change(&mut scheme.rules);
    scheme
}

fn alone() -> Vec<Dialect> {
    let new = |id, of, scheme| Dialect::new(id, of, scheme).faults(FAULTS).within(TTL).sees(&[Sight::Granted, Sight::TakenOver]);
    vec![
        new("php", "scheme=php among ourselves", ours::PHP),
        new("getset", "scheme=getset among ourselves", ours::GETSET).also(still_taken),
        new("watch", "scheme=watch among ourselves, whose connections break", WATCH_ONCE).faults(LOST_REPLY),
        new("watch-late", "the same, where a command is late", WATCH_ONCE).faults(SLOW),
    ]
}

/// Without renewals: each write of one is a version of its own to what is watched, so there would be no end of states.
const WATCH_ONCE: Scheme = Scheme { renew: None, about: "tenure, scheme=watch", ..ours::WATCH };

fn php_beside(id: &'static str, of: &'static str, scheme: Scheme) -> Dialect {
    Dialect::beside(id, of, scheme, php::WAITING).faults(CRASH)
}

fn beside() -> Vec<Dialect> {
    let new = Dialect::beside;
    vec![
        php_beside("php-beside", "scheme=php beside the class, which makes none of its mistakes", ours::PHP).sees(&[
            Sight::Granted,
            Sight::TakenOver,
            Sight::AfterCrash,
            Sight::Orphan,
        ]),
        new(
            "getset-beside",
            "scheme=getset beside the articles' client, which makes none of its mistakes",
            ours::GETSET,
            getset::GETSET,
        )
        .faults(CRASH)
        .sees(&[Sight::Granted, Sight::TakenOver, Sight::AfterCrash]),
        new("getset-clocks", "the same, where the server's clock is behind all hosts'", ours::GETSET, getset::GETSET).ahead(-TTL),
        new("watch-beside", "scheme=watch beside one that uses one connection", WATCH_ONCE, token::WATCH)
            .within(TTL)
            .sees(&[Sight::Granted, Sight::TakenOver]),
    ]
}

fn without() -> Vec<Dialect> {
    let unpassed = left_out(ours::PHP, |rules| rules.value_passed = false);
    let unseen = left_out(ours::PHP, |rules| rules.seen_long = false);
    let any_value = left_out(ours::PHP, |rules| rules.changed_is_lost = false);
    let value_alone = left_out(ours::GETSET, |rules| rules.owner_beside = false);
    let two_steps = left_out(ours::GETSET, |rules| rules.one_step = false);
    let any_clock = left_out(ours::GETSET, |rules| rules.clocks_agree = false);
    let written_again = left_out(ours::WATCH, |rules| rules.looks_again = false);
    let at_once = Scheme { in_turn: false, ..ours::WATCH };
    vec![
        php_beside("php-unpassed", "an orphan is taken before its value has passed", unpassed).overlaps(without_mistake),
        php_beside("php-unseen", "an orphan is taken the first time it is seen", unseen).overlaps(without_mistake),
        php_beside("php-any-value", "an owner beside another value counts", any_value).overlaps(without_mistake),
        Dialect::new("getset-value-alone", "the value alone says whose it is", value_alone)
            .clients(3)
            .faults(LOST_REPLY)
            .within(0)
            .overlaps(|_| true),
        Dialect::new("getset-two-steps", "the look and the write are two steps", two_steps).within(0).overlaps(|_| true),
        Dialect::beside("getset-any-clock", "a name is taken though the clocks are apart", any_clock, getset::GETSET)
            .ahead(-TTL)
            .overlaps(without_mistake),
        Dialect::new(
            "watch-written-again",
            "EXEC is sent again on the connection that replaced the one of the look",
            written_again,
        )
        .faults(LOST_REQUEST)
        .within(0)
        .overlaps(|_| true),
        Dialect::new("watch-at-once", "two transactions at once on one connection", at_once).within(0).breaking(Rule::Leak),
    ]
}

fn mistakes() -> Vec<Dialect> {
    let php = |id, of, also| php_beside(id, of, ours::PHP).overlaps(also);
    let getset = |id, of| Dialect::beside(id, of, ours::GETSET, getset::GETSET);
    vec![
        php("php-overwritten", "the class writes over who took a key between its two looks (tier 3)", |world| {
            with_mistakes(world, &[Flaw::WroteOver])
        }),
        php("php-deleted", "the class deletes what was taken between its GET and its DEL (tier 3)", |world| {
            with_mistakes(world, &[Flaw::Deleted])
        }),
        php("php-stopped", "the class is stopped between SETNX and EXPIRE for too long (tier 3)", |world| {
            with_mistakes(world, &[Flaw::Stopped])
        }),
        getset("getset-deleted", "the articles' client deletes after its deadline (tier 3)")
            .faults(SLOW)
            .overlaps(|world| with_mistakes(world, &[Flaw::Deleted])),
        getset("getset-fast", "the other's clock is fast (tier 3)").skewed(TTL + 1).overlaps(ours_holds),
        getset("getset-slow", "the other's clock is slow (tier 3)").skewed(-TTL - 1).overlaps(ours_holds),
        Dialect::beside(
            "watch-pooled",
            "the other watches and writes on two connections (tier 3)",
            WATCH_ONCE,
            token::POOLED_RELEASE,
        )
        .within(TTL)
        .overlaps(|world| with_mistakes(world, &[Flaw::Deleted])),
    ]
}
