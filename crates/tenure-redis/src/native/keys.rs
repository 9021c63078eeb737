//! The keys of a name.
//!
//! The key of a name is the name behind the prefix, so that other clients share it. The keys beside
//! it begin with a hash tag that leads to the same slot of a Cluster, so that all keys of a name
//! are on one node. The braces of a name, which may be odd, are never used again.

use tenure::store::Request;
use tenure::{Error, Name};

use crate::transport::commands::{Commands, Key, whole};

/// The keys of one prefix.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) prefix: String,
    /// Prefixes of further keys of the same lock, if there are any.
    pub(crate) further: Vec<String>,
    pub(crate) counter: String,
    /// In a cluster, where a script reaches one slot alone: each slot has a counter of its own.
    pub(crate) by_slot: bool,
    /// Key of the memory of a node of a quorum.
    pub(crate) memory: String,
    /// Key of the ends of its leases.
    pub(crate) ends: String,
    /// The command that counts a grant, ready for the wire.
    pub(crate) increment: Vec<u8>,
}

/// The parts of the keys of one name, so that no key is put together before it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    prefix: &'a [u8],
    name: &'a [u8],
    tag: [u8; 4],
    /// None if the slot has a counter of its own.
    grants: Option<&'a [u8]>,
}

impl Layout {
    pub(crate) fn new(prefix: &str) -> Self {
        let counter = format!("{prefix}tenure:fence");
        let increment = Commands::of(&[b"INCR", counter.as_bytes()]).as_bytes().to_owned();
        let further = Vec::new();
        let [memory, ends] = ["tenure:node", "tenure:node:ends"].map(|key| format!("{prefix}{key}"));
        Self { prefix: prefix.to_owned(), further, counter, by_slot: false, memory, ends, increment }
    }

    /// The keys in a cluster. Refuses a prefix by which they would be in different slots.
    pub(crate) fn by_slot(prefix: &str) -> Result<Self, Error> {
        check_hash_tag(prefix)?;
        Ok(Self { by_slot: true, ..Self::new(prefix) })
    }

    /// The key of a name.
    pub(crate) fn key(&self, name: &Name) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn slot(&self, name: &Name) -> u16 {
        slot(self.prefix.as_bytes(), name.as_str().as_bytes())
    }

    pub(crate) fn of<'a>(&'a self, name: &'a Name) -> Keys<'a> {
        let (prefix, name) = (self.prefix.as_bytes(), name.as_str().as_bytes());
        Keys { prefix, name, tag: tag(slot(prefix, name)), grants: (!self.by_slot).then_some(self.counter.as_bytes()) }
    }

    /// The key of a name, and its further keys.
    pub(crate) fn all_of<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = Key<'a>> {
        let prefixes = std::iter::once(&self.prefix).chain(&self.further);
        prefixes.map(|prefix| [prefix.as_bytes(), name.as_str().as_bytes(), b"", b"", b""])
    }

    /// Refuses a request that no store here can serve: about a name of ours, or to take over from
    /// nobody. To the scripts an empty owner means that there is nobody to take over from.
    pub(crate) fn check_request(&self, request: &Request) -> Result<(), Error> {
        self.check(&request.name)?;
        match &request.from {
            Some(from) if from.as_bytes().is_empty() => Err(Error::invalid("the owner to take over from is empty")),
            _ => Ok(()),
        }
    }

    /// Refuses names whose keys are used for something else.
    pub(crate) fn check(&self, name: &Name) -> Result<(), Error> {
        if is_beside(name.as_str().as_bytes()) {
            let what = format!("{name:?} is the key of something kept about another name");
            return Err(Error::invalid(what).with_hint("use another name, or a prefix= of your own"));
        }
        if [&self.counter, &self.memory, &self.ends].iter().any(|key| key.strip_prefix(&self.prefix) == Some(name.as_str())) {
            let what = format!("{name:?} is the key of something that fences are made of");
            return Err(Error::invalid(what).with_hint("use another name, or a prefix= of your own"));
        }
        Ok(())
    }
}

/// Whether a name looks like a key beside another name.
fn is_beside(name: &[u8]) -> bool {
    let what = name.strip_prefix(b"{").and_then(|rest| rest.split_at_checked(4));
    what.is_some_and(|(tag, rest)| {
        tag.iter().all(|byte| (b'@'..=b'O').contains(byte))
            && [b"}:q:", b"}:p:", b"}:s:", b"}:o:", b"}:g:", b"}:h:"].iter().any(|what| rest.starts_with(*what))
    })
}

impl Keys<'_> {
    /// Leads to the slot of the name.
    pub(crate) const fn tag(&self) -> [u8; 4] {
        self.tag
    }

    pub(crate) fn name(&self) -> Key<'_> {
        [self.prefix, self.name, b"", b"", b""]
    }

    pub(crate) fn queue(&self) -> Key<'_> {
        self.beside(b"}:q:")
    }

    pub(crate) fn entries(&self) -> Key<'_> {
        self.beside(b"}:p:")
    }

    pub(crate) fn shares(&self) -> Key<'_> {
        self.beside(b"}:s:")
    }

    /// The owner, in the schemes whose values do not say it.
    pub(crate) fn owner(&self) -> Key<'_> {
        self.beside(b"}:o:")
    }

    /// The grant counter.
    pub(crate) fn grants(&self) -> Key<'_> {
        self.grants.map_or([self.prefix, b"{", &self.tag, b"}:g:", b"tenure:fence"], whole)
    }

    /// The processes that a release notifies, at a node of a quorum.
    pub(crate) fn hints(&self) -> Key<'_> {
        self.beside(b"}:h:")
    }

    fn beside<'b>(&'b self, what: &'b [u8]) -> Key<'b> {
        [self.prefix, b"{", &self.tag, what, self.name]
    }
}

/// The slot of a whole key in a Cluster.
pub(crate) fn slot_of(key: &str) -> u16 {
    slot(b"", key.as_bytes())
}

/// Refuses a prefix in a cluster whose first brace begins no hash tag that the prefix ends. It would
/// make one of what comes behind it, or have the whole key count. Then the tag of the keys beside a
/// name has no effect.
pub(crate) fn check_hash_tag(prefix: &str) -> Result<(), Error> {
    match prefix.split_once('{').map(|(_, tag)| tag.find('}')) {
        None | Some(Some(1..)) => Ok(()),
        Some(None | Some(0)) => {
            let what = format!("prefix={prefix} has a {{ without a hash tag: keys of one name would be in different slots");
            Err(Error::invalid(what).with_hint("leave its braces out, or put them around some of it, as in {app}:"))
        }
    }
}

/// The slot of a key in a Cluster: of the part between its first braces, or of all of it without
/// such a part.
fn slot(prefix: &[u8], name: &[u8]) -> u16 {
    let length = prefix.len() + name.len();
    let at = |index: usize| if index < prefix.len() { prefix[index] } else { name[index - prefix.len()] };
    let find = |byte: u8, from: usize| (from..length).find(|index| at(*index) == byte);
    let tagged = find(b'{', 0).and_then(|open| find(b'}', open + 1).map(|close| (open + 1)..close)).filter(|tag| !tag.is_empty());
    tagged.unwrap_or(0..length).fold(0, |sum, index| checked(sum, at(index))) & SLOT
}

/// Four characters of `@` to `O` with this slot.
///
/// The checksum of a text is linear in its bits. So a text is found bit by bit, from the highest of
/// the slot down.
fn tag(slot: u16) -> [u8; 4] {
    let (mut left, mut bits) = (slot ^ (checksum(&[PLAIN; 4]) & SLOT), 0);
    for (bit, (effect, cause)) in BASIS.iter().enumerate().rev() {
        if left >> bit & 1 == 1 {
            left ^= effect;
            bits ^= cause;
        }
    }
    spelled(bits)
}

const SLOT: u16 = 0x3fff;
/// The character whose low half has no bit set.
const PLAIN: u8 = b'@';

/// Four bits in each of four characters.
const fn spelled(bits: u16) -> [u8; 4] {
    [PLAIN | (bits & 15) as u8, PLAIN | (bits >> 4 & 15) as u8, PLAIN | (bits >> 8 & 15) as u8, PLAIN | (bits >> 12) as u8]
}

/// For each bit of a slot: a change of the slot in this bit and lower ones, and the bits of the
/// text that cause it.
const BASIS: [(u16, u16); 14] = {
    let mut basis = [(0, 0); 14];
    let mut cause = 1_u16;
    while cause != 0 {
        let (mut effect, mut causes) = ((checksum(&spelled(cause)) ^ checksum(&spelled(0))) & SLOT, cause);
        let mut bit = 14;
        while bit > 0 {
            bit -= 1;
            if effect >> bit & 1 == 1 {
                if basis[bit].0 == 0 {
                    basis[bit] = (effect, causes);
                    break;
                }
                effect ^= basis[bit].0;
                causes ^= basis[bit].1;
            }
        }
        cause <<= 1;
    }
    basis
};

/// CRC-16/XMODEM.
const fn checksum(bytes: &[u8]) -> u16 {
    let (mut sum, mut at) = (0_u16, 0);
    while at < bytes.len() {
        sum = checked(sum, bytes[at]);
        at += 1;
    }
    sum
}

const fn checked(sum: u16, byte: u8) -> u16 {
    (sum << 8) ^ TABLE[((sum >> 8) as u8 ^ byte) as usize]
}

const TABLE: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0_u16);
    while byte < 256 {
        let (mut sum, mut bit) = (byte << 8, 0);
        while bit < 8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = sum;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use tenure::ErrorKind;

    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // As CLUSTER KEYSLOT answers.
        for (key, expected) in [("123456789", 0x31c3), ("foo", 12_182), ("{user1000}.following", 3_443), ("foo{}{bar}", 8_363)] {
            assert_eq!(slot(b"", key.as_bytes()), expected, "{key}");
            let (prefix, name) = key.split_at(2);
            assert_eq!(slot(prefix.as_bytes(), name.as_bytes()), expected, "{key}");
        }
        assert_eq!(slot(b"", b"foo{{bar}}zap"), slot(b"", b"a{{bar}"));
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..=SLOT {
            let tag = tag(slot);
            assert_eq!(super::slot(b"", &tag), slot);
            assert!(tag.iter().all(|byte| (b'@'..=b'O').contains(byte)), "{tag:?}");
        }
    }

    /// Others make the same keys.
    #[test]
    fn the_wire_spec_has_the_keys() {
        let page = include_str!("../../../../docs/wire.md");
        let (_, rows) = page.split_once("| prefix | name | slot | queue |\n|---|---|---|---|\n").unwrap();
        let rows: Vec<&str> = rows.lines().take_while(|row| row.starts_with('|')).collect();
        assert!(rows.len() > 5, "{rows:?}");
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let [prefix, name, ..] = cells[..] else { panic!("{row}") };
            let (layout, name) = (Layout::new(if prefix == "none" { "" } else { prefix }), Name::new(name).unwrap());
            let queue = String::from_utf8(layout.of(&name).queue().concat()).unwrap();
            assert_eq!((layout.slot(&name).to_string().as_str(), queue.as_str()), (cells[2], cells[3]), "{row}");
        }
    }

    #[test]
    fn all_keys_of_a_name_share_a_slot() {
        for prefix in ["", "app:", "{app}:"] {
            for name in ["door", "a}b", "{}x", "}", "x{}{y}", "{", "{a}b", "дверь"] {
                let (layout, name) = (Layout::by_slot(prefix).unwrap(), Name::new(name).unwrap());
                let keys = layout.of(&name);
                let all = [keys.name(), keys.queue(), keys.entries(), keys.shares(), keys.owner(), keys.grants(), keys.hints()];
                assert!(all.iter().all(|key| slot(b"", &key.concat()) == layout.slot(&name)), "{keys:?}");
            }
        }
    }

    /// Every prefix of these characters, in a cluster with every name of them: one that is taken keeps
    /// the keys of each name in one slot, and one that is refused does not.
    #[test]
    fn a_prefix_that_would_part_the_keys_of_a_name_is_refused() {
        let texts = |most: u32| {
            let numbers = (0..=most).flat_map(|length| (0..3_usize.pow(length)).map(move |number| (length, number)));
            numbers
                .map(|(length, number)| (0..length).map(|at| ["a", "{", "}"][number / 3_usize.pow(at) % 3]).collect::<String>())
        };
        let parts = |prefix: &str| {
            let layout = Layout { by_slot: true, ..Layout::new(prefix) };
            texts(3).filter_map(|name| Name::new(name).ok()).any(|name| {
                let keys = layout.of(&name);
                let all = [keys.name(), keys.queue(), keys.entries(), keys.shares(), keys.owner(), keys.grants(), keys.hints()];
                all.iter().any(|key| slot(b"", &key.concat()) != layout.slot(&name))
            })
        };
        for prefix in texts(5).chain(["a{b:", "{", "x{}y:", "{app}:", "{app}:{", "}{app}"].map(str::to_owned)) {
            let refused = Layout::by_slot(&prefix).map(drop);
            assert_eq!(refused.is_err(), parts(&prefix), "{prefix:?}");
            if let Err(error) = refused {
                assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(&format!("prefix={prefix}")), "{error}");
            }
        }
    }
}
