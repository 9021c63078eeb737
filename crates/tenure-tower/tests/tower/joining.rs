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
use tokio::sync::mpsc;
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
    let (locks, (_frames, body)) = (memory(), streamed());
    let layer = joining(&locks);
    let service = layer.layer(once(Response::new(body)));
    let first = service.clone().oneshot(request("7")).await.unwrap();
    let second = sending(&service, "7");
    behind(&layer, 1).await;
    drop(first);
    assert_eq!(second.await.unwrap().reason(), "first-failed");
    all_free(&locks).await;
}

/// The first client sees that its answer broke off. A copy would look whole.
#[tokio::test]
async fn an_answer_that_is_shorter_than_it_says_is_not_joined() {
    let (locks, (frames, body)) = (memory(), streamed());
    let layer = joining(&locks);
    let service = layer.layer(once(Response::builder().header("content-length", 10).body(body).unwrap()));
    let first = service.clone().oneshot(request("7")).await.unwrap();
    let second = sending(&service, "7");
    behind(&layer, 1).await;
    frames.send(Frame::data(Bytes::from_static(b"hello"))).unwrap();
    drop(frames);
    assert_eq!(&Answer::of(first).await.unwrap().body[..], b"hello");
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
    for is_late in [false, true] {
        for (kind, method, body) in [
            ("chunks", "POST", "hello"),
            ("length", "POST", "hello"),
            ("trailers", "POST", "hello"),
            ("length", "HEAD", ""),
            ("none", "GET", ""),
        ] {
            joined_over_http(is_late, kind, method, body).await;
        }
    }
}

/// The body of the answer comes with its head, or when that has been sent.
async fn joined_over_http(is_late: bool, kind: &'static str, method: &'static str, body: &str) {
    let case = format!("{method} {kind}, late: {is_late}");
    let (locks, handler) = (memory(), Handler::new());
    let layer = joining(&locks);
    let (inside, (to_test, mut writers)) = (handler.clone(), mpsc::unbounded_channel());
    let serve = tower::service_fn(move |_: Request<RequestBody<Incoming>>| {
        let (handler, to_test) = (inside.clone(), to_test.clone());
        async move {
            handler.run().await;
            let (frames, body) = streamed();
            if is_late {
                to_test.send(frames).unwrap();
            } else {
                write(kind, &frames);
                keep(kind, frames);
            }
            let response = Response::builder().status(if kind == "none" { 204 } else { 200 });
            let response = match kind {
                "length" => response.header("content-length", "5"),
                "trailers" => response.header("trailer", "x-sum"),
                _ => response,
            };
            response.body(body)
        }
    });
    let at = serve_hyper(layer.layer(serve)).await;
    let ask = move || async move {
        let request = Request::builder().method(method).uri("/").header(KEY, "7").header("te", "trailers").header("host", "x");
        call(at, request.body(Full::<Bytes>::default()).unwrap()).await.unwrap()
    };
    let first = tokio::spawn(ask());
    handler.entered(1).await;
    let second = tokio::spawn(ask());
    behind(&layer, 1).await;
    handler.let_out(1);
    let first = soon("the head", first).await.unwrap();
    if is_late {
        let frames = writers.recv().await.unwrap();
        write(kind, &frames);
        keep(kind, frames);
    }
    for response in [first, soon("the other head", second).await.unwrap()] {
        let answer = soon("an answer", Answer::of(response)).await.unwrap();
        assert!(answer.status.is_success(), "{case}: {answer:?}");
        assert_eq!(&answer.body[..], body.as_bytes(), "{case}");
        assert!(kind != "length" || answer.header("content-length") == "5", "{case}: {answer:?}");
        assert_eq!(answer.trailers.is_some(), kind == "trailers", "{case}");
    }
    assert_eq!(handler.entries(), 1, "{case}");
    // Not in the background: a client that has the whole answer may repeat at once.
    assert!(is_free(&locks, "t:7").await, "{case}");
}

/// Writes a body. Nobody reads that of an answer without one.
fn write(kind: &str, frames: &Frames) {
    let _ = frames.send(Frame::data(Bytes::from_static(b"hello")));
    if kind == "trailers" {
        let _ = frames.send(trailers());
    }
}

/// Keeps the sender for as long as the body, if the end of that is known by its length alone.
fn keep(kind: &str, frames: Frames) {
    if kind == "length" {
        tokio::spawn(async move { frames.closed().await });
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

/// Their answers are of use only to a client that has a part, or an earlier state, or to the connection they came on.
#[tokio::test]
async fn requests_for_a_part_a_change_or_another_protocol_do_not_join() {
    const ALONE: [&str; 7] =
        ["range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "upgrade"];
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
