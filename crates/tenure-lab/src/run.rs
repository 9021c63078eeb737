//! Runs items side by side and judges what they show.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tenure_testkit::history::{Event, Finding, Rule, Verdict, What, check};
use tenure_testkit::{History, Recorder};

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
    let took = began.elapsed();
    match shown {
        Ok(shown) => judge(item, seed, shown, starved, took),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            let shown = RECORDER.take().map(|recorder| Shown::new(recorder.take_down()));
            broken_down(item, seed, shown, &text, starved, took)
        }
    }
}

/// The outcome of a run that ended in the middle, with `text`.
fn broken_down(item: &Item, seed: u64, shown: Option<Shown>, text: &str, starved: Option<String>, took: Duration) -> Outcome {
    let mut findings = shown.as_ref().map(|shown| check(&shown.history)).unwrap_or_default();
    // The run ended before its deadlines, so a rule about time says nothing here.
    findings.retain(|finding| finding.rule.is_about_safety());
    let is_unsafe = is_unsafe(item, &findings);
    // A broken lock that could not be shown has not been shown to be broken.
    let unsure = item.kind == Kind::BrokenLock || (starved.is_some() && !is_unsafe);
    let verdict = if unsure { Verdict::Inconclusive } else { Verdict::Broken };
    // A picture may stand below.
    let first = text.lines().next().unwrap_or_default();
    let is_told = TOO_LATE.iter().any(|words| first.contains(words)) || has_no_answer(first);
    let has_run_out =
        shown.as_ref().is_some_and(|shown| has_run_out(&shown.history)) && !CLAIMS.iter().any(|it| first.contains(it));
    let is_late = !is_unsafe && (unsure || is_told || has_run_out);
    let trouble = Some(starved.map_or_else(|| text.to_owned(), |starved| format!("{text} ({starved})")));
    Outcome { item: item.clone(), seed, verdict, ok: false, findings, shown, trouble, is_late, took }
}

/// In the message of an assertion that waits for something, or that says when it came. None has them for what came too early.
const TOO_LATE: [&str; 2] = [" in vain for ", " only after "];

/// Whether this is the error of a call that had no answer in the time that it had: less than a second. Who waits for longer
/// has lost the answer.
fn has_no_answer(text: &str) -> bool {
    let limit = WITHIN.iter().find_map(|words| Some(text.split_once(words)?.1));
    limit.is_some_and(|limit| limit.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').starts_with(['m', 'µ', 'n']))
        || IN_TIME.iter().any(|words| text.contains(words))
}

const WITHIN: [&str; 3] = ["did not answer within ", "no reply within ", "no answer within "];
/// As the stores say it where they do not name the time.
const IN_TIME: [&str; 11] = [
    "did not answer in time",
    "could not answer in time",
    "no connection in time",
    "no connection: timed out",
    "no connection: no answer in time",
    // A connection on which another call had no answer is closed.
    "the connection failed: connection closed",
    "the first release had no answer",
    "and what was sent may still run",
    "the statement took too long",
    "stayed busy for the whole operation timeout",
    "others changed the name again and again",
];

/// A slow machine makes things late. It makes no two hold at once.
fn is_unsafe(item: &Item, findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.rule.is_about_safety() && !item.knows(finding.rule))
}

fn judge(item: &Item, seed: u64, shown: Shown, starved: Option<String>, took: Duration) -> Outcome {
    let findings = check(&shown.history);
    let mut verdict = Verdict::of(&shown.history, &findings);
    let ok = item.expects(verdict, &findings) && shown.starved.is_none();
    let starved = shown.starved.clone().or(starved);
    let is_unsafe = is_unsafe(item, &findings);
    let (mut trouble, mut is_late) = (None, false);
    if !ok {
        if starved.is_some() && !is_unsafe {
            (verdict, trouble, is_late) = (Verdict::Inconclusive, starved, true);
        } else {
            let because = item.because.map_or_else(String::new, |rule| format!(" ({rule})"));
            let unknown = || findings.iter().filter(|finding| !item.knows(finding.rule));
            let found: BTreeSet<String> = unknown().map(|finding| finding.rule.to_string()).collect();
            let found = if found.is_empty() { String::new() } else { format!(": {}", Vec::from_iter(found).join(", ")) };
            trouble = Some(format!("expected {}{because}, and it is {verdict}{found}", item.expected));
            let says_late = |rule| match rule {
                Rule::LateLoss | Rule::NotGranted => true,
                Rule::Leak => is_free_at_last(&shown.history),
                Rule::FalseLoss => has_run_out(&shown.history),
                _ => false,
            };
            // Some holes are open for a moment only. A run that is late does not show them.
            let is_open = unknown().next().is_some() || item.expected == Verdict::Broken;
            is_late = is_open && unknown().all(|finding| says_late(finding.rule));
        }
    }
    Outcome { item: item.clone(), seed, verdict, ok, findings, shown: Some(shown), trouble, is_late, took }
}

/// Whether a lease ran out in a row that is about no loss. Its holder may have had no time to renew it, and what is expected of
/// the row is then another thing.
fn has_run_out(history: &History) -> bool {
    let ran_out = |what: &What| matches!(what, What::Lost { why, .. } if why.starts_with("the lease ran out"));
    let is_due = |what: &What| matches!(what, What::LossDue { .. });
    history.events.iter().any(|event| ran_out(&event.what)) && !history.events.iter().any(|event| is_due(&event.what))
}

/// In the message of an assertion that no lease that ran out explains: the holder knew too early, or went on.
const CLAIMS: [&str; 2] = ["told before its deadline", "let a step go on"];

/// Whether each name that was to be free was seen free soon after that, and none was held for ever.
fn is_free_at_last(history: &History) -> bool {
    let seen_free = |due: &Event, freed: &str, within: u64| {
        let is_it = |what: &What| matches!(what, What::Seen { name, holder: None, .. } if name == freed);
        let soon = due.at..=due.at.saturating_add(within).saturating_add(1_000_000_000);
        history.events.iter().any(|event| soon.contains(&event.at) && is_it(&event.what))
    };
    history.events.iter().all(|event| match &event.what {
        What::FreeDue { name, within } => seen_free(event, name, *within),
        What::Seen { forever, .. } => !forever,
        _ => true,
    })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn row() -> Item {
        Item {
            id: "store/01-row".to_owned(),
            kind: Kind::Scenario,
            subject: String::new(),
            fault: String::new(),
            tier: None,
            expected: Verdict::Holds,
            because: None,
            run: Arc::new(|_, _| unreachable!("it is not run")),
        }
    }

    /// Holders of one name at the same time, and another name that was to be granted.
    fn shown(holders: u32) -> Shown {
        let grant = |acquisition| What::Grant {
            acquisition,
            name: "door".to_owned(),
            weight: 1,
            token: None,
            fence: None,
            until: Some(u64::MAX),
        };
        let mut history = History::new("store/01-row", 1);
        let event = |what| Event { at: 1, who: "A".to_owned(), what };
        history.events = (1..=holders).map(|acquisition| event(grant(acquisition))).collect();
        history.events.push(event(What::GrantDue { name: "gate".to_owned(), within: 1 }));
        Shown::new(history)
    }

    fn is_late(holders: u32, text: &str, starved: bool) -> bool {
        let starved = starved.then(|| "a timer of the lab was 200ms late".to_owned());
        broken_down(&row(), 1, Some(shown(holders)), text, starved, Duration::ZERO).is_late
    }

    #[test]
    fn a_run_that_broke_down_is_late_or_wrong() {
        for text in [
            "waited 10s in vain for A to be granted",
            "A failed: the store did not answer within 250ms",
            "expected Released, and it is Unknown: no reply within 250.5ms",
            "expected Released, and it is Unknown: 127.0.0.1:11211: the server did not answer in time",
            "expected Released, and it is Unknown: the connection failed: connection closed",
            "A was notified only after 260ms",
        ] {
            assert!(is_late(1, text, false), "{text}");
            assert!(!is_late(2, text, false), "two hold: {text}");
            assert!(!is_late(2, text, true), "two hold, on any machine: {text}");
        }
        let wrong = "the door was granted to another";
        for text in [wrong, "expected Released, and it is Unknown: no reply within 5s"] {
            assert!(!is_late(1, text, false) && is_late(1, text, true), "{text}");
        }
        assert!(!is_late(1, &format!("{wrong}\nA waited in vain for B"), false), "what stands below says nothing");
    }

    #[test]
    fn a_run_that_came_to_its_end_is_late_or_wrong() {
        let judged = |holders| judge(&row(), 1, shown(holders), None, Duration::ZERO);
        let (late, wrong) = (judged(1), judged(2));
        assert!(!late.ok && late.is_late, "{late:?}");
        assert!(!wrong.ok && !wrong.is_late, "{wrong:?}");
        let hole = Item { expected: Verdict::Broken, because: Some(Rule::FenceOrder), ..row() };
        let unseen = judge(&hole, 1, Shown::new(History::new("store/01-row", 1)), None, Duration::ZERO);
        assert!(!unseen.ok && unseen.is_late, "{unseen:?}");
    }

    #[test]
    fn what_a_lease_that_ran_out_brings_about_is_late() {
        let ran_out = |holders| {
            let mut shown = shown(holders);
            let why = "the lease ran out without an answer to its renewals".to_owned();
            shown.history.events.push(Event { at: 2, who: "A".to_owned(), what: What::Lost { acquisition: 1, why } });
            shown
        };
        let broke_down = |holders| broken_down(&row(), 1, Some(ran_out(holders)), "four permits", None, Duration::ZERO).is_late;
        assert!(broke_down(1) && !broke_down(2) && !is_late(1, "four permits", false));
        let is_due = || {
            let (mut shown, due) = (ran_out(1), What::LossDue { name: "door".to_owned(), within: 1 });
            shown.history.events.push(Event { at: 1, who: "lab".to_owned(), what: due });
            shown
        };
        let judged = |mut shown: Shown| {
            shown.history.keeps = true;
            judge(&row(), 1, shown, None, Duration::ZERO).is_late
        };
        assert!(judged(ran_out(1)) && !judged(ran_out(2)) && !judged(is_due()));
        let wrong = [("the guard let a step go on", ran_out(1)), ("four permits", is_due())];
        for (text, shown) in wrong {
            assert!(!broken_down(&row(), 1, Some(shown), text, None, Duration::ZERO).is_late, "{text}");
        }
    }

    #[test]
    fn a_name_that_is_free_at_last_was_only_late() {
        let judged = |seen: Option<&str>| {
            let event = |at, what| Event { at, who: "lab".to_owned(), what };
            let mut history = History::new("store/01-row", 1);
            let holder = seen.map(ToOwned::to_owned);
            history.events = vec![
                event(1, What::Seen { name: "door".to_owned(), holder: None, forever: false }),
                event(2, What::FreeDue { name: "door".to_owned(), within: 1 }),
                event(900_000_000, What::Seen { name: "door".to_owned(), holder, forever: false }),
            ];
            judge(&row(), 1, Shown::new(history), None, Duration::ZERO)
        };
        let (late, wrong) = (judged(None), judged(Some("A")));
        assert!(!late.ok && late.is_late, "{late:?}");
        assert!(!wrong.ok && !wrong.is_late, "{wrong:?}");
    }
}
