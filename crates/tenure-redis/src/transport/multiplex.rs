//! Many callers on one connection.
//!
//! Each caller puts its commands, ready for the wire, behind those of the others and waits; one task writes what has gathered and
//! gives the replies, which come in the same order, to those who asked. The client library does the same, but writes once for every
//! caller or two, and builds and reads each command in pieces on the heap: it takes more of a processor than a server does for the
//! commands themselves.
//!
//! The task writes at once while little is under way. Else it lets the others on its thread run first: whoever has just been
//! answered is about to ask again, and many commands in one write cost both ends a fraction of as many writes. It answers so many
//! at a time that the server has work while they ask again: else the two ends would wait for each other in turn.

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

/// Callers under way from which on it pays to wait for more.
const FEW: usize = 3;

/// Callers that are answered at least before others are let run, and the part of those under way.
const BATCH: usize = 16;
const PART: usize = 16;

/// Bytes read at once.
const READ: usize = 32 << 10;

/// Bytes that may wait to be written, and that may be in writing: with so many, nothing more is taken in.
const UNSENT: usize = 16 << 20;

/// One connection, shared; it ends when this is dropped.
pub(crate) struct Multiplexed {
    desk: Arc<Desk>,
    contact: Arc<Contact>,
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
    caller: oneshot::Sender<RedisResult<Answers>>,
}

impl Multiplexed {
    /// Carries commands over `stream`, and what the server pushes to `pushes`.
    pub(crate) fn start(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, pushes: Arc<Pushes>) -> Self {
        let (desk, contact) = (Arc::new(Desk::default()), Arc::new(Contact::default()));
        let carrier = Carrier {
            stream,
            pushes,
            desk: Arc::clone(&desk),
            contact: Arc::clone(&contact),
            input: vec![0; READ],
            taken: 0,
            filled: 0,
            scanner: Scanner::default(),
            output: Vec::new(),
            written: 0,
            unflushed: false,
            under_way: VecDeque::new(),
            answered: 0,
            gave_way: false,
        };
        Self { desk, contact, task: tokio::spawn(carrier.run()) }
    }

    /// When something came last.
    pub(crate) fn contact(&self) -> &Arc<Contact> {
        &self.contact
    }

    /// Sends commands and waits for their answers. When the future is dropped, the commands go on.
    ///
    /// The task may never get to run again: whoever waits has to have an end of its own.
    pub(crate) async fn send(&self, commands: &Commands) -> RedisResult<Answers> {
        let (caller, answer) = oneshot::channel();
        {
            let mut handed = self.desk.open();
            if let Some(error) = &handed.closed {
                return Err(error.clone());
            }
            if handed.bytes.len() >= UNSENT {
                return Err(crowded());
            }
            handed.bytes.extend_from_slice(commands.as_bytes());
            let missing = commands.count();
            handed.asked.push(Asked { missing, answers: Vec::with_capacity(missing), caller });
            if let Some(writer) = handed.writer.take() {
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

impl Desk {
    fn open(&self) -> MutexGuard<'_, Handed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that writes and reads.
struct Carrier<S> {
    stream: S,
    pushes: Arc<Pushes>,
    desk: Arc<Desk>,
    contact: Arc<Contact>,
    /// What was read: the bytes up to `filled`. Those before `taken` were handed out.
    input: Vec<u8>,
    taken: usize,
    filled: usize,
    scanner: Scanner,
    output: Vec<u8>,
    written: usize,
    unflushed: bool,
    under_way: VecDeque<Asked>,
    /// Callers answered since the last write.
    answered: usize,
    gave_way: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Carrier<S> {
    async fn run(mut self) {
        let error = std::future::poll_fn(|cx| self.step(cx)).await;
        self.close(error);
    }

    /// Reads and writes what can be read and written now; ready when the connection has ended.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        loop {
            match self.write(cx) {
                // Not before the last has been written: so what is unsent has bounds.
                Poll::Ready(Ok(())) if self.take_over(cx) => continue,
                Poll::Ready(Err(error)) => {
                    while matches!(self.read(cx), Poll::Ready(Ok(()))) {}
                    return Poll::Ready(error.into());
                }
                // Reading goes on: a server that cannot get rid of its replies reads no commands.
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            match self.read(cx) {
                Poll::Ready(Ok(())) => {
                    self.gave_way = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => return Poll::Pending,
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
        std::mem::swap(&mut handed.bytes, &mut self.output);
        self.under_way.extend(handed.asked.drain(..));
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

    /// Reads and hands out until a batch has been answered, or nothing comes, or the connection has ended.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<()>> {
        loop {
            if self.hand_out()? {
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

    /// Whether it has answered a batch; else nothing more of what was read is complete.
    fn hand_out(&mut self) -> RedisResult<bool> {
        let mut replied = false;
        let rest = self.under_way.len().saturating_sub(BATCH.max(self.under_way.len() / PART));
        let full = loop {
            if rest > 0 && self.under_way.len() <= rest {
                break true;
            }
            let Some((value, length)) = frame::read(&self.input[self.taken..self.filled], &mut self.scanner)? else {
                break false;
            };
            self.taken += length;
            let answer = match value {
                Value::Push { kind, data } if !is_reply(&kind) => {
                    self.pushes.take_in(PushInfo { kind, data });
                    continue;
                }
                Value::ServerError(error) => Err(error.into()),
                value => Ok(value),
            };
            replied = true;
            self.answer(answer)?;
        };
        // A push says nothing about the way there. What is not complete may be a long reply.
        if replied || self.taken < self.filled {
            self.contact.heard();
        }
        Ok(full)
    }

    fn answer(&mut self, answer: RedisResult<Value>) -> RedisResult<()> {
        let Some(first) = self.under_way.front_mut() else {
            // A server that hangs up says why unasked.
            return answer.and_then(|_| Err((redis::ErrorKind::Parse, "an answer that nobody asked for").into()));
        };
        first.answers.push(answer);
        first.missing -= 1;
        if first.missing == 0
            && let Some(Asked { answers, caller, .. }) = self.under_way.pop_front()
        {
            self.answered += 1;
            // It may have gone away.
            let _ = caller.send(Ok(answers));
        }
        Ok(())
    }
}

impl<S> Carrier<S> {
    /// Tells all who wait that there is nothing more to wait for.
    fn close(&mut self, error: RedisError) {
        let mut handed = self.desk.open();
        if handed.closed.is_some() {
            return;
        }
        for Asked { caller, .. } in self.under_way.drain(..).chain(handed.asked.drain(..)) {
            let _ = caller.send(Err(error.clone()));
        }
        handed.bytes = Vec::new();
        handed.closed = Some(error);
        drop(handed);
        self.contact.end();
        self.pushes.missed();
    }
}

impl<S> Drop for Carrier<S> {
    /// Its runtime has ended, or it has panicked, or nobody needs it any more.
    fn drop(&mut self) {
        self.close(ended());
    }
}

fn ended() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Whether a push answers a command.
fn is_reply(kind: &redis::PushKind) -> bool {
    matches!(kind, redis::PushKind::Subscribe | redis::PushKind::Unsubscribe)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::runtime::Builder;
    use tokio::task::{JoinSet, yield_now};
    use tokio::time::timeout;

    use super::*;
    use crate::transport::commands::Digits;

    const CALLERS: u64 = 200;
    const CALLS: u64 = 50;

    /// Answers `*1 $n <text>` with the text, in pieces of `piece` bytes, a push in front of each seventh.
    async fn server(mut stream: DuplexStream, piece: usize, most: usize) {
        let (mut bytes, mut input, mut answered) = (Vec::new(), vec![0; 4096], 0_usize);
        loop {
            let length = stream.read(&mut input).await.unwrap_or(0);
            if length == 0 {
                return;
            }
            bytes.extend_from_slice(&input[..length]);
            let mut replies = Vec::new();
            loop {
                let ends: Vec<usize> =
                    bytes.windows(2).enumerate().filter(|(_, w)| *w == b"\r\n").map(|(i, _)| i).take(3).collect();
                let [_, second, third] = ends[..] else { break };
                answered += 1;
                if answered % 7 == 0 {
                    replies.extend_from_slice(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
                }
                replies.push(b'+');
                replies.extend_from_slice(&bytes[second + 2..third + 2]);
                bytes.drain(..third + 2);
                if answered == most {
                    let half = replies.len() - 3;
                    let _ = stream.write_all(&replies[..half]).await;
                    return;
                }
            }
            for part in replies.chunks(piece) {
                if stream.write_all(part).await.is_err() {
                    return;
                }
                if answered % 3 == 0 {
                    yield_now().await;
                }
            }
        }
    }

    async fn all_are_answered(buffer: usize, piece: usize, most: usize) -> u64 {
        let (near, far) = duplex(buffer);
        tokio::spawn(server(far, piece, most));
        let wire = Arc::new(Multiplexed::start(near, Pushes::new("").unwrap()));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let wire = Arc::clone(&wire);
            callers.spawn(async move {
                let mut answered = 0;
                for call in 0..CALLS {
                    let mut commands = Commands::new();
                    let numbers = 1 + (caller + call) % 5;
                    let number = |i| caller * 1_000_000 + call * 10 + i;
                    for i in 0..numbers {
                        commands.add(&[Digits::of(number(i)).as_bytes()]);
                    }
                    let Ok(answers) = wire.send(&commands).await else { return answered };
                    let expected: Vec<_> = (0..numbers).map(|i| Value::SimpleString(number(i).to_string())).collect();
                    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
                    answered += 1;
                }
                answered
            });
        }
        let mut answered = 0;
        while let Some(caller) = timeout(Duration::from_secs(20), callers.join_next()).await.expect("a caller was forgotten") {
            answered += caller.unwrap();
        }
        answered
    }

    fn asks(number: u64) -> Commands {
        let mut commands = Commands::new();
        commands.add(&[Digits::of(number).as_bytes()]);
        commands
    }

    /// Whoever went away before its commands were taken over has an answer coming all the same: it is nobody else's.
    #[tokio::test]
    async fn the_answer_of_one_who_went_away_is_nobody_elses() {
        let (near, far) = duplex(1 << 16);
        tokio::spawn(server(far, 1 << 16, usize::MAX));
        let wire = Multiplexed::start(near, Pushes::new("").unwrap());
        for round in 0..20 {
            let (gone, stays) = (asks(2 * round), asks(2 * round + 1));
            let mut gone = Box::pin(wire.send(&gone));
            // Handed in at its first step.
            assert!(std::future::poll_fn(|cx| Poll::Ready(gone.as_mut().poll(cx))).await.is_pending());
            drop(gone);
            let answer = timeout(Duration::from_secs(20), wire.send(&stays)).await.expect("no answer").unwrap();
            assert_eq!(answer, [Ok(Value::SimpleString((2 * round + 1).to_string()))]);
        }
    }

    /// Also those whose commands nobody has begun to write are told that the connection has ended.
    #[tokio::test]
    async fn whoever_is_in_line_is_told_of_the_end() {
        let (near, far) = duplex(4);
        let wire = Arc::new(Multiplexed::start(near, Pushes::new("").unwrap()));
        let mut callers = JoinSet::new();
        for number in 0..5 {
            let wire = Arc::clone(&wire);
            callers.spawn(async move { wire.send(&asks(number)).await });
            yield_now().await;
            yield_now().await;
        }
        drop(far);
        while let Some(told) = timeout(Duration::from_secs(20), callers.join_next()).await.expect("one was forgotten") {
            assert!(told.unwrap().is_err());
        }
    }

    #[test]
    fn each_caller_has_its_own_answers_in_whatever_pieces_they_come() {
        for threads in [0, 2] {
            let runtime = if threads == 0 {
                Builder::new_current_thread().enable_all().build()
            } else {
                Builder::new_multi_thread().worker_threads(threads).enable_all().build()
            };
            let runtime = runtime.unwrap();
            for (buffer, piece) in [(1 << 20, 1 << 20), (1 << 16, 7), (64, 5), (3, 1), (4096, 333)] {
                assert_eq!(runtime.block_on(all_are_answered(buffer, piece, usize::MAX)), CALLERS * CALLS, "{buffer} {piece}");
            }
            for most in [1, 15, 16, 17, 40, 999] {
                assert!(runtime.block_on(all_are_answered(1 << 16, 1 << 16, most)) < most as u64, "{most}");
            }
        }
    }
}
