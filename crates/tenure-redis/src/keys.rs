//! Where a name and what belongs to it is kept.
//!
//! The key of a name is the name under the prefix, so that other clients share it. What stands beside it has a hash tag of its own
//! that leads to the same slot of a Cluster: the braces of a name, which may be odd, are never used again. Then all keys of a name
//! are on one node.

use tenure::{Error, Name};

/// The keys of one prefix.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) prefix: String,
    pub(crate) counter: String,
}

/// The keys of one name, in the order in which the scripts are given them; see `scripts/keys.lua`.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) places: String,
    pub(crate) shares: String,
}

impl Layout {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), counter: format!("{prefix}tenure:fence") }
    }

    pub(crate) fn name(&self, name: &Name) -> String {
        let (prefix, name) = (self.prefix.as_str(), name.as_str());
        [prefix, name].concat()
    }

    pub(crate) fn of(&self, name: &Name) -> Keys {
        let key = self.name(name);
        let tag = tag(slot(key.as_bytes()));
        let tag = std::str::from_utf8(&tag).unwrap_or_default();
        let beside = |what| [&self.prefix, "{", tag, what, name.as_str()].concat();
        Keys { queue: beside("}:q:"), places: beside("}:p:"), shares: beside("}:s:"), name: key }
    }

    /// Refuses the one name that is not a lock.
    pub(crate) fn check(&self, name: &Name) -> Result<(), Error> {
        if self.counter.strip_prefix(&self.prefix) == Some(name.as_str()) {
            let what = format!("{name:?} is where the counter is kept that fences are made of");
            return Err(Error::invalid(what).fix("use another name, or a prefix= of your own"));
        }
        Ok(())
    }
}

/// The slot of a key in a Cluster: of what is between its first braces, or of all of it where there is nothing.
fn slot(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    checksum(tagged.unwrap_or(key)) & SLOT
}

/// Four characters of `@` to `O` whose slot this is.
///
/// The checksum of a text is linear in its bits: a text is found bit by bit, from the highest of the slot down.
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
/// The character whose low half stands for no bit.
const PLAIN: u8 = b'@';

/// Four bits in each of four characters.
const fn spelled(bits: u16) -> [u8; 4] {
    [PLAIN | (bits & 15) as u8, PLAIN | (bits >> 4 & 15) as u8, PLAIN | (bits >> 8 & 15) as u8, PLAIN | (bits >> 12) as u8]
}

/// For each bit of a slot: what changes it and lower bits only, and by which bits of the text.
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
        sum = (sum << 8) ^ TABLE[((sum >> 8) as u8 ^ bytes[at]) as usize];
        at += 1;
    }
    sum
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
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // As CLUSTER KEYSLOT answers.
        for (key, expected) in [("123456789", 0x31c3), ("foo", 12_182), ("{user1000}.following", 3_443), ("foo{}{bar}", 8_363)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..=SLOT {
            let tag = tag(slot);
            assert_eq!(super::slot(&tag), slot);
            assert!(tag.iter().all(|byte| (b'@'..=b'O').contains(byte)), "{tag:?}");
        }
    }

    #[test]
    fn all_keys_of_a_name_share_a_slot() {
        for prefix in ["", "app:", "{app}:"] {
            for name in ["door", "a}b", "{}x", "}", "x{}{y}", "{", "{a}b", "дверь"] {
                let keys = Layout::new(prefix).of(&Name::new(name).unwrap());
                let slots = [&keys.name, &keys.queue, &keys.places, &keys.shares].map(|key| slot(key.as_bytes()));
                assert!(slots.iter().all(|slot| *slot == slots[0]), "{keys:?}");
            }
        }
    }
}
