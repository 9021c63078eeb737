//! Workers: their reports, and that they end at the step that a test chose.

use std::process::Command;
use std::time::Duration;

use tenure_testkit::history::{Event, History, Rule, What, check};
use tenure_testkit::worker::{Call, Deed, Moment, Probe, Terms};
use tenure_testkit::{Program, Recorder, Register, Worker};

const PATIENCE: Duration = Duration::from_secs(20);

fn recorder() -> Recorder {
    Recorder::new(History::new("worker", 0))
}

fn start(url: &str, recorder: &Recorder) -> Worker {
    Worker::join(Program::this_test().on(url), "A", recorder.clone())
}

fn died(recorder: &Recorder) {
    recorder.wait(PATIENCE, "its death", |event| event.what == What::Died);
}

#[test]
fn an_armed_worker_dies_at_its_step_and_not_before() {
    let recorder = recorder();
    let mut worker = start("memory:", &recorder);
    worker.arm(Probe { call: Call::Renew, number: 2, moment: Moment::Before, deed: Deed::Die });
    worker.ask("door", Terms::new(Duration::from_secs(4)));
    died(&recorder);
    let history = recorder.take_down();
    let renewals = history.events.iter().filter(|event| matches!(event.what, What::Valid { .. })).count();
    assert_eq!(renewals, 1, "{history:?}");
    assert!(check(&history).is_empty(), "{:?}", check(&history));
}

/// Else a worker that crashes would pass for one that says nothing.
#[test]
fn a_worker_that_ends_by_itself_is_a_finding() {
    let recorder = recorder();
    let _worker = Worker::join(Command::new("true"), "A", recorder.clone());
    died(&recorder);
    let findings = check(&recorder.take_down());
    assert_eq!(findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), [Rule::Untyped]);
}

#[test]
fn work_is_written_down_and_ends_with_the_release() {
    let recorder = recorder();
    let register = Register::open(recorder.clone());
    let mut worker = start("memory:", &recorder);
    let acquisition = worker.ask("door", Terms::new(Duration::from_secs(30)));
    worker.work(acquisition, &register);
    let wrote = |event: &Event| matches!(event.what, What::Write { wrote: 3, accepted: true, .. });
    recorder.wait(PATIENCE, "the third write", wrote);
    assert_eq!(worker.release_claim(acquisition), "Released");
    let events = recorder.take_down().events;
    let released = events.iter().position(|event| matches!(event.what, What::Release { .. })).unwrap();
    let visits = |event: &Event| matches!(event.what, What::Read { .. } | What::Write { .. });
    assert!(!events[released..].iter().any(visits), "it went on after its release: {events:?}");
}

#[test]
fn a_panic_of_a_task_ends_the_worker_and_is_told() {
    let recorder = recorder();
    let mut worker = start("memory:", &recorder);
    worker.acquire("door", Duration::from_secs(2));
    let register = Register::open(recorder.clone());
    std::fs::remove_file(register.path()).unwrap();
    // Its task cannot reach the resource, and panics.
    worker.work(1, &register);
    died(&recorder);
    let rules: Vec<Rule> = check(&recorder.take_down()).iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [Rule::Untyped]);
}
