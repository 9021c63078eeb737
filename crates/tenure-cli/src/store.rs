//! From a store URL to a locker.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use nix::unistd::Group;
use tenure::{Locker, LockerBuilder};
use tenure_sql::{SqliteStore, sqlite};

use crate::args::{Admit, Migration};
use crate::config::{Settings, Source, TTL, without_password};
use crate::exit::{DAMAGED, Failure};
use crate::output::print;

const SPOKEN: &str = "this version speaks sqlite:PATH, redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster://, \
                      quorum+redis:// (or valkey for redis), postgres://, mysql://, memcached://, zookeeper:// and etcd://";

/// Where locks are kept.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    Sqlite(LockFile),
    Redis(String),
    #[cfg(feature = "memcached")]
    Memcached(String),
    #[cfg(feature = "postgres")]
    Postgres(String),
    #[cfg(feature = "mysql")]
    MySql(String),
    #[cfg(feature = "etcd")]
    Etcd(String),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(String),
}

/// A lock file, and for whom it is made.
#[derive(Debug, PartialEq, Eq)]
struct LockFile {
    path: PathBuf,
    mode: Option<u32>,
    group: Option<String>,
}

impl LockFile {
    fn open(self) -> Result<SqliteStore, Failure> {
        let mut options = sqlite::Options::new(self.path);
        if let Some(mode) = self.mode {
            options = options.mode(mode);
        }
        if let Some(group) = &self.group {
            options = options.group(group_number(group)?);
        }
        Ok(options.open()?)
    }
}

/// Opens the store; its first contact is made here.
pub(crate) async fn open(settings: &Settings) -> Result<LockerBuilder, Failure> {
    contact(settings).await.map_err(|failure| settings.bad_store(failure))
}

/// A locker for single steps; `None` if the store is a file that nobody has made yet.
pub(crate) async fn open_existing(settings: &Settings, ttl: Option<Duration>) -> Result<Option<Locker>, Failure> {
    if is_missing(settings)? {
        return Ok(None);
    }
    let builder = open(settings).await?.ttl(ttl.or(settings.ttl).unwrap_or(TTL)).safety_margin(Duration::ZERO);
    let locker = builder.build().map_err(|error| match ttl {
        None => settings.bad_ttl(error.into()),
        Some(_) => error.into(),
    });
    locker.map(Some)
}

/// Whether the store is a file that does not exist: nothing is held there, and looking must not
/// create it.
fn is_missing(settings: &Settings) -> Result<bool, Failure> {
    let location = location(&settings.store).and_then(|place| checked(place, settings.store_from));
    let Location::Sqlite(file) = location.map_err(|failure| settings.bad_store(failure))? else { return Ok(false) };
    Ok(file.path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound))
}

/// Identity of this store among others of this machine.
pub(crate) fn identity(settings: &Settings) -> OsString {
    match location(&settings.store) {
        Ok(Location::Sqlite(LockFile { path, .. })) => absolute(&path).unwrap_or(path).into(),
        _ => settings.store.clone(),
    }
}

/// The store for a command that runs under the lock: the same from any directory, and without a
/// password.
pub(crate) fn for_child(settings: &Settings) -> OsString {
    let Ok(Location::Sqlite(LockFile { path, .. })) = location(&settings.store) else { return without_password(&settings.store) };
    let parameters = settings.store.as_bytes().iter().position(|b| *b == b'?').map(|at| &settings.store.as_bytes()[at..]);
    let path = absolute(&path).unwrap_or(path);
    OsString::from_vec([b"sqlite:", path.as_os_str().as_bytes(), parameters.unwrap_or_default()].concat())
}

/// The store in words, for messages.
pub(crate) fn shown(settings: &Settings) -> String {
    let store = for_child(settings);
    match settings.store_from {
        Source::Default => format!("{}, the file of this user alone", store.display()),
        _ => store.display().to_string(),
    }
}

/// Refuses a lock file that is hardly the one that was meant.
fn checked(place: Location, from: Source) -> Result<Location, Failure> {
    let Location::Sqlite(LockFile { path, .. }) = &place else { return Ok(place) };
    if path.is_relative() && from != Source::Flag {
        // It would be another file in every directory, and two files exclude nobody.
        let what = format!("the path {:?} is relative, so it would be another file in every directory", path.display());
        return Err(Failure::usage(format!("{what}; write an absolute path, sqlite:/...")));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        // Only that of the default is made: a mistyped one would exclude nobody.
        Some(parent) if from != Source::Default && is_not_there(parent) => {
            let what = format!("the lock file {} cannot be used: there is no directory {}", path.display(), parent.display());
            Err(Failure::new(DAMAGED, format!("{what}; correct the path, or make it: mkdir -p {}", parent.display())))
        }
        _ => Ok(place),
    }
}

fn is_not_there(path: &Path) -> bool {
    path.metadata().is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

async fn contact(settings: &Settings) -> Result<LockerBuilder, Failure> {
    match checked(location(&settings.store)?, settings.store_from)? {
        Location::Sqlite(file) => Ok(Locker::builder(file.open()?)),
        Location::Redis(url) => Ok(Locker::builder(redis(&url, settings)?.open().await?)),
        #[cfg(feature = "memcached")]
        Location::Memcached(url) => Ok(Locker::builder(memcached(&url, settings)?.open().await?)),
        #[cfg(feature = "postgres")]
        Location::Postgres(url) => Ok(Locker::builder(postgres(&url, settings)?.open().await?)),
        #[cfg(feature = "mysql")]
        Location::MySql(url) => Ok(Locker::builder(mysql(&url, settings)?.open().await?)),
        #[cfg(feature = "etcd")]
        Location::Etcd(url) => Ok(Locker::builder(etcd(&url, settings)?.open().await?)),
        #[cfg(feature = "zookeeper")]
        Location::ZooKeeper(url) => Ok(Locker::builder(zookeeper(&url, settings)?.open().await?)),
    }
}

/// Makes the function that reads the URL of a store, and adds the login of the settings.
#[cfg(any(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
macro_rules! options {
    ($name:ident, $options:ty) => {
        fn $name(url: &str, settings: &Settings) -> Result<$options, Failure> {
            let mut options = <$options>::parse(url)?;
            if let Some(username) = &settings.username {
                options = options.username(username);
            }
            if let Some(password) = &settings.password {
                options = options.password(&password.0);
            }
            Ok(options)
        }
    };
}

#[cfg(feature = "etcd")]
options!(etcd, tenure_etcd::Options);
#[cfg(feature = "memcached")]
options!(memcached, tenure_memcached::Options);
#[cfg(feature = "mysql")]
options!(mysql, tenure_sql::mysql::Options);
#[cfg(feature = "postgres")]
options!(postgres, tenure_sql::postgres::Options);
#[cfg(feature = "zookeeper")]
options!(zookeeper, tenure_zookeeper::Options);

fn redis(url: &str, settings: &Settings) -> Result<tenure_redis::Options, Failure> {
    let mut options = tenure_redis::Options::parse(url)?;
    if let Some(username) = &settings.username {
        options = options.username(username);
    }
    if let Some(password) = &settings.password {
        options = options.password(&*password.0);
    }
    if let Some(password) = &settings.sentinel_password {
        options = options.sentinel_password(&password.0);
    }
    Ok(options)
}

/// Lets the servers of a quorum vote at once.
pub(crate) async fn admit(args: &Admit) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    let admitted = async {
        match location(&settings.store)? {
            Location::Redis(url) => Ok(redis(&url, &settings)?.quorum().await?.admit().await?),
            _ => Err(Failure::usage("the store is no quorum of Redis servers, so nothing has to be admitted")),
        }
    };
    admitted.await.map_err(|failure: Failure| settings.bad_store(failure))?;
    settings.voice.say(format_args!("every server of {} votes", shown(&settings)));
    Ok(0)
}

/// Prints the statements that make the table of the store.
pub(crate) fn migration(args: &Migration) -> Result<u8, Failure> {
    let settings = Settings::load(&args.common)?;
    print(&statements(&settings).map_err(|failure| settings.bad_store(failure))?)?;
    Ok(0)
}

fn statements(settings: &Settings) -> Result<String, Failure> {
    match location(&settings.store)? {
        #[cfg(feature = "postgres")]
        Location::Postgres(url) => Ok(postgres(&url, settings)?.migration()),
        #[cfg(feature = "mysql")]
        Location::MySql(url) => Ok(mysql(&url, settings)?.migration()),
        _ => Err(no_table()),
    }
}

fn no_table() -> Failure {
    Failure::usage("this store has no table that you would make; only postgres: and mysql: have one")
}

/// Reads the part of the URL that says which store it is.
fn location(url: &OsStr) -> Result<Location, Failure> {
    let (scheme, rest) = split(url)?;
    match &*scheme {
        "sqlite" => lock_file(rest),
        "redis+unix" | "valkey+unix" | "unix" => redis_url(url),
        #[cfg(feature = "memcached")]
        "memcached" => text(url).map(Location::Memcached),
        #[cfg(not(feature = "memcached"))]
        "memcached" => Err(without("memcached", "memcached")),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => text(url).map(Location::Postgres),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(without("PostgreSQL", "postgres")),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => text(url).map(Location::MySql),
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => Err(without("MariaDB and MySQL", "mysql")),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => text(url).map(Location::Etcd),
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => Err(without("etcd", "etcd")),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => text(url).map(Location::ZooKeeper),
        #[cfg(not(feature = "zookeeper"))]
        "zookeeper" => Err(without("ZooKeeper", "zookeeper")),
        several if ["redis", "rediss", "valkey", "valkeys"].contains(&one_of(several)) => redis_url(url),
        "memory" => Err(Failure::usage(format!("memory: keeps locks inside one process, which excludes nobody; {SPOKEN}"))),
        other => Err(Failure::usage(format!("{other}: is no store that tenure knows; {SPOKEN}"))),
    }
}

fn redis_url(url: &OsStr) -> Result<Location, Failure> {
    text(url).map(Location::Redis)
}

fn text(url: &OsStr) -> Result<String, Failure> {
    let text = url.to_str().ok_or_else(|| Failure::usage("the store URL is not UTF-8; escape other bytes as %XX"))?;
    Ok(text.to_owned())
}

/// For a store that this command was built without.
#[cfg(not(all(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper")))]
fn without(store: &str, feature: &str) -> Failure {
    let how = format!("cargo install tenure-cli --features {feature}");
    Failure::usage(format!("this tenure was built without {store}; build it with: {how}"))
}

/// The scheme of one server, where a scheme may be that of several.
fn one_of(scheme: &str) -> &str {
    let several = scheme.strip_prefix("quorum+").or_else(|| scheme.strip_suffix("+sentinel"));
    several.or_else(|| scheme.strip_suffix("+cluster")).unwrap_or(scheme)
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

fn lock_file(rest: &OsStr) -> Result<Location, Failure> {
    let bytes = rest.as_bytes();
    let bytes = bytes.strip_prefix(b"//").unwrap_or(bytes);
    let mut parts = bytes.splitn(2, |b| *b == b'?');
    let path = parts.next().unwrap_or_default();
    let parameters = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let path = match path {
        b"" => return Err(Failure::usage("sqlite: names no file; write e.g. sqlite:/var/lib/tenure/locks.db")),
        b":memory:" => {
            return Err(Failure::usage("sqlite::memory: would exclude nobody; name a file that all processes share"));
        }
        path => PathBuf::from(OsString::from_vec(path.to_vec())),
    };
    let mut file = LockFile { path, mode: None, group: None };
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (key, value) {
            ("scheme", "native") => {}
            ("mode", mode) => file.mode = Some(octal(mode)?),
            ("group", group) => file.group = Some(group.to_owned()),
            _ => {
                return Err(Failure::usage(format!("{key}= is no parameter of a sqlite: store; it takes mode= and group=")));
            }
        }
    }
    Ok(Location::Sqlite(file))
}

fn octal(mode: &str) -> Result<u32, Failure> {
    let bad = |_| Failure::usage(format!("mode={mode} is no mode of a file; write e.g. mode=0660"));
    u32::from_str_radix(mode, 8).map_err(bad)
}

/// The number of a group that is given by that or by its name.
fn group_number(group: &str) -> Result<u32, Failure> {
    let named = || Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw());
    group.parse().ok().or_else(named).ok_or_else(|| {
        Failure::usage(format!(
            "group={group} of the store is no group of this machine; see `getent group`, or make it with groupadd"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Location, String> {
        location(OsStr::new(url)).map_err(|failure| failure.text.unwrap())
    }

    fn file(path: &str, mode: Option<u32>, group: Option<&str>) -> Location {
        Location::Sqlite(LockFile { path: path.into(), mode, group: group.map(String::from) })
    }

    #[test]
    fn files_and_servers() {
        for url in ["sqlite:/a/b.db", "sqlite:///a/b.db", "sqlite:/a/b.db?scheme=native", "SQLITE:/a/b.db"] {
            assert_eq!(parse(url), Ok(file("/a/b.db", None, None)), "{url}");
        }
        assert_eq!(parse("sqlite:b.db"), Ok(file("b.db", None, None)));
        assert_eq!(parse("sqlite:/b.db?mode=0660&group=www"), Ok(file("/b.db", Some(0o660), Some("www"))));
        for url in
            ["redis://h", "rediss://h", "valkey://h", "redis+unix:///run/r", "valkeys+sentinel://h/m", "rediss+cluster://a,b"]
        {
            assert_eq!(parse(url), Ok(Location::Redis(url.into())));
        }
    }

    #[test]
    fn others_are_refused_with_what_to_write() {
        let table = [
            ("quorum+redis+cluster://a,b,c", "quorum+redis+cluster: is no store"),
            ("memory:", "excludes nobody"),
            ("ftp://h", "ftp: is no store"),
            ("/tmp/x.db", "no scheme"),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "exclude nobody"),
            ("sqlite:x?cache=shared", "cache= is no parameter"),
            ("sqlite:x?mode=rw", "mode=rw is no mode"),
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
