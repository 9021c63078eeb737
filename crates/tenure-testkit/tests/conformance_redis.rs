//! Conformance of the Redis store, in its native layout, on a real server behind a proxy that can fall silent; with functions and,
//! where the user may not load any, with scripts alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::{Name, Store};
use tenure_redis::Options;
use tenure_testkit::conformance::{NotApplicable, Plant, Subject};
use tenure_testkit::{Proxy, RedisServer};

struct Redis {
    server: RedisServer,
    proxy: Proxy,
}

#[async_trait]
impl Subject for Redis {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(Options::parse(&self.proxy.url()).unwrap().connect().await.unwrap())
    }

    fn worker(&self) -> Result<Command, NotApplicable> {
        let mut worker = Command::new(env!("CARGO_BIN_EXE_tenure-worker"));
        worker.arg(self.server.url());
        Ok(worker)
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        let name = name.as_str().as_bytes();
        let reply = match what {
            Plant::Value(value, None) => self.server.command(&[&b"SET"[..], name, value]),
            Plant::Value(value, Some(ttl)) => {
                self.server.command(&[&b"SET"[..], name, value, b"PX", ttl.as_millis().to_string().as_bytes()])
            }
            Plant::OtherType => self.server.command(&[&b"HSET"[..], name, b"field", b"1"]),
            Plant::Nothing => self.server.command(&[&b"DEL"[..], name]),
        };
        assert!(reply == "OK" || reply == 1, "{reply:?}");
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }
}

fn subject() -> Redis {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    Redis { server, proxy }
}

tenure_testkit::conformance!(subject);

mod by_script {
    use super::*;

    fn subject() -> Redis {
        let subject = super::subject();
        subject.server.cli("ACL SETUSER default -function");
        subject
    }

    tenure_testkit::conformance!(subject);
}
