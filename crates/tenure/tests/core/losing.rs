//! Ends of a lease: by the clock, by an answer of the store, by its longest hold; and the reports
//! of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tenure::{Clock, EndReason, ErrorKind, ReleaseOutcome, State};
use tokio::time::timeout;

use crate::scripted_store::Fate;
use crate::{LONG, SOON, ms, secs, until, world};

/// Without an answer, at the time that was computed when the request was sent. The lease at the
/// store outlasts it.
#[tokio::test(start_paused = true)]
async fn a_lease_is_believed_for_its_ttl_less_drift_and_guard() {
    let (clock, _store, locks) = world();
    let ttl = secs(30);
    let guard = locks.mutex("door").ttl(ttl).fixed_lease().acquire().await.unwrap();
    let (started, valid) = (clock.now(), ttl - ms(300) - ms(2) - secs(3));
    assert_eq!((guard.remaining(), guard.lease_remaining()), (valid, ttl));
    assert_eq!((guard.state(), guard.end_reason()), (State::Held, None));
    let cancelled = guard.cancellation();
    assert!(!cancelled.is_cancelled());
    assert_eq!(timeout(LONG, guard.lost()).await.unwrap(), EndReason::Expired);
    assert_eq!(clock.now().since(started), valid);
    assert_eq!((guard.state(), guard.end_reason(), guard.remaining()), (State::Lost, Some(EndReason::Expired), Duration::ZERO));
    timeout(SOON, cancelled.cancelled()).await.expect("nobody cancels");
    assert_eq!(guard.lease_remaining(), ttl - valid);
    let text = format!("{guard:?}");
    assert!(text.contains("door") && text.contains("Lost"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_jeopardy_until_it_is_over_or_the_lease_is() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    for fate in [Fate::Fails, Fate::Unheard, Fate::Hangs, Fate::Short, Fate::Says(ErrorKind::Refused)] {
        store.fated(fate);
        until(|| guard.state() == State::Jeopardy).await;
        store.fated(Fate::Works);
        until(|| guard.state() == State::Held).await;
    }
    store.fated(Fate::Hangs);
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), EndReason::Expired);
    assert!(guard.lease_remaining() > Duration::ZERO, "told only when the lease had ended at the store");
}

#[tokio::test(start_paused = true)]
async fn a_longest_hold_ends_it_however_well_renewals_go() {
    let (clock, _store, locks) = world();
    let started = clock.now();
    let guard = locks.mutex("door").ttl(secs(3)).max_hold(LONG).acquire().await.unwrap();
    assert_eq!(timeout(LONG * 2, guard.lost()).await.unwrap(), EndReason::MaxHold);
    assert_eq!(clock.now().since(started), LONG);
    let error = guard.verify().await.unwrap_err();
    assert!(error.to_string().contains("longest hold"), "{error}");
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::WasLost));
    assert_eq!(locks.list().await.unwrap(), []);
    // A lease that ran out before its longest hold was not ended by it.
    let guard = locks.mutex("door").ttl(secs(3)).fixed_lease().max_hold(LONG).acquire().await.unwrap();
    assert_eq!(timeout(LONG * 2, guard.lost()).await.unwrap(), EndReason::Expired);
}

/// No message calls a store silent that has answered.
#[tokio::test(start_paused = true)]
async fn a_lease_that_expired_tells_the_error_of_its_last_renewal() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(30)).acquire().await.unwrap();
    assert!(guard.renewal_error().is_none());
    store.fated(Fate::Fails);
    assert_eq!(timeout(LONG, guard.lost()).await.unwrap(), EndReason::Expired);
    let (error, last) = (guard.verify().await.unwrap_err().to_string(), guard.renewal_error().unwrap().to_string());
    assert!(error.contains("its last renewal failed") && error.contains(&last), "{error}");
}

/// The process stood still, with every timer: the work takes no further step, and what it finished
/// meanwhile came too late.
#[tokio::test(start_paused = true)]
async fn work_does_not_go_on_after_a_pause() {
    let (clock, _store, locks) = world();
    for finishes in [false, true] {
        let guard = locks.mutex("door").ttl(secs(30)).acquire().await.unwrap();
        let steps = AtomicUsize::new(0);
        let outcome = guard
            .run(async {
                clock.pause(guard.remaining());
                if finishes {
                    return;
                }
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                    steps.fetch_add(1, Ordering::SeqCst);
                }
            })
            .await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(steps.load(Ordering::SeqCst), 0, "work went on after the deadline");
    }
}

/// An answer that was under way when the deadline passed revives nothing.
#[tokio::test(start_paused = true)]
async fn an_answer_after_the_deadline_revives_nothing() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(30)).acquire().await.unwrap();
    store.fated(Fate::Hangs);
    let extending = guard.extend(LONG);
    let mut extending = std::pin::pin!(extending);
    assert!(timeout(ms(10), extending.as_mut()).await.is_err());
    clock.pause(secs(28));
    store.answer();
    assert_eq!(timeout(SOON, extending).await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.state(), State::Lost);
}

/// Every task that learns of the end, on whatever thread, can read the reason at once.
#[tokio::test(start_paused = true)]
async fn the_reason_is_known_when_the_end_is_told() {
    struct Asks {
        guard: tenure::Guard,
        heard: Mutex<Vec<Option<EndReason>>>,
    }
    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            self.heard.lock().unwrap().push(self.guard.end_reason());
        }
    }
    let (_clock, _store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let asks = Arc::new(Asks { guard: guard.reenter(), heard: Mutex::default() });
    let (waker, token) = (Waker::from(Arc::clone(&asks)), guard.cancellation());
    let mut told = std::pin::pin!(token.cancelled());
    assert!(told.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let _lease = guard.into_lease();
    assert_eq!(*asks.heard.lock().unwrap(), [Some(EndReason::Released)]);
}
