//! The store: every call is a compare-and-swap of the item of its name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream, FuturesUnordered};
use tenure::store::record::Answer;
use tenure::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Lease, Name, Owner, Share};
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::options::{Options, Scheme};
use crate::protocol::{Commands, Key, Reply};
use crate::servers::Servers;
use crate::transaction::{Call, Found};

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
/// Longest time for a call that concerns no lease.
const CALL: Duration = Duration::from_secs(24 * 3_600);

/// Locks in one memcached, or in several.
///
/// # Round trips
/// Acquire 1, also if the name is busy, and 2 if it joins the queue; renew 2 for all leases
/// together; release 1, and 2 for a lease that was renewed. Each call 2 more whenever another client
/// was faster.
pub struct MemcachedStore(Arc<Inner>);

struct Inner {
    servers: Servers,
    scheme: Scheme,
    prefix: String,
    timeout: Option<Duration>,
    poll_interval: Duration,
    shown: String,
    granted: Mutex<Granted>,
    /// The process that opened it.
    process: u32,
}

/// How grants have left their items, and until when. A release deletes such an item if nobody has changed it.
type Granted = HashMap<(Name, Owner), (Found, Instant)>;

impl MemcachedStore {
    pub(crate) async fn open(options: Options) -> Result<Self, Error> {
        let (servers, shown) = (Servers::new(&options), options.to_string());
        let Options { scheme, prefix, timeout: limit, poll_interval, .. } = options;
        contact(&servers.all, &shown).await?;
        let (granted, process) = (Mutex::default(), std::process::id());
        Ok(Self(Arc::new(Inner { servers, scheme, prefix, timeout: limit, poll_interval, shown, granted, process })))
    }

    fn granted(&self) -> MutexGuard<'_, Granted> {
        self.0.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, request: &Request, found: Found) {
        let (mut granted, now) = (self.granted(), Instant::now());
        // Not every lease is released.
        if granted.len() == granted.capacity() {
            granted.retain(|_, (_, until)| *until > now);
        }
        granted.insert((request.name.clone(), request.owner.clone()), (found, now + request.ttl.min(CALL)));
    }

    fn forget(&self, lease: &Lease) -> Option<Found> {
        Some(self.granted().remove(&(lease.name.clone(), lease.owner.clone()))?.0)
    }

    fn prefix_length(&self) -> usize {
        Key::new(&self.0.prefix).map_or(0, |key| key.as_bytes().len())
    }

    fn key(&self, name: &Name) -> Result<Key, Error> {
        Key::new(&format!("{}{name}", self.0.prefix))
    }

    fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl).min(CALL)
    }

    fn call<'a>(&'a self, key: &'a Key, ttl: Duration, repeats: bool) -> Call<'a> {
        let (servers, scheme) = (&self.0.servers, self.0.scheme);
        Call { connection: &servers.all[servers.of(key)], scheme, key, ttl, repeats, end: self.end(ttl) }
    }

    /// A call that only reads.
    fn read<'a>(&'a self, key: &'a Key, end: Instant) -> Call<'a> {
        Call { end, ..self.call(key, Duration::MAX, true) }
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        if self.0.scheme == Scheme::Add && request.share != Share::MUTEX {
            let what = format!("the locks in this scheme at {self} are mutexes only");
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("use a mutex, or scheme=cas"));
        }
        if request.owner.as_bytes().is_empty() {
            return Err(Error::invalid("the owner is empty").with_hint("use one with a byte at least"));
        }
        Ok(())
    }

    /// The pause of a waiter until its next poll.
    fn poll_interval(&self, position: Option<u32>) -> Duration {
        let every = self.0.poll_interval;
        every.saturating_mul(position.unwrap_or(0).saturating_add(1)).min(every.max(SLOWEST_POLL))
    }

    /// Renews leases of one name.
    async fn renew_name(&self, name: &Name, leases: &[&Lease]) -> Result<Vec<RenewReply>, Error> {
        let (key, ttl) = (self.key(name)?, leases.iter().map(|lease| lease.ttl).max().unwrap_or_default());
        self.call(&key, ttl, true).renew(leases).await
    }

    /// The entry of a name. Not `any`: only if it looks like a lock.
    async fn inspect_name(&self, name: &Name, any: bool, end: Instant) -> Result<Option<Entry>, Error> {
        let key = self.key(name)?;
        let call = self.read(&key, end);
        let read = call.transact(|item| Ok((item.inspect(name), item.is_ours())));
        read.await.map(|done| done.outcome.0.filter(|_| any || done.outcome.1))
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

    /// Every name that looks like a lock.
    async fn inspect_all(&self) -> Result<Vec<Entry>, Error> {
        let end = self.end(Duration::MAX);
        let mut entries = Vec::new();
        for server in &self.0.servers.all {
            let keys = server.keys(end).await?;
            let name = |key: &String| Name::new(Key::name(key)?.strip_prefix(&self.0.prefix)?).ok();
            let names: Vec<Name> = keys.iter().filter_map(name).collect();
            for part in names.chunks(GLANCES) {
                for part in self.candidates(server, part, end).await?.chunks(READS) {
                    let reads = part.iter().map(|name| self.inspect_name(name, false, end));
                    for entry in join_all(reads).await {
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
impl Store for MemcachedStore {
    fn features(&self) -> Features {
        let records = self.0.scheme == Scheme::Cas;
        Features::basic()
            .with_fence(true)
            .with_shares(records)
            .with_queue(records)
            .with_cohort(true)
            .with_server_clock(true)
            .with_late_commands(self.0.servers.all.iter().any(Connection::has_late_commands))
            .with_min_ttl(MIN_TTL)
            .with_late_end(LATE_END)
            .with_max_name(Key::MAX - self.prefix_length())
            .with_operation_timeout(self.0.timeout)
            .with_opened_by(self.0.process)
            .with_timed_calls(true)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.check(request)?;
        let key = self.key(&request.name)?;
        // A write without an answer may run after the release. The caller has to know, to clean up until then.
        // Of a supplied token, a second try would find the lease of the first, and take it for another client's.
        let call = self.call(&key, request.ttl, false);
        let asks_for_a_free_one = request.from.is_none() && request.enqueue != Enqueue::Heartbeat;
        let done = call.grant(request, asks_for_a_free_one).await?;
        match done.outcome.answer {
            Answer::Granted(grant) => {
                if done.found.is_one_lease() {
                    self.remember(request, done.found);
                }
                Ok(AcquireReply::Granted(grant))
            }
            Answer::Busy { position, mut holder } => {
                let every = self.poll_interval(position);
                // A lease shows no rest while it ends. Waiters would ask again at once, for seconds.
                if let Some(rest) = holder.as_mut().and_then(|holder| holder.ttl.as_mut()) {
                    *rest = (*rest).max(every);
                }
                let busy = Busy::new(every).with_position(position).with_holder(holder);
                Ok(AcquireReply::Busy(busy))
            }
        }
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // Each item is changed on its own.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        // Leases of one name are changes to one record.
        let mut names: BTreeMap<&Name, Vec<&Lease>> = BTreeMap::new();
        for lease in leases {
            self.forget(lease);
            names.entry(&lease.name).or_default().push(lease);
        }
        let renewals = names.iter().map(|(name, leases)| async move { (*name, self.renew_name(name, leases).await) });
        let mut renewed: HashMap<&Name, _> =
            join_all(renewals).await.into_iter().map(|(name, renewed)| (name, renewed.map(Vec::into_iter))).collect();
        let one = |lease: &Lease| match renewed.get_mut(&lease.name) {
            Some(Ok(replies)) => replies.next().ok_or_else(|| Error::unavailable("a lease has no answer")),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::unavailable("a lease has no answer")),
        };
        leases.iter().map(one).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let key = self.key(&lease.name)?;
        // Between two releases by a supplied token, another client may take the name with it.
        let call = self.call(&key, lease.ttl, lease.owner.is_generated());
        // A linger begins now, and not when the item was written.
        let found = self.forget(lease).filter(|_| linger.is_zero());
        let done = call.release(&lease.owner, linger, found).await?;
        if done.outcome == ReleaseReply::NotHeld && done.repeated {
            let what = "the first release had no answer, and the second found nothing";
            return Err(Error::unreachable(what).maybe_applied());
        }
        Ok(done.outcome)
    }

    async fn watch(&self, _: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        Ok(stream::pending().boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let Some(name) = name else { return self.inspect_all().await };
        Ok(self.inspect_name(name, true, self.end(Duration::MAX)).await?.into_iter().collect())
    }
}

impl fmt::Display for MemcachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}

impl fmt::Debug for MemcachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemcachedStore({self})")
    }
}
