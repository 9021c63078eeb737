//! The worker's own process: it takes orders, keeps the acquisitions, and reports what they see.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use tenure::{EndReason, ErrorKind, Fence, Guard, Lease, Locker, Name, Owner, ReleaseOutcome, Share};
use tokio::io::AsyncBufReadExt;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::acquisition::{Asks, Claim};
use super::clock::SkewedClock;
use super::load;
use super::orders::{ByHand, ClaimOrder, Order, Said};
use super::probe::Probes;
use super::report::say;
use crate::Counter;

pub(super) struct Process {
    pub(super) locks: Locker,
    pub(super) probes: Probes,
    clock: SkewedClock,
    claims: HashMap<u32, UnboundedSender<ClaimOrder>>,
}

impl Process {
    pub(super) fn new(locks: Locker, probes: Probes, clock: SkewedClock) -> Self {
        Self { locks, probes, clock, claims: HashMap::new() }
    }

    pub(super) async fn serve(mut self) {
        say(&Said::Ready);
        let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await.expect("standard input can be read") {
            self.obey(serde_json::from_str(&line).expect("an order")).await;
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Acquire { acquisition, name, terms } => self.begin(acquisition, Asks::For(name, terms)),
            Order::Adopt { acquisition, lease } => self.begin(acquisition, Asks::Over(lease)),
            Order::To { acquisition, order } => {
                // An acquisition that has ended takes no more orders. The test that drops it waits
                // for a reply.
                let unheard = self.claims.get(&acquisition).and_then(|acquisition| acquisition.send(order).err());
                if matches!(unheard, Some(SendError(ClaimOrder::Drop))) {
                    say(&Said::Done);
                }
            }
            Order::ByHand { what, name, token } => say(&Said::Answer(by_hand(&self.locks, what, &name, token).await)),
            Order::Visits { name, dir, times } => {
                visits(&self.locks, &name, &dir, times).await;
                say(&Said::Done);
            }
            Order::Load(load) => say(&Said::Tally(load::carry(&self.locks, &load).await)),
            Order::Arm(probe) => self.probes.arm(probe),
            // On purpose: a program that does this blocks everybody in its thread.
            Order::Block { ms } => std::thread::sleep(Duration::from_millis(ms)),
            Order::Jump { ms } => self.clock.jump(Duration::from_millis(ms)),
            Order::WallClock => say(&Said::Answer(wall_clock_ms().to_string())),
            Order::Settle => {
                self.locks.flush_releases().await;
                say(&Said::Done);
            }
        }
    }

    fn begin(&mut self, number: u32, asks: Asks) {
        let (to, orders) = unbounded_channel();
        self.claims.insert(number, to);
        tokio::spawn(Claim::new(number, &self.locks, &self.probes).live(asks, orders));
    }
}

async fn by_hand(locks: &Locker, what: ByHand, name: &str, token: String) -> String {
    let (name, owner) = (Name::new(name).expect("a name"), Owner::from_bytes(token.into_bytes()));
    let lease = Lease::new(name, owner, Share::MUTEX, Duration::from_secs(10));
    match what {
        ByHand::Renew => locks.renew(&lease).await.map_or_else(|error| format!("{:?}", error.kind()), |()| "Renewed".to_owned()),
        ByHand::Release => {
            locks.release(&lease).await.map_or_else(|error| format!("{:?}", error.kind()), |how| format!("{how:?}"))
        }
    }
}

fn wall_clock_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970").as_millis()
}

/// Ttl of a visit, which no pause of its process outlasts.
const VISIT: Duration = Duration::from_secs(30);

/// Takes a lease until it is one of 30 s. One that was handed over ends within 2 s if it is not renewed, and the process may
/// stand still for as long.
pub async fn for_long(acquire: impl AsyncFn() -> Guard) -> Guard {
    loop {
        let (guard, came) = (acquire().await, Instant::now());
        let Err(error) = guard.extend(VISIT).await else { return guard };
        let stood_still = guard.end_reason() == Some(EndReason::Expired) || came.elapsed() > Duration::from_millis(250);
        assert!(error.kind() == ErrorKind::Lost && stood_still, "{:?}: {error}", guard.end_reason());
    }
}

async fn visits(locks: &Locker, name: &str, dir: &Path, times: u64) {
    let counter = Counter::open(dir);
    for _ in 0..times {
        let acquire = || locks.mutex(name).ttl(VISIT).poll_interval(Duration::from_millis(3)).acquire();
        let guard = for_long(async || acquire().await.expect("a visit begins")).await;
        let visit = counter.enter(guard.fence().map(Fence::get));
        tokio::time::sleep(Duration::from_micros(200)).await;
        visit.leave();
        match guard.release().await.expect("a visit ends") {
            ReleaseOutcome::Released => {}
            other => panic!("the release was {other:?}"),
        }
    }
}
