//! The store that `--store` names.

use std::ffi::{OsStr, OsString};

use tenure_lab::bench::Address;
use tenure_stores::Options;

use super::exit::{CONFIG, Failure, say};

/// Returns how to reach a store, once it has answered.
pub(crate) async fn address(store: &OsStr) -> Result<Address, Failure> {
    let sentinel_password = secret("TENURE_SENTINEL_PASSWORD")?;
    let address = Address { password: password()?, sentinel_password, ..Address::of(text(store)?) };
    address.open().await?;
    Ok(address)
}

/// Returns the beginning of the ids of rows that break a store like the one at `url`.
pub(crate) fn rows(url: &OsStr) -> Result<String, Failure> {
    let Address { url, .. } = Address::of(text(url)?);
    match Options::parse(&url)? {
        Options::Redis(_) => {}
        Options::Sqlite(_) => return Ok("sqlite/".to_owned()),
        Options::Postgres(_) => return Ok("postgres/".to_owned()),
        Options::MySql(_) => return Ok("mariadb/".to_owned()),
        Options::Etcd(_) => return Ok("etcd/".to_owned()),
        Options::Memcached(_) => return Ok("memcached/".to_owned()),
        Options::ZooKeeper(_) => return Ok("zookeeper/".to_owned()),
        _ => return Err(Failure::usage("the lab has no rows of this store; name rows, e.g. redis/")),
    }
    if url.starts_with("quorum+") {
        return Ok("quorum/".to_owned());
    }
    for topology in ["sentinel", "cluster"] {
        if url.contains(&format!("+{topology}://")) {
            return Ok(format!("{topology}/"));
        }
    }
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let keys = parameters.split('&').filter_map(|parameter| parameter.split('=').next());
    let others: Vec<String> = keys.filter(|key| !["", "scheme"].contains(key)).map(|key| format!("{key}=")).collect();
    if !others.is_empty() {
        say(format_args!("the lab looks at the scheme= of the store URL only, not at {}", others.join(", ")));
    }
    match parameters.split('&').find_map(|parameter| parameter.strip_prefix("scheme=")) {
        None | Some("native") => Ok("redis/".to_owned()),
        Some(scheme) => Ok(format!("{scheme}/")),
    }
}

fn text(url: &OsStr) -> Result<&str, Failure> {
    url.to_str().ok_or_else(|| Failure::usage("the store URL is not UTF-8; the lab takes no such path"))
}

/// The password of the environment, as the other commands take it.
fn password() -> Result<Option<String>, Failure> {
    if let Some(password) = secret("TENURE_PASSWORD")? {
        return Ok(Some(password));
    }
    let Some(path) = variable("TENURE_PASSWORD_FILE") else { return Ok(None) };
    let unread =
        |error| Failure::new(CONFIG, format!("the file of TENURE_PASSWORD_FILE cannot be read, {error}; check the path"));
    let text = std::fs::read_to_string(path).map_err(unread)?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()).filter(|password| !password.is_empty()))
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The secret that a variable holds.
fn secret(name: &str) -> Result<Option<String>, Failure> {
    let bad = |_| Failure::new(CONFIG, format!("{name} is not UTF-8; set it again"));
    variable(name).map(|text| text.into_string().map_err(bad)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_url_of_a_store_has_its_rows() {
        for (url, expected) in [
            ("redis://cache", "redis/"),
            ("REDIS://cache?scheme=php", "php/"),
            ("QUORUM+REDIS://a,b,c", "quorum/"),
            ("redis+Sentinel://a,b/main", "sentinel/"),
            ("valkey+cluster://a,b", "cluster/"),
            ("SQLITE:/var/locks.db", "sqlite/"),
            ("postgresql://me@db/app", "postgres/"),
            ("mariadb://me@db/app", "mariadb/"),
            ("etcds://a,b,c", "etcd/"),
            ("memcached://cache", "memcached/"),
            ("ZooKeeper://a,b,c", "zookeeper/"),
        ] {
            assert_eq!(rows(url.as_ref()).ok().as_deref(), Some(expected), "{url}");
        }
        assert!(rows("mongodb://db".as_ref()).is_err());
    }
}
