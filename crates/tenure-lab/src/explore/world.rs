//! All of one run that is not a process: its history, what is counted, the tokens and the guarded
//! resource.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tenure::{Fence, Guard, Lease, Name, Owner, Share, State};
use tenure_testkit::History;
use tenure_testkit::history::{Event, Finding, Rule, What};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Flaw;
use super::clock::{At, SimClock, ms, nanos};
use super::coverage::{Coverage, Met};
use super::mix::Mix;
use super::network::Network;
use super::server::Server;
use super::watched::Watched;

#[derive(Debug)]
pub(super) struct World {
    pub(super) mix: Mix,
    pub(super) flaw: Option<Flaw>,
    pub(super) names: Vec<Name>,
    began: OnceLock<Instant>,
    state: Mutex<Inner>,
    /// The network has something to do earlier than it thought.
    pub(super) wake: Notify,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) history: History,
    pub(super) findings: Vec<Finding>,
    pub(super) coverage: Coverage,
    pub(super) server: Server,
    pub(super) network: Network,
    pub(super) rng: Rng,
    pub(super) tokens: HashMap<Owner, Token>,
    /// Leases that were handed on and that nobody has taken up.
    pub(super) handed: Vec<Lease>,
    /// Names that must stay taken for at least so long: name, by whom, until when.
    shortest: Vec<(Name, Owner, At)>,
    watched: Vec<Watched>,
    /// A renewal was answered since the guards were last looked at.
    pub(super) news: bool,
    /// Owners of whom a renewal has said so.
    pub(super) gone: Vec<Owner>,
    resource: Resource,
}

/// The history of an owner token.
#[allow(clippy::struct_excessive_bools, reason = "each is of its own")]
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) process: usize,
    number: usize,
    /// When the last acquisition with it was sent.
    pub(super) sent_at: At,
    released: bool,
    /// Somebody has held by it.
    pub(super) granted: bool,
    /// The store has said so.
    pub(super) answered: bool,
    /// It was given up without a release.
    pub(super) handed: bool,
}

#[derive(Debug, Default)]
struct Resource {
    value: u64,
    largest: u64,
}

/// One held acquisition, as its task knows it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) acquisition: u32,
    pub(super) guard: Arc<Guard>,
    /// As what its task acts.
    pub(super) share: Share,
    /// The time to stop work after a loss, by the process's clock.
    pub(super) stop: u64,
    pub(super) shortest: Duration,
    pub(super) longest: Option<Duration>,
}

impl World {
    pub(super) fn new(seed: u64, mix: Mix, mut rng: Rng, flaw: Option<Flaw>) -> Self {
        let names: Vec<Name> =
            ["a", "b", "c"].iter().take(mix.names.len()).map(|name| Name::new(name).expect("a good name")).collect();
        let state = Inner {
            // Names of all kinds stand in it: a weight is given as a part of this.
            history: History { capacity: WHOLE, ..History::new(format!("explore: {mix}"), seed) },
            findings: Vec::new(),
            coverage: Coverage::default(),
            server: Server::new(&names, rng.u64(0..ms(1)), flaw),
            network: Network::new(&mix),
            rng,
            tokens: HashMap::new(),
            handed: Vec::new(),
            shortest: Vec::new(),
            watched: Vec::new(),
            news: false,
            gone: Vec::new(),
            resource: Resource::default(),
        };
        Self { mix, flaw, names, began: OnceLock::new(), state: Mutex::new(state), wake: Notify::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn began(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }

    pub(super) fn now(&self) -> At {
        nanos(Instant::now().duration_since(self.began()))
    }

    pub(super) fn at(&self, at: At) -> Instant {
        self.began() + Duration::from_nanos(at)
    }

    pub(super) fn healed(&self) -> bool {
        self.now() >= self.mix.heal
    }

    pub(super) fn record(&self, who: &str, what: What) {
        let at = self.now();
        self.state().record(at, who, what);
    }

    pub(super) fn fault(&self, text: impl Into<String>) {
        self.record("lab", What::Fault { text: text.into() });
    }

    pub(super) fn find(&self, rule: Rule, text: String) {
        let at = self.now();
        self.state().findings.push(Finding { rule, at, text });
    }

    pub(super) fn met(&self, what: Met) {
        self.state().coverage.met(what);
    }

    /// A process regards itself as the holder from now on.
    pub(super) fn granted(&self, who: &str, clock: &SimClock, held: &Held) {
        let now = self.now();
        let remaining = nanos(held.guard.remaining());
        let (owner, name, fence) = (held.guard.token(), held.guard.name(), held.guard.fence().map(tenure::Fence::get));
        let mut state = self.state();
        state.coverage.met(Met::Grant);
        let index =
            held.guard.fence().and_then(|fence| Some(fence.get() - Fence::from_counter(fence.counter())?.get())).unwrap_or(0);
        if index > 0 {
            state.coverage.met(Met::Passed);
        }
        let valid_until = now + clock.life().real(remaining);
        let until = now + clock.life().real(remaining + held.stop);
        let mut latest = None;
        let mut shown = None;
        if let Some(token) = state.tokens.get_mut(owner) {
            token.granted = true;
            shown = owner.is_generated().then(|| format!("{who}.{}", token.number));
            if !token.answered {
                state.coverage.met(Met::Pushed);
            }
        }
        // When a value that others use too was sent last is not known.
        if let Some(token) = state.tokens.get(owner).filter(|_| owner.is_generated()) {
            let sent_at = token.sent_at;
            latest = held.longest.map(|longest| sent_at + clock.life().real(nanos(longest)) + GRAIN);
            if !held.shortest.is_zero() && self.mix.tier == 1 && held.share.is_exclusive() {
                // Its clock may run apart from the server's.
                let until = (sent_at + nanos(held.shortest) / 100 * 98).saturating_sub(GRAIN);
                state.shortest.push((name.clone(), owner.clone(), until));
            }
        }
        let acquisition = held.acquisition;
        let grant = What::Grant {
            acquisition,
            name: name.as_str().to_owned(),
            weight: weight(held.share),
            token: shown,
            fence,
            until: Some(until),
        };
        state.record(now, who, grant);
        let mut watched = Watched {
            who: who.to_owned(),
            clock: clock.clone(),
            acquisition,
            guard: Arc::downgrade(&held.guard),
            granted: held.guard.share(),
            stop: held.stop,
            until: valid_until,
            latest,
            jeopardy: false,
            told: false,
        };
        let Inner { server, findings, .. } = &mut *state;
        self.compare(&mut watched, server, &held.guard, now, valid_until, findings);
        state.watched.push(watched);
    }

    /// From now on a holder counts for `share` only, as another acquisition: whatever becomes of the
    /// command.
    pub(super) fn shrinks(&self, who: &str, held: &mut Held, acquisition: u32, share: Share) {
        let now = self.now();
        let old = std::mem::replace(&mut held.acquisition, acquisition);
        held.share = share;
        let mut state = self.state();
        let Inner { watched, history, shortest, .. } = &mut *state;
        // Others may fit beside it.
        shortest.retain(|(_, owner, _)| owner != held.guard.token());
        let Some(watched) = watched.iter_mut().find(|watched| watched.acquisition == old && watched.who == who) else { return };
        watched.acquisition = acquisition;
        let name = held.guard.name().as_str().to_owned();
        let until = Some(watched.until + watched.clock.life().real(watched.stop));
        let grant = What::Grant { acquisition, name: name.clone(), weight: weight(share), token: None, fence: None, until };
        for what in [What::Release { acquisition: old }, What::Ask { acquisition, name }, grant] {
            history.events.push(Event { at: now, who: who.to_owned(), what });
        }
    }

    pub(super) fn reentered(&self, who: &str, held: &Held) {
        let mut state = self.state();
        let watched = state.watched.iter_mut().find(|watched| watched.acquisition == held.acquisition && watched.who == who);
        if let Some(watched) = watched {
            watched.guard = Arc::downgrade(&held.guard);
        }
    }

    /// An acquisition is over: its validity is followed no more. Returns its end; `None` if it was over
    /// already.
    pub(super) fn over(&self, who: &str, acquisition: u32) -> Option<At> {
        let mut state = self.state();
        let index = state.watched.iter().position(|watched| watched.acquisition == acquisition && watched.who == who)?;
        Some(state.watched.remove(index).until)
    }

    /// All claims of a process are over.
    pub(super) fn all_over(&self, who: &str) -> Vec<u32> {
        self.state().watched.extract_if(.., |watched| watched.who == who).map(|watched| watched.acquisition).collect()
    }

    pub(super) fn believed_until(&self, who: &str, acquisition: u32) -> Option<At> {
        self.state()
            .watched
            .iter()
            .find(|watched| watched.acquisition == acquisition && watched.who == who)
            .map(|watched| watched.until)
    }

    /// Compares each acquisition with what the store keeps, and notes what renewals have done to it.
    /// Called when every task has come to rest, before time goes on.
    pub(super) fn settle(&self) {
        let mut state = self.state();
        let news = std::mem::take(&mut state.news);
        let now = self.now();
        let gone = if news { std::mem::take(&mut state.gone) } else { Vec::new() };
        let Inner { watched, history, coverage, findings, server, .. } = &mut *state;
        for watched in watched.iter_mut().filter(|watched| !watched.clock.life().dead_at(now)) {
            let Some(guard) = watched.guard.upgrade() else { continue };
            let remaining = nanos(guard.remaining());
            let valid_until = now + watched.clock.life().real(remaining);
            if remaining > 0 {
                coverage.met(Met::Compared);
                self.compare(watched, server, &guard, now, valid_until, findings);
            }
            if !news {
                continue;
            }
            if gone.contains(guard.token()) && watched.clock.life().naps.is_empty() && guard.end_reason().is_none() {
                watched.finds(findings, Rule::LateLoss, now, "the store said that it is gone, and it stays valid");
            }
            if !watched.jeopardy && guard.state() == State::Jeopardy {
                watched.jeopardy = true;
                coverage.met(Met::Jeopardy);
            }
            // A span may round to either side.
            if remaining == 0 || valid_until <= watched.until + ROUNDING {
                continue;
            }
            if watched.until <= now {
                watched.finds(findings, Rule::LateLoss, now, "its validity had ended, and it is valid again");
            }
            (watched.until, watched.jeopardy) = (valid_until, false);
            coverage.met(Met::Renewal);
            let until = Some(now + watched.clock.life().real(remaining + watched.stop));
            history.events.push(Event {
                at: now,
                who: watched.who.clone(),
                what: What::Valid { acquisition: watched.acquisition, until },
            });
        }
    }

    /// The guarded resource is read for an update.
    pub(super) fn read(&self, who: &str, held: &Held) -> Option<u64> {
        let now = self.now();
        let mut state = self.state();
        let fence = held.guard.fence().map(tenure::Fence::get);
        let value = state.resource.lets_in(fence, self.mix.fenced).then_some(state.resource.value);
        if value.is_none() {
            state.coverage.met(Met::RefusedWrite);
        }
        state.record(now, who, What::Read { acquisition: held.acquisition, fence, value });
        value
    }

    /// The guarded resource is written with what was made of `read`.
    pub(super) fn write(&self, who: &str, held: &Held, read: u64) {
        let now = self.now();
        let mut state = self.state();
        let fence = held.guard.fence().map(tenure::Fence::get);
        let accepted = state.resource.lets_in(fence, self.mix.fenced);
        let wrote = read + 1;
        if accepted {
            state.resource.value = wrote;
        }
        state.coverage.met(if accepted { Met::Written } else { Met::RefusedWrite });
        state.record(now, who, What::Write { acquisition: held.acquisition, fence, read, wrote, accepted });
    }
}

/// The grain of timers, which count in milliseconds.
pub(super) const GRAIN: u64 = ms(3);
/// The rounding from one clock to another.
pub(super) const ROUNDING: u64 = 1_000;

/// All of a name, in a history.
const WHOLE: u32 = u32::MAX;

/// A share as a part of all of its name. Exact: every capacity is a divisor.
fn weight(share: Share) -> u32 {
    share.weight() * (WHOLE / share.capacity())
}

impl Resource {
    fn lets_in(&mut self, fence: Option<u64>, compares: bool) -> bool {
        let fence = fence.unwrap_or(0);
        let fresh = fence >= self.largest;
        self.largest = self.largest.max(fence);
        fresh || !compares
    }
}

impl Inner {
    pub(super) fn record(&mut self, at: At, who: &str, what: What) {
        self.history.events.push(Event { at, who: who.to_owned(), what });
    }

    /// An acquisition with a token leaves its process.
    pub(super) fn asks(&mut self, now: At, process: usize, owner: &Owner, generated: bool) {
        let number = self.tokens.len();
        let fresh = Token { process, number, sent_at: now, released: false, granted: false, answered: false, handed: false };
        let token = self.tokens.entry(owner.clone()).or_insert(fresh);
        token.sent_at = now;
        if token.released && generated {
            let text = format!("token {} was sent again after its release", token.number);
            self.findings.push(Finding { rule: Rule::TokenReuse, at: now, text });
        }
    }

    /// A release of a token leaves its process.
    pub(super) fn gives_up(&mut self, owner: &Owner) {
        if let Some(token) = self.tokens.get_mut(owner) {
            token.released = true;
            if !token.granted {
                self.coverage.met(Met::CleanUp);
            }
        }
    }

    /// A lease leaves its process without a release.
    pub(super) fn hands_on(&mut self, lease: Lease) {
        if let Some(token) = self.tokens.get_mut(&lease.owner) {
            token.handed = true;
        }
        self.shortest.retain(|(_, owner, _)| *owner != lease.owner);
        self.coverage.met(Met::HandedOn);
        self.handed.push(lease);
    }

    /// A name was given to `owner` by the server: nobody may have had it for its shortest hold.
    pub(super) fn given(&mut self, now: At, name: &Name, owner: &Owner) {
        let kept = self.shortest.iter().find(|(key, by, until)| key == name && by != owner && now < *until);
        if kept.is_some() {
            let text = format!("{name:?} was given on before the shortest hold was over");
            self.findings.push(Finding { rule: Rule::Overlap, at: now, text });
        }
    }
}
