//! Zones of IPv6 addresses, which no store URL can have.

use std::net::Ipv6Addr;

use crate::Error;

/// Refuses a store URL with an address that has a zone, as `[fe80::1%25eth0]` or `[fe80::1%eth0]`. For the
/// stores themselves.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) with the zone, and nothing else of the URL.
#[doc(hidden)]
pub fn refuse_zone(url: &str) -> Result<(), Error> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    let zone = |address: &str| {
        let (address, zone) = address.split_once(']')?.0.split_once('%')?;
        // Text that is not an address may be a part of a password, which no message shows.
        address.parse::<Ipv6Addr>().ok()?;
        Some(zone.strip_prefix("25").unwrap_or(zone).to_owned())
    };
    hosts.split('[').skip(1).find_map(zone).map_or(Ok(()), |zone| {
        let what = format!("an IPv6 address of the store URL has the zone {zone:?}, and a zone cannot be given");
        Err(Error::invalid(what).with_hint("use an address without a zone, or a host name"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_zone_is_left_to_its_store() {
        for url in [
            "redis://[::1]:7000/1?prefix=[::1%25eth0]",
            "redis://u:p[a%25b]@h",
            "redis://u:[a%25b]/c@h",
            "redis://[h%25a]",
            "redis+unix:///run/[fe80::1%25eth0]",
            "etcd://a,[::1],b",
            "[fe80::1%25eth0]",
        ] {
            assert!(refuse_zone(url).is_ok(), "{url}");
        }
    }
}
