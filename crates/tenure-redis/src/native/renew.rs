//! Renewals: many leases to a script, and many scripts to an exchange.

use std::borrow::Cow;
use std::sync::OnceLock;

use futures_util::stream::{self, StreamExt};
use tenure::store::{RenewReply, Store};
use tenure::{Error, Fence, Kind, Lease, Share};
use tokio::time::Instant;

use crate::native::foreign::{beside_share, what_of};
use crate::native::keys::Keys;
use crate::native::notes;
use crate::native::reply::{counter, renewals};
use crate::native::store::RedisStore;
use crate::scripts::{self, Script};
use crate::transport::commands::{Commands, Digits, Key, millis, whole};
use crate::transport::connection::{Exchange, Repeat};
use crate::transport::contact::now_ms;
use crate::transport::failure::{translate, unexpected};
use crate::transport::form::Form;
use crate::transport::link::Link;
use crate::transport::reply::only;

/// Leases in one script: more would block the server for longer, fewer would cost it more for each.
pub(super) const BATCH: usize = 100;

/// Leases in one exchange, and exchanges in flight. Each answer counts, even if others fail, and
/// commands of other callers come in between.
const TOGETHER: usize = 1_000;
const UNDER_WAY: usize = 3;

/// Where the owner of a lease stands at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// It is the value, or one of the members, of the name.
    Name,
    /// The same, at a node of a quorum, which notes when its leases end, and renews no other.
    Node,
    /// It is the value of a key beside a timestamp value in this unit.
    Beside(&'static [u8]),
    /// It is a field of the name.
    Field,
    /// It is the value of a majority of the keys of the name.
    Majority,
}

/// Leases to renew, and the answers for the others.
pub(crate) struct Checked<'a> {
    /// Leases to renew.
    pub(crate) kept: Cow<'a, [Lease]>,
    /// For each lease its answer, if it is not renewed. Empty if all are.
    refused: Vec<Option<Result<RenewReply, Error>>>,
}

impl RedisStore {
    /// Renews leases that have fences.
    pub(crate) async fn renew_counted(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.renewals_end(leases);
        let checked = self.check_pushed(leases, end).await;
        let answers = self.renew_all(&checked.kept, At::Name, end).await;
        self.answered(checked, answers)
    }

    /// Reads the counter before the first renewal of a lease that only a push has reported. If its
    /// fence is above the counter, the push was forged, and the lease is not renewed. A counter
    /// that is gone, fell back or is no number proves nothing: then the owner at the store decides.
    pub(crate) async fn check_pushed<'a>(&self, leases: &'a [Lease], end: Instant) -> Checked<'a> {
        let now = now_ms();
        let pushed: Vec<Option<u64>> = leases.iter().map(|lease| self.counter.before_push(lease, now)).collect();
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

    /// The answers for all leases, from those for the leases that were kept.
    pub(crate) fn answered(
        &self,
        checked: Checked<'_>,
        answers: Vec<Result<RenewReply, Error>>,
    ) -> Vec<Result<RenewReply, Error>> {
        for (lease, answer) in checked.kept.iter().zip(&answers) {
            if matches!(answer, Ok(RenewReply::Renewed)) {
                self.counter.confirmed(&lease.owner);
            }
        }
        if checked.refused.is_empty() {
            return answers;
        }
        let mut answers = answers.into_iter();
        let answer = |refusal: Option<_>| refusal.or_else(|| answers.next()).unwrap_or_else(|| Err(unexpected("no answer")));
        checked.refused.into_iter().map(answer).collect()
    }

    /// The counter at the server. None if it is gone or no number.
    async fn read_counter(&self, end: Instant) -> Result<Option<u64>, Error> {
        let get = |_: &Link| Commands::of(&[b"GET", self.layout.counter.as_bytes()]);
        let answers = self.connection.exchange(end, Repeat::Freely, get).await?.answers;
        let stored = match only(answers)?.map_err(|e| translate(&e)) {
            Ok(stored) => counter(&stored).ok(),
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => None,
        };
        let sound = stored.filter(|counter| *counter <= Fence::MAX_COUNTER);
        if let Some(counter) = sound {
            self.counter.saw(counter, now_ms());
        }
        Ok(sound)
    }

    /// Renews leases whose owners stand `at` their names.
    pub(crate) async fn renew_all(&self, leases: &[Lease], at: At, end: Instant) -> Vec<Result<RenewReply, Error>> {
        let (mutexes, shares): (Vec<&Lease>, Vec<&Lease>) = leases.iter().partition(|lease| lease.share == Share::MUTEX);
        // A script reaches one slot of a cluster, and while that is being moved one key.
        let size = if self.layout.by_slot { 1 } else { BATCH };
        let batches: Vec<Vec<&Lease>> = mutexes.chunks(size).chain(shares.chunks(size)).map(<[_]>::to_vec).collect();
        let (mut answers, mut refused) = (Vec::with_capacity(leases.len()), Vec::new());
        let outcomes = self.renew_batches(end, size, &batches, at).await;
        for (batch, outcome) in batches.into_iter().zip(outcomes) {
            match outcome {
                Ok(renewals) => answers.extend(batch.into_iter().zip(renewals.into_iter().map(Ok))),
                // One lease that the server refuses fails its whole batch. Then each is tried
                // alone.
                Err(error) if batch.len() > 1 && !error.is_transient() => {
                    refused.extend(batch.into_iter().map(|alone| vec![alone]));
                }
                Err(error) => answers.extend(batch.into_iter().map(|lease| (lease, Err(error.clone())))),
            }
        }
        let outcomes = self.renew_batches(end, 1, &refused, at).await;
        for (alone, outcome) in refused.into_iter().zip(outcomes) {
            answers.extend(alone.into_iter().zip([outcome.map(|renewals| renewals[0])]));
        }
        // The caller's order is that of the addresses in its slice.
        answers.sort_by_key(|(lease, _)| std::ptr::from_ref::<Lease>(lease));
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Deadline of renewals that start now: before the caller's, so that partial answers reach it.
    pub(crate) fn renewals_end(&self, leases: &[Lease]) -> Instant {
        let limit = self.features().limit(leases.iter().map(|lease| lease.ttl).min().unwrap_or_default());
        Instant::now() + limit.mul_f64(0.9)
    }

    pub(super) fn add_renewal(&self, commands: &mut Commands, leases: &[&Lease], at: At, link: &Link, form: Form) {
        let of_shares = leases.first().is_some_and(|lease| lease.share != Share::MUTEX);
        if at == At::Field && of_shares {
            return self.add_renewal_of_redisson(commands, leases, form);
        }
        let of_each: Vec<Keys<'_>> = leases.iter().map(|lease| self.layout.of(&lease.name)).collect();
        let (script, keys): (&Script, Vec<Key<'_>>) = match at {
            At::Beside(_) => (&scripts::TIMESTAMP_RENEW, of_each.iter().flat_map(|keys| [keys.name(), keys.owner()]).collect()),
            At::Majority => (&scripts::MAJORITY_RENEW, leases.iter().flat_map(|lease| self.layout.all_of(&lease.name)).collect()),
            At::Field => (&scripts::REDISSON_RENEW, of_each.iter().map(Keys::name).collect()),
            At::Name | At::Node => {
                let script: &Script = match (at, of_shares) {
                    (At::Node, true) => &scripts::NODE_RENEW_SHARES,
                    (At::Node, false) => &scripts::NODE_RENEW,
                    (_, true) => &scripts::RENEW_SHARES,
                    (_, false) => &scripts::RENEW,
                };
                let of_node = [&self.layout.memory, &self.layout.ends].map(|key| whole(key.as_bytes()));
                let mut keys: Vec<Key<'_>> = if at == At::Node { of_node.to_vec() } else { Vec::new() };
                for of_lease in &of_each {
                    keys.push(of_lease.name());
                    keys.extend(of_shares.then(|| of_lease.shares()));
                }
                (script, keys)
            }
        };
        let ttls: Vec<Digits> = leases.iter().map(|lease| Digits::of(millis(lease.ttl))).collect();
        let weights: Vec<String> = leases.iter().map(|lease| lease.share.weight().to_string()).collect();
        let of_leases = leases.iter().zip(&ttls).zip(&weights).flat_map(|((lease, ttl), weight)| {
            let weight = (at == At::Node && of_shares).then_some(weight.as_bytes());
            [lease.owner.as_bytes(), ttl.as_bytes()].into_iter().chain(weight)
        });
        let first: Option<&[u8]> = match at {
            At::Beside(unit) => Some(unit),
            At::Node => Some(link.run_id.get().map_or(b"", |run| run.as_bytes())),
            _ => None,
        };
        let args: Vec<&[u8]> = first.into_iter().chain(of_leases).collect();
        scripts::add_call(commands, script, form, &keys, &args);
    }

    fn add_renewal_of_redisson(&self, commands: &mut Commands, leases: &[&Lease], form: Form) {
        let of_each = |lease: &&Lease| {
            let key = self.layout.key(&lease.name);
            let beside = beside_share(&key, lease.owner.as_bytes(), lease.share);
            // A script with one key alone runs while its slot moves, wherever that is.
            let keys = match lease.share.kind() {
                Kind::ReadWrite if lease.share == Share::WRITE => [key.clone().into_bytes(), key.into_bytes()],
                Kind::Semaphore(_) => [beside.clone(), beside],
                _ => [key.into_bytes(), beside],
            };
            (keys, [Digits::of(millis(lease.ttl)).as_bytes().to_vec(), what_of(lease.share).as_bytes().to_vec()])
        };
        let (keys, args): (Vec<_>, Vec<_>) = leases.iter().map(of_each).unzip();
        let keys: Vec<Key<'_>> = keys.iter().flatten().map(|key| whole(key)).collect();
        let args = leases.iter().zip(&args).flat_map(|(lease, [ttl, what])| [lease.owner.as_bytes(), ttl, what]);
        scripts::add_call(commands, &scripts::REDISSON_RENEW_SHARES, form, &keys, &args.collect::<Vec<_>>());
    }

    /// Renews batches of at most `size` leases, several in each exchange. Returns the answers of
    /// each batch, or why it was refused. Nothing is sent after `end`.
    async fn renew_batches(
        &self,
        end: Instant,
        size: usize,
        batches: &[Vec<&Lease>],
        at: At,
    ) -> Vec<Result<Vec<RenewReply>, Error>> {
        let failed = OnceLock::new();
        let exchanges: Vec<_> =
            batches.chunks(TOGETHER / size).map(|batches| self.renew_together(end, batches, at, &failed)).collect();
        stream::iter(exchanges).buffered(UNDER_WAY).concat().await
    }

    /// Renews batches in one exchange, unless an earlier one has `failed`.
    async fn renew_together(
        &self,
        end: Instant,
        batches: &[Vec<&Lease>],
        at: At,
        failed: &OnceLock<Error>,
    ) -> Vec<Result<Vec<RenewReply>, Error>> {
        let due = if matches!(at, At::Name | At::Node) { self.notes.due(&batches.concat()) } else { Vec::new() };
        let pipeline = |link: &Link, form| {
            let mut commands = Commands::new();
            for batch in batches {
                self.add_renewal(&mut commands, batch, at, link, form);
            }
            // Behind the renewals, so that it keeps none of them waiting.
            notes::add(&mut commands, &self.layout, &due);
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
                self.notes.forget(&due);
                let every = batches.iter().map(|_| Err(error.clone())).collect();
                // The first error is as good as any.
                let _ = failed.set(error);
                every
            }
        }
    }
}
