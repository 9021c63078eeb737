//! A handler that a test opens and closes, and requests with their answers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tenure::{Fence, Locker, MemoryStore};
use tenure_tower::{BoxError, Key, Lock, LockLayer, LockLayerBuilder, OnOutage, RequestBody};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tower::{Layer as _, Service, ServiceExt as _};

pub(crate) const KEY: HeaderName = HeaderName::from_static("x-key");
pub(crate) const FENCE: HeaderName = HeaderName::from_static("x-fence");

/// Time after which a test that waits for something fails.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(doing: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.unwrap_or_else(|_| panic!("waited in vain for {doing}"))
}

pub(crate) fn memory() -> Locker {
    Locker::new(MemoryStore::new())
}

pub(crate) fn layer(locks: &Locker) -> LockLayerBuilder {
    LockLayer::builder(locks.clone(), "t", Key::header(KEY), OnOutage::FailClosed)
}

/// A handler that says who is in it, and lets them out as a test wants.
#[derive(Clone, Debug)]
pub(crate) struct Handler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    entered: watch::Sender<u64>,
    inside: watch::Sender<u64>,
    out: Semaphore,
}

struct Inside<'a>(&'a Handler);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.inside.send_modify(|inside| *inside -= 1);
    }
}

impl Handler {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { entered: watch::Sender::default(), inside: watch::Sender::default(), out: Semaphore::new(0) }))
    }

    /// A handler that lets everybody out at once.
    pub(crate) fn open() -> Self {
        let handler = Self::new();
        handler.let_out(Semaphore::MAX_PERMITS / 2);
        handler
    }

    pub(crate) async fn run(&self) {
        self.0.inside.send_modify(|inside| *inside += 1);
        let _inside = Inside(self);
        self.0.entered.send_modify(|entered| *entered += 1);
        self.0.out.acquire().await.unwrap().forget();
    }

    pub(crate) fn let_out(&self, n: usize) {
        self.0.out.add_permits(n);
    }

    pub(crate) fn entries(&self) -> u64 {
        *self.0.entered.borrow()
    }

    pub(crate) async fn entered(&self, n: u64) {
        soon("an entry", self.0.entered.subscribe().wait_for(|entered| *entered >= n)).await.unwrap();
    }

    pub(crate) async fn is_empty(&self) {
        soon("the end of the handler", self.0.inside.subscribe().wait_for(|inside| *inside == 0)).await.unwrap();
    }
}

pub(crate) type Frames = mpsc::UnboundedSender<Frame<Bytes>>;

/// Failure of a handler, with its reason.
#[derive(Debug)]
pub(crate) struct Failure(#[allow(dead_code, reason = "for the output of a test that fails")] pub(crate) String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

type Asked = Request<RequestBody<Full<Bytes>>>;
type Served = BoxFuture<'static, Result<Response<Streamed>, Failure>>;

/// A service of a function.
#[derive(Clone)]
pub(crate) struct Stub(Arc<Serve>);

type Serve = dyn Fn(Asked) -> Served + Send + Sync;

impl Service<Asked> for Stub {
    type Response = Response<Streamed>;
    type Error = Failure;
    type Future = Served;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Asked) -> Served {
        self.0(request)
    }
}

pub(crate) fn service(serve: impl Fn(Asked) -> Served + Send + Sync + 'static) -> Stub {
    Stub(Arc::new(serve))
}

/// A body of frames that come with time.
pub(crate) struct Streamed(BoxStream<'static, Frame<Bytes>>);

impl Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_next_unpin(context).map(|frame| frame.map(Ok))
    }
}

/// A body that a test writes.
pub(crate) fn streamed() -> (Frames, Streamed) {
    let (frames, received) = mpsc::unbounded_channel();
    let frame = |mut received: mpsc::UnboundedReceiver<_>| async { received.recv().await.map(|frame| (frame, received)) };
    (frames, Streamed(stream::unfold(received, frame).boxed()))
}

/// A service that answers one request.
pub(crate) fn once(answer: Response<Streamed>) -> Stub {
    let answer = std::sync::Mutex::new(Some(answer));
    service(move |_| {
        let answer = answer.lock().unwrap().take().expect("one request");
        Box::pin(async { Ok(answer) })
    })
}

/// Trailers, which end a body.
pub(crate) fn trailers() -> Frame<Bytes> {
    Frame::trailers(HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))]))
}

/// A body of one text.
pub(crate) fn text(text: impl Into<Bytes>) -> Streamed {
    Streamed(stream::iter([Frame::data(text.into())]).boxed())
}

/// A service of `handler`, that answers with the fence.
pub(crate) fn echo(handler: &Handler) -> Stub {
    let handler = handler.clone();
    service(move |request| {
        let handler = handler.clone();
        Box::pin(async move {
            handler.run().await;
            let fence = request.extensions().get::<Fence>().map(ToString::to_string).unwrap_or_default();
            let body = request.into_body().collect().await?.to_bytes();
            Ok(Response::builder().header(FENCE, fence).body(text(body))?)
        })
    })
}

pub(crate) fn locked(layer: &LockLayer, handler: &Handler) -> Lock<Stub> {
    layer.layer(echo(handler))
}

pub(crate) fn request(key: &str) -> Request<Full<Bytes>> {
    Request::post("/").header(KEY, key).body(Full::from("ping")).unwrap()
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn of<B>(response: Response<B>) -> Result<Self, B::Error>
    where
        B: Body<Data = Bytes>,
    {
        let (head, body) = response.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned();
        Ok(Self { status: head.status, headers: head.headers, body: body.to_bytes(), trailers })
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        self.header(FENCE.as_str()).parse().ok()
    }

    /// The reason of a problem+json; empty for a served request.
    pub(crate) fn reason(&self) -> String {
        if self.header("content-type") != "application/problem+json" {
            return String::new();
        }
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.ends_with('.')), "{problem}");
        problem["reason"].as_str().unwrap().to_owned()
    }

    /// Status, reason and `Retry-After`.
    pub(crate) fn summary(&self) -> (u16, String, String) {
        (self.status.as_u16(), self.reason(), self.header("retry-after").to_owned())
    }
}

/// Sends one request through a service, and reads the whole answer.
pub(crate) async fn send(service: &Lock<Stub>, request: Request<Full<Bytes>>) -> Answer {
    let response = soon("an answer", service.clone().oneshot(request)).await.expect("no failure");
    soon("a body", Answer::of(response)).await.unwrap()
}

/// The same in a task.
pub(crate) fn sending(service: &Lock<Stub>, key: &str) -> tokio::task::JoinHandle<Answer> {
    let (service, request) = (service.clone(), request(key));
    tokio::spawn(async move { send(&service, request).await })
}

/// A process that was late itself says that it is overloaded, and rightly.
pub(crate) fn was_in_time(answer: &Answer, took: Duration, limit: Duration) {
    assert!(answer.reason() != "overloaded" || took < limit, "the verdict took {took:?}");
}

/// Waits until so many requests wait behind another, or have joined it.
pub(crate) async fn behind(layer: &LockLayer, n: u64) {
    let counted = async {
        while layer.stats().counts().waited + layer.stats().counts().joined < n {
            tokio::task::yield_now().await;
        }
    };
    soon("the requests behind another", counted).await;
}

/// A first request that is in the handler, and a second one with its key behind it.
pub(crate) async fn one_in_and_one_behind(
    layer: &LockLayer,
    service: &Lock<Stub>,
    handler: &Handler,
) -> [tokio::task::JoinHandle<Answer>; 2] {
    let first = sending(service, "7");
    handler.entered(1).await;
    let second = sending(service, "7");
    behind(layer, 1).await;
    [first, second]
}

/// Waits until no name is taken.
pub(crate) async fn all_free(locks: &Locker) {
    locks.flush_releases().await;
    let left = locks.list().await.unwrap();
    assert!(left.is_empty(), "still taken: {left:?}");
}

pub(crate) async fn is_free(locks: &Locker, name: &str) -> bool {
    locks.inspect(name).await.unwrap().is_none_or(|entry| !entry.is_in_use())
}

/// Takes a name away from its holder.
pub(crate) async fn take_away(locks: &Locker, name: &str) {
    let entry = locks.inspect(name).await.unwrap().expect("somebody holds it");
    let holder = &entry.holders[0];
    let lease = tenure::Lease::new(entry.name, holder.owner.clone(), holder.share, Duration::from_secs(10));
    locks.store().release(&lease, Duration::ZERO).await.unwrap();
}

/// A connection to a server, for one request. Dropping the answer closes it.
pub(crate) async fn call(to: SocketAddr, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, BoxError> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

pub(crate) async fn answer(to: SocketAddr, request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
    Ok(Answer::of(call(to, request).await?).await?)
}

/// Serves with hyper alone.
pub(crate) async fn serve_hyper<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    at
}
