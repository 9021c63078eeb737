//! Passwords in store URLs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Whether a store URL carries a password.
pub(crate) fn has_password(url: &OsStr) -> bool {
    without_password(url) != url
}

/// The URL without its passwords: that of the login, and that for sentinels.
pub(crate) fn without_password(url: &OsStr) -> OsString {
    let mut bytes = url.as_bytes().to_owned();
    if let Some((from, to)) = password(&bytes) {
        // Without a user name the @ goes as well.
        let to = if bytes[..from].ends_with(b"//") { to + 1 } else { to };
        bytes.drain(from..to);
    }
    let Some(query) = bytes.iter().position(|b| *b == b'?') else { return OsString::from_vec(bytes) };
    let parameters = bytes[query + 1..].split(|b| *b == b'&');
    let kept: Vec<&[u8]> = parameters.clone().filter(|parameter| !is_secret(parameter)).collect();
    if kept.len() == parameters.count() {
        return OsString::from_vec(bytes);
    }
    let begin = if kept.is_empty() { &bytes[..query] } else { &bytes[..=query] };
    OsString::from_vec([begin, &kept.join(&b'&')].concat())
}

/// Whether a parameter is a password. Its key may be written with escapes.
fn is_secret(parameter: &[u8]) -> bool {
    let mut key = parameter.split(|b| *b == b'=').next().unwrap_or_default();
    let mut plain = Vec::new();
    while let [first, rest @ ..] = key {
        let escaped = rest.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(escaped.unwrap_or(*first));
        key = &rest[if escaped.is_some() { 2 } else { 0 }..];
    }
    plain == b"sentinel_password"
}

/// Where the password stands, with the colon in front.
fn password(url: &[u8]) -> Option<(usize, usize)> {
    let after = url.windows(3).position(|three| three == b"://")? + 3;
    let end = url.iter().position(|b| *b == b'?').unwrap_or(url.len());
    let login_ends = after + url.get(after..end)?.iter().rposition(|b| *b == b'@')?;
    let colon = url[after..login_ends].iter().position(|b| *b == b':')?;
    Some((after + colon, login_ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_seen_and_cut_out() {
        for (url, without) in [
            ("redis://:pw@h", "redis://h"),
            ("rediss://u:pw@h:1/0?x=y", "rediss://u@h:1/0?x=y"),
            ("redis+unix://:pw@/run/r.sock", "redis+unix:///run/r.sock"),
            ("redis://u:p/w@h", "redis://u@h"),
            ("redis://u:p@w:@h", "redis://u@h"),
            ("redis+sentinel://u:pw@a,b/m?sentinel_password=pw", "redis+sentinel://u@a,b/m"),
            ("redis+sentinel://a/m?db=1&sentinel%5Fpass%77ord=p%26w&prefix=x", "redis+sentinel://a/m?db=1&prefix=x"),
        ] {
            assert!(has_password(OsStr::new(url)), "{url}");
            assert_eq!(without_password(OsStr::new(url)), OsStr::new(without));
        }
        for url in [
            "redis://h:6379",
            "redis://u@h",
            "sqlite:/tmp/a@b:c",
            "redis://h:1/0?ca=/x@y",
            "redis+sentinel://u@a/m?sentinel_username=x",
        ] {
            assert!(!has_password(OsStr::new(url)), "{url}");
            assert_eq!(without_password(OsStr::new(url)), OsStr::new(url));
        }
    }
}
