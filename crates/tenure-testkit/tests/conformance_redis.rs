//! Conformance of the Redis store, in its native layout, on a real server behind a proxy that can fall silent.

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

/// What this store does not keep yet.
const NOT_YET: &[&str] = &[
    "readers_hold_together_and_a_writer_alone",
    "permits_add_up_and_never_to_more",
    "a_stream_of_readers_does_not_starve_a_writer",
    "a_downgrade_lets_readers_in",
    "a_smaller_share_cannot_grow",
    "a_dead_reader_ends_at_its_own_time",
    "a_crashed_permit_returns",
    "two_kinds_at_a_name_are_a_mismatch",
    "fences_rise_over_exclusive_grants",
    "many_shares_of_a_name_are_renewed_in_one_batch",
    "a_lingering_share_is_nobodys_share",
    "a_share_is_adopted",
    "every_holder_of_a_name_is_listed",
    "a_share_is_given_up_once",
    "waiters_are_served_in_the_order_they_joined",
    "a_try_neither_queues_nor_overtakes",
    "a_given_value_never_queues",
    "a_heartbeat_keeps_a_place",
    "a_place_without_heartbeat_lapses",
    "a_heartbeat_never_makes_a_place",
    "a_released_place_is_used_up",
    "a_served_waiter_that_never_comes_costs_its_claim",
    "dead_heads_in_a_row_are_passed",
    "a_served_waiter_finds_itself_granted",
    "a_hand_over_is_pushed_to_the_one_that_is_served",
    "a_dead_holder_is_followed_by_the_first_live_waiter",
    "a_repeated_join_is_one_place",
    "readers_at_the_head_are_served_together",
    "waiters_are_counted_and_the_holder_is_told",
    "an_adoption_leaves_the_queue_as_it_is",
];

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

    fn exceptions(&self) -> &'static [&'static str] {
        NOT_YET
    }
}

fn subject() -> Redis {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    Redis { server, proxy }
}

tenure_testkit::conformance!(subject);
