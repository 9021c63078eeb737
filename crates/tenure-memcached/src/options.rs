//! The URL of one memcached, or of several.

mod open;

use std::fmt;
use std::time::Duration;

use tenure::Error;
use tenure::store::{Address, Credentials, Host, Login};

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
    pub(crate) servers: Vec<Host>,
    /// The credentials at each server. Stores that are opened one after another count its refusals together.
    pub(crate) logins: Vec<Credentials>,
    pub(crate) scheme: Scheme,
    pub(crate) prefix: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) poll_interval: Duration,
}

tenure::parameters! {
    for Options, read into Options:
    "scheme" = "add", "`cas`: every kind of lock, with a queue; `add`: mutexes as other libraries keep them", "`cas`"
        => |o, v| o.scheme = v.one_of(&[("cas", Scheme::Cas), ("add", Scheme::Add), ("native", Scheme::Cas)])?;
    "prefix" = "app:", "put in front of each name", "none" => |o, v| o.prefix = checked_prefix(v.text)?;
    "timeout" = "500ms", "timeout of one operation", "a sixth of the ttl, at most 1 s" => |o, v| o.timeout = Some(v.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls: nobody notifies it", "100 ms" => |o, v| o.poll_interval = v.duration()?;
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
        let Address { login, hosts: mut servers, path, parameters, .. } = Address::read(url, &["memcached"], PORT, FORMS)?;
        if !path.is_empty() {
            let what = "the store URL has a path, and memcached has no databases";
            return Err(Error::invalid(what).with_hint(format!("it looks like {FORMS}")));
        }
        for server in &mut servers {
            server.name.make_ascii_lowercase();
        }
        if servers.iter().enumerate().any(|(at, server)| servers[..at].contains(server)) {
            return Err(Error::invalid("the store URL names a server twice").with_hint("name each once"));
        }
        let mut options = Self {
            logins: vec![Credentials::default(); servers.len()],
            servers,
            scheme: Scheme::default(),
            prefix: String::new(),
            timeout: None,
            poll_interval: Duration::from_millis(100),
        };
        Self::read_parameters(&mut options, parameters)?;
        Ok(options.credentials(login))
    }

    /// Sets how to log in, at each server. What these credentials lack is taken from the URL.
    ///
    /// memcached reads its file of passwords again when it gets SIGHUP.
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        let credentials = credentials.into();
        self.logins = self.logins.iter().map(|login| credentials.or(login)).collect();
        self
    }
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
        write!(f, "memcached://{}", Host::list(&self.servers))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

#[cfg(test)]
mod tests {
    use tenure::ErrorKind;

    use super::*;

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
        assert_eq!(options.logins[0].fixed(), Some(Login::new("u", "s 3")));
    }

    /// A command that waits for its store opens it again and again.
    #[tokio::test(start_paused = true)]
    async fn refusals_of_a_server_count_over_several_stores() {
        let asking = Credentials::asking("the test", || async { Ok::<_, Error>(Login::of_password("wrong")) }).patient();
        let options = Options::parse("memcached://a,b").unwrap().credentials(asking);
        let refused = async |at: usize| {
            let servers = crate::servers::Servers::new(&options.clone());
            let refuse = |_| async { Err::<(), _>(Error::refused("no")) };
            servers.all[at].credentials.log_in(refuse).await.unwrap_err().kind()
        };
        for kind in [ErrorKind::Unavailable, ErrorKind::Unavailable, ErrorKind::Refused] {
            assert_eq!(refused(0).await, kind);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(refused(1).await, ErrorKind::Unavailable, "another server");
    }

    #[test]
    fn bad_urls_are_refused_by_the_name_of_what_is_wrong() {
        for (url, why) in [
            ("memcached://a,a:11211", "names a server twice"),
            ("memcached://h/db", "has a path"),
            ("memcached://h?sheme=add", "sheme= is no parameter"),
            ("memcached://h?scheme=gets", "scheme=gets of the store URL is not known"),
            ("memcached://h?prefix=%0a", "prefix= of the store URL"),
        ] {
            let text = Options::parse(url).unwrap_err().to_string();
            assert!(text.contains(why), "{url}: {text}");
        }
    }
}
