//! Listing holders and waiters.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use redis::{RedisResult, Value, pipe};
use tenure::{Entry, Error, ErrorKind, Holder, Name, Owner, Share};

use crate::native::reply::holder;
use crate::native::store::RedisStore;
use crate::transport::commands::millis;
use crate::transport::connection::Repeat;
use crate::transport::failure::{translate, unexpected};
use crate::transport::reply::{only, read, time};

/// Number of commands about one name, after the one for the time.
const QUESTIONS: usize = 5;

impl RedisStore {
    /// Every lock of ours, recognised by its value or by the keys beside it.
    pub(crate) async fn inspect_all(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        for kind in ["string", "zset"] {
            let mut scan = self.scan("", kind);
            while let Some(keys) = scan.next().await? {
                let names = keys.iter().filter_map(|key| self.name_of(key)).collect();
                let names = self.that_look_ours(names, kind).await?;
                let found = self.answers_about(&names).await?.into_iter().filter_map(Result::ok).flatten();
                entries.extend(found.filter(|entry| entry.holders.iter().any(|h| h.owner.is_generated())));
            }
        }
        Ok(entries)
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
                "string" => questions.cmd("GET").arg(keys.name().concat()),
                _ => questions.cmd("EXISTS").arg(keys.shares().concat()),
            };
        }
        let answers = self.connection.call(self.end(Duration::MAX), Repeat::Freely, |_, _| questions.clone()).await?.answers;
        let looks_ours = |answer: RedisResult<Value>| match answer {
            Ok(Value::BulkString(value)) => Owner::from_bytes(value).is_generated(),
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

    /// All keys of a type that begin with the prefix and `pattern`. A key may come twice.
    pub(crate) fn scan(&self, pattern: &str, kind: &'static str) -> Scan<'_> {
        let pattern = format!("{}{pattern}*", glob_escaped(&self.layout.prefix));
        Scan { store: self, pattern, kind, cursor: Some("0".to_owned()) }
    }

    pub(crate) fn name_of(&self, key: &[u8]) -> Option<Name> {
        let name = std::str::from_utf8(key).ok()?.strip_prefix(&self.layout.prefix)?;
        Name::new(name).ok().filter(|name| self.layout.check(name).is_ok())
    }

    /// The state of `names`, without those that are free and have no waiters.
    pub(crate) async fn inspect_names(&self, names: &[Name]) -> Result<Vec<Entry>, Error> {
        self.answers_about(names).await?.into_iter().filter_map(Result::transpose).collect()
    }

    async fn answers_about(&self, names: &[Name]) -> Result<Vec<Result<Option<Entry>, Error>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // Not in a transaction: a server out of memory queues none, and that is when people
        // inspect. For a moment during a hand-over, one owner may be shown with the other's ttl.
        let mut questions = pipe();
        questions.cmd("TIME");
        for name in names {
            let keys = self.layout.of(name);
            let [name, queued, shares] = [keys.name(), keys.entries(), keys.shares()].map(|key| key.concat());
            questions.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
            questions.cmd("HGETALL").arg(&shares).cmd("ZRANGE").arg(&name).arg(0).arg(-1).arg("WITHSCORES");
            questions.cmd("HGETALL").arg(&queued);
        }
        let answers = self.connection.call(self.end(Duration::MAX), Repeat::Freely, |_, _| questions.clone()).await?.answers;
        let mut answers = answers.into_iter();
        let now = millis(time(answers.next().ok_or_else(|| unexpected("no reply"))?)?);
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let about: Vec<_> = answers.by_ref().take(QUESTIONS).collect();
            entries.push(entry(name, about, now));
        }
        Ok(entries)
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

fn entry(name: &Name, about: Vec<RedisResult<Value>>, now: u64) -> Result<Option<Entry>, Error> {
    let Ok([value, ttl, shares, members, queued]) = <[RedisResult<Value>; QUESTIONS]>::try_from(about) else {
        return Err(unexpected("too few replies"));
    };
    let shares: HashMap<Vec<u8>, String> = read(shares)?;
    let queued: HashMap<Vec<u8>, String> = read(queued)?;
    let lives =
        |entry: &&String| entry.split(' ').next().and_then(|until| until.parse().ok()).is_some_and(|until: u64| until > now);
    let waiters = queued.values().filter(lives).count() as u64;
    let holders = match value.map_err(|e| translate(&e)) {
        Ok(Value::BulkString(value)) => match ttl.map_err(|e| translate(&e))? {
            Value::Int(ttl @ -1..) => vec![holder(&value, ttl, Share::MUTEX)],
            _ => Vec::new(),
        },
        Ok(_) => Vec::new(),
        Err(error) if error.kind() == ErrorKind::Mismatch && !shares.is_empty() => {
            let members: Vec<(Vec<u8>, f64)> = read(members)?;
            members.iter().filter_map(|(owner, until)| share_holder(owner, *until, &shares, now)).collect()
        }
        Err(error) => return Err(error),
    };
    Ok((!holders.is_empty() || waiters > 0).then(|| Entry::new(name.clone(), holders, waiters)))
}

fn share_holder(owner: &[u8], until: f64, shares: &HashMap<Vec<u8>, String>, now: u64) -> Option<Holder> {
    let number = |field: &[u8]| shares.get(field).and_then(|number| number.parse::<u32>().ok());
    #[allow(clippy::cast_possible_truncation, reason = "a time in ms is far below 2^53")]
    let left = until as i64 - i64::try_from(now).ok()?;
    let share = Share::from_parts(number(&[b"=", owner].concat()).unwrap_or(1), number(b"##")?)?;
    (left > 0).then(|| holder(owner, left, share))
}

fn glob_escaped(prefix: &str) -> String {
    prefix.chars().flat_map(|c| if "*?[]^\\".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
}
