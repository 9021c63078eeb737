//! A counterexample of a quorum in words.

use super::{Action, Node, Phase, Quorum, State, Vote};
use crate::models::promise::Promise;
use crate::models::search::Path;
use crate::models::story::{Story, client_name};

/// Tells `path`, which ends in the state `last` that breaks `promise`.
pub(in crate::models) fn told(quorum: &Quorum, path: &Path<Quorum>, last: &State, promise: Promise) -> Story {
    let mut story = Story::new();
    let mut now = 0;
    let states = path.iter().map(|(state, _)| state).skip(1).chain([last]);
    for ((before, action), after) in path.iter().zip(states) {
        now += u32::from(*action == Action::Tick);
        let lines = if *action == Action::Tick { passes(before, after) } else { vec![step(quorum, before, *action, after)] };
        story.extend(lines.into_iter().map(|line| format!("t={now}  {line}")));
    }
    let end = match promise {
        Promise::OneHolder => {
            let holders: Vec<_> = last.holders().map(client_name).collect();
            format!("{} both regard themselves as the holder", holders.join(" and "))
        }
        Promise::FencesDiffer => "this fence was handed out before".to_owned(),
        _ => "this fence is not above one that was heard before".to_owned(),
    };
    story.push(format!("t={now}  BROKEN: {end}"));
    story
}

/// The same node after a step, which may have changed its place.
fn same<'a>(state: &'a State, node: &Node) -> &'a Node {
    state.nodes.iter().find(|other| other.id == node.id).expect("no node is lost")
}

fn step(quorum: &Quorum, before: &State, action: Action, after: &State) -> String {
    let name = client_name;
    match action {
        Action::Ask(id) => format!("{} asks all nodes", name(id)),
        Action::Acquire { node, id, heard, .. } => {
            let node = &before.nodes[node];
            let counter = same(after, node).counter;
            let outcome = match (counter > node.counter, heard) {
                (true, true) => format!("granted, counter {counter}"),
                (true, false) => format!("granted, counter {counter}, which {} does not hear", name(id)),
                (false, _) => "refused".to_owned(),
            };
            format!("{}'s acquire reaches node {}: {outcome}", name(id), node.id + 1)
        }
        Action::Confirm { node, id, .. } => {
            let node = &before.nodes[node];
            let fence = node.legs[id].confirm;
            let outcome = if same(after, node).counter == fence { "taken up" } else { "refused" };
            format!("{}'s fence {fence} reaches node {}: {outcome}", name(id), node.id + 1)
        }
        Action::Release { node, id } => format!("{}'s release reaches node {}", name(id), before.nodes[node].id + 1),
        Action::Decide(id) => {
            let attempt = after.attempts[id];
            match attempt.phase {
                Phase::Holding => format!("{} holds with fence {}, valid for {} more", name(id), attempt.fence, attempt.valid),
                _ => format!("{} has the nodes take up {}", name(id), attempt.fence),
            }
        }
        Action::End(id) => format!("{} releases at all nodes", name(id)),
        Action::Restart(node) => format!("node {} restarts without its data", before.nodes[node].id + 1),
        Action::Restore { node, owner, counter } => {
            let holder = owner.map_or_else(|| "nobody".to_owned(), |id| name(usize::from(id)).to_string());
            let node = before.nodes[node].id + 1;
            format!("node {node} comes back with an older copy: {holder} holds, counter {counter}")
        }
        Action::AskOthers(node) => {
            let node = &before.nodes[node];
            match same(after, node).vote {
                Vote::Kept(ticks @ 1..) => format!("node {} asks the others, and waits {ticks} more", node.id + 1),
                _ => format!("node {} asks the others: none knows of a lease", node.id + 1),
            }
        }
        Action::Admit(node) => {
            let node = &before.nodes[node];
            let counts = if quorum.rules.counts_on { "counts on from" } else { "counts from" };
            format!("node {} votes again and {counts} {}", node.id + 1, same(after, node).counter)
        }
        Action::Tick => String::new(),
    }
}

/// The ends that a tick brings.
fn passes(before: &State, after: &State) -> Story {
    let ends = (0..before.attempts.len()).filter(|id| before.attempts[*id].valid > 0 && after.attempts[*id].valid == 0);
    let mut lines: Story = ends.map(|id| format!("{}'s validity ends", client_name(id))).collect();
    for node in &before.nodes {
        let later = same(after, node);
        if let (Some(owner), None) = (node.owner, later.owner) {
            lines.push(format!("{}'s lease ends at node {}", client_name(usize::from(owner)), node.id + 1));
        }
        if matches!(node.vote, Vote::Kept(1..)) && later.vote == Vote::Kept(0) {
            lines.push(format!("node {} has waited long enough", node.id + 1));
        }
    }
    lines
}
