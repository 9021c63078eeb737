//! One connection for many callers.
//!
//! Each caller puts its commands, ready for the wire, into the submission queue and waits. One task
//! writes what has gathered, and gives the replies, which come in the same order, to the callers.
//! The client library does the same, but it writes for every caller or two, and builds and reads
//! each command in pieces on the heap. That takes more of a processor than the commands take of the
//! server.
//!
//! The task writes at once while few calls are in flight. Else it lets the others on its thread run
//! first: a caller that was just answered is about to send again, and one write for many commands
//! costs both ends less. It answers so many callers at a time that the server has work while they
//! send again. Else the two ends would wait for each other in turn.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::{PushInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::transport::commands::Commands;
use crate::transport::contact::Contact;
use crate::transport::failure::crowded;
use crate::transport::frame::{self, Scanner};
use crate::transport::push::Pushes;
use crate::transport::reply::Answers;

/// Calls in flight from which on the task waits for more.
const FEW: usize = 3;

/// Calls that are answered before others are let run: at least this number, and at least this
/// fraction of those in flight.
const BATCH: usize = 16;
const PART: usize = 16;

/// Size of the read buffer.
const READ: usize = 32 << 10;

/// Bytes that may wait to be written, and that may be in writing. Beyond them, submissions fail.
const UNSENT: usize = 16 << 20;

/// One shared connection. It ends when this is dropped.
pub(crate) struct Multiplexed {
    queue: Arc<SubmissionQueue>,
    contact: Arc<Contact>,
    task: tokio::task::JoinHandle<()>,
}

/// Commands that wait for the next write.
#[derive(Default)]
struct SubmissionQueue(Mutex<Submitted>);

#[derive(Default)]
struct Submitted {
    bytes: Vec<u8>,
    calls: Vec<Call>,
    /// The connection task, while it waits.
    writer: Option<Waker>,
    /// Why the connection has ended.
    closed: Option<RedisError>,
}

/// Commands of one caller.
struct Call {
    missing: usize,
    answers: Answers,
    caller: oneshot::Sender<RedisResult<Answers>>,
}

impl Multiplexed {
    /// Sends commands over `stream`, and delivers what the server pushes to `pushes`.
    pub(crate) fn start(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, pushes: Arc<Pushes>) -> Self {
        let (queue, contact) = (Arc::new(SubmissionQueue::default()), Arc::new(Contact::default()));
        let task = ConnectionTask {
            stream,
            pushes,
            queue: Arc::clone(&queue),
            contact: Arc::clone(&contact),
            input: vec![0; READ],
            taken: 0,
            filled: 0,
            scanner: Scanner::default(),
            output: Vec::new(),
            written: 0,
            unflushed: false,
            in_flight: VecDeque::new(),
            answered: 0,
            yielded: false,
        };
        Self { queue, contact, task: tokio::spawn(task.run()) }
    }

    /// The times of the last contact.
    pub(crate) fn contact(&self) -> &Arc<Contact> {
        &self.contact
    }

    /// Sends commands and waits for their answers. If the future is dropped, the commands still
    /// run.
    ///
    /// The task may never run again, so a caller needs a timeout of its own.
    pub(crate) async fn send(&self, commands: &Commands) -> RedisResult<Answers> {
        let (caller, answer) = oneshot::channel();
        {
            let mut submitted = self.queue.open();
            if let Some(error) = &submitted.closed {
                return Err(error.clone());
            }
            if submitted.bytes.len() >= UNSENT {
                return Err(crowded());
            }
            submitted.bytes.extend_from_slice(commands.as_bytes());
            let missing = commands.count();
            submitted.calls.push(Call { missing, answers: Vec::with_capacity(missing), caller });
            if let Some(writer) = submitted.writer.take() {
                writer.wake();
            }
        }
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Multiplexed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SubmissionQueue {
    fn open(&self) -> MutexGuard<'_, Submitted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that writes commands and reads replies.
struct ConnectionTask<S> {
    stream: S,
    pushes: Arc<Pushes>,
    queue: Arc<SubmissionQueue>,
    contact: Arc<Contact>,
    /// The bytes that were read, up to `filled`. Those before `taken` were delivered.
    input: Vec<u8>,
    taken: usize,
    filled: usize,
    scanner: Scanner,
    output: Vec<u8>,
    written: usize,
    unflushed: bool,
    in_flight: VecDeque<Call>,
    /// Calls answered since the last write.
    answered: usize,
    yielded: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionTask<S> {
    async fn run(mut self) {
        let error = std::future::poll_fn(|cx| self.step(cx)).await;
        self.close(error);
    }

    /// Reads and writes what can be read and written now. Ready when the connection has ended.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        loop {
            match self.write(cx) {
                // Only after the last write is complete: so what is unsent has a limit.
                Poll::Ready(Ok(())) if self.take_submitted(cx) => continue,
                Poll::Ready(Err(error)) => {
                    while matches!(self.read(cx), Poll::Ready(Ok(()))) {}
                    return Poll::Ready(error.into());
                }
                // Reading goes on: a server that cannot send its replies reads no commands.
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            match self.read(cx) {
                Poll::Ready(Ok(())) => {
                    self.yielded = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Takes the submitted commands. False if there are none, or if other tasks are let run first.
    fn take_submitted(&mut self, cx: &mut Context<'_>) -> bool {
        let mut submitted = self.queue.open();
        if submitted.calls.is_empty() {
            self.yielded = false;
            submitted.writer = Some(cx.waker().clone());
            return false;
        }
        if !self.yielded && self.in_flight.len() + self.answered + submitted.calls.len() > FEW {
            self.yielded = true;
            cx.waker().wake_by_ref();
            return false;
        }
        (self.yielded, self.answered) = (false, 0);
        std::mem::swap(&mut submitted.bytes, &mut self.output);
        self.in_flight.extend(submitted.calls.drain(..));
        true
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.output.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.output[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        self.written = 0;
        self.output.clear();
        Poll::Ready(Ok(()))
    }

    /// Reads and answers until a batch was answered, nothing more comes, or the connection has
    /// ended.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<()>> {
        loop {
            if self.answer_calls()? {
                return Poll::Ready(Ok(()));
            }
            self.input.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
            if self.filled == self.input.len() {
                self.input.resize(2 * self.filled, 0);
            }
            let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
            self.filled += buffer.filled().len();
        }
    }

    /// Answers calls. True after a batch, false if nothing more of what was read is complete.
    fn answer_calls(&mut self) -> RedisResult<bool> {
        let mut replied = false;
        let rest = self.in_flight.len().saturating_sub(BATCH.max(self.in_flight.len() / PART));
        let full = loop {
            if rest > 0 && self.in_flight.len() <= rest {
                break true;
            }
            let Some((value, length)) = frame::read(&self.input[self.taken..self.filled], &mut self.scanner)? else {
                break false;
            };
            self.taken += length;
            let answer = match value {
                Value::Push { kind, data } if !is_reply(&kind) => {
                    let push = PushInfo { kind, data };
                    if self.pushes.ends_link(&push) {
                        return Err(ended());
                    }
                    self.pushes.take_in(push);
                    continue;
                }
                Value::ServerError(error) => Err(error.into()),
                value => Ok(value),
            };
            replied = true;
            self.answer(answer)?;
        };
        // A push says nothing about the other direction. An incomplete frame may be a long reply.
        if replied || self.taken < self.filled {
            self.contact.heard();
        }
        Ok(full)
    }

    fn answer(&mut self, answer: RedisResult<Value>) -> RedisResult<()> {
        let Some(first) = self.in_flight.front_mut() else {
            // A server that hangs up sends the reason unasked.
            return answer.and_then(|_| Err((redis::ErrorKind::Parse, "an answer that nobody asked for").into()));
        };
        first.answers.push(answer);
        first.missing -= 1;
        if first.missing == 0
            && let Some(Call { answers, caller, .. }) = self.in_flight.pop_front()
        {
            self.answered += 1;
            // The caller may have gone.
            let _ = caller.send(Ok(answers));
        }
        Ok(())
    }
}

impl<S> ConnectionTask<S> {
    /// Fails all calls with `error`.
    fn close(&mut self, error: RedisError) {
        let mut submitted = self.queue.open();
        if submitted.closed.is_some() {
            return;
        }
        for Call { caller, .. } in self.in_flight.drain(..).chain(submitted.calls.drain(..)) {
            let _ = caller.send(Err(error.clone()));
        }
        submitted.bytes = Vec::new();
        submitted.closed = Some(error);
        drop(submitted);
        self.contact.end();
        self.pushes.missed();
    }
}

impl<S> Drop for ConnectionTask<S> {
    /// Its runtime has ended, it has panicked, or the connection was dropped.
    fn drop(&mut self) {
        self.close(ended());
    }
}

pub(crate) fn ended() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Whether a push answers a command.
fn is_reply(kind: &redis::PushKind) -> bool {
    matches!(kind, redis::PushKind::Subscribe | redis::PushKind::Unsubscribe | redis::PushKind::SSubscribe)
}
