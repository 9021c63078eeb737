//! Name of a lock.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::owner::push_hex;

/// A lock's name: UTF-8 text of 1 to [`Name::MAX_BYTES`] bytes without control characters.
///
/// Names are compared byte by byte; nothing is trimmed, folded or normalised. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// Longest name that any store accepts, in bytes. A store may allow less; see
    /// [`Features::max_name`](crate::store::Features).
    pub const MAX_BYTES: usize = 1024;

    /// Checks and makes a name.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the name is empty, too long or has a control
    /// character. A line break in a name would forge a second line in logs and in `TENURE_NAME`.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(
                Error::invalid("the lock name is empty").with_hint("name the thing that must not be done twice, e.g. invoice/42")
            );
        }
        if name.len() > Self::MAX_BYTES {
            let what = format!("the lock name has {} bytes, more than the {} a name may have", name.len(), Self::MAX_BYTES);
            return Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"));
        }
        if let Some(bad) = name.chars().find(|c| c.is_control()) {
            let what = format!("the lock name {name:?} has the control character U+{:04X}", u32::from(bad));
            return Err(Error::invalid(what).with_hint("use a name without line breaks, tabs or other control characters"));
        }
        Ok(Self(name.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as a key for a store that allows at most `max` bytes, and only those that
    /// `allowed` admits.
    ///
    /// A name that fits is its own key. Any other becomes a readable prefix of its admitted
    /// characters, `~`, and 128 bits of its SHA-256 in hex. Two names that differ anywhere get
    /// different keys. A name that itself ends like such a key is never used verbatim, so nobody
    /// can choose a name that meets another's digest.
    ///
    /// # Panics
    /// If `max` is below 40: there would be no room for the digest.
    pub fn short_key(&self, max: usize, allowed: impl Fn(u8) -> bool) -> Cow<'_, str> {
        const DIGEST: usize = 1 + 32;
        assert!(max >= 40, "a key of {max} bytes has no room for a digest");
        let fits = self.0.len() <= max && self.0.bytes().all(&allowed);
        if fits && !looks_digested(&self.0) {
            return Cow::Borrowed(&self.0);
        }
        let mut key: String = self.0.chars().filter(|c| c.is_ascii() && allowed(*c as u8)).take(max - DIGEST).collect();
        key.push('~');
        push_hex(&mut key, &Sha256::digest(self.0.as_bytes())[..16]);
        Cow::Owned(key)
    }
}

fn looks_digested(name: &str) -> bool {
    name.len() > 32 && name.is_char_boundary(name.len() - 32) && {
        let (head, tail) = name.split_at(name.len() - 32);
        head.ends_with('~') && tail.bytes().all(|b| b.is_ascii_hexdigit())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printable(b: u8) -> bool {
        b.is_ascii_graphic()
    }

    #[test]
    fn odd_names_are_names() {
        for name in ["a", " ", "a}b", "{}x", "заказ/42", "日本", "x y", &"n".repeat(Name::MAX_BYTES)] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn bad_names_say_why() {
        for (name, why) in [("", "empty"), ("a\nb", "U+000A"), ("a\0", "U+0000"), (&*"n".repeat(1025), "1025 bytes")] {
            let error = Name::new(name).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        }
    }

    #[test]
    fn short_keys_fit_and_differ() {
        let long = "x".repeat(300);
        let names = ["plain", "two words", "заказ", &long, &format!("{long}y"), &"x".repeat(251)];
        let mut keys: Vec<String> = Vec::new();
        for name in names {
            let name = Name::new(name).unwrap();
            let key = name.short_key(250, printable).into_owned();
            assert!(key.len() <= 250 && key.bytes().all(printable), "{key}");
            assert!(!keys.contains(&key), "{key} stands for two names");
            keys.push(key);
        }
        assert_eq!(keys[0], "plain");
    }

    #[test]
    fn a_name_cannot_pose_as_a_digest() {
        let victim = Name::new("two words").unwrap();
        let forged = Name::new(victim.short_key(250, printable)).unwrap();
        assert_ne!(forged.short_key(250, printable), victim.short_key(250, printable));
    }
}
