//! Pushes that a connection hears unasked: messages on its channels, and changes of keys.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt};
use tenure::{Error, Owner};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::attempt::no_connection;
use super::{Connection, Exchange, FIRST_CONTACT, Repeat};
use crate::transport::commands::{Commands, Key};
use crate::transport::failure::{is_no_command, is_not_permitted, translate};
use crate::transport::link::Link;
use crate::transport::push::{Listener, Pushed, TRACKING};
use crate::transport::reply::only;

impl Connection {
    /// Subscribes to what is pushed to `owner`, until the listener is dropped. It gets nothing if
    /// [`channel`](Connection::channel) is none: then its user has to poll.
    ///
    /// After a replacement of the link each listener gets
    /// [`Pushed::Missed`](crate::transport::push::Pushed). The channel may have come or gone with
    /// it.
    ///
    /// # Round trips
    /// None if anybody has listened on the link before, else 1.
    pub(crate) async fn listen(&self, owner: Owner, end: Instant) -> Result<Listener, Error> {
        // Before the subscription: a later link subscribes by itself.
        let listener = self.pushes.register(owner);
        self.begin_to_hear(&[b"SUBSCRIBE", self.pushes.channel().as_bytes()], end, Link::hears, Link::set_hears).await?;
        Ok(listener)
    }

    /// Listens for changes of keys, until the listeners are dropped. They get nothing unless the link
    /// [tracks](Link::tracks) keys, and only of changes after the key was read in a command behind
    /// [`TRACK_NEXT`](crate::transport::push::TRACK_NEXT).
    ///
    /// # Round trips
    /// None if anybody has listened for changes on the link before, else 1.
    pub(crate) async fn listen_to_keys(&self, keys: Vec<Vec<u8>>, end: Instant) -> Result<Vec<Listener>, Error> {
        let listeners = keys.into_iter().map(|key| self.pushes.register_key(key)).collect();
        self.begin_to_hear(&TRACKING, end, Link::tracks, Link::set_tracks).await?;
        Ok(listeners)
    }

    /// Whether anybody of this process listens for changes of a key.
    pub(crate) fn listens_to_key(&self, key: &[u8]) -> bool {
        self.pushes.tracks() && self.pushes.has_listener(key)
    }

    /// Finds out with `command` whether pushes of a kind come through the link, unless that is known.
    async fn begin_to_hear(
        &self,
        command: &[&[u8]],
        end: Instant,
        is_known: fn(&Link) -> Option<bool>,
        set: fn(&Link, bool),
    ) -> Result<(), Error> {
        let known = || self.link().is_some_and(|link| is_known(&link).is_some());
        if known() {
            return Ok(());
        }
        let Ok(_one_at_a_time) = timeout_at(end, self.subscribing.lock()).await else { return Err(no_connection()) };
        if known() {
            return Ok(());
        }
        let Exchange { link, answers, .. } = self.subscribe(command, end).await?;
        set(&link, answers.iter().all(Result::is_ok));
        Ok(())
    }

    /// Subscribes to all messages on another channel, until the listener is dropped. It gets nothing
    /// unless the connection [hears](Connection::hears_on) them.
    ///
    /// # Round trips
    /// 1.
    pub(crate) async fn listen_on(self: &Arc<Self>, channel: &str, end: Instant) -> Result<ChannelListener, Error> {
        // Before the subscription: a later link subscribes by itself.
        let listener = self.register_on(channel);
        let Ok(_one_at_a_time) = timeout_at(end, self.subscribing.lock()).await else { return Err(no_connection()) };
        let Exchange { link, answers, .. } = self.subscribe(&[b"SUBSCRIBE", channel.as_bytes()], end).await?;
        let heard = answers.iter().all(Result::is_ok);
        self.pushes.set_heard(channel, heard);
        // A refusal is about this channel: others may be permitted.
        if heard {
            link.set_hears(true);
        }
        Ok(listener)
    }

    /// Registers a listener for all messages on another channel. In a cluster the caller asks for them with
    /// [`hear_on`](Connection::hear_on), at each poll.
    pub(crate) fn register_on(self: &Arc<Self>, channel: &str) -> ChannelListener {
        let listener = Some(self.pushes.register_on(channel));
        ChannelListener { listener, connection: Arc::clone(self), channel: channel.to_owned() }
    }

    /// Whether anybody of this process listens to another channel.
    pub(crate) fn has_listener_on(&self, channel: &str) -> bool {
        self.pushes.has_listener_on(channel)
    }

    /// Whether pushes come through the connection.
    fn hears(&self) -> bool {
        self.link().and_then(|link| link.hears()).unwrap_or(false)
    }

    /// Whether messages on another channel come through the connection.
    pub(crate) fn hears_on(&self, channel: &str) -> bool {
        self.hears() && self.pushes.is_heard(channel)
    }

    /// Ends the subscription to another channel, unless somebody listens to it again.
    async fn leave(&self, channel: &str, end: Instant) {
        let one_at_a_time = timeout_at(end, self.subscribing.lock()).await;
        // Without the lock the server goes on with it, and nobody listens.
        if self.pushes.forget(channel) && one_at_a_time.is_ok() {
            let _ = self.subscribe(&[b"UNSUBSCRIBE", channel.as_bytes()], end).await;
        }
    }

    /// Sends a command about a subscription, if pushes come through the connection.
    async fn subscribe(&self, command: &[&[u8]], end: Instant) -> Result<Exchange, Error> {
        let ask = |link: &Link| match link.hears() {
            // In RESP2 a subscriber may send nothing else.
            Some(false) => Commands::of(&[b"PING"]),
            _ => Commands::of(command),
        };
        self.exchange(end, Repeat::Freely, ask).await
    }

    /// The channel for messages to listeners. None while they would get nothing: nobody listens,
    /// there is no connection, or the server, a proxy or the external connection pushes nothing.
    pub(crate) fn channel(&self) -> Option<&str> {
        self.hears().then(|| self.pushes.channel())
    }

    /// The channel, if anybody listens for messages to this key.
    pub(crate) fn channel_about(&self, key: &Key<'_>) -> Option<&str> {
        self.channel().filter(|_| self.pushes.has_listener(&key.concat()))
    }

    /// As [`channel`](Connection::channel), in a cluster and for the slot that the tag leads to. The
    /// caller asks for it with [`hear`](Connection::hear).
    pub(crate) fn channel_of_slot(&self, tag: [u8; 4]) -> Option<String> {
        let is_deaf = self.link().and_then(|link| link.hears()) == Some(false);
        (self.pushes.are_wanted() && !is_deaf).then(|| self.pushes.channel_of_slot(tag))
    }

    /// Has the node that serves the slot of this channel push to it, each time that a waiter asks for
    /// its turn: the channel ends with the link, and with the slot at that node. Returns whether it does.
    pub(crate) async fn hear(&self, channel: &str, end: Instant) -> bool {
        let is_common = channel == self.pushes.channel();
        let command: &[u8] = if is_common { b"SUBSCRIBE" } else { b"SSUBSCRIBE" };
        let Ok(Exchange { link, answers, .. }) = self.subscribe(&[command, channel.as_bytes()], end).await else { return false };
        match only(answers) {
            Ok(Ok(_)) => return link.hears() != Some(false),
            Ok(Err(error)) if is_no_command(&error) => self.pushes.has_no_slots(),
            // The common one may be permitted.
            Ok(Err(error)) if !is_common && is_not_permitted(&error) => self.pushes.has_no_slots(),
            Ok(Err(error)) if !translate(&error).is_transient() => link.set_hears(false),
            _ => {}
        }
        false
    }

    /// Has the node that serves the slot of another channel push to it, as [`hear`](Connection::hear) does.
    /// Then no message is missed after this has returned. It takes half of the time at most.
    pub(crate) async fn hear_on(&self, channel: &str, end: Instant) -> bool {
        let Some(ears) = self.ears.as_ref().filter(|_| self.pushes.have_slots()) else { return false };
        let now = Instant::now();
        let half = now + end.saturating_duration_since(now) / 2;
        let subscribed = ears.subscribe(&[b"SSUBSCRIBE", channel.as_bytes()], half).await;
        let Ok(Exchange { link, answers, .. }) = subscribed else { return false };
        match only(answers) {
            Ok(Ok(_)) => link.hears() != Some(false),
            Ok(Err(error)) if is_no_command(&error) => {
                self.pushes.has_no_slots();
                false
            }
            _ => false,
        }
    }

    /// Ends the connection that has other channels. Those who still listen poll, and ask for theirs anew.
    pub(crate) fn hear_nothing_else(&self) {
        let ears = self.ears.as_ref();
        if let Some((ears, link)) = ears.and_then(|ears| Some((ears, ears.link()?))) {
            ears.drop_link(&link);
        }
    }
}

/// Receives what is published on a channel, until it is dropped.
pub(crate) struct ChannelListener {
    /// Some until it is dropped.
    listener: Option<Listener>,
    connection: Arc<Connection>,
    channel: String,
}

impl Stream for ChannelListener {
    type Item = Pushed;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Pushed>> {
        self.listener.as_mut().map_or(Poll::Ready(None), |listener| listener.poll_next_unpin(cx))
    }
}

impl Drop for ChannelListener {
    fn drop(&mut self) {
        self.listener = None;
        if let Some((nodes, _)) = &self.connection.cluster {
            if self.connection.pushes.forget(&self.channel)
                && let Some(nodes) = nodes.upgrade()
            {
                nodes.leave_channel();
            }
            return;
        }
        // Without a runtime the subscription ends with the connection.
        if let Ok(runtime) = Handle::try_current() {
            let (connection, channel) = (Arc::clone(&self.connection), std::mem::take(&mut self.channel));
            runtime.spawn(async move { connection.leave(&channel, Instant::now() + FIRST_CONTACT).await });
        }
    }
}
