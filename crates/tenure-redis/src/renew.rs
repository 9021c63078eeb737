//! Renewals: many leases to a script, and many scripts to an exchange.

use std::sync::OnceLock;

use futures_util::stream::{self, StreamExt};
use redis::Value;
use tenure::{Error, Lease, Renewal, Share, Store};
use tokio::time::Instant;

use crate::commands::{Commands, Digits};
use crate::connection::{Exchange, Repeat};
use crate::failure::translate;
use crate::keys::{Key, Keys};
use crate::link::Link;
use crate::native::{RedisStore, millis};
use crate::reply::{counter, only, renewals};
use crate::script::{self, Form, Script};
use crate::stamp::Stamp;

/// Leases to a renewal script: more would block the server for longer, fewer would cost it more for each.
const BATCH: usize = 100;

/// Leases to an exchange, and exchanges under way: what has been answered counts, whatever becomes of the rest, and the commands of
/// others get in between.
const TOGETHER: usize = 1_000;
const UNDER_WAY: usize = 3;

impl RedisStore {
    /// Whether only a push can have told of the lease: its fence is above all that the server has answered.
    pub(crate) fn is_unheard_of(&self, lease: &Lease) -> bool {
        lease.fence.is_some_and(|fence| fence.counter() > self.connection.seen())
    }

    /// Renews leases that have fences. The first renewal of one that was handed over reads the counter as well: what is above it was not
    /// told by the server, and is not kept.
    pub(crate) async fn renew_counted(&self, leases: &[Lease]) -> Vec<Result<Renewal, Error>> {
        let end = self.renewals_end(leases);
        if !leases.iter().any(|lease| self.is_unheard_of(lease)) {
            return self.renew_all(leases, None, end).await;
        }
        let read = self.read_counter(end).await;
        let (forged, sound): (Vec<&Lease>, Vec<&Lease>) = leases.iter().partition(|lease| self.is_unheard_of(lease));
        let sound: Vec<Lease> = sound.into_iter().cloned().collect();
        let mut renewed = self.renew_all(&sound, None, end).await.into_iter();
        let refusal = || read.as_ref().map_or_else(|error| Err(error.copy()), |()| Ok(Renewal::Gone));
        let answer = |lease: &Lease| {
            let is_forged = forged.iter().any(|forged| std::ptr::eq(*forged, lease));
            if is_forged { refusal() } else { renewed.next().unwrap_or_else(refusal) }
        };
        leases.iter().map(answer).collect()
    }

    async fn read_counter(&self, end: Instant) -> Result<(), Error> {
        let get = |_: &Link| {
            let mut commands = Commands::new();
            commands.add(&[b"GET", self.layout.counter.as_bytes()]);
            commands
        };
        let answers = self.connection.exchange(end, Repeat::Freely, get).await?.answers;
        let stored = only(answers)?.map_err(|e| translate(&e))?;
        self.connection.saw(if stored == Value::Nil { 0 } else { counter(&stored)? });
        Ok(())
    }

    /// Renews leases of names that hold their owners, or, where they are `stamped`, points in time.
    pub(crate) async fn renew_all(&self, leases: &[Lease], stamped: Option<Stamp>, end: Instant) -> Vec<Result<Renewal, Error>> {
        let (mutexes, shares): (Vec<&Lease>, Vec<&Lease>) = leases.iter().partition(|lease| lease.share == Share::MUTEX);
        let batches: Vec<Vec<&Lease>> = mutexes.chunks(BATCH).chain(shares.chunks(BATCH)).map(<[_]>::to_vec).collect();
        let (mut answers, mut refused) = (Vec::with_capacity(leases.len()), Vec::new());
        let outcomes = self.renew_batches(end, BATCH, &batches, stamped).await;
        for (batch, outcome) in batches.into_iter().zip(outcomes) {
            match outcome {
                Ok(renewals) => answers.extend(batch.into_iter().zip(renewals.into_iter().map(Ok))),
                // One lease that the server refuses fails its whole batch. All in turn, each on its own.
                Err(error) if batch.len() > 1 && !error.is_transient() => {
                    refused.extend(batch.into_iter().map(|alone| vec![alone]));
                }
                Err(error) => answers.extend(batch.into_iter().map(|lease| (lease, Err(error.copy())))),
            }
        }
        let outcomes = self.renew_batches(end, 1, &refused, stamped).await;
        for (alone, outcome) in refused.into_iter().zip(outcomes) {
            answers.extend(alone.into_iter().zip([outcome.map(|renewals| renewals[0])]));
        }
        // The caller's order is that of the addresses in its slice.
        answers.sort_by_key(|(lease, _)| std::ptr::from_ref::<Lease>(lease));
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// When renewals that begin now have to be over: somewhat before the caller gives up, so that the answers there are reach it.
    pub(crate) fn renewals_end(&self, leases: &[Lease]) -> Instant {
        let limit = self.features().limit(leases.iter().map(|lease| lease.ttl).min().unwrap_or_default());
        Instant::now() + limit.mul_f64(0.9)
    }

    fn add_renewal(&self, commands: &mut Commands, leases: &[&Lease], stamped: Option<Stamp>, form: Form) {
        let of_shares = leases.first().is_some_and(|lease| lease.share != Share::MUTEX);
        let of_each: Vec<Keys<'_>> = leases.iter().map(|lease| self.layout.of(&lease.name)).collect();
        let (script, keys): (&Script, Vec<Key<'_>>) = match stamped {
            Some(_) => (&script::STAMP_RENEW, of_each.iter().flat_map(|keys| [keys.name(), keys.owner()]).collect()),
            None if of_shares => (&script::RENEW_SHARES, of_each.iter().flat_map(|keys| [keys.name(), keys.shares()]).collect()),
            None => (&script::RENEW, of_each.iter().map(Keys::name).collect()),
        };
        let ttls: Vec<Digits> = leases.iter().map(|lease| Digits::of(millis(lease.ttl))).collect();
        let of_leases = leases.iter().zip(&ttls).flat_map(|(lease, ttl)| [lease.owner.as_bytes(), ttl.as_bytes()]);
        let args: Vec<&[u8]> = stamped.map(Stamp::word).into_iter().chain(of_leases).collect();
        script::add_call(commands, script, form, &keys, &args);
    }

    /// Renews batches of at most `size`, a number of leases in each exchange; what each batch answers, or why it was refused. What
    /// has not been sent by `end` never is.
    async fn renew_batches(
        &self,
        end: Instant,
        size: usize,
        batches: &[Vec<&Lease>],
        stamped: Option<Stamp>,
    ) -> Vec<Result<Vec<Renewal>, Error>> {
        let failed = OnceLock::new();
        let exchanges: Vec<_> =
            batches.chunks(TOGETHER / size).map(|batches| self.renew_together(end, batches, stamped, &failed)).collect();
        stream::iter(exchanges).buffered(UNDER_WAY).concat().await
    }

    /// Renews batches in one exchange, unless an earlier one has `failed`.
    async fn renew_together(
        &self,
        end: Instant,
        batches: &[Vec<&Lease>],
        stamped: Option<Stamp>,
        failed: &OnceLock<Error>,
    ) -> Vec<Result<Vec<Renewal>, Error>> {
        let pipeline = |_: &Link, form| {
            let mut commands = Commands::new();
            for batch in batches {
                self.add_renewal(&mut commands, batch, stamped, form);
            }
            commands
        };
        let outcome = match failed.get() {
            Some(error) => Err(error.copy()),
            None if Instant::now() >= end => Err(Error::unreachable("the time for renewals was over before this one was sent")),
            None => self.connection.call(end, Repeat::Freely, pipeline).await,
        };
        match outcome {
            Ok(Exchange { answers, .. }) => {
                batches.iter().zip(answers).map(|(batch, answer)| renewals(answer, batch.len())).collect()
            }
            Err(error) => {
                let every = batches.iter().map(|_| Err(error.copy())).collect();
                // The first is as good as any.
                let _ = failed.set(error);
                every
            }
        }
    }
}
