//! The layer behind real sockets: axum, and hyper alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tenure::Fence;
use tenure_tower::{Duplicate, Key, LockLayer, OnOutage, RequestBody};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tower::Layer as _;

use crate::support::*;

async fn answering(
    State(handler): State<Handler>,
    Extension(fence): Extension<Fence>,
    body: Bytes,
) -> (axum::http::HeaderMap, Bytes) {
    handler.run().await;
    ([(FENCE, fence.to_string().parse().unwrap())].into_iter().collect(), body)
}

async fn panicking() {
    panic!("a handler panics, as the test wants it")
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// The same story for each framework.
async fn story(at: SocketAddr, handler: &Handler, locks: &tenure::Locker, layer: &LockLayer) {
    let first = tokio::spawn(answer(at, request("7")));
    handler.entered(1).await;
    assert_eq!(answer(at, request("7")).await.unwrap().summary(), (409, "in-progress".into(), "1".into()));
    handler.let_out(1);
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status.as_u16(), &first.body[..]), (200, &b"ping"[..]));
    // A client that hangs up, in the middle of the handler.
    let hung_up = tokio::spawn(call(at, request("7")));
    handler.entered(2).await;
    hung_up.abort();
    hung_up.await.unwrap_err();
    handler.is_empty().await;
    locks.flush_releases().await;
    handler.let_out(1);
    assert!(answer(at, request("7")).await.unwrap().fence() > first.fence());
    all_free(locks).await;
    assert_eq!((layer.stats().counts().granted, layer.stats().counts().refused), (3, 1));
}

#[tokio::test]
async fn axum_serves_under_the_layer() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).build().unwrap();
    let app = Router::new().route("/", post(answering)).with_state(handler.clone()).layer(layer.clone());
    let (listener, at) = listen().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    story(at, &handler, &locks, &layer).await;
}

#[tokio::test]
async fn a_panic_in_axum_frees_the_key() {
    let locks = memory();
    let app = Router::new().route("/", post(panicking)).layer(layer(&locks).build().unwrap());
    let (listener, at) = listen().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    for _ in 0..3 {
        // The connection ends without an answer, each time.
        answer(at, request("7")).await.unwrap_err();
        all_free(&locks).await;
    }
}

#[tokio::test]
async fn axum_reads_a_body_in_which_the_key_was() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = LockLayer::builder(locks.clone(), "t", Key::json("/user/id"), OnOutage::FailClosed).build().unwrap();
    let app = Router::new().route("/", post(answering).layer(layer)).with_state(handler.clone());
    let (listener, at) = listen().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    let order = |user: u32| Request::post("/").body(Full::from(format!(r#"{{"user": {{"id": {user}}}, "n": 1}}"#))).unwrap();
    let first = tokio::spawn(answer(at, order(7)));
    handler.entered(1).await;
    assert_eq!(answer(at, order(7)).await.unwrap().reason(), "in-progress");
    handler.let_out(2);
    assert_eq!(answer(at, order(8)).await.unwrap().status, 200);
    assert_eq!(&first.await.unwrap().unwrap().body[..], br#"{"user": {"id": 7}, "n": 1}"#);
}

#[tokio::test]
async fn hyper_serves_under_the_layer() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).build().unwrap();
    let inside = handler.clone();
    let service = layer.layer(tower::service_fn(move |request: Request<RequestBody<Incoming>>| {
        let handler = inside.clone();
        async move {
            handler.run().await;
            let fence = request.extensions().get::<Fence>().unwrap().to_string();
            let body = request.into_body().collect().await?.to_bytes();
            let mut response = Response::new(Full::new(body));
            response.headers_mut().insert(FENCE, fence.parse().unwrap());
            Ok::<_, hyper::Error>(response)
        }
    }));
    let at = serve_hyper(service).await;
    story(at, &handler, &locks, &layer).await;
}

/// The client has the head, and goes away in the middle of the body.
#[tokio::test]
async fn a_client_that_leaves_a_body_frees_the_key() {
    let locks = memory();
    let app = Router::new()
        .route(
            "/",
            post(|| async {
                let (frames, body) = streamed();
                // Kept open for as long as the body is there.
                tokio::spawn(async move {
                    while frames.send(http_body::Frame::data(Bytes::from_static(b"tick"))).is_ok() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                });
                axum::body::Body::new(body)
            }),
        )
        .layer(layer(&locks).build().unwrap());
    let (listener, at) = listen().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    let mut response = call(at, request("7")).await.unwrap();
    response.frame().await.unwrap().unwrap();
    assert_eq!(answer(at, request("7")).await.unwrap().reason(), "in-progress");
    drop(response);
    let freed = async {
        while !is_free(&locks, "t:7").await {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the body", freed).await;
}

/// A server notices that a client is gone when it reads. A request that waits has a body that no
/// handler reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_client_that_hangs_up_is_noticed_whatever_is_left_of_its_body() {
    for (size, expects) in [(4, false), (60_000, false), (4, true)] {
        let (locks, handler) = (memory(), Handler::new());
        let layer = layer(&locks).duplicate(Duplicate::Wait(LONG)).build().unwrap();
        let app = Router::new().route("/", post(answering)).with_state(handler.clone()).layer(layer.clone());
        let (listener, at) = listen().await;
        tokio::spawn(axum::serve(listener, app).into_future());
        let first = tokio::spawn(answer(at, request("7")));
        handler.entered(1).await;
        let mut second = TcpStream::connect(at).await.unwrap();
        let more = if expects { "expect: 100-continue\r\n" } else { "" };
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\nx-key: 7\r\n{more}content-length: {size}\r\n\r\n");
        second.write_all(head.as_bytes()).await.unwrap();
        if !expects {
            second.write_all(&vec![b'x'; size]).await.unwrap();
        }
        let waits = async |so: bool| {
            while locks.inspect("t:7").await.unwrap().is_some_and(|entry| !entry.waiters.is_empty()) != so {
                tokio::task::yield_now().await;
            }
        };
        soon("the waiting request", waits(true)).await;
        drop(second);
        soon("the end of the waiting request", waits(false)).await;
        handler.let_out(2);
        assert_eq!(first.await.unwrap().unwrap().status, 200);
        all_free(&locks).await;
        assert_eq!(handler.entries(), 1, "the handler of a dead client ran: {size}, {expects}");
    }
}

/// The handler gets the part that was read early, and the rest.
#[tokio::test]
async fn the_body_of_a_request_that_waited_is_whole() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).duplicate(Duplicate::Wait(LONG)).build().unwrap();
    let app = Router::new().route("/", post(answering)).with_state(handler.clone()).layer(layer.clone());
    let (listener, at) = listen().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    for (round, size) in (1..).zip([1_000, 1_000_000]) {
        let first = tokio::spawn(answer(at, request("7")));
        handler.entered(2 * round - 1).await;
        let body: Bytes = (0..size).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let waiting = Request::post("/").header(KEY, "7").body(Full::new(body.clone())).unwrap();
        let second = tokio::spawn(answer(at, waiting));
        behind(&layer, round).await;
        handler.let_out(2);
        assert_eq!(first.await.unwrap().unwrap().status, 200);
        assert_eq!(second.await.unwrap().unwrap().body, body);
    }
}
