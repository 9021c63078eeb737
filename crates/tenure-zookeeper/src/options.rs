//! The URL of an ensemble.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure::store::{Address, Credentials, Host, decoded, unescaped};
use tenure::{Error, Locker};
use tokio::time::Instant;

use crate::inner::Inner;
use crate::login::check_login;
use crate::nodes::check_path;
use crate::session::{How, SILENT};
use crate::sessions::Sessions;
use crate::store::ZooKeeperStore;
use crate::wire::Acl;

const FORMS: &str = "zookeeper://host1,host2,host3/chroot";
const PORT: u16 = 2181;
/// Longest time for the first contact.
const FIRST_CONTACT: Duration = Duration::from_secs(5);

/// Settings of a store in ZooKeeper, read from a URL.
///
/// `zookeeper://[user[:password]@]host[:port][,host[:port]...][/chroot][?parameters]`. The port is 2181
/// if none is given. All paths are below the chroot, as in other clients.
///
/// The parameters are [`PARAMETERS`](Self::PARAMETERS).
///
/// The user logs in by the scheme `digest`. Its password crosses the network as it is: the store has no TLS.
#[derive(Clone)]
pub struct Options {
    hosts: Vec<Host>,
    credentials: Credentials,
    chroot: String,
    prefix: String,
    acl: Acl,
    timeout: Option<Duration>,
    poll_interval: Duration,
}

tenure::parameters! {
    for Options, read into Options:
    "prefix" = "locks", "a path below the chroot: a name `a/b` is at `/chroot/locks/a/b`", "none"
        => |o, v| o.prefix = path("the prefix", v.text, o.chroot.is_empty())?;
    "acl" = "creator", "`open`: everybody may use the nodes; `creator`: only those who log in as this user", "`open`"
        => |o, v| o.acl = v.one_of(&[("open", Acl::Open), ("creator", Acl::Creator)])?;
    "timeout" = "500ms", "timeout of one operation, also if a server is silent", "a sixth of the ttl, at most 1 s"
        => |o, v| o.timeout = Some(v.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls that nobody notifies", "1 s" => |o, v| o.poll_interval = v.duration()?;
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = Address::read(url, &["zookeeper"], PORT, FORMS)?;
        if url.contains('#') {
            return Err(unescaped("a #"));
        }
        let mut options = Self {
            hosts: address.hosts,
            credentials: address.login.into(),
            chroot: path("the chroot", &decoded("the chroot", address.path)?, true)?,
            prefix: String::new(),
            acl: Acl::Open,
            timeout: None,
            poll_interval: Duration::from_secs(1),
        };
        Self::read_parameters(&mut options, address.parameters)?;
        Ok(options)
    }

    /// Sets how to log in. What these credentials lack is taken from the URL.
    ///
    /// The scheme `digest` makes another identity of another password. With `acl=creator` the nodes that were made before
    /// are not for that one.
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into().or(&self.credentials);
        self
    }

    /// Connects, and makes a session.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if no server answers within 5 s, or all refuse the
    /// connection. [`Refused`](tenure::ErrorKind::Refused) if they refuse the login.
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a user has no password, or `acl=creator` has neither.
    pub async fn open(self) -> Result<ZooKeeperStore, Error> {
        let shown = self.to_string();
        if let Some(login) = self.credentials.fixed() {
            if self.acl == Acl::Creator && (login.user.is_none() || login.password.is_none()) {
                return Err(Error::invalid("acl=creator needs a user and a password").with_hint("give both, or use acl=open"));
            }
            check_login(login)?;
        }
        let how = How {
            hosts: self.hosts,
            credentials: self.credentials,
            silent: self.timeout.unwrap_or_default().max(SILENT),
            shortest: OnceLock::new(),
        };
        let sessions = Sessions::open(how, shown.clone(), Instant::now() + FIRST_CONTACT).await?;
        Ok(ZooKeeperStore(Arc::new(Inner {
            sessions,
            process: std::process::id(),
            root: self.chroot + &self.prefix,
            acl: self.acl,
            poll_interval: self.poll_interval,
            timeout: self.timeout,
            shown,
            entries: Mutex::new(HashMap::new()),
            listeners: Mutex::new(HashMap::new()),
            late: Mutex::new(None),
        })))
    }

    /// Returns a [`Locker`] on the ensemble.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }
}

/// A path with a / in front, or nothing.
fn path(what: &str, text: &str, is_top: bool) -> Result<String, Error> {
    let text = text.strip_prefix('/').unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.is_empty() {
        return Ok(String::new());
    }
    check_path(text, what, is_top)?;
    Ok(format!("/{text}"))
}

/// Without secrets.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zookeeper://{}{}{}", Host::list(&self.hosts), self.chroot, self.prefix)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::Login;

    use super::*;

    #[test]
    fn a_url_is_read_and_shown_without_its_password() {
        let options =
            Options::parse("zookeeper://me:s%40cret@a,b:1,[::1]:2/app/x/?prefix=/locks&timeout=1s&acl=creator").unwrap();
        assert_eq!(options.to_string(), "zookeeper://a:2181,b:1,[::1]:2/app/x/locks");
        assert_eq!(options.credentials.fixed(), Some(Login::new("me", "s@cret")));
        assert!(!format!("{options:?} {options}").contains("cret"));
        assert_eq!((options.timeout, options.acl), (Some(Duration::from_secs(1)), Acl::Creator));
    }

    #[test]
    fn bad_urls_say_why() {
        let table = [
            ("redis://a", "looks like zookeeper://"),
            ("zookeeper://a?ttl=1", "ttl="),
            ("zookeeper://a?acl=all", "acl=all"),
            ("zookeeper://a?prefix=a//b", "the prefix"),
            ("zookeeper://a/b/../c", "the chroot"),
            ("zookeeper://a/app#x", "# too many"),
            ("zookeeper://a?prefix=a#x", "# too many"),
            ("zookeeper://a/zookeeper", "its own"),
            ("zookeeper://a?prefix=zookeeper", "its own"),
            ("zookeeper://me:p/ss@a", "@ too many"),
        ];
        for (url, why) in table {
            let error = Options::parse(url).unwrap_err();
            assert!(error.to_string().contains(why) && !error.to_string().contains("ss@"), "{url}: {error}");
        }
    }
}
