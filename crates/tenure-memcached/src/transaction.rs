//! Compare-and-swap of one name: read its item, change it here, and write it unless anybody was faster.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::record::{Answer, Change};
use tenure::store::{Grant, ReleaseReply, RenewReply, Request};
use tenure::{BootTime, Error, Lease, Owner};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::connection::{Connection, half_way};
use crate::item::Item;
use crate::link::{Answers, Failed, Link};
use crate::options::Scheme;
use crate::protocol::{Commands, Key, Reply};

/// One call about one name.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) scheme: Scheme,
    pub(crate) key: &'a Key,
    /// How long what it writes may take the name.
    pub(crate) ttl: Duration,
    /// Whether it may be made again after a write of which nobody knows what became.
    pub(crate) repeats: bool,
    pub(crate) end: Instant,
}

/// An item as a call has left it or found it, and on which connection: another may be to a later life of the server,
/// which gives the same versions again.
#[derive(Debug)]
pub(crate) struct Found {
    item: Item,
    link: Arc<Link>,
}

/// A finished call.
#[derive(Debug)]
pub(crate) struct Done<T> {
    pub(crate) outcome: T,
    pub(crate) found: Found,
    /// It was written once before, or may have been.
    pub(crate) repeated: bool,
}

/// How a try begins.
enum Start {
    /// The name is taken for free, and not read.
    Blind,
    /// It is read.
    Look,
    /// It was found before.
    Found(Box<Found>),
    /// The lease just written ends too soon, so the reckoned time is wrong. The server is asked for its time first.
    Anew,
}

/// One try of a call.
enum Tried<T> {
    /// With the item that was written.
    Done(T, Found),
    /// Another client was faster. With the item that was found instead.
    Overtaken(Found),
}

/// Why a try failed.
struct Fault {
    error: Error,
    /// A write had no answer, or nobody knows what it made.
    written: bool,
    /// Another connection may answer.
    again: bool,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { error, written: false, again: false }
    }
}

impl Found {
    /// Whether one lease is all there is of the name.
    pub(crate) fn is_one_lease(&self) -> bool {
        self.item.record.holders().count() == 1 && self.item.record.waiters().next().is_none()
    }
}

impl Call<'_> {
    /// Asks for a share. With `free`, the name is likely to be free: then one command takes it.
    ///
    /// # Cancel safety
    /// A write that was sent stays.
    pub(crate) async fn grant(&self, request: &Request, free: bool) -> Result<Done<Change<Answer>>, Error> {
        let start = if free { Start::Blind } else { Start::Look };
        self.run(start, &mut |item: &mut Item| item.acquire(request), &|mut change: Change<Answer>, item: &Item| {
            let Answer::Granted(_) = change.answer else { return Some(Ok(change)) };
            // It may be gone again. Then another client was faster. Or it ends too soon, because the server
            // has looked at its own clock meanwhile, or is ahead. Then it is written again.
            if request.generated && !item.keeps(&request.owner, request.ttl) {
                return None;
            }
            let fence = item.fence_of(&request.owner)?;
            Some(fence.map(|fence| {
                // A supplied token is not written twice. It is granted what the server keeps.
                let ttl = if request.generated { request.ttl } else { request.ttl.min(item.rest(&request.owner)) };
                change.answer = Answer::Granted(Grant::new(Some(fence), ttl));
                change
            }))
        })
        .await
    }

    /// Renews leases of the name.
    ///
    /// # Cancel safety
    /// A write that was sent stays.
    pub(crate) async fn renew(&self, leases: &[&Lease]) -> Result<Vec<RenewReply>, Error> {
        let mut renew = |item: &mut Item| Ok(leases.iter().map(|lease| item.renew(&lease.owner, lease.ttl)).collect());
        let finish = |replies: Vec<RenewReply>, item: &Item| {
            let is_told =
                |(lease, reply): (&&Lease, &RenewReply)| *reply == RenewReply::Gone || item.keeps(&lease.owner, lease.ttl);
            leases.iter().zip(&replies).all(is_told).then_some(Ok(replies))
        };
        self.run(Start::Look, &mut renew, &finish).await.map(|done| done.outcome)
    }

    /// Applies `change` to the state of the name, and writes it.
    ///
    /// # Cancel safety
    /// A write that was sent stays.
    pub(crate) async fn transact<T: Send>(
        &self,
        mut change: impl FnMut(&mut Item) -> Result<T, Error> + Send,
    ) -> Result<Done<T>, Error> {
        self.run(Start::Look, &mut change, &|outcome, _: &Item| Some(Ok(outcome))).await
    }

    /// Releases a lease. `found`: how its grant has left the item. If nobody has changed that, it is not read again.
    ///
    /// # Cancel safety
    /// A write that was sent stays.
    pub(crate) async fn release(
        &self,
        owner: &Owner,
        linger: Duration,
        found: Option<Found>,
    ) -> Result<Done<ReleaseReply>, Error> {
        let start = found.map_or(Start::Look, |found| Start::Found(Box::new(found)));
        self.run(start, &mut |item: &mut Item| Ok(item.release(owner, linger)), &|reply, _: &Item| Some(Ok(reply))).await
    }

    /// `finish`: makes the outcome of the
    /// item that was written, or none if it is not as it was written.
    async fn run<T: Send>(
        &self,
        mut start: Start,
        change: &mut (impl FnMut(&mut Item) -> Result<T, Error> + Send),
        finish: &(impl Fn(T, &Item) -> Option<Result<T, Error>> + Sync),
    ) -> Result<Done<T>, Error> {
        let (mut repeated, mut tries) = (false, 0_u32);
        let mut rivals = Rivals::default();
        loop {
            let half = if tries == 0 { half_way(self.end) } else { self.end };
            match self.attempt(std::mem::replace(&mut start, Start::Look), half, change).await {
                Ok(Tried::Done(outcome, found)) => {
                    if let Some(outcome) = finish(outcome, &found.item) {
                        return outcome.map(|outcome| Done { outcome, found, repeated });
                    }
                    // The item that was written may still be there.
                    repeated = true;
                    rivals.let_on(self, repeated).await?;
                    start = Start::Anew;
                }
                // If nobody had to be let on, it is as fresh as another question would find it.
                Ok(Tried::Overtaken(found)) if rivals.let_on(self, repeated).await? => {
                    start = Start::Found(Box::new(found));
                }
                Ok(Tried::Overtaken(..)) => {}
                Err(Fault { error, written, again }) => {
                    tries += 1;
                    repeated |= written;
                    let over = tries > 1 || !again || Instant::now() >= self.end || (written && !self.repeats);
                    if over {
                        return Err(if repeated { error.maybe_applied() } else { error });
                    }
                }
            }
        }
    }

    async fn attempt<T>(
        &self,
        start: Start,
        half: Instant,
        change: &mut (impl FnMut(&mut Item) -> Result<T, Error> + Send),
    ) -> Result<Tried<T>, Fault> {
        let link = self.connection.link(half, self.end).await?;
        let mut item = match start {
            Start::Blind => Item::missing(self.scheme, link.clock().estimate(BootTime::now())),
            Start::Found(found) if Arc::ptr_eq(&found.link, &link) => found.item,
            Start::Anew => {
                self.read_clock(&link, half).await?;
                self.look(&link, half).await?
            }
            Start::Look | Start::Found(_) => self.look(&link, half).await?,
        };
        let outcome = change(&mut item)?;
        let mut commands = Commands::default();
        if !item.add_write(&mut commands, self.key) {
            return Ok(Tried::Done(outcome, Found { item, link }));
        }
        let Answers { replies, sent_at } = self.exchange(&link, &commands, true, half).await?;
        let mut replies = replies.into_iter();
        let done = match replies.next() {
            Some(Reply::Done) => true,
            Some(Reply::Refused) => false,
            other => return Err(odd(other).into()),
        };
        // A deletion is not followed by a question.
        let after = match replies.next() {
            None if done => Item::missing(self.scheme, link.clock().estimate(sent_at)),
            None => self.look(&link, half).await?,
            reply => {
                let seen = self.item(&link, reply, sent_at, half).await;
                seen.map_err(|fault| if done { Fault { written: true, ..fault } } else { fault })?
            }
        };
        let found = Found { item: after, link };
        Ok(if done { Tried::Done(outcome, found) } else { Tried::Overtaken(found) })
    }

    async fn look(&self, link: &Arc<Link>, half: Instant) -> Result<Item, Fault> {
        let mut commands = Commands::default();
        commands.get(self.key);
        let Answers { mut replies, sent_at } = self.exchange(link, &commands, false, half).await?;
        self.item(link, replies.pop(), sent_at, half).await
    }

    /// The item that a reply shows.
    async fn item(&self, link: &Arc<Link>, reply: Option<Reply>, sent_at: BootTime, half: Instant) -> Result<Item, Fault> {
        let value = match reply {
            Some(Reply::Value(value)) => value,
            Some(Reply::Missing) => return Ok(Item::missing(self.scheme, link.clock().estimate(sent_at))),
            other => return Err(odd(other).into()),
        };
        let shown = value.shown().filter(|_| self.scheme == Scheme::Cas);
        if shown.is_some_and(|shown| !link.clock().fits(shown, sent_at)) {
            // The server says whose mistake it is.
            self.read_clock(link, half).await?;
        }
        let clock = link.clock();
        let shown = shown.filter(|shown| clock.fits(*shown, sent_at));
        let now = shown.map_or_else(|| clock.estimate(sent_at), |shown| clock.reading(shown, sent_at));
        let number = clock.counter(value.version);
        let item = Item::read(self.scheme, value, now, number)?;
        if let Some(shown) = shown {
            link.saw(shown, sent_at);
        }
        Ok(item)
    }

    async fn read_clock(&self, link: &Arc<Link>, half: Instant) -> Result<(), Fault> {
        let read = self.connection.read_clock(link, half, self.end).await;
        read.map_err(|error| Fault { error: error.context(self.connection), written: false, again: true })
    }

    async fn exchange(&self, link: &Arc<Link>, commands: &Commands, writes: bool, half: Instant) -> Result<Answers, Fault> {
        let asked = self.connection.ask(link, commands, writes.then_some(self.ttl), half, self.end).await;
        asked.map_err(|Failed { error, sent }| Fault { error, written: writes && sent, again: true })
    }
}

/// Others that change the same name. Those of this process go one by one, and the others are let on for a moment:
/// who was overtaken at once would be overtaken again.
#[derive(Default)]
struct Rivals<'a> {
    turn: Option<MutexGuard<'a, ()>>,
    overtaken: u32,
}

impl<'a> Rivals<'a> {
    /// Returns whether it was at once.
    async fn let_on(&mut self, call: &Call<'a>, repeated: bool) -> Result<bool, Error> {
        let over = || {
            let error = Error::overloaded("others changed the name again and again");
            if repeated { error.maybe_applied() } else { error }
        };
        if self.turn.is_none() {
            let turns = call.connection.turns(call.key);
            let free = turns.try_lock().ok();
            let at_once = free.is_some();
            self.turn = Some(match free {
                Some(free) => free,
                None => timeout_at(call.end, turns.lock()).await.map_err(|_| over())?,
            });
            return Ok(at_once);
        }
        self.overtaken += 1;
        let most = Duration::from_micros(100 << self.overtaken.min(7));
        let until = Instant::now() + most.mul_f64(fastrand::f64());
        if until >= call.end {
            return Err(over());
        }
        sleep_until(until).await;
        Ok(false)
    }
}

pub(crate) fn odd(reply: Option<Reply>) -> Error {
    reply.map_or_else(|| Error::unavailable("the server gave no answer").maybe_applied(), |reply| reply.unexpected())
}
