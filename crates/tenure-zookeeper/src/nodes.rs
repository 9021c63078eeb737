//! The nodes of a lock: their paths, their names and their data, as Curator has them.

use std::time::Duration;

use tenure::{Error, Name, Owner, Share};

/// The ends of lock nodes, in front of the sequence number: of Curator's mutex, readers and writers, and of kazoo's lock.
const MUTEX: &str = "lock-";
const READER: &str = "__READ__";
const WRITER: &str = "__WRIT__";
const KAZOO: &str = "__lock__";
const KINDS: [&str; 4] = [MUTEX, READER, WRITER, KAZOO];

/// The first word of the data of a node of ours.
const OURS: &[u8] = b"tenure1";

/// A node that holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) share: Share,
    sequence: i32,
}

impl Child {
    /// Reads a name; `None` if it is not that of a lock node.
    pub(crate) fn read(name: &str) -> Option<Self> {
        let (at, kind) = KINDS.iter().filter_map(|kind| Some((name.rfind(kind)?, *kind))).max()?;
        let digits = &name[at + kind.len()..];
        // At least ten characters, with the sign.
        let is_number = digits.len() == 10 || (digits.len() == 11 && digits.starts_with("-1") | digits.starts_with("-2"));
        if !is_number {
            return None;
        }
        let share = match kind {
            READER => Share::READ,
            WRITER => Share::WRITE,
            _ => permits(&name[..at]).unwrap_or(Share::MUTEX),
        };
        Some(Self { name: name.to_owned(), share, sequence: digits.parse().ok()? })
    }
}

/// The permits that stand in front of the kind: `2of5-`.
fn permits(head: &str) -> Option<Share> {
    let (weight, capacity) = head.strip_suffix('-')?.rsplit_once('-')?.1.split_once("of")?;
    Share::permits(weight.parse().ok()?, capacity.parse().ok()?).ok()
}

/// The lock nodes among all children, in their order. The server's number goes on from its largest to its smallest, so only
/// differences count.
pub(crate) fn in_order(names: &[String]) -> Vec<Child> {
    let mut children: Vec<_> = names.iter().filter_map(|name| Child::read(name)).collect();
    let Some(origin) = children.first().map(|child| child.sequence) else { return children };
    children.sort_by_key(|child| child.sequence.wrapping_sub(origin));
    children
}

/// The 128 random bits by which an entry finds its node again if it has not heard its number, as a UUID. They are not those of
/// the owner token: what is left of one attempt must not be taken for a later one with the same token.
pub(crate) fn guid() -> Result<String, Error> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|e| Error::unavailable("the system gave no random bytes").with_source(e))?;
    let digits = format!("{:032x}", u128::from_be_bytes(random));
    Ok(format!("_c_{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]))
}

/// The name of a new node, to which the server adds the number.
pub(crate) fn node(guid: &str, share: Share) -> String {
    match share {
        Share::MUTEX => format!("{guid}-{MUTEX}"),
        Share::READ => format!("{guid}-{READER}"),
        Share::WRITE => format!("{guid}-{WRITER}"),
        share => format!("{guid}-{}of{}-{MUTEX}", share.weight(), share.capacity()),
    }
}

/// Contents of a node's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) owner: Owner,
    pub(crate) share: Share,
    pub(crate) ttl: Duration,
}

impl Data {
    pub(crate) fn write(&self) -> Vec<u8> {
        let head = format!(" {}/{} {} ", self.share.weight(), self.share.capacity(), self.ttl.as_millis());
        [OURS, head.as_bytes(), self.owner.as_bytes()].concat()
    }

    /// Reads the data of a node; `None` if it is not ours.
    pub(crate) fn read(data: &[u8]) -> Option<Self> {
        let mut words = data.strip_prefix(OURS)?.strip_prefix(b" ")?.splitn(3, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let ((weight, capacity), ttl) = (word()?.split_once('/')?, word()?.parse().ok()?);
        let share = Share::from_parts(weight.parse().ok()?, capacity.parse().ok()?)?;
        Some(Self { owner: Owner::from_bytes(words.next()?), share, ttl: Duration::from_millis(ttl) })
    }
}

/// The owner that is shown for a node of others: its name, by which it can be broken.
pub(crate) fn stranger(child: &Child) -> Owner {
    Owner::from_bytes(child.name.as_bytes())
}

/// Checks that a path is one for ZooKeeper, and none of a lock node. `is_top`: it begins at the top of the tree.
pub(crate) fn check_path(path: &str, what: &str, is_top: bool) -> Result<(), Error> {
    let bad = |why: String| Error::invalid(format!("{what} {path:?} is no path of ZooKeeper: {why}"));
    for part in path.split('/') {
        if part.is_empty() {
            return Err(bad("a part of it is empty".into())
                .with_hint("write it without a / at either end, and with one between two parts"));
        }
        if part == "." || part == ".." {
            return Err(bad(format!("a part of it is {part:?}")).with_hint("use another name"));
        }
        if Child::read(part).is_some() {
            return Err(bad(format!("{part:?} is the name of a lock node")).with_hint("let no part end in such a number"));
        }
    }
    let is_bad = |c: char| matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..);
    if let Some(bad_one) = path.chars().find(|c| is_bad(*c)) {
        return Err(bad(format!("it has the character U+{:04X}", u32::from(bad_one)))
            .with_hint("use characters below U+D800, and no control characters"));
    }
    if is_top && (path == "zookeeper" || path.starts_with("zookeeper/")) {
        return Err(bad("/zookeeper is its own".into()).with_hint("use another name, a prefix= or a chroot"));
    }
    Ok(())
}

pub(crate) fn checked(path: &str, name: &Name, is_top: bool) -> Result<(), Error> {
    check_path(path, "the lock name", is_top)
        .map(drop)
        .map_err(|error| if path == name.as_str() { error } else { error.context(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: &str = "_c_01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn names_tell_the_share() {
        for share in [Share::MUTEX, Share::READ, Share::WRITE, Share::permits(2, 5).unwrap()] {
            let child = Child::read(&format!("{}0000000012", node(GUID, share))).unwrap();
            assert_eq!((child.share, child.sequence), (share, 12));
        }
        let theirs = ["lock-0000000003", "_c_x-lock-0000000003", "0a1b__lock__0000000003", "n_2-lock-0000000003"];
        assert!(theirs.iter().all(|name| Child::read(name).unwrap().share == Share::MUTEX));
        // The server writes ten characters at least, and counts the sign.
        for (name, sequence) in [("lock--000000001", -1), ("lock--999999999", -999_999_999), ("lock--1000000000", -1_000_000_000)]
        {
            assert_eq!(Child::read(name).unwrap().sequence, sequence);
        }
        for other in [
            "lock--00000001",
            "lock--0000000001",
            "lock-3",
            "door",
            "lock-",
            "x-lock-00000000031",
            "leases",
            "é__READ__000000000x",
        ] {
            assert_eq!(Child::read(other), None, "{other}");
        }
    }

    #[test]
    fn numbers_go_on_from_the_largest_to_the_smallest() {
        let names = ["lock--2147483648", "lock-2147483646", "door", "lock--2147483647", "lock-2147483647"];
        let sorted: Vec<_> = in_order(&names.map(str::to_owned)).into_iter().map(|child| child.name).collect();
        assert_eq!(sorted, ["lock-2147483646", "lock-2147483647", "lock--2147483648", "lock--2147483647"]);
    }

    #[test]
    fn data_is_read_as_it_was_written() {
        for owner in [&b"web.0"[..], b"", b"a b\0\xff"] {
            let data = Data { owner: Owner::from_bytes(owner), share: Share::READ, ttl: Duration::from_secs(30) };
            assert_eq!(Data::read(&data.write()), Some(data));
        }
        for other in [&b"10.0.0.1"[..], b"", b"tenure1", b"tenure1 3/2 1 x", b"tenure1 1/1 x y"] {
            assert_eq!(Data::read(other), None);
        }
    }

    #[test]
    fn names_that_are_no_paths_are_refused() {
        let table = [
            ("/a", "empty"),
            ("a//b", "empty"),
            ("a/", "empty"),
            ("a/../b", "\"..\""),
            ("a/lock-0000000001", "lock node"),
            ("\u{1f512}", "U+1F512"),
            ("zookeeper/x", "its own"),
        ];
        for (name, why) in table {
            let error = check_path(name, "the lock name", true).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(name.split('/').next().unwrap_or_default()), "{error}");
        }
        for good in ["a", "a/b", " ", "...", "заказ/42", "zookeepers", "x/zookeeper"] {
            check_path(good, "the lock name", true).unwrap();
        }
        check_path("zookeeper", "the lock name", false).unwrap();
    }
}
