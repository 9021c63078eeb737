//! The parameters of a URL: what stands behind its `?`.

use std::time::Duration;

use tenure::store::Login;
use tenure::{Error, parse_duration};
use url::Url;

use super::Options;
use crate::schemes::timestamp::Unit;

impl Options {
    /// Sets all of them.
    pub(super) fn set_all(&mut self, url: &Url) -> Result<(), Error> {
        let mut known = Vec::new();
        for (key, value) in url.query_pairs() {
            if known.contains(&key) {
                return Err(Error::invalid(format!("{key}= is given twice in the store URL")).with_hint("give it once"));
            }
            self.set(&key, &value)?;
            known.push(key);
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let duration = || parse_duration(value).map_err(|e| e.context(format_args!("the parameter {key}= of the store URL")));
        match key {
            "prefix" => value.clone_into(&mut self.prefix),
            "timeout" => self.timeout = Some(positive(key, duration()?)?),
            "poll_interval" => self.poll_interval = positive(key, duration()?)?,
            "durability" => self.durability = value.parse()?,
            "quiet" => self.quiet = choice(key, value, ["yes", "no"])? == "yes",
            "db" => self.servers.iter_mut().try_for_each(|server| server.set_db(value))?,
            "ca" | "cert" | "key" => self.machines().try_for_each(|server| server.set_tls_file(key, value))?,
            "sentinel_username" | "sentinel_password" => {
                let none = || Error::invalid(format!("{key}= is for sentinels, and the store URL names none"));
                let group = self.group.as_mut().ok_or_else(none);
                let half = if key == "sentinel_username" { Login::of_user(value) } else { Login::of_password(value) };
                group.map_err(|e| e.with_hint("use redis+sentinel://host,host,host/service"))?.log_in(&half.into());
            }
            "scheme" => self.scheme = value.parse()?,
            "profile" => self.profile = Some(value.parse()?),
            "unit" => {
                self.unit = if choice(key, value, ["ms", "s"])? == "s" { Unit::Seconds } else { Unit::Millis };
                self.getset = Some("unit");
            }
            "win" => {
                choice(key, value, ["equal", "past"])?;
                self.getset = Some("win");
            }
            "node_timeout" if self.is_quorum() => self.node_timeout = Some(positive(key, duration()?)?),
            "node_timeout" => {
                let what = "node_timeout= is for several servers that are asked at once, and this URL names none";
                return Err(Error::invalid(what).with_hint("use timeout="));
            }
            other => {
                let what = format!("{other}= is no parameter of a Redis URL");
                return Err(Error::invalid(what).with_hint(
                    "known are prefix, timeout, poll_interval, node_timeout, durability, quiet, db, ca, cert, key, sentinel_username, \
                     sentinel_password, scheme, profile, unit and win",
                ));
            }
        }
        Ok(())
    }
}

fn choice<'a>(key: &str, value: &'a str, known: [&str; 2]) -> Result<&'a str, Error> {
    if known.contains(&value) {
        return Ok(value);
    }
    let what = format!("{key}={value} is no value of that parameter");
    Err(Error::invalid(what).with_hint(format!("write {key}={} or {key}={}", known[0], known[1])))
}

fn positive(key: &str, value: Duration) -> Result<Duration, Error> {
    let why = match value {
        Duration::ZERO => "zero",
        value if value > Duration::from_secs(3_600) => "more than an hour",
        _ => return Ok(value),
    };
    Err(Error::invalid(format!("the parameter {key}= of the store URL is {why}")).with_hint("write e.g. 500ms"))
}
