//! Passwords in store URLs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Whether a store URL carries a password.
pub(crate) fn has_password(url: &OsStr) -> bool {
    password(url.as_bytes()).is_some()
}

/// The URL without its password.
pub(crate) fn without_password(url: &OsStr) -> OsString {
    let bytes = url.as_bytes();
    let Some((from, to)) = password(bytes) else { return url.to_owned() };
    // Without a user name the @ goes as well.
    let to = if bytes[..from].ends_with(b"//") { to + 1 } else { to };
    OsString::from_vec([&bytes[..from], &bytes[to..]].concat())
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
        ] {
            assert!(has_password(OsStr::new(url)), "{url}");
            assert_eq!(without_password(OsStr::new(url)), OsStr::new(without));
        }
        for url in ["redis://h:6379", "redis://u@h", "sqlite:/tmp/a@b:c", "redis://h:1/0?ca=/x@y"] {
            assert!(!has_password(OsStr::new(url)), "{url}");
            assert_eq!(without_password(OsStr::new(url)), OsStr::new(url));
        }
    }
}
