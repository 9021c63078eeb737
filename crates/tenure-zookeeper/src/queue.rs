//! The place of a node among the others of its name.

use std::collections::HashMap;

use tenure::Share;

use crate::nodes::Child;

/// Where a node stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is not there.
    Gone,
    /// It holds.
    Holds,
    /// Somebody in front of it has the name as another kind of lock.
    OtherKind(Share),
    /// It waits, with so many waiters in front.
    Waits { position: u32, watch: Watch },
}

/// Without a change there, a waiter is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    Child(String),
    /// Any holder may make room.
    Parent,
}

/// Shares that are smaller than the names say, after a downgrade.
pub(crate) type Smaller = HashMap<String, Share>;

/// Finds the number of those at the head of the queue that hold: all that fit together.
pub(crate) fn holders(children: &[Child], smaller: &Smaller) -> usize {
    let Some(first) = children.first() else { return 0 };
    let (capacity, mut taken) = (first.share.counted().capacity(), 0_u64);
    let fits = |child: &&Child| {
        let share = smaller.get(&child.name).copied().unwrap_or(child.share).counted();
        taken += u64::from(share.weight());
        share.capacity() == capacity && taken <= u64::from(capacity)
    };
    children.iter().take_while(fits).count()
}

/// Finds the place of the node `mine`.
pub(crate) fn place(children: &[Child], mine: &str, smaller: &Smaller) -> Place {
    let Some(at) = children.iter().position(|child| child.name == mine) else { return Place::Gone };
    let (before, share) = (&children[..at], children[at].share);
    let other = |child: &&Child| child.share.counted().capacity() != share.counted().capacity();
    if let Some(other) = before.iter().find(other) {
        return Place::OtherKind(other.share);
    }
    let holders = holders(&children[..=at], smaller);
    if holders > at {
        return Place::Holds;
    }
    let is_writer = |child: &&Child| smaller.get(&child.name).unwrap_or(&child.share).is_exclusive();
    let watch = match share {
        share if share.is_exclusive() => before.last().map(|child| Watch::Child(child.name.clone())),
        Share::READ => before.iter().rfind(is_writer).map(|child| Watch::Child(child.name.clone())),
        _ => None,
    };
    let position = u32::try_from(at - holders).unwrap_or(u32::MAX);
    Place::Waits { position, watch: watch.unwrap_or(Watch::Parent) }
}

/// The nodes in front of `mine`.
pub(crate) fn before<'a>(children: &'a [Child], mine: &str) -> Vec<&'a Child> {
    children.iter().take_while(|child| child.name != mine).collect()
}

/// The nodes in front of `mine` whose data may say that they have less than their names do, and that matters.
pub(crate) fn doubtful<'a>(children: &'a [Child], mine: &str) -> Vec<&'a Child> {
    let Some(at) = children.iter().position(|child| child.name == mine) else { return Vec::new() };
    // An exclusive share waits for all the others, whatever they have.
    if children[at].share.is_exclusive() {
        return Vec::new();
    }
    children[..at].iter().filter(|child| child.share != Share::MUTEX && child.share.weight() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(kinds: &[&str]) -> Vec<Child> {
        let name = |(i, kind): (usize, &&str)| Child::read(&format!("{kind}{i:010}")).unwrap();
        kinds.iter().enumerate().map(name).collect()
    }

    fn waits(position: u32, watch: Option<&Child>) -> Place {
        Place::Waits { position, watch: watch.map_or(Watch::Parent, |child| Watch::Child(child.name.clone())) }
    }

    #[test]
    fn each_watches_the_one_in_front_of_it_that_matters() {
        let nodes = queue(&["__READ__", "__READ__", "__WRIT__", "__READ__", "lock-", "__READ__"]);
        let at = |i: usize| place(&nodes, &nodes[i].name, &Smaller::new());
        assert_eq!((at(0), at(1)), (Place::Holds, Place::Holds));
        assert_eq!(at(2), waits(0, Some(&nodes[1])));
        assert_eq!(at(3), waits(1, Some(&nodes[2])));
        assert_eq!(at(4), waits(2, Some(&nodes[3])));
        assert_eq!(at(5), waits(3, Some(&nodes[4])));
        assert_eq!(place(&nodes, "other", &Smaller::new()), Place::Gone);
    }

    #[test]
    fn permits_add_up_in_order() {
        let nodes = queue(&["g-2of3-lock-", "g-2of3-lock-", "g-1of3-lock-"]);
        let at = |i: usize, smaller: &Smaller| place(&nodes, &nodes[i].name, smaller);
        let none = Smaller::new();
        assert_eq!((at(0, &none), at(1, &none), at(2, &none)), (Place::Holds, waits(0, None), waits(1, None)));
        let less = Smaller::from([(nodes[0].name.clone(), Share::permits(1, 3).unwrap())]);
        assert_eq!((at(1, &less), at(2, &less)), (Place::Holds, waits(0, None)));
        assert_eq!(doubtful(&nodes, &nodes[2].name).len(), 2);
    }

    #[test]
    fn the_first_kind_of_a_name_is_its_kind() {
        let nodes = queue(&["lock-", "g-1of3-lock-", "__READ__"]);
        assert_eq!(place(&nodes, &nodes[1].name, &Smaller::new()), Place::OtherKind(Share::MUTEX));
        assert_eq!(place(&nodes, &nodes[0].name, &Smaller::new()), Place::Holds);
    }
}
