//! From a store URL to a locker.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use tenure::{Locker, LockerBuilder};

use crate::config::Settings;
use crate::exit::{CONFIG, Failure, USAGE};

const SPOKEN: &str = "this version speaks sqlite:PATH, redis://, rediss:// and redis+unix:// (or valkey for redis)";
const PLANNED: [&str; 13] = [
    "redis+sentinel",
    "rediss+sentinel",
    "redis-sentinel",
    "redis+cluster",
    "rediss+cluster",
    "quorum+redis",
    "quorum+rediss",
    "postgres",
    "postgresql",
    "mysql",
    "mariadb",
    "memcached",
    "zookeeper",
];

/// Where locks are kept.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Sqlite(PathBuf),
    Redis(String),
}

/// Opens the store; its first contact is made here.
pub(crate) async fn open(settings: &Settings) -> Result<LockerBuilder, Failure> {
    contact(settings).await.map_err(|failure| match (&settings.store_from, &failure.text) {
        (Some(file), Some(text)) if failure.code == USAGE => {
            Failure::new(CONFIG, format!("the config file {}: store: {text}", file.display()))
        }
        _ => failure,
    })
}

async fn contact(settings: &Settings) -> Result<LockerBuilder, Failure> {
    match place(&settings.store)? {
        Place::Sqlite(path) => Ok(Locker::builder(tenure_sql::sqlite::open(&path)?)),
        Place::Redis(url) => {
            let mut options = tenure_redis::Options::parse(&url)?;
            if let Some(username) = &settings.username {
                options = options.username(username);
            }
            if let Some(password) = &settings.password {
                options = options.password(&*password.0);
            }
            Ok(Locker::builder(options.connect().await?))
        }
    }
}

/// Reads the part of the URL that says which store it is.
fn place(url: &OsStr) -> Result<Place, Failure> {
    let (scheme, rest) = split(url)?;
    match &*scheme {
        "sqlite" => sqlite(rest),
        "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "valkey+unix" | "unix" => {
            let text = url.to_str().ok_or_else(|| Failure::usage("the store URL is not UTF-8; escape other bytes as %XX"))?;
            Ok(Place::Redis(text.to_owned()))
        }
        "memory" => Err(Failure::usage(format!("memory: keeps locks inside one process, which excludes nobody; {SPOKEN}"))),
        planned if PLANNED.contains(&planned) => {
            Err(Failure::usage(format!("this version cannot speak {planned}: yet; it speaks sqlite: and redis:")))
        }
        other => Err(Failure::usage(format!("{other}: is no store that tenure knows; {SPOKEN}"))),
    }
}

/// The scheme, and what follows its colon.
fn split(url: &OsStr) -> Result<(String, &OsStr), Failure> {
    let bytes = url.as_bytes();
    let scheme = bytes.iter().position(|b| *b == b':').map(|colon| (&bytes[..colon], &bytes[colon + 1..]));
    let well_formed = |s: &[u8]| !s.is_empty() && s.iter().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(b));
    match scheme {
        Some((scheme, rest)) if well_formed(scheme) => {
            Ok((String::from_utf8_lossy(scheme).to_ascii_lowercase(), OsStr::from_bytes(rest)))
        }
        // The text is not shown: whatever it is, it may hold a password.
        _ => Err(Failure::usage(format!("the store is not a URL, it has no scheme such as sqlite: in front; {SPOKEN}"))),
    }
}

fn sqlite(rest: &OsStr) -> Result<Place, Failure> {
    let bytes = rest.as_bytes();
    let bytes = bytes.strip_prefix(b"//").unwrap_or(bytes);
    let mut parts = bytes.splitn(2, |b| *b == b'?');
    let path = parts.next().unwrap_or_default();
    let parameters = String::from_utf8_lossy(parts.next().unwrap_or_default());
    for parameter in parameters.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if (key, value) != ("scheme", "native") {
            return Err(Failure::usage(format!("{key}= is no parameter of a sqlite: store; it takes none, leave it out")));
        }
    }
    match path {
        b"" => Err(Failure::usage("sqlite: names no file; write e.g. sqlite:/var/lib/tenure/locks.db")),
        b":memory:" => Err(Failure::usage("sqlite::memory: would exclude nobody; name a file that all processes share")),
        path => Ok(Place::Sqlite(PathBuf::from(OsString::from_vec(path.to_vec())))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Place, String> {
        place(OsStr::new(url)).map_err(|failure| failure.text.unwrap())
    }

    #[test]
    fn files_and_servers() {
        for url in ["sqlite:/a/b.db", "sqlite:///a/b.db", "sqlite:/a/b.db?scheme=native", "SQLITE:/a/b.db"] {
            assert_eq!(parse(url), Ok(Place::Sqlite("/a/b.db".into())), "{url}");
        }
        assert_eq!(parse("sqlite:b.db"), Ok(Place::Sqlite("b.db".into())));
        for url in ["redis://h", "rediss://h", "valkey://h", "redis+unix:///run/r"] {
            assert_eq!(parse(url), Ok(Place::Redis(url.into())));
        }
    }

    #[test]
    fn others_are_refused_with_what_to_write() {
        let table = [
            ("postgres://h", "cannot speak postgres: yet"),
            ("quorum+redis://a,b,c", "cannot speak quorum+redis: yet"),
            ("memory:", "excludes nobody"),
            ("ftp://h", "ftp: is no store"),
            ("/tmp/x.db", "no scheme"),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "exclude nobody"),
            ("sqlite:x?cache=shared", "cache= is no parameter"),
            ("sqlite:x?scheme=getset", "scheme= is no parameter"),
        ];
        for (url, why) in table {
            let text = parse(url).unwrap_err();
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn a_password_without_a_scheme_is_not_shown() {
        assert!(!parse("//:s3cret@host").unwrap_err().contains("s3cret"));
    }
}
