//! Answers of the nodes to an acquisition.

use std::time::Duration;

use super::node::Confirmed;
use crate::store::AcquireReply;
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

/// Conclusion from the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing yet.
    Open,
    /// Enough have granted, and agree about the fence if there is one.
    Granted(Option<Fence>),
    /// Enough have granted, with different fences.
    Disagree,
    /// Not enough can grant any more.
    Refused,
}

#[derive(Debug)]
pub(super) struct Votes {
    nodes: Vec<Vote>,
}

impl Votes {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes: vec![Vote::Pending; nodes] }
    }

    pub(super) fn answered(&mut self, at: usize, answer: Result<AcquireReply, Error>) {
        self.nodes[at] = match answer {
            Ok(AcquireReply::Granted(grant)) => Vote::Granted { fence: grant.fence, ttl: grant.ttl },
            Ok(AcquireReply::Busy(busy)) => Vote::Busy(busy.holder),
            Ok(AcquireReply::Refused { until, why }) => Vote::Refused { until, why },
            Err(error) => Vote::Failed(error),
        };
    }

    pub(super) fn decide(&self, need: usize, fenced: bool, pending: usize) -> Decision {
        let granted = self.granted().count();
        if granted + pending < need {
            return Decision::Refused;
        }
        if granted < need {
            return Decision::Open;
        }
        if !fenced {
            return Decision::Granted(None);
        }
        let agreed = self.granted().filter_map(|(fence, _)| fence).find(|fence| self.agree(*fence, need));
        agreed.map_or(Decision::Disagree, |fence| Decision::Granted(Some(fence)))
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

    /// Number of nodes that have granted or are busy.
    pub(super) fn answers(&self) -> usize {
        self.busy() + self.holders()
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

    /// When the first of the nodes that do not vote will, and why it does not. None if the others are enough for a
    /// majority: then something else is the matter with them, which may be over sooner.
    pub(super) fn refused(&self, need: usize) -> Option<(Duration, String)> {
        let refused = self.nodes.iter().filter_map(|vote| match vote {
            Vote::Refused { until, why } => Some((*until, why)),
            _ => None,
        });
        if self.nodes.len() - refused.clone().count() >= need {
            return None;
        }
        refused.min_by_key(|(until, _)| *until).map(|(until, why)| (until, why.clone()))
    }

    pub(super) fn error(&self, name: &Name, need: usize, nodes: usize) -> Error {
        let errors = || self.nodes.iter().filter_map(|vote| if let Vote::Failed(error) = vote { Some(error) } else { None });
        let granted = self.granted().count();
        let why = format!("{granted} of {nodes} nodes granted {name:?}, and {need} are needed");
        let may_hold = (0..nodes).any(|at| self.may_hold(at));
        // An error that is not transient comes again with each try, so it is the one to show.
        let error = match errors().find(|error| !error.is_transient()).or_else(|| errors().next()) {
            Some(first) => Error::new(first.kind(), why).with_source(first.clone()),
            None => Error::unreachable(why),
        };
        if may_hold { error.maybe_applied() } else { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Grant;

    const fn granted(counter: u64) -> AcquireReply {
        AcquireReply::Granted(Grant::new(Fence::from_counter(counter), Duration::from_secs(30)))
    }

    #[test]
    fn a_fence_is_handed_out_by_a_majority_that_counted_exactly_that() {
        let mut votes = Votes::new(5);
        for (at, counter) in [7, 8, 7].into_iter().enumerate() {
            votes.answered(at, Ok(granted(counter)));
        }
        assert_eq!(votes.decide(3, true, 2), Decision::Disagree);
        assert_eq!(votes.decide(3, false, 2), Decision::Granted(None));
        votes.answered(3, Ok(granted(7)));
        assert_eq!(votes.decide(3, true, 1), Decision::Granted(Fence::from_counter(7)));
    }

    #[test]
    fn a_fence_is_taken_up_by_those_below_it() {
        let fence = Fence::from_counter(8).unwrap();
        let mut votes = Votes::new(3);
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

    /// A client that waits for those that do not vote would come seconds late.
    #[test]
    fn a_minority_that_does_not_vote_is_not_waited_for() {
        let refused = || Ok(AcquireReply::Refused { until: Duration::from_secs(2), why: "lost".to_owned() });
        let mut votes = Votes::new(5);
        votes.answered(0, refused());
        votes.answered(1, refused());
        votes.answered(2, Err(Error::unreachable("x").maybe_applied()));
        assert_eq!(votes.refused(3), None);
        votes.answered(3, refused());
        assert_eq!(votes.refused(3), Some((Duration::from_secs(2), "lost".to_owned())));
    }

    #[test]
    fn it_is_over_when_no_majority_is_left() {
        let mut votes = Votes::new(3);
        votes.answered(0, Ok(granted(8)));
        assert_eq!(votes.decide(2, true, 2), Decision::Open);
        votes.answered(1, Err(Error::unreachable("x").maybe_applied()));
        assert_eq!(votes.decide(2, true, 1), Decision::Open);
        votes.answered(2, Err(Error::unreachable("x")));
        assert_eq!(votes.decide(2, true, 0), Decision::Refused);
        assert_eq!([0, 1, 2].map(|at| votes.may_hold(at)), [true, true, false]);
    }
}
