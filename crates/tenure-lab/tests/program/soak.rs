//! The soak: for some seconds on each store it finds nothing, and it finds what is broken on purpose.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Fence, Lease, MemoryStore, Name, Share};
use tenure_lab::Lab;
use tenure_lab::soak::{Engine, Kind, Plan, Report, Tally, Where, here, run};
use tenure_testkit::Program;

const SEED: u64 = 1;

fn plan(place: Where, seconds: u64) -> Plan {
    Plan { place, time: Duration::from_secs(seconds), seed: SEED, processes: 3, flushes: false, rotates: false, grants: None }
}

fn soaked(plan: &Plan) -> Report {
    let lab = Lab { program: Program::new([env!("CARGO_BIN_EXE_tenure-lab"), "__worker"]) };
    let report = run(&lab, plan).unwrap();
    println!("{report}");
    assert_eq!(report.tally.findings.count(), 0, "{report}");
    report
}

fn met_everything(report: &Report) {
    let tally = &report.tally;
    for (what, count) in [
        ("grants", tally.grants),
        ("exclusive", tally.exclusive),
        ("passed on", tally.passed),
        ("adopted", tally.adopted),
        ("compared", tally.compared),
        ("dropped", tally.cut),
        ("downgrades", tally.downgrades),
    ] {
        assert!(count > 0, "{what}: none\n{report}");
    }
}

#[test]
fn memory_is_as_expected() {
    met_everything(&soaked(&plan(Where::Memory, 4)));
}

#[test]
fn a_file_is_as_expected_while_processes_are_stopped_and_killed() {
    let report = soaked(&plan(Where::Sqlite, 6));
    met_everything(&report);
    assert!(report.faults > 0, "{report}");
}

#[test]
fn a_server_is_as_expected_under_every_fault() {
    let report = soaked(&plan(Where::Redis, 8));
    met_everything(&report);
    assert!(report.faults > 0, "{report}");
}

fn as_expected_under_faults(engine: Engine) {
    let report = soaked(&plan(Where::Engine(engine), 8));
    let Tally { exclusive, compared, cut, .. } = report.tally;
    assert!(exclusive > 0 && compared > 0 && cut > 0, "{report}");
    assert!(report.servers.unwrap().lost_replies > 0, "nobody went by the way that is cut: {report}");
}

#[test]
fn etcd_is_as_expected_under_faults() {
    as_expected_under_faults(Engine::Etcd);
}

#[test]
fn mariadb_is_as_expected_under_faults() {
    as_expected_under_faults(Engine::MariaDb);
}

#[test]
fn memcached_is_as_expected_under_faults() {
    as_expected_under_faults(Engine::Memcached);
}

#[test]
fn postgres_is_as_expected_under_faults() {
    as_expected_under_faults(Engine::Postgres);
}

#[test]
fn zookeeper_is_as_expected_under_faults() {
    as_expected_under_faults(Engine::ZooKeeper);
}

#[test]
fn fences_rise_over_flushes() {
    let report = soaked(&Plan { flushes: true, ..plan(Where::Redis, 5) });
    assert!(report.faults > 0 && report.tally.exclusive > 0, "{report}");
}

/// Servers are killed and come back without their data, replies are lost, clients die.
#[test]
fn fences_rise_over_a_quorum_of_servers_that_forget() {
    let report = soaked(&plan(Where::Quorum, 8));
    let servers = report.servers.unwrap();
    assert!(servers.emptied > 0 && servers.lost_replies > 0, "{report}");
    assert!(report.granted > 100 && report.tally.second_rounds > 0, "{report}");
}

/// On a busy machine a call may fail whatever the servers could do: a soak is run by hand for that.
#[test]
fn one_server_of_three_after_another_is_away() {
    let lab = Lab { program: Program::new([env!("CARGO_BIN_EXE_tenure-lab"), "__worker"]) };
    let report = run(&lab, &plan(Where::QuorumOneAway(3), 8)).unwrap();
    println!("{report}");
    let Tally { grants, waits, findings, .. } = &report.tally;
    assert!(*grants > 0 && *waits > 0 && report.faults > 1, "{report}");
    assert_eq!(findings.count() - findings.of(Kind::Unreachable), 0, "{report}");
}

/// Mistake that a store makes now and then.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// A mutex is granted beside its holder.
    GrantsTwice,
    /// A grant has the fence of an earlier one.
    OldFence,
    /// A release is confirmed and not carried out.
    KeepsOnRelease,
    /// The store takes away more of a share than it reports to the holder.
    ShrinksShare,
    /// A renewal is confirmed and not carried out.
    ForgetsRenewal,
}

#[derive(Debug)]
struct Wrong {
    store: MemoryStore,
    mistake: Mistake,
    calls: AtomicU64,
}

impl Wrong {
    /// Every so many calls of a kind.
    fn errs(&self, mistake: Mistake, every: u64) -> bool {
        self.mistake == mistake && self.calls.fetch_add(1, Ordering::Relaxed) % every == every - 1
    }
}

#[async_trait]
impl Store for Wrong {
    fn features(&self) -> Features {
        self.store.features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let mut request = request.clone();
        if request.share == Share::MUTEX && request.enqueue != Enqueue::Heartbeat && self.errs(Mistake::GrantsTwice, 10) {
            request.name = Name::new(request.owner.to_string())?;
        }
        if request.enqueue == Enqueue::Heartbeat && request.share.weight() < 3 && self.errs(Mistake::ShrinksShare, 1) {
            request.share = Share::from_parts(1, request.share.capacity()).unwrap();
        }
        let mut acquired = self.store.acquire(&request).await?;
        if let AcquireReply::Granted(Grant { fence: Some(fence), .. }) = &mut acquired
            && self.errs(Mistake::OldFence, 50)
        {
            *fence = Fence::from_counter(fence.counter().saturating_sub(200).max(1)).unwrap();
        }
        Ok(acquired)
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        if self.errs(Mistake::ForgetsRenewal, 1) {
            return leases.iter().map(|_| Ok(RenewReply::Renewed)).collect();
        }
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        if self.errs(Mistake::KeepsOnRelease, 4) {
            return Ok(ReleaseReply::Released);
        }
        self.store.release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.store.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.store.inspect(name).await
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrong:")
    }
}

#[test]
fn what_is_broken_is_found() {
    for (mistake, words) in [
        (Mistake::GrantsTwice, &["two hold at once", "the store does not have it"][..]),
        (Mistake::OldFence, &["a later holder's fence is not larger"]),
        (Mistake::KeepsOnRelease, &["is still held by"]),
        (Mistake::ForgetsRenewal, &["it is valid for"]),
        (Mistake::ShrinksShare, &["it claims 2/3, and the store keeps 1/3"]),
    ] {
        // A slow machine may come to little in one run.
        let mut told = Vec::new();
        let mut seeds = SEED..=20;
        while let Some(missing) = words.iter().find(|words| !told.iter().any(|finding: &String| finding.contains(**words))) {
            let seed = seeds.next().unwrap_or_else(|| panic!("{mistake:?} did not show {missing:?}: {told:#?}"));
            let store: Arc<dyn Store> = Arc::new(Wrong { store: MemoryStore::new(), mistake, calls: AtomicU64::new(0) });
            let report = here(&store, &Plan { seed, ..plan(Where::Memory, 2) }).unwrap();
            println!("{mistake:?}: {report}");
            told.extend_from_slice(report.tally.findings.told());
        }
    }
}
