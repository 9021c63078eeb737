//! A server as a node of a quorum.
//!
//! The keys of a name are those of the native layout, but each name has a counter of its own. And a
//! node remembers when its leases end and how far it has counted. By that a server that has
//! lost its data is known, and does not vote until no lease from before can stand. See node.lua.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::compose::quorum::{Clock, Confirmed, Memory, Node, Vote};
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Lease, Name, Owner};
use tokio::time::Instant;

use crate::native::keys::Layout;
use crate::native::renew::At;
use crate::native::reply::{busy, check_repeated, counter, fence, refusal, released, releases};
use crate::native::store::{RedisStore, Settings};
use crate::scripts::{self, Script};
use crate::transport::commands::{Commands, Digits, millis, whole};
use crate::transport::connection::{Connection, Exchange, Repeat};
use crate::transport::failure::{is_about_the_vote, is_lost, translate, unexpected};
use crate::transport::link::Link;
use crate::transport::reply::{only, read};
use crate::transport::run::Run;

/// Time until the next try at a node that does not know yet how long it has to wait.
const SOON: Duration = Duration::from_secs(1);

/// For nodes that are as near as the majority.
pub(crate) const A_MOMENT: Duration = Duration::from_millis(50);

/// One Redis or Valkey server as a node of a [`Quorum`](tenure::compose::quorum::Quorum). Clones
/// share one connection.
///
/// # Round trips
/// Acquire 1; renew 1 for each 1,000 leases; release 1; each 1 more where a server is first used.
pub struct RedisNode {
    store: RedisStore,
    runs: Runs,
}

/// The run id that each node has shown last, and whether it was taken for one of its own. The nodes of a quorum share it:
/// two of them may not be one server.
pub(crate) type Runs = Arc<Mutex<HashMap<String, (String, bool)>>>;

impl RedisNode {
    /// A node that connects with its first call.
    pub(crate) fn connect_later(settings: &Settings, runs: &Runs) -> Result<Arc<Self>, Error> {
        let Settings { peer, shown, prefix, timeout, poll_interval, .. } = settings;
        let connection = Connection::until_data_is_lost(peer.clone(), prefix)?;
        let store = RedisStore::over(connection.into(), Layout::new(prefix), shown, *timeout, *poll_interval);
        Ok(Arc::new(Self { store, runs: Arc::clone(runs) }))
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.store.connection
    }

    /// Runs a script on the memory of the node.
    async fn on_memory(&self, script: &Script, args: &[&[u8]], end: Instant) -> Result<Value, Error> {
        let keys = [&self.store.layout.memory, &self.store.layout.ends].map(|key| whole(key.as_bytes()));
        Ok(self.store.run(script, &keys, args, Repeat::Freely, end).await?.0)
    }

    /// The link to the server, if it is the run of it that the client knows, and whether it votes.
    async fn known(&self, end: Instant) -> Result<Option<(Arc<Link>, bool)>, Error> {
        let ask = |_: &Link| Commands::of(&[b"HMGET", self.store.layout.memory.as_bytes(), b"run", b"floor"]);
        let Exchange { link, answers, .. } = self.store.connection.exchange(end, Repeat::Freely, ask).await?;
        let known: [Option<String>; 2] = read(only(answers)?)?;
        let [run, floor] = known;
        let is_known = run.is_some() && run.as_ref() == link.run_id.get();
        Ok(is_known.then_some((link, floor.is_some())))
    }

    /// Makes a call, and tells whether the node votes. It is made once more at another run of the server than the client knows, or may
    /// know: what is noted there does not count.
    async fn with_vote<F: Future>(&self, call: impl Fn() -> F, end: Instant) -> Result<(F::Output, bool), Error> {
        loop {
            // Sent last, and so executed last.
            let (answer, known) = join(call(), self.known(end)).await;
            match known? {
                Some((link, votes)) if self.store.connection.uses(&link) => return Ok((answer, votes)),
                _ => self.enter(end).await?,
            };
        }
    }

    /// Asks which server this is, and what it remembers.
    pub(crate) async fn enter(&self, end: Instant) -> Result<Memory, Error> {
        loop {
            if let Some(memory) = self.enter_once(end).await? {
                return Ok(memory);
            }
        }
    }

    /// As [`enter`](Self::enter). None if the connection was replaced meanwhile: the run id may be that of another server.
    async fn enter_once(&self, end: Instant) -> Result<Option<Memory>, Error> {
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            Run::ask(&mut commands);
            commands
        };
        let Exchange { link, mut answers, .. } = self.store.connection.exchange(end, Repeat::Freely, ask).await?;
        let run = Run::read_last(&mut answers)?;
        self.is_one_of_its_own(&run.process)?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| Error::unavailable("the system gave no random bytes").with_source(e))?;
        let loss = format!("{:016x}", u64::from_ne_bytes(random));
        let call = |to: &Link, form| {
            if !std::ptr::eq(to, &raw const *link) {
                // It may be another server, which would take this run for an earlier one of its own.
                return Commands::of(&[b"PING"]);
            }
            let keys = [&self.store.layout.memory, &self.store.layout.ends].map(|key| whole(key.as_bytes()));
            scripts::call(&scripts::NODE_ENTER, form, &keys, &[&run.process, &loss, &run.past].map(String::as_bytes))
        };
        let entered = self.store.connection.call(end, Repeat::Freely, &call).await?;
        if !Arc::ptr_eq(&entered.link, &link) {
            return Ok(None);
        }
        let id = run.id();
        let memory = memory_of(&only(entered.answers)?.map_err(|e| translate(&e))?, run.process)?;
        if *link.run_id.get_or_init(|| id.clone()) != id {
            // It was a replica meanwhile. This connection still stands for the run before, so the next call makes another one.
            self.store.connection.drop_link(&link);
            return Ok(None);
        }
        Ok(Some(memory))
    }

    /// Refuses a server that is another node of the quorum as well: it would have two votes. Two that swap their addresses
    /// are both taken when both were seen anew.
    fn is_one_of_its_own(&self, run: &str) -> Result<(), Error> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let this = self.store.to_string();
        let is_other = |(node, shown): &(&String, &(String, bool))| **node != this && shown.0 == run && shown.1;
        let other = runs.iter().find(is_other).map(|(node, _)| node.clone());
        let before = runs.insert(this, (run.to_owned(), other.is_none()));
        let Some(seen) = other else { return Ok(()) };
        // A server that has come to another address may be seen here before its old address shows another.
        let kind = if before.is_some() { ErrorKind::Unavailable } else { ErrorKind::Invalid };
        let what = format!("{self} and {seen} are one server, and a quorum is of several");
        Err(Error::new(kind, what).with_hint("name each server once"))
    }

    /// Sends a request once. None if the node does not vote, or is another run of the server than the client knows.
    async fn ask(&self, request: &Request, end: Instant) -> Result<Option<(Value, bool)>, Error> {
        let Request { owner, ttl, share, from, .. } = request;
        let [ttl, capacity, weight] = [millis(*ttl), u64::from(share.capacity()), u64::from(share.weight())].map(Digits::of);
        let enqueue: &[u8] = if request.enqueue == Enqueue::Heartbeat { b"keep" } else { b"none" };
        let call = |link: &Link, form| {
            let run = link.run_id.get();
            let keys = self.store.layout.of(&request.name);
            let memory = whole(self.store.layout.memory.as_bytes());
            let channel = self.store.connection.channel_about(&keys.name());
            let ends = whole(self.store.layout.ends.as_bytes());
            let keys = [keys.name(), keys.queue(), keys.entries(), memory, keys.shares(), keys.hints(), ends];
            let args: [&[u8]; 13] = [
                capacity.as_bytes(),
                b"0",
                owner.as_bytes(),
                ttl.as_bytes(),
                weight.as_bytes(),
                if request.generated { b"1" } else { b"0" },
                from.as_ref().map_or(b"", |from| from.as_bytes()),
                enqueue,
                b"0",
                b"0",
                channel.unwrap_or("-").as_bytes(),
                b"0",
                run.map_or(b"", |run| run.as_bytes()),
            ];
            scripts::call(&scripts::NODE_ACQUIRE, form, &keys, &args)
        };
        let Exchange { answers, repeated, .. } = self.store.connection.call(end, Repeat::Settled, &call).await?;
        match only(answers)? {
            Ok(answer) => Ok(Some((answer, repeated))),
            Err(error) if is_lost(&error) => Ok(None),
            Err(error) => Err(refusal(&error, &request.name, *share)),
        }
    }
}

/// Reads the reply of node-enter.lua.
fn memory_of(reply: &Value, run: String) -> Result<Memory, Error> {
    let odd = || unexpected(format_args!("{reply:?} about what a node remembers"));
    let Value::Array(parts) = reply else { return Err(odd()) };
    let words: Option<Vec<&str>> =
        parts.iter().map(|part| if let Value::BulkString(word) = part { std::str::from_utf8(word).ok() } else { None }).collect();
    let number = |digits: &str| digits.parse::<u64>().map_err(|_| odd());
    let span = |digits: &str| number(digits).map(Duration::from_millis);
    let words = words.ok_or_else(odd)?;
    let [time, end, rest @ ..] = &words[..] else { return Err(odd()) };
    let (vote, copy_end) = match rest {
        ["whole", counter, losses] => {
            let new_beside = losses.split_whitespace().map(str::to_owned).collect();
            (Vote::Given { counter: number(counter)?, new_beside }, Duration::ZERO)
        }
        ["lost", loss, note, new, copy] => {
            let (loss, note, is_new) = ((*loss).to_owned(), (*note).to_owned(), *new == "1");
            (Vote::Lost { loss, note, is_new }, span(copy)?)
        }
        _ => return Err(odd()),
    };
    let clock = Some(Clock { run, time: span(time)? });
    Ok(Memory { vote, latest_end: span(end)?, copy_end, clock })
}

#[async_trait]
impl Node for RedisNode {
    fn counts_names(&self) -> bool {
        true
    }

    async fn confirm(&self, lease: &Lease, asked: Fence) -> Result<Confirmed, Error> {
        let number = Digits::of(asked.counter());
        let call = |link: &Link, form| {
            let keys = self.store.layout.of(&lease.name);
            let keys = [keys.name(), whole(self.store.layout.memory.as_bytes())];
            let run = link.run_id.get().map_or(&b""[..], |run| run.as_bytes());
            scripts::call(&scripts::NODE_CONFIRM, form, &keys, &[lease.owner.as_bytes(), number.as_bytes(), run])
        };
        let answers = self.store.connection.call(self.store.end(lease.ttl), Repeat::Freely, &call).await?.answers;
        let answer = only(answers)?.map_err(|error| translate(&error))?;
        let Value::Array(parts) = &answer else { return Err(unexpected(format_args!("{answer:?} to a fence"))) };
        match &parts[..] {
            [Value::Int(0)] => Ok(Confirmed::NotHeld),
            [Value::Int(1)] => Ok(Confirmed::Taken),
            [Value::Int(2), above] => Ok(Confirmed::Above(fence(counter(above)?)?)),
            _ => Err(unexpected(format_args!("{answer:?} to a fence"))),
        }
    }

    async fn withdraw(&self, lease: &Lease) -> Result<ReleaseReply, Error> {
        self.give_up(lease, Duration::ZERO, b"0").await
    }

    async fn inspect_and_vote(&self, name: Option<&Name>) -> Result<(Vec<Entry>, bool), Error> {
        let (entries, votes) = self.with_vote(|| self.store.inspect(name), self.store.end(Duration::MAX)).await?;
        Ok((entries?, votes))
    }

    async fn memory(&self) -> Result<Memory, Error> {
        self.enter(self.store.end(Duration::MAX)).await
    }

    async fn note(&self, loss: &str, before: &str, note: &str) -> Result<(), Error> {
        let args = [loss, before, note].map(str::as_bytes);
        self.on_memory(&scripts::NODE_NOTE, &args, self.store.end(Duration::MAX)).await.map(drop)
    }

    async fn admit(&self, loss: &str, counter: u64, new_beside: &[&str]) -> Result<(), Error> {
        let (counter, beside) = (Digits::of(counter), new_beside.join(" "));
        let args = [loss.as_bytes(), counter.as_bytes(), beside.as_bytes()];
        self.on_memory(&scripts::NODE_ADMIT, &args, self.store.end(Duration::MAX)).await.map(drop)
    }
}

#[async_trait]
impl Store for RedisNode {
    fn features(&self) -> Features {
        self.store.features().with_queue(false)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.store.layout.check_request(request)?;
        let end = self.store.end(request.ttl);
        let (answer, repeated) = loop {
            if let Some(answered) = self.ask(request, end).await? {
                break answered;
            }
            let memory = Box::pin(self.enter(end)).await?;
            if let Some((until, why)) = memory.kept_out() {
                let until = if until.is_zero() { SOON } else { until + A_MOMENT };
                let why = format!("{self} {why}; if no lease from before stands, `tenure admit` lets it vote");
                return Ok(AcquireReply::Refused { until, why });
            }
        };
        if let Value::Array(parts) = &answer
            && let [Value::Int(1), number] = &parts[..]
        {
            let fence = fence(counter(number).map_err(Error::maybe_applied)?)?;
            return Ok(AcquireReply::Granted(Grant::new(Some(fence), request.ttl)));
        }
        let busy = busy(&answer).map_err(Error::maybe_applied)?;
        let answer = AcquireReply::Busy(busy.with_poll_interval(self.store.poll_interval(false, None, None)));
        if repeated { check_repeated(request, answer) } else { Ok(answer) }
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.store.renewals_end(leases);
        loop {
            let answers = self.store.renew_all(leases, At::Node, end).await;
            if !answers.iter().any(|answer| answer.as_ref().is_err_and(is_about_the_vote)) {
                return answers;
            }
            // It may be another run of the server than this client knows.
            match self.enter(end).await {
                Ok(memory) if memory.kept_out().is_none() => {}
                Ok(_) => return answers,
                Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
            }
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let released = self.give_up(lease, linger, b"1").await?;
        match released {
            // It may have forgotten the lease.
            ReleaseReply::NotHeld => match self.memory().await?.kept_out() {
                Some((_, why)) => Err(Error::unavailable(format!("{self} {why}"))),
                None => Ok(released),
            },
            ReleaseReply::Released => Ok(released),
        }
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        // Each try has a token of its own, so the messages are for the name.
        let key = Owner::from_bytes(self.store.layout.of(&request.name).name().concat());
        let listener = self.store.connection.listen(key, self.store.end(request.ttl)).await?;
        Ok(listener.map(|_| Notice::Changed).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.store.inspect(name).await
    }
}

impl RedisNode {
    /// Releases a share. If `notifies` is "1", a waiter is notified.
    async fn give_up(&self, lease: &Lease, linger: Duration, notifies: &[u8]) -> Result<ReleaseReply, Error> {
        self.store.layout.check(&lease.name)?;
        let [capacity, linger] = [u64::from(lease.share.capacity()), millis(linger)].map(Digits::of);
        let args = [capacity.as_bytes(), b"0", lease.owner.as_bytes(), linger.as_bytes(), notifies];
        let call = |_: &Link, form| {
            let keys = self.store.layout.of(&lease.name);
            let memory = whole(self.store.layout.memory.as_bytes());
            let ends = whole(self.store.layout.ends.as_bytes());
            let keys = [keys.name(), keys.queue(), keys.entries(), memory, keys.shares(), keys.hints(), ends];
            scripts::call(&scripts::NODE_RELEASE, form, &keys, &args)
        };
        let end = self.store.end(lease.ttl);
        let Exchange { answers, repeated, .. } = self.store.connection.call(end, releases(lease), &call).await?;
        released((only(answers)?.map_err(|e| refusal(&e, &lease.name, lease.share))?, repeated))
    }
}

impl fmt::Display for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
