//! Renewals: many leases to a script, and many scripts to an exchange.

use std::borrow::Cow;
use std::sync::OnceLock;

use futures_util::stream::{self, StreamExt};
use tenure::store::{RenewReply, Store};
use tenure::{Error, Fence, Lease, Share};
use tokio::time::Instant;

use crate::commands::{Commands, Digits};
use crate::connection::{Exchange, Repeat};
use crate::failure::{translate, unexpected};
use crate::keys::{Key, Keys};
use crate::link::{Link, now_ms};
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

/// Leases that are to be renewed, and what those are answered that are not.
pub(crate) struct Checked<'a> {
    /// To be renewed.
    pub(crate) kept: Cow<'a, [Lease]>,
    /// For each lease, what it is answered without being renewed; empty where all are kept.
    refused: Vec<Option<Result<RenewReply, Error>>>,
}

impl RedisStore {
    /// Renews leases that have fences.
    pub(crate) async fn renew_counted(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.renewals_end(leases);
        let checked = self.check_pushed(leases, end).await;
        let answers = self.renew_all(&checked.kept, None, end).await;
        self.answered(checked, answers)
    }

    /// Reads the counter before the first renewal of a lease of which a push alone has told. What is above it was not told by the server,
    /// and is not renewed. A counter that is gone, fell back or is no number says nothing of a fence: the store's word about the owner counts.
    pub(crate) async fn check_pushed<'a>(&self, leases: &'a [Lease], end: Instant) -> Checked<'a> {
        let now = now_ms();
        let pushed: Vec<Option<u64>> = leases.iter().map(|lease| self.connection.counter().before_push(lease, now)).collect();
        if pushed.iter().all(Option::is_none) {
            return Checked { kept: Cow::Borrowed(leases), refused: Vec::new() };
        }
        let counter = self.read_counter(end).await;
        let refusal = |(lease, before): (&Lease, Option<u64>)| match (before?, &counter) {
            (_, Err(error)) => Some(Err(error.clone())),
            (before, Ok(Some(counter))) => {
                let forged = before <= *counter && lease.fence.is_some_and(|fence| *counter < fence.counter());
                forged.then_some(Ok(RenewReply::Gone))
            }
            (_, Ok(None)) => None,
        };
        let refused: Vec<_> = leases.iter().zip(pushed).map(refusal).collect();
        let kept = leases.iter().zip(&refused).filter(|(_, refusal)| refusal.is_none()).map(|(lease, _)| lease.clone()).collect();
        Checked { kept: Cow::Owned(kept), refused }
    }

    /// What all leases are answered, where those that were kept were answered this.
    pub(crate) fn answered(
        &self,
        checked: Checked<'_>,
        answers: Vec<Result<RenewReply, Error>>,
    ) -> Vec<Result<RenewReply, Error>> {
        for (lease, answer) in checked.kept.iter().zip(&answers) {
            if matches!(answer, Ok(RenewReply::Renewed)) {
                self.connection.counter().confirmed(&lease.owner);
            }
        }
        if checked.refused.is_empty() {
            return answers;
        }
        let mut answers = answers.into_iter();
        let answer = |refusal: Option<_>| refusal.or_else(|| answers.next()).unwrap_or_else(|| Err(unexpected("no answer")));
        checked.refused.into_iter().map(answer).collect()
    }

    /// The counter at the server; none where it is gone or no number.
    async fn read_counter(&self, end: Instant) -> Result<Option<u64>, Error> {
        let get = |_: &Link| {
            let mut commands = Commands::new();
            commands.add(&[b"GET", self.layout.counter.as_bytes()]);
            commands
        };
        let answers = self.connection.exchange(end, Repeat::Freely, get).await?.answers;
        let stored = match only(answers)?.map_err(|e| translate(&e)) {
            Ok(stored) => counter(&stored).ok(),
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => None,
        };
        let sound = stored.filter(|counter| *counter <= Fence::MAX_COUNTER);
        if let Some(counter) = sound {
            self.connection.saw(counter);
        }
        Ok(sound)
    }

    /// Renews leases of names that hold their owners, or, where they are `stamped`, points in time.
    pub(crate) async fn renew_all(
        &self,
        leases: &[Lease],
        stamped: Option<Stamp>,
        end: Instant,
    ) -> Vec<Result<RenewReply, Error>> {
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
                Err(error) => answers.extend(batch.into_iter().map(|lease| (lease, Err(error.clone())))),
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
    ) -> Vec<Result<Vec<RenewReply>, Error>> {
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
    ) -> Vec<Result<Vec<RenewReply>, Error>> {
        let pipeline = |_: &Link, form| {
            let mut commands = Commands::new();
            for batch in batches {
                self.add_renewal(&mut commands, batch, stamped, form);
            }
            commands
        };
        let outcome = match failed.get() {
            Some(error) => Err(error.clone()),
            None if Instant::now() >= end => Err(Error::unreachable("the time for renewals was over before this one was sent")),
            None => self.connection.call(end, Repeat::Freely, pipeline).await,
        };
        match outcome {
            Ok(Exchange { answers, .. }) => {
                batches.iter().zip(answers).map(|(batch, answer)| renewals(answer, batch.len())).collect()
            }
            Err(error) => {
                let every = batches.iter().map(|_| Err(error.clone())).collect();
                // The first is as good as any.
                let _ = failed.set(error);
                every
            }
        }
    }
}
