//! A master that is killed: what its replicas have, and what a failover forgets.

use std::time::Duration;

use tenure_testkit::RedisServer;
use tenure_testkit::worker::Terms;

use crate::scenarios::actor::Claim;
use crate::scenarios::stage::{DOOR, Stage, now, terms};

/// Time until a replica is the master, on a machine that has other work.
pub(super) const FAILOVER: Duration = Duration::from_secs(15);

/// Long enough for a lease to outlive a failover without a renewal.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// The master is killed, as a fault.
pub(super) fn killed(master: &RedisServer) -> &'static str {
    master.kill();
    "the master is killed"
}

/// Stops the replicas, so that they do not get what the master is about to grant.
pub(super) fn cut_off(master: &RedisServer, replicas: &[&RedisServer]) {
    for replica in replicas {
        replica.stop();
    }
    // Else their kernels have the writes, and they read them when they go on.
    master.cli("CLIENT KILL TYPE replica");
}

/// The replicas do not have the grant when the master is killed. Returns the second holder.
pub(super) fn forgets(stage: &mut Stage<'_>, master: &RedisServer, replicas: &[&RedisServer]) -> Claim {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    stage.warms_up(&b);
    cut_off(master, replicas);
    let first = a.asks(DOOR, Terms::new(LONG));
    first.granted();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    let since = now();
    stage.fault(killed(master));
    for replica in replicas {
        replica.cont();
    }
    stage.grant_due_since(since, FAILOVER);
    stage.loss_due_since(since, FAILOVER + LONG / 3);
    let granted = second.granted();
    second.works(&stage.register);
    stage.is_stale(&first, granted);
    first.lost();
    second
}

/// The replicas have the grant when the master leaves. Nothing is lost, and the holder goes on at one of them.
pub(super) fn keeps(
    stage: &mut Stage<'_>,
    replicated: impl FnOnce(),
    leave: impl FnOnce() -> &'static str,
    taken_over: impl FnOnce(),
) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, Terms::new(LONG));
    first.granted();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    replicated();
    stage.fault(leave());
    taken_over();
    first.renewed(now());
    stage.ends_well(&first, &second);
}
