//! Returns what a majority knows of its names.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::round::{Round, Until};
use crate::store::too_few;
use crate::{Entry, Error, Fence, Holder, Name};

impl Quorum {
    pub(super) async fn look(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let mut round =
            Round::new(Until::after(self.limit(Duration::MAX))).hurrying_after(self.majority(), self.node_timeout(Duration::MAX));
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, name) = (Arc::clone(node), name.cloned());
            round.ask(at, async move { node.inspect_and_vote(name.as_ref()).await });
        }
        let (mut answered, mut voted, mut failures) = (0, 0, Vec::new());
        let mut names: HashMap<Name, Vec<(Holder, bool)>> = HashMap::new();
        while let Some((_, answer)) = round.next().await {
            match answer {
                Ok((entries, has_vote)) => {
                    answered += 1;
                    voted += usize::from(has_vote);
                    for entry in entries {
                        names.entry(entry.name).or_default().extend(entry.holders.into_iter().map(|holder| (holder, has_vote)));
                    }
                }
                Err(failed) => failures.push(failed),
            }
        }
        let mut entries: Vec<Entry> =
            names.into_iter().map(|(name, holders)| Entry::new(name, self.by_majority(holders, voted), Vec::new())).collect();
        entries.retain(Entry::is_in_use);
        // A name that was not found may still be held, unless a majority that votes does not know it.
        let is_found = name.is_some() && !entries.is_empty();
        let (counted, nodes) = (if is_found { answered } else { voted }, self.nodes.len());
        if counted >= self.majority() {
            return Ok(entries);
        }
        let silent = nodes - answered - failures.len();
        let no_vote = || Error::unavailable("the server does not vote").with_hint("look at `tenure show --servers`");
        failures.extend(std::iter::repeat_with(no_vote).take(answered - counted));
        Err(too_few(format!("{counted} of {nodes} nodes could be asked"), nodes - self.majority(), silent, failures))
    }

    /// The holders that enough of the nodes know, with the ttl that enough of them keep. A node that has not answered, or does not
    /// vote, may have granted to them as well: a name that may be held is not shown as free.
    fn by_majority(&self, found: Vec<(Holder, bool)>, voted: usize) -> Vec<Holder> {
        let mut holders: Vec<Vec<(Holder, bool)>> = Vec::new();
        for holder in found {
            match holders.iter_mut().find(|same| same[0].0.owner == holder.0.owner) {
                Some(same) => same.push(holder),
                None => holders.push(vec![holder]),
            }
        }
        let held = |same: Vec<(Holder, bool)>| {
            let need = self.need(same[0].0.share).unwrap_or_else(|_| self.majority());
            let known = same.iter().filter(|(_, votes)| *votes).count();
            let mut same: Vec<Holder> = same.into_iter().map(|(holder, _)| holder).collect();
            same.sort_by_key(|holder| std::cmp::Reverse(holder.ttl.unwrap_or(Duration::MAX)));
            // A node may have noted a number of its own, before the others agreed.
            let agreed = |fence: &Fence| same.iter().filter(|holder| holder.fence == Some(*fence)).count() >= need;
            let fence = same.iter().filter_map(|holder| holder.fence).find(|fence| self.features.fence && agreed(fence));
            let silent = self.nodes.len() - voted;
            // A node takes the age from its number, which counts from another moment here.
            let holder = || same.swap_remove(need.min(same.len()) - 1).with_fence(fence).with_age(None);
            (known + silent >= need).then(holder).map(|holder| holder.with_in_doubt(known < need))
        };
        holders.into_iter().filter_map(held).collect()
    }
}
