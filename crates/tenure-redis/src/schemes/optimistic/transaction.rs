//! Transactions by `WATCH`, `MULTI` and `EXEC`.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Error, ErrorKind, Fence, Name};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};

use super::found::Found;
use crate::native::counter::EPOCH;
use crate::native::keys::Layout;
use crate::native::reply::about_counter;
use crate::native::store::{RedisStore, Settings};
use crate::transport::commands::{Commands, Digits};
use crate::transport::connection::{Connection, Exchange, Repeat};
use crate::transport::contact::now_ms;
use crate::transport::failure::{translate, unexpected};
use crate::transport::link::Link;
use crate::transport::meanings::COUNTER_FIX;
use crate::transport::reply::{Answers, executed, read, time};

/// How far the counter may be raised without being watched, us. Each client that raises it adds
/// what it was behind when that client read it, so several that do at once raise it too far. But if
/// it were always watched, each of them would undo all others.
const NEAR: u64 = 60_000_000;

/// A connection with one transaction at a time.
pub(super) struct TransactionConnection {
    connection: Connection,
    redis: RedisStore,
    /// Transactions here may grant. Else the counter need not be usable.
    grants: bool,
    turn: Mutex<()>,
}

/// A finished transaction.
pub(super) struct Done<T> {
    pub(super) outcome: T,
    /// The grant counter before it.
    pub(super) grant_seq: u64,
    /// It was written once before, and nobody knows whether that was applied.
    pub(super) repeated: bool,
}

/// One try of a transaction.
pub(super) enum Tried<T> {
    Done(Done<T>),
    /// The counter is, and has to be watched to be raised.
    FarBehind,
    /// Another client was faster, or the connection was replaced on the way. `unheard`: nobody
    /// knows whether this try was applied.
    Overtaken {
        unheard: bool,
    },
}

/// State at the beginning of a transaction.
struct Seen {
    link: Arc<Link>,
    now: Duration,
    counter: u64,
    found: Vec<Found>,
}

impl TransactionConnection {
    pub(super) async fn open(settings: &Settings, redis: &RedisStore, grants: bool) -> Result<Self, Error> {
        Ok(Self { connection: settings.open().await?, redis: redis.clone(), grants, turn: Mutex::default() })
    }

    pub(super) fn has_late_commands(&self) -> bool {
        self.connection.has_late_commands()
    }

    pub(super) async fn turn(&self, end: Instant) -> Result<MutexGuard<'_, ()>, Error> {
        let in_time = timeout_at(end, self.turn.lock()).await.ok().filter(|_| Instant::now() < end);
        in_time.ok_or_else(|| Error::unavailable("other transactions of this process took all the time there was"))
    }

    /// Applies `change` to the state of the names, and writes all of it or nothing.
    ///
    /// # Cancel safety
    /// A written change stays. The next transaction ends a watch that is left.
    pub(super) async fn transact<T: Send>(
        &self,
        names: &[&Name],
        repeat: Repeat,
        end: Instant,
        mut change: impl FnMut(&mut [Found], Duration, &mut dyn FnMut() -> u64) -> Result<T, Error> + Send,
    ) -> Result<Done<T>, Error> {
        let _turn = self.turn(end).await?;
        let (mut watched, mut repeated) = (false, false);
        while Instant::now() < end {
            let tried = self.attempt(names, watched, repeat, end, &mut change).await;
            match tried.map_err(|error| if repeated { error.maybe_applied() } else { error })? {
                Tried::Done(done) => return Ok(Done { repeated: repeated || done.repeated, ..done }),
                Tried::FarBehind => watched = true,
                Tried::Overtaken { unheard } => (watched, repeated) = (false, repeated || unheard),
            }
        }
        Err(if repeated { overtaken().maybe_applied() } else { overtaken() })
    }

    /// Reads once, applies `change`, and writes unless another client was faster. If `watched`, the
    /// counter is watched as well.
    pub(super) async fn attempt<T: Send>(
        &self,
        names: &[&Name],
        watched: bool,
        repeat: Repeat,
        end: Instant,
        change: &mut (impl FnMut(&mut [Found], Duration, &mut dyn FnMut() -> u64) -> Result<T, Error> + Send),
    ) -> Result<Tried<T>, Error> {
        let (seen, sent_at) = (self.redis.counter.largest(), now_ms());
        let Seen { link, now, counter, mut found } = self.see(names, watched, end).await?;
        let doubts = link.doubts();
        let due = counter < seen || link.due_raise(sent_at, self.redis.counter.pushed_at()).is_some();
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
        let done = |repeated| Tried::Done(Done { outcome, grant_seq: counter, repeated });
        let Some(writes) = self.writes(names, &found, now, if grants { last - counter } else { 0 }) else {
            return Ok(done(false));
        };
        // On another connection nothing is watched.
        let write = |to: &Link| if std::ptr::eq(to, &raw const *link) { writes.clone() } else { Commands::of(&[b"PING"]) };
        let Exchange { link: asked, answers, repeated } = self.connection.exchange(end, repeat, write).await?;
        if Arc::ptr_eq(&asked, &link) && executed(answers)?.is_some() {
            // A counter that was not written does not count.
            if due && grants {
                self.redis.counter.raised(seen, first, sent_at);
                link.raised(sent_at, doubts);
            }
            self.redis.counter.saw(if grants { last } else { counter }, now_ms());
            return Ok(done(repeated));
        }
        Ok(Tried::Overtaken { unheard: repeated })
    }

    /// Watches the names and reads what is there.
    async fn see(&self, names: &[&Name], counter_too: bool, end: Instant) -> Result<Seen, Error> {
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            // Ends the watch of an abandoned transaction.
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
            add_questions(&mut commands, &self.redis.layout, names);
            commands
        };
        let Exchange { link, answers, .. } = self.connection.exchange(end, Repeat::Freely, ask).await?;
        let mut answers = answers.into_iter();
        for _ in 0..2 {
            answers.next().ok_or_else(|| unexpected("no reply"))?.map_err(|e| translate(&e))?;
        }
        let stored = read(answers.next().ok_or_else(|| unexpected("no reply"))?).map_err(about_counter);
        let counter = stored.and_then(|stored| self.usable(stored));
        let counter = if self.grants { counter? } else { counter.unwrap_or_default() };
        self.redis.counter.saw(counter, now_ms());
        let (now, found) = read_found(answers.collect())?;
        Ok(Seen { link, now, counter, found: found.into_iter().collect::<Result<_, _>>()? })
    }

    /// Reads the counter from its stored digits.
    fn usable(&self, stored: Option<Vec<u8>>) -> Result<u64, Error> {
        let counter = stored.map_or(Some(0), |digits| std::str::from_utf8(&digits).ok()?.parse().ok());
        counter.filter(|counter| *counter < Fence::MAX_COUNTER).ok_or_else(|| {
            Error::refused(format!("the grant counter at {} cannot be used", self.redis.layout.counter)).with_hint(COUNTER_FIX)
        })
    }

    /// The commands that write the changes. None if there are none.
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
            // Never SET: in the transaction of another name the counter may have risen since it was
            // read.
            commands.add(&[b"INCRBY", self.redis.layout.counter.as_bytes(), Digits::of(grants).as_bytes()]);
        }
        commands.add(&[b"EXEC"]);
        Some(commands)
    }
}

/// Adds the questions that [`read_found`] reads the answers to.
pub(super) fn add_questions(commands: &mut Commands, layout: &Layout, names: &[&Name]) {
    commands.add(&[b"TIME"]);
    for name in names {
        let keys = layout.of(name);
        for question in [&b"GET"[..], b"PTTL"] {
            commands.about(&keys.name(), question, &[]);
        }
    }
}

/// The server's time, and what is at each name.
pub(super) fn read_found(answers: Answers) -> Result<(Duration, Vec<Result<Found, Error>>), Error> {
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

pub(super) fn overtaken() -> Error {
    Error::overloaded("others changed the name again and again")
}

/// A seen counter if the clock explains it, else 0: one bad value must not use up the numbers. As
/// in `fence.lua`.
fn within(seen: u64, micros: u64) -> u64 {
    const AHEAD: u64 = 10 * 365 * 24 * 3_600 * 1_000_000;
    if seen <= micros + AHEAD { seen } else { 0 }
}

/// Microseconds from the beginning of 2026, as the native layout counts them. 0 if the clock is
/// more than a century ahead.
fn micros(now: Duration) -> u64 {
    u64::try_from(now.saturating_sub(EPOCH).as_micros()).ok().filter(|micros| *micros <= Fence::MAX_COUNTER / 2).unwrap_or(0)
}
