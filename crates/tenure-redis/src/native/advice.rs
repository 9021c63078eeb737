//! Settings of a server that endanger locks: named once, to a caller that wants to know.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::pipe;
use tokio::time::Instant;
use tracing::warn;

use crate::transport::connection::{Connection, Repeat};

/// Time for the answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// A setting of the server that endangers locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// A memory limit and a `maxmemory-policy` other than `noeviction`: it may delete locks.
    Evicts,
    /// It logs no write, or not each before its answer: after a restart the last grants may be missing.
    Forgets,
    /// It is a replica, which grants nothing.
    IsReplica,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evicts => "it may evict locks when its memory is full; set maxmemory-policy noeviction",
            Self::Forgets => "it may forget the last grants when it restarts; set appendonly yes and appendfsync always",
            Self::IsReplica => "it is a replica and grants nothing; name its master, or the Sentinels",
        })
    }
}

/// Hears of the server by its name, and of a danger.
#[derive(Clone)]
pub(crate) struct Listener(pub(crate) Arc<Hears>);

type Hears = dyn Fn(&str, Advice) + Send + Sync;

impl Listener {
    /// Asks a server beside the first calls, which do not wait for it, and names each danger once. A user who may not ask hears
    /// nothing.
    pub(crate) fn ask(&self, connection: &Arc<Connection>, shown: &str, is_one_of_a_quorum: bool) {
        let (listener, connection, shown) = (self.clone(), Arc::clone(connection), shown.to_owned());
        tokio::spawn(async move {
            for advice in questions(&connection).await {
                // Whatever it keeps, it has no vote after a restart for as long as that could matter.
                if !(is_one_of_a_quorum && advice == Advice::Forgets) {
                    warn!(server = %shown, "{advice}");
                    (listener.0)(&shown, advice);
                }
            }
        });
    }
}

/// The dangers as the server has them.
async fn questions(connection: &Connection) -> Vec<Advice> {
    let mut questions = pipe();
    for section in ["memory", "persistence", "replication"] {
        questions.cmd("INFO").arg(section);
    }
    questions.cmd("CONFIG").arg("GET").arg("appendfsync");
    let asked = connection.exchange(Instant::now() + PATIENCE, Repeat::Freely, |_| questions.clone()).await;
    let mut answers = asked.map(|exchange| exchange.answers).unwrap_or_default().into_iter().map(Result::ok);
    let mut info = || answers.next().flatten().and_then(|text| redis::from_redis_value::<String>(text).ok()).unwrap_or_default();
    let (memory, persistence, replication) = (info(), info(), info());
    let fsync = answers.next().flatten().and_then(|pair| redis::from_redis_value::<Vec<String>>(pair).ok());
    let fsync = fsync.and_then(|pair| pair.into_iter().nth(1));
    dangers(&[memory, persistence, replication].concat(), fsync.as_deref())
}

/// The dangers by the answers to INFO and to CONFIG GET, each of which may be missing.
fn dangers(info: &str, fsync: Option<&str>) -> Vec<Advice> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let is = |name, value| field(name) == Some(value);
    let evicts = field("maxmemory").is_some_and(|limit| limit != "0")
        && field("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
    let forgets = is("aof_enabled", "0") || is("aof_enabled", "1") && fsync.is_some_and(|fsync| fsync != "always");
    let all = [(evicts, Advice::Evicts), (forgets, Advice::Forgets), (is("role", "slave"), Advice::IsReplica)];
    all.into_iter().filter_map(|(is_so, advice)| is_so.then_some(advice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_named() {
        let info = |limit: &str, policy: &str, aof: &str, role: &str| {
            format!("maxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\naof_enabled:{aof}\r\nrole:{role}\r\n")
        };
        for (info, fsync, named) in [
            (info("0", "allkeys-lru", "1", "master"), Some("always"), &[][..]),
            (info("1000", "noeviction", "1", "master"), None, &[]),
            (info("1000", "volatile-ttl", "1", "master"), Some("always"), &[Advice::Evicts]),
            (info("0", "noeviction", "0", "slave"), None, &[Advice::Forgets, Advice::IsReplica]),
            (info("0", "noeviction", "1", "master"), Some("everysec"), &[Advice::Forgets]),
            (String::new(), None, &[]),
        ] {
            assert_eq!(dangers(&info, fsync), named, "{info}");
        }
    }
}
