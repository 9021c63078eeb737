//! The native layout: a mutex is a string key that holds its owner and nothing else.
//!
//! Clients that take locks with `SET NX PX`, and release them by compare-and-delete, share such a
//! lock with tenure. Other kinds are a sorted set at the same key, so that all kinds meet there.
//! `keys.rs` has the keys beside it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select, select_all};
use redis::Value;
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Holder, Lease, Name, Share};
use tokio::time::Instant;

use crate::native::advice::Listener;
use crate::native::confirmations::Confirmations;
use crate::native::counter::Counter;
use crate::native::durability::Durability;
use crate::native::keys::Layout;
use crate::native::notes::Notes;
use crate::native::reply::{notice, refusal, released, releases};
use crate::scripts::{self, Script};
use crate::transport::commands::{Digits, Key, millis};
use crate::transport::connection::{Connection, Exchange, Repeat};
use crate::transport::contact::now_ms;
use crate::transport::dial::Peer;
use crate::transport::failure::translate;
use crate::transport::link::Link;
use crate::transport::push::Pushed;
use crate::transport::reply::only;
use crate::transport::sentinel::Sentinels;

/// A server, and how to use it.
pub(crate) struct Settings {
    pub(crate) peer: Peer,
    /// If there are any, they say where the server is.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
    /// Name of the server in messages, without secrets.
    pub(crate) shown: String,
    /// In front of every key.
    pub(crate) prefix: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) poll_interval: Duration,
    pub(crate) durability: Durability,
    /// Hears of settings of the server that endanger locks.
    pub(crate) advice: Option<Listener>,
}

impl Settings {
    pub(crate) async fn open(&self) -> Result<Connection, Error> {
        let opened = match &self.sentinels {
            None => Connection::open(self.peer.clone(), &self.prefix).await,
            Some(sentinels) => Connection::open_led(Arc::clone(sentinels), &self.prefix).await,
        };
        opened.map_err(|error| error.context(&self.shown))
    }
}

/// Locks on one Redis or Valkey server. Clones share one connection.
///
/// # Round trips
/// Acquire 1, and 1 more if a mutex is busy; renew 1 for each 1,000 leases, three of them at a
/// time; release 1, hand-over included; inspect 1, and 1 more if there are shares. Without a name,
/// inspect takes as many as a `SCAN` of the whole database, and 2 or 3 for each page of it.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) connection: Arc<Connection>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) counter: Arc<Counter>,
    pub(super) notes: Arc<Notes>,
    /// If each grant and renewal has to be confirmed.
    pub(super) confirmations: Option<Arc<Confirmations>>,
    shown: Arc<str>,
    timeout: Option<Duration>,
    poll_interval: Duration,
    /// The process that opened it.
    process: u32,
}

/// Poll interval of a waiter that is notified, in case a message was lost.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

impl RedisStore {
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, Error> {
        let Settings { shown, prefix, timeout, poll_interval, durability, .. } = settings;
        let store = Self::over(settings.open().await?.into(), Layout::new(prefix), shown, *timeout, *poll_interval);
        if let Some(listener) = &settings.advice {
            listener.ask(&store.connection, shown, false);
        }
        let confirmations = match durability {
            Durability::None => None,
            level => Some(Arc::new(Confirmations::new(*level, settings.open().await?))),
        };
        Ok(Self { confirmations, ..store })
    }

    pub(crate) fn over(
        connection: Arc<Connection>,
        layout: Layout,
        shown: &str,
        timeout: Option<Duration>,
        poll_interval: Duration,
    ) -> Self {
        let (layout, counter, notes) = (Arc::new(layout), Arc::default(), Arc::default());
        let (confirmations, shown, process) = (None, shown.into(), std::process::id());
        Self { connection, layout, counter, notes, confirmations, shown, timeout, poll_interval, process }
    }

    /// This store through another connection.
    pub(crate) fn through(&self, connection: Arc<Connection>) -> Self {
        Self { connection, ..self.clone() }
    }

    /// This store, of locks that have further keys behind these prefixes.
    pub(crate) fn with_further_keys(self, further: Vec<String>) -> Self {
        let layout = Layout { further, ..Layout::new(&self.layout.prefix) };
        Self { layout: Arc::new(layout), ..self }
    }

    /// Deadline of a call that starts now about a lease of `ttl`. `Duration::MAX` for one about no
    /// lease.
    pub(crate) fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl)
    }

    /// Poll interval of a waiter that hears pushes, or does not, and has this position in the
    /// queue.
    pub(crate) fn poll_interval(&self, hears: bool, position: Option<u32>, holder: Option<&Holder>) -> Duration {
        // A holder of another library notifies nobody of its release.
        let notified = hears && position.is_some() && holder.is_none_or(|holder| holder.owner.is_generated());
        if notified { HEARTBEAT.max(self.poll_interval) } else { self.poll_interval }
    }

    /// Runs a script. Returns its answer, and whether it may have run twice.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[Key<'_>],
        args: &[&[u8]],
        repeat: Repeat,
        end: Instant,
    ) -> Result<(Value, bool), Error> {
        let call = |_: &Link, form| scripts::call(script, form, keys, args);
        let Exchange { answers, repeated, .. } = self.connection.call(end, repeat, &call).await?;
        Ok((only(answers)?.map_err(|e| translate(&e))?, repeated))
    }

    /// The first arguments of each script about a name: its capacity, and the largest counter seen.
    pub(super) fn first_args(&self, share: Share) -> [Digits; 2] {
        [u64::from(share.capacity()), self.counter.largest()].map(Digits::of)
    }

    /// Runs a script about one name and its keys.
    pub(super) async fn run_about(
        &self,
        script: &Script,
        name: &Name,
        share: Share,
        args: &[&[u8]],
        repeat: Repeat,
        end: Instant,
    ) -> Result<(Value, bool), Error> {
        // The keys are made with the call: kept, they would be half of this future.
        let call = |_: &Link, form| {
            let keys = self.layout.of(name);
            let keys = [keys.name(), keys.queue(), keys.entries(), keys.grants(), keys.shares()];
            scripts::call(script, form, &keys, args)
        };
        let Exchange { answers, repeated, .. } = self.connection.call(end, repeat, &call).await?;
        Ok((only(answers)?.map_err(|e| refusal(&e, name, share))?, repeated))
    }
}

#[async_trait]
impl Store for RedisStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(self.confirmations.is_none())
            .with_server_clock(true)
            .with_late_commands(self.connection.has_late_commands())
            .with_min_ttl(Duration::from_millis(50))
            .with_operation_timeout(self.timeout)
            .with_opened_by(self.process)
            .with_timed_calls(true)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let answer = match &self.confirmations {
            None => self.acquire_one(request).await,
            Some(confirmations) => Box::pin(self.acquire_durably(request, confirmations)).await,
        };
        match answer {
            Err(error) => Err(Box::pin(self.named(error, &request.name, None)).await),
            answer => answer,
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let answer = match &self.confirmations {
            None => self.acquire_every(requests).await,
            Some(confirmations) => Box::pin(self.acquire_every_durably(requests, confirmations)).await,
        };
        match answer {
            Err(error) => Err(Box::pin(self.named_of(error, requests.iter().map(|request| &request.name), None)).await),
            answer => answer,
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        match &self.confirmations {
            None => self.renew_counted(leases).await,
            Some(confirmations) => self.renew_durably(leases, confirmations).await,
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.layout.check(&lease.name)?;
        let linger = Digits::of(millis(linger));
        let [capacity, seen] = self.first_args(lease.share);
        let args = [capacity.as_bytes(), seen.as_bytes(), lease.owner.as_bytes(), linger.as_bytes()];
        let end = self.end(lease.ttl);
        let answer = self.run_about(&scripts::RELEASE, &lease.name, lease.share, &args, releases(lease), end).await?;
        self.counter.confirmed(&lease.owner);
        released(answer)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let listener = self.connection.listen(request.owner.clone(), self.end(request.ttl)).await?;
        let (owner, ttl, counter) = (request.owner.clone(), request.ttl, Arc::clone(&self.counter));
        // What nobody has confirmed is a reason to poll.
        let counts = self.confirmations.is_none();
        let notice_of = move |pushed| match pushed {
            Pushed::Missed => Notice::Changed,
            Pushed::Message(payload) => {
                let (notice, now) = (notice(&payload, &owner), now_ms());
                match &notice {
                    Notice::Granted { fence, handoff_ttl, .. }
                        if counts
                            && counter.explains(fence.counter(), now)
                            && counter.remember(&owner, (*handoff_ttl).min(ttl), now) =>
                    {
                        counter.pushed(fence.counter(), now);
                        notice
                    }
                    // It was forged, or a clock was set: the waiter polls.
                    Notice::Granted { .. } | Notice::Changed => Notice::Changed,
                }
            }
        };
        let notices = listener.map(notice_of);
        if request.enqueue != Enqueue::No {
            return Ok(notices.boxed());
        }
        // One without a queue entry gets no messages. It is for the changes of the name.
        let key = self.layout.of(&request.name).name().concat();
        let changes = self.connection.listen_to_keys(vec![key], self.end(request.ttl)).await?;
        Ok(select(notices, select_all(changes).map(|_| Notice::Changed)).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        match name {
            Some(name) => {
                self.layout.check(name)?;
                match self.inspect_names(std::slice::from_ref(name)).await {
                    Err(error) => Err(self.named(error, name, None).await),
                    found => found,
                }
            }
            None => self.inspect_all().await,
        }
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("at", &self.shown).field("connection", &self.connection).finish_non_exhaustive()
    }
}
