//! The same work for every library: what is timed, and what is counted.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::Failure;

/// The name that is handed over.
pub const HANDED_OVER: &str = "compare:handover";

/// How long the work goes on before it is timed.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// The work of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Each task takes and releases a name of its own, all on what the library shares.
    Cycle,
    /// Waiters with a connection each pass one name on, and wait as the library does by itself.
    Handover,
    /// The same, with the shortest retry that the library can be set to.
    HandoverFast,
}

impl FromStr for Case {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        match text {
            "cycle" => Ok(Self::Cycle),
            "handover" => Ok(Self::Handover),
            "handover-fast" => Ok(Self::HandoverFast),
            other => Err(format!("{other:?} is no case").into()),
        }
    }
}

/// Order to a program.
pub struct Task {
    pub url: String,
    pub case: Case,
    pub tasks: usize,
    pub time: Duration,
}

/// A library that takes and releases locks.
pub trait Peer: Clone + Send + Sync + 'static {
    type Held: Send;

    /// Why it cannot do a case, if it cannot.
    fn runs(_: Case) -> Result<(), &'static str> {
        Ok(())
    }

    fn connect(url: &str, case: Case) -> impl Future<Output = Result<Self, Failure>> + Send;
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, Failure>> + Send;
    fn release(held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Record of the work in the timed part of a run.
pub struct Sheet {
    from: Instant,
    until: Instant,
    spans: Vec<Duration>,
    /// Who released last, and when it called for that.
    last: Option<(usize, Instant)>,
    failure: Option<Failure>,
}

impl Sheet {
    pub fn new(time: Duration) -> Self {
        let from = Instant::now() + WARM_UP;
        Self { from, until: from + time, spans: Vec::new(), last: None, failure: None }
    }

    /// An operation; false when the time is over.
    pub fn count(&mut self, began: Instant, ended: Instant) -> bool {
        // Also what began before: slow operations would be missing otherwise.
        if (self.from..=self.until).contains(&ended) {
            self.spans.push(ended - began);
        }
        ended < self.until
    }

    /// `who` holds the name, and releases it now.
    fn handed_to(&mut self, who: usize) -> bool {
        let now = Instant::now();
        match self.last.replace((who, now)) {
            // A waiter that takes the name again at once is no hand-over.
            Some((before, at)) if before != who => self.count(at, now),
            _ => now < self.until,
        }
    }

    pub fn figures(&mut self, cpu: Duration) -> Result<Value, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.spans.sort_unstable();
        let part = |part: f64| {
            Some(self.spans.get((self.spans.len().checked_sub(1)? as f64 * part).round() as usize)?.as_secs_f64() * 1e6)
        };
        let each = |cpu: Duration| (!self.spans.is_empty()).then(|| cpu.as_secs_f64() * 1e6 / self.spans.len() as f64);
        Ok(json!({
            "operations": self.spans.len(),
            "seconds": (self.until - self.from).as_secs_f64(),
            "p50_us": part(0.5),
            "p99_us": part(0.99),
            "client_cpu_us_per_operation": each(cpu),
        }))
    }
}

/// Runs a case with one library.
pub async fn drive<P: Peer>(task: Task) -> Result<Value, Failure> {
    let Task { url, case, tasks, time } = task;
    if let Err(why) = P::runs(case) {
        return Ok(json!({ "not_run": why }));
    }
    let mut peers = vec![P::connect(&url, case).await?];
    while peers.len() < tasks {
        // One that only listens, and takes nothing, would cost the server what is published to it.
        peers.push(if case == Case::Cycle { peers[0].clone() } else { P::connect(&url, case).await? });
    }
    let sheet = Arc::new(Mutex::new(Sheet::new(time)));
    for (number, peer) in peers.into_iter().enumerate() {
        let sheet = Arc::clone(&sheet);
        tokio::spawn(async move {
            let ended =
                if case == Case::Cycle { cycles(&peer, number, &sheet).await } else { turns(&peer, number, &sheet).await };
            if let Err(failure) = ended {
                lock(&sheet).failure.get_or_insert(failure);
            }
        });
    }
    tokio::time::sleep(WARM_UP).await;
    let before = cpu_at("begin");
    tokio::time::sleep(time).await;
    let used = cpu_at("end") - before;
    lock(&sheet).figures(used)
}

async fn cycles<P: Peer>(peer: &P, number: usize, sheet: &Mutex<Sheet>) -> Result<(), Failure> {
    let name = format!("compare:cycle:{number}");
    let mut began = Instant::now();
    loop {
        P::release(peer.acquire(&name).await?).await?;
        let ended = Instant::now();
        if !lock(sheet).count(began, ended) {
            return Ok(());
        }
        began = ended;
    }
}

async fn turns<P: Peer>(peer: &P, number: usize, sheet: &Mutex<Sheet>) -> Result<(), Failure> {
    loop {
        let held = peer.acquire(HANDED_OVER).await?;
        let goes_on = lock(sheet).handed_to(number);
        P::release(held).await?;
        if !goes_on {
            return Ok(());
        }
    }
}

fn lock(sheet: &Mutex<Sheet>) -> std::sync::MutexGuard<'_, Sheet> {
    sheet.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the CPU time that this process has used so far, and tells the harness that the timed part begins or ends.
pub fn cpu_at(moment: &str) -> Duration {
    println!("{moment}");
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.try_into().unwrap_or(0))
}
