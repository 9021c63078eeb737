//! Messages that the server pushes to one waiter of this process.
//!
//! Each connection has one channel of its own, `<prefix>tenure:wake:<16 hex digits>`, and
//! subscribes to it from the first listener on. A client that notifies a waiter finds the channel
//! in the waiter's queue entry and sends `PUBLISH <channel> <message>`. A message is `<payload>
//! <owner>`: the payload has no space, and the owner, which may be any bytes, is the rest. A
//! message for an owner without a listener is ignored.
//!
//! In a cluster the connections to all nodes share the channel, and each slot may have a channel of
//! its own, `<prefix>{<tag>}:w:<16 hex digits>`: a message to that goes to one node alone.
//!
//! A key that other clients change can be listened to as well: the server tracks it for the
//! connection, and reports its next change.
//!
//! Messages are hints: one may come twice, and one may be lost if the connection breaks. Then each
//! listener gets [`Pushed::Missed`].

mod inbox;
mod subscriptions;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use redis::{PushInfo, PushKind, Value};
use tenure::{Error, Owner};

use self::inbox::Inbox;
pub(crate) use self::inbox::Pushed;
pub(crate) use self::subscriptions::{Source, TRACK_NEXT, TRACKING};

/// The channel of one connection, and its listeners by owner.
pub(crate) struct Pushes {
    prefix: String,
    id: String,
    channel: String,
    /// A message is for every listener, and has no owner.
    for_all: bool,
    /// The other channels are of slots, which move: a listener asks for its own with each poll.
    in_cluster: bool,
    /// The server has subscribed the link in use to this channel, if it is one for all.
    heard: AtomicBool,
    wanted: AtomicBool,
    /// Whether anybody has listened for changes of keys.
    tracks: AtomicBool,
    /// A link ends when its server drops all data, as one that becomes a replica does.
    ends_with_data: bool,
    /// A slot can have a channel of its own, as far as is known.
    slots: AtomicBool,
    listeners: Mutex<HashMap<Vec<u8>, Vec<Arc<Inbox>>>>,
    /// Other channels, of which each message is for every listener.
    others: Mutex<HashMap<String, Arc<Self>>>,
}

/// Receives what is pushed to one owner, until it is dropped.
pub(crate) struct Listener {
    pushes: Arc<Pushes>,
    owner: Owner,
    inbox: Arc<Inbox>,
}

impl Pushes {
    pub(crate) fn new(prefix: &str) -> Result<Arc<Self>, Error> {
        Self::with_random_channel(prefix, false)
    }

    /// For the connections to all nodes of a cluster.
    pub(crate) fn in_cluster(prefix: &str) -> Result<Arc<Self>, Error> {
        Self::with_random_channel(prefix, true)
    }

    /// For a connection that has to notice it when its server has other data than before.
    pub(crate) fn until_data_is_lost(prefix: &str) -> Result<Arc<Self>, Error> {
        let pushes = Self::with_random_channel(prefix, false)?;
        Ok(Arc::new(Self { ends_with_data: true, ..Self::on(prefix, pushes.id.clone(), pushes.channel.clone(), false) }))
    }

    fn with_random_channel(prefix: &str, in_cluster: bool) -> Result<Arc<Self>, Error> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|e| Error::unavailable("the system gave no random bytes for a channel").with_source(e))?;
        let id = format!("{:016x}", u64::from_ne_bytes(random));
        let channel = format!("{prefix}tenure:wake:{id}");
        Ok(Arc::new(Self { in_cluster, ..Self::on(prefix, id, channel, false) }))
    }

    /// For a connection without pushes.
    pub(crate) fn deaf() -> Arc<Self> {
        Arc::new(Self::on("", String::new(), String::new(), false))
    }

    /// For all messages on a channel, each of them whole and for every listener.
    pub(crate) fn of_channel(channel: &str) -> Arc<Self> {
        Arc::new(Self::on("", channel.to_owned(), channel.to_owned(), true))
    }

    fn on(prefix: &str, id: String, channel: String, for_all: bool) -> Self {
        let (wanted, tracks, slots) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(true));
        let (heard, listeners, others) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        let prefix = prefix.to_owned();
        Self {
            prefix,
            id,
            channel,
            for_all,
            in_cluster: false,
            ends_with_data: false,
            heard,
            wanted,
            tracks,
            slots,
            listeners,
            others,
        }
    }

    /// Registers a listener for another channel, to which the caller subscribes.
    pub(crate) fn register_on(&self, channel: &str) -> Listener {
        let mut others = self.others();
        let other = others.entry(channel.to_owned()).or_insert_with(|| Self::of_channel(channel));
        other.register(Owner::from_bytes(Vec::new()))
    }

    /// Whether anybody listens to another channel.
    pub(crate) fn has_listener_on(&self, channel: &str) -> bool {
        self.others().get(channel).is_some_and(|other| !other.listeners().is_empty())
    }

    /// Forgets another channel that nobody listens to. Returns whether there was one.
    pub(crate) fn forget(&self, channel: &str) -> bool {
        let mut others = self.others();
        let is_idle = others.get(channel).is_some_and(|other| other.listeners().is_empty());
        is_idle && others.remove(channel).is_some()
    }

    /// Whether messages on another channel come through the link in use.
    pub(crate) fn is_heard(&self, channel: &str) -> bool {
        self.others().get(channel).is_some_and(|other| other.heard.load(Ordering::Relaxed))
    }

    /// Notes whether the server has subscribed the link in use to another channel.
    pub(crate) fn set_heard(&self, channel: &str, heard: bool) {
        if let Some(other) = self.others().get(channel) {
            other.heard.store(heard, Ordering::Relaxed);
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// The channel of the slot that the tag leads to: the common one if slots have none.
    pub(crate) fn channel_of_slot(&self, tag: [u8; 4]) -> String {
        if !self.have_slots() {
            return self.channel.clone();
        }
        format!("{}{{{}}}:w:{}", self.prefix, String::from_utf8_lossy(&tag), self.id)
    }

    /// Whether slots have channels, as far as is known.
    pub(crate) fn have_slots(&self) -> bool {
        self.slots.load(Ordering::Relaxed)
    }

    /// Servers before Redis 7 have no channels of slots.
    pub(crate) fn has_no_slots(&self) {
        self.slots.store(false, Ordering::Relaxed);
    }

    /// Whether anybody has listened: then new links subscribe at once.
    pub(crate) fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Whether anybody has listened for changes of keys.
    pub(crate) fn tracks(&self) -> bool {
        self.tracks.load(Ordering::Relaxed)
    }

    /// Whether a link ends with the data of its server.
    pub(crate) const fn ends_with_data(&self) -> bool {
        self.ends_with_data
    }

    /// Whether a link ends with this push. Answers that come behind it are about other data.
    pub(crate) fn ends_link(&self, push: &PushInfo) -> bool {
        let all_keys = push.kind == PushKind::Invalidate && !matches!(push.data.first(), Some(Value::Array(_)));
        self.ends_with_data && all_keys
    }

    pub(crate) fn has_listener(&self, owner: &[u8]) -> bool {
        self.listeners().contains_key(owner)
    }

    pub(crate) fn register(self: &Arc<Self>, owner: Owner) -> Listener {
        self.wanted.store(true, Ordering::Relaxed);
        self.add(owner)
    }

    /// Registers a listener for changes of a key, which the caller has tracked.
    pub(crate) fn register_key(self: &Arc<Self>, key: Vec<u8>) -> Listener {
        self.tracks.store(true, Ordering::Relaxed);
        self.add(Owner::from_bytes(key))
    }

    fn add(self: &Arc<Self>, owner: Owner) -> Listener {
        let inbox = Arc::new(Inbox::default());
        self.listeners().entry(owner.as_bytes().to_owned()).or_default().push(Arc::clone(&inbox));
        Listener { pushes: Arc::clone(self), owner, inbox }
    }

    /// Delivers what a link was pushed. Runs on the task that reads the link, so that a waiter is
    /// one wake-up away.
    pub(crate) fn take_in(&self, push: PushInfo) {
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let mut data = push.data.into_iter();
                let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) = (data.next(), data.next()) else {
                    return;
                };
                if let Some(other) = self.other(&channel) {
                    other.deliver(&message);
                } else if self.is_own(&channel) {
                    self.deliver(&message);
                }
            }
            PushKind::Invalidate => match push.data.into_iter().next() {
                Some(Value::Array(keys)) => {
                    let listeners = self.listeners();
                    let keys = keys.iter().filter_map(|key| if let Value::BulkString(key) = key { Some(key) } else { None });
                    keys.filter_map(|key| listeners.get(key)).flatten().for_each(|inbox| inbox.miss());
                }
                // All keys are gone.
                _ => self.missed(),
            },
            // The slot of a channel has left the node.
            PushKind::SUnsubscribe => {
                let Some(Value::BulkString(channel)) = push.data.first() else { return };
                match self.other(channel) {
                    Some(other) => other.missed(),
                    None if self.is_own(channel) => self.missed(),
                    None => {}
                }
            }
            PushKind::Disconnection => self.missed(),
            _ => {}
        }
    }

    fn deliver(&self, message: &[u8]) {
        if self.for_all {
            self.listeners().values().flatten().for_each(|inbox| inbox.put(message));
            return;
        }
        let Some(space) = message.iter().position(|byte| *byte == b' ') else { return };
        if let Some(inboxes) = self.listeners().get(&message[space + 1..]) {
            for inbox in inboxes {
                inbox.put(&message[..space]);
            }
        }
    }

    /// Has each listener poll.
    pub(crate) fn missed(&self) {
        for inbox in self.listeners().values().flatten() {
            inbox.miss();
        }
        for other in self.others().values() {
            other.missed();
        }
    }

    /// Whether it is the channel of this process, or that of it in a slot.
    pub(crate) fn is_own(&self, channel: impl AsRef<[u8]>) -> bool {
        channel.as_ref().ends_with(self.id.as_bytes())
    }

    fn other(&self, channel: &[u8]) -> Option<Arc<Self>> {
        self.others().get(std::str::from_utf8(channel).ok()?).cloned()
    }

    fn others(&self) -> MutexGuard<'_, HashMap<String, Arc<Self>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<Arc<Inbox>>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for Listener {
    type Item = Pushed;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Pushed>> {
        self.inbox.poll_next(cx)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = self.pushes.listeners();
        if let Some(inboxes) = listeners.get_mut(self.owner.as_bytes()) {
            inboxes.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
            if inboxes.is_empty() {
                listeners.remove(self.owner.as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::inbox::UNREAD;
    use super::*;

    fn message(channel: &str, text: &[u8]) -> PushInfo {
        let data = vec![Value::BulkString(channel.into()), Value::BulkString(text.into())];
        PushInfo { kind: PushKind::Message, data }
    }

    fn heard(listener: &mut Listener) -> Option<Pushed> {
        listener.next().now_or_never().flatten()
    }

    #[test]
    fn a_message_reaches_its_owner_alone() {
        let pushes = Pushes::new("app:").unwrap();
        let channel = pushes.channel().to_owned();
        assert!(channel.starts_with("app:tenure:wake:") && channel.len() == 32, "{channel}");
        let odd = Owner::from_bytes(&b"two words\nand \xff"[..]);
        let (mut mine, mut other) = (pushes.register(odd.clone()), pushes.register(Owner::generate("x").unwrap()));
        let mut twin = pushes.register(odd);
        pushes.take_in(message(&channel, b"grant:7 two words\nand \xff"));
        pushes.take_in(message(&channel, b"grant:8 two words"));
        pushes.take_in(message(&channel, b"nonsense"));
        pushes.take_in(message("another", b"grant:9 two words\nand \xff"));
        for listener in [&mut mine, &mut twin] {
            assert_eq!(heard(listener), Some(Pushed::Message(b"grant:7".to_vec())));
            assert_eq!(heard(listener), None);
        }
        assert_eq!(heard(&mut other), None);
        drop(twin);
        pushes.take_in(message(&channel, b" two words\nand \xff"));
        assert_eq!(heard(&mut mine), Some(Pushed::Message(Vec::new())));
        drop((mine, other));
        assert!(pushes.listeners().is_empty());
    }

    #[test]
    fn a_change_of_a_key_reaches_its_listeners_alone() {
        let pushes = Pushes::new("").unwrap();
        let (mut mine, mut other) = (pushes.register_key(b"door".to_vec()), pushes.register_key(b"gate".to_vec()));
        let changed = |data| PushInfo { kind: PushKind::Invalidate, data: vec![data] };
        pushes.take_in(changed(Value::Array(vec![Value::BulkString(b"door".to_vec()), Value::BulkString(b"wall".to_vec())])));
        assert_eq!((heard(&mut mine), heard(&mut other)), (Some(Pushed::Missed), None));
        // After FLUSHALL.
        pushes.take_in(changed(Value::Nil));
        assert_eq!((heard(&mut mine), heard(&mut other)), (Some(Pushed::Missed), Some(Pushed::Missed)));
        assert_eq!(pushes.subscriptions().len(), 1, "no channel is needed");
    }

    #[test]
    fn unread_messages_become_one_poll() {
        let pushes = Pushes::new("").unwrap();
        let mut mine = pushes.register(Owner::from_bytes(&b"me"[..]));
        for _ in 0..=UNREAD {
            pushes.take_in(message(pushes.channel(), b"x me"));
        }
        pushes.take_in(message(pushes.channel(), b"y me"));
        assert_eq!(heard(&mut mine), Some(Pushed::Missed));
        assert_eq!(heard(&mut mine), Some(Pushed::Message(b"y".to_vec())));
        pushes.take_in(PushInfo { kind: PushKind::Disconnection, data: vec![] });
        pushes.missed();
        assert_eq!(heard(&mut mine), Some(Pushed::Missed));
        assert_eq!(heard(&mut mine), None);
    }
}
