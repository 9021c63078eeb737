//! The URL of an ensemble.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure::store::{Credentials, Login, decoded, refuse_zone, unescaped};
use tenure::{Error, Locker};
use tokio::time::Instant;

use crate::inner::Inner;
use crate::link::Host;
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
        => |o, given| o.prefix = path("the prefix", given.text, o.chroot.is_empty())?;
    "acl" = "creator", "`open`: everybody may use the nodes; `creator`: only those who log in as this user", "`open`"
        => |o, given| o.acl = given.one_of(&[("open", Acl::Open), ("creator", Acl::Creator)])?;
    "timeout" = "500ms", "operation timeout: how long one call may take, and a server be silent", "a sixth of the ttl, at most 1 s"
        => |o, given| o.timeout = Some(given.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls that nobody notifies", "1 s"
        => |o, given| o.poll_interval = given.duration()?;
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        refuse_zone(url)?;
        let form = |what: &str| Error::invalid(what).with_hint(format!("write e.g. {FORMS}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| form("the store URL is none of ZooKeeper"))?;
        if !scheme.eq_ignore_ascii_case("zookeeper") {
            return Err(form("the store URL is none of ZooKeeper"));
        }
        let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, chroot) = address.split_once('/').unwrap_or((address, ""));
        let (login, hosts) = authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        // They may be the rest of a password, which no message shows.
        if login.is_some_and(|login| login.contains('@')) || chroot.contains('@') || parameters.contains('@') {
            return Err(unescaped("an @"));
        }
        if address.contains('#') || parameters.contains('#') {
            return Err(unescaped("a #"));
        }
        let (username, password) = login.map_or((None, None), |login| match login.split_once(':') {
            Some((username, password)) => (Some(username), Some(password)),
            None => (Some(login), None),
        });
        let user = username.filter(|username| !username.is_empty()).map(|text| decoded("the user", text)).transpose()?;
        let password = password.map(|text| decoded("the password", text)).transpose()?;
        let mut options = Self {
            hosts: hosts.split(',').map(host).collect::<Result<_, _>>()?,
            credentials: Login { user, password }.into(),
            chroot: path("the chroot", &decoded("the chroot", chroot)?, true)?,
            prefix: String::new(),
            acl: Acl::Open,
            timeout: None,
            poll_interval: Duration::from_secs(1),
        };
        Self::read_parameters(&mut options, parameters)?;
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

fn host(text: &str) -> Result<Host, Error> {
    let bad = |why: &str| Error::invalid(format!("the store URL has a host that {why}")).with_hint(format!("write e.g. {FORMS}"));
    let (name, port) = match text.strip_prefix('[') {
        // An address of IPv6 has colons of its own.
        Some(rest) => rest.split_once(']').ok_or_else(|| bad("has no ]"))?,
        None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
    };
    if name.is_empty() {
        return Err(bad("is empty"));
    }
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| bad("has no port behind its colon"))?,
        None if port.is_empty() => PORT,
        None => return Err(bad("goes on behind its ]")),
    };
    Ok(Host { name: decoded("a host", name)?, port })
}

/// Without secrets.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("zookeeper://")?;
        for (i, Host { name, port }) in self.hosts.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if name.contains(':') { write!(f, "{comma}[{name}]:{port}")? } else { write!(f, "{comma}{name}:{port}")? }
        }
        write!(f, "{}{}", self.chroot, self.prefix)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

#[cfg(test)]
mod tests {
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
            ("redis://a", "none of ZooKeeper"),
            ("zookeeper:a", "none of ZooKeeper"),
            ("zookeeper://", "is empty"),
            ("zookeeper://a,,b", "is empty"),
            ("zookeeper://a:x", "no port"),
            ("zookeeper://[::1", "no ]"),
            ("zookeeper://a?ttl=1", "ttl="),
            ("zookeeper://a?timeout=0", "timeout=0"),
            ("zookeeper://a?timeout=1s&timeout=2s", "twice"),
            ("zookeeper://a?acl=all", "acl=all"),
            ("zookeeper://a?prefix=a//b", "the prefix"),
            ("zookeeper://a/b/../c", "the chroot"),
            ("zookeeper://a:0", "no port"),
            ("zookeeper://a/app#x", "# too many"),
            ("zookeeper://a?prefix=a#x", "# too many"),
            ("zookeeper://a/zookeeper", "its own"),
            ("zookeeper://a?prefix=zookeeper", "its own"),
            ("zookeeper://me:p@ss@a", "@ too many"),
            ("zookeeper://me:p/ss@a", "@ too many"),
        ];
        for (url, why) in table {
            let error = Options::parse(url).unwrap_err();
            assert!(error.to_string().contains(why) && !error.to_string().contains("ss@"), "{url}: {error}");
        }
    }
}
