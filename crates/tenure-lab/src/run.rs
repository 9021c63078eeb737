//! Runs items side by side and judges what they show.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tenure_testkit::history::{Verdict, check};

use crate::{Item, Lab, Outcome, Shown};

/// Runs `work` with `jobs` at a time, and hands each outcome to `done` as it comes.
pub fn all(lab: &Lab, work: Vec<(Item, u64)>, jobs: usize, mut done: impl FnMut(Outcome)) {
    let queue = Mutex::new(VecDeque::from(work));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (sender, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some((item, seed)) = next() {
                    if sender.send(one(lab, &item, seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        outcomes.iter().for_each(&mut done);
    });
}

/// Runs one item. A run that the machine was too slow for is done once more; inconclusive twice is not ok.
pub fn one(lab: &Lab, item: &Item, seed: u64) -> Outcome {
    let outcome = attempt(lab, item, seed);
    if outcome.verdict == Verdict::Inconclusive { attempt(lab, item, seed) } else { outcome }
}

fn attempt(lab: &Lab, item: &Item, seed: u64) -> Outcome {
    let began = Instant::now();
    let canary = Canary::start();
    let shown = catch_unwind(AssertUnwindSafe(|| (item.run)(lab, seed)));
    let overslept = canary.stop();
    let took = began.elapsed();
    match shown {
        Ok(shown) => judge(item, seed, shown, overslept, took),
        Err(panic) => {
            let trouble = panic.downcast_ref::<String>().cloned();
            let trouble = trouble.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let verdict = if overslept > STARVED { Verdict::Inconclusive } else { Verdict::Broken };
            Outcome { item: item.clone(), seed, verdict, ok: false, findings: Vec::new(), shown: None, trouble, took }
        }
    }
}

fn judge(item: &Item, seed: u64, shown: Shown, overslept: Duration, took: Duration) -> Outcome {
    let findings = check(&shown.history);
    let mut verdict = Verdict::of(&shown.history, &findings);
    let because = item.because.is_none_or(|rule| findings.iter().any(|finding| finding.rule == rule));
    let mut ok = verdict == item.expected && because;
    let mut trouble = None;
    if !ok || shown.starved.is_some() {
        let starved = (overslept > STARVED).then(|| format!("a timer of the lab was {overslept:?} late"));
        trouble = shown.starved.clone().or(starved);
        if trouble.is_some() {
            (verdict, ok) = (Verdict::Inconclusive, false);
        } else {
            let because = item.because.map_or_else(String::new, |rule| format!(" ({rule})"));
            trouble = Some(format!("expected {}{because}, and it is {verdict}", item.expected));
        }
    }
    Outcome { item: item.clone(), seed, verdict, ok, findings, shown: Some(shown), trouble, took }
}

/// A timer that is later than this says that the machine has no time for us.
const STARVED: Duration = Duration::from_millis(100);

/// Measures how late timers ring while something else runs.
struct Canary {
    stop: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Canary {
    fn start() -> Self {
        const TICK: Duration = Duration::from_millis(20);
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            loop {
                let began = Instant::now();
                match stopped.recv_timeout(TICK) {
                    Err(mpsc::RecvTimeoutError::Timeout) => worst = worst.max(began.elapsed().saturating_sub(TICK)),
                    _ => return worst,
                }
            }
        });
        Self { stop, thread }
    }

    fn stop(self) -> Duration {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}
