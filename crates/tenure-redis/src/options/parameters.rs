//! The parameters of a URL: what stands behind its `?`.

use tenure::Error;
use tenure::store::{Given, Login};

use super::Options;
use crate::schemes::timestamp::Unit;

tenure::parameters! {
    for Options, read into Options:
    "prefix" = "app:", "put in front of every key", "none" => |o, v| v.text.clone_into(&mut o.prefix);
    "timeout" = "500ms", "timeout of one operation", "a sixth of the ttl, at most 1 s" => |o, v| o.timeout = Some(v.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls that nobody notifies", "100 ms" => |o, v| o.poll_interval = v.duration()?;
    "node_timeout" = "20ms", "of a quorum: time for slow servers after a majority has answered", "a 200th of the ttl, 5 to 50 ms"
        => |o, v| o.set_node_timeout(v)?;
    "durability" = "LEVEL", "copies to be confirmed before a grant or a renewal counts: `none`, `replicas:K`, `majority` (of the \
        server and its replicas), `aof` (the server's own disk; Redis 7.2). Not with `scheme=`, not for a quorum or a cluster", "`none`"
        => |o, v| o.durability = v.text.parse()?;
    "quiet" = "yes", "no warning about a server that may evict locks, or is a replica", "`no`" => |o, v| o.quiet = v.is_yes()?;
    "db" = "2", "number of the database, for a unix socket too", "0"
        => |o, v| o.servers.iter_mut().try_for_each(|server| server.set_db(v.text))?;
    "ca" = "FILE", "with TLS: PEM file of the authority", "the system's authorities" => |o, v| o.set_tls_file(v)?;
    "cert" = "FILE", "with TLS: PEM file of the client's certificate", "none" => |o, v| o.set_tls_file(v)?;
    "key" = "FILE", "with TLS: PEM file of the client's key", "none" => |o, v| o.set_tls_file(v)?;
    "sentinel_username" = "NAME", "login at the Sentinels, which are not sent that of the servers", "none"
        => |o, v| o.log_in_at_sentinels(v, Login::of_user(v.text))?;
    "sentinel_password" = "SECRET", "password at the Sentinels", "none"
        => |o, v| o.log_in_at_sentinels(v, Login::of_password(v.text))?;
    "scheme" = "NAME", "takes locks as other clients do: `set-nx`, `setnx-expire`, `setnx-expire-lua`, `php`, `getset`, `watch`, \
        `redisson` or `redisson-fair`; of a cluster, Redisson's alone", "`native`" => |o, v| o.scheme = v.text.parse()?;
    "profile" = "LIBRARY", "with `scheme=set-nx`: library whose keys they are: `redis-py`, `redsync`, `redislock`, `pottery`, \
        `redlock.net`, `shedlock`; `spring`, `python-redis-lock` and `rueidislock`, whose waiters are woken; `rueidislock-one`", "none"
        => |o, v| o.profile = Some(v.text.parse()?);
    "unit" = "s", "with `scheme=getset`: unit of the values of keys, `ms` or `s`", "`ms`"
        => |o, v| (o.unit, o.getset) = (v.one_of(&[("ms", Unit::Millis), ("s", Unit::Seconds)])?, Some("unit"));
    "win" = "past", "with `scheme=getset`: how clients see that they have won, `equal` or `past`; tenure acquires the same either way",
        "none" => |o, v| o.getset = Some(v.one_of(&[("equal", "win"), ("past", "win")])?);
}

impl Options {
    /// Sets all of them. As in a form, a + is a space: there are prefixes with one.
    pub(super) fn set_all(&mut self, text: &str) -> Result<(), Error> {
        Self::read_parameters(self, &text.replace('+', " ")).map(drop)
    }

    fn set_node_timeout(&mut self, given: &Given<'_>) -> Result<(), Error> {
        if !self.is_quorum() {
            let what = "node_timeout= is for several servers that are asked at once, and this URL names none";
            return Err(Error::invalid(what).with_hint("use timeout="));
        }
        self.node_timeout = Some(given.duration()?);
        Ok(())
    }

    fn set_tls_file(&mut self, given: &Given<'_>) -> Result<(), Error> {
        self.machines().try_for_each(|server| server.set_tls_file(given.name, given.text))
    }

    fn log_in_at_sentinels(&mut self, given: &Given<'_>, half: Login) -> Result<(), Error> {
        let none = || Error::invalid(format!("{}= is for sentinels, and the store URL names none", given.name));
        let group = self.group.as_mut().ok_or_else(none);
        group.map_err(|e| e.with_hint("use redis+sentinel://host,host,host/service"))?.log_in(&half.into());
        Ok(())
    }
}
