//! The servers that a store URL names, and the login there.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;

use super::Login;
use super::zone::refuse_zone;
use crate::Error;

/// The parts of `scheme://[user[:password]@]host[:port][,host[:port]...][/path][?parameters]`.
#[derive(Debug)]
pub struct Address<'a> {
    /// In small letters.
    pub scheme: String,
    /// The login, decoded.
    pub login: Login,
    /// The servers, one at least. None if the scheme ends with `unix`: the path names a socket.
    pub hosts: Vec<Host>,
    /// The path without its first slash, as it stands.
    pub path: &'a str,
    /// The parameters, as they stand.
    pub parameters: &'a str,
}

/// A server. Its text has brackets around an address of IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, without brackets.
    pub name: String,
    /// Port of TCP.
    pub port: u16,
}

impl<'a> Address<'a> {
    /// Divides a URL of one of these schemes. `port` is for hosts without one, and `form` is shown in errors.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn read(url: &'a str, schemes: &[&str], port: u16, form: &str) -> Result<Self, Error> {
        refuse_zone(url)?;
        let wrong = |what: &str| Error::invalid(format!("the store URL {what}")).with_hint(format!("it looks like {form}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("cannot be read"))?;
        let known = schemes.iter().find(|known| scheme.eq_ignore_ascii_case(known));
        let is_scheme = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b));
        let other = || if is_scheme { format!("cannot begin with {scheme}://") } else { "cannot be read".to_owned() };
        let scheme = known.ok_or_else(|| wrong(&other()))?;
        let is_unix = scheme.ends_with("unix");
        let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = address.split_once('/').unwrap_or((address, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        // They may be the rest of a password, which no message shows, or each host has a login.
        if path.contains('@') && !is_unix || login.contains('@') && login.contains(',') {
            return Err(unescaped("an @"));
        }
        let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        let user = Some(decoded("the user", user)?).filter(|user| !user.is_empty());
        let login = Login { user, password: password.map(|text| decoded("the password", text)).transpose()? };
        // It may be a password without its host.
        let host = |text| Host::read(text, port).map_err(|why| wrong(&format!("has a host that {why}")));
        let hosts = if is_unix { Ok(Vec::new()) } else { hosts.split(',').map(host).collect() };
        let hosts = hosts.map_err(|e| if parameters.contains('@') { unescaped("an @") } else { e })?;
        Ok(Self { scheme: (*scheme).to_owned(), login, hosts, path, parameters })
    }
}

impl Host {
    fn read(text: &str, usual: u16) -> Result<Self, &'static str> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("has no ]")?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err("is empty or has a space");
        }
        let number = |port: &str| port.strip_prefix(':')?.parse().ok().filter(|port| *port != 0);
        let port = if port.is_empty() { usual } else { number(port).ok_or("has no port behind its colon")? };
        Ok(Self { name: decoded("", name).map_err(|_| "is not UTF-8")?, port })
    }

    /// Writes several with commas in between.
    pub fn list(hosts: &[Self]) -> String {
        hosts.iter().map(Self::to_string).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// Decodes a part of a store URL.
pub fn decoded(what: &str, text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| Error::invalid(format!("{what} of the store URL is not UTF-8")))
}

/// Refuses a store URL in which a character of the password is taken for one of the URL.
pub fn unescaped(sign: &str) -> Error {
    Error::invalid(format!("the store URL cannot be read: it has {sign} too many"))
        .with_hint("in the user and the password, write @ as %40, ? as %3F, / as %2F and # as %23")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address<'_>, Error> {
        Address::read(url, &["store", "stores"], 7, "store://host:7/path")
    }

    #[test]
    fn a_url_is_divided() {
        let address = read("STORES://me:p%40ss@a,b:99,[::1]:2/a%20b/?c=d?").unwrap();
        assert_eq!((&*address.scheme, address.path, address.parameters), ("stores", "a%20b/", "c=d?"));
        assert_eq!((Host::list(&address.hosts).as_str(), address.login), ("a:7,b:99,[::1]:2", Login::new("me", "p@ss")));
        assert_eq!(read("store://:x@h").unwrap().login, Login::of_password("x"));
    }

    #[test]
    fn bad_urls_are_refused_with_what_to_write() {
        for (url, why) in [
            ("store:h", "cannot be read; it looks like store://host:7/path"),
            ("http://h", "cannot begin with http://"),
            ("store://", "is empty"),
            ("store://a,,b", "is empty"),
            ("store://::1", "is empty"),
            ("store://h:0", "has no port"),
            ("store://h:1:2", "has no port"),
            ("store://u:s3cret", "has no port"),
            ("store://[::1", "has no ]"),
            ("store://%ff", "is not UTF-8"),
            ("store://u:%ff@h", "the password of the store URL is not UTF-8"),
            ("store://u:s3cret@a,u:s3cret@b", "an @ too many"),
            ("store://u:s3c/ret@h", "an @ too many"),
            ("store://u:s3c?ret@h", "an @ too many"),
        ] {
            let error = read(url).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("s3c"), "{url}: {error}");
        }
    }
}
