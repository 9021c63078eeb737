//! Every specimen: which lock, what is done to it, and what must come of it.

use tenure_testkit::history::Rule;

use super::program::{Client, Scheme, Tick};
use super::schemes::{NOT_MINE, TTL, counted, getset, php, row, setnx, shared, token, waiting};
use super::setting::{Faults, Setting};
use super::world::World;

/// A lock as others write it, in surroundings that break it.
#[derive(Clone, Debug)]
pub struct Specimen {
    /// `scheme/fault`.
    pub id: &'static str,
    /// What breaks it, in words.
    pub fault: &'static str,
    /// What must be found; nothing, for the one that must hold.
    pub breaks: Option<Rule>,
    /// The surroundings.
    pub setting: Setting,
}

impl Specimen {
    const fn new(id: &'static str, fault: &'static str, scheme: Scheme, breaks: Rule) -> Self {
        Self { id, fault, breaks: Some(breaks), setting: Setting::new(scheme) }
    }

    fn with(mut self, change: impl FnOnce(&mut Setting)) -> Self {
        change(&mut self.setting);
        self
    }

    fn faults(self, faults: Faults) -> Self {
        self.with(|setting| setting.faults = faults)
    }

    fn clients(self, clients: u8) -> Self {
        self.with(|setting| setting.clients = clients)
    }

    fn within(self, horizon: Tick) -> Self {
        self.with(|setting| setting.horizon = horizon)
    }

    fn also(self, also: fn(&World) -> bool) -> Self {
        self.with(|setting| setting.also = also)
    }
}

/// Nobody has adopted a key without expiry, nor written over one that it took to be gone.
fn nobody_adopted(world: &World) -> bool {
    world.clients.iter().all(|client| client.seen != php::ADOPTED && client.seen != php::GONE)
}

/// The first was killed, and everybody who holds has adopted the key that it left.
fn all_adopted(world: &World) -> bool {
    let holds_otherwise = |client: &Client| client.believes(world.now) && client.seen != php::ADOPTED;
    world.clients[0].died.is_some() && !world.clients.iter().any(holds_otherwise)
}

/// Somebody who holds wrote over a key that he took to be gone.
fn overwrote(world: &World) -> bool {
    world.clients.iter().any(|client| client.believes(world.now) && client.seen == php::GONE)
}

/// The first was killed, and one of the others found another's value when it came to give up its own.
fn was_overwritten(world: &World) -> bool {
    world.clients[0].died.is_some() && world.clients.iter().any(|client| client.seen == NOT_MINE)
}

/// Two were woken, and one of them holds.
fn two_were_woken(world: &World) -> bool {
    let woken = &world.clients[1..];
    woken.iter().all(|client| client.seen == waiting::LISTENED) && woken.iter().any(|client| client.believes(world.now))
}

const CRASH: Faults = Faults { crashes: 1, ..Faults::NONE };
const LOST_REPLY: Faults = Faults { lost_replies: 1, ..Faults::NONE };
const FLUSH: Faults = Faults { flushes: 1, ..Faults::NONE };
const SLOW: Faults = Faults { slow: 1, ..Faults::NONE };

/// Every specimen that must be caught.
pub fn specimens() -> Vec<Specimen> {
    let all = [plain(), timestamps(), adoption(), tokens(), renewals(), data(), kinds(), queues(), rows()];
    all.into_iter().flatten().collect()
}

/// Locks in which nothing is to be found: they show that the search does not cry wolf.
pub fn controls() -> Vec<Specimen> {
    let faults = Faults { crashes: 1, lost_replies: 1, lost_requests: 1, slow: 1, ..Faults::NONE };
    let new = |id, fault, scheme| Specimen { breaks: None, ..Specimen::new(id, fault, scheme, Rule::Overlap) };
    vec![
        new("A6/careful", "a crash, a lost reply, a lost command and a slow one", token::CAREFUL)
            .faults(faults)
            .clients(2)
            .within(5),
        new("A8/one-connection", "clients that are slow", token::WATCH).clients(3).within(5),
    ]
}

fn plain() -> Vec<Specimen> {
    let new = Specimen::new;
    let past = "released after its lease";
    vec![
        new("A1/crash", "killed between the two commands", setnx::SETNX_EXPIRE, Rule::Leak).faults(CRASH),
        new("A1/late-release", past, setnx::SETNX_EXPIRE, Rule::Overlap),
        new("A2/late-release", past, setnx::SCRIPT, Rule::Overlap),
        new("A5/late-release", past, setnx::SET_NX, Rule::Overlap),
        new("rslock/drop", "the guard is dropped", setnx::DROP_DOES_NOTHING, Rule::Leak),
        new("rslock/error-is-busy", "a reply is lost", setnx::ERROR_IS_BUSY, Rule::Leak).faults(LOST_REPLY),
        new("A1/rounded-ttl", "a ttl below a second rounds to 0", setnx::ROUNDED_TO_ZERO, Rule::Overlap).within(0),
    ]
}

fn timestamps() -> Vec<Specimen> {
    let new = Specimen::new;
    let skewed = |by: Tick| move |setting: &mut Setting| (setting.skews, setting.clients) = ([0, by, 0], 2);
    vec![
        new("A4/fast-host", "one host's clock is ahead", getset::GETSET, Rule::Overlap).with(skewed(3)).within(0),
        new("A4/slow-host", "one host's clock is behind", getset::GETSET, Rule::Overlap).with(skewed(-3)).within(0),
        new(
            "A4/losers-overwrite",
            "two find it expired, and the loser overwrites the winner's value",
            getset::GETSET_COMPARED,
            Rule::Leak,
        )
        .faults(CRASH)
        .also(was_overwritten)
        .within(2 * TTL + 1),
        new("A4/getset-finds-nothing", "released between GET and GETSET", getset::GETSET, Rule::Leak),
        new("A4/late-release", "paused between its look at the clock and DEL", getset::GETSET, Rule::Overlap).faults(SLOW),
        new("A4/two-step-release", "the lease ends between GET and DEL", getset::GETSET_COMPARED, Rule::Overlap),
        new(
            "A4/equal-milliseconds",
            "two take it in one millisecond, and a release is sent twice",
            getset::GETSET_AGAIN,
            Rule::Overlap,
        )
        .faults(LOST_REPLY)
        .within(0),
        new("A4/forgetful", "released by one who won by SETNX", getset::FORGETFUL, Rule::Leak).within(0),
        new("A4d/del-setnx", "two find it expired", getset::DEL_SETNX, Rule::Overlap),
        new("cronlock/stamp", "the job outlasts its lease", getset::STAMPS_AT_THE_END, Rule::Overlap),
    ]
}

fn adoption() -> Vec<Specimen> {
    let new = Specimen::new;
    vec![
        new("A3/adopts-from-the-living", "a taker looks between SETNX and EXPIRE", php::PHP, Rule::Overlap).within(0),
        new("A3/two-adopt", "killed between SETNX and EXPIRE, and two takers look", php::PHP, Rule::Overlap)
            .faults(CRASH)
            .also(all_adopted)
            .within(0),
        new("A3/overwrites", "released between SETNX and TTL, and a third takes it", php::PHP, Rule::Overlap).also(overwrote),
        new("A3/two-step-release", "the lease ends between GET and DEL", php::PHP, Rule::Overlap).also(nobody_adopted),
        new("A3/two-step-renewal", "the lease ends between GET and EXPIRE", php::PROLONGED, Rule::Overlap)
            .clients(2)
            .also(nobody_adopted),
        new("A3/equal-values", "two began to wait at one moment", php::MENDED_RELEASE, Rule::Overlap).also(nobody_adopted),
    ]
}

fn tokens() -> Vec<Specimen> {
    let new = Specimen::new;
    vec![
        new("A6/two-step-release", "the lease ends between GET and DEL", token::TWO_STEPS, Rule::Overlap),
        new("A6/repeating-token", "two processes share address and thread number", token::REPEATING, Rule::Overlap),
        new("A6/long-work", "the work takes longer than the lease", token::LONG_WORK, Rule::Overlap).clients(2),
        new("A8/pooled-acquire", "WATCH and EXEC of SET get different connections", token::POOLED_ACQUIRE, Rule::Overlap)
            .within(0),
        new("A8/pooled-release", "WATCH and EXEC of DEL get different connections", token::POOLED_RELEASE, Rule::Overlap),
        new("clock/from-the-reply", "a slow reply", token::FROM_THE_REPLY, Rule::Overlap).clients(2).faults(SLOW),
        new("clock/sleeps", "the machine sleeps, and the holder's clock with it", token::TOKEN, Rule::Overlap)
            .clients(2)
            .faults(Faults { sleeps: 1, ..Faults::NONE }),
        new("kubernetes/released-too-early", "released", token::WORKS_ON, Rule::Overlap).clients(2).within(0),
    ]
}

fn renewals() -> Vec<Specimen> {
    let new = Specimen::new;
    let late = "paused beyond its lease";
    vec![
        new("A7/no-slack", "two do something at one moment", token::NO_SLACK, Rule::Overlap)
            .clients(2)
            .with(|setting| setting.punctual = Some(TTL)),
        new("A7/blind-expire", late, token::BLIND_EXPIRE, Rule::Overlap).clients(2),
        new("A7/set-xx", late, token::SET_XX, Rule::Overlap).clients(2),
        new("A7/late-renewal", "a renewal arrives after the release", token::SET_AGAIN, Rule::Leak).faults(SLOW),
        new("redisson/errors-are-logged", "renewals do not get through", token::ERRORS_ARE_LOGGED, Rule::Overlap)
            .clients(2)
            .with(|setting| setting.punctual = Some(1))
            .faults(Faults { lost_requests: 2, ..Faults::NONE }),
        new("medallion/fault-is-loss", "one reply is lost", token::FAULT_IS_LOSS, Rule::FalseLoss).faults(LOST_REPLY),
    ]
}

fn data() -> Vec<Specimen> {
    let new = |id, fault, scheme, rule| Specimen::new(id, fault, scheme, rule).clients(2);
    let failover = Faults { failovers: 1, ..Faults::NONE };
    vec![
        new("A6/data-lost", "the server is killed, and had no persistence", token::TOKEN, Rule::Overlap).faults(FLUSH),
        new("A6/clock-jump", "the server's clock jumps forward", token::TOKEN, Rule::Overlap)
            .faults(Faults { jump: 3, ..Faults::NONE }),
        new("C1/failover", "a replica takes over that has not the write", token::TOKEN, Rule::Overlap).faults(failover),
        new("C1/wait-elsewhere", "a replica takes over that has not the write", token::WAIT_ELSEWHERE, Rule::Overlap)
            .faults(failover),
        new("fence/incr", "the server loses its data", counted::INCR_FENCE, Rule::FenceOrder).faults(FLUSH),
        new("fence/equality", "a second holder comes", counted::EQUAL_FENCE, Rule::RefusedHolder),
        new("fence/unordered", "a second holder comes", counted::UNORDERED_FENCE, Rule::FenceOrder),
    ]
}

fn kinds() -> Vec<Specimen> {
    let new = Specimen::new;
    vec![
        new("redis-semaphore/client-clock", "one host's clock is ahead", shared::CLIENT_CLOCK, Rule::Overlap)
            .with(|setting| (setting.capacity, setting.skews) = (u32::from(shared::PERMITS), [0, 0, 3]))
            .within(0),
        new("medallion/one-ttl-for-readers", "a reader is killed, another renews", shared::ONE_TTL, Rule::Leak)
            .with(|setting| (setting.capacity, setting.weights) = (8, [1, 1, 8]))
            .clients(2)
            .faults(CRASH),
        new("reentrant/counts-are-repeated", "a reply is lost, and the command sent again", counted::REENTRANT, Rule::Overlap)
            .clients(2)
            .faults(LOST_REPLY),
        new("semaphore/no-leases", "one that is in is killed", shared::COUNTER, Rule::Leak)
            .with(|setting| setting.capacity = u32::from(shared::PERMITS))
            .faults(CRASH),
    ]
}

fn queues() -> Vec<Specimen> {
    let new = Specimen::new;
    let (between, herd) = ("released between the look and the subscription", "released, and the message wakes all who wait");
    vec![
        new("waiting/messages-only", between, waiting::MESSAGES_ONLY, Rule::NotGranted).clients(2).within(0),
        new("waiting/expiry", "the holder is killed, and a lease that ends tells nobody", waiting::SUBSCRIBED, Rule::NotGranted)
            .clients(2)
            .faults(CRASH),
        new("waiting/lost-message", "the subscription is lost, and then released", waiting::SUBSCRIBED, Rule::NotGranted)
            .clients(2)
            .faults(Faults { deaf: 1, ..Faults::NONE })
            .within(0),
        new("waiting/newcomer", "released, and a third comes before the message", waiting::SUBSCRIBED, Rule::Overtaken).within(0),
        new("waiting/herd", herd, waiting::SUBSCRIBED, Rule::Overtaken).also(two_were_woken).within(0),
        new("redisson/fair-clock", "one host's clock is ahead", waiting::FAIR, Rule::Overtaken)
            .with(|setting| setting.skews = [0, 0, 2 * TTL + 1])
            .within(0),
    ]
}

fn rows() -> Vec<Specimen> {
    let new = |id, fault, scheme| Specimen::new(id, fault, scheme, Rule::Overlap).clients(2);
    vec![
        new("row/application-clock", "one host's clock is ahead", row::ROW).with(|setting| setting.skews = [0, 3, 0]),
        new("row/no-look", "a second holder comes", row::NO_LOOK),
        new("row/rows-uncounted", "two read the same version", row::ROWS_UNCOUNTED),
    ]
}
