//! The URL of one memcached, or of several.

mod open;

use std::fmt;
use std::time::Duration;

use tenure::Error;
use tenure::store::{Credentials, Login, decoded, refuse_zone, unescaped};

use crate::protocol::Key;

const FORMS: &str = "memcached://host:11211, or memcached://a:11211,b:11211 for several";
const PORT: u16 = 11_211;

/// How locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scheme {
    /// A record in each item, changed by compare-and-swap: every kind of lock, and a queue.
    #[default]
    Cas,
    /// The owner token alone, by `add`, as other libraries keep it: mutexes only.
    Add,
}

/// Settings of a store in memcached, read from a URL.
///
/// `memcached://[user[:password]@]host[:port][,host[:port]...][?parameters]`
///
/// The parameters are [`PARAMETERS`](Self::PARAMETERS).
///
/// The key of a name is the prefix and the name, 250 bytes at most. A space is written as `%20`, and
/// `%` as `%25`.
/// A user and a password are for servers that were started with `-Y`.
#[derive(Clone)]
pub struct Options {
    pub(crate) servers: Vec<(String, u16)>,
    pub(crate) credentials: Credentials,
    pub(crate) scheme: Scheme,
    pub(crate) prefix: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) poll_interval: Duration,
}

tenure::parameters! {
    for Options, read into Options:
    "scheme" = "add", "`cas`: every kind of lock, with a queue; `add`: mutexes as other libraries keep them", "`cas`"
        => |o, given| o.scheme = given.one_of(&[("cas", Scheme::Cas), ("add", Scheme::Add), ("native", Scheme::Cas)])?;
    "prefix" = "app:", "put in front of each name", "none" => |o, given| o.prefix = checked_prefix(given.text)?;
    "timeout" = "500ms", "operation timeout: how long one call may take", "a sixth of the ttl, at most 1 s"
        => |o, given| o.timeout = Some(given.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls: nobody notifies it", "100 ms"
        => |o, given| o.poll_interval = given.duration()?;
}

/// The words of a login; `None` if there is none.
pub(crate) fn words(Login { user, password }: &Login) -> Result<Option<String>, Error> {
    let odd = |text: &str| text.chars().any(|c| c.is_control() || c == ' ');
    let user = user.as_deref().unwrap_or_default();
    if odd(user) || password.as_deref().is_some_and(odd) {
        let what = "the user or the password has a space or a control character, and memcached reads none";
        return Err(Error::invalid(what).with_hint("use another password"));
    }
    if password.is_none() && !user.is_empty() {
        let what = "the store URL has a user and no password, and memcached takes no user alone";
        return Err(Error::invalid(what).with_hint("give the password as well, or leave the user out"));
    }
    Ok(password.as_ref().map(|password| format!("{user} {password}")))
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        refuse_zone(url)?;
        let unread = || Error::invalid("the store URL cannot be read").with_hint(format!("it looks like {FORMS}"));
        let rest = url.strip_prefix("memcached://").ok_or_else(unread)?;
        let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        if parameters.contains('@') || address.matches('@').count() > 1 {
            return Err(unescaped("an @"));
        }
        let (user, hosts) = address.rsplit_once('@').map_or((None, address), |(user, hosts)| (Some(user), hosts));
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        if hosts.contains('/') {
            let what = "the store URL has a path, and memcached has no databases";
            return Err(Error::invalid(what).with_hint(format!("it looks like {FORMS}")));
        }
        let servers = hosts.split(',').map(server).collect::<Result<Vec<_>, _>>()?;
        if servers.iter().enumerate().any(|(at, server)| servers[..at].contains(server)) {
            return Err(Error::invalid("the store URL names a server twice").with_hint("name each once"));
        }
        let mut options = Self {
            servers,
            credentials: user.map(login).transpose()?.unwrap_or_default().into(),
            scheme: Scheme::default(),
            prefix: String::new(),
            timeout: None,
            poll_interval: Duration::from_millis(100),
        };
        Self::read_parameters(&mut options, parameters)?;
        Ok(options)
    }

    /// Sets how to log in, at each server. What these credentials lack is taken from the URL.
    ///
    /// memcached reads its file of passwords again when it gets SIGHUP.
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into().or(&self.credentials);
        self
    }
}

fn server(text: &str) -> Result<(String, u16), Error> {
    // It may be a password without its host, which no message shows.
    let bad = || Error::invalid("the store URL has a server that is no host and port").with_hint(format!("write e.g. {FORMS}"));
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(bad)?)),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| bad()))?;
    if host.is_empty() || port == 0 || (host.contains(':') && !text.starts_with('[')) {
        return Err(bad());
    }
    Ok((host.to_ascii_lowercase(), port))
}

fn login(text: &str) -> Result<Login, Error> {
    let (username, password) = text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let password = password.map(|password| decoded("the password", password)).transpose()?;
    Ok(Login { user: Some(decoded("the user", username)?), password })
}

fn checked_prefix(prefix: &str) -> Result<String, Error> {
    let takes = Key::new(prefix).map(|key| key.as_bytes().len());
    if prefix.chars().any(char::is_control) || !takes.is_ok_and(|bytes| bytes <= 128) {
        let what = "prefix= of the store URL has a control character, or takes more than 128 bytes of a key";
        return Err(Error::invalid(what).with_hint("use a short word, e.g. prefix=app:"));
    }
    Ok(prefix.to_owned())
}

/// Without secrets.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memcached://")?;
        for (at, (host, port)) in self.servers.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
            write!(f, "{comma}{open}{host}{close}:{port}")?;
        }
        Ok(())
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

    fn refused(url: &str) -> String {
        Options::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn urls_are_read() {
        for (url, shown) in [
            ("memcached://h", "memcached://h:11211"),
            ("memcached://H:1/", "memcached://h:1"),
            ("memcached://[::1]:7,a", "memcached://[::1]:7,a:11211"),
            ("memcached://u:s3cret@h?scheme=add&prefix=a%20b&timeout=1s&poll_interval=5ms", "memcached://h:11211"),
        ] {
            let options = Options::parse(url).unwrap();
            assert_eq!((options.to_string(), format!("{options:?}")), (shown.to_owned(), format!("Options({shown})")));
        }
        let options = Options::parse("memcached://u:s%203@h?scheme=add&prefix=a%20b&poll_interval=5ms").unwrap();
        assert_eq!((options.scheme, &*options.prefix), (Scheme::Add, "a b"));
        assert_eq!(options.credentials.fixed(), Some(Login::new("u", "s 3")));
    }

    #[test]
    fn bad_urls_are_refused_by_the_name_of_what_is_wrong() {
        for (url, why) in [
            ("memcached:h", "cannot be read"),
            ("memcached://", "is no host and port"),
            ("memcached://h:x", "is no host and port"),
            ("memcached://h:0", "is no host and port"),
            ("memcached://a:1:2", "is no host and port"),
            ("memcached://a,a:11211", "names a server twice"),
            ("memcached://h/db", "has a path"),
            ("memcached://h?sheme=add", "sheme= is no parameter"),
            ("memcached://h?timeout=1s&timeout=2s", "timeout= is given twice"),
            ("memcached://h?timeout=0", "timeout=0"),
            ("memcached://h?timeout=soon", "the parameter timeout="),
            ("memcached://h?scheme=gets", "scheme=gets of the store URL is not known"),
            ("memcached://h?prefix=%0a", "prefix= of the store URL"),
            ("memcached://h?prefix=%ff", "not UTF-8"),
            ("memcached://u:a@b@h", "an @ too many"),
        ] {
            let text = refused(url);
            assert!(text.contains(why), "{url}: {text}");
        }
        assert!(!refused("memcached://u:s3cret@x@h").contains("s3cret"));
        assert!(!refused("memcached://u:s3cret?@h").contains("s3cret"));
        assert!(!refused("memcached://u:s3cret").contains("s3cret"));
    }
}
