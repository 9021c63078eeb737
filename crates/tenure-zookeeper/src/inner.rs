//! The state of a store, and its reads: what the store and the tasks of its entries share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::{AcquireReply, Busy, Notice};
use tenure::{Error, Holder, Name, Owner};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::entry::{Entry, Slot};
use crate::failure::{Failed, NO_AUTH, NO_NODE, NODE_EXISTS, UNIMPLEMENTED};
use crate::nodes::{Child, Data, checked, in_order, stranger};
use crate::session::{Reply, SILENT, Session, answer};
use crate::sessions::Sessions;
use crate::wire::{Acl, CONTAINER, CREATE, CREATE_CONTAINER, Frame, PERSISTENT, Reading};

pub(crate) type Key = (Name, Owner);

pub(crate) struct Inner {
    pub(crate) sessions: Sessions,
    /// The path of all names, without a / at its end: chroot and prefix.
    pub(crate) root: String,
    pub(crate) acl: Acl,
    pub(crate) poll_interval: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) shown: String,
    pub(crate) entries: Mutex<HashMap<Key, Slot>>,
    pub(crate) listeners: Mutex<HashMap<Key, mpsc::UnboundedSender<Notice>>>,
    /// Until when a node may be made by a request whose answer was lost.
    pub(crate) late: Mutex<Option<Instant>>,
    /// The process that opened it.
    pub(crate) process: u32,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(crate) fn path(&self, name: &Name) -> Result<String, Error> {
        checked(name.as_str(), name, self.root.is_empty())?;
        Ok(format!("{}/{name}", self.root))
    }

    /// How long a call takes that concerns no lease.
    pub(crate) fn attempt(&self) -> Duration {
        self.timeout.unwrap_or(SILENT)
    }

    pub(crate) fn slot(&self, name: &Name, owner: &Owner) -> Option<Slot> {
        locked(&self.entries).get(&(name.clone(), owner.clone())).cloned()
    }

    pub(crate) fn forget(&self, entry: &Arc<Entry>) {
        let owner = entry.state().owner.clone();
        let (mut entries, key) = (locked(&self.entries), (entry.name.clone(), owner));
        if entries.get(&key).is_some_and(|slot| Arc::ptr_eq(&slot.entry, entry)) {
            entries.remove(&key);
        }
    }

    /// Notes that a node may still be made until then.
    pub(crate) fn note_late(&self, until: Instant) {
        let mut late = locked(&self.late);
        *late = (*late).max(Some(until));
    }

    pub(crate) fn notify(&self, name: &Name, owner: &Owner, notice: Notice) {
        let (mut listeners, key) = (locked(&self.listeners), (name.clone(), owner.clone()));
        if listeners.get(&key).is_some_and(|listener| listener.send(notice).is_err()) {
            listeners.remove(&key);
        }
    }

    /// Lets a session last for a longer ttl, if the ensemble gives that.
    pub(crate) async fn lengthen(&self, session: &Session, ttl: Duration) {
        let needed = self.sessions.needed(ttl);
        if session.timeout() < needed {
            session.retime(needed, false).await;
        }
    }

    /// Makes the nodes above a lock. Those of names go by themselves when they are empty, where the server has such nodes.
    pub(crate) async fn make_parents(&self, session: &Session, parent: &str) -> Result<(), Error> {
        for container in [(CREATE_CONTAINER, CONTAINER), (CREATE, PERSISTENT)] {
            let ends = parent.match_indices('/').map(|(at, _)| at).skip(1).chain([parent.len()]);
            let frames = ends.map(|end| {
                let (op, flags) = if end <= self.root.len() { (CREATE, PERSISTENT) } else { container };
                Frame::create(op, &parent[..end], b"", self.acl, flags)
            });
            // A server checks the right to make a node before it sees that the node is there. So only the last one
            // tells whether all are there, and the first failure tells why they are not.
            let (mut first, mut last) = (None, Ok(()));
            for answer in session.ask_each(frames.collect()).await {
                last = match answer {
                    Ok(_) | Err(Failed::Code(NODE_EXISTS)) => Ok(()),
                    Err(failed) => Err(failed),
                };
                first = first.or(last.err());
            }
            match last {
                Ok(()) => return Ok(()),
                Err(Failed::Code(UNIMPLEMENTED)) => {}
                Err(failed) => return Err(first.unwrap_or(failed).error()),
            }
        }
        Ok(())
    }

    /// The nodes of a lock, with what they say of themselves.
    pub(crate) async fn read(&self, session: &Session, parent: &str) -> Result<Vec<(Child, Option<Data>)>, Failed> {
        let listed = match session.ask(Frame::list(parent, false)).await {
            Err(Failed::Code(NO_NODE)) => return Ok(Vec::new()),
            listed => listed?,
        };
        let children = in_order(&Reading(&listed.body).texts().ok_or(Failed::Garbled)?);
        let frames = children.iter().map(|child| Frame::get_data(&format!("{parent}/{}", child.name), false));
        let answers = session.ask_each(frames.collect()).await;
        let mut read = Vec::new();
        for (child, answer) in children.into_iter().zip(answers) {
            match answer {
                Ok(reply) => read.push((child, data_of(&reply))),
                // It is there, whatever it says of itself.
                Err(Failed::Code(NO_AUTH)) => read.push((child, None)),
                Err(Failed::Code(NO_NODE)) => {}
                Err(failed) => return Err(failed),
            }
        }
        Ok(read)
    }

    /// A call of the ensemble that changes nothing, so it is repeated if a session or a connection ends.
    pub(crate) async fn reading<T, F>(&self, end: Instant, read: impl Fn(Arc<Session>) -> F + Send + Sync) -> Result<T, Error>
    where
        T: Send,
        F: Future<Output = Result<T, Failed>> + Send,
    {
        let began = Instant::now();
        let call = async {
            loop {
                let session = self.sessions.any(end).await?;
                // A server answers reads by itself. First it catches up with the leader.
                let [mut caught_up] = session.ask_all([Frame::sync()]);
                let result = read(session).await;
                match answer(&mut caught_up).await.and(result) {
                    Err(Failed::Cut { .. } | Failed::Over) => {}
                    result => return result.map_err(Failed::error),
                }
            }
        };
        timeout_at(end, call).await.unwrap_or_else(|_| {
            Err(Error::unreachable(format!("ZooKeeper did not answer within {:?}", end.saturating_duration_since(began))))
        })
    }

    /// The node of an owner of another process, or of another store.
    pub(crate) async fn elsewhere(&self, parent: &str, owner: &Owner, end: Instant) -> Result<Option<String>, Error> {
        let nodes = self.reading(end, |session| async move { self.read(&session, parent).await }).await?;
        let is_owners = |(child, data): &(Child, Option<Data>)| match data {
            Some(data) => data.owner == *owner,
            None => stranger(child) == *owner,
        };
        Ok(nodes.into_iter().find(is_owners).map(|(child, _)| format!("{parent}/{}", child.name)))
    }

    pub(crate) fn busy(&self) -> AcquireReply {
        AcquireReply::Busy(Busy::new(self.poll_interval))
    }
}

pub(crate) fn data_of(reply: &Reply) -> Option<Data> {
    Data::read(Reading(&reply.body).bytes()?)
}

/// The holder, as its node says.
pub(crate) fn holder_of(child: &Child, data: Option<Data>) -> Holder {
    match data {
        Some(data) => Holder::new(data.owner, data.share).with_ttl(data.ttl),
        None => Holder::new(stranger(child), child.share),
    }
}
