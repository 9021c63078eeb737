//! Transactions by `WATCH`, `MULTI` and `EXEC`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenure::store::cas::Wrote;
use tenure::{Error, ErrorKind, Fence, Name};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::begun::Begun;
use super::found::{Found, Value, add_write, refused};
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
    /// The counter is far behind, so that the next transaction watches it to raise it.
    far_behind: AtomicBool,
    turn: Arc<Mutex<()>>,
}

impl TransactionConnection {
    pub(super) async fn open(settings: &Settings, redis: &RedisStore, grants: bool) -> Result<Self, Error> {
        let (connection, redis) = (settings.open().await?, redis.clone());
        Ok(Self { connection, redis, grants, far_behind: AtomicBool::default(), turn: Arc::default() })
    }

    pub(super) fn has_late_commands(&self) -> bool {
        self.connection.has_late_commands()
    }

    /// Watches the names and reads what is there. The transaction ends when all of it is dropped.
    ///
    /// # Cancel safety
    /// The next transaction ends a watch that is left.
    pub(super) async fn begin(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error> {
        let in_time = timeout_at(end, Arc::clone(&self.turn).lock_owned()).await.ok().filter(|_| Instant::now() < end);
        let late = || Error::unavailable("other transactions of this process took all the time there was");
        let turn = in_time.ok_or_else(late)?;
        let watched = self.far_behind.swap(false, Ordering::Relaxed);
        let (seen, sent_at) = (self.redis.counter.largest(), now_ms());
        let ask = |_: &Link| {
            let mut commands = Commands::new();
            // Ends the watch of an abandoned transaction.
            commands.add(&[b"UNWATCH"]);
            let counter_key = self.redis.layout.counter.as_bytes();
            commands.begin(1 + names.len() + usize::from(watched));
            commands.word(b"WATCH");
            if watched {
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
        let doubts = link.doubts();
        let due = counter < seen || link.due_raise(sent_at, self.redis.counter.pushed_at()).is_some();
        let first = if due { counter.max(within(seen, micros(now))).max(micros(now)) } else { counter };
        let begun = Arc::new(Begun {
            link,
            counter,
            seen,
            first,
            due,
            watched,
            sent_at,
            doubts,
            turn: std::sync::Mutex::new(Some(turn)),
        });
        let watched_by = |mut found: Found| {
            (found.counter, found.floor) = (counter, Some(first + 1));
            found.version.begun = Some(Arc::clone(&begun));
            found
        };
        found.into_iter().map(|found| found.map(watched_by)).collect()
    }

    /// Writes the new states unless another client was faster. `last`: the largest number of a grant, if there was one.
    ///
    /// # Cancel safety
    /// A written change stays.
    pub(super) async fn write(
        &self,
        states: &[(&Name, &Found)],
        last: Option<u64>,
        repeat: Repeat,
        end: Instant,
    ) -> Result<Wrote<Value>, Error> {
        let Some(begun) = states.first().and_then(|(_, found)| found.version.begun.as_ref()) else {
            return Ok(Wrote::nothing());
        };
        if last.is_some() && !begun.watched && begun.first - begun.counter > NEAR {
            self.far_behind.store(true, Ordering::Relaxed);
            return Ok(Wrote::nothing());
        }
        let Some(writes) = self.writes(states, last.map_or(0, |last| last - begun.counter)) else {
            return Ok(Wrote::all());
        };
        // On another connection nothing is watched.
        let write = |to: &Link| if std::ptr::eq(to, &raw const *begun.link) { writes.clone() } else { Commands::of(&[b"PING"]) };
        let Exchange { link: asked, answers, repeated } = self.connection.exchange(end, repeat, write).await?;
        // What follows needs no watch.
        drop(begun.turn.lock().unwrap_or_else(PoisonError::into_inner).take());
        if !Arc::ptr_eq(&asked, &begun.link) || executed(answers)?.is_none() {
            return Ok(Wrote::nothing().with_unheard(repeated));
        }
        // A counter that was not written does not count.
        if begun.due && last.is_some() {
            self.redis.counter.raised(begun.seen, begun.first, begun.sent_at);
            begun.link.raised(begun.sent_at, begun.doubts);
        }
        self.redis.counter.saw(last.unwrap_or(begun.counter), now_ms());
        for held in states.iter().flat_map(|(_, found)| found.record.holders()) {
            self.redis.counter.confirmed(&held.owner);
        }
        Ok(Wrote::all().with_unheard(repeated))
    }

    /// Reads the counter from its stored digits.
    fn usable(&self, stored: Option<Vec<u8>>) -> Result<u64, Error> {
        let counter = stored.map_or(Some(0), |digits| std::str::from_utf8(&digits).ok()?.parse().ok());
        counter.filter(|counter| *counter < Fence::MAX_COUNTER).ok_or_else(|| {
            Error::refused(format!("the grant counter at {} cannot be used", self.redis.layout.counter)).with_hint(COUNTER_FIX)
        })
    }

    /// The commands that write the changes. None if there are none.
    fn writes(&self, states: &[(&Name, &Found)], grants: u64) -> Option<Commands> {
        let mut commands = Commands::new();
        commands.add(&[b"MULTI"]);
        for (name, found) in states {
            add_write(found, &mut commands, &self.redis.layout.of(name).name());
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
            Err(error) if error.kind() == ErrorKind::Mismatch => Ok(refused(error, now)),
            value => value.and_then(|value| super::found::read(value, read(left)?, now)),
        });
    }
    Ok((now, all))
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
