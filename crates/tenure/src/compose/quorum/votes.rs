//! Answers of the nodes to an acquisition.

use std::time::Duration;

use super::node::Confirmed;
use super::verdict::{Count, Verdict};
use crate::store::{AcquireReply, too_few};
use crate::{Error, Fence, Holder, Name};

/// The answer of one node.
#[derive(Clone, Debug)]
enum Vote {
    /// None yet.
    Pending,
    /// The owner holds there, and the node has counted so far.
    Granted {
        fence: Option<Fence>,
        ttl: Duration,
    },
    Busy(Option<Holder>),
    /// The node does not vote.
    Refused {
        until: Duration,
        why: String,
    },
    Failed(Error),
}

#[derive(Debug)]
pub(super) struct Votes {
    nodes: Vec<Vote>,
    /// They are asked about a lease that a majority holds: it is to be smaller, or another owner's.
    pub(super) is_held: bool,
}

impl Votes {
    pub(super) fn new(nodes: usize, is_held: bool) -> Self {
        Self { nodes: vec![Vote::Pending; nodes], is_held }
    }

    pub(super) fn answered(&mut self, at: usize, answer: Result<AcquireReply, Error>) {
        self.nodes[at] = match answer {
            Ok(AcquireReply::Granted(grant)) => Vote::Granted { fence: grant.fence, ttl: grant.ttl },
            Ok(AcquireReply::Busy(busy)) => Vote::Busy(busy.holder),
            Ok(AcquireReply::Refused { until, why }) => Vote::Refused { until, why },
            Err(error) => Vote::Failed(error),
        };
    }

    /// Verdict of the answers so far, where `need` nodes have to grant.
    pub(super) fn verdict(&self, need: usize) -> Verdict {
        self.count().verdict(need, self.is_held)
    }

    /// The same when no more answers come in time.
    pub(super) fn last_verdict(&self, need: usize) -> Verdict {
        self.count().ended().verdict(need, self.is_held)
    }

    fn count(&self) -> Count {
        let mut count = Count::default();
        for vote in &self.nodes {
            match vote {
                Vote::Pending => count.pending += 1,
                Vote::Granted { .. } => count.granted += 1,
                Vote::Busy(_) => count.busy += 1,
                Vote::Refused { .. } => count.refused += 1,
                Vote::Failed(_) => count.failed += 1,
            }
        }
        count
    }

    /// The fence that `need` nodes have counted.
    pub(super) fn agreed(&self, need: usize) -> Option<Fence> {
        self.granted().filter_map(|(fence, _)| fence).find(|fence| self.agree(*fence, need))
    }

    fn granted(&self) -> impl Iterator<Item = (Option<Fence>, Duration)> {
        self.nodes.iter().filter_map(|vote| match vote {
            Vote::Granted { fence, ttl } => Some((*fence, *ttl)),
            _ => None,
        })
    }

    /// Notes the answer to the question whether a node counts on from `fence`.
    pub(super) fn confirmed(&mut self, at: usize, fence: Fence, answer: &Result<Confirmed, Error>) {
        let ttl = if let Vote::Granted { ttl, .. } = self.nodes[at] { ttl } else { Duration::MAX };
        self.nodes[at] = match answer {
            Ok(Confirmed::Taken) => Vote::Granted { fence: Some(fence), ttl },
            // The owner holds, and the node has counted so far.
            Ok(Confirmed::Above(counted)) => Vote::Granted { fence: Some(*counted), ttl },
            Ok(Confirmed::NotHeld) if self.holds(at) => Vote::Busy(None),
            // Its grant stands, or may still come. Nobody knows whether it counts on from the fence.
            Ok(Confirmed::NotHeld) | Err(_) => return,
        };
    }

    /// Whether a node counts on from exactly this fence.
    pub(super) fn has(&self, at: usize, fence: Fence) -> bool {
        matches!(self.nodes[at], Vote::Granted { fence: Some(counted), .. } if counted == fence)
    }

    /// Number of nodes that count on from exactly this fence.
    pub(super) fn having(&self, fence: Fence) -> usize {
        (0..self.nodes.len()).filter(|at| self.has(*at, fence)).count()
    }

    pub(super) fn agree(&self, fence: Fence, need: usize) -> bool {
        self.having(fence) >= need
    }

    /// The largest fence that a node has counted to for this owner.
    pub(super) fn largest(&self) -> Option<Fence> {
        self.granted().filter_map(|(fence, _)| fence).max()
    }

    /// Whether a node has granted.
    pub(super) fn holds(&self, at: usize) -> bool {
        matches!(self.nodes[at], Vote::Granted { .. })
    }

    /// Whether the owner may hold at a node, now or later.
    pub(super) fn may_hold(&self, at: usize) -> bool {
        match &self.nodes[at] {
            Vote::Pending | Vote::Granted { .. } => true,
            Vote::Failed(error) => error.may_have_been_applied(),
            Vote::Busy(_) | Vote::Refused { .. } => false,
        }
    }

    /// The ttl that every node keeps which has granted.
    pub(super) fn ttl(&self, asked: Duration) -> Duration {
        self.granted().map(|(_, ttl)| ttl).fold(asked, Duration::min)
    }

    /// Whether a node does not have what a majority has granted, and may take it soon.
    pub(super) fn lacks(&self, at: usize) -> bool {
        match &self.nodes[at] {
            Vote::Busy(_) => true,
            Vote::Failed(error) => error.is_transient(),
            _ => false,
        }
    }

    pub(super) fn is_busy(&self, at: usize) -> bool {
        matches!(self.nodes[at], Vote::Busy(_))
    }

    pub(super) fn busy(&self) -> usize {
        (0..self.nodes.len()).filter(|at| self.is_busy(*at)).count()
    }

    /// Number of nodes that have granted.
    pub(super) fn holders(&self) -> usize {
        self.granted().count()
    }

    /// The holder that most nodes name, and how many of them do.
    pub(super) fn holder(&self) -> Option<(Holder, usize)> {
        let holders = || self.nodes.iter().filter_map(|vote| if let Vote::Busy(holder) = vote { holder.as_ref() } else { None });
        let named = |one: &Holder| holders().filter(|other| other.owner == one.owner).count();
        holders()
            .map(|holder| (holder, named(holder)))
            .max_by_key(|(_, named)| *named)
            .map(|(holder, named)| (holder.clone().with_fence(None), named))
    }

    /// Whether no node that is busy names a holder, or `need` of them name the same one. Then no take-over is still under way.
    pub(super) fn name_one(&self, need: usize) -> bool {
        self.holder().is_none_or(|(_, named)| named >= need)
    }

    /// When the first of the nodes that do not vote will, and why it does not.
    pub(super) fn refused(&self) -> Option<(Duration, String)> {
        let refused = self.nodes.iter().filter_map(|vote| match vote {
            Vote::Refused { until, why } => Some((*until, why)),
            _ => None,
        });
        refused.min_by_key(|(until, _)| *until).map(|(until, why)| (until, why.clone()))
    }

    /// Whether a node failed.
    pub(super) fn has_failed(&self) -> bool {
        self.nodes.iter().any(|vote| matches!(vote, Vote::Failed(_) | Vote::Pending))
    }

    /// Why no majority has decided. The error is one whose nodes, and those with worse ones, leave too few.
    pub(super) fn error(&self, name: &Name, need: usize) -> Error {
        let nodes = self.nodes.len();
        let failures =
            self.nodes.iter().filter_map(|vote| if let Vote::Failed(error) = vote { Some(error.clone()) } else { None });
        let why = format!("{} of {nodes} nodes granted {name:?}, and {need} are needed", self.holders());
        let lacking = if self.is_held { self.busy() } else { 0 };
        let error = too_few(why, (nodes - need).saturating_sub(lacking), self.count().pending, failures);
        if (0..nodes).any(|at| self.may_hold(at)) { error.maybe_applied() } else { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::store::Grant;

    const fn granted(counter: u64) -> AcquireReply {
        AcquireReply::Granted(Grant::new(Fence::from_counter(counter), Duration::from_secs(30)))
    }

    #[test]
    fn a_fence_is_handed_out_by_a_majority_that_counted_exactly_that() {
        let mut votes = Votes::new(5, false);
        for (at, counter) in [7, 8, 7].into_iter().enumerate() {
            votes.answered(at, Ok(granted(counter)));
        }
        assert_eq!((votes.verdict(3), votes.agreed(3)), (Verdict::Granted, None));
        votes.answered(3, Ok(granted(7)));
        assert_eq!((votes.verdict(3), votes.agreed(3)), (Verdict::Granted, Fence::from_counter(7)));
    }

    #[test]
    fn a_fence_is_taken_up_by_those_below_it() {
        let fence = Fence::from_counter(8).unwrap();
        let mut votes = Votes::new(3, false);
        votes.answered(0, Ok(granted(8)));
        votes.answered(1, Ok(granted(7)));
        assert_eq!((votes.largest(), votes.agree(fence, 2)), (Some(fence), false));
        votes.confirmed(1, fence, &Ok(Confirmed::NotHeld));
        assert!(!votes.agree(fence, 2) && !votes.holds(1));
        // Its acquisition may still come.
        votes.confirmed(2, fence, &Ok(Confirmed::NotHeld));
        assert!(votes.may_hold(2));
        votes.confirmed(2, fence, &Ok(Confirmed::Taken));
        assert!(votes.agree(fence, 2));
    }

    /// A person is asked for only where nothing else would help.
    #[test]
    fn an_outage_is_reported_as_the_mildest_error_without_which_a_majority_would_answer() {
        use ErrorKind::{Overloaded, Refused, Unavailable, Unreachable};
        for (errors, told) in [
            (&[Refused, Unreachable][..], Unreachable),
            (&[Refused, Refused, Unreachable], Refused),
            (&[Overloaded, Unreachable], Overloaded),
            (&[Unavailable, Unreachable, Unreachable], Unreachable),
            (&[Unavailable, Overloaded], Overloaded),
            (&[Unavailable, Refused], Unavailable),
        ] {
            let mut votes = Votes::new(3, false);
            for (at, kind) in errors.iter().enumerate() {
                votes.answered(at, Err(Error::new(*kind, "x")));
            }
            if errors.len() < 3 {
                votes.answered(2, Ok(granted(8)));
            }
            assert_eq!(votes.error(&Name::new("door").unwrap(), 2).kind(), told, "{errors:?}");
        }
    }

    #[test]
    fn a_node_that_may_have_granted_may_hold() {
        let mut votes = Votes::new(3, false);
        votes.answered(0, Ok(granted(8)));
        votes.answered(1, Err(Error::unreachable("x").maybe_applied()));
        votes.answered(2, Err(Error::unreachable("x")));
        assert_eq!([0, 1, 2].map(|at| votes.may_hold(at)), [true, true, false]);
    }
}
