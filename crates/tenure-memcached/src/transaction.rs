//! Compare-and-swap of one name: read its item, change it here, and write it unless anybody was faster.

use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::store::Request;
use tokio::time::{Instant, sleep_until};

use crate::clock::ServerClock;
use crate::connection::Connection;
use crate::item::Item;
use crate::link::{Failed, Link};
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
    /// Whether it may be made again after an unknown outcome.
    pub(crate) repeats: bool,
    pub(crate) end: Instant,
}

/// A finished call.
#[derive(Debug)]
pub(crate) struct Done<T> {
    pub(crate) outcome: T,
    /// Version of the item with this outcome.
    pub(crate) version: u64,
    pub(crate) clock: ServerClock,
    /// It was written once before, and nobody knows whether that was applied.
    pub(crate) repeated: bool,
}

/// One try of a call.
enum Tried<T> {
    Done(T, u64, ServerClock),
    /// Another client was faster.
    Overtaken,
}

/// Why a try failed.
struct Fault {
    error: Error,
    /// A write had no answer.
    unheard: bool,
    /// Another connection may answer.
    again: bool,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { error, unheard: false, again: false }
    }
}

impl Call<'_> {
    /// Applies `change` to the state of the name, and writes it.
    ///
    /// # Cancel safety
    /// A write that was sent stays.
    pub(crate) async fn transact<T>(&self, mut change: impl FnMut(&mut Item) -> Result<T, Error> + Send) -> Result<Done<T>, Error>
    where
        T: Send,
    {
        let (mut repeated, mut tries, mut overtaken) = (false, 0_u32, 0_u32);
        loop {
            let half = if tries == 0 { half_way(self.end) } else { self.end };
            match self.attempt(half, &mut change).await {
                Ok(Tried::Done(outcome, version, clock)) => return Ok(Done { outcome, version, clock, repeated }),
                Ok(Tried::Overtaken) => {
                    overtaken += 1;
                    self.pause(overtaken, repeated).await?;
                }
                Err(Fault { error, unheard, again }) => {
                    tries += 1;
                    repeated |= unheard;
                    let over = tries > 1 || !again || Instant::now() >= self.end || (unheard && !self.repeats);
                    if over {
                        return Err(if repeated { error.maybe_applied() } else { error });
                    }
                }
            }
        }
    }

    /// Takes a name that is likely to be free, by one command. `None` if it is not free, or if
    /// nobody knows whether it was taken: then the second value is true.
    pub(crate) async fn take(&self, request: &Request) -> Result<(Option<Done<()>>, bool), Error> {
        let link = self.connection.link(self.end).await?;
        let clock = link.clock();
        let mut item = Item::missing(self.scheme, clock.estimate(tenure::BootTime::now()));
        // Granted, as there is nobody.
        let _ = item.acquire(request)?;
        let mut commands = Commands::default();
        item.add_write(&mut commands, self.key);
        match self.exchange(&link, &commands, true, half_way(self.end)).await {
            Ok((mut replies, _)) => match replies.pop() {
                Some(Reply::Done(Some(version))) => Ok((Some(Done { outcome: (), version, clock, repeated: false }), false)),
                Some(Reply::Refused) => Ok((None, false)),
                other => Err(odd(other)),
            },
            Err(Fault { error, unheard, again }) => {
                let over = !again || Instant::now() >= self.end || (unheard && !self.repeats);
                if over { Err(if unheard { error.maybe_applied() } else { error }) } else { Ok((None, unheard)) }
            }
        }
    }

    async fn attempt<T>(
        &self,
        half: Instant,
        change: &mut (impl FnMut(&mut Item) -> Result<T, Error> + Send),
    ) -> Result<Tried<T>, Fault> {
        let link = self.connection.link(self.end).await?;
        let mut item = self.look(&link, half).await?;
        let outcome = change(&mut item)?;
        let (mut commands, clock) = (Commands::default(), link.clock());
        if !item.add_write(&mut commands, self.key) {
            return Ok(Tried::Done(outcome, item.version(), clock));
        }
        let (mut replies, _) = self.exchange(&link, &commands, true, half).await?;
        match replies.pop() {
            Some(Reply::Done(version)) => Ok(Tried::Done(outcome, version.unwrap_or(0), clock)),
            Some(Reply::Refused) => Ok(Tried::Overtaken),
            other => Err(odd(other).into()),
        }
    }

    async fn look(&self, link: &Arc<Link>, half: Instant) -> Result<Item, Fault> {
        let mut commands = Commands::default();
        commands.get(self.key);
        let (mut replies, sent_at) = self.exchange(link, &commands, false, half).await?;
        let clock = link.clock();
        match replies.pop() {
            Some(Reply::Value(value)) => {
                let item = Item::read(self.scheme, value, &clock, sent_at)?;
                if let Some(shown) = item.shown() {
                    link.saw(shown, sent_at);
                }
                Ok(item)
            }
            Some(Reply::Missing) => Ok(Item::missing(self.scheme, clock.estimate(sent_at))),
            other => Err(odd(other).into()),
        }
    }

    async fn exchange(
        &self,
        link: &Arc<Link>,
        commands: &Commands,
        writes: bool,
        half: Instant,
    ) -> Result<(Vec<Reply>, tenure::BootTime), Fault> {
        let asked = self.connection.ask(link, commands, writes.then_some(self.ttl), half, self.end).await;
        match asked {
            Ok(answers) => Ok((answers.replies, answers.sent_at)),
            Err(Failed { error, sent }) => Err(Fault { error, unheard: writes && sent, again: true }),
        }
    }

    /// Lets the others go on: those who were overtaken at once would overtake each other again.
    async fn pause(&self, overtaken: u32, repeated: bool) -> Result<(), Error> {
        let most = Duration::from_micros(100 << overtaken.min(7));
        let until = Instant::now() + most.mul_f64(fastrand::f64());
        if until >= self.end {
            let error = Error::unavailable("others changed the name again and again");
            return Err(if repeated { error.maybe_applied() } else { error });
        }
        if overtaken > 1 {
            sleep_until(until).await;
        }
        Ok(())
    }
}

pub(crate) fn half_way(end: Instant) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now) / 2
}

pub(crate) fn odd(reply: Option<Reply>) -> Error {
    reply.map_or_else(|| Error::unavailable("the server gave no answer").maybe_applied(), |reply| reply.unexpected())
}
