//! The time between two polls: its length, the reports meanwhile, and the end of the wait.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::{AcquireReply, Busy, Notice};
use tenure::{BootTime, Clock, ErrorKind, Holder, Owner, Share, Waiting};
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, Hints, ScriptedStore};
use crate::{LIMIT, LONG, SOON, locker, ms, released, secs, served, waiter, world};

/// Reports to an observer, in words.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn observer(&self) -> impl Fn(Waiting<'_>) + Send + Sync + 'static {
        let told = self.0.clone();
        move |what| {
            let text = match what {
                Waiting::Busy(holder) => format!("busy {:?}", holder.and_then(|holder| holder.owner.label())),
                Waiting::Outage(_) => "outage".to_owned(),
                // Each with a number of its own, if there is one.
                Waiting::OutageGoesOn(error) if error.to_string().contains("left") => error.to_string(),
                Waiting::OutageGoesOn(_) => return,
                Waiting::Recovered => "recovered".to_owned(),
                _ => panic!("{what:?}"),
            };
            told.lock().unwrap().push(text);
        }
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn pauses(store: &ScriptedStore) -> Vec<Duration> {
    let times: Vec<BootTime> = store.acquires().into_iter().map(|(at, _)| at).collect();
    times.windows(2).map(|pair| pair[1].since(pair[0])).collect()
}

fn busy(label: &str, ttl: Option<Duration>, poll_interval: Duration) -> AcquireReply {
    let owner = Owner::from_bytes(format!("{label}.{}", "0".repeat(32)).into_bytes());
    let holder = Holder::new(owner, Share::MUTEX).with_ttl(ttl);
    AcquireReply::Busy(Busy::new(poll_interval).with_holder(holder))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answered_is_given_up_and_one_that_did_is_waited_for() {
    let (clock, store, locks) = world();
    store.fated(Fate::Fails);
    let started = clock.now();
    let error = timeout(LONG, locks.mutex("door").acquire()).await.expect("it waits for ever").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let waited = clock.now().since(started);
    assert!(waited >= secs(5) && waited < secs(6), "{waited:?}");
    store.fated(Fate::Works);
    let _ = locks.mutex("door").acquire().await.unwrap().release().await.unwrap();
    store.fated(Fate::Fails);
    let told = Told::default();
    let acquire = locks.mutex("door").on_wait(told.observer());
    let waiting = tokio::spawn(acquire.acquire());
    tokio::time::sleep(LONG).await;
    assert!(!waiting.is_finished());
    store.fated(Fate::Works);
    let _guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(told.all(), ["outage", "recovered"], "one line for each outage");
}

/// A busy name is watched before it is asked for again. Both have one operation timeout together.
#[tokio::test(start_paused = true)]
async fn a_wait_is_prolonged_by_one_operation_timeout_at_most() {
    let (clock, store, locks) = world();
    let _held = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let busy = locks.mutex("door").ttl(LONG).wait(ms(100)).acquire().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::TimedOut);
    store.hints(Hints::Hang);
    store.fated(Fate::Hangs);
    let (started, served) = (clock.now(), locks.last_served());
    let error = locks.mutex("door").ttl(LONG).wait(ms(100)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(clock.now().since(started) <= ms(100) + LIMIT, "{:?}", clock.now().since(started));
    assert!(served <= Some(started) && locks.last_served() == served, "nothing was answered meanwhile");
}

/// A leader that gives up in an outage publishes it to its followers.
#[tokio::test(start_paused = true)]
async fn who_follows_in_an_outage_is_told_of_it() {
    let (_clock, store, locks) = world();
    let _held = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let busy = locks.mutex("door").ttl(LONG).wait(ms(100)).acquire().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::TimedOut);
    store.fated(Fate::Hangs);
    let waits = |wait| locks.mutex("door").ttl(LONG).wait(wait).acquire();
    // The second asks when the first has given up. The third one's time ends meanwhile.
    let (first, second, third) = tokio::join!(waits(ms(100)), waits(LIMIT + ms(50)), waits(LIMIT + ms(50)));
    for error in [first, second, third].map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
}

/// One of them asks the store for all.
#[tokio::test(start_paused = true)]
async fn all_who_wait_in_one_process_are_told_that_the_name_is_busy() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").label("holder").acquire().await.unwrap();
    let told: Vec<Told> = (0..3).map(|_| Told::default()).collect();
    let mut waiting = Vec::new();
    for told in &told {
        waiting.push(waiter(locks.mutex("door").on_wait(told.observer())).await);
        assert_eq!(told.all(), ["busy Some(\"holder\")"]);
    }
    store.forget_calls();
    released(guard).await;
    for one in waiting {
        released(served(one).await).await;
    }
}

/// A store that says that it cannot serve now is there: that is an answer.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_loading_is_waited_for() {
    let (_clock, store, locks) = world();
    store.fated(Fate::Says(ErrorKind::Unavailable));
    let waiting = tokio::spawn(locks.mutex("door").acquire());
    tokio::time::sleep(LONG).await;
    assert!(!waiting.is_finished());
    store.fated(Fate::Works);
    let _guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
}

/// The wait that was asked for ends earlier than the patience for a store that never answered.
#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_an_outage_says_so() {
    let (clock, store, locks) = world();
    for answered in [false, true] {
        store.fated(Fate::Fails);
        let started = clock.now();
        let error = locks.mutex("door").ttl(LONG).wait(ms(400)).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "answered {answered}");
        assert_eq!(clock.now().since(started), ms(400), "answered {answered}");
        store.fated(Fate::Works);
        let _ = locks.mutex("door").acquire().await.unwrap().release().await.unwrap();
    }
}

/// The countdown of a quorum that does not vote.
#[tokio::test(start_paused = true)]
async fn an_outage_that_goes_on_is_reported_with_the_times_of_now() {
    let (_clock, store, locks) = world();
    store.answers([3, 2, 1].map(|left| AcquireReply::Refused { until: secs(1), why: format!("{left} s are left") }));
    let told = Told::default();
    let _guard = locks.mutex("door").on_wait(told.observer()).acquire().await.unwrap();
    assert_eq!(told.all(), ["outage", "2 s are left", "1 s are left", "recovered"]);
}

/// Not so often that a store in trouble is burdened, and out of step with others.
#[tokio::test(start_paused = true)]
async fn an_outage_is_looked_at_in_measured_steps() {
    let (_clock, store, locks) = world();
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    store.forget_calls();
    store.fated(Fate::Fails);
    locks.mutex("door").ttl(LONG).wait(secs(10)).acquire().await.unwrap_err();
    let mut pauses = pauses(&store);
    pauses.pop();
    assert!(pauses.len() > 100);
    // A quarter of the operation timeout, with jitter.
    let range = (LIMIT / 4).mul_f64(0.75)..=(LIMIT / 4).mul_f64(1.25) + ms(1);
    assert!(pauses.iter().all(|pause| range.contains(pause)), "{pauses:?}");
    assert!(pauses.iter().max().unwrap().saturating_sub(*pauses.iter().min().unwrap()) > ms(10), "{pauses:?}");
}

/// A refused connection is a notice, and each poll makes another. A handoff alone ends the pause.
#[tokio::test(start_paused = true)]
async fn notices_do_not_shorten_the_pauses_of_an_outage() {
    let (_clock, store, locks) = world();
    store.hints(Hints::Pushed);
    let held = locks.mutex("door").ttl(LONG * 10).acquire().await.unwrap();
    let told = Told::default();
    let waiting = tokio::spawn(locks.mutex("door").ttl(LONG).on_wait(told.observer()).acquire());
    let mut leaders = locks.election("door").observe();
    assert!(leaders.next().await.unwrap().unwrap().is_some());
    tokio::time::sleep(ms(100)).await;
    store.forget_calls();
    store.fated(Fate::Fails);
    let outage = async {
        for _ in 0..2_000 {
            store.push(&Notice::Changed);
            tokio::time::sleep(ms(5)).await;
        }
    };
    let observed = async { while leaders.next().await.is_some() {} };
    tokio::select! { () = outage => {}, () = observed => panic!("the stream ends") }
    // Ten seconds, in pauses of a quarter of the operation timeout.
    let polls = store.acquires().len();
    let inspected = store.calls().iter().filter(|(_, call)| matches!(call, Call::Inspect)).count();
    assert!((100..300).contains(&polls) && (10..300).contains(&inspected), "{polls} polls and {inspected} looks");
    store.fated(Fate::Says(ErrorKind::Unavailable));
    tokio::time::sleep(secs(1)).await;
    store.fated(Fate::Works);
    released(held).await;
    let _guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    let told: Vec<String> = told.all().into_iter().filter(|what| !what.starts_with("busy")).collect();
    assert_eq!(told, ["outage", "outage", "recovered"], "one report of each reason");
}

/// Without notices a waiter polls at the interval, with jitter, and never starves others.
#[tokio::test(start_paused = true)]
async fn a_waiter_without_hints_looks_at_the_interval() {
    for hints in [Hints::Silent, Hints::End, Hints::Fail] {
        let (_clock, store, locks) = world();
        store.hints(hints);
        let _guard = locks.mutex("door").ttl(LONG * 10).acquire().await.unwrap();
        // The store's own choice is a second.
        for (every, own) in [(secs(1), None), (ms(200), Some(ms(200)))] {
            // Long enough that the name is not remembered as contended.
            tokio::time::sleep(secs(3)).await;
            store.forget_calls();
            let mut acquire = locks.mutex("door").ttl(LONG).wait(LONG);
            if let Some(own) = own {
                acquire = acquire.poll_interval(own);
            }
            assert_eq!(acquire.acquire().await.unwrap_err().kind(), ErrorKind::TimedOut);
            let mut pauses = pauses(&store);
            // The poll after the watch is armed comes at once, and so does one when the notices
            // have ended.
            let at_once = pauses.iter().take_while(|pause| pause.is_zero()).count();
            assert_eq!(at_once, if hints == Hints::End { 2 } else { 1 }, "{hints:?}: {pauses:?}");
            // The last one comes at the end of the wait.
            pauses.pop();
            pauses.drain(..at_once);
            assert!(pauses.len() >= 40, "{hints:?}: {pauses:?}");
            let range = every.mul_f64(0.8)..=every.mul_f64(1.2) + ms(1);
            assert!(pauses.iter().all(|pause| range.contains(pause)), "{hints:?}: {pauses:?}");
            let spread = pauses.iter().max().unwrap().saturating_sub(*pauses.iter().min().unwrap());
            assert!(spread > every / 10, "waiters march in step: {pauses:?}");
            let watched = store.calls().iter().filter(|(_, call)| matches!(call, Call::Watch)).count();
            assert_eq!(watched, 1, "{hints:?}");
        }
    }
}

/// A lease that nobody renews ends at a known time: the waiter is there, and not an interval later.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_there_when_a_lease_ends() {
    let (clock, store, locks) = world();
    store.hints(Hints::Silent);
    let started = clock.now();
    let held = locks.mutex("door").ttl(secs(2)).fixed_lease().acquire().await.unwrap();
    store.forget_calls();
    let _guard = locks.mutex("door").ttl(LONG).poll_interval(LONG).acquire().await.unwrap();
    let waited = clock.now().since(started);
    assert!(waited >= secs(2) && waited <= secs(2) + ms(5), "{waited:?}");
    assert_eq!(store.acquires().len(), 4, "busy, queued once the watch is armed, a heartbeat, granted");
    drop(held);
}

/// A notice reports the release, long before the interval is over.
#[tokio::test(start_paused = true)]
async fn a_hint_ends_the_pause() {
    let (clock, _store, locks) = world();
    let held = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.mutex("door").ttl(LONG).poll_interval(LONG).acquire());
    tokio::time::sleep(secs(3)).await;
    assert!(!waiting.is_finished());
    let freed = clock.now();
    let _ = held.release().await.unwrap();
    let _guard = timeout(SOON, waiting).await.expect("the waiter was forgotten").unwrap().unwrap();
    assert!(clock.now().since(freed) <= ms(5));
}

#[tokio::test(start_paused = true)]
async fn a_wait_lasts_as_long_as_was_asked() {
    let (clock, _store, locks) = world();
    let _guard = locks.mutex("door").ttl(LONG * 10).label("keeper").acquire().await.unwrap();
    for (wait, words) in [(Duration::ZERO, "is held by keeper"), (ms(2_500), "gave up after 2.5s: \"door\" is held by keeper")] {
        let started = clock.now();
        let error = locks.mutex("door").ttl(LONG).wait(wait).acquire().await.unwrap_err();
        assert_eq!((error.kind(), clock.now().since(started)), (ErrorKind::TimedOut, wait));
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.holder().unwrap().owner.label(), Some("keeper"));
    }
    let endless = timeout(LONG, locks.mutex("door").ttl(LONG).acquire()).await;
    assert!(endless.is_err(), "without a limit it waits for ever");
}

/// Reported first and whenever the holder changes, and not at every poll.
#[tokio::test(start_paused = true)]
async fn an_observer_hears_of_each_holder_once() {
    let (_clock, store, locks) = world();
    store.hints(Hints::Silent);
    let (told, every) = (Told::default(), ms(100));
    let answers = ["first", "first", "first", "second", "second", "first"].map(|who| busy(who, None, every));
    store.answers(answers);
    let _guard = locks.mutex("door").ttl(LONG).on_wait(told.observer()).acquire().await.unwrap();
    assert_eq!(told.all(), ["busy Some(\"first\")", "busy Some(\"second\")", "busy Some(\"first\")"]);
    // An unknown holder is reported as well, once.
    let (told, unknown) = (Told::default(), AcquireReply::Busy(Busy::new(every)));
    store.answers([unknown.clone(), unknown.clone(), unknown]);
    let _other = locks.mutex("gate").ttl(LONG).on_wait(told.observer()).acquire().await.unwrap();
    assert_eq!(told.all(), ["busy None"]);
}

/// The time for which a waiter has seen a holder is not the time for which that one has held.
#[tokio::test(start_paused = true)]
async fn an_age_that_the_store_does_not_tell_is_not_made_up() {
    let (_clock, store, locks) = world();
    store.hints(Hints::Silent);
    store.answers((0..6).map(|_| busy("first", None, LONG)));
    let error = locks.mutex("door").ttl(LONG).wait(LONG * 2).acquire().await.unwrap_err();
    let holder = error.holder().unwrap();
    assert_eq!((holder.owner.label(), holder.age), (Some("first"), None), "{error}");
}

/// A reader is never the reason that keeps a reader out.
#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_who_waits_is_told_of_the_writer() {
    let (_clock, _store, locks) = world();
    let _reader = locks.read("door").ttl(LONG * 10).label("reader").acquire().await.unwrap();
    let _writer = waiter(locks.write("door").ttl(LONG)).await;
    let error = locks.read("door").ttl(LONG).wait(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(error.to_string(), "\"door\" has readers, and a writer waits in front");
}

/// A store that grants nothing for now says for how long.
#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_part_is_asked_again_when_it_does() {
    let (clock, store, locks) = world();
    let refused = || AcquireReply::Refused { until: secs(7), why: "it may have forgotten leases".to_owned() };
    store.answers([refused()]);
    let started = clock.now();
    let _guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let waited = clock.now().since(started);
    assert!(waited >= secs(7) && waited < secs(8), "{waited:?}");
    store.answers([refused(), refused(), refused()]);
    let started = clock.now();
    let error = locks.mutex("gate").ttl(LONG).wait(secs(3)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), clock.now().since(started)), (ErrorKind::Unavailable, secs(3)));
    assert!(error.to_string().contains("forgotten"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn extreme_settings_neither_panic_nor_spin() {
    let (clock, store, locks) = world();
    let _guard = locks.mutex("door").ttl(LONG).max_hold(Duration::MAX).safety_margin(secs(1)).acquire().await.unwrap();
    let endless = locks.mutex("door").ttl(LONG).wait(Duration::MAX).poll_interval(Duration::MAX).acquire();
    assert!(timeout(ms(50), endless).await.is_err());
    store.forget_calls();
    let spinning = locker(&clock, &store).mutex("door").ttl(LONG).poll_interval(Duration::ZERO).acquire();
    assert!(timeout(ms(50), spinning).await.is_err());
    assert!(store.acquires().len() <= 70, "{} looks in 50 ms", store.acquires().len());
    assert!(locks.mutex("door").safety_margin(Duration::MAX).acquire().await.is_err());
}
