//! A process that buys until everything is sold: it takes the lock of an item, reads what is left,
//! pays, and writes the order.

use std::time::Duration;

use jobs::{Error, crash, open_locks};
use tenure::{ErrorKind, Guard, Locker, State};
use tokio::time::sleep;

use crate::articles::{Article, Client, TTL, Won};
use crate::shop::{Shop, Span, unix};

/// Most buyers at the till at once, with permits.
pub(crate) const TILLS: u32 = 4;
/// Time between two tries of a lock that another has.
const RETRY: Duration = Duration::from_millis(3);

/// The rush is over when no more units of an item are left than these.
const RUSH: i64 = 5;

/// Lock of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// None at all.
    Nothing,
    /// As an article writes it.
    Article(Article),
    /// A mutex of tenure for each item.
    Mutex,
    /// One of the permits of tenure to be at the till. The database counts by itself.
    Permit,
}

/// Where a buyer takes locks.
pub(crate) enum Locks {
    Nothing,
    Article(Client),
    Ours(Locker),
}

impl Locks {
    pub(crate) async fn open(kind: Kind, store: &str, ttl: Duration, crashes: f64) -> Result<Self, Error> {
        Ok(match kind {
            Kind::Nothing => Self::Nothing,
            Kind::Article(article) => Self::Article(Client::connect(article, store, crashes).await?),
            Kind::Mutex | Kind::Permit => Self::Ours(open_locks(store, ttl).await?),
        })
    }
}

enum Held {
    Nothing,
    Article(Won),
    Ours(Guard),
}

pub(crate) struct Buyer {
    kind: Kind,
    locks: Locks,
    /// In front of the names of locks.
    prefix: String,
    shop: Shop,
    crashes: f64,
}

impl Buyer {
    pub(crate) const fn new(kind: Kind, locks: Locks, prefix: String, shop: Shop, crashes: f64) -> Self {
        Self { kind, locks, prefix, shop, crashes }
    }

    pub(crate) async fn run(&mut self) -> Result<(), Error> {
        loop {
            let items = self.shop.open_items()?;
            let Some(item) = fastrand::choice(items) else { return Ok(()) };
            match self.take(item).await? {
                Some(held) => self.buy(item, held).await?,
                None => sleep(RETRY).await,
            }
        }
    }

    /// Name of the lock of an item.
    fn name(&self, item: i64) -> String {
        format!("{}sale/item/{item}", self.prefix)
    }

    async fn take(&mut self, item: i64) -> Result<Option<Held>, Error> {
        let (name, till) = (self.name(item), format!("{}sale/till", self.prefix));
        match &mut self.locks {
            Locks::Nothing => Ok(Some(Held::Nothing)),
            Locks::Article(client) => Ok(client.take(&name).await?.map(Held::Article)),
            Locks::Ours(locks) => {
                let acquire = if self.kind == Kind::Permit { locks.semaphore(till, TILLS) } else { locks.mutex(name) };
                // Not for long: another item may be free.
                match acquire.wait(RETRY * 20).acquire().await {
                    Ok(guard) => Ok(Some(Held::Ours(guard))),
                    Err(error) if error.kind() == ErrorKind::TimedOut || error.is_transient() => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    async fn buy(&mut self, item: i64, held: Held) -> Result<(), Error> {
        let began = unix();
        crash(self.crashes);
        if self.kind == Kind::Permit {
            pay(0).await;
            crash(self.crashes);
            self.shop.sell(item)?;
        } else if let Some(left) = self.read(item, &held)?.filter(|left| *left > 0) {
            crash(self.crashes);
            let is_paid = match &held {
                // Without a fence, the payment ends as soon as the lease is known to be lost.
                Held::Ours(guard) if guard.fence().is_none() => guard.run(pay(left)).await.is_ok(),
                // With one, the write is refused. No look at the lease could stop a buyer that is paused right
                // after it.
                _ => {
                    pay(left).await;
                    true
                }
            };
            crash(self.crashes);
            if is_paid {
                self.write(item, left, began, &held)?;
            }
        }
        crash(self.crashes);
        self.free(item, held).await
    }

    fn read(&self, item: i64, held: &Held) -> Result<Option<i64>, Error> {
        let left = self.shop.read(item, fence(held))?;
        if left.is_none() {
            self.shop.note_refused(item)?;
        }
        Ok(left)
    }

    fn write(&mut self, item: i64, left: i64, began: f64, held: &Held) -> Result<(), Error> {
        let in_time = match held {
            Held::Nothing => true,
            Held::Article(won) => won.is_valid(),
            Held::Ours(guard) => guard.state() != State::Lost,
        };
        if !self.shop.write(item, fence(held), left, &Span { began, in_time })? {
            self.shop.note_refused(item)?;
        }
        Ok(())
    }

    async fn free(&mut self, item: i64, held: Held) -> Result<(), Error> {
        let name = self.name(item);
        match (held, &mut self.locks) {
            (Held::Ours(guard), _) => drop(guard.release().await),
            (Held::Article(won), Locks::Article(client)) => client.free(&name, won).await?,
            _ => {}
        }
        Ok(())
    }
}

fn fence(held: &Held) -> Option<i64> {
    if let Held::Ours(guard) = held { guard.fence().map(i64::from) } else { None }
}

/// The payment service is slow in the rush at the beginning: one payment in eight outlasts the leases
/// of the articles. Later all are quick.
async fn pay(left: i64) {
    let is_slow = left > RUSH && fastrand::u32(..8) == 0;
    sleep(if is_slow { TTL.mul_f64(1.1 + fastrand::f64() / 2.0) } else { Duration::from_millis(fastrand::u64(20..80)) }).await;
}
