//! A soak: random holders and waiters on a real store, in several processes, while faults are done to the store and to the processes.
//!
//! Every kind of lock, several names, alone and together; hand-overs, take-overs, downgrades, extensions; and every call is dropped
//! half-way now and then. Each task enters a [place](referee) under what it holds, which sees overlaps, lost updates and fences out
//! of order; and what its guard claims is [compared](acquisition) with what the store says of it. At the end all must come to rest, and
//! nothing may be left at the store.
//!
//! The choices of the tasks and of the faults depend on the seed alone. The times of the store's answers do not.

mod absence;
mod acquisition;
mod faults;
mod logins;
mod party;
pub(crate) mod plan;
mod process;
mod referee;
mod report;
mod task;
mod turns;
mod visitor;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure::store::Store;
use tenure::{BootTime, Error, Locker, MemoryStore, Owner};
use tenure_testkit::{RedisServer, Reply, admit, patiently};

use self::faults::{Broken, Faults, Nodes};
use self::logins::Logins;
use self::party::Order;
use self::process::Crew;
use self::referee::Referee;
use self::task::Takes;
use self::turns::take_turns;
use self::witness::Witness;
use crate::Lab;
use crate::bench::Address;
use crate::scenarios::own_server;

pub(crate) use self::party::serve;
use self::plan::unmade;
pub use self::plan::{Engine, Plan, Where};
pub use self::report::{Findings, Kind, Report, ServerFaults, Tally};

/// How long what is left of the dead may stay: the longest ttl, and the longest that a place lives.
const FREE: Duration = Duration::from_secs(8);

/// Runs a soak.
///
/// # Errors
/// When the store, or a process, cannot be started.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Report, Error> {
    if plan.rotates {
        let logins = Logins::start(&plan.place)?;
        return crew(lab, plan, logins.word(), logins.address(), Broken::Logins(&logins));
    }
    match &plan.place {
        Where::Memory => {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            here(&store, plan)
        }
        Where::Sqlite => {
            let dir = TempDir::with_prefix("tenure-soak-").map_err(unmade)?;
            let url = format!("sqlite:{}", dir.path().join("locks.db").display());
            crew(lab, plan, "sqlite", &Address::of(&url), Broken::Nothing)
        }
        Where::Redis => {
            let server = RedisServer::start();
            crew(lab, plan, "redis", &Address::of(&server.url()), Broken::Server(&server))
        }
        Where::Quorum => {
            let nodes = Nodes::start();
            crew(lab, plan, "quorum", &Address::of(&nodes.url(false)), Broken::Nodes(&nodes))
        }
        Where::QuorumOneAway(servers) => {
            let nodes = Nodes::with_logs(*servers);
            let ways: Vec<_> = nodes.0.iter().map(|(_, proxy)| proxy.addr()).collect();
            let witness = Witness::start(&ways);
            crew(lab, plan, "quorum", &Address::of(&nodes.url(true)), Broken::OneOf(&nodes, &witness))
        }
        Where::Engine(engine) => {
            let own = own_server(*engine);
            crew(lab, plan, engine.word(), &Address::of(&own.far), Broken::Engine(&own, *engine))
        }
        Where::At(address) => crew(lab, plan, "the store", address, Broken::Nothing),
    }
}

/// Runs a soak in this process, on a store that all its lockers share. Nothing is done to it.
///
/// # Errors
/// When the place of the tasks cannot be made.
pub fn here(store: &Arc<dyn Store>, plan: &Plan) -> Result<Report, Error> {
    let plan = Plan { processes: 1, ..plan.clone() };
    let referee = Referee::open(!plan.flushes, plan.grants).map_err(unmade)?;
    let order = order(&plan, &referee, None, String::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(unmade)?;
    let tally = runtime.block_on(async {
        let mut tally = party::carry(&order, &party::shared(store)).await?;
        remains(&Locker::new(Arc::clone(store)), &order.takes.names(&order.prefix), &[], &mut tally).await;
        Ok::<_, Error>(tally)
    })?;
    Ok(concluded(plan, "memory", &referee, tally))
}

/// Runs a soak in several processes.
fn crew(lab: &Lab, plan: &Plan, word: &'static str, address: &Address, broken: Broken<'_>) -> Result<Report, Error> {
    let referee = Referee::open(!plan.flushes, plan.grants).map_err(unmade)?;
    // On a server of its own there are no other names.
    let prefix = if matches!(plan.place, Where::At(_)) { format!("tenure-soak{}/", Owner::generate("")?) } else { String::new() };
    let order = order(plan, &referee, Some(address.clone()), prefix);
    let lossy = broken.lossy_url().map(|url| Address { url, ..address.clone() });
    let mut crew = Crew::start(lab, order.clone(), lossy, plan.processes)?;
    let end = BootTime::from_boot(order.end);
    let (faults, servers) = match broken {
        Broken::OneOf(nodes, witness) => take_turns(nodes, witness, plan.seed, end, || referee.is_over())?,
        _ => Faults::new(plan, broken).go_on(&mut crew, end, &referee)?,
    };
    let (mut tally, dead) = crew.end();
    if let Broken::Nodes(nodes) | Broken::OneOf(nodes, _) = broken {
        // What few servers have kept may be held at those that do not vote.
        admit(&nodes.url(false));
    }
    if let Broken::OneOf(_, witness) = broken {
        tally.judge_outages(|began, ended| witness.could_answer(began, ended));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unmade)?;
    runtime.block_on(async {
        let locker = Locker::new(patiently(async || address.open().await).await?);
        remains(&locker, &order.takes.names(&order.prefix), &dead, &mut tally).await;
        Ok::<_, Error>(())
    })?;
    broken.servers().for_each(|server| companions(server, &mut tally));
    let killed = u64::try_from(dead.len()).unwrap_or(u64::MAX);
    let servers = matches!(broken, Broken::Nodes(_) | Broken::OneOf(..) | Broken::Engine(..)).then_some(servers);
    Ok(Report { faults, killed, servers, ..concluded(plan.clone(), word, &referee, tally) })
}

fn order(plan: &Plan, referee: &Referee, address: Option<Address>, prefix: String) -> Order {
    let end = (BootTime::now() + plan.time).since_boot();
    // Where one server after another is away, leases are lost.
    let keeps = !plan.flushes && !matches!(plan.place, Where::QuorumOneAway(_));
    let (who, place) = ("P1".to_owned(), referee.path().to_owned());
    let takes = match plan.place {
        _ if plan.rotates => Takes::Several,
        Where::Quorum => Takes::Many,
        Where::QuorumOneAway(_) => Takes::Contended,
        _ => Takes::EveryKind,
    };
    Order { address, who, place, prefix, seed: plan.seed, end, keeps, takes }
}

fn concluded(plan: Plan, store: &'static str, referee: &Referee, seen: Tally) -> Report {
    // The findings of the referee come first: of many findings only the first are printed.
    let mut tally = Tally { findings: referee.findings(), ..Tally::default() };
    tally.absorb(seen);
    // A soak in which nothing happened has shown nothing.
    if tally.grants == 0 || tally.compared == 0 {
        tally.findings.add(format!("{} grants and {} claims that were compared show nothing", tally.grants, tally.compared));
    }
    Report { plan, store, tally, faults: 0, killed: 0, granted: referee.granted(), servers: None }
}

/// Reports leases that are left at the store when all has come to rest. Those that linger, were refused or belonged to the dead
/// may stay for a while.
async fn remains(locker: &Locker, names: &[String], dead: &[String], tally: &mut Tally) {
    let free = FREE + locker.store().features().late_end;
    let until = BootTime::now() + free;
    let (mut first, mut left) = (true, Vec::new());
    while first || (!left.is_empty() && BootTime::now() < until) {
        left.clear();
        for name in names {
            match patiently(async || locker.inspect(name).await).await {
                Ok(entry) => left.extend(entry),
                Err(error) => tally.findings.add(format!("{name:?} could not be looked at when all was well: {error}")),
            }
        }
        if std::mem::take(&mut first) {
            for entry in &left {
                let of_dead = |owner: &Owner| {
                    let label = owner.label().unwrap_or_default();
                    dead.iter().any(|who| label.strip_prefix(who.as_str()).is_some_and(|rest| rest.starts_with('L')))
                };
                let excused =
                    |owner: &Owner| owner.lingers_after().is_some() || of_dead(owner) || tally.loose.contains(&owner.to_string());
                let strays: Vec<String> =
                    entry.holders.iter().filter(|holder| !excused(&holder.owner)).map(ToString::to_string).collect();
                let waited = !entry.waiters.is_empty() && dead.is_empty();
                tally.findings.extend(strays.into_iter().map(|stray| format!("{:?} is still held by {stray}", entry.name)));
                tally.findings.extend(waited.then(|| format!("{:?} is still waited for", entry.name)));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tally.findings.extend(left.into_iter().map(|entry| format!("{free:?} after the end there is {entry:?}")));
}

/// Whether a key stays at a server without a lease: the grant counter, or the memory of a node.
fn stays(key: &str) -> bool {
    ["tenure:fence", "tenure:node", "tenure:node:ends"].contains(&key)
}

/// When all names are free, a server keeps nothing but the counter.
fn companions(server: &RedisServer, tally: &mut Tally) {
    let until = BootTime::now() + FREE;
    loop {
        let Reply::Array(keys) = server.command(&["KEYS", "*"]) else {
            return tally.findings.add("the keys of the server could not be listed");
        };
        let left: Vec<String> = keys.iter().map(Reply::text).filter(|key| !stays(key)).collect();
        if left.is_empty() {
            return;
        }
        if BootTime::now() >= until {
            return tally.findings.add(format!("{FREE:?} after the end the server keeps {left:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
