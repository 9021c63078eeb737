//! Every broken lock: which lock, what is done to it, and what must come of it.

use tenure_testkit::history::Rule::{FalseLoss, FenceOrder, Leak, NotGranted, Overlap, Overtaken, RefusedHolder, StaleWrite};

use super::case::{Case, Faults};
use super::program::{Client, Scheme};
use super::schemes::{NOT_MINE, TTL, counted, getset, memcached, php, redisson, row, setnx, shared, token, waiting, zookeeper};
use super::world::World;

/// Nobody has adopted a key without expiry, nor written over one that it took to be gone.
fn nobody_adopted(world: &World) -> bool {
    world.clients.iter().all(|client| client.seen != php::ADOPTED && client.seen != php::GONE)
}

/// The first was killed, and all who hold have adopted the key that it left.
fn all_adopted(world: &World) -> bool {
    let holds_otherwise = |client: &Client| client.is_valid(world.now) && client.seen != php::ADOPTED;
    world.clients[0].died.is_some() && !world.clients.iter().any(holds_otherwise)
}

/// A client that holds wrote over a key that it took to be gone.
fn overwrote(world: &World) -> bool {
    world.clients.iter().any(|client| client.is_valid(world.now) && client.seen == php::GONE)
}

/// The first was killed, and one of the others found another's value when it came to give up its
/// own.
fn was_overwritten(world: &World) -> bool {
    world.clients[0].died.is_some() && world.clients.iter().any(|client| client.seen == NOT_MINE)
}

/// Two were woken, and one of them holds.
fn two_were_woken(world: &World) -> bool {
    let woken = &world.clients[1..];
    woken.iter().all(|client| client.seen == waiting::LISTENED) && woken.iter().any(|client| client.is_valid(world.now))
}

/// The second had waited for the name, and the first, who was stopped, goes on.
fn waited_for_one_who_goes_on(world: &World) -> bool {
    world.clients[1].seen == zookeeper::WAITED && !world.clients[0].stopped
}

/// Every broken lock, which must be caught.
pub fn broken_locks() -> Vec<Case> {
    [plain(), timestamps(), adoption(), tokens(), data(), kinds(), of_redisson(), engines()].into_iter().flatten().collect()
}

/// Locks in which nothing is to be found: they show that the search does not cry wolf.
pub fn controls() -> Vec<Case> {
    let rules = [Overlap, FenceOrder, Leak, Overtaken, NotGranted, FalseLoss, RefusedHolder];
    let faults = "a crash, a lost reply, a lost command and a slow one";
    vec![
        Case::new("A6/careful", faults, token::CAREFUL, Overlap).faults(Faults::EACH).clients(2).within(5).holds(&rules, &[]),
        Case::new("A8/one-connection", "clients that are slow", token::WATCH, Overlap).within(5).holds(&rules, &[]),
        renews("redisson/two-entries", "a writer reads as well, and works on", redisson::WRITE_WATCHED).holds(&rules, &[]),
        Case::new("redisson/fixed-lease", "the work takes longer than the lease", redisson::FIXED_LEASE, Leak).holds(&rules, &[]),
        Case::new("B4/fenced", "the holder is stopped for longer than its session lasts", zookeeper::FENCED, StaleWrite)
            .clients(2)
            .faults(Faults::STOP)
            .holds(&[StaleWrite, FenceOrder, RefusedHolder, Overtaken, Leak], &[]),
    ]
}

#[rustfmt::skip]
fn plain() -> Vec<Case> {
    let (new, past) = (Case::new, "released after its lease");
    vec![
        new("A1/crash", "killed between the two commands", setnx::SETNX_EXPIRE, Leak).faults(Faults::CRASH),
        new("A1/late-release", past, setnx::SETNX_EXPIRE, Overlap),
        new("A2/late-release", past, setnx::SCRIPT, Overlap),
        new("A5/late-release", past, setnx::SET_NX, Overlap),
        new("rslock/drop", "the guard is dropped", setnx::DROP_DOES_NOTHING, Leak),
        new("rslock/error-is-busy", "a reply is lost", setnx::ERROR_IS_BUSY, Leak).faults(Faults::LOST_REPLY),
        new("A1/rounded-ttl", "a ttl below a second rounds to 0", setnx::ROUNDED_TO_ZERO, Overlap).within(0),
    ]
}

#[rustfmt::skip]
fn timestamps() -> Vec<Case> {
    let new = Case::new;
    vec![
        new("A4/fast-host", "one host's clock is ahead", getset::GETSET, Overlap).skews([0, 3, 0]).clients(2).within(0),
        new("A4/slow-host", "one host's clock is behind", getset::GETSET, Overlap).skews([0, -3, 0]).clients(2).within(0),
        new("A4/losers-overwrite", "two find it expired, and the loser overwrites the winner's value", getset::GETSET_COMPARED, Leak)
            .faults(Faults::CRASH).also(was_overwritten).within(2 * TTL + 1),
        new("A4/getset-finds-nothing", "released between GET and GETSET", getset::GETSET, Leak),
        new("A4/late-release", "paused between its look at the clock and DEL", getset::GETSET, Overlap).faults(Faults::SLOW),
        new("A4/two-step-release", "the lease ends between GET and DEL", getset::GETSET_COMPARED, Overlap),
        new("A4/equal-milliseconds", "two take it in one millisecond, and a release is sent twice", getset::GETSET_AGAIN, Overlap)
            .faults(Faults::LOST_REPLY).within(0),
        new("A4/forgetful", "released by one who won by SETNX", getset::FORGETFUL, Leak).within(0),
        new("A4d/del-setnx", "two find it expired", getset::DEL_SETNX, Overlap),
        new("cronlock/late-write", "the job outlasts its lease", getset::STAMPS_AT_THE_END, Overlap),
    ]
}

#[rustfmt::skip]
fn adoption() -> Vec<Case> {
    let new = Case::new;
    vec![
        new("A3/adopts-from-the-living", "a taker looks between SETNX and EXPIRE", php::PHP, Overlap).within(0),
        new("A3/two-adopt", "killed between SETNX and EXPIRE, and two takers look", php::PHP, Overlap)
            .faults(Faults::CRASH).also(all_adopted).within(0),
        new("A3/overwrites", "released between SETNX and TTL, and a third takes it", php::PHP, Overlap).also(overwrote),
        new("A3/two-step-release", "the lease ends between GET and DEL", php::PHP, Overlap).also(nobody_adopted),
        new("A3/two-step-renewal", "the lease ends between GET and EXPIRE", php::PROLONGED, Overlap)
            .clients(2).also(nobody_adopted),
        new("A3/equal-values", "two began to wait at one moment", php::MENDED_RELEASE, Overlap).also(nobody_adopted),
    ]
}

#[rustfmt::skip]
fn tokens() -> Vec<Case> {
    let (new, late) = (Case::new, "paused beyond its lease");
    vec![
        new("A6/two-step-release", "the lease ends between GET and DEL", token::TWO_STEPS, Overlap),
        new("A6/repeating-token", "two processes share address and thread number", token::REPEATING, Overlap),
        new("A6/long-work", "the work takes longer than the lease", token::LONG_WORK, Overlap).clients(2),
        new("A8/pooled-acquire", "WATCH and EXEC of SET get different connections", token::POOLED_ACQUIRE, Overlap).within(0),
        new("A8/pooled-release", "WATCH and EXEC of DEL get different connections", token::POOLED_RELEASE, Overlap),
        new("clock/from-the-reply", "a slow reply", token::FROM_THE_REPLY, Overlap).clients(2).faults(Faults::SLOW),
        new("clock/sleeps", "the machine sleeps, and the holder's clock with it", token::TOKEN, Overlap)
            .clients(2).faults(Faults { sleeps: 1, ..Faults::NONE }),
        new("kubernetes/released-too-early", "released", token::WORKS_ON, Overlap).clients(2).within(0),
        new("A7/no-slack", "two do something at one moment", token::NO_SLACK, Overlap)
            .clients(2).with(|setting| setting.punctual = Some(TTL)),
        new("A7/blind-expire", late, token::BLIND_EXPIRE, Overlap).clients(2),
        new("A7/set-xx", late, token::SET_XX, Overlap).clients(2),
        new("A7/late-renewal", "a renewal arrives after the release", token::SET_AGAIN, Leak).faults(Faults::SLOW),
        new("redisson/errors-are-logged", "renewals do not get through", token::ERRORS_ARE_LOGGED, Overlap)
            .clients(2).with(|setting| setting.punctual = Some(1)).faults(Faults { lost_requests: 2, ..Faults::NONE }),
        new("medallion/fault-is-loss", "one reply is lost", token::FAULT_IS_LOSS, FalseLoss).faults(Faults::LOST_REPLY),
    ]
}

#[rustfmt::skip]
fn data() -> Vec<Case> {
    let new = |id, what, scheme, rule| Case::new(id, what, scheme, rule).clients(2);
    let failover = "a replica takes over that has not the write";
    vec![
        new("A6/data-lost", "the server is killed, and had no persistence", token::TOKEN, Overlap).faults(Faults::FLUSH),
        new("A6/clock-jump", "the server's clock jumps forward", token::TOKEN, Overlap).faults(Faults { jump: 3, ..Faults::NONE }),
        new("C1/failover", failover, token::TOKEN, Overlap).faults(Faults::FAILOVER),
        new("C1/wait-elsewhere", failover, token::WAIT_ELSEWHERE, Overlap).faults(Faults::FAILOVER),
        new("fence/incr", "the server loses its data", counted::INCR_FENCE, FenceOrder).faults(Faults::FLUSH),
        new("fence/equality", "a second holder comes", counted::EQUAL_FENCE, RefusedHolder),
        new("fence/unordered", "a second holder comes", counted::UNORDERED_FENCE, FenceOrder),
    ]
}

#[rustfmt::skip]
fn kinds() -> Vec<Case> {
    let new = Case::new;
    let herd = "released, and the message wakes all who wait";
    vec![
        new("redis-semaphore/client-clock", "one host's clock is ahead", shared::CLIENT_CLOCK, Overlap)
            .with(|setting| setting.capacity = u32::from(shared::PERMITS)).skews([0, 0, 3]).within(0),
        new("medallion/one-ttl-for-readers", "a reader is killed, another renews", shared::ONE_TTL, Leak)
            .with(|setting| (setting.capacity, setting.weights) = (8, [1, 1, 8])).clients(2).faults(Faults::CRASH),
        new("reentrant/counts-are-repeated", "a reply is lost, and the command sent again", counted::REENTRANT, Overlap)
            .clients(2).faults(Faults::LOST_REPLY),
        new("semaphore/no-leases", "one that is in is killed", shared::COUNTER, Leak)
            .with(|setting| setting.capacity = u32::from(shared::PERMITS)).faults(Faults::CRASH),
        new("waiting/messages-only", "released between the look and the subscription", waiting::MESSAGES_ONLY, NotGranted)
            .clients(2).within(0),
        new("waiting/expiry", "the holder is killed, and a lease that ends tells nobody", waiting::SUBSCRIBED, NotGranted)
            .clients(2).faults(Faults::CRASH),
        new("waiting/lost-message", "the subscription is lost, and then released", waiting::SUBSCRIBED, NotGranted)
            .clients(2).faults(Faults { deaf: 1, ..Faults::NONE }).within(0),
        new("waiting/newcomer", "released, and a third comes before the message", waiting::SUBSCRIBED, Overtaken).within(0),
        new("waiting/herd", herd, waiting::SUBSCRIBED, Overtaken).also(two_were_woken).within(0),
        new("row/application-clock", "one host's clock is ahead", row::ROW, Overlap).clients(2).skews([0, 3, 0]),
        new("row/frozen-now", "a transaction waits between its first command and its write", row::FROZEN_NOW, Overlap).clients(2),
        new("row/no-look", "a second holder comes", row::NO_LOOK, Overlap).clients(2),
        new("row/rows-uncounted", "two read the same version", row::ROWS_UNCOUNTED, Overlap).clients(2),
    ]
}

/// Nobody is slow, and nobody looks at a clock: renewals come in time.
fn renews(id: &'static str, what: &'static str, scheme: Scheme) -> Case {
    Case::new(id, what, scheme, Overlap).clients(2).with(|setting| (setting.prompt, setting.punctual) = (true, Some(1)))
}

#[rustfmt::skip]
fn of_redisson() -> Vec<Case> {
    let new = Case::new;
    vec![
        new("redisson/fair-clock", "one host's clock is ahead", waiting::FAIR, Overtaken).skews([0, 0, 2 * TTL + 1]).within(0),
        new("redisson/lease-ignored", "the lease ends, and its caller has not released it", redisson::FENCED_LEASE, Leak).clients(2),
        new("redisson/permits-lost", "one that has a permit is killed", redisson::SEMAPHORE, Leak)
            .with(|setting| setting.capacity = u32::from(shared::PERMITS)).faults(Faults::CRASH),
        renews("redisson/writer-unwatched", "a writer reads as well, and works on", redisson::WRITE),
    ]
}

#[rustfmt::skip]
fn engines() -> Vec<Case> {
    let new = |id, what, scheme, rule| Case::new(id, what, scheme, rule).clients(2);
    let stopped = "the holder is stopped for longer than its session lasts";
    vec![
        new("B1/evicted", "the server is full of other items, and evicts the lock", memcached::ADD, Overlap)
            .faults(Faults::EVICTION).within(0),
        new("B1/restarted", "the server is killed, and starts again empty", memcached::ADD, Overlap).faults(Faults::FLUSH).within(0),
        new("B1/two-step-release", "the lease ends between get and delete", memcached::ADD, Overlap).clients(3),
        new("B2/evicted", "the server is full of other items, and evicts the lock", memcached::CAS, Overlap)
            .faults(Faults::EVICTION).within(0),
        new("B2/application-clock", "one host's clock is ahead", memcached::CAS, Overlap).skews([0, 3, 0]).within(0),
        new("B4/session-expired", stopped, zookeeper::SEQUENTIAL, Overlap).faults(Faults::STOP).also(waited_for_one_who_goes_on),
        new("B4/stale-write", stopped, zookeeper::UNCOMPARED, StaleWrite).faults(Faults::STOP).also(waited_for_one_who_goes_on),
    ]
}
