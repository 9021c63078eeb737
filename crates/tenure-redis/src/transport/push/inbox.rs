//! Messages to one listener that it has not read yet.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Messages that a listener may leave unread. More are replaced by [`Pushed::Missed`].
pub(super) const UNREAD: usize = 16;

/// One message to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Messages may have been lost.
    Missed,
    /// The payload of a message.
    Message(Vec<u8>),
}

#[derive(Default)]
pub(super) struct Inbox(Mutex<Unread>);

#[derive(Default)]
struct Unread {
    missed: bool,
    messages: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
}

impl Inbox {
    pub(super) fn put(&self, payload: &[u8]) {
        let mut unread = self.unread();
        if unread.messages.len() < UNREAD {
            unread.messages.push_back(payload.to_owned());
            unread.wake();
        } else {
            unread.messages.clear();
            unread.missed = true;
        }
    }

    pub(super) fn miss(&self) {
        let mut unread = self.unread();
        unread.missed = true;
        unread.wake();
    }

    /// Returns the earliest message, or waits for one.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Pushed>> {
        let mut unread = self.unread();
        if std::mem::take(&mut unread.missed) {
            return Poll::Ready(Some(Pushed::Missed));
        }
        if let Some(message) = unread.messages.pop_front() {
            return Poll::Ready(Some(Pushed::Message(message)));
        }
        unread.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unread {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
