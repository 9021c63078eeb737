//! Grants and renewals that count only when copies of them are confirmed.
//!
//! A confirmation has a connection of its own, because a `WAIT` keeps what comes behind it waiting.
//! It renews the lease, writes the counter and waits. If the lease is its owner's there, the grant
//! is part of what the server had sent to its replicas before that write. So replicas that have the
//! write have the grant. One `WAIT` serves all that have gathered while the last one was under way.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tenure::store::{AcquireReply, Durable, Grant, RenewReply, Request};
use tenure::{Error, Lease, Share};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::native::confirmations::{Confirmations, Round, Waiting};
use crate::native::durability::Durability;
use crate::native::notes;
use crate::native::renew::{At, BATCH};
use crate::native::reply::{counter, renewals};
use crate::native::store::RedisStore;
use crate::transport::commands::Commands;
use crate::transport::connection::{Exchange, Repeat};
use crate::transport::failure::unexpected;
use crate::transport::link::Link;
use crate::transport::reply::read;

/// Part of the time that is left which one `WAIT` may take. Less than half of it: a connection that
/// is silent for longer is replaced.
const PART: f64 = 0.4;

/// How late a server may end a `WAIT`: it looks at its timeouts ten times a second.
const LATE: Duration = Duration::from_millis(100);

/// Time that has to be left for another `WAIT`.
const WORTHWHILE: Duration = Duration::from_millis(250);

impl RedisStore {
    /// Acquires as without confirmation, and has the grant confirmed. If it is not, the caller has
    /// to release it: the error says that it may be in place.
    pub(super) async fn acquire_durably(&self, request: &Request, by: &Confirmations) -> Result<AcquireReply, Error> {
        let end = self.end(request.ttl);
        by.check(end).await?;
        match self.acquire_one(request).await? {
            AcquireReply::Granted(grant) => {
                let durable = self.granted(&[request.lease()], by, end).await?;
                Ok(AcquireReply::Granted(grant.with_durability(durable)))
            }
            other => Ok(other),
        }
    }

    /// As [`acquire_durably`](RedisStore::acquire_durably), for several names.
    pub(super) async fn acquire_every_durably(
        &self,
        requests: &[Request],
        by: &Confirmations,
    ) -> Result<Option<Vec<Grant>>, Error> {
        let end = self.end(requests.iter().map(|request| request.ttl).min().unwrap_or_default());
        by.check(end).await?;
        let Some(grants) = self.acquire_every(requests).await? else { return Ok(None) };
        let leases: Vec<Lease> = requests.iter().map(Request::lease).collect();
        let durable = self.granted(&leases, by, end).await?;
        Ok(Some(grants.into_iter().map(|grant| grant.with_durability(durable)).collect()))
    }

    /// Confirms leases that were just granted.
    async fn granted(&self, leases: &[Lease], by: &Confirmations, end: Instant) -> Result<Durable, Error> {
        let (replies, durable) = self.confirm(leases, by, end).await.map_err(Error::maybe_applied)?;
        if replies.iter().all(|reply| *reply == RenewReply::Renewed) {
            return Ok(durable);
        }
        let what = "the grant was not found when it was to be confirmed: it was lost, or another server is the master";
        Err(Error::unavailable(what).maybe_applied().with_hint("try again"))
    }

    /// Renews leases. A renewal that is not confirmed does not count.
    pub(super) async fn renew_durably(&self, leases: &[Lease], by: &Confirmations) -> Vec<Result<RenewReply, Error>> {
        let end = self.renewals_end(leases);
        let each = |replies: Vec<RenewReply>| replies.into_iter().map(Ok).collect();
        match self.confirm(leases, by, end).await {
            Ok((replies, _)) => each(replies),
            // One lease that the server refuses fails all. Then each is asked for alone.
            Err(error) if leases.len() > 1 && !error.is_transient() => {
                let alone = leases.iter().map(|lease| async move {
                    let (replies, _) = self.confirm(std::slice::from_ref(lease), by, end).await?;
                    replies.first().copied().ok_or_else(|| unexpected("no answer"))
                });
                join_all(alone).await
            }
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Renews leases, and waits until copies of that are confirmed.
    ///
    /// # Cancel safety
    /// Dropping the future is safe: a renewal that runs late changes nothing.
    async fn confirm(&self, leases: &[Lease], by: &Confirmations, end: Instant) -> Result<(Vec<RenewReply>, Durable), Error> {
        let mut reached = None;
        while end.saturating_duration_since(Instant::now()) > if reached.is_some() { WORTHWHILE } else { Duration::ZERO } {
            let (caller, mut answer) = oneshot::channel();
            by.waiting().push(Waiting { leases: leases.to_vec(), end, caller });
            let asked = tokio::select! {
                biased;
                answered = &mut answer => Some(answered),
                turn = timeout_at(end, by.turn.lock()) => match turn {
                    Ok(_turn) => {
                        self.confirm_all(by).await;
                        None
                    }
                    Err(_) => break,
                },
            };
            let answered = match asked {
                Some(answered) => answered.ok(),
                None => answer.try_recv().ok(),
            };
            // None if the caller that asked for all has gone away, or had less time.
            let Some(round) = answered else { continue };
            let Round { replies, reached: now, met } = match round {
                // There was too little time left for another answer.
                Err(error) if error.is_transient() && reached.is_some() => break,
                round => round?,
            };
            if met {
                return Ok((replies, now));
            }
            reached = Some(now);
        }
        Err(by.too_few(reached))
    }

    /// Asks once for all that wait now.
    async fn confirm_all(&self, by: &Confirmations) {
        let waiting = std::mem::take(&mut *by.waiting());
        let waiting: Vec<Waiting> = waiting.into_iter().filter(|one| !one.caller.is_closed()).collect();
        let Some(first_end) = waiting.iter().map(|one| one.end).min() else { return };
        let all: Vec<&Lease> = waiting.iter().flat_map(|one| &one.leases).collect();
        // An attempt to connect ends a little before the time of its caller.
        let used_up = first_end - first_end.saturating_duration_since(Instant::now()) / 10;
        let asked = self.ask_all(&all, by, first_end).await;
        let (mut replies, rest) = match asked {
            Ok(Round { replies, reached, met }) => (replies.into_iter(), Ok((reached, met))),
            Err(error) => (Vec::new().into_iter(), Err(error)),
        };
        let together = waiting.len() > 1;
        for Waiting { leases, end, caller } in waiting {
            let answer = match &rest {
                Ok((reached, met)) => {
                    Ok(Round { replies: replies.by_ref().take(leases.len()).collect(), reached: *reached, met: *met })
                }
                // The lease of another caller may be the one that is refused.
                Err(error) if together && !error.is_transient() => {
                    self.ask_all(&leases.iter().collect::<Vec<_>>(), by, end).await
                }
                // The time of another caller is over. Without an answer, this one asks again.
                Err(error) if error.is_transient() && Instant::now() >= used_up && end > first_end => continue,
                Err(error) => Err(error.clone()),
            };
            // The caller may have gone.
            let _ = caller.send(answer);
        }
    }

    /// Renews leases, writes the counter, and waits for a part of the time until `end`.
    async fn ask_all(&self, leases: &[&Lease], by: &Confirmations, end: Instant) -> Result<Round, Error> {
        let (mutexes, shares): (Vec<usize>, Vec<usize>) = (0..leases.len()).partition(|at| leases[*at].share == Share::MUTEX);
        let batches: Vec<&[usize]> = mutexes.chunks(BATCH).chain(shares.chunks(BATCH)).collect();
        let due = self.notes.due(leases);
        let (needed, counts) = (by.needed(), by.level == Durability::Majority);
        let build = |link: &Link, form| {
            let mut commands = Commands::new();
            for batch in &batches {
                let batch: Vec<&Lease> = batch.iter().map(|at| leases[*at]).collect();
                self.add_renewal(&mut commands, &batch, At::Name, link, form);
            }
            notes::add(&mut commands, &self.layout, &due);
            if counts {
                commands.add(&[b"ROLE"]);
            }
            commands.ready(1, &self.layout.increment);
            // Each time anew: a server that has to be given a script first has waited before it says so.
            let limit = end.saturating_duration_since(Instant::now()).mul_f64(PART);
            // With little time a slow replica matters more than a server that ends the wait late.
            let limit = limit.saturating_sub(LATE).max(limit.min(LATE)).max(Duration::from_millis(1));
            commands.ready(1, by.wait(limit, needed).as_bytes());
            commands
        };
        let asked = by.connection.call(end, Repeat::Freely, build).await;
        let Exchange { answers, .. } = asked.inspect_err(|_| self.notes.forget(&due))?;
        let mut answers = answers.into_iter();
        let mut replies = vec![RenewReply::Gone; leases.len()];
        for batch in batches {
            let answer = answers.next().ok_or_else(|| unexpected("too few replies"))?;
            for (at, reply) in batch.iter().zip(renewals(answer, batch.len())?) {
                replies[*at] = reply;
            }
        }
        let waited = answers.next_back().ok_or_else(|| unexpected("too few replies"))?;
        // The `WAIT` covers the write of the counter. Without that write it covers nothing.
        counter(&read::<Value>(answers.next_back().ok_or_else(|| unexpected("too few replies"))?)?)?;
        if counts {
            let role: Vec<Value> = read(answers.next_back().ok_or_else(|| unexpected("too few replies"))?)?;
            let replicas = if let Some(Value::Array(replicas)) = role.get(2) { replicas.len() } else { 0 };
            by.replicas.fetch_max(u32::try_from(replicas).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        let waited = waited.map_err(|error| by.cannot_wait(&error))?;
        let reached = match by.level {
            Durability::Aof => {
                let (disk, replicas): (u32, u32) = redis::from_redis_value(waited).map_err(unexpected)?;
                Durable::new(replicas, disk > 0)
            }
            _ => Durable::new(redis::from_redis_value(waited).map_err(unexpected)?, false),
        };
        let met = if by.level == Durability::Aof { reached.on_disk } else { reached.replicas >= by.needed() };
        Ok(Round { replies, reached, met })
    }
}
