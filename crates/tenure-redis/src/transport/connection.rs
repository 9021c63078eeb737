//! A connection that is replaced when replies stop coming.
//!
//! The client library reports a timeout and keeps a dead connection. If the server has stopped or
//! the link drops everything, each command would fail until the kernel gives up after a quarter of
//! an hour. Here a command without a reply after half its time is sent again on a second
//! connection, which replaces the first. Before that, the second connection has the server end the
//! first. So nothing that was sent on the first one runs later.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use redis::{RedisError, RedisResult};
use tenure::{Error, ErrorKind, Owner};
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::transport::commands::{Commands, Key};
use crate::transport::contact::Moment;
use crate::transport::dial::Peer;
use crate::transport::failure::{
    is_crowded, is_logged_out, is_no_command, is_no_master, is_not_permitted, is_out_of_memory, translate,
};
use crate::transport::form::Form;
use crate::transport::handshake::{Established, establish, unanswered};
use crate::transport::link::{DEAD_AFTER, Identity, Limits, Link};
use crate::transport::nodes::{Address, Nodes, is_redirect};
use crate::transport::push::{Listener, Pushed, Pushes, TRACKING};
use crate::transport::reply::{Answers, only};
use crate::transport::sentinel::{ONE_TRY, PACE, Sentinels};

/// Timeout of the first contact.
pub(crate) const FIRST_CONTACT: Duration = Duration::from_secs(5);

pub(crate) struct Connection {
    source: Source,
    state: Mutex<State>,
    /// The connection that is being made, if any.
    replacing: tokio::sync::Mutex<Option<Attempt>>,
    pushes: Arc<Pushes>,
    subscribing: tokio::sync::Mutex<()>,
    /// The cluster that this is a node of, and where in it.
    cluster: Option<(Weak<Nodes>, Address)>,
    /// A connection was abandoned whose commands may still run.
    loose: AtomicBool,
    /// The server was asked about its settings.
    advised: AtomicBool,
    /// To a node of a cluster: a second connection, for other channels alone. To leave one of them is to end
    /// it: the answer to `SUNSUBSCRIBE` is a push, which comes unasked as well when a slot moves, or it is an
    /// error. On the first connection nobody could tell whose answer comes next.
    ears: Option<Box<Self>>,
}

/// Whether a pipeline that had no answer may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Running twice, or late, is as good as running once.
    Freely,
    /// Running late is not as good: send it again only if the first can no longer run. Else the
    /// caller has to know.
    Settled,
    /// Running twice is not as good.
    Never,
}

/// An answered pipeline.
pub(crate) struct Exchange {
    /// The link that the answers came by.
    pub(crate) link: Arc<Link>,
    pub(crate) answers: Answers,
    /// The pipeline was sent once before, without an answer: its commands may have run twice.
    pub(crate) repeated: bool,
}

enum Source {
    /// This crate connects.
    Peer(Box<Peer>),
    /// This crate connects to the master that the sentinels name.
    Sentinels(Arc<Sentinels>),
    /// The application connects, and replaces its connection.
    #[cfg(feature = "redis-1")]
    External,
}

impl Source {
    /// Whether this crate connects.
    const fn is_ours(&self) -> bool {
        matches!(self, Self::Peer(_) | Self::Sentinels(_))
    }
}

/// A connection that is being made. It goes on when the call that began it is dropped: else a server
/// that hangs gets a connection for each such call.
struct Attempt {
    task: JoinHandle<Result<Connected, Error>>,
    /// Nobody may drive another runtime than the caller's.
    runtime: Id,
    begun: Instant,
}

struct Connected {
    link: Link,
    /// The predecessors at this server.
    here: Vec<Identity>,
    /// None of them can send anything more.
    ended: bool,
}

impl Attempt {
    fn new(connect: impl Future<Output = Result<Connected, Error>> + Send + 'static) -> Self {
        Self { task: tokio::spawn(connect), runtime: Handle::current().id(), begun: Instant::now() }
    }

    /// Whether a caller with so much time waits for it. An older attempt may be slow to notice that a
    /// partition is over, and an older connection may have ended unseen.
    fn is_worth(&self, limit: Duration) -> bool {
        self.runtime == Handle::current().id() && self.begun.elapsed() < limit
    }

    /// The connection, if it comes before `end`. Else the attempt stays, and goes on for the next caller.
    async fn ended(attempt: &mut Option<Self>, end: Instant) -> Result<Connected, Error> {
        let task = &mut attempt.as_mut().ok_or_else(no_connection)?.task;
        let ended = timeout_at(end, task).await.map_err(|_| no_connection())?;
        *attempt = None;
        ended.unwrap_or_else(|_| Err(no_connection()))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The way to a new connection.
struct Dial {
    pushes: Arc<Pushes>,
    predecessors: Vec<Identity>,
}

impl Dial {
    /// Connects once, and ends those of the predecessors that are at this server.
    async fn connect(&self, peer: &Peer, asks_role: bool, end: Instant) -> Result<Connected, Error> {
        let limit = end.saturating_duration_since(Instant::now());
        let establishing = establish(peer, limit, &self.predecessors, &self.pushes, asks_role);
        let Ok(established) = timeout_at(end, establishing).await else {
            return Err(unanswered(peer));
        };
        let Established { link, here, predecessors_ended, is_replica } = established?;
        if is_replica {
            let what = "it is a replica, and the sentinels have not named another master yet";
            return Err(Error::unavailable(what).with_hint("wait until they have"));
        }
        Ok(Connected { link, here, ended: predecessors_ended })
    }

    /// Connects to the master, which is looked for until `end`.
    async fn connect_led(&self, sentinels: &Arc<Sentinels>, end: Instant) -> Result<Connected, Error> {
        let mut told = None;
        loop {
            let until = end.min(Instant::now() + ONE_TRY);
            let connected = async {
                let master = sentinels.master(until).await?;
                let connected = self.connect(&master.peer, true, until).await;
                connected.map(|connected| (master.clone(), connected)).map_err(|error| sentinels.about(&master, error))
            };
            match connected.await {
                Ok((master, mut connected)) => {
                    let (sentinels, pushes) = (Arc::clone(sentinels), Arc::clone(&self.pushes));
                    connected.link.followed(|contact| sentinels.follow(master, contact, pushes));
                    return Ok(connected);
                }
                Err(error) if error.is_transient() && Instant::now() + PACE < end => {
                    debug!(%error, "no master");
                    told = Some(error);
                    tokio::time::sleep(PACE).await;
                }
                // The last try may have had no time, and an earlier one an answer.
                Err(error) => return Err(told.filter(|_| error.kind() == ErrorKind::Unreachable).unwrap_or(error)),
            }
        }
    }
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// Abandoned connections that the server may not have ended yet.
    predecessors: Vec<Identity>,
}

impl Connection {
    /// Connects for the first time. Messages come on a channel whose name begins with `prefix`.
    pub(crate) async fn open(peer: Peer, prefix: &str) -> Result<Self, Error> {
        let connection = Self::later(peer, prefix)?;
        connection.replace(Instant::now() + FIRST_CONTACT).await?;
        Ok(connection)
    }

    /// Connects for the first time to the master that the sentinels name.
    pub(crate) async fn open_led(sentinels: Arc<Sentinels>, prefix: &str) -> Result<Self, Error> {
        let connection = Self::new(Source::Sentinels(sentinels), None, Pushes::new(prefix)?);
        connection.replace(Instant::now() + FIRST_CONTACT).await?;
        Ok(connection)
    }

    /// Connects with the first call.
    pub(crate) fn later(peer: Peer, prefix: &str) -> Result<Self, Error> {
        Ok(Self::new(Source::Peer(Box::new(peer)), None, Pushes::new(prefix)?))
    }

    /// As [`later`](Self::later). A connection ends when its server drops all data, if the server tells so.
    pub(crate) fn until_data_is_lost(peer: Peer, prefix: &str) -> Result<Self, Error> {
        Ok(Self::new(Source::Peer(Box::new(peer)), None, Pushes::until_data_is_lost(prefix)?))
    }

    /// Connects to a node of a cluster with the first call.
    pub(crate) fn of_node(peer: Peer, pushes: &Arc<Pushes>, nodes: Weak<Nodes>, address: Address) -> Self {
        let new = |peer| Self::new(Source::Peer(Box::new(peer)), None, Arc::clone(pushes));
        Self { cluster: Some((nodes, address)), ears: Some(Box::new(new(peer.clone()))), ..new(peer) }
    }

    /// Uses an external connection. What was sent on it when it broke may run later.
    #[cfg(feature = "redis-1")]
    pub(crate) fn external(link: Link) -> Self {
        Self::new(Source::External, Some(link), Pushes::deaf())
    }

    fn new(source: Source, link: Option<Link>, pushes: Arc<Pushes>) -> Self {
        let loose = !source.is_ours();
        let state = State { link: link.map(Arc::new), predecessors: Vec::new() };
        Self {
            source,
            state: Mutex::new(state),
            replacing: tokio::sync::Mutex::default(),
            pushes,
            subscribing: tokio::sync::Mutex::default(),
            cluster: None,
            loose: AtomicBool::new(loose),
            advised: AtomicBool::new(false),
            ears: None,
        }
    }

    /// Whether commands that nobody waits for may still run after later ones.
    pub(crate) fn has_late_commands(&self) -> bool {
        self.loose.load(Ordering::Relaxed)
    }

    /// Whether the counter was never raised through the link in use.
    pub(crate) fn is_new(&self) -> bool {
        self.link().is_none_or(|link| link.is_new())
    }

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

    /// Whether this link is still in use.
    pub(crate) fn uses(&self, link: &Arc<Link>) -> bool {
        self.link().is_some_and(|current| Arc::ptr_eq(&current, link))
    }

    /// The channel, if anybody listens for messages to this key.
    pub(crate) fn channel_about(&self, key: &Key<'_>) -> Option<&str> {
        self.channel().filter(|_| self.pushes.has_listener(&key.concat()))
    }

    /// Whether the server was not asked about its settings yet. From now on it was.
    pub(crate) fn is_unadvised(&self) -> bool {
        !self.advised.swap(true, Ordering::Relaxed)
    }

    /// The node of a cluster, for messages.
    pub(crate) fn shown(&self) -> String {
        self.cluster.as_ref().map(|(_, address)| address.to_string()).unwrap_or_default()
    }

    /// The error with the node that it came from.
    pub(crate) fn told(&self, error: Error) -> Error {
        match &self.cluster {
            Some((_, address)) => error.context(address),
            None => error,
        }
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

    /// Index of the entry of [`DELETES`](crate::transport::link::DELETES) to try.
    pub(crate) fn delete(&self) -> usize {
        self.link().map_or(0, |link| link.delete())
    }

    /// Sends a pipeline of scripts, and waits for its answers until `end`.
    ///
    /// `pipeline` gets the link it is for and the form in which scripts are called.
    pub(crate) async fn call<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        pipeline: impl Fn(&Link, Form) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let (mut form, mut repeated) = (self.link().map_or(Form::Digest, |link| link.form()), false);
        loop {
            let exchange = self.exchange(end, repeat, |link| pipeline(link, form)).await;
            let exchange = exchange.map_err(|error| if repeated { error.maybe_applied() } else { error })?;
            let Exchange { link, mut answers, repeated: again } = exchange;
            repeated |= again;
            if form == Form::Loaded {
                // The call says whether it could be loaded.
                answers.drain(..answers.len().min(1));
            }
            let mut refusals = answers.iter().filter_map(|answer| answer.as_ref().err());
            let Some((error, other)) = refusals.find_map(|error| Some((error, form.instead(error)?))) else {
                return Ok(Exchange { link, answers, repeated });
            };
            if other == Form::Digest && !is_out_of_memory(error) {
                link.lost_functions();
            }
            form = other;
        }
    }

    /// As [`call`](Connection::call), for a pipeline that handles a forgotten script itself. In a
    /// cluster, commands that another node has to run are sent there.
    pub(crate) async fn exchange<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        pipeline: impl Fn(&Link) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let exchange = self.exchange_here(end, repeat, &pipeline).await?;
        let leads_on = || exchange.answers.iter().any(|answer| answer.as_ref().is_err_and(is_redirect));
        if let Some((nodes, here)) = &self.cluster
            && leads_on()
            && let Some(nodes) = nodes.upgrade()
        {
            let commands = pipeline(&exchange.link).into();
            return Box::pin(nodes.follow(here, exchange, &commands, repeat, end)).await;
        }
        Ok(exchange)
    }

    /// As [`exchange`](Connection::exchange), with this node alone.
    pub(crate) async fn exchange_here<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        pipeline: impl Fn(&Link) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let now = Moment::now();
        let limit = end.saturating_duration_since(now.instant);
        let current = self.link_to_ask();
        if let Some(link) = &current {
            // Half the time, and longer if the link was heard of lately: a caller in a hurry must
            // not cost the others a connection that is only slow.
            let patience = if repeat == Repeat::Never { Duration::MAX } else { limit / 2 };
            let limits = Limits { asked: now, patience, end };
            match self.send(link, &pipeline(link).into(), &limits).await {
                Ok(Some(answers)) => return Ok(Exchange { link: Arc::clone(link), answers, repeated: false }),
                Err(error) if is_crowded(&error) => return Err(translate(&error)),
                Err(error) if repeat == Repeat::Never => return Err(translate(&error).maybe_applied()),
                Err(error) => debug!(%error, "connection lost"),
                Ok(None) if repeat == Repeat::Never || Instant::now() >= end => return Err(no_reply(limit).maybe_applied()),
                Ok(None) => debug!("no reply after half the operation timeout"),
            }
        }
        // Rare and large: boxed, so that the usual future stays small.
        Box::pin(self.exchange_anew(end, repeat, current.is_some(), limit, pipeline)).await
    }

    /// Exchanges a pipeline on a new link. `repeated`: the pipeline was sent before, without an answer.
    async fn exchange_anew<C: Into<Commands>>(
        &self,
        end: Instant,
        repeat: Repeat,
        repeated: bool,
        limit: Duration,
        pipeline: impl Fn(&Link) -> C + Sync,
    ) -> Result<Exchange, Error> {
        let unanswered = |error: Error| if repeated { error.maybe_applied() } else { error };
        let link = self.replace(end).await.map_err(unanswered)?;
        if repeated && repeat == Repeat::Settled && self.has_late_commands() {
            return Err(Error::unreachable("no reply, and what was sent may still run").maybe_applied());
        }
        let limits = Limits { asked: Moment::now(), patience: Duration::MAX, end };
        match self.send(&link, &pipeline(&link).into(), &limits).await {
            Ok(Some(answers)) => Ok(Exchange { link, answers, repeated }),
            Err(error) if is_crowded(&error) => Err(unanswered(translate(&error))),
            Err(error) => Err(translate(&error).maybe_applied()),
            Ok(None) => Err(no_reply(limit).maybe_applied()),
        }
    }

    /// Sends commands over `link`, as [`Link::send`] does. A link that breaks or is silent for too
    /// long is dropped, even if the caller goes away before it finds out.
    async fn send(&self, link: &Arc<Link>, commands: &Commands, limits: &Limits) -> RedisResult<Option<Answers>> {
        let watch = Watch { connection: self, link, limits };
        let outcome = link.send(commands, limits).await;
        match &outcome {
            // The next one asks anew where the name leads, and logs in.
            Ok(Some(answers)) if answers.iter().any(|answer| answer.as_ref().is_err_and(is_to_be_left)) => {
                std::mem::forget(watch);
                self.drop_link(link);
            }
            // An answer that comes late: the silence was this process's.
            Ok(Some(_)) => std::mem::forget(watch),
            Err(error) if !is_crowded(error) => self.drop_link(link),
            _ => {}
        }
        outcome
    }

    /// The link in use: one that another task has made, or a new one made before `end`.
    async fn replace(&self, end: Instant) -> Result<Arc<Link>, Error> {
        #[cfg(feature = "redis-1")]
        if !self.source.is_ours() {
            return self.link().ok_or_else(|| Error::unreachable("the external connection is gone"));
        }
        let Ok(mut attempt) = timeout_at(end, self.replacing.lock()).await else { return Err(no_connection()) };
        if let Some(link) = self.link() {
            return Ok(link);
        }
        let predecessors = self.state().predecessors.clone();
        let limit = end.saturating_duration_since(Instant::now());
        let is_worth = attempt.as_ref().is_some_and(|earlier| earlier.is_worth(limit));
        let earlier = if is_worth { Some(Attempt::ended(&mut attempt, end).await) } else { None };
        let connected = match earlier {
            Some(Ok(connected)) if !connected.link.has_ended() => Ok(connected),
            // It goes on for the next caller.
            Some(Err(error)) if attempt.is_some() => return Err(error),
            earlier => {
                // It says before the caller's end why there is none.
                *attempt = Some(self.begin(&predecessors, end - limit / 20));
                let connected = Attempt::ended(&mut attempt, end).await;
                // The earlier one may have had an answer, and this one no time.
                let told = earlier.and_then(Result::err).filter(|error| error.kind() != ErrorKind::Unreachable);
                connected.map_err(|error| told.filter(|_| error.kind() == ErrorKind::Unreachable).unwrap_or(error))
            }
        };
        let Connected { link, here, ended } = connected?;
        if !ended || here.len() < predecessors.len() {
            self.loose.store(true, Ordering::Relaxed);
        }
        let link = Arc::new(link);
        let mut state = self.state();
        state.predecessors.retain(|identity| !here.contains(identity));
        state.link = Some(Arc::clone(&link));
        drop(state);
        self.pushes.missed();
        Ok(link)
    }

    /// Begins to make a connection, which takes until `end` at most.
    fn begin(&self, predecessors: &[Identity], end: Instant) -> Attempt {
        let dial = Dial { pushes: Arc::clone(&self.pushes), predecessors: predecessors.to_vec() };
        match &self.source {
            Source::Peer(peer) => {
                let peer = peer.clone();
                Attempt::new(async move { dial.connect(&peer, false, end).await })
            }
            Source::Sentinels(sentinels) => {
                let sentinels = Arc::clone(sentinels);
                Attempt::new(async move { dial.connect_led(&sentinels, end).await })
            }
            #[cfg(feature = "redis-1")]
            Source::External => Attempt::new(async { Err(no_connection()) }),
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        self.state().link.clone()
    }

    /// The link in use. None if it ended while idle: nothing was in flight, so nothing needs a
    /// retry.
    fn link_to_ask(&self) -> Option<Arc<Link>> {
        let link = self.link()?;
        if link.has_ended() {
            self.drop_link(&link);
            return None;
        }
        Some(link)
    }

    /// Drops a link that has failed. An external connection stays: the application replaces it.
    pub(crate) fn drop_link(&self, failed: &Arc<Link>) {
        let mut state = self.state();
        let current = state.link.as_ref().is_some_and(|link| Arc::ptr_eq(link, failed));
        if current && self.source.is_ours() {
            state.link = None;
            match &failed.identity {
                Some(identity) => state.predecessors.push(identity.clone()),
                None => self.loose.store(true, Ordering::Relaxed),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Drops a link that turns out to be dead while a caller waits for an answer.
struct Watch<'a> {
    connection: &'a Connection,
    link: &'a Arc<Link>,
    limits: &'a Limits,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let Limits { asked, end, .. } = self.limits;
        let bearable = (end.saturating_duration_since(asked.instant) / 2).max(DEAD_AFTER);
        if self.link.silence(asked.ms) >= bearable {
            self.connection.drop_link(self.link);
        }
    }
}

/// Whether another connection may serve where this one does not: the server is no master, or the login is over.
fn is_to_be_left(error: &RedisError) -> bool {
    is_no_master(error) || is_logged_out(error)
}

fn no_reply(limit: Duration) -> Error {
    Error::unreachable(format!("no reply within {limit:?}"))
}

fn no_connection() -> Error {
    Error::unreachable("no connection in time").with_hint("make sure that the server runs and can be reached from here")
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Connection");
        shown.field("connected", &self.link().is_some()).field("channel", &self.channel());
        shown.finish_non_exhaustive()
    }
}
