//! A state of a model of a quorum.

use std::hash::{Hash, Hasher};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::models) enum Phase {
    #[default]
    Unused,
    Asking,
    Confirming,
    Holding,
    Over,
}

/// An attempt, as its client knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::models) struct Attempt {
    pub(in crate::models) phase: Phase,
    /// Ticks until its validity ends.
    pub(in crate::models) valid: u8,
    /// The largest fence that was handed out before it asked.
    pub(in crate::models) above: u8,
    /// The fence that it has handed out, or wants confirmed.
    pub(in crate::models) fence: u8,
}

/// Commands under way from an attempt to a node, and the answers that were heard from there. 0
/// stands for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::models) struct Leg {
    pub(in crate::models) acquire: bool,
    pub(in crate::models) confirm: u8,
    pub(in crate::models) release: bool,
    /// The counter of a grant that was heard.
    pub(in crate::models) heard: u8,
    /// It was heard that the fence was taken up.
    pub(in crate::models) confirmed: bool,
}

/// Whether a node votes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::models) enum Vote {
    #[default]
    Given,
    /// It has lost its data, and asks the others in so many ticks.
    Lost(u8),
    /// It has asked, and waits so many ticks.
    Kept(u8),
}

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::models) struct Node {
    /// For stories: nodes are alike, and a state is the same whichever of them is which.
    pub(in crate::models) id: u8,
    pub(in crate::models) owner: Option<u8>,
    pub(in crate::models) left: u8,
    pub(in crate::models) counter: u8,
    /// How far the others had counted when it asked them.
    pub(in crate::models) noted: u8,
    pub(in crate::models) vote: Vote,
    pub(in crate::models) legs: [Leg; MOST],
}

/// Largest number of attempts.
pub(in crate::models) const MOST: usize = 3;

impl Node {
    pub(in crate::models) fn alike(&self) -> (Option<u8>, u8, u8, u8, Vote, [Leg; MOST]) {
        (self.owner, self.left, self.counter, self.noted, self.vote, self.legs)
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.alike() == other.alike()
    }
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.alike().hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(in crate::models) struct State {
    pub(in crate::models) nodes: Vec<Node>,
    pub(in crate::models) attempts: [Attempt; MOST],
    /// Fences that were handed out, a bit each.
    pub(in crate::models) handed: u64,
    pub(in crate::models) doubles: u8,
    pub(in crate::models) restarts: u8,
    pub(in crate::models) broken: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::models) enum Fault {
    Fell,
    Repeated,
}

impl State {
    pub(in crate::models) fn largest(&self) -> u8 {
        u8::try_from(63_u32.saturating_sub(self.handed.leading_zeros())).unwrap_or(0)
    }

    pub(in crate::models) fn holders(&self) -> impl Iterator<Item = usize> {
        let holds = |attempt: &Attempt| attempt.phase == Phase::Holding && attempt.valid > 0;
        (0..MOST).filter(move |id| holds(&self.attempts[*id]))
    }

    pub(in crate::models) fn count(&self, id: usize, is: impl Fn(&Leg) -> bool) -> usize {
        self.nodes.iter().filter(|node| is(&node.legs[id])).count()
    }
}
