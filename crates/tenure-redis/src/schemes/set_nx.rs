//! Locks as most other clients of Redis keep them: a string key that holds its owner, and nothing
//! beside it.
//!
//! There is no fence, because nothing stays at the server that could count. There is no queue,
//! because a holder of another library knows of none.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, select_all};
use redis::Value;
use tenure::store::{AcquireReply, Busy, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Lease, Name, Share};
use tokio::time::Instant;

use crate::native::renew::At;
use crate::native::reply::{check_repeated, holder, released, releases};
use crate::native::store::{HEARTBEAT, RedisStore};
use crate::schemes::scheme::{Prefixes, Wakes};
use crate::scripts::{self, Script};
use crate::transport::commands::{Commands, Digits, Key, millis};
use crate::transport::connection::{Exchange, Repeat};
use crate::transport::failure::{is_no_command, translate, unexpected};
use crate::transport::link::{DELETES, Link};
use crate::transport::push::TRACK_NEXT;
use crate::transport::reply::only;

/// Mutexes at keys that other libraries, and programs that send the commands themselves, use as
/// well. See [`Scheme`](crate::Scheme).
///
/// # Round trips
/// Acquire 1, and 1 more if it is busy; renew 1 for each 1,000 leases; release 1, and 1 more if it
/// is not held; inspect as [`RedisStore`].
pub(crate) struct SetNxStore {
    redis: RedisStore,
    seconds: bool,
    wakes: Wakes,
    /// In front of a name in the channel or the list by which waiters are woken.
    beside: String,
    /// A script has run.
    scripts: AtomicBool,
}

impl SetNxStore {
    /// `seconds`: leases last whole seconds.
    pub(crate) const fn new(redis: RedisStore, seconds: bool) -> Self {
        Self { redis, seconds, wakes: Wakes::No, beside: String::new(), scripts: AtomicBool::new(false) }
    }

    /// Among clients that are woken as it says there.
    pub(crate) fn at(redis: RedisStore, prefixes: Prefixes) -> Self {
        Self { wakes: prefixes.wakes, beside: prefixes.beside, ..Self::new(redis, false) }
    }

    /// The ttl of the key for a lease of `ttl`.
    fn kept(&self, ttl: Duration) -> Duration {
        if self.seconds { whole_seconds(ttl) } else { ttl }
    }

    /// Sets the key if there is none. Returns whether it did, and whether an earlier try may have.
    async fn set(&self, request: &Request, ttl: Duration, end: Instant) -> Result<(bool, bool), Error> {
        let keys = self.redis.layout.of(&request.name);
        let (unit, ttl) = if self.seconds { (&b"EX"[..], ttl.as_secs()) } else { (&b"PX"[..], millis(ttl)) };
        let ttl = Digits::of(ttl);
        let set = |_: &Link| Commands::of_key(&keys.name(), b"SET", &[request.owner.as_bytes(), b"NX", unit, ttl.as_bytes()]);
        let Exchange { answers, repeated, .. } = self.redis.connection.exchange(end, Repeat::Settled, &set).await?;
        Ok((only(answers)?.map_err(|e| translate(&e))? == Value::Okay, repeated))
    }

    /// Acquires by script. `repeated`: an earlier try had no answer, and may have set the key.
    async fn ask(&self, request: &Request, ttl: Duration, repeated: bool, end: Instant) -> Result<AcquireReply, Error> {
        let keys = self.redis.layout.of(&request.name);
        ask(&self.redis, &scripts::SET_NX_ACQUIRE, &[keys.name()], self.wakes, request, ttl, repeated, end).await
    }

    /// The answer of the release script without a linger, by a plain command that takes the server
    /// half as long. None if the server does not have the command or refuses it: then nothing was
    /// done.
    async fn delete(&self, lease: &Lease, end: Instant) -> Result<Option<(Value, bool)>, Error> {
        let keys = self.redis.layout.of(&lease.name);
        loop {
            let tried = self.redis.connection.delete();
            let Some((before, between)) = DELETES.get(tried) else { return Ok(None) };
            let delete = |_: &Link| Commands::of_key(&keys.name(), before, &[*between, &[lease.owner.as_bytes()]].concat());
            let Exchange { link, answers, repeated } = self.redis.connection.exchange(end, releases(lease), &delete).await?;
            match only(answers)? {
                Ok(Value::Int(0)) => {
                    let lingers = self.lingers(lease, end).await;
                    let lingers = if repeated { lingers.map_err(Error::maybe_applied) } else { lingers };
                    return Ok(Some((lingers?, repeated)));
                }
                Ok(answer) => return Ok(Some((answer, repeated))),
                // Of a repetition as well: a server that does not know the command has not run it
                // before.
                Err(error) if is_no_command(&error) => link.has_no_delete(tried),
                Err(error) if repeated => return Err(translate(&error).maybe_applied()),
                // The script says why.
                Err(_) => return Ok(None),
            }
        }
    }

    /// 1 if the owner's share lingers, so was released, else 0.
    async fn lingers(&self, lease: &Lease, end: Instant) -> Result<Value, Error> {
        let keys = self.redis.layout.of(&lease.name);
        let get = |_: &Link| Commands::of_key(&keys.name(), b"GET", &[]);
        let Exchange { answers, .. } = self.redis.connection.exchange(end, Repeat::Freely, get).await?;
        let value = only(answers)?.map_err(|e| translate(&e))?;
        let lingers = matches!(value, Value::BulkString(value) if value == lease.owner.lingering().as_bytes());
        Ok(Value::Int(lingers.into()))
    }
}

#[async_trait]
impl Store for SetNxStore {
    fn features(&self) -> Features {
        let features = self.redis.features();
        let second = Duration::from_secs(1);
        let (min_ttl, late_end) = if self.seconds { (second, second) } else { (features.min_ttl, features.late_end) };
        mutexes_only(features, self.wakes).with_min_ttl(min_ttl).with_late_end(late_end)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check_request(request)?;
        let (ttl, end) = (self.kept(request.ttl), self.redis.end(request.ttl));
        check_mutex(request, self)?;
        // The first request goes by script: a user who may run none can neither renew nor release,
        // and must find out before anything is taken.
        if request.from.is_some() || !self.scripts.load(Ordering::Relaxed) {
            let answer = self.ask(request, ttl, false, end).await?;
            self.scripts.store(true, Ordering::Relaxed);
            return Ok(answer);
        }
        let (set, repeated) = self.set(request, ttl, end).await?;
        if set {
            return Ok(AcquireReply::Granted(Grant::new(None, ttl)));
        }
        let answer = self.ask(request, ttl, repeated, end).await;
        if repeated { answer.map_err(Error::maybe_applied) } else { answer }
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // Keys of other libraries may be in any slot.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        if !self.seconds {
            return self.redis.renew_all(leases, At::Name, end).await;
        }
        let leases: Vec<Lease> = leases.iter().map(|lease| lease.clone().with_ttl(self.kept(lease.ttl))).collect();
        self.redis.renew_all(&leases, At::Name, end).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let end = self.redis.end(lease.ttl);
        let wakes: &[u8] = match self.wakes {
            Wakes::No | Wakes::Change => b"",
            Wakes::Message => b"message",
            Wakes::Entry => b"entry",
        };
        if linger.is_zero()
            && wakes.is_empty()
            && let Some(answer) = self.delete(lease, end).await?
        {
            return released(answer);
        }
        let linger = Digits::of(millis(linger));
        let beside = format!("{}{}", self.beside, lease.name);
        let args = [lease.owner.as_bytes(), linger.as_bytes(), wakes, beside.as_bytes()];
        let keys = self.redis.layout.of(&lease.name);
        released(self.redis.run(&scripts::SET_NX_RELEASE, &[keys.name()], &args, releases(lease), end).await?)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        watch(&self.redis, self.wakes, request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.redis.inspect(name).await
    }
}

/// Asks `script` for all of `keys`, which are those of the name. `repeated`: an earlier try had no
/// answer.
#[allow(clippy::too_many_arguments, reason = "two stores ask the same of their own keys")]
pub(crate) async fn ask(
    redis: &RedisStore,
    script: &Script,
    keys: &[Key<'_>],
    wakes: Wakes,
    request: &Request,
    ttl: Duration,
    repeated: bool,
    end: Instant,
) -> Result<AcquireReply, Error> {
    let (ms, from) = (Digits::of(millis(ttl)), request.from.as_ref().map_or(&b""[..], |from| from.as_bytes()));
    let generated: &[u8] = if request.generated { b"1" } else { b"0" };
    let args = [request.owner.as_bytes(), ms.as_bytes(), generated, from];
    let tracks = |link: &Link| wakes != Wakes::No && link.tracks() == Some(true);
    let call = |link: &Link, form| {
        let mut commands = Commands::new();
        // Its next change is reported, from the moment on at which it is seen as it is.
        if tracks(link) {
            commands.add(&TRACK_NEXT);
        }
        scripts::add_call(&mut commands, script, form, keys, &args);
        commands
    };
    let Exchange { link, answers, repeated: again } = redis.connection.call(end, Repeat::Settled, &call).await?;
    let tracked = tracks(&link) && answers.first().is_some_and(Result::is_ok);
    let answer = answers.into_iter().next_back().ok_or_else(|| unexpected("no reply").maybe_applied())?;
    let answer = match answer.map_err(|error| translate(&error)) {
        Err(error) => {
            let error = if again { error.maybe_applied() } else { error };
            return Err(Box::pin(redis.named(error, &request.name, None)).await);
        }
        Ok(answer) => answer,
    };
    let held = match &answer {
        Value::Int(1) => return Ok(AcquireReply::Granted(Grant::new(None, ttl))),
        Value::Array(held) => &held[..],
        other => return Err(unexpected(format_args!("{other:?} to an acquisition")).maybe_applied()),
    };
    let holder = match held {
        [Value::BulkString(value), Value::Int(left)] => Some(holder(value, *left, Share::MUTEX)),
        _ => None,
    };
    let polls = redis.poll_interval(false, None, None);
    let busy = Busy::new(if tracked { HEARTBEAT.max(polls) } else { polls });
    let answer = AcquireReply::Busy(busy.with_holder(holder));
    if repeated || again { check_repeated(request, answer) } else { Ok(answer) }
}

/// Notifies of each change of the name's keys, of all clients. Silent if waiters of the library
/// poll: among them, one who is woken would leave the others no turn.
pub(crate) async fn watch(redis: &RedisStore, wakes: Wakes, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
    if wakes == Wakes::No {
        return Ok(stream::pending().boxed());
    }
    let keys = redis.layout.all_of(&request.name).map(|key| key.concat()).collect();
    let listeners = redis.connection.listen_to_keys(keys, redis.end(request.ttl)).await?;
    Ok(select_all(listeners).map(|_| Notice::Changed).boxed())
}

/// Features without what needs more than a value at a key.
pub(crate) fn mutexes_only(features: Features, wakes: Wakes) -> Features {
    features.with_fence(false).with_shares(false).with_queue(false).with_cohort(false).with_push(wakes != Wakes::No)
}

/// Refuses other shares: a key holds one value, of one owner.
pub(crate) fn check_mutex(request: &Request, store: &impl fmt::Display) -> Result<(), Error> {
    if request.share == Share::MUTEX {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("the locks in this scheme at {store} are mutexes only"))
        .with_hint("use a mutex"))
}

/// The span rounded up to whole seconds.
pub(crate) fn whole_seconds(span: Duration) -> Duration {
    Duration::from_secs(span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)))
}

impl fmt::Display for SetNxStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for SetNxStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetNxStore({:?})", self.redis)
    }
}
