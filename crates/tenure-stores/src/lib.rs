//! Every store of tenure by its URL, for programs whose users choose where their locks are.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let dir = tempfile::tempdir().map_err(|e| tenure::Error::new(tenure::ErrorKind::Damaged, e.to_string()))?;
//! # let url = format!("sqlite:{}", dir.path().join("locks.db").display());
//! // sqlite:/var/lib/app/locks.db, redis://cache, postgres://db/app, etcd://a,b,c: whatever the configuration says.
//! let locks = tenure_stores::connect(&url).await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! | URL | feature | parameters |
//! |---|---|---|
//! | `sqlite:PATH` | | [`tenure_sql::sqlite::Options::PARAMETERS`] |
//! | `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`, `redis+cluster://`, `quorum+redis://`; `valkey` for `redis` | | [`tenure_redis::Options`] |
//! | `memcached://` | `memcached` | `tenure_memcached::Options` |
//! | `postgres://`, `postgresql://` | `postgres` | `tenure_sql::postgres::Options` |
//! | `mysql://`, `mariadb://` | `mysql` | `tenure_sql::mysql::Options` |
//! | `zookeeper://` | `zookeeper` | `tenure_zookeeper::Options` |
//! | `etcd://`, `etcds://` | `etcd` | `tenure_etcd::Options` |
//!
//! No feature is on by default. A program that uses one store only can do without this crate: each
//! store's crate has a `connect` of its own.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use tenure::store::{Credentials, Parameter, Store, refuse_zone};
use tenure::{Error, Locker};

const KNOWN: &str = "the stores are sqlite:PATH, redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster://, \
                     quorum+redis:// (or valkey for redis), postgres://, mysql://, memcached://, zookeeper:// and etcd://";

/// Settings of a store, of any kind.
///
/// Match on it for what one kind alone has.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a program has one or two")]
pub enum Options {
    /// A file.
    Sqlite(tenure_sql::sqlite::Options),
    /// Redis or Valkey: one server, a master with replicas, a cluster or a quorum.
    Redis(tenure_redis::Options),
    /// memcached, one server or several.
    #[cfg(feature = "memcached")]
    Memcached(tenure_memcached::Options),
    /// A table in PostgreSQL, or the locks of its sessions.
    #[cfg(feature = "postgres")]
    Postgres(tenure_sql::postgres::Options),
    /// A table in MariaDB or MySQL, or the locks of its sessions.
    #[cfg(feature = "mysql")]
    MySql(tenure_sql::mysql::Options),
    /// A ZooKeeper ensemble.
    #[cfg(feature = "zookeeper")]
    ZooKeeper(tenure_zookeeper::Options),
    /// An etcd cluster.
    #[cfg(feature = "etcd")]
    Etcd(tenure_etcd::Options),
}

/// Returns the tables of parameters of the URLs, each with the scheme of the plainest URL that takes them. A
/// store without its feature is left out.
pub const PARAMETERS: &[(&str, &[Parameter])] = &[
    ("sqlite", tenure_sql::sqlite::Options::PARAMETERS),
    ("redis", tenure_redis::Options::PARAMETERS),
    #[cfg(feature = "memcached")]
    ("memcached", tenure_memcached::Options::PARAMETERS),
    #[cfg(feature = "postgres")]
    ("postgres", tenure_sql::postgres::Options::PARAMETERS),
    #[cfg(feature = "mysql")]
    ("mysql", tenure_sql::mysql::Options::PARAMETERS),
    #[cfg(feature = "zookeeper")]
    ("zookeeper", tenure_zookeeper::Options::PARAMETERS),
    #[cfg(feature = "etcd")]
    ("etcd", tenure_etcd::Options::PARAMETERS),
];

/// Opens the store of a URL, and returns a [`Locker`] on it: [`Options::connect`].
///
/// # Errors
/// As [`Options::parse`] and [`Options::open`].
///
/// # Cancel safety
/// As [`Options::open`].
pub async fn connect(url: impl AsRef<OsStr> + Send) -> Result<Locker, Error> {
    let options = Options::parse(url)?;
    options.connect().await
}

impl Options {
    /// Reads a URL. Nothing is contacted.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) for a URL of no store, or with a wrong part.
    /// [`Unsupported`](tenure::ErrorKind::Unsupported) if the feature for it is off.
    pub fn parse(url: impl AsRef<OsStr>) -> Result<Self, Error> {
        let url = url.as_ref();
        let scheme = scheme(url)?;
        if scheme == "sqlite" {
            return tenure_sql::sqlite::Options::parse(url).map(Self::Sqlite);
        }
        // Not every store reads a scheme in capitals.
        let text = url.to_str().map(|url| format!("{scheme}{}", &url[scheme.len()..]));
        let text = text.ok_or_else(|| Error::invalid("the store URL is not UTF-8").with_hint("escape other bytes as %XX"));
        // The client libraries of the databases take a zone for a part of a name.
        if let Ok(text) = &text {
            refuse_zone(text)?;
        }
        match &*scheme {
            "redis+unix" | "valkey+unix" | "unix" => tenure_redis::Options::parse(&text?).map(Self::Redis),
            #[cfg(feature = "memcached")]
            "memcached" => tenure_memcached::Options::parse(&text?).map(Self::Memcached),
            #[cfg(not(feature = "memcached"))]
            "memcached" => Err(without("memcached", "memcached")),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => tenure_sql::postgres::Options::parse(&text?).map(Self::Postgres),
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => Err(without("PostgreSQL", "postgres")),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => tenure_sql::mysql::Options::parse(&text?).map(Self::MySql),
            #[cfg(not(feature = "mysql"))]
            "mysql" | "mariadb" => Err(without("MariaDB and MySQL", "mysql")),
            #[cfg(feature = "zookeeper")]
            "zookeeper" => tenure_zookeeper::Options::parse(&text?).map(Self::ZooKeeper),
            #[cfg(not(feature = "zookeeper"))]
            "zookeeper" => Err(without("ZooKeeper", "zookeeper")),
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => tenure_etcd::Options::parse(&text?).map(Self::Etcd),
            #[cfg(not(feature = "etcd"))]
            "etcd" | "etcds" => Err(without("etcd", "etcd")),
            several if ["redis", "rediss", "valkey", "valkeys"].contains(&one_of(several)) => {
                tenure_redis::Options::parse(&text?).map(Self::Redis)
            }
            "memory" => Err(Error::invalid("memory: keeps locks inside one process, which excludes nobody").with_hint(KNOWN)),
            other => Err(Error::invalid(format!("{other}: is no store that tenure knows")).with_hint(KNOWN)),
        }
    }

    /// Sets how to log in. What these credentials lack is taken from the URL. A file needs none.
    ///
    /// ```
    /// use tenure::store::Credentials;
    ///
    /// let options = tenure_stores::Options::parse("redis://app@cache")?;
    /// let options = options.credentials(Credentials::password_file("/run/secrets/redis"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[must_use]
    pub fn credentials(self, credentials: impl Into<Credentials>) -> Self {
        match self {
            Self::Sqlite(options) => Self::Sqlite(options),
            Self::Redis(options) => Self::Redis(options.credentials(credentials)),
            #[cfg(feature = "memcached")]
            Self::Memcached(options) => Self::Memcached(options.credentials(credentials)),
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => Self::Postgres(options.credentials(credentials)),
            #[cfg(feature = "mysql")]
            Self::MySql(options) => Self::MySql(options.credentials(credentials)),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(options) => Self::ZooKeeper(options.credentials(credentials)),
            #[cfg(feature = "etcd")]
            Self::Etcd(options) => Self::Etcd(options.credentials(credentials)),
        }
    }

    /// Opens the store: a server is asked at once.
    ///
    /// # Errors
    /// Those of the store: [`Unreachable`](tenure::ErrorKind::Unreachable) if no server answers within 5 s,
    /// [`Refused`](tenure::ErrorKind::Refused) for a login that is refused, [`Damaged`](tenure::ErrorKind::Damaged) for a file that cannot be used.
    ///
    /// # Cancel safety
    /// A dropped future may leave an empty lock file behind, and nothing else.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        match self {
            Self::Sqlite(options) => Ok(options.connect().await?.store().clone()),
            Self::Redis(options) => options.open().await,
            #[cfg(feature = "memcached")]
            Self::Memcached(options) => Ok(Arc::new(options.open().await?)),
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => options.open().await,
            #[cfg(feature = "mysql")]
            Self::MySql(options) => options.open().await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(options) => Ok(Arc::new(options.open().await?)),
            #[cfg(feature = "etcd")]
            Self::Etcd(options) => Ok(Arc::new(options.open().await?)),
        }
    }

    /// Opens the store, and returns a [`Locker`] on it.
    ///
    /// # Errors
    /// As [`Options::open`].
    ///
    /// # Cancel safety
    /// As [`Options::open`].
    pub async fn connect(self) -> Result<Locker, Error> {
        Ok(Locker::new(self.open().await?))
    }
}

/// The part of a URL in front of its colon, in small letters.
fn scheme(url: &OsStr) -> Result<String, Error> {
    let bytes = url.as_bytes();
    let scheme = bytes.iter().position(|b| *b == b':').map(|colon| &bytes[..colon]);
    let well_formed = |s: &&[u8]| !s.is_empty() && s.iter().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(b));
    match scheme.filter(well_formed) {
        Some(scheme) => Ok(String::from_utf8_lossy(scheme).to_ascii_lowercase()),
        // The text is not shown: whatever it is, it may hold a password.
        None => Err(Error::invalid("the store is not a URL, it has no scheme such as sqlite: in front").with_hint(KNOWN)),
    }
}

/// The scheme of one server, where a scheme may be that of several.
fn one_of(scheme: &str) -> &str {
    let several = scheme.strip_prefix("quorum+").or_else(|| scheme.strip_suffix("+sentinel"));
    several.or_else(|| scheme.strip_suffix("+cluster")).unwrap_or(scheme)
}

#[cfg(not(all(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper")))]
fn without(store: &str, feature: &str) -> Error {
    let what = format!("this program was built without {store}");
    Error::new(tenure::ErrorKind::Unsupported, what).with_hint(format!("build it with --features {feature}"))
}

#[cfg(test)]
mod tests {
    use tenure::ErrorKind;

    use super::*;

    #[test]
    fn a_url_says_which_store_it_is() {
        assert!(matches!(Options::parse("SQLITE:/a/b.db"), Ok(Options::Sqlite(_))));
        for url in
            ["redis://h", "rediss://h", "valkey://h", "redis+unix:///run/r", "valkeys+sentinel://h/m", "rediss+cluster://a,b"]
        {
            assert!(matches!(Options::parse(url), Ok(Options::Redis(_))), "{url}");
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
        ];
        for (url, why) in table {
            let error = Options::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(why), "{error}");
        }
        let error = Options::parse(OsStr::from_bytes(b"redis://\xff")).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }

    /// Each kind, and what is said where it was not built in.
    #[test]
    fn a_store_without_its_feature_names_the_feature() {
        let table = [
            ("etcd://h", "etcd", cfg!(feature = "etcd")),
            ("memcached://h", "memcached", cfg!(feature = "memcached")),
            ("mysql://h/db", "mysql", cfg!(feature = "mysql")),
            ("postgres://h/db", "postgres", cfg!(feature = "postgres")),
            ("zookeeper://h", "zookeeper", cfg!(feature = "zookeeper")),
        ];
        for (url, feature, is_there) in table {
            match Options::parse(url) {
                Ok(_) => assert!(is_there, "{url}"),
                Err(error) => {
                    assert_eq!((error.kind(), is_there), (ErrorKind::Unsupported, false), "{url}: {error}");
                    assert!(error.to_string().ends_with(&format!("build it with --features {feature}")), "{error}");
                }
            }
        }
    }

    /// Schemes of URLs have no case.
    #[test]
    fn a_scheme_in_capitals_is_the_same() {
        for url in [
            "sqlite:/a.db",
            "redis://h",
            "redis+unix:///run/r",
            "redis+sentinel://a,b/m",
            "redis+cluster://a,b",
            "quorum+redis://a,b,c",
            "memcached://h",
            "postgres://h/db",
            "mysql://h/db",
            "zookeeper://h",
            "etcd://h",
        ] {
            let (scheme, rest) = url.split_once(':').unwrap();
            let capitals = format!("{}:{rest}", scheme.to_ascii_uppercase());
            let [small, large] = [url, &capitals].map(|url| format!("{:?}", Options::parse(url)));
            assert_eq!(small, large);
        }
    }

    /// And the password is not, however it reads.
    #[test]
    fn a_zone_of_an_address_is_refused_by_its_name() {
        for scheme in [
            "redis",
            "valkeys",
            "redis+cluster",
            "redis+sentinel",
            "quorum+redis",
            "memcached",
            "postgres",
            "mysql",
            "zookeeper",
            "etcd",
        ] {
            for (hosts, zone) in [("[fe80::1%25eth0]", "eth0"), ("a,[::1],[fe80::1%en1]:7", "en1")] {
                let error = Options::parse(format!("{scheme}://u:hunter2@{hosts}/m")).unwrap_err();
                let text = format!("{error} {error:?}");
                assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
                assert!(
                    text.contains(&format!("the zone {zone:?}")) && text.contains("or a host name"),
                    "{scheme}://{hosts}: {text}"
                );
                assert!(!text.contains("hunter2"), "{text}");
            }
        }
    }

    #[test]
    fn a_password_without_a_scheme_is_not_shown() {
        assert!(!Options::parse("//:s3cret@host").unwrap_err().to_string().contains("s3cret"));
    }
}
