//! Owner token: the value that names one acquisition.

mod make;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use self::make::check_label;

const RANDOM_HEX: usize = 32;
const HEX: &[u8; 16] = b"0123456789abcdef";
const LINGER: &[u8] = b"linger:";

/// An owner token: the opaque bytes that name one acquisition of a name.
///
/// A *generated* token is `<label>.<128 random bits in hex>`. The label tells an operator who
/// holds, and the random bits make each token unique. A *supplied* token is any bytes, chosen by
/// the caller or by another client. As text, bytes that are not printable UTF-8 become
/// `hex:<digits>`, which parses back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(Arc<[u8]>);

impl Owner {
    /// Longest label, in bytes.
    pub const MAX_LABEL: usize = 128;

    /// Makes a supplied token.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes as a store keeps them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Label of a generated token; `None` for any other value.
    pub fn label(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.0).ok()?;
        let split = text.len().checked_sub(RANDOM_HEX)?;
        let random = text.get(split..)?;
        if !random.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        // No generated token has control characters. A forged one might write on a terminal.
        text[..split].strip_suffix('.').filter(|label| !label.chars().any(char::is_control))
    }

    /// Returns the value at a name that lingers after this owner's release. No renewal and no
    /// release of the owner matches it.
    #[must_use]
    pub fn lingering(&self) -> Self {
        Self([LINGER, &self.0].concat().into())
    }

    /// Returns the owner after which a name lingers, if the value says so.
    pub fn lingers_after(&self) -> Option<Self> {
        self.0.strip_prefix(LINGER).map(Self::from_bytes)
    }

    /// Whether the value has the form of a generated token, so that a scan may take its key for a
    /// lock.
    pub fn is_generated(&self) -> bool {
        self.label().is_some()
    }
}

/// Appends bytes as lower-case hex digits.
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().copied().flat_map(hex_digits).map(char::from));
}

fn hex_digits(byte: u8) -> [u8; 2] {
    [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with("hex:") && !text.chars().any(char::is_control) => f.write_str(text),
            _ => {
                let mut text = String::from("hex:");
                push_hex(&mut text, &self.0);
                f.write_str(&text)
            }
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_owners_differ_and_carry_the_label() {
        let (a, b) = (Owner::generate("web-1.42").unwrap(), Owner::generate("web-1.42").unwrap());
        assert_ne!(a, b);
        assert_eq!(a.label(), Some("web-1.42"));
        assert_eq!(Owner::generate("").unwrap().label(), Some(""));
    }

    #[test]
    fn foreign_values_have_no_label() {
        for value in [
            &b"1"[..],
            b"ADDED:2026@host:uuid",
            &[0xff; 20],
            b"x0123456789abcdef0123456789abcdef",
            b"0123456789abcdef0123456789abcdef",
        ] {
            let owner = Owner::from_bytes(value);
            assert_eq!((owner.label(), owner.is_generated(), owner.as_bytes()), (None, false, value));
        }
        let forged = Owner::from_bytes(format!("web\x1b[2J.{}", "0".repeat(RANDOM_HEX)).into_bytes());
        assert_eq!(forged.label(), None, "it writes on somebody's terminal");
    }

    #[test]
    fn a_label_may_be_as_long_as_promised() {
        let longest = "l".repeat(Owner::MAX_LABEL);
        assert_eq!(Owner::generate(&longest).unwrap().label(), Some(longest.as_str()));
        assert!(Owner::generate(&(longest + "l")).is_err());
        assert!(Owner::generate("a\nb").is_err());
    }

    #[test]
    fn a_lingering_value_tells_after_whom() {
        let owner = Owner::generate("web-1").unwrap();
        assert_ne!(owner.lingering(), owner);
        assert_eq!(owner.lingering().lingers_after(), Some(owner.clone()));
        assert_eq!(owner.lingers_after(), None);
        assert!(owner.lingering().is_generated(), "a scan lists what lingers");
    }

    #[test]
    fn any_bytes_survive_as_text() {
        for value in [&b"plain"[..], "ключ".as_bytes(), &[0xff, 0, 7], b"line\nbreak", b"hex:zz", b"a"] {
            let owner = Owner::from_bytes(value);
            assert_eq!(owner.to_string().parse::<Owner>().unwrap(), owner);
            assert_eq!(format!("{owner:?}"), format!("\"{owner}\""));
        }
        assert_eq!(Owner::from_bytes(&b"plain"[..]).to_string(), "plain");
        assert_eq!(Owner::from_bytes(&b"a\nb"[..]).to_string(), "hex:610a62");
        for bad in ["", "hex:a", "hex:zz", "hex:жж"] {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }
}
