//! Requests that no lock can be taken for: typed answers, and nothing taken.

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tenure::{Locker, MemoryStore};
use tenure_testkit::{Faulty, Operation};
use tenure_tower::{Duplicate, Key, Keyless, LockLayer, OnOutage};
use tower::Layer as _;

use crate::support::*;

/// A store that counts its calls, and a locker on it.
fn counted() -> (Faulty<MemoryStore>, Locker) {
    let store = Faulty::new(MemoryStore::new());
    (store.clone(), Locker::new(store))
}

fn post(body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post("/orders/%0a").body(Full::new(body.into())).unwrap()
}

fn twice() -> Request<Full<Bytes>> {
    let mut request = request("7");
    request.headers_mut().append(KEY, http::HeaderValue::from_static("8"));
    request
}

#[tokio::test]
async fn a_request_without_a_usable_key_takes_nothing() {
    let long = "k".repeat(257);
    let field = || Key::json("/user/id").body_limit(100);
    let cases = [
        ("no header", Key::header(KEY), post(""), 400, "no-key"),
        ("an empty header", Key::header(KEY), request(""), 400, "no-key"),
        ("a long header", Key::header(KEY), request(&long), 400, "bad-key"),
        ("a header that occurs twice", Key::header(KEY), twice(), 400, "bad-key"),
        ("a line break in the path", Key::path(), post(""), 400, "bad-key"),
        ("no such segment", Key::path_segment(7), post(""), 400, "no-key"),
        ("a segment that no path has", Key::path_segment(usize::MAX), post(""), 400, "no-key"),
        ("a function without a key", Key::from_parts(|_| None), post(""), 400, "no-key"),
        ("no JSON", field(), post("{"), 400, "no-key"),
        ("no field", field(), post("{}"), 400, "no-key"),
        ("a field that is a list", field(), post(r#"{"user": {"id": [1]}}"#), 400, "bad-key"),
        ("a control character in JSON", field(), post(r#"{"user": {"id": "a\u0000b"}}"#), 400, "bad-key"),
        ("a large body", field(), post("x".repeat(101)), 413, "body-too-large"),
    ];
    for (what, key, request, status, reason) in cases {
        let (store, locks) = counted();
        let (layer, handler) =
            (LockLayer::builder(locks.clone(), "t", key, OnOutage::FailOpen).build().unwrap(), Handler::open());
        let answer = send(&locked(&layer, &handler), request).await;
        assert_eq!(answer.summary(), (status, reason.into(), String::new()), "{what}");
        assert_eq!((store.calls(Operation::Acquire), handler.entries()), (0, 0), "{what}");
        assert_eq!(layer.stats().counts().invalid, 1, "{what}");
        all_free(&locks).await;
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_read_up_to_the_limit() {
    let (store, locks) = counted();
    let key = Key::json("/id").body_limit(20);
    let layer = LockLayer::builder(locks, "t", key, OnOutage::FailClosed).build().unwrap();
    let service = layer.layer(tower::service_fn(|request: Request<tenure_tower::RequestBody<Streamed>>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(text(request.into_body().collect().await?.to_bytes())))
    }));
    for (parts, status) in [(vec![r#"{"id":"#, "1}"], 200), (vec![r#"{"id":"#, "111111111111111111}"], 413)] {
        let (frames, body) = streamed();
        for part in &parts {
            frames.send(http_body::Frame::data(Bytes::from(*part))).unwrap();
        }
        drop(frames);
        let response = tower::ServiceExt::oneshot(service.clone(), Request::new(body)).await.unwrap();
        let answer = Answer::of(response).await.unwrap();
        assert_eq!(answer.status, status);
        // Passed on whole.
        assert!(status == 413 || answer.body == parts.concat());
    }
    assert_eq!(store.calls(Operation::Acquire), 1);
}

/// The body breaks off before the key was found, or while a request waits for its key.
#[tokio::test]
async fn a_body_that_breaks_off_takes_nothing() {
    let broken = || {
        let parts = [Ok(http_body::Frame::data(Bytes::from_static(b"{"))), Err(std::io::Error::other("broken off"))];
        Request::post("/").header(KEY, "7").body(StreamBody::new(stream::iter(parts))).unwrap()
    };
    let (store, locks) = counted();
    for (key, waits) in [(Key::json("/id"), false), (Key::header(KEY), true)] {
        let layer =
            LockLayer::builder(locks.clone(), "t", key, OnOutage::FailOpen).duplicate(Duplicate::Wait(LONG)).build().unwrap();
        let handler = Handler::open();
        let inside = handler.clone();
        let service = layer.layer(tower::service_fn(move |_| {
            let handler = inside.clone();
            async move {
                handler.run().await;
                Ok::<_, std::convert::Infallible>(http::Response::new(text("")))
            }
        }));
        let taken = if waits { Some(locks.mutex("t:7").acquire().await.unwrap()) } else { None };
        let before = store.calls(Operation::Acquire);
        let response = soon("an answer", tower::ServiceExt::oneshot(service, broken())).await.unwrap();
        let answer = Answer::of(response).await.unwrap();
        assert_eq!(answer.summary(), (400, "body-unreadable".into(), String::new()));
        assert_eq!((handler.entries(), layer.stats().counts().invalid), (0, 1));
        assert!(waits || store.calls(Operation::Acquire) == before);
        drop(taken);
        all_free(&locks).await;
    }
}

#[tokio::test]
async fn requests_without_a_key_pass_if_that_was_chosen() {
    let (store, locks) = counted();
    let (layer, handler) = (layer(&locks).keyless(Keyless::PassThrough).build().unwrap(), Handler::new());
    let service = locked(&layer, &handler);
    let both = [(), ()].map(|()| {
        let service = service.clone();
        tokio::spawn(async move { send(&service, post("ping")).await })
    });
    handler.entered(2).await;
    handler.let_out(2);
    for one in both {
        let answer = one.await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.body[..], answer.fence()), (200, &b"ping"[..], None));
    }
    assert_eq!((layer.stats().counts().keyless, store.calls(Operation::Acquire)), (2, 0));
    // A bad key is not none.
    assert_eq!(send(&service, request(&"k".repeat(300))).await.reason(), "bad-key");
}

#[tokio::test]
async fn long_keys_are_digested_if_that_was_chosen() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).max_key(64).digest_long_keys().build().unwrap();
    let service = locked(&layer, &handler);
    let (one, other) = ("k".repeat(900) + "1", "k".repeat(900) + "2");
    let first = [sending(&service, &one), sending(&service, &other)];
    handler.entered(2).await;
    assert_eq!(send(&service, request(&one)).await.reason(), "in-progress");
    let names: Vec<_> = locks.list().await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(names.iter().all(|name| name.as_str().len() <= 66 && name.as_str().starts_with("t:kkk")), "{names:?}");
    // A client that sends another's digest gets another name.
    let forged = sending(&service, names[0].as_str().strip_prefix("t:").unwrap());
    handler.entered(3).await;
    handler.let_out(3);
    for first in first {
        assert_eq!(first.await.unwrap().status, 200);
    }
    assert_eq!(forged.await.unwrap().status, 200);
    assert_eq!(send(&service, request(&"k".repeat(1_023))).await.reason(), "bad-key");
    all_free(&locks).await;
}

#[tokio::test]
async fn a_name_that_the_store_cannot_keep_is_refused() {
    let store = Faulty::new(MemoryStore::new()).features(|features| features.max_name = 60);
    let locks = Locker::new(store.clone());
    let (key, handler) = ("k".repeat(59), Handler::open());
    let refusing = locked(&layer(&locks).build().unwrap(), &handler);
    assert_eq!(send(&refusing, request(&key)).await.reason(), "bad-key");
    assert_eq!(store.calls(Operation::Acquire), 0);
    let digesting = locked(&layer(&locks).digest_long_keys().build().unwrap(), &handler);
    assert_eq!(send(&digesting, request(&key)).await.status, 200);
    all_free(&locks).await;
}
