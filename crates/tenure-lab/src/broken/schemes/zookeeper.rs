//! Locks on ZooKeeper: ephemeral sequential nodes, of which the first holds.
//!
//! A waiter asks for the children again and again. As articles have it, it watches the node in
//! front of its own, and then asks once: who holds when is the same. Nobody listens for the end of
//! its session. One who did would learn of it a moment after it goes on.

use tenure_testkit::register::Comparison;

use super::frees_by;
use crate::broken::command::Value;
use crate::broken::engine::Engine;
use crate::broken::program::{Client, Next, Scheme, Turn, call, won};
use crate::broken::zookeeper::ZooKeeper;

const ABOUT: &str = "ZooKeeper: an ephemeral sequential node, and the first of them holds";

pub(crate) const SEQUENTIAL: Scheme = Scheme::new(ABOUT, take, delete).on(Engine::ZooKeeper);

/// With the transaction that made its node as the fence, at which no resource looks.
pub(crate) const UNCOMPARED: Scheme = Scheme {
    resource: Some(Comparison::Nothing),
    about: "ZooKeeper: an ephemeral sequential node; the resource does not look at its czxid",
    acquire: take_with_czxid,
    ..SEQUENTIAL
};

pub(crate) const FENCED: Scheme = Scheme {
    resource: Some(Comparison::Order),
    about: "ZooKeeper: an ephemeral sequential node; the resource compares its czxid",
    ..UNCOMPARED
};

/// Of this client the name was taken when it came.
pub(crate) const WAITED: Value = Value::Word("waited");

fn take(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, ZooKeeper::Create.command()),
        (1, node) => {
            client.mine = node;
            call(2, ZooKeeper::Children.command())
        }
        (_, Value::Nodes(all)) if Value::first(all) == client.mine => won(),
        (_, Value::Nodes(_)) => {
            client.seen = WAITED;
            Next::Look(2, ZooKeeper::Children.command())
        }
        _ => Next::Busy,
    }
}

/// Nodes are made in the order of their czxids, so the place of a node stands for it here. The
/// resource of a played story gets the czxid itself.
fn take_with_czxid(client: &mut Client, turn: Turn) -> Next {
    match (take(client, turn), client.mine) {
        (Next::Won { until, .. }, Value::Nodes(node)) => {
            Next::Won { until, fence: Some(1 + i16::try_from(node.trailing_zeros()).unwrap_or(i16::MAX)) }
        }
        (next, _) => next,
    }
}

fn delete(client: &mut Client, turn: Turn) -> Next {
    frees_by(turn, ZooKeeper::Delete(client.mine).command())
}
