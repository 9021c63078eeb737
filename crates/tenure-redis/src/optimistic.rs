//! Locks by `WATCH`, `MULTI` and `EXEC`: for servers and proxies that run no scripts.
//!
//! A name holds its whole record as one value: who holds, who waits, until when. A call reads it, changes it here, and writes it back
//! unless anybody has changed it meanwhile; then it begins anew. What is watched belongs to a connection, so there are some for this alone, each
//! with one transaction at a time: an `EXEC` among the commands of others would end their watch and take their change for unharmed.
//!
//! A value that is no record is a lock of somebody else's. It is left as it is, so nobody can queue behind it.

mod found;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::store::record::{Answer, Change, Served};
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Lease, Name};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};

use self::found::Found;
use crate::commands::{Commands, Digits};
use crate::connection::{Connection, Exchange, Repeat};
use crate::failure::{COUNTER_FIX, translate, unexpected};
use crate::link::{Answers, Link, now_ms};
use crate::native::{RedisStore, about_counter, check_from, millis, released, releases, told_apart};
use crate::options::Options;
use crate::reply::{executed, read, time};

/// Every kind of lock by `WATCH`, see [`Scheme::Watch`](crate::Scheme::Watch).
///
/// # Round trips
/// Each call 2, and 2 more whenever somebody else was faster; renew 2 for each 100 leases; a hand-over 1 more, to tell. One call after
/// another.
pub(crate) struct OptimisticStore {
    /// Everything that needs no transaction, and where pushes are heard.
    redis: RedisStore,
    lane: Lane,
    /// Those who ask and wait may be many: renewals do not stand in line with them. One that runs late changes nothing, because it only
    /// writes what nobody has changed.
    renewals: Lane,
}

/// A connection for transactions, one at a time.
struct Lane {
    connection: Connection,
    /// What is asked here may be granted. Else the counter need not be usable.
    grants: bool,
    turn: Mutex<()>,
}

/// How far the counter may be lifted without being watched, us. Whoever lifts it adds what it was behind when he looked, so several who do
/// at once lift it too far; but if it were always watched, each of them would undo all others.
const NEAR: u64 = 60_000_000;

/// Leases to a transaction: more would be undone by others more often.
const BATCH: usize = 100;

/// What came of one try of a transaction.
enum Tried<T> {
    Done(Done<T>),
    /// The counter is, and has to be watched to be lifted.
    FarBehind,
    /// Somebody else was faster; or the connection was another at the end, and nobody knows what became of the first, or it had sent
    /// nothing.
    Overtaken {
        unheard: bool,
    },
}

impl Lane {
    async fn open(options: &Options, grants: bool) -> Result<Self, Error> {
        Ok(Self { connection: Connection::open(options).await?, grants, turn: Mutex::default() })
    }

    async fn turn(&self, end: Instant) -> Result<MutexGuard<'_, ()>, Error> {
        let in_time = timeout_at(end, self.turn.lock()).await.ok().filter(|_| Instant::now() < end);
        in_time.ok_or_else(|| Error::unavailable("other transactions of this process took all the time there was"))
    }
}

/// What is read at the beginning of a transaction.
struct Seen {
    link: Arc<Link>,
    now: Duration,
    counter: u64,
    found: Vec<Found>,
}

/// What came of a transaction.
struct Done<T> {
    outcome: T,
    /// The grant counter before it.
    mark: u64,
    /// It was written once before, and nobody knows what came of that.
    repeated: bool,
}

impl OptimisticStore {
    pub(crate) async fn connect(redis: RedisStore, options: &Options) -> Result<Self, Error> {
        Ok(Self { redis, lane: Lane::open(options, true).await?, renewals: Lane::open(options, false).await? })
    }

    /// Has `change` change what is at the names, and writes it, all of it or nothing.
    ///
    /// # Cancel safety
    /// What was written stands. What is left watched is given up by the next transaction.
    async fn transact<T: Send>(
        &self,
        names: &[&Name],
        repeat: Repeat,
        end: Instant,
        mut change: impl FnMut(&mut [Found], Duration, &mut dyn FnMut() -> u64) -> Result<T, Error> + Send,
    ) -> Result<Done<T>, Error> {
        let _turn = self.lane.turn(end).await?;
        let (mut watched, mut repeated) = (false, false);
        while Instant::now() < end {
            let tried = self.attempt(&self.lane, names, watched, repeat, end, &mut change).await;
            match tried.map_err(|error| if repeated { error.maybe_applied() } else { error })? {
                Tried::Done(done) => return Ok(Done { repeated: repeated || done.repeated, ..done }),
                Tried::FarBehind => watched = true,
                Tried::Overtaken { unheard } => (watched, repeated) = (false, repeated || unheard),
            }
        }
        Err(if repeated { overtaken().maybe_applied() } else { overtaken() })
    }

    /// One look, and what `change` makes of it, written unless somebody else was faster. The counter may be `watched` as well.
    async fn attempt<T: Send>(
        &self,
        lane: &Lane,
        names: &[&Name],
        watched: bool,
        repeat: Repeat,
        end: Instant,
        change: &mut (impl FnMut(&mut [Found], Duration, &mut dyn FnMut() -> u64) -> Result<T, Error> + Send),
    ) -> Result<Tried<T>, Error> {
        let (seen, sent_at) = (self.redis.connection.seen(), now_ms());
        let Seen { link, now, counter, mut found } = self.see(lane, names, watched, end).await?;
        let doubts = link.doubts();
        let due = counter < seen || link.due_lift(sent_at, self.redis.connection.counter().pushed_at()).is_some();
        let first = if due { counter.max(within(seen, micros(now))).max(micros(now)) } else { counter };
        let mut last = first;
        let mut next = || {
            last += 1;
            last
        };
        let outcome = change(&mut found, now, &mut next)?;
        let grants = last > first;
        if grants && !watched && first - counter > NEAR {
            return Ok(Tried::FarBehind);
        }
        let done = |repeated| Tried::Done(Done { outcome, mark: counter, repeated });
        let Some(writes) = self.writes(names, &found, now, if grants { last - counter } else { 0 }) else {
            return Ok(done(false));
        };
        // On any other connection nothing is watched.
        let write = |to: &Link| if std::ptr::eq(to, &raw const *link) { writes.clone() } else { ping() };
        let Exchange { link: asked, answers, repeated } = lane.connection.exchange(end, repeat, write).await?;
        if Arc::ptr_eq(&asked, &link) && executed(answers)?.is_some() {
            // What was not written is no counter.
            if due && grants {
                self.redis.connection.counter().lifted(seen, first, sent_at);
                link.lifted(sent_at, doubts);
            }
            self.redis.connection.saw(if grants { last } else { counter });
            return Ok(done(repeated));
        }
        Ok(Tried::Overtaken { unheard: repeated })
    }

    /// Watches the names and reads what is there.
    async fn see(&self, lane: &Lane, names: &[&Name], counter_too: bool, end: Instant) -> Result<Seen, Error> {
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            // Of one that was given up on the way.
            commands.add(&[b"UNWATCH"]);
            let counter_key = self.redis.layout.counter.as_bytes();
            commands.begin(1 + names.len() + usize::from(counter_too));
            commands.word(b"WATCH");
            if counter_too {
                commands.word(counter_key);
            }
            for name in names {
                commands.joined(&self.redis.layout.of(name).name());
            }
            commands.add(&[b"GET", counter_key]);
            self.add_look(&mut commands, names);
            commands
        };
        let Exchange { link, answers, .. } = lane.connection.exchange(end, Repeat::Freely, ask).await?;
        let mut answers = answers.into_iter();
        for _ in 0..2 {
            answers.next().ok_or_else(|| unexpected("no reply"))?.map_err(|e| translate(&e))?;
        }
        let stored = read(answers.next().ok_or_else(|| unexpected("no reply"))?).map_err(about_counter);
        let counter = stored.and_then(|stored| self.usable(stored));
        let counter = if lane.grants { counter? } else { counter.unwrap_or_default() };
        self.redis.connection.saw(counter);
        let (now, found) = look(answers.collect())?;
        Ok(Seen { link, now, counter, found: found.into_iter().collect::<Result<_, _>>()? })
    }

    /// The counter that is stored as these digits.
    fn usable(&self, stored: Option<Vec<u8>>) -> Result<u64, Error> {
        let counter = stored.map_or(Some(0), |digits| std::str::from_utf8(&digits).ok()?.parse().ok());
        counter.filter(|counter| *counter < Fence::MAX_COUNTER).ok_or_else(|| {
            Error::refused(format!("the grant counter at {} cannot be used", self.redis.layout.counter)).with_hint(COUNTER_FIX)
        })
    }

    /// Adds the questions that [`look`] reads the answers to.
    fn add_look(&self, commands: &mut Commands, names: &[&Name]) {
        commands.add(&[b"TIME"]);
        for name in names {
            let keys = self.redis.layout.of(name);
            for question in [&b"GET"[..], b"PTTL"] {
                commands.about(&keys.name(), question, &[]);
            }
        }
    }

    /// The commands that write what has changed; none where nothing has.
    fn writes(&self, names: &[&Name], found: &[Found], now: Duration, grants: u64) -> Option<Commands> {
        let mut commands = Commands::new();
        commands.add(&[b"MULTI"]);
        for (name, found) in names.iter().zip(found) {
            found.add_write(&mut commands, &self.redis.layout.of(name).name(), now);
        }
        if commands.count() == 1 {
            return None;
        }
        if grants > 0 {
            // Never set: in the transaction of another name the counter may have risen since it was read.
            commands.add(&[b"INCRBY", self.redis.layout.counter.as_bytes(), Digits::of(grants).as_bytes()]);
        }
        commands.add(&[b"EXEC"]);
        Some(commands)
    }

    /// Tells those who were served. Nobody depends on it: whoever is not told finds out when he looks.
    async fn tell<T>(&self, turn: Change<T>, end: Instant) -> T {
        let told: Vec<&Served> = turn.served.iter().filter(|served| !served.wake.is_empty()).collect();
        if !told.is_empty() {
            let publish = |_: &Link| {
                let mut commands = Commands::new();
                for Served { owner, counter, handoff_ttl: claim, wake, .. } in &told {
                    let message = [format!("{counter}:{} ", millis(*claim)).as_bytes(), owner.as_bytes()].concat();
                    commands.add(&[b"PUBLISH", wake.as_bytes(), &message]);
                }
                commands
            };
            let _ = self.redis.connection.exchange(end, Repeat::Freely, publish).await;
        }
        turn.answer
    }

    /// Tries to renew leases in one transaction; none where somebody else was faster.
    async fn renew_batch(&self, leases: &[Lease], end: Instant) -> Result<Option<Vec<RenewReply>>, Error> {
        let names: Vec<&Name> = leases.iter().map(|lease| &lease.name).collect();
        // Several shares of one name are changes to one record.
        let (mut places, mut distinct) = (Vec::with_capacity(names.len()), Vec::<&Name>::new());
        for name in names {
            let known = distinct.iter().position(|known| *known == name);
            places.push(known.unwrap_or(distinct.len()));
            if known.is_none() {
                distinct.push(name);
            }
        }
        let mut renew = |found: &mut [Found], now, _: &mut dyn FnMut() -> u64| {
            let renew = |(lease, place): (&Lease, &usize)| found[*place].record.renew(&lease.owner, lease.ttl, now);
            Ok(leases.iter().zip(&places).map(renew).collect())
        };
        let _turn = self.renewals.turn(end).await?;
        Ok(match self.attempt(&self.renewals, &distinct, false, Repeat::Settled, end, &mut renew).await? {
            Tried::Done(done) => Some(done.outcome),
            Tried::FarBehind | Tried::Overtaken { .. } => None,
        })
    }

    async fn look_at(&self, names: &[&Name]) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            self.add_look(&mut commands, names);
            commands
        };
        let answers = self.redis.connection.exchange(self.redis.end(Duration::MAX), Repeat::Freely, ask).await?.answers;
        let (now, found) = look(answers)?;
        let entry = |(name, found): (&&Name, Result<Found, Error>)| {
            let found = found?;
            found.check()?;
            let (holders, waiters) = found.record.inspect(now);
            Ok((!holders.is_empty() || waiters > 0).then(|| Entry::new((*name).clone(), holders, waiters)))
        };
        Ok(names.iter().zip(found).map(entry).collect())
    }
}

#[async_trait]
impl Store for OptimisticStore {
    fn features(&self) -> Features {
        let late_commands = self.lane.connection.has_late_commands() || self.renewals.connection.has_late_commands();
        self.redis.features().with_late_commands(late_commands)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check(&request.name)?;
        check_from(request)?;
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        let (end, channel) = (self.redis.end(request.ttl), self.redis.connection.channel().unwrap_or_default());
        let acquire = |found: &mut [Found], now, next: &mut dyn FnMut() -> u64| found[0].acquire(request, channel, now, next);
        let Done { outcome, mark, repeated } = self.transact(&[&request.name], Repeat::Settled, end, acquire).await?;
        let answer = self.tell(outcome, end).await;
        let recheck = match &answer {
            Answer::Busy { position, holder } => self.redis.recheck(!channel.is_empty(), *position, holder.as_ref()),
            Answer::Granted(_) => {
                self.redis.connection.counter().confirmed(&request.owner);
                Duration::ZERO
            }
        };
        let answer = answer.acquired(recheck, Some(mark));
        if repeated && !request.generated { told_apart(request, answer) } else { Ok(answer) }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(Request { ttl, .. }) = requests.first() else { return Ok(Some(Vec::new())) };
        for request in requests {
            self.redis.layout.check(&request.name)?;
        }
        let (names, end): (Vec<&Name>, _) = (requests.iter().map(|request| &request.name).collect(), self.redis.end(*ttl));
        let acquire = |found: &mut [Found], now, next: &mut dyn FnMut() -> u64| {
            let mut tried = found.to_vec();
            let one = |(request, found): (&Request, &mut Found)| found.acquire(request, "", now, next).map(Change::granted);
            // All are looked at, also when one is known to be busy: one of another kind is an error.
            let turns: Vec<Option<Change<Grant>>> = requests.iter().zip(&mut tried).map(one).collect::<Result<_, Error>>()?;
            let turns: Option<Vec<Change<Grant>>> = turns.into_iter().collect();
            if turns.is_some() {
                found.clone_from_slice(&tried);
            }
            Ok(turns)
        };
        let Some(turns) = self.transact(&names, Repeat::Settled, end, acquire).await?.outcome else {
            return Ok(None);
        };
        let mut grants = Vec::with_capacity(turns.len());
        for turn in turns {
            grants.push(self.tell(turn, end).await);
        }
        Ok(Some(grants))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        let checked = self.redis.check_pushed(leases, end).await;
        let leases = &checked.kept;
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = leases.iter().map(|_| None).collect();
        let mut parts: VecDeque<Range<usize>> =
            (0..leases.len()).step_by(BATCH).map(|at| at..leases.len().min(at + BATCH)).collect();
        while let Some(part) = parts.pop_front() {
            let outcome = self.renew_batch(&leases[part.clone()], end).await;
            let again = match &outcome {
                Ok(renewals) => renewals.is_none() && Instant::now() < end,
                Err(error) => part.len() > 1 && !error.is_transient(),
            };
            if again {
                // Halved, until whoever is to blame stands alone, and does not keep the others waiting.
                let middle = part.start + part.len() / 2;
                parts.extend([part.start..middle, middle..part.end].into_iter().filter(|part| !part.is_empty()));
                continue;
            }
            let outcome = outcome.and_then(|renewals| renewals.ok_or_else(overtaken));
            for at in part.clone() {
                let of_one = |renewals: &Vec<RenewReply>| renewals[at - part.start];
                answers[at] = Some(outcome.as_ref().map(of_one).map_err(Error::clone));
            }
        }
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(overtaken()))).collect();
        self.redis.answered(checked, answers)
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.redis.layout.check(&lease.name)?;
        let end = self.redis.end(lease.ttl);
        let release = |found: &mut [Found], now, next: &mut dyn FnMut() -> u64| {
            Ok(found[0].record.release(&lease.owner, linger, now, next))
        };
        let Done { outcome, repeated, .. } = self.transact(&[&lease.name], releases(lease), end, release).await?;
        self.redis.connection.counter().confirmed(&lease.owner);
        let answer = Value::Int(i64::from(self.tell(outcome, end).await == ReleaseReply::Released));
        released((answer, repeated))
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.redis.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            self.redis.layout.check(name)?;
            return self.look_at(&[name]).await?.into_iter().filter_map(Result::transpose).collect();
        }
        let mut entries = Vec::new();
        let mut scan = self.redis.scan("", "string");
        while let Some(keys) = scan.next().await? {
            let names: Vec<Name> = keys.iter().filter_map(|key| self.redis.name_of(key)).collect();
            let found = self.look_at(&names.iter().collect::<Vec<_>>()).await?.into_iter().filter_map(Result::ok).flatten();
            // A foreign lock looks like any other value.
            entries.extend(found.filter(|entry| entry.waiters > 0 || entry.holders.iter().any(|holder| holder.fence.is_some())));
        }
        Ok(entries)
    }
}

/// The server's time, and what is at each name.
fn look(answers: Answers) -> Result<(Duration, Vec<Result<Found, Error>>), Error> {
    let mut answers = answers.into_iter();
    let now = time(answers.next().ok_or_else(|| unexpected("no reply"))?)?;
    let mut all = Vec::with_capacity(answers.len() / 2);
    while let (Some(value), Some(left)) = (answers.next(), answers.next()) {
        all.push(match read(value) {
            Err(error) if error.kind() == ErrorKind::Mismatch => Ok(Found::of_another_type(error)),
            value => value.and_then(|value| Found::new(value, read(left)?, now)),
        });
    }
    Ok((now, all))
}

fn overtaken() -> Error {
    Error::unavailable("others changed the name again and again")
}

fn ping() -> Commands {
    let mut commands = Commands::new();
    commands.add(&[b"PING"]);
    commands
}

/// A counter that was seen, where a clock explains it; 0 where not: one bad value must not use up the numbers. As in `fence.lua`.
fn within(seen: u64, micros: u64) -> u64 {
    const AHEAD: u64 = 10 * 365 * 24 * 3_600 * 1_000_000;
    if seen <= micros + AHEAD { seen } else { 0 }
}

/// Microseconds from the beginning of 2026, as the native layout counts them; 0 where the clock is more than a century ahead.
fn micros(now: Duration) -> u64 {
    const START: Duration = Duration::from_secs(1_767_225_600); // 2026-01-01T00:00:00Z
    u64::try_from(now.saturating_sub(START).as_micros()).ok().filter(|micros| *micros <= Fence::MAX_COUNTER / 2).unwrap_or(0)
}

impl fmt::Display for OptimisticStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for OptimisticStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OptimisticStore({:?})", self.redis)
    }
}
