//! The native layout: a name is a string key that holds the owner and nothing else.
//!
//! Every client that takes locks with `SET NX PX` and gives them up by compare-and-delete shares such a lock with us.
//! Beside the names there is one key, the grant counter that fences are made of.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use redis::{Pipeline, Value, cmd, pipe};
use tenure::{
    Acquired, Busy, Entry, Error, Features, Fence, Grant, Holder, Lease, Name, Notice, Owner, Place, Released, Renewal, Request,
    Share, Store,
};
use tokio::time::Instant;

use crate::commands::{Commands, Digits};
use crate::connection::{Connection, Exchange, Repeat};
use crate::failure::{is_noscript, translate, unexpected};
use crate::link::{Link, now_ms};
use crate::options::Options;
use crate::reply::{counter, fence, holder, only, renewals, transaction};
use crate::script::{self, Form};

/// Locks on one Redis or Valkey server. Clones share one connection.
///
/// # Round trips
/// Acquire 1, and 1 more when the name is busy; renew 1 for any number of leases; release 1; inspect 1, or as many as a `SCAN`
/// of the whole database takes.
#[derive(Clone)]
pub struct RedisStore {
    connection: Arc<Connection>,
    shown: Arc<str>,
    prefix: Arc<str>,
    counter: Arc<str>,
    timeout: Option<Duration>,
    recheck: Duration,
}

/// Leases to a renewal script: more would block the server for longer, fewer would cost it more for each.
const BATCH: usize = 100;

impl RedisStore {
    pub(crate) async fn connect(options: Options) -> Result<Self, Error> {
        let connection = Connection::open(&options).await?;
        Ok(Self::over(connection, options.to_string(), &options.prefix, options.timeout, options.recheck))
    }

    pub(crate) fn over(
        connection: Connection,
        shown: String,
        prefix: &str,
        timeout: Option<Duration>,
        recheck: Duration,
    ) -> Self {
        let counter = format!("{prefix}tenure:fence").into();
        Self { connection: Arc::new(connection), shown: shown.into(), prefix: prefix.into(), counter, timeout, recheck }
    }

    fn key(&self, name: &Name) -> String {
        [&*self.prefix, name.as_str()].concat()
    }

    fn limit(&self, ttl: Duration) -> Duration {
        self.features().limit(ttl)
    }

    /// Refuses the one name that is not a lock.
    fn check(&self, name: &Name) -> Result<(), Error> {
        if self.key(name) == *self.counter {
            let what = format!("{name:?} is where {self} keeps the counter that fences are made of");
            return Err(Error::invalid(what).fix("use another name, or a prefix= of your own"));
        }
        Ok(())
    }

    /// Lifts the counter through a connection that never did, and so learns whether scripts may be run at all, before anything is
    /// taken that a script would have to give up.
    async fn prepare(&self, limit: Duration) -> Result<(), Error> {
        if !self.connection.is_new() {
            return Ok(());
        }
        let (seen, sent_at) = (self.connection.seen(), now_ms());
        let lift = |_: &Link| single(script::call(&script::LIFT, Form::Text, &[&*self.counter], &[seen]));
        let Exchange { link, answers, .. } = self.connection.exchange(limit, Repeat::Freely, lift).await?;
        self.connection.saw(counter(&only(answers)?.map_err(|e| translate(&e))?)?);
        link.lifted(sent_at, 0);
        Ok(())
    }

    /// Takes a free name without a script: a script costs the server almost twice as much.
    async fn take(&self, request: &Request, limit: Duration) -> Result<Taken, Error> {
        let key = self.key(&request.name);
        // Everything seen before the request leaves was granted before it; what other tasks see meanwhile says nothing.
        let seen = self.connection.seen();
        let sent_at = now_ms();
        let ttl = Digits::of(millis(request.ttl));
        let doubts = AtomicU64::new(0);
        let pipeline = |link: &Link| {
            doubts.store(link.doubts(), Ordering::Relaxed);
            let counter = self.counter.as_bytes();
            let mut commands = match link.due_lift() {
                Some(form) => script::commands(&script::LIFT, form, &[counter], &[Digits::of(seen).as_bytes()]),
                None => Commands::new(),
            };
            commands.add(&[b"MULTI"]);
            commands.add(&[b"SET", key.as_bytes(), request.owner.as_bytes(), b"NX", b"PX", ttl.as_bytes()]);
            commands.add(&[b"INCR", counter]);
            commands.add(&[b"EXEC"]);
            commands
        };
        let Exchange { link, mut answers, repeated } = self.connection.exchange(limit, Repeat::Settled, pipeline).await?;
        let lift = (answers.len() == 5).then(|| answers.remove(0));
        let executed = transaction(answers);
        let floor = match lift {
            None => Some(seen),
            Some(Ok(floor)) => {
                link.lifted(sent_at, doubts.into_inner());
                Some(counter(&floor)?.max(seen))
            }
            // Not lifted: the server has to be sent the text next time.
            Some(Err(error)) if is_noscript(&error) => {
                link.forgot_script();
                None
            }
            Some(Err(error)) if may_have_set(&executed) => return Err(translate(&error).maybe_applied()),
            Some(Err(error)) => return Err(translate(&error)),
        };
        let (set, incremented) = executed?;
        if set == Value::Nil {
            return Ok(Taken::Busy { repeated });
        }
        // Whatever is wrong from here on, the name may be ours at the server.
        let counter = counter(&incremented).map_err(Error::maybe_applied)?;
        self.connection.saw(counter);
        // A counter that does not rise above what was seen has lost data: no fence is made of it.
        if floor.is_some_and(|floor| counter > floor) { Ok(Taken::Granted(fence(counter)?)) } else { Ok(Taken::Unfenced) }
    }

    /// Settles by script what the fast path could not: who holds, whether it is us, or a new fence for what is ours.
    async fn claim(&self, request: &Request, mine_counts: bool, limit: Duration) -> Result<Acquired, Error> {
        let key = self.key(&request.name);
        let seen = self.connection.seen().to_string();
        let from = request.from.as_ref().map_or(&b""[..], |from| from.as_bytes());
        let (ttl, mine) = (millis(request.ttl).to_string(), if mine_counts { "1" } else { "0" });
        let args = [request.owner.as_bytes(), ttl.as_bytes(), mine.as_bytes(), from, seen.as_bytes()];
        let call = |form| script::commands(&script::CLAIM, form, &[key.as_bytes(), self.counter.as_bytes()], &args);
        let (answer, _) = self.script(limit, Repeat::Settled, call).await?;
        let Value::Array(parts) = &answer else { return Err(unexpected(format_args!("{answer:?} to a claim")).maybe_applied()) };
        match &parts[..] {
            [Value::Int(1), number] => {
                let counter = counter(number).map_err(Error::maybe_applied)?;
                self.connection.saw(counter);
                Ok(Acquired::Granted(Grant { fence: Some(fence(counter)?), ttl: request.ttl, waiting: false }))
            }
            [Value::Int(0)] => Ok(Acquired::Busy(self.busy(None))),
            [Value::Int(0), Value::BulkString(value), Value::Int(ttl)] => {
                Ok(Acquired::Busy(self.busy(Some(holder(value, *ttl)))))
            }
            other => Err(unexpected(format_args!("{other:?} to a claim")).maybe_applied()),
        }
    }

    fn busy(&self, holder: Option<Holder>) -> Busy {
        Busy { ahead: None, recheck: self.recheck, mark: None, holder }
    }

    /// Runs one script call and gives its answer, and whether it may have run twice.
    async fn script(
        &self,
        limit: Duration,
        repeat: Repeat,
        call: impl Fn(Form) -> Commands + Sync,
    ) -> Result<(Value, bool), Error> {
        let Exchange { answers, repeated, .. } = self.connection.call(limit, repeat, |_, form| call(form)).await?;
        let answer = only(answers)?.map_err(|e| translate(&e))?;
        Ok((answer, repeated))
    }

    fn renewal(&self, leases: &[Lease], form: Form) -> redis::Cmd {
        let keys: Vec<String> = leases.iter().map(|lease| self.key(&lease.name)).collect();
        let ttls: Vec<String> = leases.iter().map(|lease| millis(lease.ttl).to_string()).collect();
        let args: Vec<&[u8]> =
            leases.iter().zip(&ttls).flat_map(|(lease, ttl)| [lease.owner.as_bytes(), ttl.as_bytes()]).collect();
        script::call(&script::RENEW, form, &keys, &args)
    }

    /// Renews batches in one pipeline. Batches that were refused as a whole come back with the refusal.
    async fn renew_batches<'a>(
        &self,
        limit: Duration,
        batches: &[&'a [Lease]],
    ) -> Vec<(&'a [Lease], Result<Vec<Renewal>, Error>)> {
        let pipeline = |_: &Link, form| {
            let mut pipeline = pipe();
            for batch in batches {
                pipeline.add_command(self.renewal(batch, form));
            }
            pipeline
        };
        match self.connection.call(limit, Repeat::Freely, pipeline).await {
            Ok(Exchange { answers, .. }) => {
                batches.iter().zip(answers).map(|(batch, answer)| (*batch, renewals(answer, batch.len()))).collect()
            }
            Err(error) => batches.iter().map(|batch| (*batch, Err(error.copy()))).collect(),
        }
    }

    async fn scan(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        let mut cursor = String::from("0");
        let pattern = format!("{}*", glob_escaped(&self.prefix));
        loop {
            let step = single(
                cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000).arg("TYPE").arg("string").to_owned(),
            );
            let answer =
                only(self.connection.call(self.limit(Duration::MAX), Repeat::Freely, |_, _| step.clone()).await?.answers)?
                    .map_err(|e| translate(&e))?;
            let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer).map_err(unexpected)?;
            let names: Vec<Name> = keys.iter().filter_map(|key| self.name(key)).collect();
            entries
                .extend(self.look_at(&names).await?.into_iter().filter(|entry| entry.holders.iter().any(|h| h.owner.is_ours())));
            if next == "0" {
                return Ok(entries);
            }
            cursor = next;
        }
    }

    fn name(&self, key: &[u8]) -> Option<Name> {
        let name = std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?;
        Name::new(name).ok()
    }

    /// What the keys of `names` hold. Free ones are left out.
    async fn look_at(&self, names: &[Name]) -> Result<Vec<Entry>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // Not in a transaction: a server out of memory queues none, and that is when people look. What is read between a change of
        // hands shows the one owner with the other's ttl, for a moment.
        let mut pipeline = pipe();
        for name in names {
            let key = self.key(name);
            pipeline.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        }
        let mut answers =
            self.connection.call(self.limit(Duration::MAX), Repeat::Freely, |_, _| pipeline.clone()).await?.answers.into_iter();
        let mut entries = Vec::new();
        for name in names {
            let mut answer = || answers.next().unwrap_or(Ok(Value::Nil)).map_err(|e| translate(&e));
            if let (Value::BulkString(value), Value::Int(ttl @ -1..)) = (answer()?, answer()?) {
                entries.push(Entry { name: name.clone(), holders: vec![holder(&value, ttl)], waiters: 0 });
            }
        }
        Ok(entries)
    }
}

enum Taken {
    Granted(Fence),
    /// Ours, without a number that can be relied on.
    Unfenced,
    Busy {
        /// An earlier try had no answer, and may be what it is busy with.
        repeated: bool,
    },
}

#[async_trait]
impl Store for RedisStore {
    fn features(&self) -> Features {
        Features {
            fence: true,
            shares: false,
            queue: false,
            cohort: false,
            push: false,
            server_clock: true,
            late_commands: self.connection.has_late_commands(),
            min_ttl: Duration::from_millis(50),
            max_name: Name::MAX_BYTES,
            operation_timeout: self.timeout,
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Acquired, Error> {
        if request.share != Share::MUTEX || request.place != Place::None {
            return Err(Error::new(tenure::ErrorKind::Unsupported, format!("{self} keeps mutexes without a queue only")));
        }
        self.check(&request.name)?;
        let limit = self.limit(request.ttl);
        let end = Instant::now() + limit;
        let left = || end.saturating_duration_since(Instant::now());
        if let Some(from) = &request.from {
            if from.as_bytes().is_empty() {
                return Err(Error::invalid("the owner to take over from is empty"));
            }
            return self.claim(request, request.repeatable, limit).await;
        }
        self.prepare(limit).await?;
        match self.take(request, left()).await? {
            Taken::Granted(fence) => Ok(Acquired::Granted(Grant { fence: Some(fence), ttl: request.ttl, waiting: false })),
            // The name was given to us a moment ago, so that finding our value there is success even if the value was given.
            Taken::Unfenced => self.claim(request, true, left()).await.map_err(Error::maybe_applied),
            Taken::Busy { repeated } => {
                let answer = self.claim(request, request.repeatable, left()).await?;
                if repeated && is_held_by(&answer, &request.owner) {
                    let what = "the first try had no answer, and the given value is in place: ours or another's";
                    return Err(Error::unreachable(what).maybe_applied());
                }
                Ok(answer)
            }
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal, Error>> {
        let limit = self.limit(leases.iter().map(|lease| lease.ttl).min().unwrap_or_default());
        let end = Instant::now() + limit;
        let batches: Vec<&[Lease]> = leases.chunks(BATCH).collect();
        let (mut answers, mut refused) = (Vec::with_capacity(leases.len()), Vec::new());
        for (batch, outcome) in self.renew_batches(limit, &batches).await {
            match outcome {
                Ok(renewals) => answers.extend(batch.iter().zip(renewals.into_iter().map(Ok))),
                // One lease that the server refuses fails its whole batch. All in turn, in one more round trip.
                Err(error) if batch.len() > 1 && !error.is_transient() => refused.extend(batch.chunks(1)),
                Err(error) => answers.extend(batch.iter().map(|lease| (lease, Err(error.copy())))),
            }
        }
        if !refused.is_empty() {
            // Somewhat less than is left, so that the answers there are reach the caller before it gives up.
            let left = end.saturating_duration_since(Instant::now()).mul_f64(0.9);
            for (alone, outcome) in self.renew_batches(left, &refused).await {
                answers.extend(alone.iter().zip([outcome.map(|renewals| renewals[0])]));
            }
        }
        // The caller's order is that of the addresses in its slice.
        answers.sort_by_key(|(lease, _)| std::ptr::from_ref::<Lease>(lease));
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<Released, Error> {
        self.check(&lease.name)?;
        let key = self.key(&lease.name);
        let linger = Digits::of(millis(linger));
        let args = [lease.owner.as_bytes(), linger.as_bytes()];
        // Between two runs of the release of a given value another may have taken the name with the same.
        let repeat = if lease.owner.is_ours() { Repeat::Freely } else { Repeat::Never };
        let call = |form| script::commands(&script::RELEASE, form, &[key.as_bytes()], &args);
        match self.script(self.limit(lease.ttl), repeat, call).await? {
            (Value::Int(1), _) => Ok(Released::Released),
            (Value::Int(0), false) => Ok(Released::NotHeld),
            // The first of the two may have given it up, or it was lost before: nobody knows.
            (Value::Int(0), true) => {
                Err(Error::unreachable("the first release had no answer, and the second found nothing").maybe_applied())
            }
            (other, _) => Err(unexpected(format_args!("{other:?} to a release"))),
        }
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let listener = self.connection.listen(request.owner.clone(), self.limit(request.ttl)).await?;
        Ok(listener.map(|_heard| Notice::Look).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        match name {
            Some(name) => {
                self.check(name)?;
                self.look_at(std::slice::from_ref(name)).await
            }
            None => self.scan().await,
        }
    }
}

/// Whether the transaction behind a failed lift may have taken the name.
fn may_have_set(executed: &Result<(Value, Value), Error>) -> bool {
    match executed {
        Ok((set, _)) => *set != Value::Nil,
        Err(error) => error.may_have_been_applied(),
    }
}

fn is_held_by(answer: &Acquired, owner: &Owner) -> bool {
    matches!(answer, Acquired::Busy(Busy { holder: Some(holder), .. }) if holder.owner == *owner)
}

fn single(command: redis::Cmd) -> Pipeline {
    let mut pipeline = pipe();
    pipeline.add_command(command);
    pipeline
}

/// Whole milliseconds, at least one: a ttl or linger of zero means something else to Redis.
fn millis(span: Duration) -> u64 {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if span.is_zero() { 0 } else { millis.max(1) }
}

fn glob_escaped(prefix: &str) -> String {
    prefix.chars().flat_map(|c| if "*?[]^\\".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
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
