//! Requests that get a copy of the first one's answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::Full;
use hyper::body::Incoming;
use tenure::{Error, Locker, MemoryStore};
use tenure_testkit::{Fate, Faulty, Operation};
use tenure_tower::{Counts, Duplicate, Lock, LockLayer, RequestBody};
use tower::{Layer as _, ServiceExt as _};

use crate::support::*;

fn joining(locks: &Locker) -> LockLayer {
    layer(locks).duplicate(Duplicate::Join).copy_limit(100).build().unwrap()
}

/// A service that counts its runs, and answers with a body of `size` in two parts and with trailers.
fn counting(handler: &Handler, size: usize) -> (Arc<AtomicU64>, Stub) {
    let (runs, handler) = (Arc::new(AtomicU64::new(0)), handler.clone());
    let counted = Arc::clone(&runs);
    let serve = service(move |_| {
        let (handler, runs) = (handler.clone(), Arc::clone(&runs));
        Box::pin(async move {
            let run = runs.fetch_add(1, Ordering::Relaxed) + 1;
            handler.run().await;
            let (frames, body) = streamed();
            frames.send(Frame::data(Bytes::from(format!("run {run}"))))?;
            frames.send(Frame::data(Bytes::from("x".repeat(size))))?;
            let sum = [(HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))];
            frames.send(Frame::trailers(HeaderMap::from_iter(sum)))?;
            Ok(Response::builder().status(201).header("x-run", run).body(body)?)
        })
    });
    (counted, serve)
}

#[tokio::test]
async fn a_crowd_gets_one_answer() {
    let (locks, handler) = (memory(), Handler::new());
    let (layer, (runs, serve)) = (joining(&locks), counting(&handler, 10));
    let service = layer.layer(serve);
    let crowd: Vec<_> = (0..50).map(|_| sending(&service, "7")).collect();
    handler.entered(1).await;
    behind(&layer, 49).await;
    let other = sending(&service, "8");
    handler.entered(2).await;
    handler.let_out(2);
    assert_eq!(other.await.unwrap().header("x-run"), "2");
    for member in crowd {
        let answer = member.await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.header("x-run")), (201, "1"));
        assert_eq!(&answer.body[..], b"run 1xxxxxxxxxx");
        assert_eq!(answer.trailers.unwrap()["x-sum"], "1");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    // The crowd is over.
    handler.let_out(1);
    assert_eq!(send(&service, request("7")).await.header("x-run"), "3");
    let Counts { granted, joined, refused, .. } = layer.stats().counts();
    assert_eq!((granted, joined, refused), (3, 49, 0));
    all_free(&locks).await;
}

async fn two(
    layer: &LockLayer,
    handler: &Handler,
    serve: Stub,
) -> (tokio::task::JoinHandle<Answer>, tokio::task::JoinHandle<Answer>) {
    let service: Lock<Stub> = layer.layer(serve);
    let first = sending(&service, "7");
    handler.entered(1).await;
    let second = sending(&service, "7");
    behind(layer, 1).await;
    (first, second)
}

#[tokio::test]
async fn a_crowd_that_is_over_has_freed_its_key() {
    let (store, handler) = (Faulty::new(MemoryStore::new()), Handler::new());
    let locks = Locker::new(store.clone());
    let (layer, (_, serve)) = (joining(&locks), counting(&handler, 10));
    store.at(Operation::Release, 1, Fate::DelayedBefore(Duration::from_millis(50)));
    let (first, second) = two(&layer, &handler, serve).await;
    handler.let_out(1);
    assert_eq!(second.await.unwrap().status, 201);
    assert!(is_free(&locks, "t:7").await);
    first.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_sent_once() {
    let (locks, handler) = (memory(), Handler::new());
    let (layer, (runs, serve)) = (joining(&locks), counting(&handler, 100));
    let (first, second) = two(&layer, &handler, serve).await;
    handler.let_out(1);
    assert_eq!(first.await.unwrap().body.len(), 105);
    assert_eq!(second.await.unwrap().summary(), (503, "first-too-large".into(), "1".into()));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    all_free(&locks).await;
}

#[tokio::test]
async fn a_first_request_that_hangs_up_leaves_no_answer() {
    let (locks, handler) = (memory(), Handler::new());
    let (layer, (runs, serve)) = (joining(&locks), counting(&handler, 10));
    let (first, second) = two(&layer, &handler, serve).await;
    first.abort();
    assert_eq!(second.await.unwrap().summary(), (503, "first-failed".into(), "1".into()));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    all_free(&locks).await;
}

#[tokio::test]
async fn a_first_request_that_fails_or_panics_leaves_no_answer() {
    for panics in [false, true] {
        let (locks, handler) = (memory(), Handler::new());
        let layer = joining(&locks);
        let inside = handler.clone();
        let service = layer.layer(service(move |_| {
            let inside = inside.clone();
            Box::pin(async move {
                inside.run().await;
                assert!(!panics, "a handler panics, as the test wants it");
                Err(Error::invalid("no").into())
            })
        }));
        let first = tokio::spawn(service.clone().oneshot(request("7")));
        handler.entered(1).await;
        let second = sending(&service, "7");
        behind(&layer, 1).await;
        handler.let_out(1);
        assert_eq!(first.await.is_err(), panics);
        assert_eq!(second.await.unwrap().reason(), "first-failed");
        assert_eq!(handler.entries(), 1);
        all_free(&locks).await;
    }
}

#[tokio::test]
async fn a_first_body_that_is_dropped_leaves_no_answer() {
    let (locks, handler) = (memory(), Handler::new());
    let (layer, (_, serve)) = (joining(&locks), counting(&handler, 10));
    let service = layer.layer(serve);
    let first = tokio::spawn(service.clone().oneshot(request("7")));
    handler.entered(1).await;
    let second = sending(&service, "7");
    behind(&layer, 1).await;
    handler.let_out(1);
    drop(first.await.unwrap().unwrap());
    assert_eq!(second.await.unwrap().reason(), "first-failed");
    all_free(&locks).await;
}

#[tokio::test]
async fn a_crowd_whose_key_is_taken_elsewhere_is_refused() {
    let (locks, handler) = (memory(), Handler::open());
    let (layer, (runs, serve)) = (joining(&locks), counting(&handler, 10));
    let service = layer.layer(serve);
    let elsewhere = locks.mutex("t:7").acquire().await.unwrap();
    let crowd: Vec<_> = (0..9).map(|_| sending(&service, "7")).collect();
    for member in crowd {
        assert_eq!(member.await.unwrap().reason(), "in-progress");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    elsewhere.release().await.unwrap();
    assert_eq!(send(&service, request("7")).await.status, 201);
}

/// Over HTTP, a server stops asking for a body when it has what was promised.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_over_http_is_joined_however_it_ends() {
    for (kind, method, body) in [
        ("chunks", "POST", "hello"),
        ("length", "POST", "hello"),
        ("trailers", "POST", "hello"),
        ("length", "HEAD", ""),
        ("none", "GET", ""),
    ] {
        let (locks, handler) = (memory(), Handler::new());
        let layer = joining(&locks);
        let inside = handler.clone();
        let serve = tower::service_fn(move |_: Request<RequestBody<Incoming>>| {
            let handler = inside.clone();
            async move {
                handler.run().await;
                let (frames, body) = streamed();
                frames.send(Frame::data(Bytes::from_static(b"hello"))).unwrap();
                let response = Response::builder().status(if kind == "none" { 204 } else { 200 });
                let response = match kind {
                    "length" => response.header("content-length", "5"),
                    "trailers" => {
                        let sum = [(HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))];
                        frames.send(Frame::trailers(HeaderMap::from_iter(sum))).unwrap();
                        response.header("trailer", "x-sum")
                    }
                    _ => response,
                };
                // The sender is kept for as long as the body: its end is known by its length alone.
                if kind == "length" {
                    tokio::spawn(async move { frames.closed().await });
                }
                response.body(body)
            }
        });
        let at = serve_hyper(layer.layer(serve)).await;
        let ask = move || async move {
            let request =
                Request::builder().method(method).uri("/").header(KEY, "7").header("te", "trailers").header("host", "x");
            answer(at, request.body(Full::<Bytes>::default()).unwrap()).await.unwrap()
        };
        let first = tokio::spawn(ask());
        handler.entered(1).await;
        let second = tokio::spawn(ask());
        behind(&layer, 1).await;
        handler.let_out(1);
        for one in [first, second] {
            let answer = soon("an answer", one).await.unwrap();
            assert!(answer.status.is_success(), "{method} {kind}: {answer:?}");
            assert_eq!(&answer.body[..], body.as_bytes(), "{method} {kind}");
            assert!(kind != "length" || answer.header("content-length") == "5", "{method} {kind}: {answer:?}");
            assert_eq!(answer.trailers.is_some(), kind == "trailers", "{method} {kind}");
        }
        assert_eq!(handler.entries(), 1, "{method} {kind}");
        // Not in the background: a client that has the whole answer may repeat at once.
        assert!(is_free(&locks, "t:7").await, "{method} {kind}");
    }
}

/// The key names a user, who may ask for several things at once.
#[tokio::test]
async fn requests_of_other_routes_do_not_join() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = joining(&locks);
    let service = locked(&layer, &handler);
    let first = sending(&service, "7");
    handler.entered(1).await;
    for (method, uri) in [("POST", "/other"), ("PUT", "/"), ("POST", "/?page=2")] {
        let other = Request::builder().method(method).uri(uri).header(KEY, "7").body(Full::from("ping")).unwrap();
        assert_eq!(send(&service, other).await.reason(), "in-progress", "{method} {uri}");
    }
    let second = sending(&service, "7");
    behind(&layer, 1).await;
    handler.let_out(1);
    assert_eq!((first.await.unwrap().status.as_u16(), second.await.unwrap().status.as_u16()), (200, 200));
    assert_eq!((handler.entries(), layer.stats().counts().joined), (1, 1));
}

/// Their answers are of use only to a client that has a part, or an earlier state.
#[tokio::test]
async fn requests_for_a_part_or_a_change_do_not_join() {
    const ALONE: [&str; 6] = ["range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since"];
    for header in ALONE {
        let (locks, handler) = (memory(), Handler::new());
        let layer = joining(&locks);
        let service = locked(&layer, &handler);
        let asking =
            || Request::builder().method("POST").uri("/").header(KEY, "7").header(header, "x").body(Full::from("ping")).unwrap();
        let first = sending(&service, "7");
        handler.entered(1).await;
        assert_eq!(send(&service, asking()).await.reason(), "in-progress", "{header} joins");
        handler.let_out(1);
        assert_eq!(first.await.unwrap().status, 200);
        // Nor does anybody join it.
        let first = tokio::spawn({
            let (service, asking) = (service.clone(), asking());
            async move { send(&service, asking).await }
        });
        handler.entered(2).await;
        assert_eq!(send(&service, request("7")).await.reason(), "in-progress", "its answer to {header} is joined");
        assert_eq!(send(&service, asking()).await.reason(), "in-progress", "its answer to {header} is joined");
        handler.let_out(1);
        assert_eq!(first.await.unwrap().status, 200);
        assert_eq!(layer.stats().counts().joined, 0);
    }
}

/// A crowd that is refused counts as refused, each of it.
#[tokio::test]
async fn a_crowd_that_gets_no_answer_is_counted() {
    let store = Faulty::new(MemoryStore::new());
    let (locks, handler) = (Locker::new(store.clone()), Handler::new());
    let (layer, (_, serve)) = (joining(&locks), counting(&handler, 100));
    let service: Lock<Stub> = layer.layer(serve);
    // The key is taken elsewhere, and the answer takes its time.
    let elsewhere = locks.mutex("t:7").acquire().await.unwrap();
    store.at(Operation::Acquire, 1, Fate::DelayedBefore(Duration::from_millis(100)));
    let (first, second) = (sending(&service, "7"), sending(&service, "7"));
    assert_eq!((first.await.unwrap().reason(), second.await.unwrap().reason()), ("in-progress".into(), "in-progress".into()));
    let Counts { joined, refused, .. } = layer.stats().counts();
    assert_eq!((joined, refused), (1, 2));
    elsewhere.release().await.unwrap();
    // Its answer is too large to copy.
    let first = sending(&service, "7");
    handler.entered(1).await;
    let second = sending(&service, "7");
    behind(&layer, 2).await;
    handler.let_out(1);
    assert_eq!((first.await.unwrap().status.as_u16(), second.await.unwrap().reason()), (201, "first-too-large".into()));
    let Counts { joined, refused, unanswered, .. } = layer.stats().counts();
    assert_eq!((joined, refused, unanswered), (2, 2, 1));
}
