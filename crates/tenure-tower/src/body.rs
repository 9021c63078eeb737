//! The body of an answer, which keeps the lease.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version, response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tenure::{EndReason, Error, ErrorKind, Guard};

use crate::BoxError;
use crate::frames::Frames;
use crate::join::Recorder;
use crate::shared::Shared;

pin_project! {
    /// Body of an answer. The key is taken until it has ended, failed, or was dropped.
    ///
    /// Its last frame is held back until the store has answered the release. If the lease is lost
    /// before, the body ends with a [`tenure::Error`] of the kind [`Lost`](ErrorKind::Lost).
    pub struct LockBody<B> {
        // The body is dropped before the tail, so the handler's part ends before its lease.
        #[pin]
        body: Option<B>,
        tail: Option<Tail>,
        frames: Frames,
        // Size of a body that is not sent, for its header: the answer to HEAD.
        unsent: Option<SizeHint>,
    }
}

/// The lease of an answer, and its copy for the requests that join. Both end with the body.
pub(crate) struct Tail {
    hold: Option<Hold>,
    recorder: Option<Recorder>,
    ending: Option<Ending>,
    /// Bytes up to the end, if the server stops reading there.
    left: Option<u64>,
    shared: Arc<Shared>,
}

struct Hold {
    guard: Guard,
    lost: Pin<Box<dyn Future<Output = EndReason> + Send>>,
}

/// A frame of the handler's body, and whether it is the last.
type Step = Result<(Option<Frame<Bytes>>, bool), BoxError>;

/// The end of a body, which waits for the release.
struct Ending {
    frame: Option<Frame<Bytes>>,
    release: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// End of a body, as its server will see it. A server need not ask for more than it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Nothing of the body is sent.
    pub(crate) at_once: bool,
    /// Size that the head of the answer names in place of the body.
    pub(crate) unsent: Option<u64>,
    left: Option<u64>,
}

impl End {
    pub(crate) fn of(method: &Method, version: Version, head: &response::Parts, body: &impl Body) -> Self {
        let silent = method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
        let none = head.status == StatusCode::NO_CONTENT || head.status.is_informational();
        // In HTTP/2 trailers may follow, and the server asks for them.
        let left = if version <= Version::HTTP_11 { length(head, body) } else { None };
        let at_once = body.is_end_stream() || silent || none || left == Some(0);
        let unsent = if silent && !body.is_end_stream() { body.size_hint().exact() } else { None };
        Self { at_once, unsent, left }
    }
}

/// Length by which a server of HTTP/1 ends a body.
fn length(head: &response::Parts, body: &impl Body) -> Option<u64> {
    if head.headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    match head.headers.get(CONTENT_LENGTH) {
        Some(length) => length.to_str().ok()?.parse().ok(),
        None => body.size_hint().exact(),
    }
}

impl<B> LockBody<B> {
    /// A body without a lease; of an answer to HEAD, with the size of what is not sent.
    pub(crate) fn of(frames: Frames, unsent: Option<u64>) -> Self {
        Self { body: None, tail: None, frames, unsent: unsent.map(SizeHint::with_exact) }
    }

    pub(crate) fn handler(body: B, tail: Tail) -> Self {
        Self { body: Some(body), tail: Some(tail), frames: Frames::default(), unsent: None }
    }
}

impl<B> Body for LockBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        *this.unsent = None;
        let Some(tail) = this.tail else { return Poll::Ready(this.frames.next().map(Ok)) };
        if let Some(body) = this.body.as_mut().as_pin_mut() {
            match ready!(tail.poll_frame(body, context)) {
                Ok((frame, false)) => return Poll::Ready(frame.map(Ok)),
                Ok((frame, true)) => {
                    this.body.set(None);
                    tail.end(frame);
                }
                Err(error) => {
                    this.body.set(None);
                    *this.tail = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        let frame = ready!(tail.poll_end(context));
        *this.tail = None;
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.tail.is_none() && self.unsent.is_none() && self.frames.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.body, &self.tail, &self.unsent) {
            (Some(body), ..) => body.size_hint(),
            (None, Some(tail), _) => tail.size_hint(),
            (None, None, Some(unsent)) => *unsent,
            (None, None, None) => self.frames.size_hint(),
        }
    }
}

impl<B> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockBody").finish_non_exhaustive()
    }
}

impl Tail {
    pub(crate) fn new(shared: Arc<Shared>, guard: Option<Guard>, recorder: Option<Recorder>, end: End) -> Self {
        let hold = guard.map(|guard| Hold { lost: Box::pin(guard.lost()), guard });
        Self { hold, recorder, ending: None, left: end.left, shared }
    }

    /// Polls the body for a frame, and says whether it is the last.
    fn poll_frame<B>(&mut self, mut body: Pin<&mut B>, context: &mut Context<'_>) -> Poll<Step>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        self.check(context)?;
        let frame = ready!(body.as_mut().poll_frame(context)).transpose().map_err(Into::into)?;
        // The lease may have ended during that step, which it did not cover then.
        self.check(context)?;
        let Some(frame) = frame else { return Poll::Ready(Ok((None, true))) };
        self.recorder = self.recorder.take().and_then(|recorder| recorder.push(&frame));
        if let (Some(left), Some(data)) = (&mut self.left, frame.data_ref()) {
            *left = left.saturating_sub(data.len() as u64);
        }
        let is_last = frame.is_trailers() || self.left == Some(0) || body.is_end_stream();
        Poll::Ready(Ok((Some(frame), is_last)))
    }

    /// Fails once the lease is lost.
    fn check(&mut self, context: &mut Context<'_>) -> Result<(), BoxError> {
        let Some(hold) = &mut self.hold else { return Ok(()) };
        if hold.lost.as_mut().poll(context).is_pending() && hold.guard.end_reason().is_none() {
            return Ok(());
        }
        let name = hold.guard.name();
        let error = Error::new(ErrorKind::Lost, format!("the lock {name:?} was lost before the answer was sent"));
        self.shared.note_lost(name, &error);
        (self.hold, self.recorder) = (None, None);
        Err(error.into())
    }

    fn end(&mut self, frame: Option<Frame<Bytes>>) {
        let release = self.hold.take().map(|hold| {
            let shared = Arc::clone(&self.shared);
            Box::pin(async move { shared.release(hold.guard).await }) as _
        });
        self.ending = Some(Ending { frame, release });
    }

    /// Ends an answer without a body.
    pub(crate) async fn finish(&mut self) {
        self.end(None);
        poll_fn(|context| self.poll_end(context)).await;
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(release) = self.ending.as_mut().and_then(|ending| ending.release.as_mut()) {
            ready!(release.as_mut().poll(context));
        }
        // After the release, so that the first request of the next crowd finds the key free.
        if let Some(recorder) = self.recorder.take() {
            recorder.publish();
        }
        Poll::Ready(self.ending.take().and_then(|ending| ending.frame))
    }

    /// Size of a last frame that is held back.
    fn size_hint(&self) -> SizeHint {
        let data = self.ending.as_ref().and_then(|ending| ending.frame.as_ref()?.data_ref());
        SizeHint::with_exact(data.map_or(0, |data| data.len() as u64))
    }
}
