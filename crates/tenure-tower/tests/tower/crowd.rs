//! More requests at once than the store answers, and stores that answer some.

use std::time::{Duration, Instant};

use tenure::{Locker, MemoryStore};
use tenure_testkit::{Fate, Faulty, Operation, RedisServer};
use tenure_tower::{Counts, Duplicate, Key, LockLayer, LockLayerBuilder, OnOutage};

use crate::support::*;

/// Two requests for each key. The server is well all the time, so nobody is served without a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_no_outage() {
    const BURST: u64 = 16_000;
    let server = RedisServer::start();
    let locks = tenure_redis::connect(&server.url()).await.unwrap();
    let layer = LockLayer::builder(locks.clone(), "t", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
    let handler = Handler::open();
    let service = locked(&layer, &handler);
    let all: Vec<_> = (0..BURST).map(|n| sending(&service, &(n / 2).to_string())).collect();
    let mut overloaded = 0;
    for one in all {
        let answer = one.await.unwrap();
        match answer.summary() {
            (200, _, _) => assert!(answer.fence().is_some(), "served without a lock"),
            (409, reason, _) => assert_eq!(reason, "in-progress"),
            refused => {
                assert_eq!(refused, (503, "overloaded".into(), "1".into()));
                overloaded += 1;
            }
        }
    }
    let counts = layer.stats().counts();
    println!("{counts:?}");
    let Counts { granted, refused, failed_open, failed_closed, .. } = counts;
    assert_eq!((granted, failed_open, failed_closed), (handler.entries(), 0, 0));
    assert_eq!(granted + refused + overloaded, BURST);
    // Far more than are under way at once: the store is asked for the whole time.
    assert!(granted > 3 * 128, "{counts:?}");
    all_free(&locks).await;
}

/// A store whose calls may take so long, and a layer that fails open.
fn impatient(limit: Duration) -> (Faulty<MemoryStore>, LockLayerBuilder) {
    let store = Faulty::new(MemoryStore::new()).features(move |features| features.operation_timeout = Some(limit));
    let locks = Locker::new(store.clone());
    (store, LockLayer::builder(locks, "t", Key::header(KEY), OnOutage::FailOpen))
}

#[tokio::test]
async fn a_store_that_answers_others_is_not_gone() {
    let (store, layer) = impatient(Duration::from_millis(500));
    let (layer, handler) = (layer.build().unwrap(), Handler::open());
    let service = locked(&layer, &handler);
    store.at(Operation::Acquire, 1, Fate::HangsBefore);
    let silent = sending(&service, "7");
    store.called(Operation::Acquire, 1).await;
    assert_eq!(send(&service, request("8")).await.status, 200);
    assert_eq!(silent.await.unwrap().summary(), (503, "overloaded".into(), "1".into()));
    let Counts { granted, failed_open, overloaded, .. } = layer.stats().counts();
    assert_eq!((granted, failed_open, overloaded, handler.entries()), (1, 0, 1, 1));
    // Silent to everybody: the store is gone.
    store.plan(|operation, _| if operation == Operation::Acquire { Fate::HangsBefore } else { Fate::Works });
    let began = Instant::now();
    let answer = send(&service, request("7")).await;
    was_in_time(&answer, began.elapsed(), Duration::from_millis(600));
    assert_eq!((answer.status.as_u16(), answer.fence()), (200, None), "{}", answer.reason());
    assert_eq!(layer.stats().counts().failed_open, 1);
}

/// The first lease covers the cool-down, so the call for it has more time than one for the ttl.
#[tokio::test]
async fn an_outage_is_one_with_a_long_cool_down_as_well() {
    let store = Faulty::new(MemoryStore::new());
    let layer = LockLayer::builder(Locker::new(store.clone()), "t", Key::header(KEY), OnOutage::FailOpen);
    let layer = layer.ttl(Duration::from_secs(3)).cool_down(LONG).build().unwrap();
    let service = locked(&layer, &Handler::open());
    store.plan(|operation, _| if operation == Operation::Acquire { Fate::HangsBefore } else { Fate::Works });
    let began = Instant::now();
    let answer = send(&service, request("7")).await;
    was_in_time(&answer, began.elapsed(), Duration::from_millis(1_200));
    assert_eq!((answer.status.as_u16(), answer.fence()), (200, None), "{}", answer.reason());
    assert_eq!(layer.stats().counts().failed_open, 1);
}

#[tokio::test]
async fn requests_without_a_turn_learn_of_an_outage_as_well() {
    let (store, layer) = impatient(Duration::from_millis(500));
    let layer = layer.in_flight(1).build().unwrap();
    let service = locked(&layer, &Handler::open());
    store.plan(|operation, _| if operation == Operation::Acquire { Fate::HangsBefore } else { Fate::Works });
    let began = Instant::now();
    let all: Vec<_> = (0..20).map(|n| sending(&service, &n.to_string())).collect();
    let mut answers = Vec::new();
    for one in all {
        answers.push(one.await.unwrap());
    }
    let took = began.elapsed();
    for answer in answers {
        was_in_time(&answer, took, Duration::from_millis(600));
        assert_eq!((answer.status.as_u16(), answer.fence()), (200, None));
    }
    assert_eq!(layer.stats().counts().failed_open, 20);
    assert!(store.calls(Operation::Acquire) < 5, "each waited for its own turn");
}

/// However short the wait of a duplicate: the time that it waits is no evidence.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_turn_calls_no_outage() {
    let (store, layer) = impatient(Duration::from_millis(500));
    let layer = layer.duplicate(Duplicate::Wait(Duration::from_millis(10))).in_flight(1).build().unwrap();
    let handler = Handler::open();
    let service = locked(&layer, &handler);
    store.plan(|operation, _| match operation {
        Operation::Acquire => Fate::DelayedBefore(Duration::from_millis(100)),
        _ => Fate::Works,
    });
    let first = sending(&service, "7");
    store.called(Operation::Acquire, 1).await;
    assert_eq!(send(&service, request("7")).await.summary(), (503, "overloaded".into(), "1".into()));
    assert!(first.await.unwrap().fence().is_some());
    let Counts { granted, failed_open, overloaded, .. } = layer.stats().counts();
    assert_eq!((granted, failed_open, overloaded, handler.entries()), (1, 0, 1, 1));
}

/// Requests for a key that is taken give up all the time. That is no answer of the store.
#[tokio::test]
async fn a_key_that_is_asked_for_again_and_again_hides_no_outage() {
    let (store, layer) = impatient(Duration::from_millis(500));
    let layer = layer.duplicate(Duplicate::Wait(Duration::from_millis(100))).build().unwrap();
    let service = locked(&layer, &Handler::open());
    let taken = Locker::new(store.clone()).mutex("t:7").acquire().await.unwrap();
    assert_eq!(send(&service, request("7")).await.status, 409);
    store.plan(|operation, _| if operation == Operation::Acquire { Fate::HangsBefore } else { Fate::Works });
    // The first asks for all that come after it.
    let asked = store.calls(Operation::Acquire);
    let leader = sending(&service, "7");
    store.called(Operation::Acquire, asked + 1).await;
    let again = tokio::spawn({
        let service = service.clone();
        async move {
            loop {
                send(&service, request("7")).await;
            }
        }
    });
    let began = Instant::now();
    let answer = send(&service, request("8")).await;
    was_in_time(&answer, began.elapsed(), Duration::from_millis(700));
    assert_eq!((answer.status.as_u16(), answer.fence()), (200, None), "{}", answer.reason());
    again.abort();
    leader.await.unwrap();
    drop(taken);
}

/// As a server of a ring, or a master of a cluster. Requests for its keys wait for it, and not at the cost of others.
#[tokio::test]
async fn a_shard_that_is_gone_takes_no_turn_from_the_others() {
    let (store, layer) = impatient(Duration::from_millis(300));
    let layer = layer.duplicate(Duplicate::Wait(Duration::from_secs(10))).in_flight(2).build().unwrap();
    let service = locked(&layer, &Handler::open());
    store.plan_by_name(|name| if name.as_str().ends_with("dead") { Fate::HangsBefore } else { Fate::Works });
    let dead = ["1 dead", "2 dead"].map(|key| sending(&service, key));
    store.called(Operation::Acquire, 2).await;
    let began = Instant::now();
    assert!(send(&service, request("live")).await.fence().is_some(), "served without a lock");
    assert!(began.elapsed() < Duration::from_secs(2), "took {:?}", began.elapsed());
    store.heal();
    for one in dead {
        assert!(one.await.unwrap().fence().is_some());
    }
}

/// A busy key is watched before it is asked for again. Both take one timeout together.
#[tokio::test]
async fn a_watch_that_is_not_answered_hides_no_outage() {
    let (store, layer) = impatient(Duration::from_millis(500));
    let layer = layer.duplicate(Duplicate::Wait(Duration::from_millis(100))).build().unwrap();
    let service = locked(&layer, &Handler::open());
    let taken = Locker::new(store.clone()).mutex("t:7").acquire().await.unwrap();
    assert_eq!(send(&service, request("7")).await.status, 409);
    store.plan(|operation, _| match operation {
        Operation::Acquire | Operation::Watch => Fate::HangsBefore,
        _ => Fate::Works,
    });
    let began = Instant::now();
    let answer = send(&service, request("7")).await;
    let took = began.elapsed();
    was_in_time(&answer, took, Duration::from_millis(700));
    assert_eq!((answer.status.as_u16(), answer.fence()), (200, None), "{}", answer.reason());
    assert!(took < Duration::from_millis(900), "took {took:?}");
    drop(taken);
}

#[tokio::test(start_paused = true)]
async fn a_turn_comes_soon_or_not_at_all() {
    let (store, layer) = impatient(Duration::from_millis(100));
    let layer = layer.in_flight(1).build().unwrap();
    let service = locked(&layer, &Handler::open());
    store.plan(|operation, _| match operation {
        Operation::Acquire => Fate::DelayedBefore(Duration::from_millis(40)),
        _ => Fate::Works,
    });
    let all: Vec<_> = (0..20).map(|n| sending(&service, &n.to_string())).collect();
    let mut reasons = Vec::new();
    for one in all {
        reasons.push(one.await.unwrap().reason());
    }
    // In the order in which they came.
    let served = reasons.iter().take_while(|reason| reason.is_empty()).count();
    assert!((1..=4).contains(&served) && reasons[served..].iter().all(|reason| reason == "overloaded"), "{reasons:?}");
    assert_eq!(layer.stats().counts().failed_open, 0);
}

#[tokio::test]
async fn a_request_that_waits_for_its_key_leaves_its_turn_to_others() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).duplicate(Duplicate::Wait(LONG)).in_flight(1).build().unwrap();
    let service = locked(&layer, &handler);
    let [first, second] = one_in_and_one_behind(&layer, &service, &handler).await;
    let third = sending(&service, "8");
    handler.entered(2).await;
    handler.let_out(3);
    for one in [first, second, third] {
        assert_eq!(one.await.unwrap().status, 200);
    }
}

/// A handler that blocks the only thread while others ask: their calls end late, and by no fault of
/// the store.
#[tokio::test]
async fn a_process_that_stands_still_is_no_outage() {
    let server = RedisServer::start();
    let locks = tenure_redis::connect(&server.url()).await.unwrap();
    let layer = LockLayer::builder(locks, "t", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
    let service = locked(&layer, &Handler::open());
    let all: Vec<_> = (0..100).map(|n| sending(&service, &n.to_string())).collect();
    // Each of them was polled once, and the connection was not.
    let blocking = tokio::spawn(async { std::thread::sleep(Duration::from_millis(1_500)) });
    for one in all {
        let answer = one.await.unwrap();
        assert!(answer.fence().is_some() || answer.reason() == "overloaded", "{answer:?}");
    }
    blocking.await.unwrap();
    assert_eq!(layer.stats().counts().failed_open, 0);
}
