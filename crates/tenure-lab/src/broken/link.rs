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
