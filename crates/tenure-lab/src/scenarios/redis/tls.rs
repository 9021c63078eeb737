//! Certificates, and ports that do not speak as the client does. A client that is not let in gets an
//! error at once, without the password.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure_testkit::{Certificates, RedisServer};

use crate::Item;
use crate::item::Run;
use crate::scenarios::fixtures::{Redis, play_on_redis};
use crate::scenarios::holds;
use crate::scenarios::scheme::NATIVE;
use crate::scenarios::stage::{DOOR, OPENING, Stage, now, terms};

pub(super) fn items() -> Vec<Item> {
    let (right, expired) = (Certificates::generate, Certificates::generate_expired);
    vec![
        holds("redis/34-tls", "TLS by an authority that is known to one client and not to another", over_tls(right, trusted)),
        holds("redis/34-certificate-expired", "the server's certificate has expired", over_tls(expired, too_old)),
        holds("redis/34-wrong-port", "a client without TLS on a port with it, and the other way round", over_tls(right, crossed)),
    ]
}

/// A server that also speaks TLS, and an authority that is not its own.
struct Tls<'a> {
    redis: &'a Redis,
    ours: &'a Certificates,
    others: &'a Certificates,
}

impl Tls<'_> {
    /// For a client that knows this authority.
    fn url(&self, known: &Certificates) -> String {
        format!("{}?timeout=250ms&ca={}", self.redis.server.tls_url(), known.ca().display())
    }
}

type Row = fn(&mut Stage<'_>, &Tls<'_>);

const SECRET: &str = "hunter2";
/// A process that opens its first connection over TLS, on a machine that has other work.
const HANDSHAKE: Duration = Duration::from_millis(750);

fn over_tls(made: fn(&std::path::Path) -> Certificates, row: Row) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let [dir, other] = [TempDir::new(), TempDir::new()].map(|dir| dir.expect("a temporary directory can be made"));
            let (ours, others) = (made(dir.path()), Certificates::generate(other.path()));
            let how = RedisServer::builder().tls(&ours).password(SECRET);
            play_on_redis(lab, &id, seed, Redis::start(how, NATIVE), |stage, redis| {
                row(stage, &Tls { redis, ours: &ours, others: &others });
            })
        })
    }
}

fn is_turned_away(stage: &mut Stage<'_>, url: &str, within: Duration, word: &str) {
    let told = stage.turns_away(url, within, "Unreachable");
    stage.holds_true(told.contains(word), &told);
    stage.holds_true(!told.contains(SECRET), &told);
}

fn trusted(stage: &mut Stage<'_>, tls: &Tls<'_>) {
    let (a, b) = (stage.actor(&tls.url(tls.ours)), stage.far());
    let first = a.takes(DOOR);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    is_turned_away(stage, &tls.url(tls.others), HANDSHAKE, "name the authority that signed the server's certificate");
    first.renewed(now());
    stage.ends_well(&first, &second);
}

/// Those who come without TLS are not concerned.
fn too_old(stage: &mut Stage<'_>, tls: &Tls<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    is_turned_away(stage, &tls.url(tls.ours), HANDSHAKE, "expired");
    first.renewed(now());
    stage.ends_well(&first, &second);
}

fn crossed(stage: &mut Stage<'_>, tls: &Tls<'_>) {
    let (a, b) = (stage.actor(&tls.url(tls.ours)), stage.far());
    let first = a.takes(DOOR);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    let server = &tls.redis.server;
    let without = server.tls_url().replace("rediss://", "redis://");
    is_turned_away(stage, &without, HANDSHAKE, "TLS");
    // A server without TLS waits for the end of what it takes for a command.
    let with = server.url().replace("redis://", "rediss://");
    is_turned_away(stage, &with, OPENING, "TLS");
    first.renewed(now());
    stage.ends_well(&first, &second);
}
