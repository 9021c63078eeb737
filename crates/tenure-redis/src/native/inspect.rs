//! Listing holders and waiters.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;
use std::time::Duration;

use redis::{Pipeline, RedisResult, Value, pipe};
use tenure::{Entry, Error, ErrorKind, Fence, Holder, Name, Owner, Queued, Share};

use crate::native::counter::EPOCH;
use crate::native::reply::holder;
use crate::native::store::RedisStore;
use crate::transport::commands::millis;
use crate::transport::connection::Repeat;
use crate::transport::failure::{translate, unexpected};
use crate::transport::link::Link;
use crate::transport::reply::{only, read, time};

/// Number of commands about one name, after the one for the time. Shares have one more.
const QUESTIONS: usize = 5;

/// The longest value that may be a lock's. Data of an application may be of any length. The server would need memory for an answer
/// of that length, for which a full cache evicts locks.
const LONGEST: usize = 4_096;

/// A generated owner token is shorter, also while it lingers.
const LONGEST_OURS: usize = 256;

/// Field of the hash beside a name of which there are shares.
const CAPACITY: &[u8] = b"##";

/// The locks that a list has found so far.
#[derive(Default)]
pub(crate) struct Listed {
    entries: Vec<Entry>,
    refused: Option<Error>,
}

impl Listed {
    /// Adds what looks like ours. A key of another type is no lock.
    pub(crate) fn add(&mut self, found: Vec<Result<Option<Entry>, Error>>, is_ours: impl Fn(&Entry) -> bool) {
        for answer in found {
            match answer {
                Ok(entry) => self.entries.extend(entry.filter(&is_ours)),
                Err(error) if error.kind() == ErrorKind::Refused => self.refused = Some(error),
                Err(_) => {}
            }
        }
    }

    /// The locks. A user may have the rights for some keys only. But if nothing could be read, the list is not empty.
    pub(crate) fn end(self) -> Result<Vec<Entry>, Error> {
        self.refused.filter(|_| self.entries.is_empty()).map_or(Ok(self.entries), Err)
    }
}

impl RedisStore {
    /// Every lock of ours, recognised by its value or by the keys beside it.
    pub(crate) async fn inspect_all(&self) -> Result<Vec<Entry>, Error> {
        let mut listed = Listed::default();
        for kind in ["string", "zset"] {
            let mut scan = self.scan("", kind);
            while let Some(keys) = scan.next().await? {
                let names = keys.iter().filter_map(|key| self.name_of(key)).collect();
                let names = self.that_look_ours(names, kind).await?;
                let found = self.answers_about(&names, kind == "zset").await?;
                listed.add(found, |entry| entry.holders.iter().any(|holder| holder.owner.is_generated()));
            }
        }
        listed.end()
    }

    /// Keeps the names that may be locks of ours. Most keys of a server are no locks, so this costs
    /// one command a name.
    async fn that_look_ours(&self, names: Vec<Name>, kind: &'static str) -> Result<Vec<Name>, Error> {
        if names.is_empty() {
            return Ok(names);
        }
        let mut questions = pipe();
        for name in &names {
            let keys = self.layout.of(name);
            match kind {
                "string" => questions.cmd("GETRANGE").arg(keys.name().concat()).arg(0).arg(LONGEST_OURS),
                _ => questions.cmd("HEXISTS").arg(keys.shares().concat()).arg(CAPACITY),
            };
        }
        let answers = self.connection.call(self.end(Duration::MAX), Repeat::Freely, |_, _| questions.clone()).await?.answers;
        let looks_ours = |answer: RedisResult<Value>| match answer {
            Ok(Value::BulkString(value)) => value.len() < LONGEST_OURS && Owner::from_bytes(value).is_generated(),
            Ok(Value::Int(found)) => found > 0,
            // It has become another type of key, or is not to be read: what is asked next says so.
            other => other.is_err(),
        };
        Ok(names.into_iter().zip(answers).filter_map(|(name, answer)| looks_ours(answer).then_some(name)).collect())
    }

    /// The names that have an owner at a key beside, in order.
    pub(crate) async fn names_beside(&self) -> Result<BTreeSet<Name>, Error> {
        let (mut names, before) = (BTreeSet::new(), self.layout.prefix.len() + "{tag4}:o:".len());
        let mut scan = self.scan("{[@-O][@-O][@-O][@-O]}:o:", "string");
        while let Some(keys) = scan.next().await? {
            names.extend(keys.iter().filter_map(|key| Name::new(std::str::from_utf8(key.get(before..)?).ok()?).ok()));
        }
        Ok(names)
    }

    /// As [`scan_behind`](Self::scan_behind), with the prefix.
    pub(crate) fn scan(&self, pattern: &str, kind: &'static str) -> Scan<'_> {
        self.scan_behind(&self.layout.prefix, pattern, kind)
    }

    /// All keys of a type that begin with `prefix` and `pattern`. A key may come twice.
    pub(crate) fn scan_behind(&self, prefix: &str, pattern: &str, kind: &'static str) -> Scan<'_> {
        let pattern = format!("{}{pattern}*", glob_escaped(prefix));
        Scan { store: self, pattern, kind, cursor: Some("0".to_owned()) }
    }

    pub(crate) fn name_of(&self, key: &[u8]) -> Option<Name> {
        let name = std::str::from_utf8(key).ok()?.strip_prefix(&self.layout.prefix)?;
        Name::new(name).ok().filter(|name| self.layout.check(name).is_ok())
    }

    /// The state of `names`, without those that are free and have no waiters.
    pub(crate) async fn inspect_names(&self, names: &[Name]) -> Result<Vec<Entry>, Error> {
        let found = self.answers_about(names, false).await?;
        found.into_iter().filter_map(Result::transpose).collect()
    }

    /// The state of each name. The members of a sorted set are only asked for if the hash beside it says that they are shares of
    /// ours: with `shares`, that is known of all names.
    async fn answers_about(&self, names: &[Name], shares: bool) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        let mut found = Vec::with_capacity(names.len());
        let (abouts, now) = self.ask_about(names, shares).await?;
        for (name, about) in names.iter().zip(abouts) {
            let (about, now) = if !shares && about.has_shares() {
                let (mut again, later) = self.ask_about(std::slice::from_ref(name), true).await?;
                (again.pop(), later)
            } else {
                (Some(about), now)
            };
            found.push(about.ok_or_else(|| unexpected("no reply")).and_then(|about| about.entry(name, now)));
        }
        Ok(found)
    }

    /// Asks about names. Returns the time of the answers as well, since 1970.
    async fn ask_about(&self, names: &[Name], shares: bool) -> Result<(Vec<About>, Duration), Error> {
        if names.is_empty() {
            return Ok((Vec::new(), Duration::ZERO));
        }
        // The next change of a name that somebody listens for is reported, from the moment on at which it is read.
        let first = self.layout.of(&names[0]).name().concat();
        let is_watched = names.len() == 1 && self.connection.listens_to_key(&first);
        let ask = |link: &Link, _| self.questions(names, shares, is_watched && link.tracks() == Some(true));
        let answers = self.connection.call(self.end(Duration::MAX), Repeat::Freely, ask).await?.answers;
        let each = QUESTIONS + usize::from(shares);
        let more = answers.len().saturating_sub(1 + names.len() * each);
        let mut answers = answers.into_iter();
        let now = time(answers.next().ok_or_else(|| unexpected("no reply"))?)?;
        let mut answers = answers.skip(more);
        let abouts = names.iter().map(|_| About::read(answers.by_ref().take(each).collect()));
        Ok((abouts.collect::<Result<_, Error>>()?, now))
    }

    /// Asks about names. Not in a transaction: a server out of memory queues none, and that is when people
    /// inspect. For a moment during a hand-over, one owner may be shown with the other's ttl.
    fn questions(&self, names: &[Name], shares: bool, tracks: bool) -> Pipeline {
        let mut questions = pipe();
        questions.cmd("TIME");
        if tracks {
            questions.cmd("CLIENT").arg("CACHING").arg("YES");
        }
        for name in names {
            let keys = self.layout.of(name);
            let [name, queue, entries, beside] =
                [keys.name(), keys.queue(), keys.entries(), keys.shares()].map(|key| key.concat());
            // A byte more, by which a longer value is known.
            questions.cmd("GETRANGE").arg(&name).arg(0).arg(LONGEST).cmd("PTTL").arg(&name).cmd("HGETALL").arg(&beside);
            questions.cmd("ZRANGE").arg(&queue).arg(0).arg(-1).cmd("HGETALL").arg(&entries);
            if shares {
                questions.cmd("ZRANGE").arg(&name).arg(0).arg(-1).arg("WITHSCORES");
            }
        }
        questions
    }
}

/// Keys, one page at a time.
pub(crate) struct Scan<'a> {
    store: &'a RedisStore,
    pattern: String,
    kind: &'static str,
    /// None after the last page.
    cursor: Option<String>,
}

impl Scan<'_> {
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let mut step = pipe();
        step.cmd("SCAN").arg(cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(1000).arg("TYPE").arg(self.kind);
        let (connection, end) = (&self.store.connection, self.store.end(Duration::MAX));
        let answers = connection.exchange(end, Repeat::Freely, |_| step.clone()).await?.answers;
        let (next, keys): (String, Vec<Vec<u8>>) = read(only(answers)?)?;
        self.cursor = Some(next).filter(|next| next != "0");
        Ok(Some(keys))
    }
}

/// The replies about a name.
struct About {
    value: RedisResult<Value>,
    ttl: RedisResult<Value>,
    /// A mutex can be reported without the hash.
    beside: HashMap<Vec<u8>, String>,
    queue: RedisResult<Value>,
    entries: RedisResult<Value>,
    members: Option<RedisResult<Value>>,
}

impl About {
    fn read(answers: Vec<RedisResult<Value>>) -> Result<Self, Error> {
        let mut answers = answers.into_iter();
        let mut next = || answers.next().ok_or_else(|| unexpected("too few replies"));
        let (value, ttl, beside) = (next()?, next()?, read(next()?).unwrap_or_default());
        Ok(Self { value, ttl, beside, queue: next()?, entries: next()?, members: answers.next() })
    }

    /// Whether there are shares of ours.
    fn has_shares(&self) -> bool {
        let is_mismatch = self.value.as_ref().is_err_and(|error| translate(error).kind() == ErrorKind::Mismatch);
        is_mismatch && self.beside.contains_key(CAPACITY)
    }

    /// The state of `name` at `now`, a time since 1970.
    fn entry(self, name: &Name, now: Duration) -> Result<Option<Entry>, Error> {
        let has_shares = self.has_shares();
        let beside = Beside { shares: self.beside, now };
        let holders = match (self.value.map_err(|e| translate(&e)), self.members) {
            (Ok(Value::BulkString(value)), _) => match self.ttl.map_err(|e| translate(&e))? {
                Value::Int(-1..) if value.len() > LONGEST => return Err(no_lock()),
                Value::Int(ttl @ -1..) => vec![beside.noted(holder(&value, ttl, Share::MUTEX))],
                _ => Vec::new(),
            },
            (Ok(_), _) => Vec::new(),
            (Err(_), Some(members)) if has_shares => {
                let members: Vec<(Vec<u8>, f64)> = read(members)?;
                members.iter().filter_map(|(owner, until)| beside.holder(owner, *until)).collect()
            }
            (Err(error), _) => return Err(error),
        };
        let (queue, entries): (Vec<Vec<u8>>, HashMap<Vec<u8>, String>) = (read(self.queue)?, read(self.entries)?);
        let waiter = |owner: &Vec<u8>| waiter(owner, entries.get(owner)?, millis(now));
        Ok(Some(Entry::new(name.clone(), holders, queue.iter().filter_map(waiter).collect())).filter(Entry::is_in_use))
    }
}

fn no_lock() -> Error {
    let what = format!("the value of the key has more than {LONGEST} bytes, so it is no lock");
    Error::new(ErrorKind::Mismatch, what).with_hint("use another name, or a prefix= of your own")
}

/// The hash beside a name, at a time since 1970.
struct Beside {
    shares: HashMap<Vec<u8>, String>,
    now: Duration,
}

impl Beside {
    fn number<T: FromStr>(&self, field: &[u8]) -> Option<T> {
        self.shares.get(field)?.parse().ok()
    }

    /// The holder of a share whose lease ends at `until`, ms.
    fn holder(&self, owner: &[u8], until: f64) -> Option<Holder> {
        #[allow(clippy::cast_possible_truncation, reason = "a time in ms is far below 2^53")]
        let left = until as i64 - i64::try_from(millis(self.now)).ok()?;
        let share = Share::from_parts(self.number(&[b"=", owner].concat()).unwrap_or(1), self.number(CAPACITY)?)?;
        (left > 0).then(|| self.noted(holder(owner, left, share)))
    }

    /// The holder with the number that is noted of its grant. Numbers are made of the clock, so that
    /// tells its age as well, within a second. One that is ahead of the clock tells no age.
    fn noted(&self, holder: Holder) -> Holder {
        // What lingers is of the grant before.
        let owner = holder.owner.lingers_after().unwrap_or_else(|| holder.owner.clone());
        let fence = self.number(&[b"@", owner.as_bytes()].concat()).and_then(Fence::from_counter);
        let began = fence.map(|fence| EPOCH + Duration::from_micros(fence.counter()));
        holder.with_fence(fence).with_age(began.and_then(|began| self.now.checked_sub(began)))
    }
}

/// A waiter, from its queue entry (see queue.lua). None for one that has lapsed at `now`, ms.
fn waiter(owner: &[u8], entry: &str, now: u64) -> Option<Queued> {
    let mut numbers = entry.split(' ').map(str::parse::<u64>);
    let mut number = || numbers.next()?.ok();
    let (until, _handoff_ttl, _entry_ttl, weight, capacity) = (number()?, number()?, number()?, number()?, number()?);
    let share = Share::from_parts(u32::try_from(weight).ok()?, u32::try_from(capacity).ok()?)?;
    (until > now).then(|| Queued::new(Owner::from_bytes(owner), share))
}

fn glob_escaped(prefix: &str) -> String {
    prefix.chars().flat_map(|c| if "*?[]^\\".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
}
