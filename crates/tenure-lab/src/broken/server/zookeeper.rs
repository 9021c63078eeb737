//! ZooKeeper in the model: the nodes below the lock, and the sessions that they end with.

use super::{FENCE, LOCK, OK, Server, Tick, Value};
use crate::broken::schemes::TTL;
use crate::broken::zookeeper::{NO_NODE, ZooKeeper};

impl Server {
    pub(super) fn zookeeper(&mut self, who: u8, call: ZooKeeper) -> Value {
        if self.silent.contains_key(&who) {
            return Value::Broken;
        }
        let mut nodes = self.members(LOCK);
        match call {
            ZooKeeper::Create => {
                // Nobody makes more nodes than a bit each.
                let Value::Int(number) = self.add(FENCE, 1) else { return Value::Nil };
                let node = Value::Nodes(1 << (number - 1));
                nodes.insert(node, Tick::from(who));
                self.keep(LOCK, nodes, None);
                node
            }
            ZooKeeper::Children => {
                let bit = |node: &Value| if let Value::Nodes(bit) = node { *bit } else { 0 };
                Value::Nodes(nodes.keys().map(bit).sum())
            }
            ZooKeeper::Delete(node) if nodes.remove(&node).is_some() => {
                self.keep(LOCK, nodes, None);
                OK
            }
            ZooKeeper::Delete(_) => NO_NODE,
        }
    }

    /// Nothing is heard of a client from now on.
    pub(crate) fn miss(&mut self, who: u8, now: Tick) {
        self.silent.insert(who, now);
    }

    /// A client is heard of again: in time, or its session stays ended.
    pub(crate) fn hear_again(&mut self, who: u8, now: Tick) {
        if self.silent.get(&who).is_some_and(|since| now < since + TTL) {
            self.silent.remove(&who);
        }
    }

    /// Sessions of which nothing was heard for too long end, and their nodes with them.
    pub(crate) fn end_sessions(&mut self, now: Tick) {
        for (who, since) in self.silent.clone() {
            let mut nodes = self.members(LOCK);
            let before = nodes.len();
            nodes.retain(|_, owner| now < since + TTL || *owner != Tick::from(who));
            if nodes.len() < before {
                self.keep(LOCK, nodes, None);
            }
        }
    }
}
