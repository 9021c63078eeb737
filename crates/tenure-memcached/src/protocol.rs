//! The commands of memcached, and their replies.
//!
//! Writes are `add` and `cas`. Their meta form `ms` must not be used for locks: if the server has no
//! memory for the new value, or finds it too large, it deletes the one that is there. That is so even
//! if the command was to change nothing, and would free a lock that another client holds.
//!
//! Each meta command carries an opaque number that its reply repeats, and each write is followed by
//! one. A reply with another number ends the connection, so the answer to one command is never taken
//! for that to another.

mod parser;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tenure::{Error, ErrorKind};

pub(crate) use self::parser::Parser;
use crate::clock::EPOCH;

/// A key as commands write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(String);

impl Key {
    /// Longest key, in bytes.
    pub(crate) const MAX: usize = 250;

    /// The key of a name. Bytes that would end the word, and `%`, are written as `%` and two digits.
    ///
    /// # Errors
    /// `Invalid` if it is too long.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let mut key = String::with_capacity(name.len());
        for letter in name.chars() {
            match letter {
                '\0'..=' ' | '\x7f' | '%' => key.extend(['%', hex(u32::from(letter) >> 4), hex(u32::from(letter) & 15)]),
                _ => key.push(letter),
            }
        }
        if key.len() > Self::MAX {
            let what = format!("the key of the name has {} bytes, and memcached keeps {}", key.len(), Self::MAX);
            return Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it; % and spaces count three times"));
        }
        Ok(Self(key))
    }

    /// The name of a key; `None` if it is no text.
    pub(crate) fn name(key: &str) -> Option<String> {
        percent_decode_str(key).decode_utf8().ok().map(String::from)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn hex(digit: u32) -> char {
    char::from_digit(digit, 16).map_or('0', |digit| digit.to_ascii_uppercase())
}

/// When the server may forget an item: a point on its own clock, in seconds. 0 for never.
pub(crate) type Expiry = u32;

/// State of a key that a write expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Nothing,
    Version(u64),
}

/// Commands that are sent in one piece, and answered in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    pub(crate) bytes: Vec<u8>,
    expected: Vec<Expected>,
}

/// The reply that a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Lines of statistics.
    Stats,
    /// One word.
    Word,
    /// One line, and a value if there is one, with this number.
    Opaque(u32),
}

impl Commands {
    /// Asks for the value at a key, its version, the rest of its life and its flags.
    pub(crate) fn get(&mut self, key: &Key) {
        self.meta(b"mg ", key, b" v c t f");
    }

    /// Asks how large the value at a key is, and for its flags. It does not look needed by that.
    pub(crate) fn glance(&mut self, key: &Key) {
        self.meta(b"mg ", key, b" s f u");
    }

    /// Writes the value at a key if the key is as expected. Then reads it, which tells the new version.
    pub(crate) fn set(&mut self, key: &Key, value: &[u8], flags: u32, expiry: Expiry, expect: Expect) {
        let size = value.len();
        let (word, version) = match expect {
            Expect::Nothing => ("add ", String::new()),
            Expect::Version(version) => ("cas ", format!(" {version}")),
        };
        self.bytes.extend_from_slice(word.as_bytes());
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(format!(" {flags} {expiry} {size}{version}\r\n").as_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.expected.push(Expected::Word);
        self.get(key);
    }

    /// Deletes the value at a key if it has this version.
    pub(crate) fn delete(&mut self, key: &Key, version: u64) {
        self.meta(b"md ", key, format!(" C{version}").as_bytes());
    }

    /// Asks for the statistics, among them the server's time.
    pub(crate) fn stats(&mut self) {
        self.bytes.extend_from_slice(b"stats\r\n");
        self.expected.push(Expected::Stats);
    }

    pub(crate) fn expected(&self) -> &[Expected] {
        &self.expected
    }

    fn meta(&mut self, command: &[u8], key: &Key, rest: &[u8]) {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let opaque = LAST.fetch_add(1, Ordering::Relaxed);
        self.expected.push(Expected::Opaque(opaque));
        self.bytes.extend_from_slice(command);
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(rest);
        self.bytes.extend_from_slice(format!(" O{opaque}\r\n").as_bytes());
    }
}

/// Reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Value(Value),
    /// There is nothing at the key.
    Missing,
    /// It was done.
    Done,
    /// The key is not as the command expects.
    Refused,
    /// Size and flags of a value.
    Size {
        size: u32,
        flags: u32,
    },
    /// Server time in Unix seconds and seconds for which it has run.
    Stats {
        time: u64,
        uptime: u64,
        version: String,
    },
    /// The server's own words.
    Failed(String),
}

/// A value with what the server says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) version: u64,
    /// Whole seconds until the server may forget it; `None` if it never does so by itself.
    pub(crate) left: Option<u32>,
    pub(crate) flags: u32,
}

impl Value {
    /// The time that the server showed when it answered, if the item says when it ends, as those of records do.
    pub(crate) fn shown(&self) -> Option<Duration> {
        let ends = u64::from(self.flags);
        self.left.filter(|_| ends > EPOCH).and_then(|left| ends.checked_sub(left.into())).map(Duration::from_secs)
    }
}

impl Reply {
    /// The error of a reply that does not fit its command.
    pub(crate) fn unexpected(&self) -> Error {
        match self {
            Self::Failed(text) => failed(text),
            other => Error::refused(format!("the server gave an answer that makes no sense here: {other:?}")).maybe_applied(),
        }
    }
}

/// Parts of error texts, with what they mean: the first that fits.
const MEANINGS: &[(&str, ErrorKind, &str, &str)] = {
    const ROOM: &str = "give memcached more memory (-m) or larger items (-I)";
    const LOGIN: &str = "check the user and the password";
    &[
        ("out of memory", ErrorKind::Unavailable, "the server cannot keep the lock", ROOM),
        ("too large", ErrorKind::Unavailable, "the server cannot keep the lock", ROOM),
        ("unauthenticated", ErrorKind::Refused, "the login is refused", LOGIN),
        ("authentication failure", ErrorKind::Refused, "the login is refused", LOGIN),
        (
            "Too many open connections",
            ErrorKind::Overloaded,
            "the server takes no more connections",
            "let memcached have more of them (-c)",
        ),
    ]
};

/// The meaning of an error text.
pub(crate) fn failed(text: &str) -> Error {
    if let Some((_, kind, what, fix)) = MEANINGS.iter().find(|(part, ..)| text.contains(part)) {
        return Error::new(*kind, format!("{what}: {text}")).with_hint(*fix);
    }
    let what = format!("the server answered: {text}");
    if text.starts_with("SERVER_ERROR") {
        // A proxy says so too if it has passed the command on, and has no answer.
        return Error::unavailable(what).maybe_applied();
    }
    Error::refused(what)
}

#[cfg(test)]
mod tests {
    use tenure_testkit::page::{errors, told};

    use super::*;

    #[test]
    fn names_are_keys_that_read_back() {
        for (name, key) in [("door", "door"), ("ключ", "ключ"), ("a b", "a%20b"), ("a%20b", "a%2520b"), ("\x7f", "%7F")] {
            assert_eq!(Key::new(name).unwrap().as_bytes(), key.as_bytes());
            assert_eq!(Key::name(key).as_deref(), Some(name));
        }
    }

    /// docs/errors.md has each line of the table, and says of it what the table does.
    #[test]
    fn the_page_of_errors_is_true() {
        let page = errors("memcached");
        for (text, expected) in &page {
            assert_eq!(told(&failed(text)), *expected, "{text}");
        }
        for (part, ..) in MEANINGS {
            assert!(page.iter().any(|(text, _)| text.contains(part)), "{part} is not on the page");
        }
    }

    #[test]
    fn long_keys_are_refused() {
        assert!(Key::new(&"k".repeat(250)).is_ok() && Key::new(&"k".repeat(251)).is_err());
        assert!(Key::new(&" ".repeat(83)).is_ok() && Key::new(&" ".repeat(84)).is_err());
    }

    #[test]
    fn an_error_of_the_server_says_what_became_of_the_write() {
        for (text, may_be_there) in [
            ("SERVER_ERROR out of memory storing object", false),
            ("SERVER_ERROR object too large for cache", false),
            ("CLIENT_ERROR bad data chunk", false),
            ("SERVER_ERROR backend failure", true),
        ] {
            assert_eq!(failed(text).may_have_been_applied(), may_be_there, "{text}");
        }
    }
}
