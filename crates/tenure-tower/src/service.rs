//! The service: from the key to the lease, through the handler, to the end of the answer.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tenure::{Fence, Guard, Name};
use tower_service::Service;

use crate::BoxError;
use crate::body::{End, LockBody, Tail};
use crate::frames::{Frames, RequestBody};
use crate::future::ResponseFuture;
use crate::join::{Joined, Lead, Question};
use crate::policy::{Duplicate, Keyless};
use crate::problem::{Form, Problem};
use crate::shared::{Entry, Shared};
use crate::stats::{Event, Stats};

/// Bytes of its body that a request reads while it waits for its key, and of an answer that are read before its head
/// is sent.
const READ_AHEAD: usize = 64 * 1024;

/// Serves requests with the same key one at a time. Made by [`LockLayer`](crate::LockLayer).
#[derive(Clone, Debug)]
pub struct Lock<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Lock<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    /// Returns the counters of the layer.
    pub fn stats(&self) -> Stats {
        self.shared.stats.clone()
    }
}

impl<S, B, R> Service<Request<B>> for Lock<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<LockBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<R, S::Error>;

    /// Always ready. The service behind is asked when a request has its key: one that is refused,
    /// waits, or joins needs none of its capacity.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture::new(serve(Arc::clone(&self.shared), self.inner.clone(), request))
    }
}

async fn serve<S, B, R>(shared: Arc<Shared>, inner: S, request: Request<B>) -> Result<Response<LockBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send,
    S::Error: Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send,
    R::Error: Into<BoxError>,
{
    let (form, settings) = (Form::of(request.headers()), &shared.settings);
    let (name, request) = match named(&shared, request).await {
        Ok(found) => found,
        Err(problem) => {
            shared.stats.count(Event::Invalid);
            return Ok(problem.response(form));
        }
    };
    let Some(name) = name else {
        shared.stats.count(Event::Keyless);
        return handle(shared, inner, request, None, None, form).await;
    };
    let joins = settings.duplicate == Duplicate::Join && !Question::is_special(&request);
    let lead = match joins.then(|| shared.joins.enter(Question::of(&name, &request))) {
        Some(Joined::Later(follower)) => {
            shared.stats.count(Event::Joined);
            // It needs no handler, so it takes up none of the handler's capacity.
            drop((inner, request));
            return Ok(match follower.outcome().await {
                Ok(copied) => copied.response(),
                Err(problem) => {
                    shared.stats.count(problem.of_joined());
                    problem.response(form)
                }
            });
        }
        Some(Joined::First(lead)) => Some(lead),
        None => None,
    };
    let (entry, request) = enter(&shared, &name, request).await;
    match entry {
        Entry::Locked(guard) => handle(shared, inner, request, Some(guard), lead, form).await,
        Entry::Unlocked => handle(shared, inner, request, None, lead, form).await,
        Entry::Refused(problem) => {
            if let Some(lead) = lead {
                lead.refuse(problem);
            }
            Ok(problem.response(form))
        }
    }
}

/// Finds the name of a request at the store; `None` if it is served without one.
async fn named<B>(shared: &Shared, request: Request<B>) -> Result<(Option<Name>, Request<RequestBody<B>>), Problem>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let settings = &shared.settings;
    let (key, request) = settings.key.find(request).await?;
    match key {
        Some(key) => Ok((Some(settings.name(&key)?), request)),
        None if settings.keyless == Keyless::PassThrough => Ok((None, request)),
        None => Err(Problem::NoKey),
    }
}

/// Takes the lease. Meanwhile a request that may wait reads its body into memory. Its server notices that a
/// client has hung up when it reads, and asks a client that expects `100 Continue` for the body then.
async fn enter<B>(shared: &Shared, name: &Name, request: Request<RequestBody<B>>) -> (Entry, Request<RequestBody<B>>)
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    if !matches!(shared.settings.duplicate, Duplicate::Wait(_)) || request.body().is_end_stream() {
        return (shared.enter(name).await, request);
    }
    let mut request = request.map(RequestBody::movable);
    let mut reads = true;
    let mut entering = pin!(shared.enter(name));
    let entry = poll_fn(|context| {
        if let Poll::Ready(entry) = entering.as_mut().poll(context) {
            return Poll::Ready(entry);
        }
        match reads.then(|| request.body_mut().poll_ahead(READ_AHEAD, context)) {
            Some(Poll::Ready(Err(_))) => {
                shared.stats.count(Event::Invalid);
                return Poll::Ready(Entry::Refused(Problem::BodyUnreadable));
            }
            Some(Poll::Ready(Ok(()))) => reads = false,
            _ => {}
        }
        Poll::Pending
    });
    let entry = entry.await;
    (entry, request)
}

/// Runs the handler, for as long as the lease stands if there is one.
async fn handle<S, B, R>(
    shared: Arc<Shared>,
    inner: S,
    mut request: Request<RequestBody<B>>,
    guard: Option<Guard>,
    lead: Option<Lead>,
    form: Form,
) -> Result<Response<LockBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send,
    S::Error: Send,
    S::Future: Send,
    B: Send,
    R: Body<Data = Bytes> + Send,
    R::Error: Into<BoxError>,
{
    // A fence of another layer would be taken for one of this key.
    request.extensions_mut().remove::<Fence>();
    if let Some(fence) = guard.as_ref().and_then(Guard::fence) {
        request.extensions_mut().insert(fence);
    }
    let (method, version) = (request.method().clone(), request.version());
    let served = match &guard {
        Some(guard) => match guard.run(answer(inner, request)).await {
            Ok(served) => served,
            Err(error) => {
                shared.note_lost(guard.name(), &error);
                if let Some(lead) = lead {
                    lead.refuse(Problem::LockLost);
                }
                return Ok(Problem::LockLost.response(form));
            }
        },
        None => answer(inner, request).await,
    };
    let response = match served {
        Ok(response) => response,
        Err(error) => {
            if let Some(guard) = guard {
                shared.release(guard).await;
            }
            return Err(error);
        }
    };
    let (head, body) = response.into_parts();
    let end = End::of(&method, version, &head, &body);
    let recorder = lead.map(|lead| lead.record(&head, end.unsent, shared.settings.copy_limit));
    let mut tail = Tail::new(Arc::clone(&shared), guard, recorder, end);
    if !end.at_once {
        let mut body = LockBody::handler(body, tail);
        return Ok(match body.read_ahead(READ_AHEAD as u64).await {
            Ok(()) => Response::from_parts(head, body),
            Err(problem) => problem.response(form),
        });
    }
    // The handler's part ends before its lease.
    drop(body);
    tail.finish().await;
    Ok(Response::from_parts(head, LockBody::of(Frames::default(), end.unsent)))
}

/// Waits until the service is ready, and has it answer.
async fn answer<S, Q>(mut inner: S, request: Q) -> Result<S::Response, S::Error>
where
    S: Service<Q>,
{
    poll_fn(|context| inner.poll_ready(context)).await?;
    inner.call(request).await
}
