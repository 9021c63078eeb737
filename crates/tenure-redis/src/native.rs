//! The native layout: a mutex is a string key that holds the owner and nothing else.
//!
//! Every client that takes locks with `SET NX PX` and gives them up by compare-and-delete shares such a lock with us. Other kinds
//! are kept at the same key as a sorted set, so that the kinds meet there. What stands beside the keys is in `keys.rs`.

use std::fmt;
use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Holder, Lease, Name, Share};
use tokio::time::Instant;

use crate::commands::{Commands, Digits};
use crate::connection::{Connection, Exchange, Repeat};
use crate::failure::{COUNTER_FIX, is_noscript, translate, unexpected};
use crate::keys::{Key, Keys, Layout, whole};
use crate::link::{Link, now_ms};
use crate::options::Options;
use crate::push::Heard;
use crate::reply::{busy, counter, counters, fence, notice, only, transaction};
use crate::script::{self, Form, Script};

/// Locks on one Redis or Valkey server. Clones share one connection.
///
/// # Round trips
/// Acquire 1, and 1 more when a mutex is busy; renew 1 for each 1,000 leases, three of them at a time; release 1, which hands over as well; inspect 1, or
/// as many as a `SCAN` of the whole database takes.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) connection: Arc<Connection>,
    pub(crate) layout: Arc<Layout>,
    shown: Arc<str>,
    timeout: Option<Duration>,
    pub(crate) recheck: Duration,
}

/// How often to look where the holder says when it is done and we can hear it: in case what it said was lost.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What a request that is settled by script does about the queue. A value that was given may be another's, and queues nowhere.
const fn place_word(request: &Request) -> &'static str {
    match request.enqueue {
        Enqueue::Join { .. } if request.generated => "join",
        Enqueue::Heartbeat => "keep",
        _ => "none",
    }
}

impl RedisStore {
    /// With `prefix` in front of every key.
    pub(crate) async fn connect(options: &Options, prefix: &str) -> Result<Self, Error> {
        let connection = Connection::open(options).await?;
        Ok(Self::over(connection, options.to_string(), prefix, options.timeout, options.recheck))
    }

    pub(crate) fn over(
        connection: Connection,
        shown: String,
        prefix: &str,
        timeout: Option<Duration>,
        recheck: Duration,
    ) -> Self {
        let layout = Arc::new(Layout::new(prefix));
        Self { connection: Arc::new(connection), layout, shown: shown.into(), timeout, recheck }
    }

    /// When a call about a lease of `ttl` that begins now has to be over.
    pub(crate) fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl)
    }

    /// Lifts the counter through a connection that never did, and so learns whether scripts may be run at all, before anything is
    /// taken that a script would have to give up.
    async fn prepare(&self, end: Instant) -> Result<(), Error> {
        if !self.connection.is_new() {
            return Ok(());
        }
        let (asked, sent_at) = (self.connection.seen(), now_ms());
        let (counter_key, seen) = (whole(self.layout.counter.as_bytes()), Digits::of(asked));
        let lift = |_: &Link| script::call(&script::LIFT, Form::Text, &[counter_key], &[seen.as_bytes()]);
        let Exchange { link, answers, .. } = self.connection.exchange(end, Repeat::Freely, lift).await?;
        let floor = counter(&only(answers)?.map_err(|e| translate(&e))?)?;
        self.connection.counter().lifted(asked, floor, now_ms());
        link.lifted(sent_at, 0);
        Ok(())
    }

    /// Takes a free mutex without a script: a script costs the server almost twice as much.
    async fn take(&self, request: &Request, end: Instant) -> Result<Taken, Error> {
        let keys = self.layout.of(&request.name);
        let (counter_key, ttl) = (self.layout.counter.as_bytes(), Digits::of(millis(request.ttl)));
        // Everything seen before the request leaves was granted before it; what other tasks see meanwhile says nothing.
        let seen = self.connection.seen();
        let sent_at = now_ms();
        let doubts = AtomicU64::new(0);
        let pipeline = |link: &Link| {
            let mut commands = Commands::new();
            doubts.store(link.doubts(), Ordering::Relaxed);
            if let Some(form) = link.due_lift(sent_at, self.connection.counter().pushed_at()) {
                script::add_call(&mut commands, &script::LIFT, form, &[whole(counter_key)], &[Digits::of(seen).as_bytes()]);
            }
            commands.add(&[b"MULTI"]);
            commands.about(&keys.name(), b"SET", &[request.owner.as_bytes(), b"NX", b"PX", ttl.as_bytes()]);
            commands.add(&[b"INCR", counter_key]);
            commands.about(&keys.queue(), b"EXISTS", &[]);
            commands.add(&[b"EXEC"]);
            commands
        };
        let Exchange { link, mut answers, repeated } = self.connection.exchange(end, Repeat::Settled, pipeline).await?;
        let lift = (answers.len() == 6).then(|| answers.remove(0));
        let executed = transaction(answers).map_err(about_counter);
        let floor = match lift {
            None => Some(seen),
            Some(Ok(floor)) => {
                link.lifted(sent_at, doubts.into_inner());
                let floor = counter(&floor)?;
                self.connection.counter().lifted(seen, floor, now_ms());
                Some(floor)
            }
            // Not lifted: the server has to be sent the text next time.
            Some(Err(error)) if is_noscript(&error) => {
                link.forgot_script();
                None
            }
            Some(Err(error)) if may_have_set(&executed) => return Err(translate(&error).maybe_applied()),
            Some(Err(error)) => return Err(translate(&error)),
        };
        let [set, incremented, queued] = executed?;
        if set == Value::Nil {
            return Ok(Taken::Busy { repeated });
        }
        // Whatever is wrong from here on, the name may be ours at the server.
        let counter = counter(&incremented).map_err(Error::maybe_applied)?;
        self.connection.saw(counter);
        if queued != Value::Int(0) {
            return Ok(Taken::Overtaking);
        }
        self.connection.counter().confirmed(&request.owner);
        // A counter that does not rise above what was seen has lost data: no fence is made of it.
        if floor.is_some_and(|floor| counter > floor) { Ok(Taken::Granted(fence(counter)?)) } else { Ok(Taken::Unfenced) }
    }

    /// Asks by script, which settles everything: who holds, whether it is us, who is next, and a place in the queue.
    async fn ask(&self, request: &Request, mine_counts: bool, place: &str, end: Instant) -> Result<AcquireReply, Error> {
        let Request { owner, ttl, share, from, .. } = request;
        let (keep, claim) = match request.enqueue {
            Enqueue::Join { entry_ttl: keep, handoff_ttl: claim } => (keep, claim),
            Enqueue::No | Enqueue::Heartbeat => (Duration::ZERO, Duration::ZERO),
        };
        let channel = self.connection.channel();
        let [ttl, keep, claim] = [*ttl, keep, claim].map(|span| Digits::of(millis(span)));
        let weight = Digits::of(u64::from(share.weight()));
        let args = [
            owner.as_bytes(),
            ttl.as_bytes(),
            weight.as_bytes(),
            if mine_counts { b"1" } else { b"0" },
            from.as_ref().map_or(&b""[..], |from| from.as_bytes()),
            place.as_bytes(),
            keep.as_bytes(),
            claim.as_bytes(),
            channel.unwrap_or("-").as_bytes(),
        ];
        let (answer, _) = self.run_about(&script::ACQUIRE, &request.name, *share, &args, Repeat::Settled, end).await?;
        if let Value::Array(parts) = &answer
            && let [Value::Int(1), number] = &parts[..]
        {
            let counter = counter(number).map_err(Error::maybe_applied)?;
            self.connection.saw(counter);
            self.connection.counter().confirmed(owner);
            return Ok(AcquireReply::Granted(Grant::new(Some(fence(counter)?), request.ttl)));
        }
        let busy = busy(&answer, *share).map_err(Error::maybe_applied)?;
        if let Some(mark) = busy.grant_seq {
            self.connection.saw(mark);
        }
        let poll_interval = self.recheck(channel.is_some(), busy.position, busy.holder.as_ref());
        Ok(AcquireReply::Busy(busy.with_poll_interval(poll_interval)))
    }

    /// When to look again, for one who hears what is pushed or does not, and has a place or none.
    pub(crate) fn recheck(&self, hears: bool, ahead: Option<u32>, holder: Option<&Holder>) -> Duration {
        // A holder that is not one of ours tells nobody when it is done.
        let told = hears && ahead.is_some() && holder.is_none_or(|holder| holder.owner.is_generated());
        if told { HEARTBEAT.max(self.recheck) } else { self.recheck }
    }

    /// Runs a script; its answer, and whether it may have run twice.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[Key<'_>],
        args: &[&[u8]],
        repeat: Repeat,
        end: Instant,
    ) -> Result<(Value, bool), Error> {
        let call = |_: &Link, form| script::call(script, form, keys, args);
        let Exchange { answers, repeated, .. } = self.connection.call(end, repeat, call).await?;
        Ok((only(answers)?.map_err(|e| translate(&e))?, repeated))
    }

    /// Runs a script about one name and what stands beside it.
    async fn run_about(
        &self,
        script: &Script,
        name: &Name,
        share: Share,
        args: &[&[u8]],
        repeat: Repeat,
        end: Instant,
    ) -> Result<(Value, bool), Error> {
        let keys = self.layout.of(name);
        let keys = [keys.name(), keys.queue(), keys.places(), whole(self.layout.counter.as_bytes()), keys.shares()];
        // A mutex that is given up has no use for the last.
        let keys =
            if share == Share::MUTEX && std::ptr::eq(script, &raw const *script::RELEASE) { &keys[..4] } else { &keys[..] };
        let (capacity, seen) = (Digits::of(u64::from(share.capacity())), Digits::of(self.connection.seen()));
        let args = [&[capacity.as_bytes(), seen.as_bytes()], args].concat();
        self.run(script, keys, &args, repeat, end).await
    }
}

enum Taken {
    Granted(Fence),
    /// Ours, without a number that can be relied on.
    Unfenced,
    /// Ours, though others wait.
    Overtaking,
    Busy {
        /// An earlier try had no answer, and may be what it is busy with.
        repeated: bool,
    },
}

#[async_trait]
impl Store for RedisStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(true)
            .with_server_clock(true)
            .with_late_commands(self.connection.has_late_commands())
            .with_min_ttl(Duration::from_millis(50))
            .with_operation_timeout(self.timeout)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.layout.check(&request.name)?;
        let end = self.end(request.ttl);
        check_from(request)?;
        self.prepare(end).await?;
        if request.share != Share::MUTEX || request.enqueue != Enqueue::No || request.from.is_some() {
            return self.ask(request, request.generated, place_word(request), end).await;
        }
        match self.take(request, end).await? {
            Taken::Granted(fence) => Ok(AcquireReply::Granted(Grant::new(Some(fence), request.ttl))),
            // The name was given to us a moment ago, so that finding our value there is success even if the value was given.
            Taken::Unfenced => self.ask(request, true, "none", end).await.map_err(Error::maybe_applied),
            Taken::Overtaking => self.ask(request, true, "yield", end).await.map_err(Error::maybe_applied),
            Taken::Busy { repeated } => {
                let answer = self.ask(request, request.generated, "none", end).await?;
                if repeated { told_apart(request, answer) } else { Ok(answer) }
            }
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(Request { share, ttl, .. }) = requests.first() else { return Ok(Some(Vec::new())) };
        requests.iter().try_for_each(|request| self.layout.check(&request.name))?;
        let end = self.end(*ttl);
        self.prepare(end).await?;
        let of_each: Vec<Keys<'_>> = requests.iter().map(|request| self.layout.of(&request.name)).collect();
        let beside = of_each.iter().flat_map(|keys| [keys.name(), keys.queue(), keys.places(), keys.shares()]);
        let keys: Vec<Key<'_>> = once(whole(self.layout.counter.as_bytes())).chain(beside).collect();
        let numbers = [u64::from(share.capacity()), self.connection.seen(), millis(*ttl), u64::from(share.weight())];
        let numbers = numbers.map(Digits::of);
        let owners = requests.iter().map(|request| request.owner.as_bytes());
        let args: Vec<&[u8]> = numbers.iter().map(Digits::as_bytes).chain(owners).collect();
        let (answer, _) = self.run(&script::ACQUIRE_ALL, &keys, &args, Repeat::Settled, end).await?;
        let counters = counters(&answer, requests.len())?;
        self.connection.saw(counters.last().copied().unwrap_or_default());
        let grant = |counter| Ok(Grant::new(Some(fence(counter)?), *ttl));
        let grants: Vec<Grant> = counters.into_iter().map(grant).collect::<Result<_, Error>>()?;
        Ok((!grants.is_empty()).then_some(grants))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.renew_counted(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.layout.check(&lease.name)?;
        let linger = Digits::of(millis(linger));
        let args = [lease.owner.as_bytes(), linger.as_bytes()];
        let end = self.end(lease.ttl);
        let answer = self.run_about(&script::RELEASE, &lease.name, lease.share, &args, releases(lease), end).await?;
        self.connection.counter().confirmed(&lease.owner);
        released(answer)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let listener = self.connection.listen(request.owner.clone(), self.end(request.ttl)).await?;
        let (owner, ttl, connection) = (request.owner.clone(), request.ttl, Arc::clone(&self.connection));
        let told = move |heard| match heard {
            Heard::Look => Notice::Changed,
            Heard::Message(payload) => {
                let (notice, now) = (notice(&payload, &owner), now_ms());
                match &notice {
                    Notice::Granted { fence, handoff_ttl, .. }
                        if connection.counter().explains(fence.counter(), now)
                            && connection.counter().remember(&owner, (*handoff_ttl).min(ttl), now) =>
                    {
                        connection.counter().heard(fence.counter(), now);
                        notice
                    }
                    // Somebody forged it, or a clock was set: the server is asked.
                    Notice::Granted { .. } | Notice::Changed => Notice::Changed,
                }
            }
        };
        Ok(listener.map(told).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        match name {
            Some(name) => {
                self.layout.check(name)?;
                self.look_at(std::slice::from_ref(name)).await
            }
            None => self.every_name().await,
        }
    }
}

/// Refuses to take over from nobody: to the scripts an empty owner means that there is none to take over from.
pub(crate) fn check_from(request: &Request) -> Result<(), Error> {
    match &request.from {
        Some(from) if from.as_bytes().is_empty() => Err(Error::invalid("the owner to take over from is empty")),
        _ => Ok(()),
    }
}

/// What a request that was sent twice, the first time unheard, found when it came second.
pub(crate) fn told_apart(request: &Request, answer: AcquireReply) -> Result<AcquireReply, Error> {
    match answer {
        AcquireReply::Busy(Busy { holder: Some(holder), .. }) if holder.owner == request.owner => {
            let what = "the first try had no answer, and the given value is in place: ours or another's";
            Err(Error::unreachable(what).maybe_applied())
        }
        answer => Ok(answer),
    }
}

/// Whether a release may be sent twice: between two runs of that of a given value another may have taken the name with the same.
pub(crate) fn releases(lease: &Lease) -> Repeat {
    if lease.owner.is_generated() { Repeat::Freely } else { Repeat::Never }
}

/// What the answer to a release, and whether it may have run twice, says.
pub(crate) fn released(answer: (Value, bool)) -> Result<ReleaseReply, Error> {
    match answer {
        (Value::Int(1), _) => Ok(ReleaseReply::Released),
        (Value::Int(0), false) => Ok(ReleaseReply::NotHeld),
        // The first of the two may have given it up, or it was lost before: nobody knows.
        (Value::Int(0), true) => {
            Err(Error::unreachable("the first release had no answer, and the second found nothing").maybe_applied())
        }
        (other, _) => Err(unexpected(format_args!("{other:?} to a release"))),
    }
}

/// For commands of which only those about the counter can be refused for the type of their key.
pub(crate) fn about_counter(error: Error) -> Error {
    if error.kind() != ErrorKind::Mismatch {
        return error;
    }
    let refused = Error::refused("the grant counter cannot be used: it is another type of key").with_hint(COUNTER_FIX);
    if error.may_have_been_applied() { refused.maybe_applied() } else { refused }
}

/// Whether the transaction behind a failed lift may have taken the name.
fn may_have_set(executed: &Result<[Value; 3], Error>) -> bool {
    match executed {
        Ok([set, ..]) => *set != Value::Nil,
        Err(error) => error.may_have_been_applied(),
    }
}

/// Whole milliseconds, at least one: a ttl or linger of zero means something else to Redis.
pub(crate) fn millis(span: Duration) -> u64 {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if span.is_zero() { 0 } else { millis.max(1) }
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
