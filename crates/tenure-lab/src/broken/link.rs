//! The ways of a player to each engine: commands as bytes, replies as values.

mod memcached;
mod table;
mod zookeeper;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tenure_testkit::{Client, Reply};

use super::command::{Command, Value};
use super::engine::Engine;
use super::wire::Scale;

const PATIENCE: Duration = Duration::from_secs(10);

/// One connection.
pub(crate) enum Link {
    Redis(Client),
    Table(table::Table),
    Memcached(memcached::Link),
    ZooKeeper(zookeeper::Link),
}

impl Link {
    /// Connects. `file`: where the table is.
    pub(crate) fn open(engine: Engine, address: SocketAddr, file: &Path, scale: &Scale) -> io::Result<Self> {
        Ok(match engine {
            Engine::Redis => Self::Redis(Client::connect(address, PATIENCE)?),
            Engine::Table => Self::Table(table::Table::at(file)),
            Engine::Memcached => Self::Memcached(memcached::Link::open(address)?),
            Engine::ZooKeeper => Self::ZooKeeper(zookeeper::Link::open(address, scale)?),
        })
    }

    pub(crate) fn send(&mut self, scale: &Scale, command: Command) -> io::Result<()> {
        match (self, command) {
            (Self::Redis(link), command) => scale.words(command).iter().try_for_each(|words| link.send(words)),
            (Self::Table(table), command) => {
                table.ask(scale, command);
                Ok(())
            }
            (Self::Memcached(link), Command::Memcached(call)) => link.send(scale, call),
            (Self::ZooKeeper(link), Command::ZooKeeper(call)) => link.send(call),
            (_, command) => panic!("{command} is sent to another engine"),
        }
    }

    /// The reply to `command`, of several the last.
    pub(crate) fn receive(&mut self, scale: &Scale, command: Command) -> io::Result<Value> {
        match (self, command) {
            (Self::Redis(link), command) => {
                let mut last = Ok(Value::Nil);
                for _ in 0..scale.words(command).len() {
                    last = link.receive().map(|reply| match &reply {
                        Reply::Bytes(text) if text == b"QUEUED" => Value::Nil,
                        reply => scale.value(command, reply),
                    });
                }
                last
            }
            (Self::Table(table), _) => Ok(table.answer()),
            (Self::Memcached(link), _) => link.receive(scale),
            (Self::ZooKeeper(link), Command::ZooKeeper(call)) => link.receive(call),
            (_, command) => panic!("{command} is asked of another engine"),
        }
    }

    /// Waits for a message.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        match self {
            Self::Redis(link) => link.receive().map(|_| ()),
            _ => panic!("only Redis sends messages here"),
        }
    }

    /// The fence at the guarded resource, of the one that the scheme counts.
    pub(crate) fn fence(&self, counted: u64) -> u64 {
        match self {
            Self::ZooKeeper(link) => link.czxid(),
            _ => counted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::broken::memcached::Memcached;
    use crate::broken::zookeeper::ZooKeeper;
    use crate::broken::{engine, server};

    /// Two clients send these commands to a real server and to the model, and get these replies.
    fn assert_replies(engine: Engine, told: &[(u8, Command, &str)]) {
        let (real, mut model) = (engine::Server::start(engine, false), server::Server::default());
        let scale = Scale { start: 0, step: engine.step(), wall: 1_700_000_000_000, nonce: 7 };
        let mut links = BTreeMap::new();
        for (at, (who, command, expected)) in told.iter().enumerate() {
            let link = links.entry(who).or_insert_with(|| Link::open(engine, real.addr(), Path::new(""), &scale).unwrap());
            link.send(&scale, *command).unwrap();
            let reply = link.receive(&scale, *command).unwrap();
            assert_eq!(reply.to_string(), *expected, "{at}: {command}, of the server");
            assert_eq!(model.run((*who, 0), *command, 0), reply, "{at}: {command}, of the model");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn memcached_replies_as_its_model() {
        let [get, gets, delete] = [Memcached::Get, Memcached::Gets, Memcached::Delete].map(Memcached::command);
        let item = |take| Value::Record { who: 0, take, ends: 2 };
        let add = |take| Memcached::Add(item(take), Some(2)).command();
        let cas = |take| Memcached::Cas(item(take)).command();
        let (first, second) = ("(token-A1 until t2)", "(token-A2 until t2)");
        assert_replies(Engine::Memcached, &[
            (0, gets, "nil"), (0, cas(1), "NOT_FOUND"), (0, delete, "NOT_FOUND"),
            (0, add(1), "STORED"), (1, add(2), "NOT_STORED"), (1, get, first), (1, cas(2), "EXISTS"),
            (0, gets, first), (1, gets, first), (1, cas(2), "STORED"), (0, cas(1), "EXISTS"), (1, cas(1), "EXISTS"),
            (0, gets, second), (0, delete, "DELETED"), (0, cas(1), "NOT_FOUND"),
            (1, add(1), "STORED"), (0, cas(2), "EXISTS"), (0, get, first),
        ]);
    }

    #[test]
    #[rustfmt::skip]
    fn zookeeper_replies_as_its_model() {
        let [create, list] = [ZooKeeper::Create, ZooKeeper::Children].map(ZooKeeper::command);
        let delete = |node| ZooKeeper::Delete(Value::Nodes(node)).command();
        assert_replies(Engine::ZooKeeper, &[
            (0, list, "nothing"), (0, create, "n0"), (1, create, "n1"), (0, list, "n0 n1"), (1, list, "n0 n1"),
            (0, delete(1), "OK"), (0, delete(1), "no node"), (1, list, "n1"),
            (0, create, "n2"), (1, delete(2), "OK"), (1, list, "n2"), (0, delete(4), "OK"), (0, list, "nothing"),
        ]);
    }
}
