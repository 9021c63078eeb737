//! Commands, answers and notices that are under way between processes and server.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::store::{AcquireReply, Notice, ReleaseReply, RenewReply, Request};
use tenure::{Entry, Error, Lease, Name, Owner};
use tokio::sync::{mpsc, oneshot};

use super::clock::At;
use super::coverage::Met;
use super::mix::{Blow, Mix};

/// One that is notified of a name, and of a lease that its owner is handed.
#[derive(Clone, Debug)]
pub(super) struct Watcher {
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) notices: mpsc::UnboundedSender<Notice>,
}

/// A command of a process.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Acquire(Request),
    Renew(Vec<Lease>),
    Release(Lease, Duration),
    Inspect(Option<Name>),
    Watch(Watcher),
}

#[derive(Debug)]
pub(super) enum Reply {
    Acquired(AcquireReply),
    Renewed(Vec<Result<RenewReply, Error>>),
    Released(ReleaseReply),
    Entries(Vec<Entry>),
    Watching,
}

pub(super) type Answer = Result<Reply, Error>;

#[derive(Debug)]
pub(super) struct Command {
    pub(super) process: usize,
    pub(super) epoch: u32,
    pub(super) sent_at: At,
    pub(super) op: Op,
    /// How the answer is spoilt.
    pub(super) spoilt: Option<Met>,
    pub(super) copy: bool,
    pub(super) reply: Option<oneshot::Sender<Answer>>,
}

#[derive(Debug)]
pub(super) enum Job {
    Run(Command),
    /// The answer, and the owners that learn from it that they hold no more.
    Tell(oneshot::Sender<Answer>, Answer, Vec<Owner>),
    Notify(mpsc::UnboundedSender<Notice>, Notice),
    Blow(Blow),
}

/// One process's connection: commands run in order, and a new one ends what the old one had under
/// way. Only where the store has no late commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection {
    pub(super) epoch: u32,
    /// A command on it had no answer: the next goes on a new one.
    pub(super) suspect: bool,
    /// The newest of which a command has run.
    pub(super) ran: u32,
    /// When the last command of this one runs.
    pub(super) last: At,
}

#[derive(Debug)]
pub(super) struct Network {
    /// By when it is to be done, and in the order in which it was sent.
    pub(super) queue: BTreeMap<(At, u64), Job>,
    number: u64,
    pub(super) connections: Vec<Connection>,
    pub(super) watchers: Vec<Watcher>,
    /// Replies that never come.
    pub(super) lost: Vec<oneshot::Sender<Answer>>,
    /// Until when the network's task sleeps.
    pub(super) asleep_until: At,
}

impl Network {
    pub(super) fn new(mix: &Mix) -> Self {
        let connections = vec![Connection::default(); mix.lives.len() + 1];
        let (queue, watchers, lost) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut network = Self { queue, number: 0, connections, watchers, lost, asleep_until: At::MAX };
        for &(at, blow) in &mix.blows {
            network.push(at, Job::Blow(blow));
        }
        network
    }

    pub(super) fn push(&mut self, at: At, job: Job) {
        self.number += 1;
        self.queue.insert((at, self.number), job);
    }

    /// When there is something to do next.
    pub(super) fn next(&self) -> At {
        self.queue.first_key_value().map_or(At::MAX, |((at, _), _)| *at)
    }
}
