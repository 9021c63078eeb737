//! From a store URL to a locker.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{PathBuf, absolute};

use tenure::{Locker, LockerBuilder};

use crate::config::{Settings, Source};
use crate::exit::Failure;

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
    contact(settings).await.map_err(|failure| settings.bad_store(failure))
}

/// Whether the store is a file that does not exist: nothing is held there, and looking must not create it.
pub(crate) fn is_missing(settings: &Settings) -> Result<bool, Failure> {
    let place = place(&settings.store).and_then(|place| checked(place, settings.store_from));
    match place.map_err(|failure| settings.bad_store(failure))? {
        Place::Sqlite(path) => Ok(path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)),
        Place::Redis(_) => Ok(false),
    }
}

/// What tells this store from others on this machine.
pub(crate) fn identity(settings: &Settings) -> OsString {
    match place(&settings.store) {
        Ok(Place::Sqlite(path)) => absolute(&path).unwrap_or(path).into(),
        _ => settings.store.clone(),
    }
}

/// A relative path that is not written for the moment means another file wherever it is used, and two files exclude nobody.
fn checked(place: Place, from: Source) -> Result<Place, Failure> {
    match &place {
        Place::Sqlite(path) if path.is_relative() && from != Source::Flag => Err(Failure::usage(format!(
            "the path {:?} is relative, so it would be another file in every directory; write an absolute path, sqlite:/...",
            path.display()
        ))),
        _ => Ok(place),
    }
}

async fn contact(settings: &Settings) -> Result<LockerBuilder, Failure> {
    match checked(place(&settings.store)?, settings.store_from)? {
        Place::Sqlite(path) => Ok(Locker::builder(tenure_sql::sqlite::open(&path)?)),
        Place::Redis(url) => {
            let mut options = tenure_redis::Options::parse(&url)?;
            if let Some(username) = &settings.username {
                options = options.username(username);
            }
            if let Some(password) = &settings.password {
                options = options.password(&*password.0);
            }
            Ok(Locker::builder(options.open().await?))
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
