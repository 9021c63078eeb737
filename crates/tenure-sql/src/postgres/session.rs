//! Whether a connection is a session of the server, or a pool lends it one for each transaction.
//!
//! The server's first answers name the process at its side. A pool such as PgBouncer sends a number
//! of its own. The client library keeps that number to itself, so it is read from the stream.
//!
//! A pool takes the end of an answer for the end of its client's turn. PgBouncer 1.18 then sends what
//! the client has written meanwhile to the session of another. So the stream holds a statement back
//! until the answer to the last has ended, also if its call was dropped or has failed. A session of
//! one's own takes one statement behind another.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use tenure::{Error, Owner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsStream};

/// The process that the server's first answers named, and whether it is the one that answers. Clones
/// are the same.
#[derive(Clone, Debug)]
pub(super) struct Announced(Arc<(AtomicI64, AtomicBool)>);

impl Announced {
    const NOT_YET: i64 = -1 << 32;

    pub(super) fn new() -> Self {
        Self(Arc::new((AtomicI64::new(Self::NOT_YET), AtomicBool::new(false))))
    }

    /// Whether that is the process which answers, as it says itself. From then on, statements are sent
    /// one behind another.
    pub(super) fn is(&self, process: i32) -> bool {
        let (announced, is_session) = &*self.0;
        let is_ours = announced.load(Ordering::Relaxed) == i64::from(process);
        is_session.store(is_ours, Ordering::Relaxed);
        is_ours
    }

    fn is_session(&self) -> bool {
        self.0.1.load(Ordering::Relaxed)
    }
}

/// A stream that has one statement under way, until it is known as that of a session.
pub(super) struct Watched<S> {
    stream: S,
    announced: Announced,
    reading: Reading,
    /// In which message the writer is, from the first statement on.
    written: Message,
    /// The login is over.
    logged_in: bool,
    /// A statement was sent, and its answer has not ended.
    under_way: bool,
    /// The writer that waits for that.
    held_back: Option<Waker>,
}

/// Where in the server's answers the stream is.
enum Reading {
    /// At the answer to the question for TLS, a single byte.
    Offer,
    In(Message),
    /// Nothing is read or held back any more.
    Done,
}

/// The part of a message that has passed.
#[derive(Clone, Copy, Default)]
struct Message {
    /// Its kind, its length, and the number behind it.
    start: [u8; START],
    length: usize,
}

const HEAD: usize = 5;
const START: usize = HEAD + 4;

/// The kind of the message that names the process.
const KEY_DATA: u8 = b'K';
/// The end of an answer.
const READY: u8 = b'Z';
/// Ends of a statement: each has one [`READY`].
const SYNC: u8 = b'S';
const QUERY: u8 = b'Q';

impl Message {
    /// Passes over bytes of this message. Returns how many, and its start if it has ended.
    fn pass(&mut self, bytes: &[u8]) -> (usize, Option<[u8; START]>) {
        let mut passed = 0;
        loop {
            let end = if self.length < HEAD { HEAD } else { self.end() };
            let part = &bytes[passed..bytes.len().min(passed + end - self.length)];
            for (slot, byte) in self.start.iter_mut().skip(self.length).zip(part) {
                *slot = *byte;
            }
            self.length += part.len();
            passed += part.len();
            if self.length < end {
                return (passed, None);
            }
            if self.length == self.end() {
                return (passed, Some(std::mem::take(self).start));
            }
        }
    }

    /// Its whole length, which counts itself and not its kind.
    fn end(&self) -> usize {
        usize::try_from(number(&self.start, 1)).unwrap_or(0).max(HEAD - 1) + 1
    }

    /// Returns how many bytes there are up to the end of the first statement.
    fn to_end_of_statement(mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() {
            let (more, ended) = self.pass(&bytes[passed..]);
            passed += more;
            if ended.is_some_and(|message| is_end(&message)) {
                break;
            }
        }
        passed
    }
}

fn is_end(message: &[u8; START]) -> bool {
    [SYNC, QUERY].contains(&message[0])
}

fn number(bytes: &[u8; START], at: usize) -> i32 {
    i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl<S> Watched<S> {
    /// `offers`: the first byte says whether the server has TLS.
    pub(super) fn new(stream: S, announced: Announced, offers: bool) -> Self {
        let reading = if offers { Reading::Offer } else { Reading::In(Message::default()) };
        let written = Message::default();
        Self { stream, announced, reading, written, logged_in: false, under_way: false, held_back: None }
    }

    fn read(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((first, behind)) = rest.split_first() {
            match &mut self.reading {
                Reading::Done => return,
                Reading::Offer => {
                    // With TLS, what follows is not readable here.
                    self.reading = if *first == b'S' { Reading::Done } else { Reading::In(Message::default()) };
                    rest = behind;
                }
                Reading::In(message) => {
                    let (passed, ended) = message.pass(rest);
                    rest = &rest[passed..];
                    match ended {
                        Some(message) if message[0] == KEY_DATA => {
                            self.announced.0.0.store(number(&message, HEAD).into(), Ordering::Relaxed);
                        }
                        Some(message) if message[0] == READY => {
                            (self.logged_in, self.under_way) = (true, false);
                            self.held_back.take().into_iter().for_each(Waker::wake);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Returns how many of these bytes may be written now.
    fn allowed(&mut self, bytes: &[u8]) -> usize {
        if self.announced.is_session() {
            self.reading = Reading::Done;
        }
        match self.reading {
            Reading::In(_) if self.under_way => 0,
            Reading::In(_) if self.logged_in => self.written.to_end_of_statement(bytes),
            _ => bytes.len(),
        }
    }

    fn wrote(&mut self, bytes: &[u8]) {
        if !self.logged_in {
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (passed, ended) = self.written.pass(rest);
            self.under_way |= ended.is_some_and(|message| is_end(&message));
            rest = &rest[passed..];
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.read(&buf.filled()[before..]);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let allowed = this.allowed(buf);
        if allowed == 0 && !buf.is_empty() {
            this.held_back = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, &buf[..allowed]))?;
        if !matches!(this.reading, Reading::Done) {
            this.wrote(&buf[..written]);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Watched<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

const CHANNEL: &str = "tenure_";

/// Makes the name of a channel. Who may notify there can hand a lock to us, so nobody guesses it.
pub(super) fn channel() -> Result<String, Error> {
    let random = Owner::generate("")?;
    Ok(format!("{CHANNEL}{}", random.to_string().trim_start_matches('.')))
}

/// Whether a text from the table is a channel that this module named.
pub(super) fn is_channel(text: &str) -> bool {
    let random = text.strip_prefix(CHANNEL).unwrap_or_default();
    random.len() == 32 && random.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind], &length.to_be_bytes()[..], body].concat()
    }

    fn watched(offers: bool) -> Watched<tokio::io::Sink> {
        Watched::new(tokio::io::sink(), Announced::new(), offers)
    }

    #[test]
    fn the_process_is_read_however_the_bytes_come() {
        let key = [77_i32.to_be_bytes(), [1, 2, 3, 4]].concat();
        let answers =
            [message(b'R', &[0; 4]), message(b'S', b"a\0b\0"), message(b'n', b""), message(b'K', &key), message(b'Z', b"I")];
        let (plain, refused) = (answers.concat(), [b"N".to_vec(), answers.concat()].concat());
        for (bytes, offers) in [(plain, false), (refused, true)] {
            for size in 1..=bytes.len() {
                let mut stream = watched(offers);
                bytes.chunks(size).for_each(|chunk| stream.read(chunk));
                assert!(stream.announced.is(77) && !stream.announced.is(78) && stream.logged_in, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn behind_an_offer_that_is_taken_nothing_is_read() {
        let mut stream = watched(true);
        stream.read(b"S");
        stream.read(&message(b'K', &77_i64.to_be_bytes()));
        stream.read(&message(b'Z', b"I"));
        assert!(!stream.announced.is(77) && !stream.announced.is(0));
        assert_eq!(stream.allowed(b"any bytes"), 9);
    }

    /// However the bytes come, also behind an error: the next statement waits for the end of the answer.
    #[test]
    fn one_statement_is_under_way() {
        let statement = [message(b'P', b"select"), message(b'B', b""), message(b'E', b""), message(b'S', b"")].concat();
        let three = [statement.clone(), message(b'Q', b"select"), statement.clone()].concat();
        let ends = [statement.len(), three.len() - statement.len(), three.len()];
        for size in 1..=three.len() {
            let (mut stream, mut sent) = (watched(false), 0);
            assert_eq!(stream.allowed(&three), three.len(), "the login has messages of other forms");
            stream.read(&message(b'Z', b"I"));
            for end in ends {
                while sent < end {
                    let piece = &three[sent..three.len().min(sent + size)];
                    let allowed = stream.allowed(piece);
                    assert!(allowed > 0 && sent + allowed <= end, "in pieces of {size}");
                    stream.wrote(&piece[..allowed]);
                    sent += allowed;
                }
                for part in [message(b'1', b""), message(b'E', b"Z"), message(b'Z', b"I")[..5].to_vec()] {
                    assert_eq!(stream.allowed(b"P"), 0, "in pieces of {size}");
                    stream.read(&part);
                }
                assert_eq!(stream.allowed(b"P"), 0, "the answer has not ended");
                stream.read(b"I");
            }
            stream.announced.0.1.store(true, Ordering::Relaxed);
            stream.wrote(&statement);
            assert_eq!(stream.allowed(&three), three.len(), "a session takes all at once");
        }
    }

    #[test]
    fn a_channel_is_known_by_its_form() {
        let name = channel().unwrap();
        assert!(is_channel(&name) && name.len() < 64, "{name}");
        assert!(!is_channel("tenure_x") && !is_channel("") && !is_channel(&name[1..]));
    }
}
