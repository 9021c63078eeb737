//! Compares what a guard says with what the store keeps.

use tenure::{Fence, Guard};
use tenure_testkit::history::{Finding, Rule};

use super::Flaw;
use super::clock::At;
use super::server::Server;
use super::watched::Watched;
use super::world::{ROUNDING, World};

impl World {
    /// Looks over the shoulders of holder and store: what the guard claims until `valid_until` must
    /// stand there, as much of it and for as long.
    pub(super) fn compare(
        &self,
        watched: &mut Watched,
        server: &Server,
        guard: &Guard,
        now: At,
        valid_until: At,
        findings: &mut Vec<Finding>,
    ) {
        if watched.told {
            return;
        }
        if let Some((rule, what)) = self.excess(watched, server, guard, now, valid_until) {
            watched.told = true;
            watched.finds(findings, rule, now, what);
        }
    }

    /// Finds what the guard says beyond what the store keeps.
    fn excess(
        &self,
        watched: &Watched,
        server: &Server,
        guard: &Guard,
        now: At,
        valid_until: At,
    ) -> Option<(Rule, &'static str)> {
        if watched.latest.is_some_and(|latest| valid_until > latest) {
            return Some((Rule::LateLoss, "it is valid for longer than its longest hold"));
        }
        let (name, owner) = (guard.name(), guard.token());
        // The index of a hand-over is the process's own.
        if guard.fence().is_some_and(|fence: Fence| !server.gave(owner, fence.counter())) {
            return Some((Rule::FenceOrder, "its fence was not given by the store"));
        }
        let share = if self.flaw == Some(Flaw::KeepsShare) { watched.granted } else { guard.share() };
        let stands = server.held(name, now).find(|(held, _)| held.owner == *owner && !held.lingers);
        if stands.is_some_and(|(held, _)| held.share.weight() < share.weight() || held.share.capacity() != share.capacity()) {
            return Some((Rule::Overlap, "it claims a larger share than the store keeps"));
        }
        let stopped = valid_until + watched.clock.life().real(watched.stop);
        if self.mix.tier == 1 && valid_until > now && stands.is_none_or(|(_, left)| stopped > now + left + ROUNDING) {
            return Some((Rule::LateLoss, "it is valid for longer than the lease lasts at the store"));
        }
        None
    }
}
