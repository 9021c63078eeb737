//! A quorum of real servers: conformance, and what no single server can show.

use std::sync::Arc;

use async_trait::async_trait;
use tenure::Name;
use tenure::store::Store;
use tenure_conformance::exceptions::{NO_QUEUE, ONE_BY_ONE};
use tenure_conformance::{NotApplicable, Plant, Process, Subject};
use tenure_redis::Options;
use tenure_testkit::{Program, Proxy, RedisServer, Worker};

/// Servers behind proxies, which vote from the start.
pub(crate) struct Servers {
    servers: Vec<(RedisServer, Proxy)>,
}

impl Servers {
    pub(crate) fn start(nodes: usize) -> Self {
        let start = |_| {
            let server = RedisServer::start();
            let proxy = Proxy::start(server.addr());
            (server, proxy)
        };
        let all = Self { servers: (0..nodes).map(start).collect() };
        let admit = async || Options::parse(&all.url()).unwrap().quorum().await.unwrap().admit().await.unwrap();
        // The test itself may run in a runtime.
        let alone = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(admit());
        std::thread::scope(|scope| scope.spawn(alone).join().unwrap());
        all
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|(_, proxy)| proxy.url().replace("redis://", "")).collect();
        format!("quorum+redis://{}", hosts.join(","))
    }
}

#[async_trait]
impl Subject for Servers {
    async fn store(&self) -> Arc<dyn Store> {
        Options::parse(&self.url()).unwrap().open().await.unwrap()
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&self.url()))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        for (server, _) in &self.servers {
            let name = name.as_str().as_bytes();
            let reply = match what {
                Plant::Value(value, None) => server.command(&[&b"SET"[..], name, value]),
                Plant::Value(value, Some(ttl)) => {
                    server.command(&[&b"SET"[..], name, value, b"PX", ttl.as_millis().to_string().as_bytes()])
                }
                Plant::OtherType => server.command(&[&b"HSET"[..], name, b"field", b"1"]),
                Plant::Nothing => server.command(&[&b"DEL"[..], name]),
            };
            assert!(reply == "OK" || reply == 1, "{reply:?}");
        }
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        for (_, proxy) in &self.servers {
            if silent { proxy.black_hole() } else { proxy.heal() }
        }
        Ok(())
    }

    fn exceptions(&self) -> Vec<&'static str> {
        [NO_QUEUE, ONE_BY_ONE].concat()
    }
}

fn subject() -> Servers {
    // Enough for the semaphores of the cases.
    Servers::start(7)
}

tenure_conformance::conformance!(subject);
