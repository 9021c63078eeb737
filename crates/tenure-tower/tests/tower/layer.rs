//! The layer in front of a function: from the key to the end of the body.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tenure::store::Features;
use tenure::{Error, ErrorKind, Fence, Locker, MemoryStore};
use tenure_testkit::{Fate, Faulty, Operation, RedisServer};
use tenure_tower::{Duplicate, Key, LockLayer, OnOutage, RefuseWith, RequestBody};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tower::{Layer as _, Service, ServiceExt};

use crate::support::*;

/// A store whose operations time out soon, so that a short ttl is possible.
fn faulty() -> (Faulty<MemoryStore>, Locker) {
    let store = Faulty::new(MemoryStore::new()).features(|features: &mut Features| {
        features.operation_timeout = Some(Duration::from_millis(50));
    });
    let locks = Locker::builder(store.clone()).ttl(Duration::from_secs(1)).build().unwrap();
    (store, locks)
}

#[tokio::test]
async fn a_second_request_is_refused_while_the_first_is_served() {
    for (with, status) in [(RefuseWith::Conflict, 409), (RefuseWith::TooManyRequests, 429)] {
        let (locks, handler) = (memory(), Handler::new());
        let layer = layer(&locks).refuse_with(with).build().unwrap();
        let service = locked(&layer, &handler);
        let first = sending(&service, "7");
        handler.entered(1).await;
        assert_eq!(send(&service, request("7")).await.summary(), (status, "in-progress".into(), "1".into()));
        let other = sending(&service, "8");
        handler.entered(2).await;
        handler.let_out(3);
        let (first, other) = (first.await.unwrap(), other.await.unwrap());
        assert_eq!((first.status.as_u16(), &first.body[..], other.status.as_u16()), (200, &b"ping"[..], 200));
        let again = send(&service, request("7")).await;
        assert!(again.fence() > first.fence() && first.fence().is_some(), "{again:?} after {first:?}");
        let counts = layer.stats().counts();
        assert_eq!((counts.granted, counts.refused, counts.lost), (3, 1, 0));
        all_free(&locks).await;
    }
}

#[tokio::test]
async fn the_key_is_taken_until_the_body_has_ended() {
    let (locks, layer) = {
        let locks = memory();
        (locks.clone(), layer(&locks).build().unwrap())
    };
    let (frames, body) = streamed();
    let service = layer.layer(once(Response::new(body)));
    let response = service.clone().oneshot(request("7")).await.unwrap();
    assert!(!response.body().is_end_stream());
    let mut body = response.into_body();
    frames.send(Frame::data(Bytes::from_static(b"one"))).unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    assert_eq!(send(&service, request("7")).await.reason(), "in-progress");
    frames.send(trailers()).unwrap();
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    // Trailers are the end: at once, without a release in the background.
    assert!(body.is_end_stream() && is_free(&locks, "t:7").await);
    assert!(body.frame().await.is_none());
}

/// An answer in one piece needs no `TCP_NODELAY`: a second piece would wait until the client has acknowledged the first.
#[tokio::test]
async fn an_answer_that_is_there_at_once_is_written_at_once() {
    let (store, locks) = faulty();
    store.plan(|operation, _| if operation == Operation::Release { Fate::Yields } else { Fate::Works });
    let layer = layer(&locks).ttl(Duration::from_secs(10)).build().unwrap();
    let service = layer.layer(tower::service_fn(|_: Request<RequestBody<Incoming>>| async {
        Ok::<_, Error>(Response::new(Full::<Bytes>::from("pong")))
    }));
    let (client, server) = tokio::io::duplex(64 * 1024);
    let pieces = Arc::new(AtomicU64::new(0));
    let server = TokioIo::new(Counted(server, Arc::clone(&pieces)));
    tokio::spawn(http1::Builder::new().serve_connection(server, TowerToHyperService::new(service)));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    for number in 1..=3 {
        let answer = Answer::of(sender.send_request(request("7")).await.unwrap()).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"pong"[..]));
        assert_eq!(pieces.load(Ordering::Relaxed), number);
    }
}

/// A connection that counts the pieces that it is given.
struct Counted(DuplexStream, Arc<AtomicU64>);

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// A server that knew its length would take the answer for whole.
#[tokio::test]
async fn a_body_that_fails_at_once_is_not_taken_for_whole() {
    let locks = memory();
    let service = layer(&locks).build().unwrap().layer(tower::service_fn(|_| async {
        let frames = [Ok(Frame::data(Bytes::from_static(b"one"))), Err(Error::invalid("no more"))];
        Ok::<_, Error>(Response::new(StreamBody::new(futures_util::stream::iter(frames))))
    }));
    let mut body = pin!(service.oneshot(request("7")).await.unwrap().into_body());
    all_free(&locks).await;
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (None, false));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    assert!(!body.is_end_stream());
    assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "no more");
    assert!(body.is_end_stream() && body.frame().await.is_none());
}

/// A body in pieces that are there at once, with a promise of its size.
struct Promising {
    pieces: std::vec::IntoIter<&'static str>,
    size: Option<u64>,
}

impl http_body::Body for Promising {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))))
    }

    fn size_hint(&self) -> SizeHint {
        self.size.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A file that was cut while it was read. The client would take the next answer for the rest of this one.
#[tokio::test]
async fn a_body_that_is_not_as_long_as_its_promise_is_sent_as_without_the_layer() {
    for (header, size, pieces, whole) in [
        (Some("10"), None, vec!["hel", "lo"], None),
        (Some("10"), None, vec![], None),
        (None, Some(10), vec!["hel", "lo"], None),
        (None, Some(10), vec![], None),
        (Some("3"), None, vec!["hello"], Some("hel")),
        (Some("5"), None, vec!["hel", "lo"], Some("hello")),
        (None, None, vec!["hel", "lo"], Some("hello")),
    ] {
        let case = format!("{header:?}, {size:?}, {pieces:?}");
        let locks = memory();
        let service = layer(&locks).build().unwrap().layer(tower::service_fn(move |_: Request<RequestBody<Incoming>>| {
            let body = Promising { pieces: pieces.clone().into_iter(), size };
            let response = header.into_iter().fold(Response::builder(), |head, length| head.header("content-length", length));
            std::future::ready(response.body(body))
        }));
        let at = serve_hyper(service).await;
        // It breaks off behind the head or before.
        let body = soon("an answer", answer(at, request("7"))).await.ok().map(|answer| answer.body);
        assert_eq!(body.as_deref(), whole.map(str::as_bytes), "{case}");
        all_free(&locks).await;
    }
}

/// Nothing of it was sent, so it is answered as one whose handler was cancelled.
#[tokio::test]
async fn a_lease_that_is_lost_before_the_head_is_sent_is_answered() {
    /// Of a pause of this process, enough is left for the handler to begin.
    const HOLD: Duration = Duration::from_secs(2);
    struct Slow;
    impl http_body::Body for Slow {
        type Data = Bytes;
        type Error = Error;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
            // It computes for longer than the longest hold.
            std::thread::sleep(HOLD + Duration::from_millis(100));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"late")))))
        }
    }
    let (_store, locks) = faulty();
    let layer = layer(&locks).ttl(5 * HOLD).max_hold(HOLD).build().unwrap();
    let slow = layer.layer(tower::service_fn(|_| std::future::ready(Ok::<_, Error>(Response::new(Slow)))));
    let answer = Answer::of(slow.oneshot(request("7")).await.unwrap()).await.unwrap();
    assert_eq!(answer.summary(), (503, "lock-lost".into(), "1".into()));
    assert_eq!(layer.stats().counts().lost, 1);
    all_free(&locks).await;
}

/// They would be read for ever, and count nothing.
#[tokio::test]
async fn frames_without_data_do_not_keep_the_head_back() {
    const MANY: u64 = 100_000;
    let (locks, read) = (memory(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&read);
    let service = layer(&locks).build().unwrap().layer(tower::service_fn(move |_| {
        let counted = Arc::clone(&counted);
        let empty = futures_util::stream::iter(0..MANY).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Error>(Frame::data(Bytes::new()))
        });
        std::future::ready(Ok::<_, Error>(Response::new(StreamBody::new(empty))))
    }));
    let response = service.oneshot(request("7")).await.unwrap();
    assert!(read.load(Ordering::Relaxed) < MANY / 10, "{read:?} were read ahead");
    assert!(Answer::of(response).await.unwrap().body.is_empty());
    assert!(is_free(&locks, "t:7").await);
}

/// A body that counts as work under the key for as long as it is there.
struct Work(Option<Bytes>, Arc<AtomicU64>);

impl Drop for Work {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

impl http_body::Body for Work {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

#[tokio::test]
async fn the_handlers_body_ends_before_its_lease() {
    let (store, locks) = faulty();
    let (layer, inside) = (layer(&locks).build().unwrap(), Arc::new(AtomicU64::new(0)));
    for data in [None, Some(Bytes::from_static(b"pong"))] {
        let (counted, whole) = (Arc::clone(&inside), data.clone());
        let service = layer.layer(tower::service_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok::<_, Error>(Response::new(Work(whole.clone(), Arc::clone(&counted)))))
        }));
        let released = store.calls(Operation::Release);
        store.at(Operation::Release, 1, Fate::HangsBefore);
        let answering = tokio::spawn(async move { Answer::of(service.oneshot(request("7")).await?).await.map(|_| ()) });
        soon("the release", store.called(Operation::Release, released + 1)).await;
        assert_eq!(inside.load(Ordering::Relaxed), 0, "{data:?}");
        store.heal();
        answering.await.unwrap().unwrap();
        all_free(&locks).await;
    }
}

#[tokio::test]
async fn a_whole_answer_means_that_the_key_is_free() {
    let (locks, layer) = {
        let locks = memory();
        (locks.clone(), layer(&locks).build().unwrap())
    };
    let full = layer.layer(tower::service_fn(|_| async { Ok::<_, Error>(Response::new(Full::<Bytes>::from("pong"))) }));
    let response = full.oneshot(request("full")).await.unwrap();
    // It was there at once, so the key is free before the answer is sent.
    assert!(is_free(&locks, "t:full").await);
    let mut body = pin!(response.into_body());
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "pong");
    assert!(body.is_end_stream() && body.frame().await.is_none());

    let (rest, long) = (Bytes::from_static(b"pong"), Bytes::from(vec![b'x'; 64 * 1024]));
    let size = (long.len() + rest.len()) as u64;
    let chunks = [long.clone(), rest.clone()];
    let large = layer.layer(tower::service_fn(move |_| {
        let chunks = chunks.clone().map(|data| Ok::<_, Error>(Frame::data(data)));
        let body = StreamBody::new(futures_util::stream::iter(chunks));
        async move { Ok::<_, Error>(Response::builder().header("content-length", size).body(body).unwrap()) }
    }));
    let mut body = pin!(large.oneshot(request("large")).await.unwrap().into_body());
    assert!(!is_free(&locks, "t:large").await, "more than 64 KiB were read ahead");
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), long);
    assert!(!is_free(&locks, "t:large").await);
    // Readers of a body of known length do not ask for more.
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), rest);
    assert!(body.is_end_stream() && is_free(&locks, "t:large").await);
    assert!(body.frame().await.is_none());

    let empty = layer.layer(tower::service_fn(|_| async { Ok::<_, Error>(Response::new(Empty::<Bytes>::new())) }));
    let response = empty.oneshot(request("empty")).await.unwrap();
    assert!(response.body().is_end_stream() && is_free(&locks, "t:empty").await);

    let failing = layer.layer(tower::service_fn(|_| async { Err::<Response<Full<Bytes>>, _>(Error::invalid("no")) }));
    failing.oneshot(request("failing")).await.unwrap_err();
    assert!(is_free(&locks, "t:failing").await);
}

#[tokio::test]
async fn the_end_of_an_answer_waits_for_its_release() {
    let (store, locks) = faulty();
    let layer = layer(&locks).ttl(Duration::from_secs(10)).build().unwrap();
    let mut context = Context::from_waker(std::task::Waker::noop());
    let (frames, body) = streamed();
    store.at(Operation::Release, 1, Fate::DelayedBefore(Duration::from_millis(20)));
    let mut body = pin!(layer.layer(once(Response::new(body))).oneshot(request("7")).await.unwrap().into_body());
    frames.send(trailers()).unwrap();
    assert!(body.as_mut().poll_frame(&mut context).is_pending());
    assert_eq!(store.calls(Operation::Release), 1);
    assert!(!is_free(&locks, "t:7").await);
    assert!(soon("the body", body.frame()).await.unwrap().unwrap().is_trailers());
    assert!(is_free(&locks, "t:7").await);

    // Of an answer that is there at once, the head waits as well.
    store.at(Operation::Release, 1, Fate::DelayedBefore(Duration::from_millis(20)));
    let full = layer.layer(tower::service_fn(|_| async { Ok::<_, Error>(Response::new(Full::<Bytes>::from("pong"))) }));
    let mut answering = pin!(full.oneshot(request("8")));
    while store.calls(Operation::Release) < 2 {
        assert!(answering.as_mut().poll(&mut context).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(!is_free(&locks, "t:8").await);
    let body = soon("the answer", answering).await.unwrap().into_body();
    assert!(is_free(&locks, "t:8").await && body.size_hint().exact() == Some(4));
}

#[tokio::test]
async fn a_store_that_does_not_answer_the_release_does_not_keep_the_answer() {
    let (store, locks) = faulty();
    let service = locked(&layer(&locks).ttl(Duration::from_secs(10)).build().unwrap(), &Handler::open());
    store.plan(|operation, _| if operation == Operation::Release { Fate::HangsBefore } else { Fate::Works });
    assert_eq!(send(&service, request("7")).await.status, 200);
    store.heal();
    all_free(&locks).await;
}

#[tokio::test]
async fn a_body_that_is_dropped_frees_the_key() {
    let locks = memory();
    let (_frames, body) = streamed();
    let response = layer(&locks).build().unwrap().layer(once(Response::new(body))).oneshot(request("7")).await.unwrap();
    assert!(!is_free(&locks, "t:7").await);
    drop(response);
    all_free(&locks).await;
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_the_handler_and_frees_the_key() {
    let (locks, handler) = (memory(), Handler::new());
    let service = locked(&layer(&locks).build().unwrap(), &handler);
    let first = sending(&service, "7");
    handler.entered(1).await;
    first.abort();
    handler.is_empty().await;
    first.await.unwrap_err();
    all_free(&locks).await;
}

#[tokio::test]
async fn a_panic_frees_the_key() {
    let locks = memory();
    let layer = layer(&locks).build().unwrap();
    let panics = layer.layer(service(|_| Box::pin(async { panic!("a handler panics, as the test wants it") })));
    let panicked = tokio::spawn(panics.oneshot(request("7"))).await.map(|_| ());
    assert!(panicked.unwrap_err().is_panic());
    all_free(&locks).await;
}

#[tokio::test]
async fn a_lost_lease_cancels_the_handler() {
    let (store, locks) = faulty();
    let (layer, handler) = (layer(&locks).ttl(Duration::from_secs(3)).build().unwrap(), Handler::new());
    let service = locked(&layer, &handler);
    // Its own clock ends the lease, since no renewal is answered.
    store.plan(|operation, _| if operation == Operation::Renew { Fate::Lost } else { Fate::Works });
    let first = sending(&service, "7");
    handler.entered(1).await;
    let answer = first.await.unwrap();
    assert_eq!(answer.summary(), (503, "lock-lost".into(), "1".into()));
    handler.is_empty().await;
    store.heal();
    // The store reports that the lease is gone.
    let first = sending(&service, "8");
    handler.entered(2).await;
    take_away(&locks, "t:8").await;
    assert_eq!(first.await.unwrap().reason(), "lock-lost");
    handler.is_empty().await;
    assert_eq!(layer.stats().counts().lost, 2);
    all_free(&locks).await;
}

#[tokio::test]
async fn a_lease_that_is_lost_while_the_body_is_sent_breaks_the_body_off() {
    let (store, locks) = faulty();
    let layer = layer(&locks).ttl(Duration::from_secs(3)).build().unwrap();
    let (frames, body) = streamed();
    let service = layer.layer(once(Response::new(body)));
    let mut body = service.oneshot(request("7")).await.unwrap().into_body();
    frames.send(Frame::data(Bytes::from_static(b"one"))).unwrap();
    body.frame().await.unwrap().unwrap();
    store.plan(|operation, _| if operation == Operation::Renew { Fate::Lost } else { Fate::Works });
    let error = soon("the end of the lease", body.frame()).await.unwrap().unwrap_err();
    assert_eq!(error.downcast::<Error>().unwrap().kind(), ErrorKind::Lost);
    assert!(body.frame().await.is_none());
    soon("the end of the handler's body", frames.closed()).await;
    assert_eq!(layer.stats().counts().lost, 1);
    store.heal();
    all_free(&locks).await;
}

#[tokio::test]
async fn a_last_frame_after_the_end_of_the_lease_is_not_sent() {
    let (store, locks) = faulty();
    let (frames, body) = streamed();
    let response = layer(&locks).build().unwrap().layer(once(Response::new(body))).oneshot(request("7")).await.unwrap();
    frames.send(trailers()).unwrap();
    store.plan(|operation, _| if operation == Operation::Renew { Fate::Lost } else { Fate::Works });
    // No reader polls the body in this time.
    while !is_free(&locks, "t:7").await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    response.into_body().frame().await.unwrap().unwrap_err();
}

#[tokio::test]
async fn the_longest_hold_ends_a_handler_that_hangs() {
    let ((_store, locks), handler) = (faulty(), Handler::new());
    let service = locked(&layer(&locks).ttl(Duration::from_secs(10)).max_hold(Duration::from_secs(2)).build().unwrap(), &handler);
    assert_eq!(send(&service, request("7")).await.reason(), "lock-lost");
    handler.is_empty().await;
    all_free(&locks).await;
}

#[tokio::test]
async fn a_duplicate_waits_as_long_as_it_may() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).duplicate(Duplicate::Wait(LONG)).build().unwrap();
    let service = locked(&layer, &handler);
    let [first, second] = one_in_and_one_behind(&layer, &service, &handler).await;
    let third = sending(&service, "7");
    behind(&layer, 2).await;
    assert_eq!(handler.entries(), 1);
    handler.let_out(3);
    assert_eq!(third.await.unwrap().status, 200);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(second.fence() > first.fence(), "{second:?} after {first:?}");
    assert_eq!((layer.stats().counts().waited, layer.stats().counts().refused), (2, 0));

    let impatient = self::layer(&locks).duplicate(Duplicate::Wait(Duration::from_millis(30))).build().unwrap();
    let service = locked(&impatient, &handler);
    let first = sending(&service, "7");
    handler.entered(4).await;
    assert_eq!(send(&service, request("7")).await.summary(), (409, "in-progress".into(), "1".into()));
    assert_eq!((impatient.stats().counts().waited, impatient.stats().counts().refused), (1, 1));
    handler.let_out(1);
    first.await.unwrap();
    all_free(&locks).await;
}

/// Two may be served at once: one is, and its duplicate waits. A request with another key is served still.
#[tokio::test]
async fn a_waiting_request_takes_up_none_of_the_handlers_capacity() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).duplicate(Duplicate::Wait(LONG)).build().unwrap();
    let service = layer.layer(tower::limit::ConcurrencyLimit::new(echo(&handler), 2));
    let sending = |key: &str| tokio::spawn(service.clone().oneshot(request(key)));
    let first = sending("7");
    handler.entered(1).await;
    let second = sending("7");
    behind(&layer, 1).await;
    let third = sending("8");
    handler.entered(2).await;
    handler.let_out(3);
    for answer in [first, third, second] {
        assert_eq!(Answer::of(soon("an answer", answer).await.unwrap().unwrap()).await.unwrap().status, 200);
    }
}

/// One may be served at once. Its duplicate is refused or joins, though no handler is free for it.
#[tokio::test]
async fn a_duplicate_needs_no_handler_that_is_free() {
    for policy in [Duplicate::Refuse, Duplicate::Join] {
        let (locks, handler) = (memory(), Handler::new());
        let layer = layer(&locks).duplicate(policy).build().unwrap();
        let service = layer.layer(tower::limit::ConcurrencyLimit::new(echo(&handler), 1));
        let sending = || {
            let service = service.clone();
            tokio::spawn(async move { Answer::of(service.oneshot(request("7")).await.unwrap()).await.unwrap() })
        };
        let first = sending();
        handler.entered(1).await;
        let second = sending();
        if policy == Duplicate::Join {
            behind(&layer, 1).await;
        } else {
            assert_eq!(soon("a refusal", second).await.unwrap().reason(), "in-progress");
            handler.let_out(1);
            assert_eq!(first.await.unwrap().status, 200);
            continue;
        }
        handler.let_out(1);
        assert_eq!((first.await.unwrap().status.as_u16(), second.await.unwrap().status.as_u16()), (200, 200));
        assert_eq!(handler.entries(), 1);
    }
}

#[tokio::test]
async fn a_waiting_client_that_goes_away_leaves_nothing_behind() {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).duplicate(Duplicate::Wait(LONG)).build().unwrap();
    let service = locked(&layer, &handler);
    let [first, second] = one_in_and_one_behind(&layer, &service, &handler).await;
    second.abort();
    second.await.unwrap_err();
    handler.let_out(2);
    first.await.unwrap();
    all_free(&locks).await;
    assert_eq!(handler.entries(), 1);
}

#[tokio::test]
async fn a_repeat_within_the_cool_down_is_refused() {
    const COOL_DOWN: Duration = Duration::from_millis(1_900);
    let (locks, handler) = (memory(), Handler::open());
    let layer = layer(&locks).cool_down(COOL_DOWN).refuse_with(RefuseWith::TooManyRequests).build().unwrap();
    let service = locked(&layer, &handler);
    let began = std::time::Instant::now();
    assert_eq!(send(&service, request("7")).await.status, 200);
    let (status, reason, after) = send(&service, request("7")).await.summary();
    assert_eq!((status, &*reason), (429, "cool-down"));
    // Rounded up, so that a client that waits for it is served.
    let (after, left) = (Duration::from_secs(after.parse().unwrap()), COOL_DOWN.saturating_sub(began.elapsed()));
    assert!((left..=Duration::from_secs(2)).contains(&after), "{after:?} with {left:?} left");
    assert_eq!(send(&service, request("8")).await.status, 200);
    while !is_free(&locks, "t:7").await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(began.elapsed() + Duration::from_millis(10) >= COOL_DOWN, "free after {:?}", began.elapsed());
    assert_eq!(send(&service, request("7")).await.status, 200);
}

/// It is the rest of the cool-down, and not the second of an answer that knows nothing better.
#[tokio::test]
async fn the_first_of_a_cool_down_says_when_to_come_back() {
    let server = RedisServer::start();
    let redis = tenure_redis::connect(&(server.url() + "?timeout=5s")).await.unwrap();
    for locks in [redis, memory()] {
        let handler = Handler::new();
        let service = locked(&layer(&locks).cool_down(Duration::from_secs(60)).build().unwrap(), &handler);
        let first = sending(&service, "7");
        handler.entered(1).await;
        let (status, reason, after) = send(&service, request("7")).await.summary();
        assert_eq!((status, &*reason), (409, "in-progress"));
        assert!((50..=60).contains(&after.parse().unwrap()), "{after}");
        handler.let_out(1);
        first.await.unwrap();
    }
}

/// Serves only if this very value was ready, as a service with a limit does.
#[derive(Debug, Default)]
struct Picky {
    ready: bool,
    served: Arc<AtomicBool>,
}

impl Clone for Picky {
    fn clone(&self) -> Self {
        Self { ready: false, served: Arc::clone(&self.served) }
    }
}

impl<B> Service<Request<B>> for Picky {
    type Response = Response<Full<Bytes>>;
    type Error = Error;
    type Future = std::future::Ready<Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been ready");
        self.served.store(true, Ordering::Relaxed);
        std::future::ready(Ok(Response::default()))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_serves() {
    let (locks, picky) = (memory(), Picky::default());
    let mut service = layer(&locks).build().unwrap().layer(picky.clone());
    for _ in 0..2 {
        ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap().call(request("7")).await.unwrap();
        assert!(picky.served.swap(false, Ordering::Relaxed));
        all_free(&locks).await;
    }
}

async fn fence<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Error> {
    Ok(Response::new(Full::from(format!("{:?}", request.extensions().get::<Fence>()))))
}

#[tokio::test]
async fn the_fence_of_another_layer_is_not_passed_on() {
    let began = Instant::now();
    let locks = memory();
    let outer = LockLayer::builder(locks.clone(), "outer", Key::header(KEY), OnOutage::FailClosed).build().unwrap();
    let (store, gone) = faulty();
    store.plan(|_, _| Fate::FailsBefore);
    let inner = LockLayer::builder(gone, "inner", Key::header(KEY), OnOutage::FailOpen).build().unwrap();
    let response = outer.layer(inner.layer(tower::service_fn(fence))).oneshot(request("7")).await.unwrap();
    let answer = Answer::of(response).await.unwrap();
    was_in_time(&answer, began.elapsed(), Duration::from_millis(100));
    assert_eq!(&answer.body[..], b"None");
    let response = outer.layer(tower::service_fn(fence)).oneshot(request("7")).await.unwrap();
    assert!(Answer::of(response).await.unwrap().body.starts_with(b"Some"));
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_any_request() {
    let locks = memory();
    let make = |prefix: &str, key| LockLayer::builder(locks.clone(), prefix, key, OnOutage::FailClosed);
    for (builder, why) in [
        (make("", Key::path()), "prefix"),
        (make("a:b", Key::path()), "colon"),
        (make("a\nb", Key::path()), "control"),
        (make(&"a".repeat(1_000), Key::path()), "shorter prefix"),
        (make("a", Key::json("user")), "slash"),
        (make("a", Key::path()).ttl(Duration::from_millis(1)), "ttl"),
        (make("a", Key::path()).cool_down(Duration::from_secs(9)).max_hold(Duration::from_secs(2)), "longest hold"),
        (make("a", Key::path()).in_flight(0), "in_flight"),
        (make("a", Key::path()).max_key(0), "max_key"),
        (make("a", Key::json("/~9")), "tilde"),
        (make("a", Key::json("/a/~")), "tilde"),
        (make("a", Key::path()).max_hold(Duration::from_nanos(1)), "max_hold"),
        (make("a", Key::path()).max_hold(Duration::from_secs(1)), "max_hold"),
        (make("a", Key::path()).max_key(8).digest_long_keys(), "digest"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains(why) && error.kind() == ErrorKind::Invalid, "{error}");
    }
}
