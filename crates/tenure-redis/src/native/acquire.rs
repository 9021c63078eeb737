//! Acquiring: by one transaction if a mutex is free, else by a script.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join;
use redis::Value;
use tenure::store::{AcquireReply, Enqueue, Grant, Request};
use tenure::{Error, Fence, Share};
use tokio::time::Instant;

use crate::native::keys::Keys;
use crate::native::reply::{about_counter, busy, check_repeated, counter, counters, fence, refusal};
use crate::native::store::RedisStore;
use crate::scripts;
use crate::transport::commands::{Commands, Digits, EXEC, Key, MULTI, millis, whole};
use crate::transport::connection::{Exchange, Repeat};
use crate::transport::contact::now_ms;
use crate::transport::failure::{is_noscript, other_capacity, translate};
use crate::transport::form::Form;
use crate::transport::link::Link;
use crate::transport::reply::{only, transaction};

/// The script's word for what a request does about the queue. A supplied owner token may be another
/// client's, and is never queued.
const fn enqueue_word(request: &Request) -> &'static str {
    match request.enqueue {
        Enqueue::Join { .. } if request.generated => "join",
        Enqueue::Heartbeat => "keep",
        _ => "none",
    }
}

enum Taken {
    Granted(Fence),
    /// Taken, without a counter to rely on.
    Unfenced,
    /// Taken, though others wait.
    Overtaking,
    Busy {
        /// An earlier try had no answer, and may have taken the name.
        repeated: bool,
    },
}

impl RedisStore {
    /// Acquires a share of one name.
    pub(super) async fn acquire_one(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.layout.check_request(request)?;
        let end = self.end(request.ttl);
        let ask = |own_counts, enqueue| Box::pin(self.ask(request, own_counts, enqueue, end));
        if self.layout.by_slot {
            // The transaction below relies on a counter that was raised a moment ago. Those of so many
            // slots were not, and the script raises its own.
            return ask(request.generated, enqueue_word(request)).await;
        }
        // What a free mutex does not need is boxed: the usual future stays small.
        if self.connection.is_new() {
            Box::pin(self.prepare(end)).await?;
        }
        if request.share != Share::MUTEX || request.enqueue != Enqueue::No || request.from.is_some() {
            return ask(request.generated, enqueue_word(request)).await;
        }
        match self.take(request, end).await? {
            Taken::Granted(fence) => Ok(AcquireReply::Granted(Grant::new(Some(fence), request.ttl))),
            // The transaction took the name, so finding the owner token there is success, even a
            // supplied one.
            Taken::Unfenced => ask(true, "none").await.map_err(Error::maybe_applied),
            Taken::Overtaking => ask(true, "yield").await.map_err(Error::maybe_applied),
            Taken::Busy { repeated: false } => ask(request.generated, "none").await,
            Taken::Busy { repeated: true } => {
                let answer = ask(request.generated, "none").await.map_err(Error::maybe_applied)?;
                check_repeated(request, answer)
            }
        }
    }

    /// Acquires the same share of several names, all or none.
    pub(super) async fn acquire_every(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(&Request { share, ttl, .. }) = requests.first() else { return Ok(Some(Vec::new())) };
        requests.iter().try_for_each(|request| self.layout.check(&request.name))?;
        let end = self.end(ttl);
        if self.connection.is_new() && !self.layout.by_slot {
            self.prepare(end).await?;
        }
        let of_each: Vec<Keys<'_>> = requests.iter().map(|request| self.layout.of(&request.name)).collect();
        let beside = of_each.iter().flat_map(|keys| [keys.name(), keys.queue(), keys.entries(), keys.shares()]);
        let keys: Vec<Key<'_>> = of_each.iter().take(1).map(Keys::grants).chain(beside).collect();
        let numbers = [u64::from(share.capacity()), self.counter.largest(), millis(ttl), u64::from(share.weight())];
        let numbers = numbers.map(Digits::of);
        let owners = requests.iter().map(|request| request.owner.as_bytes());
        let args: Vec<&[u8]> = numbers.iter().map(Digits::as_bytes).chain(owners).collect();
        let call = |_: &Link, form| scripts::call(&scripts::ACQUIRE_ALL, form, &keys, &args);
        let Exchange { answers, .. } = self.connection.call(end, Repeat::Settled, &call).await?;
        let refused = |error| {
            let about = other_capacity(&error).and_then(|(_, key)| self.name_of(key.as_bytes()));
            about.map_or_else(|| translate(&error), |name| refusal(&error, &name, share))
        };
        let counters = counters(&only(answers)?.map_err(refused)?, requests.len())?;
        self.counter.saw(counters.last().copied().unwrap_or_default(), now_ms());
        let grant = |counter| Ok(Grant::new(Some(fence(counter)?), ttl));
        let grants: Vec<Grant> = counters.into_iter().map(grant).collect::<Result<_, Error>>()?;
        Ok((!grants.is_empty()).then_some(grants))
    }

    /// Raises the counter on a connection that never did. So it is known whether scripts may run at
    /// all, before anything is taken that a script would have to release.
    async fn prepare(&self, end: Instant) -> Result<(), Error> {
        let (asked, sent_at) = (self.counter.largest(), now_ms());
        let (counter_key, seen) = (whole(self.layout.counter.as_bytes()), Digits::of(asked));
        let raise = |_: &Link| scripts::call(&scripts::RAISE_COUNTER, Form::Text, &[counter_key], &[seen.as_bytes()]);
        let Exchange { link, answers, .. } = self.connection.exchange(end, Repeat::Freely, raise).await?;
        let floor = counter(&only(answers)?.map_err(|e| translate(&e))?)?;
        self.counter.raised(asked, floor, now_ms());
        link.raised(sent_at, 0);
        Ok(())
    }

    /// Takes a free mutex without a script: a script costs the server almost twice as much.
    async fn take(&self, request: &Request, end: Instant) -> Result<Taken, Error> {
        let keys = self.layout.of(&request.name);
        let (counter_key, ttl) = (self.layout.counter.as_bytes(), Digits::of(millis(request.ttl)));
        // The counter was granted before the request leaves. What other tasks see meanwhile proves
        // nothing.
        let seen = self.counter.largest();
        let sent_at = now_ms();
        let doubts = AtomicU64::new(0);
        let noted = request.generated && self.notes.due_grant(sent_at);
        let pipeline = |link: &Link| {
            let mut commands = Commands::new();
            doubts.store(link.doubts(), Ordering::Relaxed);
            if let Some(form) = link.due_raise(sent_at, self.counter.pushed_at()) {
                scripts::add_call(
                    &mut commands,
                    &scripts::RAISE_COUNTER,
                    form,
                    &[whole(counter_key)],
                    &[Digits::of(seen).as_bytes()],
                );
            }
            commands.ready(1, MULTI);
            commands.about(&keys.name(), b"SET", &[request.owner.as_bytes(), b"NX", b"PX", ttl.as_bytes()]);
            commands.ready(1, &self.layout.increment);
            commands.about(&keys.queue(), b"EXISTS", &[]);
            if noted {
                let keys = [keys.name(), keys.shares(), whole(counter_key)];
                let args = [request.owner.as_bytes(), b"", ttl.as_bytes()];
                scripts::add_call(&mut commands, &scripts::NOTE_HOLDERS, Form::Text, &keys, &args);
            }
            commands.ready(1, EXEC);
            commands
        };
        let Exchange { link, mut answers, repeated } = self.connection.exchange(end, Repeat::Settled, &pipeline).await?;
        let raise = (answers.len() > if noted { 6 } else { 5 }).then(|| answers.remove(0));
        let executed = transaction(answers).map_err(about_counter);
        let floor = match raise {
            None => Some(seen),
            Some(Ok(floor)) => {
                link.raised(sent_at, doubts.into_inner());
                let floor = counter(&floor)?;
                self.counter.raised(seen, floor, now_ms());
                Some(floor)
            }
            // Not raised: the server has to be sent the text next time.
            Some(Err(error)) if is_noscript(&error) => {
                link.forgot_script();
                None
            }
            Some(Err(error)) if may_have_set(&executed) => return Err(translate(&error).maybe_applied()),
            Some(Err(error)) => return Err(translate(&error)),
        };
        let [set, incremented, queued] = executed?;
        if set == Value::Nil {
            if noted {
                self.notes.not_granted();
            }
            return Ok(Taken::Busy { repeated });
        }
        // From here on the name may be taken at the server, whatever fails.
        let counter = counter(&incremented).map_err(Error::maybe_applied)?;
        self.counter.saw(counter, now_ms());
        if queued != Value::Int(0) {
            return Ok(Taken::Overtaking);
        }
        self.counter.confirmed(&request.owner);
        // If the counter does not rise above the largest seen, the server has lost data: it makes
        // no fence.
        if floor.is_some_and(|floor| counter > floor) { Ok(Taken::Granted(fence(counter)?)) } else { Ok(Taken::Unfenced) }
    }

    /// Acquires by script, which settles everything: who holds, whether it is this owner, who is
    /// next, and a queue entry.
    async fn ask(&self, request: &Request, own_counts: bool, enqueue: &str, end: Instant) -> Result<AcquireReply, Error> {
        let Request { owner, ttl, share, from, .. } = request;
        let (entry_ttl, handoff_ttl) = match request.enqueue {
            Enqueue::Join { entry_ttl, handoff_ttl } => (entry_ttl, handoff_ttl),
            Enqueue::No | Enqueue::Heartbeat => (Duration::ZERO, Duration::ZERO),
        };
        let hears = self.layout.by_slot && enqueue != "none";
        let of_slot = if hears { self.connection.channel_of_slot(self.layout.of(&request.name).tag()) } else { None };
        let channel = of_slot.as_deref().or_else(|| self.connection.channel().filter(|_| !self.layout.by_slot));
        let [ttl, entry_ttl, handoff_ttl] = [*ttl, entry_ttl, handoff_ttl].map(|span| Digits::of(millis(span)));
        let weight = Digits::of(u64::from(share.weight()));
        let [capacity, seen] = self.first_args(*share);
        let noted = own_counts && self.notes.due_grant(now_ms());
        let args = [
            capacity.as_bytes(),
            seen.as_bytes(),
            owner.as_bytes(),
            ttl.as_bytes(),
            weight.as_bytes(),
            if own_counts { b"1" } else { b"0" },
            from.as_ref().map_or(&b""[..], |from| from.as_bytes()),
            enqueue.as_bytes(),
            entry_ttl.as_bytes(),
            handoff_ttl.as_bytes(),
            channel.unwrap_or("-").as_bytes(),
            if noted { b"1" } else { b"0" },
        ];
        let asked = self.run_about(&scripts::ACQUIRE, &request.name, *share, &args, Repeat::Settled, end);
        let (notified, answer) = match &of_slot {
            // On the way before the question, so that no message is missed.
            Some(channel) => join(self.connection.hear(channel, end), asked).await,
            None => (channel.is_some(), asked.await),
        };
        let (answer, _) = answer?;
        if let Value::Array(parts) = &answer
            && let [Value::Int(1), number] = &parts[..]
        {
            let counter = counter(number).map_err(Error::maybe_applied)?;
            self.counter.saw(counter, now_ms());
            self.counter.confirmed(owner);
            return Ok(AcquireReply::Granted(Grant::new(Some(fence(counter)?), request.ttl)));
        }
        if noted {
            self.notes.not_granted();
        }
        let busy = busy(&answer).map_err(Error::maybe_applied)?;
        if let Some(grant_seq) = busy.grant_seq {
            self.counter.saw(grant_seq, now_ms());
        }
        let poll_interval = self.poll_interval(notified, busy.position, busy.holder.as_ref());
        Ok(AcquireReply::Busy(busy.with_poll_interval(poll_interval)))
    }
}

/// Whether the transaction behind a failed raise may have taken the name.
fn may_have_set(executed: &Result<[Value; 3], Error>) -> bool {
    match executed {
        Ok([set, ..]) => *set != Value::Nil,
        Err(error) => error.may_have_been_applied(),
    }
}
