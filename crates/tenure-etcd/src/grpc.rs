//! One request of gRPC, and its answer.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

/// Timeouts of a connection's making. A call has its own, which is shorter.
pub(crate) const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// Bytes of an answer, unless it has to be longer.
pub(crate) const USUAL: usize = 4 << 20;

pub(crate) async fn unary<Q, A>(channel: &Channel, path: &'static str, request: Request<Q>) -> Result<A, tonic::Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    unary_up_to(USUAL, channel, path, request).await
}

pub(crate) async fn unary_up_to<Q, A>(
    most: usize,
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<A, tonic::Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(most);
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Q, A>::default();
    grpc.unary(request, PathAndQuery::from_static(path), codec).await.map(tonic::Response::into_inner)
}
