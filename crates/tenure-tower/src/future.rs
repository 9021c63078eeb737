//! The future of a response.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use crate::body::LockBody;

/// Future of [`Lock`](crate::Lock). A drop cancels the handler, and then frees the key in the
/// background.
pub struct ResponseFuture<R, E>(Pin<Box<dyn Future<Output = Served<R, E>> + Send>>);

type Served<R, E> = Result<Response<LockBody<R>>, E>;

impl<R, E> ResponseFuture<R, E> {
    pub(crate) fn new(serving: impl Future<Output = Served<R, E>> + Send + 'static) -> Self {
        Self(Box::pin(serving))
    }
}

impl<R, E> Future for ResponseFuture<R, E> {
    type Output = Served<R, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<R, E> fmt::Debug for ResponseFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
