//! Bodies: one that was read to find the key, and the one of an answer, which keeps the lease.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tenure::{EndReason, Error, ErrorKind, Guard};

use crate::BoxError;
use crate::join::Recorder;
use crate::shared::Shared;

/// A body in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames {
    chunks: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    len: u64,
}

impl Frames {
    pub(crate) fn whole(data: Bytes) -> Self {
        Self::new(data, None)
    }

    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        let mut frames = Self { trailers, ..Self::default() };
        frames.push_data(data);
        frames
    }

    pub(crate) fn push(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.push_data(data.clone());
        } else if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
    }

    fn push_data(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.len += data.len() as u64;
            self.chunks.push_back(data);
        }
    }

    /// The data of a body that was read as a whole.
    pub(crate) fn data(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.chunks.front().unwrap_or(&EMPTY)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if let Some(data) = self.chunks.pop_front() {
            self.len -= data.len() as u64;
            return Some(Frame::data(data));
        }
        self.trailers.take().map(Frame::trailers)
    }

    fn is_over(&self) -> bool {
        self.chunks.is_empty() && self.trailers.is_none()
    }
}

pin_project! {
    /// Body of a request behind the layer: as it came, also if the key was looked for in it.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[project = SourceProjection]
    #[derive(Debug)]
    enum Source<B> {
        Unread { #[pin] body: B },
        Read { frames: Frames },
    }
}

impl<B> RequestBody<B> {
    pub(crate) fn unread(body: B) -> Self {
        Self { source: Source::Unread { body } }
    }

    pub(crate) fn read(frames: Frames) -> Self {
        Self { source: Source::Read { frames } }
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().source.project() {
            SourceProjection::Unread { body } => body.poll_frame(context),
            SourceProjection::Read { frames } => Poll::Ready(frames.next().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Unread { body } => body.is_end_stream(),
            Source::Read { frames } => frames.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Unread { body } => body.size_hint(),
            Source::Read { frames } => SizeHint::with_exact(frames.len()),
        }
    }
}

pin_project! {
    /// Body of an answer. The key is taken until it has ended, failed, or was dropped.
    ///
    /// Its last frame is held back until the store has answered the release. If the lease is lost
    /// before, the body ends with a [`tenure::Error`] of the kind [`Lost`](ErrorKind::Lost).
    pub struct LockBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = ContentProjection]
    enum Content<B> {
        // The body is dropped before the tail, so the handler's part ends before its lease.
        Handler { #[pin] body: B, tail: Tail },
        Ours { frames: Frames },
    }
}

/// The lease of an answer, and its copy for the requests that join. Both end with the body.
pub(crate) struct Tail {
    hold: Option<Hold>,
    recorder: Option<Recorder>,
    ending: Option<Ending>,
    shared: Arc<Shared>,
}

struct Hold {
    guard: Guard,
    lost: Pin<Box<dyn Future<Output = EndReason> + Send>>,
}

/// The end of a body, which waits for the release.
struct Ending {
    frame: Option<Frame<Bytes>>,
    release: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<B> LockBody<B> {
    pub(crate) fn of(frames: Frames) -> Self {
        Self { content: Content::Ours { frames } }
    }

    pub(crate) fn handler(body: B, tail: Tail) -> Self {
        Self { content: Content::Handler { body, tail } }
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
        let next = match self.as_mut().project().content.project() {
            ContentProjection::Ours { frames } => return Poll::Ready(frames.next().map(Ok)),
            ContentProjection::Handler { body, tail } => ready!(tail.poll_frame(body, context)),
        };
        if !matches!(next, Some(Ok(_))) {
            self.project().content.set(Content::Ours { frames: Frames::default() });
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Handler { body, tail } => tail.is_over() && body.is_end_stream(),
            Content::Ours { frames } => frames.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Handler { body, tail } => tail.size_hint().unwrap_or_else(|| body.size_hint()),
            Content::Ours { frames } => SizeHint::with_exact(frames.len()),
        }
    }
}

impl<B> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockBody").finish_non_exhaustive()
    }
}

impl Tail {
    pub(crate) fn new(shared: Arc<Shared>, guard: Option<Guard>, recorder: Option<Recorder>) -> Self {
        let hold = guard.map(|guard| Hold { lost: Box::pin(guard.lost()), guard });
        Self { hold, recorder, ending: None, shared }
    }

    fn poll_frame<B>(&mut self, mut body: Pin<&mut B>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        if self.ending.is_none() {
            self.check(context)?;
            let frame = ready!(body.as_mut().poll_frame(context)).transpose().map_err(Into::into)?;
            // The lease may have ended during that step, which it did not cover then.
            self.check(context)?;
            if let Some(frame) = &frame {
                self.recorder = self.recorder.take().and_then(|recorder| recorder.push(frame));
            }
            if frame.is_some() && !body.is_end_stream() {
                return Poll::Ready(frame.map(Ok));
            }
            self.end(frame);
        }
        self.poll_end(context).map(|frame| frame.map(Ok))
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

    fn is_over(&self) -> bool {
        self.hold.is_none() && self.recorder.is_none() && self.ending.is_none()
    }

    /// Size of a last frame that is held back, which the body does not count any more.
    fn size_hint(&self) -> Option<SizeHint> {
        let data = self.ending.as_ref()?.frame.as_ref()?.data_ref()?;
        Some(SizeHint::with_exact(data.len() as u64))
    }
}
