//! The layer in front of tonic, with unary calls and a stream.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use http::Request;
use http::uri::PathAndQuery;
use tenure::{Fence, Locker, MemoryStore};
use tenure_testkit::{Fate, Faulty, RedisServer};
use tenure_tower::{Key, LockLayer, OnOutage, RefuseWith};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::support::*;

/// A service as its compiler would generate it: `Say` answers its text, `Tell` in a stream.
#[derive(Clone)]
struct Speaker(Handler);

impl NamedService for Speaker {
    const NAME: &'static str = "test.Speaker";
}

impl UnaryService<String> for Speaker {
    type Response = String;
    type Future = BoxFuture<'static, Result<tonic::Response<String>, Status>>;

    fn call(&mut self, request: tonic::Request<String>) -> Self::Future {
        let handler = self.0.clone();
        async move {
            handler.run().await;
            let fence = request.extensions().get::<Fence>().expect("a fence");
            Ok(tonic::Response::new(format!("{} {fence}", request.get_ref())))
        }
        .boxed()
    }
}

impl ServerStreamingService<String> for Speaker {
    type Response = String;
    type ResponseStream = BoxStream<'static, Result<String, Status>>;
    type Future = BoxFuture<'static, Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<String>) -> Self::Future {
        let handler = self.0.clone();
        let word = |handler: Handler| async move {
            handler.run().await;
            Some((Ok("word".to_owned()), handler))
        };
        async move {
            drop(request);
            Ok(tonic::Response::new(stream::unfold(handler, word).boxed()))
        }
        .boxed()
    }
}

impl Service<Request<Body>> for Speaker {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let speaker = self.clone();
        async move {
            let mut grpc = Grpc::new(ProstCodec::<String, String>::default());
            Ok(match request.uri().path() {
                "/test.Speaker/Say" => grpc.unary(speaker, request).await,
                _ => grpc.server_streaming(speaker, request).await,
            })
        }
        .boxed()
    }
}

async fn serve(layer: &LockLayer, handler: &Handler) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer.clone()).add_service(Speaker(handler.clone()));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    at
}

async fn client(at: SocketAddr) -> tonic::client::Grpc<Channel> {
    let channel = Channel::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    client
}

fn asking(key: &str) -> tonic::Request<String> {
    let mut request = tonic::Request::new("hello".to_owned());
    if !key.is_empty() {
        request.metadata_mut().insert("x-key", key.parse().unwrap());
    }
    request
}

async fn say(at: SocketAddr, key: &str) -> Result<String, Status> {
    let path = PathAndQuery::from_static("/test.Speaker/Say");
    client(at).await.unary(asking(key), path, ProstCodec::<String, String>::default()).await.map(tonic::Response::into_inner)
}

async fn tell(at: SocketAddr, key: &str) -> Result<tonic::Streaming<String>, Status> {
    let path = PathAndQuery::from_static("/test.Speaker/Tell");
    let told = client(at).await.server_streaming(asking(key), path, ProstCodec::<String, String>::default()).await;
    told.map(tonic::Response::into_inner)
}

async fn set_up() -> (Locker, LockLayer, Handler, SocketAddr) {
    let (locks, handler) = (memory(), Handler::new());
    let layer = layer(&locks).ttl(std::time::Duration::from_secs(3)).build().unwrap();
    let at = serve(&layer, &handler).await;
    (locks, layer, handler, at)
}

#[tokio::test]
async fn tonic_serves_under_the_layer() {
    let (locks, layer, handler, at) = set_up().await;
    let first = tokio::spawn(async move { say(at, "7").await });
    handler.entered(1).await;
    let refused = say(at, "7").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Aborted, "in-progress"));
    assert_eq!(refused.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
    let keyless = say(at, "").await.unwrap_err();
    assert_eq!((keyless.code(), keyless.message()), (Code::InvalidArgument, "no-key"));
    handler.let_out(1);
    assert!(first.await.unwrap().unwrap().starts_with("hello "));
    assert_eq!(layer.stats().counts().granted, 1);
    all_free(&locks).await;
}

#[tokio::test]
async fn a_stream_of_tonic_keeps_the_key_until_its_end() {
    let (locks, _layer, handler, at) = set_up().await;
    let mut words = tell(at, "7").await.unwrap();
    handler.let_out(1);
    assert_eq!(words.message().await.unwrap().unwrap(), "word");
    assert_eq!(say(at, "7").await.unwrap_err().message(), "in-progress");
    // The lease is taken away: the stream ends with an error.
    take_away(&locks, "t:7").await;
    soon("the end of the stream", words.message()).await.unwrap_err();
    // The client cancels the call.
    let words = tell(at, "8").await.unwrap();
    assert!(!is_free(&locks, "t:8").await);
    drop(words);
    let freed = async {
        while !is_free(&locks, "t:8").await {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the call", freed).await;
    all_free(&locks).await;
}

#[tokio::test]
async fn a_store_that_is_gone_is_unavailable_in_grpc() {
    let store = Faulty::new(MemoryStore::new());
    store.plan(|_, _| Fate::FailsBefore);
    let at = serve(&layer(&Locker::new(store)).build().unwrap(), &Handler::open()).await;
    let refused = say(at, "7").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "store-unavailable"));
    assert_eq!(refused.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
}

/// Clients may repeat by themselves what is unavailable. This may have had an effect.
#[tokio::test]
async fn a_lost_lease_aborts_a_call_of_grpc() {
    let (locks, _layer, handler, at) = set_up().await;
    let said = tokio::spawn(async move { say(at, "7").await });
    handler.entered(1).await;
    take_away(&locks, "t:7").await;
    let lost = soon("the end of the call", said).await.unwrap().unwrap_err();
    assert_eq!((lost.code(), lost.message()), (Code::Aborted, "lock-lost"));
}

#[tokio::test]
async fn a_duplicate_with_429_exhausts_a_resource_of_grpc() {
    let (locks, handler) = (memory(), Handler::new());
    let at = serve(&layer(&locks).refuse_with(RefuseWith::TooManyRequests).build().unwrap(), &handler).await;
    let first = tokio::spawn(async move { say(at, "7").await });
    handler.entered(1).await;
    let refused = say(at, "7").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "in-progress"));
    handler.let_out(1);
    first.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_body_too_large_to_look_into_exhausts_a_resource_of_grpc() {
    let handler = Handler::open();
    let key = Key::from_body(|_, _| Some("7".to_owned())).body_limit(3);
    let layer = LockLayer::builder(memory(), "t", key, OnOutage::FailClosed).build().unwrap();
    let refused = say(serve(&layer, &handler).await, "").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "body-too-large"));
    assert_eq!((refused.metadata().get("grpc-retry-pushback-ms"), handler.entries()), (None, 0));
}

#[tokio::test]
async fn a_store_that_refuses_is_unavailable_in_grpc() {
    let server = RedisServer::start();
    server.cli("LPUSH t:7 x");
    let locks = tenure_redis::connect(&server.url()).await.unwrap();
    let refused = say(serve(&layer(&locks).build().unwrap(), &Handler::open()).await, "7").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "store-refused"));
}
