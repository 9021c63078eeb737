//! Bodies in memory, and the body of a request that may have been read to find its key.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

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

    /// Size of a body whose beginning this is.
    pub(crate) fn size_hint_with(&self, rest: &SizeHint) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.len.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(self.len.saturating_add(upper));
        }
        hint
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

    /// Not exact before trailers: a server of HTTP/1.1 would send a length, and leave them out.
    pub(crate) fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::with_exact(self.len);
        if self.trailers.is_some() {
            hint = SizeHint::new();
            hint.set_lower(self.len);
        }
        hint
    }

    pub(crate) fn next(&mut self) -> Option<Frame<Bytes>> {
        if let Some(data) = self.chunks.pop_front() {
            self.len -= data.len() as u64;
            return Some(Frame::data(data));
        }
        self.trailers.take().map(Frame::trailers)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.chunks.is_empty() && self.trailers.is_none()
    }
}

impl Extend<Frame<Bytes>> for Frames {
    fn extend<I: IntoIterator<Item = Frame<Bytes>>>(&mut self, frames: I) {
        frames.into_iter().for_each(|frame| self.push(&frame));
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
        Read { frames: Frames, rest: Option<Pin<Box<B>>> },
    }
}

impl<B> RequestBody<B> {
    pub(crate) fn unread(body: B) -> Self {
        Self { source: Source::Unread { body } }
    }

    pub(crate) fn read(frames: Frames) -> Self {
        Self { source: Source::Read { frames, rest: None } }
    }
}

impl<B: Body<Data = Bytes>> RequestBody<B> {
    /// Makes a body that can be [read ahead](Self::poll_ahead).
    pub(crate) fn movable(self) -> Self {
        match self.source {
            Source::Unread { body } => Self { source: Source::Read { frames: Frames::default(), rest: Some(Box::pin(body)) } },
            source @ Source::Read { .. } => Self { source },
        }
    }

    /// Reads ahead into memory: to the end of the body, or up to `limit` bytes. Not of a body that
    /// was not made movable.
    pub(crate) fn poll_ahead(&mut self, limit: usize, context: &mut Context<'_>) -> Poll<Result<(), B::Error>> {
        let Source::Read { frames, rest } = &mut self.source else { return Poll::Ready(Ok(())) };
        while frames.len() < limit as u64
            && let Some(body) = rest
        {
            match ready!(body.as_mut().poll_frame(context)).transpose()? {
                Some(frame) => frames.push(&frame),
                None => *rest = None,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().source.project() {
            SourceProjection::Unread { body } => body.poll_frame(context),
            SourceProjection::Read { frames, rest } => match (frames.next(), rest) {
                (None, Some(body)) => body.as_mut().poll_frame(context),
                (frame, _) => Poll::Ready(frame.map(Ok)),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Unread { body } => body.is_end_stream(),
            Source::Read { frames, rest } => frames.is_over() && rest.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Unread { body } => body.size_hint(),
            Source::Read { frames, rest: None } => frames.size_hint(),
            Source::Read { frames, rest: Some(body) } => frames.size_hint_with(&body.size_hint()),
        }
    }
}
