//! One acquisition of a worker: a task that has the guard to itself.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use tenure::{Acquire, BootTime, EndReason, Error, Fence, Guard, Lease, Locker, Owner, ReleaseOutcome};
use tokio::sync::mpsc::UnboundedReceiver;

use super::orders::{ClaimOrder, Said, Terms};
use super::probe::Probes;
use super::report::{failed, say, tell};
use super::work::{self, Work};
use crate::history::{At, What, nanos};

/// Request of an acquisition.
pub(super) enum Asks {
    /// A name.
    For(String, Terms),
    /// The lease that another holder handed over.
    Over(Lease),
}

pub(super) struct Claim {
    number: u32,
    locks: Locker,
    probes: Probes,
    bounds: Bounds,
}

/// For how long a name is handed over: that much shorter is the time to stop work until it is renewed.
const CLAIM: Duration = Duration::from_millis(1_500);

/// Limits that no guard may exceed.
struct Bounds {
    ttl: Duration,
    /// For how long a lease may last from when it was asked for.
    longest: Duration,
}

/// Next thing that a holder acts on.
enum Next {
    Order(ClaimOrder),
    /// The work came to its end: refused, or lost.
    Rest,
    /// The lab has ended.
    Nothing,
}

/// How a worker that looks at its guard reaches the resource.
struct Run {
    who: String,
    register: std::path::PathBuf,
}

impl Claim {
    pub(super) fn new(number: u32, locks: &Locker, probes: &Probes) -> Self {
        let bounds = Bounds { ttl: Duration::ZERO, longest: Duration::ZERO };
        Self { number, locks: locks.clone(), probes: probes.clone(), bounds }
    }

    pub(super) async fn live(mut self, asks: Asks, mut orders: UnboundedReceiver<ClaimOrder>) {
        self.bounds = match &asks {
            Asks::For(_, terms) => Bounds { ttl: terms.ttl, longest: terms.ttl.max(terms.min_hold) },
            Asks::Over(lease) => Bounds { ttl: lease.ttl, longest: lease.ttl },
        };
        let (mut cancelled, mut early) = (self.probes.cancelled(), VecDeque::new());
        let guard = tokio::select! {
            asked = self.ask(asks) => asked,
            // The future is dropped here, wherever it was.
            () = gives_up(&mut orders, &mut early) => return say(&Said::Done),
            Ok(()) = cancelled.changed() => return say(&Said::Done),
        };
        match guard {
            Ok(guard) => self.hold(guard, early, orders).await,
            Err(error) => {
                failed(self.number, &error);
                if matches!(orders.try_recv(), Ok(ClaimOrder::Drop)) {
                    say(&Said::Done);
                }
            }
        }
    }

    async fn ask(&self, asks: Asks) -> Result<Guard, Error> {
        let acquisition = self.number;
        let (name, share) = match &asks {
            Asks::For(name, terms) => (name.clone(), terms.share),
            Asks::Over(lease) => (lease.name.to_string(), lease.share),
        };
        tell(What::Ask { acquisition, name: name.clone() });
        let supplied = matches!(&asks, Asks::For(_, Terms { token: Some(_), .. }));
        let guard = match asks {
            Asks::Over(lease) => self.locks.adopt(&lease).await?,
            Asks::For(name, terms) => on_terms(self.locks.lock(&name, terms.share), terms).acquire().await?,
        };
        // A supplied owner token need not be unique.
        let (token, fence) = ((!supplied).then(|| guard.token().to_string()), fence(&guard));
        let (weight, until) = (share.weight(), Some(until(&guard)));
        tell(What::Grant { acquisition, name, weight, token, fence, until });
        self.doubts(&guard);
        Ok(guard)
    }

    /// Reports a guard that is valid for longer than the grant allows. A lease counts from when it
    /// was asked for. It ends no sooner than a `safety_margin` after the validity.
    fn doubts(&self, guard: &Guard) {
        // In this order, time that passes between these lines makes every value better, and never
        // worse.
        let since_asked = self.probes.since_asked();
        let lease = guard.lease_remaining();
        let validity = guard.remaining();
        let (ttl, longest) = (self.bounds.ttl, self.bounds.longest.max(self.probes.granted()));
        let text = if guard.end_reason().is_some() {
            return;
        } else if lease + since_asked > longest {
            format!("a lease of {longest:?} that was asked for {since_asked:?} ago was to last for {lease:?}")
        } else if lease < validity + ttl.min(CLAIM).mul_f64(0.09) {
            format!("the guard was valid for {validity:?} more, and the lease was to end in {lease:?}")
        } else {
            return;
        };
        tell(What::Failed { acquisition: self.number, kind: None, text });
    }

    async fn extends(&mut self, guard: &Guard, ttl: Duration) {
        self.bounds.longest = self.bounds.longest.max(ttl);
        match guard.extend(ttl).await {
            Ok(()) => {
                tell(What::Valid { acquisition: self.number, until: Some(until(guard)) });
                self.doubts(guard);
            }
            Err(error) => failed(self.number, &error),
        }
        say(&Said::Done);
    }

    async fn hold(mut self, guard: Guard, mut early: VecDeque<ClaimOrder>, mut orders: UnboundedReceiver<ClaimOrder>) {
        let acquisition = self.number;
        let (mut told, mut run, mut dumb) = (false, None, None::<Work>);
        loop {
            let next = match early.pop_front() {
                Some(order) => Next::Order(order),
                None => self.listen(&guard, &mut told, run.take(), &mut orders).await,
            };
            let order = match next {
                Next::Order(order) => order,
                Next::Rest => continue,
                Next::Nothing => return,
            };
            match order {
                ClaimOrder::Work { who, register } => dumb = Some(Work::begin(&register, who, acquisition, fence(&guard))),
                ClaimOrder::Run { who, register } => run = Some(Run { who, register }),
                ClaimOrder::Extend { ttl } => self.extends(&guard, ttl).await,
                ClaimOrder::Rest => rest(dumb.take()).await,
                ClaimOrder::State => say(&Said::State(format!("{:?}", guard.state()))),
                ClaimOrder::HandOver => {
                    tell(What::Release { acquisition });
                    return say(&Said::Lease(guard.into_lease()));
                }
                ClaimOrder::Drop => {
                    rest(dumb.take()).await;
                    tell(What::Release { acquisition });
                    drop(guard);
                    return say(&Said::Done);
                }
                ClaimOrder::Release => {
                    rest(dumb.take()).await;
                    tell(What::Release { acquisition });
                    return self.released(guard.release().await);
                }
            }
        }
    }

    fn released(&self, outcome: Result<ReleaseOutcome, Error>) {
        let how = match outcome {
            Ok(ReleaseOutcome::Released) => "Released".to_owned(),
            Ok(ReleaseOutcome::WasLost) => "WasLost".to_owned(),
            Ok(ReleaseOutcome::Unknown { error, .. }) => format!("Unknown: {error}"),
            Ok(ReleaseOutcome::StillHeld(others)) => format!("StillHeld by {others}"),
            Err(error) => format!("{:?}: {error}", error.kind()),
        };
        tell(What::Released { acquisition: self.number, how });
    }

    /// Reports what the guard says until there is something else to do.
    async fn listen(&self, guard: &Guard, told: &mut bool, run: Option<Run>, orders: &mut UnboundedReceiver<ClaimOrder>) -> Next {
        let acquisition = self.number;
        let mut renewed = self.probes.renewed();
        let mut end = until(guard);
        let working = async {
            match run {
                Some(Run { who, register }) => self.work(guard, &register, who).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(working);
        let over = guard.lost();
        tokio::pin!(over);
        loop {
            tokio::select! {
                order = orders.recv() => return order.map_or(Next::Nothing, Next::Order),
                () = &mut working => return Next::Rest,
                loss = &mut over, if !*told => {
                    *told = true;
                    if loss != EndReason::Released {
                        tell(What::Lost { acquisition, why: loss.to_string() });
                    }
                }
                Ok(()) = renewed.changed(), if !*told => {
                    let now = until(guard);
                    // Read at different times, one deadline differs by the time between.
                    if guard.end_reason().is_none() && now.abs_diff(end) > 1_000_000 {
                        end = now;
                        tell(What::Valid { acquisition, until: Some(now) });
                        self.doubts(guard);
                    }
                }
            }
        }
    }

    async fn work(&self, guard: &Guard, register: &Path, who: String) {
        // The guard itself reports the loss of the lease.
        let _ = guard.run(work::careful(register, who, self.number, fence(guard))).await;
    }
}

fn on_terms(mut acquire: Acquire, terms: Terms) -> Acquire {
    let Terms { ttl, share: _, wait, poll_interval, fixed, min_hold, max_hold, token } = terms;
    acquire = acquire.ttl(ttl).min_hold(min_hold);
    acquire = if let Some(wait) = wait { acquire.wait(wait) } else { acquire };
    acquire = if let Some(interval) = poll_interval { acquire.poll_interval(interval) } else { acquire };
    acquire = if let Some(max) = max_hold { acquire.max_hold(max) } else { acquire };
    acquire = if let Some(token) = token { acquire.token(Owner::from_bytes(token.into_bytes())) } else { acquire };
    if fixed { acquire.fixed_lease() } else { acquire }
}

async fn rest(work: Option<Work>) {
    if let Some(work) = work {
        work.end().await;
    }
}

/// Resolves when the acquisition is to be dropped before it is granted. Other orders are kept for
/// the holder.
async fn gives_up(orders: &mut UnboundedReceiver<ClaimOrder>, early: &mut VecDeque<ClaimOrder>) {
    while let Some(order) = orders.recv().await {
        if matches!(order, ClaimOrder::Drop) {
            return;
        }
        early.push_back(order);
    }
}

fn fence(guard: &Guard) -> Option<u64> {
    guard.fence().map(Fence::get)
}

/// Returns the end of the validity, on the clock of the history.
fn until(guard: &Guard) -> At {
    let now = BootTime::now();
    nanos((now + guard.remaining()).since_boot())
}
