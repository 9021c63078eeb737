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
use tenure::{EndReason, Error, ErrorKind, Guard};

use crate::BoxError;
use crate::frames::Frames;
use crate::join::Recorder;
use crate::problem::Problem;
use crate::shared::Shared;

/// Most frames of an answer that are read before its head is sent.
const MOST_FRAMES: usize = 1024;

/// Body of an answer. The key is taken until it has ended, failed, or was dropped.
///
/// Its last frame is held back until the store has answered the release. If the lease is lost
/// before, the body ends with a [`tenure::Error`] of the kind [`Lost`](ErrorKind::Lost).
pub struct LockBody<B> {
    // The frames that were read before the head was sent.
    frames: Frames,
    // The error that came after those frames.
    failed: Option<Broken>,
    // The body is dropped before the tail, so the handler's part ends before its lease.
    body: Option<Pin<Box<B>>>,
    tail: Option<Tail>,
    // The size that the head names, if the body has another one: an answer to HEAD, or a body that breaks its promise.
    // None once the body is read.
    promised: Option<SizeHint>,
}

/// The lease of an answer, and its copy for the requests that join. Both end with the body.
pub(crate) struct Tail {
    hold: Option<Hold>,
    recorder: Option<Recorder>,
    ending: Option<Ending>,
    /// Bytes up to the end, if the server stops reading there.
    left: Option<u64>,
    /// Size that was promised.
    promised: Option<u64>,
    shared: Arc<Shared>,
}

struct Hold {
    guard: Guard,
    lost: Pin<Box<dyn Future<Output = EndReason> + Send>>,
}

/// A frame of the handler's body, and whether it is the last.
type Step = Result<(Option<Frame<Bytes>>, bool), Broken>;

/// Why a body broke off.
enum Broken {
    Lost(Error),
    Failed(BoxError),
}

impl From<Broken> for BoxError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Lost(error) => error.into(),
            Broken::Failed(error) => error,
        }
    }
}

/// The end of a body, which waits for the release.
struct Ending {
    frame: Option<Frame<Bytes>>,
    release: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Where the server sees the end of a body. A server need not ask for more than it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Nothing of the body is sent.
    pub(crate) at_once: bool,
    /// Size that the head of the answer names in place of the body.
    pub(crate) unsent: Option<u64>,
    left: Option<u64>,
    /// The size that the head promises. If the head has none, the size that the body promises.
    promised: Option<u64>,
}

impl End {
    pub(crate) fn of(method: &Method, version: Version, head: &response::Parts, body: &impl Body) -> Self {
        let silent = method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
        let none = head.status == StatusCode::NO_CONTENT || head.status.is_informational();
        let promised = length(head, body);
        // In HTTP/2 trailers may follow, and the server asks for them.
        let left = promised.filter(|_| version <= Version::HTTP_11);
        let at_once = body.is_end_stream() || silent || none || left == Some(0);
        let unsent = if silent && !body.is_end_stream() { body.size_hint().exact() } else { None };
        Self { at_once, unsent, left, promised: promised.filter(|_| !at_once) }
    }
}

/// Length that the client sees. A server of HTTP/1 ends the body there.
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
        Self { frames, failed: None, body: None, tail: None, promised: unsent.map(SizeHint::with_exact) }
    }

    pub(crate) fn handler(body: B, tail: Tail) -> Self {
        Self { body: Some(Box::pin(body)), tail: Some(tail), ..Self::of(Frames::default(), None) }
    }
}

impl<B> LockBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    /// Reads what is there of the body, up to `limit` bytes. If that is all of it, the key is free when this
    /// returns, and a server can send the answer in one piece.
    ///
    /// # Errors
    /// If the lease is lost meanwhile. Nothing is sent yet, so the answer may be another one.
    pub(crate) async fn read_ahead(&mut self, limit: u64) -> Result<(), Problem> {
        let promised = self.tail.as_ref().and_then(|tail| tail.promised);
        poll_fn(|context| {
            // Small frames take up more than their data, and there may be no end of empty ones.
            let mut frames = 0..MOST_FRAMES;
            while self.frames.len() < limit
                && self.body.is_some()
                && frames.next().is_some()
                && let Poll::Ready(step) = self.poll_body(context)
            {
                match step {
                    Ok(Some(frame)) => self.frames.push(&frame),
                    Ok(None) => {}
                    Err(error) => self.failed = Some(error),
                }
            }
            Poll::Ready(())
        })
        .await;
        if let Some(Broken::Lost(_)) = self.failed {
            return Err(Problem::LockLost);
        }
        if self.body.is_none() {
            let last = poll_fn(|context| self.poll_tail(context)).await;
            self.frames.extend(last);
        }
        // A server that saw the real size would send that much under the promised length. The client would take the next
        // answer for the rest.
        let is_kept = self.failed.is_some() || promised.is_none_or(|size| self.size_hint().exact() == Some(size));
        self.promised = promised.filter(|_| !is_kept).map(SizeHint::with_exact);
        Ok(())
    }

    /// Reads a frame of the handler's body, unless it is the last: that is left to the tail.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Broken>> {
        let (Some(body), Some(tail)) = (&mut self.body, &mut self.tail) else { return Poll::Ready(Ok(None)) };
        match ready!(tail.poll_frame(body.as_mut(), context)) {
            Ok((frame, false)) => Poll::Ready(Ok(frame)),
            Ok((frame, true)) => {
                self.body = None;
                tail.end(frame);
                Poll::Ready(Ok(None))
            }
            Err(error) => {
                (self.body, self.tail) = (None, None);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Waits for the release, and returns the last frame.
    fn poll_tail(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let Some(tail) = &mut self.tail else { return Poll::Ready(None) };
        let last = ready!(tail.poll_end(context));
        self.tail = None;
        Poll::Ready(last)
    }
}

impl<B> Body for LockBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.promised = None;
        if let Some(frame) = this.frames.next() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Some(Err(error.into())));
        }
        if let Some(frame) = ready!(this.poll_body(context)).transpose() {
            return Poll::Ready(Some(frame.map_err(BoxError::from)));
        }
        this.poll_tail(context).map(|last| last.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.tail.is_none() && self.failed.is_none() && self.promised.is_none() && self.frames.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.promised, &self.body, &self.tail) {
            // A server that knows the size may not see the error.
            _ if self.failed.is_some() => SizeHint::default(),
            (Some(promised), ..) => *promised,
            (None, Some(body), _) => self.frames.size_hint_with(&body.size_hint()),
            (None, None, Some(tail)) => tail.size_hint(),
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
        Self { hold, recorder, ending: None, left: end.left, promised: end.promised, shared }
    }

    /// Polls the body for a frame, and says whether it is the last.
    fn poll_frame<B>(&mut self, mut body: Pin<&mut B>, context: &mut Context<'_>) -> Poll<Step>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        self.check(context)?;
        let frame = ready!(body.as_mut().poll_frame(context)).transpose().map_err(|error| Broken::Failed(error.into()))?;
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
    fn check(&mut self, context: &mut Context<'_>) -> Result<(), Broken> {
        let Some(hold) = &mut self.hold else { return Ok(()) };
        if hold.lost.as_mut().poll(context).is_pending() && hold.guard.end_reason().is_none() {
            return Ok(());
        }
        let name = hold.guard.name();
        let error = Error::new(ErrorKind::Lost, format!("the lock {name:?} was lost before the answer was sent"));
        self.shared.note_lost(name, &error);
        (self.hold, self.recorder) = (None, None);
        Err(Broken::Lost(error))
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
        if let Some(recorder) = self.recorder.take()
            && self.promised.is_none_or(|size| recorder.len() == size)
        {
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
