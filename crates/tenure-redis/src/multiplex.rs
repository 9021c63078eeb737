//! Many callers on one connection.
//!
//! Each caller puts its commands, ready for the wire, behind those of the others and waits; one task writes what has gathered and
//! gives the replies, which come in the same order, to those who asked. The client library does the same, but writes once for every
//! caller or two, and builds and reads each command in pieces on the heap: it takes more of a processor than a server does for the
//! commands themselves.
//!
//! The task writes at once while little is under way. Else it lets the others on its thread run first: whoever has just been
//! answered is about to ask again, and many commands in one write cost both ends a fraction of as many writes.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::{PushInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::commands::Commands;
use crate::frame::{self, Scanner};
use crate::link::Answers;
use crate::push::Pushes;

/// Callers under way from which on it pays to wait for more.
const FEW: usize = 3;

/// Bytes read at once.
const READ: usize = 32 << 10;

/// One connection, shared; it ends when this is dropped.
pub(crate) struct Multiplexed {
    desk: Arc<Desk>,
    task: tokio::task::JoinHandle<()>,
}

/// Where callers hand in.
#[derive(Default)]
struct Desk(Mutex<Handed>);

#[derive(Default)]
struct Handed {
    bytes: Vec<u8>,
    asked: Vec<Asked>,
    /// The writing task, where it waits.
    writer: Option<Waker>,
    /// Why nothing more can be handed in.
    closed: Option<RedisError>,
}

/// Commands of one caller.
struct Asked {
    missing: usize,
    answers: Answers,
    /// None once it waits no more.
    caller: Option<oneshot::Sender<RedisResult<Option<Answers>>>>,
    until: Instant,
}

impl Asked {
    fn tell(&mut self, outcome: RedisResult<Option<Answers>>) {
        if let Some(caller) = self.caller.take() {
            // It may have gone away.
            let _ = caller.send(outcome);
        }
    }
}

impl Multiplexed {
    /// Carries commands over `stream`, and what the server pushes to `pushes`.
    pub(crate) fn start(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, pushes: Arc<Pushes>) -> Self {
        let desk = Arc::new(Desk::default());
        let carrier = Carrier {
            stream,
            pushes,
            desk: Arc::clone(&desk),
            input: vec![0; READ],
            filled: 0,
            scanner: Scanner::default(),
            output: Vec::new(),
            written: 0,
            unflushed: false,
            under_way: VecDeque::new(),
            answered: 0,
            gave_way: false,
            alarm: Box::pin(sleep_until(Instant::now())),
            set: false,
        };
        Self { desk, task: tokio::spawn(carrier.run()) }
    }

    /// Sends commands and waits for their answers, none where they have not come by `until`. After that, and when the future is
    /// dropped, the commands go on.
    pub(crate) async fn send(&self, commands: &Commands, until: Instant) -> RedisResult<Option<Answers>> {
        let (caller, answer) = oneshot::channel();
        {
            let mut handed = self.desk.open();
            if let Some(error) = &handed.closed {
                return Err(error.clone());
            }
            handed.bytes.extend_from_slice(commands.as_bytes());
            let missing = commands.count();
            handed.asked.push(Asked { missing, answers: Vec::with_capacity(missing), caller: Some(caller), until });
            if let Some(writer) = handed.writer.take() {
                writer.wake();
            }
        }
        answer.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::BrokenPipe).into()))
    }
}

impl Drop for Multiplexed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Desk {
    /// Has the writing task woken when there is something for it.
    fn call(&self, cx: &Context<'_>) {
        let mut handed = self.open();
        if handed.asked.is_empty() {
            handed.writer = Some(cx.waker().clone());
        } else {
            cx.waker().wake_by_ref();
        }
    }

    fn open(&self) -> MutexGuard<'_, Handed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that writes and reads.
struct Carrier<S> {
    stream: S,
    pushes: Arc<Pushes>,
    desk: Arc<Desk>,
    /// What was read and not handed out: the first `filled` bytes.
    input: Vec<u8>,
    filled: usize,
    scanner: Scanner,
    output: Vec<u8>,
    written: usize,
    unflushed: bool,
    under_way: VecDeque<Asked>,
    /// Callers answered since the last write.
    answered: usize,
    gave_way: bool,
    /// When the first of those who wait has waited long enough, or before.
    alarm: Pin<Box<Sleep>>,
    set: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Carrier<S> {
    async fn run(mut self) {
        let error = std::future::poll_fn(|cx| self.step(cx)).await;
        self.close(error);
    }

    /// Reads and writes what can be read and written now; ready when the connection has ended.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        loop {
            // Reading goes first and on: a server that cannot get rid of its replies reads no commands.
            if let Poll::Ready(error) = self.read(cx) {
                return Poll::Ready(error);
            }
            let more = self.take_over(cx);
            match self.write(cx) {
                Poll::Ready(Ok(())) if more => {}
                Poll::Ready(Err(error)) => {
                    let _ = self.read(cx);
                    return Poll::Ready(error.into());
                }
                Poll::Ready(Ok(())) => {
                    self.ring(cx);
                    return Poll::Pending;
                }
                Poll::Pending => {
                    // The alarm minds those too who hand in while nothing can be written.
                    self.desk.call(cx);
                    self.ring(cx);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes what was handed in; false when there was nothing, or when others are let run first.
    fn take_over(&mut self, cx: &mut Context<'_>) -> bool {
        let mut handed = self.desk.open();
        if handed.asked.is_empty() {
            self.gave_way = false;
            handed.writer = Some(cx.waker().clone());
            return false;
        }
        if !self.gave_way && self.under_way.len() + self.answered + handed.asked.len() > FEW {
            self.gave_way = true;
            cx.waker().wake_by_ref();
            return false;
        }
        (self.gave_way, self.answered) = (false, 0);
        if self.output.is_empty() {
            std::mem::swap(&mut handed.bytes, &mut self.output);
        } else {
            self.output.append(&mut handed.bytes);
        }
        let soonest = handed.asked.iter().map(|asked| asked.until).min();
        self.under_way.extend(handed.asked.drain(..));
        drop(handed);
        self.set(soonest);
        true
    }

    /// Sets the alarm, if it would ring later.
    fn set(&mut self, soonest: Option<Instant>) {
        if let Some(soonest) = soonest
            && (!self.set || self.alarm.deadline() > soonest)
        {
            self.alarm.as_mut().reset(soonest);
            self.set = true;
        }
    }

    /// Tells those who have waited long enough. One alarm serves all: it rings once for as many callers as come in a timeout.
    fn ring(&mut self, cx: &mut Context<'_>) {
        while self.set && self.alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            for asked in self.under_way.iter_mut().filter(|asked| asked.until <= now) {
                asked.tell(Ok(None));
            }
            self.set = false;
            self.set(self.under_way.iter().filter(|asked| asked.caller.is_some()).map(|asked| asked.until).min());
        }
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

    /// Reads and hands out until nothing comes; ready when the connection has ended.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        loop {
            if self.filled == self.input.len() {
                self.input.resize(2 * self.filled, 0);
            }
            let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Err(error) => return Poll::Ready(error.into()),
                Ok(()) if buffer.filled().is_empty() => return Poll::Ready(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(()) => self.filled += buffer.filled().len(),
            }
            if let Err(error) = self.hand_out() {
                return Poll::Ready(error);
            }
        }
    }

    fn hand_out(&mut self) -> RedisResult<()> {
        let mut at = 0;
        while let Some((value, length)) = frame::read(&self.input[at..self.filled], &mut self.scanner)? {
            at += length;
            match value {
                Value::Push { kind, data } if !is_reply(&kind) => self.pushes.take_in(PushInfo { kind, data }),
                Value::ServerError(error) => self.answer(Err(error.into()))?,
                value => self.answer(Ok(value))?,
            }
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn answer(&mut self, answer: RedisResult<Value>) -> RedisResult<()> {
        let Some(first) = self.under_way.front_mut() else {
            // A server that hangs up says why unasked.
            return answer.and_then(|_| Err((redis::ErrorKind::Parse, "an answer that nobody asked for").into()));
        };
        first.answers.push(answer);
        first.missing -= 1;
        if first.missing == 0
            && let Some(mut asked) = self.under_way.pop_front()
        {
            self.answered += 1;
            let answers = std::mem::take(&mut asked.answers);
            asked.tell(Ok(Some(answers)));
        }
        Ok(())
    }

    /// Tells all who wait that there is nothing more to wait for.
    fn close(&mut self, error: RedisError) {
        let mut handed = self.desk.open();
        for mut asked in self.under_way.drain(..).chain(handed.asked.drain(..)) {
            asked.tell(Err(error.clone()));
        }
        handed.closed = Some(error);
        drop(handed);
        self.pushes.missed();
    }
}

/// Whether a push answers a command.
fn is_reply(kind: &redis::PushKind) -> bool {
    matches!(kind, redis::PushKind::Subscribe | redis::PushKind::Unsubscribe)
}
