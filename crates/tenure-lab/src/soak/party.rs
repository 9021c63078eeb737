//! The tasks of one process of a soak.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tenure::compose::quorum::Quorum;
use tenure::store::Store;
use tenure::{BootTime, Error, Locker};
use tenure_stores::Options;
use tenure_testkit::{lines, patiently};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::report::Tally;
use super::task::{Takes, Task};
use super::visitor::Visitor;
use crate::bench::Address;

/// Lockers in a process, each with a connection of its own.
const LOCKERS: usize = 3;
/// The longest that tasks may need to come to their end, and the clean-ups after them.
const REST: Duration = Duration::from_secs(90);

/// Order to a process of a soak, a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// `None` for a store that is given otherwise.
    pub(super) address: Option<Address>,
    /// Its name in labels and findings; no other process of the run has it.
    pub(super) who: String,
    /// Where the place is reached.
    pub(super) place: PathBuf,
    /// The beginning of all names.
    pub(super) prefix: String,
    pub(super) seed: u64,
    /// Since boot.
    pub(super) end: Duration,
    pub(super) keeps: bool,
    pub(super) takes: Takes,
}

/// Message from a process of a soak, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Began,
    Ended(Box<Tally>),
    Failed(String),
}

/// Carries out an order on lockers over `stores`; what came of it.
///
/// # Errors
/// When the place cannot be reached.
pub(super) async fn carry(order: &Order, stores: &[Arc<dyn Store>]) -> Result<Tally, Error> {
    let label = |number| format!("{}L{number}", order.who);
    let build = |(number, store): (usize, &Arc<dyn Store>)| Locker::builder(Arc::clone(store)).label(label(number)).build();
    let lockers = stores.iter().enumerate().map(build).collect::<Result<Vec<_>, _>>()?;
    let (mut rng, mut tasks, end) = (Rng::with_seed(order.seed), JoinSet::new(), BootTime::from_boot(order.end));
    for (number, locker) in lockers.iter().enumerate() {
        let other = &lockers[(number + 1) % lockers.len()];
        for task in 0..order.takes.tasks() {
            let visitor = Visitor::connect(&order.place).await;
            let visitor = visitor.map_err(|error| Error::unreachable("the place of the soak is gone").with_source(error))?;
            let (who, prefix) = (format!("{}T{task}", label(number)), order.prefix.clone());
            let (locker, other, rng, keeps, takes) = (locker.clone(), other.clone(), rng.fork(), order.keeps, order.takes);
            let (tally, over, began) = (Tally::default(), false, 0);
            let one = Task { who, prefix, locker, other, visitor, rng, keeps, takes, tally, over, began };
            if takes == Takes::Several {
                tasks.spawn(one.beside_rotations(task == 0, end));
            } else {
                tasks.spawn(one.run(end));
            }
        }
    }
    let mut tally = Tally::default();
    let rest = (end + REST).since(BootTime::now());
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(its)) => tally.absorb(its),
                Ok(Err(error)) => tally.findings.add(format!("{}: the place is gone: {error}", order.who)),
                Err(panic) => tally.findings.add(format!("{}: a task ended by itself: {panic}", order.who)),
            }
        }
    };
    if timeout(rest, all).await.is_err() {
        tally.findings.add(format!("{}: {} tasks did not come to their end in {REST:?}", order.who, tasks.len()));
    }
    if timeout(REST, join_all(lockers.iter().map(Locker::flush_releases))).await.is_err() {
        tally.findings.add(format!("{}: clean-ups did not come to their end in {REST:?}", order.who));
    }
    Ok(tally)
}

/// Becomes a process of a soak, until it has reported its result.
pub(crate) fn serve() -> io::Result<()> {
    let order: Order = lines::hear(&mut io::stdin().lock())?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let said = runtime.block_on(async {
        let address = order.address.clone().ok_or_else(|| Error::invalid("a process of a soak needs a store"))?;
        let (mut stores, mut quorums) = (Vec::new(), Vec::new());
        for _ in 0..LOCKERS {
            let (store, quorum) = open(&address).await?;
            stores.push(store);
            quorums.extend(quorum);
        }
        say(&Said::Began);
        let tally = carry(&order, &stores).await?;
        Ok::<_, Error>(Tally { second_rounds: quorums.iter().map(Quorum::second_rounds).sum(), ..tally })
    });
    say(&said.map_or_else(|error| Said::Failed(error.to_string()), |tally| Said::Ended(Box::new(tally))));
    Ok(())
}

/// Opens the store. One that takes the place of a process that was killed may come while the server is broken.
async fn open(address: &Address) -> Result<(Arc<dyn Store>, Option<Quorum>), Error> {
    patiently(async || match address.options()? {
        Options::Redis(options) if address.is_quorum() => {
            options.quorum().await.map(|quorum| (Arc::new(quorum.clone()) as Arc<dyn Store>, Some(quorum)))
        }
        options => options.open().await.map(|store| (store, None)),
    })
    .await
}

/// The same store for every locker of a process.
pub(super) fn shared(store: &Arc<dyn Store>) -> Vec<Arc<dyn Store>> {
    vec![Arc::clone(store); LOCKERS]
}

fn say(said: &Said) {
    // When nobody listens the process is ended soon.
    let _ = lines::say(io::stdout(), said);
}
