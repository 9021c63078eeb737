//! An acquisition that is followed: what its guard says, beside what the store keeps.

use std::sync::Weak;

use tenure::{Fence, Guard};
use tenure_testkit::history::{Finding, Rule};

use super::Flaw;
use super::clock::{At, SimClock};
use super::server::Server;
use super::world::{ROUNDING, World};

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) who: String,
    pub(super) clock: SimClock,
    pub(super) acquisition: u32,
    pub(super) guard: Weak<Guard>,
    /// The share at the grant.
    pub(super) granted: tenure::Share,
    /// How much longer than the validity the work may go on, by the process's clock.
    pub(super) stop: u64,
    pub(super) until: At,
    pub(super) latest: Option<At>,
    pub(super) jeopardy: bool,
    /// That it claims too much was reported.
    pub(super) told: bool,
}

impl Watched {
    /// Looks over the shoulders of holder and store: what the guard claims until `valid_until` must
    /// stand there, as much of it and for as long.
    pub(super) fn compare(
        &mut self,
        world: &World,
        server: &Server,
        guard: &Guard,
        now: At,
        valid_until: At,
        findings: &mut Vec<Finding>,
    ) {
        if self.told {
            return;
        }
        if let Some((rule, what)) = self.excess(world, server, guard, now, valid_until) {
            self.told = true;
            self.finds(findings, rule, now, what);
        }
    }

    /// Finds what the guard says beyond what the store keeps.
    fn excess(&self, world: &World, server: &Server, guard: &Guard, now: At, valid_until: At) -> Option<(Rule, &'static str)> {
        if self.latest.is_some_and(|latest| valid_until > latest) {
            return Some((Rule::LateLoss, "it is valid for longer than its longest hold"));
        }
        let (name, owner) = (guard.name(), guard.token());
        // The index of a hand-over is the process's own.
        if guard.fence().is_some_and(|fence: Fence| !server.gave(owner, fence.counter())) {
            return Some((Rule::FenceOrder, "its fence was not given by the store"));
        }
        let share = if world.flaw == Some(Flaw::KeepsShare) { self.granted } else { guard.share() };
        let stands = server.held(name, now).find(|(held, _)| held.owner == *owner && !held.lingers);
        if stands.is_some_and(|(held, _)| held.share.weight() < share.weight() || held.share.capacity() != share.capacity()) {
            return Some((Rule::Overlap, "it claims a larger share than the store keeps"));
        }
        let stopped = valid_until + self.clock.life().real(self.stop);
        if world.mix.tier == 1 && valid_until > now && stands.is_none_or(|(_, left)| stopped > now + left + ROUNDING) {
            return Some((Rule::LateLoss, "it is valid for longer than the lease lasts at the store"));
        }
        None
    }

    pub(super) fn finds(&self, findings: &mut Vec<Finding>, rule: Rule, at: At, what: &str) {
        findings.push(Finding { rule, at, text: format!("{}#{}: {what}", self.who, self.acquisition) });
    }
}
