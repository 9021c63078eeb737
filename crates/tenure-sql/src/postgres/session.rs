//! Whether a connection is a session of the server, or a pool lends it one for each transaction.
//!
//! The server's first answers name the process at its side. A pool such as PgBouncer sends a number
//! of its own. The client library keeps that number to itself, so it is read from the stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use tenure::{Error, Owner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsStream};

/// The process that the server's first answers named. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Announced(Arc<AtomicI64>);

impl Announced {
    const NOT_YET: i64 = -1 << 32;

    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(Self::NOT_YET)))
    }

    /// Whether that is the process which answers, as it says itself.
    pub(super) fn is(&self, process: i32) -> bool {
        self.0.load(Ordering::Relaxed) == i64::from(process)
    }
}

/// A stream that is read along until the process was named.
pub(super) struct Watched<S> {
    stream: S,
    announced: Announced,
    state: Reading,
}

/// Where in the server's answers the stream is.
enum Reading {
    /// At the answer to the question for TLS, a single byte.
    Offer,
    /// In the first bytes of a message: its kind, its length, and a process if it is that kind.
    Head(Vec<u8>),
    /// In the rest of a message.
    Skip(usize),
    Done,
}

/// The kind of the message that names the process.
const KEY_DATA: u8 = b'K';
const HEAD: usize = 5;

impl<S> Watched<S> {
    /// `offers`: the first byte says whether the server has TLS.
    pub(super) fn new(stream: S, announced: Announced, offers: bool) -> Self {
        let state = if offers { Reading::Offer } else { Reading::Head(Vec::new()) };
        Self { stream, announced, state }
    }
}

impl Reading {
    fn read(&mut self, bytes: &[u8], announced: &Announced) {
        let mut rest = bytes;
        while let Some((first, behind)) = rest.split_first() {
            match self {
                Self::Done => return,
                Self::Offer => {
                    // With TLS, what follows is not readable here.
                    *self = if *first == b'S' { Self::Done } else { Self::Head(Vec::new()) };
                    rest = behind;
                }
                Self::Skip(left) => {
                    let skipped = rest.len().min(*left);
                    *left -= skipped;
                    rest = &rest[skipped..];
                    if *left == 0 {
                        *self = Self::Head(Vec::new());
                    }
                }
                Self::Head(head) => {
                    head.push(*first);
                    rest = behind;
                    let wanted = if head[0] == KEY_DATA { HEAD + 4 } else { HEAD };
                    if head.len() < wanted {
                        continue;
                    }
                    let number = |at: usize| i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                    if head[0] == KEY_DATA {
                        announced.0.store(number(HEAD).into(), Ordering::Relaxed);
                        *self = Self::Done;
                        return;
                    }
                    // The length counts itself.
                    let left = usize::try_from(number(1)).unwrap_or(0).saturating_sub(4);
                    *self = if left == 0 { Self::Head(Vec::new()) } else { Self::Skip(left) };
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if !matches!(this.state, Reading::Done) {
            this.state.read(&buf.filled()[before..], &this.announced);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
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

    #[test]
    fn the_process_is_read_however_the_bytes_come() {
        let key = [77_i32.to_be_bytes(), [1, 2, 3, 4]].concat();
        let answers =
            [message(b'R', &[0; 4]), message(b'S', b"a\0b\0"), message(b'n', b""), message(b'K', &key), message(b'Z', b"I")];
        let (plain, refused) = (answers.concat(), [b"N".to_vec(), answers.concat()].concat());
        for (bytes, offers) in [(plain, false), (refused, true)] {
            for size in 1..=bytes.len() {
                let (announced, mut state) = (Announced::new(), if offers { Reading::Offer } else { Reading::Head(Vec::new()) });
                bytes.chunks(size).for_each(|chunk| state.read(chunk, &announced));
                assert!(announced.is(77) && !announced.is(78), "in pieces of {size}");
            }
        }
    }

    #[test]
    fn behind_an_offer_that_is_taken_nothing_is_read() {
        let (announced, mut state) = (Announced::new(), Reading::Offer);
        state.read(b"S", &announced);
        state.read(&message(b'K', &77_i64.to_be_bytes()), &announced);
        assert!(!announced.is(77) && !announced.is(0));
    }

    #[test]
    fn a_channel_is_known_by_its_form() {
        let name = channel().unwrap();
        assert!(is_channel(&name) && name.len() < 64, "{name}");
        assert!(!is_channel("tenure_x") && !is_channel("") && !is_channel(&name[1..]));
    }
}
