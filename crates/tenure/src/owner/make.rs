//! Makes owner tokens: at random, and from text.

use std::str::FromStr;

use super::{Owner, RANDOM_HEX, hex_digits};
use crate::Error;

impl Owner {
    /// Generates a token that nobody had before: `<label>.<random>`. The label may be empty.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the label is too long or has control characters.
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the system gives no random bytes.
    pub fn generate(label: &str) -> Result<Self, Error> {
        check_label(label)?;
        let mut random = [0_u8; RANDOM_HEX / 2];
        getrandom::fill(&mut random)
            .map_err(|e| Error::unavailable("the system gave no random bytes for an owner token").with_source(e))?;
        let mut bytes = [0_u8; Self::MAX_LABEL + 1 + RANDOM_HEX];
        let length = label.len() + 1 + RANDOM_HEX;
        let (head, hex) = bytes[..length].split_at_mut(label.len() + 1);
        head[..label.len()].copy_from_slice(label.as_bytes());
        head[label.len()] = b'.';
        for (digits, byte) in hex.chunks_exact_mut(2).zip(random) {
            digits.copy_from_slice(&hex_digits(byte));
        }
        Ok(Self(bytes[..length].into()))
    }
}

/// Checks a label before it becomes part of an owner.
pub(crate) fn check_label(label: &str) -> Result<(), Error> {
    if label.len() > Owner::MAX_LABEL {
        let what = format!("the label has {} bytes, more than {}", label.len(), Owner::MAX_LABEL);
        return Err(Error::invalid(what).with_hint("use a shorter label"));
    }
    if label.chars().any(char::is_control) {
        return Err(Error::invalid(format!("the label {label:?} has control characters")).with_hint("use printable characters"));
    }
    Ok(())
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::invalid("the owner token is empty").with_hint("give the token that acquire printed"));
        }
        let Some(digits) = text.strip_prefix("hex:") else {
            return Ok(Self(text.as_bytes().into()));
        };
        let bad =
            || Error::invalid(format!("{text:?} is not a token")).with_hint("hex: is followed by an even number of hex digits");
        if digits.len() % 2 != 0 || !digits.is_ascii() {
            return Err(bad());
        }
        let pairs =
            digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok()));
        let bytes: Option<Vec<u8>> = pairs.collect();
        Ok(Self(bytes.ok_or_else(bad)?.into()))
    }
}

impl TryFrom<String> for Owner {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}
