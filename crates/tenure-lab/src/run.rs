//! Runs items side by side and judges what they show.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tenure_testkit::Recorder;
use tenure_testkit::history::{Verdict, check};

use crate::{Item, Kind, Lab, Outcome, Shown};

/// Runs `work` with `jobs` at a time, and hands each outcome to `done` as it comes, until that has had enough.
pub fn all(lab: &Lab, work: Vec<(Item, u64)>, jobs: usize, mut done: impl FnMut(Outcome) -> ControlFlow<()>) {
    let queue = Mutex::new(VecDeque::from(work));
    let queue = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let (sender, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, queue) = (sender.clone(), &queue);
            let run = move || {
                loop {
                    let next = queue().pop_front();
                    let Some((item, seed)) = next else { return };
                    if sender.send(one(lab, &item, seed)).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name(RUNNER.to_owned()).spawn_scoped(scope, run).expect("a thread can be started");
        }
        drop(sender);
        for outcome in outcomes {
            if done(outcome).is_break() {
                queue().clear();
            }
        }
    });
}

/// The name of the threads in which items run. The outcome reports the message of their panic.
pub const RUNNER: &str = "lab-runner";

thread_local! {
    /// Of the run in this thread, for when it breaks down.
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Makes the events of `recorder` the history of the run in this thread, also if the run breaks down.
pub fn keep(recorder: &Recorder) {
    RECORDER.set(Some(recorder.clone()));
}

/// Runs one item. A run that the machine was too slow for is done once more; inconclusive twice is not ok.
pub fn one(lab: &Lab, item: &Item, seed: u64) -> Outcome {
    let first = attempt(lab, item, seed);
    if first.verdict != Verdict::Inconclusive {
        return first;
    }
    let second = attempt(lab, item, seed);
    let why = first.trouble.into_iter().chain(second.trouble.clone()).collect::<Vec<_>>().join("; then ");
    Outcome { trouble: Some(format!("run twice: {why}")), ..second }
}

fn attempt(lab: &Lab, item: &Item, seed: u64) -> Outcome {
    let began = Instant::now();
    let canary = Canary::start();
    RECORDER.set(None);
    let shown = catch_unwind(AssertUnwindSafe(|| (item.run)(lab, seed)));
    let overslept = canary.stop();
    let starved = (overslept > STARVED).then(|| format!("a timer of the lab was {overslept:?} late"));
    match shown {
        Ok(shown) => judge(item, seed, shown, starved, began.elapsed()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            let shown = RECORDER.take().map(|recorder| Shown::new(recorder.take_down()));
            // A broken lock that could not be shown has not been shown to be broken.
            let unsure = starved.is_some() || item.kind == Kind::BrokenLock;
            let verdict = if unsure { Verdict::Inconclusive } else { Verdict::Broken };
            let trouble = Some(starved.map_or_else(|| text.clone(), |starved| format!("{text} ({starved})")));
            Outcome { item: item.clone(), seed, verdict, ok: false, findings: Vec::new(), shown, trouble, took: began.elapsed() }
        }
    }
}

fn judge(item: &Item, seed: u64, shown: Shown, starved: Option<String>, took: Duration) -> Outcome {
    let findings = check(&shown.history);
    let mut verdict = Verdict::of(&shown.history, &findings);
    let ok = item.expects(verdict, &findings) && shown.starved.is_none();
    let starved = shown.starved.clone().or(starved);
    // A slow machine makes things late. It makes no two hold at once.
    let is_unsafe = findings.iter().any(|finding| finding.rule.is_about_safety() && !item.knows(finding.rule));
    let mut trouble = None;
    if !ok {
        if starved.is_some() && !is_unsafe {
            (verdict, trouble) = (Verdict::Inconclusive, starved);
        } else {
            let because = item.because.map_or_else(String::new, |rule| format!(" ({rule})"));
            let found = findings.iter().filter(|finding| !item.knows(finding.rule)).map(|finding| finding.rule.to_string());
            let found: BTreeSet<String> = found.collect();
            let found = if found.is_empty() { String::new() } else { format!(": {}", Vec::from_iter(found).join(", ")) };
            trouble = Some(format!("expected {}{because}, and it is {verdict}{found}", item.expected));
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
