//! A Redis behind a proxy, as a subject of conformance.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tenure::Name;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Plant, Process, Subject};
use tenure_redis::Options;
use tenure_testkit::{Program, Proxy, RedisServer, Reply, Worker};

use crate::LONG;

/// Servers that served a test and are empty again. What this process has started ends with it.
static AT_REST: Mutex<Vec<(RedisServer, Option<RedisServer>)>> = Mutex::new(Vec::new());

/// A server, with its replica if it has one, that goes back to those at rest when its test has passed. A test that kills, stops or
/// sets up a server has one of its own.
pub(crate) struct Lent(Option<(RedisServer, Option<RedisServer>)>);

/// Nothing of the last test may be executed or counted in the next one, so its connections end first.
pub(crate) fn reset(server: &RedisServer) {
    let mut client = server.connect().unwrap();
    for line in [
        "ACL SETUSER default on nopass ~* &* +@all",
        "ACL DELUSER app keys reader user",
        "CLIENT KILL TYPE normal",
        "CLIENT KILL TYPE pubsub",
        "CONFIG SET maxmemory 0",
        "FLUSHALL",
        "SCRIPT FLUSH",
        // The oldest server has no functions.
        "FUNCTION FLUSH",
        "CONFIG RESETSTAT",
    ] {
        let answer = client.command(&line.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(!matches!(answer, Reply::Error(_)) || line.starts_with("FUNCTION"), "{line}: {answer:?}");
    }
}

impl Lent {
    pub(crate) fn alone() -> Self {
        Self(Some(at_rest(false).unwrap_or_else(|| (RedisServer::start(), None))))
    }

    fn with_replica() -> Self {
        let start = || {
            let server = RedisServer::start();
            let replica = RedisServer::replica_of(&server);
            (server, Some(replica))
        };
        let lent = Self(Some(at_rest(true).unwrap_or_else(start)));
        lent.wait_for_copies(1);
        lent
    }
}

fn at_rest(with_replica: bool) -> Option<(RedisServer, Option<RedisServer>)> {
    let mut all = AT_REST.lock().unwrap_or_else(PoisonError::into_inner);
    let at = all.iter().position(|(_, replica)| replica.is_some() == with_replica)?;
    Some(all.swap_remove(at))
}

impl std::ops::Deref for Lent {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0.as_ref().expect("until it is dropped").0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some((server, replica)) = self.0.take().filter(|_| !std::thread::panicking()) else { return };
        reset(&server);
        AT_REST.lock().unwrap_or_else(PoisonError::into_inner).push((server, replica));
    }
}

pub(crate) struct Redis {
    // It ends first, so that nothing reaches the server any more.
    proxy: Proxy,
    pub(crate) server: Lent,
    /// They name the proxy, if there are any.
    sentinels: Vec<RedisServer>,
    parameters: &'static str,
    /// Text that the scheme puts in front of a name.
    before: &'static str,
    exceptions: Vec<&'static str>,
}

impl Redis {
    pub(crate) fn start(parameters: &'static str, before: &'static str, exceptions: &[&[&'static str]]) -> Self {
        Self::on(Lent::alone(), parameters, before, exceptions)
    }

    fn on(server: Lent, parameters: &'static str, before: &'static str, exceptions: &[&[&'static str]]) -> Self {
        let proxy = Proxy::start(server.addr());
        Self { proxy, server, sentinels: Vec::new(), parameters, before, exceptions: exceptions.concat() }
    }

    /// One whose grants a replica confirms.
    pub(crate) fn confirmed() -> Self {
        // A grant that nobody has confirmed does not count, so a push is a reason to poll.
        Self::on(Lent::with_replica(), "?durability=replicas:1", "", &[tenure_conformance::exceptions::NO_PUSH])
    }

    pub(crate) fn named_by_sentinels() -> Self {
        let subject = Self::start("", "", &[]);
        let sentinel = || RedisServer::builder().sentinel_of(subject.proxy.addr(), None, 2, LONG).start();
        Self { sentinels: vec![sentinel(), sentinel(), sentinel()], ..subject }
    }

    fn url(&self) -> String {
        if self.sentinels.is_empty() {
            // A silent server is waited for as long as this in some cases.
            return tenure_testkit::patient(&format!("{}{}", self.proxy.url(), self.parameters), "600ms");
        }
        let hosts: Vec<String> = self.sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        format!("redis+sentinel://{}/mymaster", hosts.join(","))
    }
}

#[async_trait]
impl Subject for Redis {
    async fn store(&self) -> Arc<dyn Store> {
        Options::parse(&self.url()).unwrap().open().await.unwrap()
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&format!("{}{}", self.server.url(), self.parameters)))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        if self.parameters.contains("getset") && matches!(what, Plant::Value(..)) {
            return Err(NotApplicable("a value that is no point in time is no lock here"));
        }
        let key = format!("{}{name}", self.before);
        plant(&self.server, key.as_bytes(), what, self.parameters);
        if let Some(behind) = key.strip_prefix("rueidislock:0:") {
            // A majority of three.
            plant(&self.server, format!("rueidislock:1:{behind}").as_bytes(), what, self.parameters);
        }
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    fn semaphores_stay(&self) -> bool {
        self.parameters.contains("redisson")
    }

    fn exceptions(&self) -> Vec<&'static str> {
        self.exceptions.clone()
    }
}

/// Does to a key what a client of another library would, whose scheme is in the parameters of a URL.
pub(crate) fn plant(server: &RedisServer, key: &[u8], what: &Plant, parameters: &str) {
    let of_redisson = parameters.contains("redisson");
    let reply = match what {
        Plant::Value(owner, ttl) if of_redisson => {
            // An owner, and how often it holds.
            let reply = server.command(&[&b"HSET"[..], key, owner, b"1"]);
            if let Some(ttl) = ttl {
                assert_eq!(server.command(&[&b"PEXPIRE"[..], key, ttl.as_millis().to_string().as_bytes()]), 1);
            }
            reply
        }
        Plant::OtherType if of_redisson => server.command(&[&b"RPUSH"[..], key, b"1"]),
        Plant::Value(value, None) => server.command(&[&b"SET"[..], key, value]),
        Plant::Value(value, Some(ttl)) => {
            server.command(&[&b"SET"[..], key, value, b"PX", ttl.as_millis().to_string().as_bytes()])
        }
        Plant::OtherType => server.command(&[&b"HSET"[..], key, b"field", b"1"]),
        Plant::Nothing => server.command(&[&b"DEL"[..], key]),
    };
    assert!(reply == "OK" || reply == 1, "{reply:?}");
}
