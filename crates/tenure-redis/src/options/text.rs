//! The text of a URL.

use tenure::Error;
use url::Url;

use super::server::FORMS;

/// Reads the URL of one server.
pub(super) fn read(text: &str) -> Result<Url, Error> {
    let unread = |e| Error::invalid("the store URL cannot be read").with_source(e).with_hint(format!("it looks like {FORMS}"));
    Url::parse(text).map_err(unread)
}

/// Divides what follows the scheme of a URL of several hosts: the login with its `@`, the hosts, and
/// the path with what comes after it.
pub(super) fn authority(rest: &str) -> (&str, &str, &str) {
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    (login, hosts, behind)
}
