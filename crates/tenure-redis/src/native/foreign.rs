//! Keys and fields of Redisson, and the name of an object of it where a lock is asked for, so that
//! people need not guess.

use std::borrow::Cow;
use std::time::Duration;

use redis::Value;
use tenure::{Error, ErrorKind, Kind, Name, Share};

use crate::native::keys::slot_of;
use crate::native::store::RedisStore;
use crate::transport::commands::Commands;
use crate::transport::connection::Repeat;
use crate::transport::link::Link;
use crate::transport::reply::{Answers, read};

/// Length of a UUID with its dashes, and where they are.
pub(crate) const UUID: usize = 36;
pub(crate) const DASHES: [usize; 4] = [8, 13, 18, 23];

/// The field by which a read/write lock of Redisson is known.
pub(crate) const MODE: &[u8] = b"mode";

/// Whether a field of a hash is an owner of Redisson's clients: `<uuid>:<thread>`.
pub(crate) fn is_owner_of_redisson(field: &[u8]) -> bool {
    field.split_at_checked(UUID).is_some_and(|(uuid, thread)| {
        let is_uuid = |(at, byte): (usize, &u8)| if DASHES.contains(&at) { *byte == b'-' } else { byte.is_ascii_hexdigit() };
        uuid.iter().enumerate().all(is_uuid) && thread.len() > 1 && thread.starts_with(b":")
    })
}

/// A key of Redisson beside another. Braces are put around that unless it has some.
pub(crate) fn before_of_redisson(what: &str, key: &str) -> String {
    if key.contains('{') { format!("{what}:{key}") } else { format!("{what}:{{{key}}}") }
}

/// The same with the other key in front.
pub(crate) fn behind_of_redisson(key: &str, what: &str) -> String {
    if key.contains('{') { format!("{key}:{what}") } else { format!("{{{key}}}:{what}") }
}

/// Whether Redisson keeps what is beside `key` in another slot of a cluster: it looks for one brace alone.
pub(crate) fn is_parted(key: &str) -> bool {
    slot_of(&before_of_redisson("", key)) != slot_of(key)
}

/// The key that a share has beside `key`: of the one hold of a reader, or of the ends of permits. Empty
/// for a mutex, which has none.
pub(crate) fn beside_share(key: &str, owner: &[u8], share: Share) -> Vec<u8> {
    match share.kind() {
        Kind::Mutex => Vec::new(),
        Kind::ReadWrite => [behind_of_redisson(key, "").as_bytes(), owner, b":rwlock_timeout:1"].concat(),
        Kind::Semaphore(_) => behind_of_redisson(key, "timeout").into_bytes(),
    }
}

/// Word for a share in the scripts about Redisson's: the number of its permits, if it has any.
pub(crate) fn what_of(share: Share) -> Cow<'static, str> {
    match share {
        Share::READ => "read".into(),
        Share::WRITE => "write".into(),
        permits => permits.weight().to_string().into(),
    }
}

/// The part of a key between braces around all of it, as Redisson puts them around a name.
pub(crate) fn inside_braces(key: &str) -> Option<&str> {
    key.strip_prefix('{')?.strip_suffix('}').filter(|inner| !inner.contains('{'))
}

/// The key that has this part in one beside it. None if it is not as Redisson would write it.
fn in_key_beside(part: &str) -> Option<&str> {
    inside_braces(part).or_else(|| part.contains('{').then_some(part))
}

/// An object of Redisson that was found where a lock is asked for.
struct Object {
    /// Its class, with an article.
    what: &'static str,
    /// The name of the object, if this is a key beside it.
    of: Option<String>,
    /// The scheme that shares it, if there is one.
    scheme: Option<&'static str>,
    /// Beginning of the hint, if the scheme fits some of what it may be.
    only_if: &'static str,
}

impl Object {
    const fn new(what: &'static str, scheme: Option<&'static str>) -> Self {
        Self { what, of: None, scheme, only_if: "" }
    }

    fn beside(what: &'static str, scheme: Option<&'static str>, of: &str) -> Self {
        Self { of: Some(of.to_owned()), ..Self::new(what, scheme) }
    }

    /// How to share it, if the scheme of the store URL is `in_use`.
    fn hint(&self, in_use: Option<&str>) -> Option<String> {
        let scheme = self.scheme?;
        let steps = match (&self.of, in_use == self.scheme) {
            (None, true) => return Some("use one kind of lock for a name".to_owned()),
            (Some(of), true) => format!("ask for {of:?}"),
            (None, false) => format!("put scheme={scheme} into the store URL"),
            (Some(of), false) => format!("put scheme={scheme} into the store URL and ask for {of:?}"),
        };
        Some(format!("{}{steps} to share it, or use another name", self.only_if))
    }
}

/// The replies about a key as each type that an object of Redisson may have.
struct Looks {
    key: String,
    fields: Vec<Vec<u8>>,
    member: Option<Vec<u8>>,
    element: Option<Vec<u8>>,
    value: Vec<u8>,
    /// The key has no expiry.
    stays: bool,
}

impl Looks {
    /// None if this user may not look.
    fn read(key: String, answers: Answers) -> Option<Self> {
        let [fields, members, elements, value, ttl] = <[_; 5]>::try_from(answers).ok()?;
        // Those about another type than the key has are errors.
        let fields = read::<(Value, Vec<Vec<u8>>)>(fields).map(|(_, pairs)| pairs.into_iter().step_by(2).collect());
        let first = |answer| read::<Vec<Vec<u8>>>(answer).ok().and_then(|found| found.into_iter().next());
        Some(Self {
            key,
            fields: fields.unwrap_or_default(),
            member: first(members),
            element: first(elements),
            value: read(value).unwrap_or_default(),
            stays: read::<i64>(ttl).ok()? == -1,
        })
    }

    fn object(&self) -> Option<Object> {
        self.of_hash().or_else(|| self.of_sorted_set()).or_else(|| self.of_list()).or_else(|| self.of_number())
    }

    fn of_hash(&self) -> Option<Object> {
        let has = |is: &dyn Fn(&[u8]) -> bool| self.fields.iter().any(|field| is(field));
        if has(&is_owner_of_redisson) {
            let is_read_write = has(&|field| field == MODE);
            let what = if is_read_write { "an RReadWriteLock" } else { "an RLock" };
            return Some(Object::new(what, Some("redisson")));
        }
        if [&b"rate"[..], b"interval", b"type"].iter().all(|setting| has(&|field| field == *setting)) {
            return Some(Object::new("an RRateLimiter", None));
        }
        has(&is_of_group).then(|| Object::new("a group of getMultiLock", None))
    }

    fn of_sorted_set(&self) -> Option<Object> {
        let member = self.member.as_deref()?;
        if is_owner_of_redisson(member)
            && let Some(of) = self.key.strip_prefix("redisson_lock_timeout:").and_then(in_key_beside)
        {
            return Some(Object::beside("an RFairLock", Some("redisson-fair"), of));
        }
        // Ids of permits, Redisson's and ours.
        if (member.len() == ID || is_owner_of_redisson(member))
            && let Some(of) = self.key.strip_suffix(":timeout").and_then(in_key_beside)
        {
            return Some(Object::beside("an RPermitExpirableSemaphore", Some("redisson"), of));
        }
        // Its length, something random of that length, and the number of permits.
        let is_of_limiter = member.split_first().is_some_and(|(length, rest)| rest.len() == usize::from(*length) + 4);
        // There is one for each client, or for all of them.
        let (before, client) = self.key.rsplit_once(":permits")?;
        let is_id = |client: &str| is_owner_of_redisson(format!("{client}:0").as_bytes());
        let is_client = client.is_empty() || client.strip_prefix(':').is_some_and(is_id);
        let of = in_key_beside(before).filter(|_| is_of_limiter && is_client)?;
        Some(Object::beside("an RRateLimiter", None, of))
    }

    fn of_list(&self) -> Option<Object> {
        let of = self.key.strip_prefix("redisson_lock_queue:").and_then(in_key_beside)?;
        let is_owner = self.element.as_deref().is_some_and(is_owner_of_redisson);
        is_owner.then(|| Object::beside("an RFairLock", Some("redisson-fair"), of))
    }

    fn of_number(&self) -> Option<Object> {
        let digits = self.value.strip_prefix(b"-").unwrap_or(&self.value);
        let is_number = !digits.is_empty() && digits.len() < MOST_DIGITS && digits.iter().all(u8::is_ascii_digit);
        let what = "a number without an expiry, as an RSemaphore, an RPermitExpirableSemaphore or an RCountDownLatch";
        let object = Object { only_if: "if it is a semaphore, ", ..Object::new(what, Some("redisson")) };
        (is_number && self.stays).then_some(object)
    }
}

/// Bytes of the id of a permit.
const ID: usize = 16;

/// Of a longer value only so much is read.
const MOST_DIGITS: usize = 20;

/// Whether a field is one of a value's that an owner has in a group: `<value>:<uuid>:<thread>:lock_count`.
fn is_of_group(field: &[u8]) -> bool {
    let hold = field.strip_suffix(b":lock_count").or_else(|| field.strip_suffix(b":expire_time"));
    let behind = |hold: &[u8]| hold.iter().position(|byte| *byte == b':').is_some_and(|at| is_owner_of_redisson(&hold[at + 1..]));
    hold.is_some_and(behind)
}

impl RedisStore {
    /// The refusal of a name, which says more if the key is an object of Redisson. `in_use` is the
    /// scheme of the store URL, if that shares some of them.
    ///
    /// # Round trips
    /// 1 if the name was refused for what stands there, else none.
    pub(crate) async fn named(&self, error: Error, name: &Name, in_use: Option<&str>) -> Error {
        self.named_of(error, [name], in_use).await
    }

    /// The same for the first of several names that has such an object.
    pub(crate) async fn named_of(
        &self,
        error: Error,
        names: impl IntoIterator<Item = &Name> + Send,
        in_use: Option<&str>,
    ) -> Error {
        if error.kind() != ErrorKind::Mismatch {
            return error;
        }
        let names: Vec<&Name> = names.into_iter().collect();
        for name in names {
            let Some(object) = self.object_at(name).await else { continue };
            let hint = object.hint(in_use);
            let error = match &object.of {
                None => error.context(format_args!("{name:?} is {} of Redisson", object.what)),
                Some(of) => error.context(format_args!("{name:?} is a part of {of:?}, {} of Redisson", object.what)),
            };
            return match hint {
                None => error,
                Some(hint) => error.with_hint(hint),
            };
        }
        error
    }

    async fn object_at(&self, name: &Name) -> Option<Object> {
        let keys = self.layout.of(name);
        let look = |_: &Link| {
            let key = keys.name();
            // Of a large object a part is enough.
            let mut commands = Commands::of_key(&key, b"HSCAN", &[b"0", b"COUNT", b"8"]);
            commands.about(&key, b"ZRANGE", &[b"0", b"0"]);
            commands.about(&key, b"LRANGE", &[b"0", b"0"]);
            commands.about(&key, b"GETRANGE", &[b"0", b"19"]);
            commands.about(&key, b"PTTL", &[]);
            commands
        };
        let found = self.connection.exchange(self.end(Duration::MAX), Repeat::Freely, look).await.ok()?;
        let mut object = Looks::read(self.layout.key(name), found.answers)?.object()?;
        if let Some(of) = &mut object.of
            && let Some(behind) = of.strip_prefix(&self.layout.prefix)
        {
            *of = behind.to_owned();
        }
        Some(object)
    }
}
