//! The store: the items of names, each read and written by compare-and-swap.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tenure::store::cas::{Cas, CasStore, Repeat, Tried, Write, Wrote};
use tenure::store::{Busy, Features, Grant, Request};
use tenure::{BootTime, Entry, Error, ErrorKind, Holder, Lease, Name, Share};
use tokio::time::{Instant, timeout_at};

use crate::clock::BEHIND;
use crate::connection::{Connection, half_way};
use crate::item::{Found, Item, add_write, is_ours, just_granted, only_owner, rest};
use crate::link::{Answers, Failed, Link};
use crate::options::{Options, Scheme};
use crate::protocol::{Commands, Key, Reply};
use crate::servers::Servers;

/// Limit of the first contact.
const CONTACT: Duration = Duration::from_secs(5);
/// memcached counts whole seconds.
const MIN_TTL: Duration = Duration::from_secs(1);
/// 2.25 s for a time that is behind, 1 s of rounding, and 2 s until the server shows the end; with a reserve.
const LATE_END: Duration = Duration::from_millis(5_500);
/// A waiter far back in the queue polls less often, and never less than this.
const SLOWEST_POLL: Duration = Duration::from_secs(1);
/// Names that are read at once, and those that are looked at.
const READS: usize = 64;
const GLANCES: usize = 1_000;
/// An item without flags that is longer than this is no generated token.
const LONGEST_TOKEN: u32 = 512;
/// Time for the other servers, once one has answered.
const GRACE: Duration = Duration::from_millis(500);
/// Longest time for which an item is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);

/// Locks in one memcached, or in several.
///
/// # Round trips
/// Acquire 1, also if the name is busy, and 2 if it joins the queue; renew 2 for all leases
/// together; release 1, and 2 for one share of several. Each call 2 more whenever another client
/// was faster.
pub type MemcachedStore = CasStore<Items>;

/// The items of a [`MemcachedStore`].
pub struct Items {
    servers: Servers,
    scheme: Scheme,
    prefix: String,
    timeout: Option<Duration>,
    poll_interval: Duration,
    shown: String,
    /// How writes of this process have left items with one lease, and until when. A release deletes such an item if
    /// nobody has changed it.
    left: Mutex<HashMap<Name, (Found, Instant)>>,
    /// The process that opened it.
    process: u32,
}

impl Items {
    pub(crate) async fn open(options: Options) -> Result<MemcachedStore, Error> {
        let (servers, shown) = (Servers::new(&options), options.to_string());
        let Options { scheme, prefix, timeout: limit, poll_interval, .. } = options;
        contact(&servers.all, &shown).await?;
        let (left, process) = (Mutex::default(), std::process::id());
        Ok(CasStore::new(Self { servers, scheme, prefix, timeout: limit, poll_interval, shown, left, process }))
    }

    fn left(&self) -> MutexGuard<'_, HashMap<Name, (Found, Instant)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a write has left a name.
    fn remember(&self, name: &Name, found: &Found) {
        let (mut left, now) = (self.left(), Instant::now());
        if only_owner(found).is_none() {
            left.remove(name);
            return;
        }
        // Not every lease is released.
        if left.len() == left.capacity() {
            left.retain(|_, (_, until)| *until > now);
        }
        left.insert(name.clone(), (found.clone(), now + rest(found).min(REMEMBERED)));
    }

    fn key(&self, name: &Name) -> Result<Key, Error> {
        Key::new(&format!("{}{name}", self.prefix))
    }

    fn server(&self, key: &Key) -> &Connection {
        &self.servers.all[self.servers.of(key)]
    }

    /// Has a link for commands about a key. Another link may be asked after `half`.
    async fn attempt<'a>(&'a self, key: &'a Key, half: Instant, end: Instant) -> Result<Attempt<'a>, Error> {
        let server = self.server(key);
        Ok(Attempt { items: self, server, link: server.link(half, end).await?, key, half, end })
    }

    /// Reads one name. A connection that turns out to be dead is replaced in half of the time.
    async fn look(&self, key: &Key, end: Instant) -> Result<Found, Error> {
        match self.attempt(key, half_way(end), end).await?.look().await {
            Err(Failed { error, .. }) if error.is_transient() && Instant::now() < end => {
                self.attempt(key, end, end).await?.look().await
            }
            found => found,
        }
        .map_err(|failed| failed.error)
    }

    /// The entry of a name, if it looks like a lock.
    async fn entry(&self, name: &Name, end: Instant) -> Result<Option<Entry>, Error> {
        let found = self.look(&self.key(name)?, end).await?;
        let mut entry = found.record.inspect(name, found.now).filter(|_| is_ours(&found));
        entry.iter_mut().flat_map(|entry| &mut entry.holders).for_each(|holder| self.show(holder));
        Ok(entry)
    }

    /// Those of these names whose item may be a lock, by its flags and its size.
    async fn candidates<'a>(&self, server: &Connection, names: &'a [Name], end: Instant) -> Result<Vec<&'a Name>, Error> {
        let mut commands = Commands::default();
        for name in names {
            commands.glance(&self.key(name)?);
        }
        let replies = server.read(&commands, end).await?;
        let may_be = |reply: &Reply| matches!(reply, Reply::Size { size, flags } if *flags > 0 || *size <= LONGEST_TOKEN);
        Ok(names.iter().zip(replies).filter(|(_, reply)| may_be(reply)).map(|(name, _)| name).collect())
    }
}

/// Commands about a key, on one link.
struct Attempt<'a> {
    items: &'a Items,
    server: &'a Connection,
    link: Arc<Link>,
    key: &'a Key,
    half: Instant,
    end: Instant,
}

impl Attempt<'_> {
    async fn look(&self) -> Result<Found, Failed> {
        let mut commands = Commands::default();
        commands.get(self.key);
        let Answers { mut replies, sent_at } = self.ask(&commands, None).await?;
        self.item(replies.pop(), sent_at).await
    }

    async fn ask(&self, commands: &Commands, left: Option<Duration>) -> Result<Answers, Failed> {
        self.server.ask(&self.link, commands, left, self.half, self.end).await
    }

    /// The item that a reply shows.
    async fn item(&self, reply: Option<Reply>, sent_at: BootTime) -> Result<Found, Failed> {
        let (link, scheme) = (&self.link, self.items.scheme);
        let value = match reply {
            Some(Reply::Value(value)) => value,
            Some(Reply::Missing) => return Ok(Item::missing(scheme, link.clock().estimate(sent_at), link)),
            other => return Err(Failed::answered(odd(other))),
        };
        let shown = value.shown().filter(|_| scheme == Scheme::Cas);
        if shown.is_some_and(|shown| !link.clock().fits(shown, sent_at)) {
            // The server says whose mistake it is.
            self.read_clock().await?;
        }
        let clock = link.clock();
        let shown = shown.filter(|shown| clock.fits(*shown, sent_at));
        let now = shown.map_or_else(|| clock.estimate(sent_at), |shown| clock.reading(shown, sent_at));
        let number = clock.counter(value.version);
        let item = Item::read(scheme, value, now, number, link).map_err(Failed::answered)?;
        if let Some(shown) = shown {
            link.saw(shown, sent_at);
        }
        Ok(item)
    }

    async fn read_clock(&self) -> Result<(), Failed> {
        let read = self.server.read_clock(&self.link, self.half, self.end).await;
        read.map_err(|error| Failed { error: error.context(self.server), sent: true })
    }

    /// Writes the name. `Failed::sent`: another connection may answer, and nobody knows what became of the write.
    async fn write(&self, write: &Write<'_, Item>, commands: &Commands) -> Result<Wrote<Item>, Failed> {
        let Answers { replies, sent_at } = self.ask(commands, Some(rest(write.found))).await?;
        let mut replies = replies.into_iter();
        let done = match replies.next() {
            Some(Reply::Done) => true,
            Some(Reply::Refused) => false,
            other => return Err(Failed::answered(odd(other))),
        };
        let after = match replies.next() {
            // A deletion is not followed by a question.
            None if done => {
                self.items.left().remove(write.name);
                return Ok(Wrote::all());
            }
            None => self.look().await?,
            reply => self.item(reply, sent_at).await?,
        };
        if !done {
            return Ok(Wrote::nothing().with_found(after));
        }
        if rest(&after).saturating_add(write.found.pad) < rest(write.found) {
            // It is gone or ends too soon: the server has looked at its own clock meanwhile, or is ahead.
            self.read_clock().await?;
        }
        let after = just_granted(after);
        self.items.remember(write.name, &after);
        Ok(Wrote::all().with_found(after))
    }
}

/// Makes the first contact with each. Of several, some may be lost: their names cannot be locked, and the others can.
async fn contact(servers: &[Connection], shown: &str) -> Result<(), Error> {
    let end = Instant::now() + CONTACT;
    let mut left: FuturesUnordered<_> = servers.iter().map(|server| server.link(end, end)).collect();
    let (mut until, mut outcome) = (end, None::<Result<(), Error>>);
    while let Ok(Some(contact)) = timeout_at(until, left.next()).await {
        match contact {
            Err(error) if error.is_transient() => outcome = outcome.or(Some(Err(error))),
            Err(error) => return Err(error),
            Ok(_) => (until, outcome) = (until.min(Instant::now() + GRACE), Some(Ok(()))),
        }
    }
    outcome.unwrap_or_else(|| Err(Error::unreachable(format!("{shown} did not answer within {CONTACT:?}"))))
}

#[async_trait]
impl Cas for Items {
    type Version = Item;

    fn features(&self) -> Features {
        let records = self.scheme == Scheme::Cas;
        let prefix_length = Key::new(&self.prefix).map_or(0, |key| key.as_bytes().len());
        Features::basic()
            .with_fence(true)
            .with_shares(records)
            .with_queue(records)
            .with_cohort(true)
            .with_server_clock(true)
            .with_late_commands(self.servers.all.iter().any(Connection::has_late_commands))
            .with_min_ttl(MIN_TTL)
            .with_late_end(LATE_END)
            .with_max_name(Key::MAX - prefix_length)
            .with_operation_timeout(self.timeout)
            .with_opened_by(self.process)
            .with_timed_calls(true)
    }

    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error> {
        let read = |name: &Name| self.key(name).map(|key| async move { self.look(&key, end).await });
        let reads = names.iter().map(|name| read(name)).collect::<Result<Vec<_>, Error>>()?;
        join_all(reads).await.into_iter().collect()
    }

    async fn write(&self, writes: &[Write<'_, Item>], repeat: Repeat, end: Instant) -> Result<Wrote<Item>, Error> {
        let [write] = writes else { return Err(Error::invalid("memcached writes one name at a time")) };
        let (key, mut commands) = (self.key(write.name)?, Commands::default());
        if !add_write(write.found, write.granted, &mut commands, &key) {
            return Ok(Wrote::all());
        }
        let half = if repeat == Repeat::Never { end } else { half_way(end) };
        let attempt = self.attempt(&key, half, end).await?;
        if !Arc::ptr_eq(&write.found.version.link, &attempt.link) {
            return Ok(Wrote::nothing());
        }
        match attempt.write(write, &commands).await {
            // Of a supplied token, a second try would find the lease of the first, and take it for another client's. And
            // a write of a grant may still run after the release. The caller has to know, to clean up until then.
            Err(Failed { sent: true, .. }) if repeat == Repeat::Freely && Instant::now() < end => {
                Ok(Wrote::nothing().with_unheard(true))
            }
            Err(Failed { sent: true, error }) => Err(error.maybe_applied()),
            // It was closed just before.
            Err(_) if attempt.link.is_closed() && repeat != Repeat::Never => Ok(Wrote::nothing()),
            outcome => outcome.map_err(|failed| failed.error),
        }
    }

    /// Every name that looks like a lock.
    async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        for server in &self.servers.all {
            let keys = server.keys(end).await?;
            let name = |key: &String| Name::new(Key::name(key)?.strip_prefix(&self.prefix)?).ok();
            let names: Vec<Name> = keys.iter().filter_map(name).collect();
            for part in names.chunks(GLANCES) {
                for part in self.candidates(server, part, end).await?.chunks(READS) {
                    for entry in join_all(part.iter().map(|name| self.entry(name, end))).await {
                        match entry {
                            Err(error) if error.is_transient() => return Err(error),
                            // It is of another version, or no lock.
                            entry => entries.extend(entry.ok().flatten()),
                        }
                    }
                }
            }
        }
        Ok(entries)
    }

    fn busy(&self, busy: Busy, _: bool) -> Busy {
        let back = busy.position.unwrap_or(0).saturating_add(1);
        let every = self.poll_interval.saturating_mul(back).min(self.poll_interval.max(SLOWEST_POLL));
        let mut holder = busy.holder.clone();
        // A lease shows no rest while it ends. Waiters would ask again at once, for seconds.
        if let Some(rest) = holder.as_mut().and_then(|holder| holder.ttl.as_mut()) {
            *rest = (*rest).max(every);
        }
        busy.with_poll_interval(every).with_holder(holder)
    }

    /// Shows of a lease what is left at least.
    fn show(&self, holder: &mut Holder) {
        holder.ttl = holder.ttl.map(|ttl| ttl.saturating_sub(BEHIND + Duration::from_secs(1)));
    }

    fn check(&self, name: &Name) -> Result<(), Error> {
        self.key(name).map(drop)
    }

    fn check_request(&self, request: &Request) -> Result<(), Error> {
        if self.scheme == Scheme::Add && request.share != Share::MUTEX {
            let what = format!("the locks in this scheme at {self} are mutexes only");
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("use a mutex, or scheme=cas"));
        }
        Ok(())
    }

    /// A name that is likely free is not read. The write finds out.
    async fn take(&self, request: &Request, end: Instant) -> Result<Tried<Grant, Item>, Error> {
        let link = self.server(&self.key(&request.name)?).link(half_way(end), end).await?;
        Ok(Tried::Other(Some(Item::missing(self.scheme, link.clock().estimate(BootTime::now()), &link))))
    }

    /// An item that a write of this process has left is not read again. The deletion finds out.
    async fn free(&self, lease: &Lease, _: Instant) -> Result<Tried<(), Item>, Error> {
        let left = self.left().remove(&lease.name).map(|(found, _)| found);
        Ok(Tried::Other(left.filter(|found| only_owner(found) == Some(&lease.owner))))
    }
}

impl fmt::Display for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Items({self})")
    }
}

fn odd(reply: Option<Reply>) -> Error {
    reply.map_or_else(|| Error::unavailable("the server gave no answer").maybe_applied(), |reply| reply.unexpected())
}
