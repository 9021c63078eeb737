//! Keys of a name, and the values that we put there.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure::{Name, Owner, Share};

use crate::proto::KeyValue;

const HEAD: &str = "tenure:1";

/// Where names are kept: behind a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) prefix: String,
}

/// Two keys: those from the first on and before the second.
pub(crate) type KeyRange = (Vec<u8>, Vec<u8>);

impl Layout {
    fn folder(&self, name: &Name) -> String {
        format!("{}{name}/", self.prefix, name = name.as_str())
    }

    /// All keys of a name, and those of the names below it.
    pub(crate) fn range(&self, name: &Name) -> KeyRange {
        let folder = self.folder(name).into_bytes();
        let mut end = folder.clone();
        // The character behind the slash.
        end.pop();
        end.push(b'0');
        (folder, end)
    }

    /// All keys of all names.
    pub(crate) fn all(&self) -> KeyRange {
        let start = self.prefix.clone().into_bytes();
        let mut end = start.clone();
        // No key has a byte of 255 in front, unless it is no text.
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        match end.last_mut() {
            Some(last) => *last += 1,
            // From the first key to the last.
            None => return (vec![0], vec![0]),
        }
        (start, end)
    }

    /// A key that no name has.
    pub(crate) fn key_of_nobody(&self) -> String {
        format!("{}tenure", self.prefix)
    }

    /// The key of an owner. It is made of the token, so a request that is repeated makes no second one.
    pub(crate) fn key(&self, name: &Name, owner: &Owner) -> Vec<u8> {
        let folder = self.folder(name);
        let digest = Sha256::new().chain_update(&folder).chain_update([0]).chain_update(owner.as_bytes()).finalize();
        let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        format!("{folder}{:x}", number >> 1 | 1).into_bytes()
    }

    /// Whether a key is one of this name's, and not of a name below it.
    pub(crate) fn is_of(&self, name: &Name, kv: &KeyValue) -> bool {
        self.name_of(kv).is_some_and(|found| found == name.as_str())
    }

    /// The name whose lock a key belongs to. Without a lease it is data of another program, whatever it is called.
    pub(crate) fn name_of<'a>(&self, kv: &'a KeyValue) -> Option<&'a str> {
        self.name_in(&kv.key).filter(|_| kv.lease != 0)
    }

    fn name_in<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?;
        let (name, digits) = text.rsplit_once('/')?;
        let is_number =
            (1..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_number.then_some(name)
    }
}

/// Phase of an owner at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its hold was confirmed.
    Holds,
    /// It joined the queue. It may have been served since.
    Joined,
    /// It was released, and keeps the name taken.
    Lingers,
}

/// Value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) phase: Phase,
    pub(crate) share: Share,
    /// Granted ttl of the key's lease, in seconds.
    pub(crate) ttl: i64,
    /// Term of the members when the lease was granted, or an earlier one. Leaders of later terms know the
    /// lease as well.
    pub(crate) term: u64,
    pub(crate) owner: Owner,
    /// Revision of the holder's fence, or 0 if that is not known. `None` if it began when this was written.
    pub(crate) granted: Option<i64>,
}

impl Value {
    pub(crate) fn write(&self) -> Vec<u8> {
        let phase = match self.phase {
            Phase::Holds => "holds",
            Phase::Joined => "joined",
            Phase::Lingers => "lingers",
        };
        let Self { share, ttl, term, owner, granted, .. } = self;
        let granted = granted.map_or_else(String::new, |revision| format!("\t{revision}"));
        format!("{HEAD}\t{phase}\t{}\t{}\t{ttl}\t{term}\t{owner}{granted}", share.weight(), share.capacity()).into_bytes()
    }

    /// `None` for a value that is another client's.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(value).ok()?.split('\t');
        fields.next().filter(|head| *head == HEAD)?;
        let phase = match fields.next()? {
            "holds" => Phase::Holds,
            "joined" => Phase::Joined,
            "lingers" => Phase::Lingers,
            _ => return None,
        };
        let share = Share::from_parts(fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)?;
        let (ttl, term) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let owner = fields.next()?.parse().ok()?;
        let granted = fields.next().map(|revision| revision.parse().unwrap_or(0));
        Some(Self { phase, share, ttl, term, owner, granted })
    }
}

/// A span in whole seconds, rounded up.
pub(crate) fn seconds(span: Duration) -> i64 {
    /// The longest lease that etcd grants.
    const LONGEST: i64 = 9_000_000_000;
    let whole = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    i64::try_from(whole).unwrap_or(LONGEST).clamp(1, LONGEST)
}

/// Whole seconds as a span.
pub(crate) fn span(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(prefix: &str) -> Layout {
        Layout { prefix: prefix.to_owned() }
    }

    #[test]
    fn a_key_is_of_one_name() {
        let (name, below, owner) = (Name::new("a").unwrap(), Name::new("a/b").unwrap(), Owner::generate("me").unwrap());
        for layout in [layout(""), layout("locks/"), layout("é")] {
            let key = layout.key(&below, &owner);
            let kv = |lease| KeyValue { key: key.clone(), lease, ..KeyValue::default() };
            assert!(layout.is_of(&below, &kv(1)) && !layout.is_of(&name, &kv(1)), "{key:?}");
            assert!(!layout.is_of(&below, &kv(0)), "{key:?} is data");
            assert_ne!(layout.key(&name, &owner), key);
            assert!(layout.range(&below).0 < key && key < layout.range(&below).1, "{key:?}");
            assert!(layout.all().0 < key && (key < layout.all().1 || layout.prefix.is_empty()), "{key:?}");
        }
        assert_eq!(layout("").name_in(b"a/694d7f2b"), Some("a"));
        for other in [&b"a"[..], b"a/", b"a/config", b"a/ABC", b"a/\xff", b"a/00112233445566778"] {
            assert_eq!(layout("").name_in(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_value_reads_back() {
        for (phase, share) in [(Phase::Holds, Share::MUTEX), (Phase::Joined, Share::WRITE), (Phase::Lingers, Share::READ)] {
            for owner in [Owner::generate("me").unwrap(), Owner::from_bytes(&b"a\tb\n\xff"[..])] {
                for granted in [None, Some(0), Some(9)] {
                    let value = Value { phase, share, ttl: 30, term: 7, owner: owner.clone(), granted };
                    assert_eq!(Value::read(&value.write()), Some(value));
                }
            }
        }
        for other in [&b""[..], b"x", b"tenure:1", b"tenure:1\tholds\t2\t1\t3\t1\tx", b"\xff"] {
            assert_eq!(Value::read(other), None, "{other:?}");
        }
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (span, whole) in [(0, 1), (10, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(seconds(Duration::from_millis(span)), whole);
        }
        assert_eq!(seconds(Duration::MAX), 9_000_000_000);
    }
}
