//! One direction of one connection: read, cut into frames, hold as ordered, write.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

use super::ledger::Ledger;
use super::state::{Fault, Shared, State};
use crate::resp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Requests,
    Replies,
}

pub(super) struct Pump<'a> {
    shared: &'a Shared,
    id: u64,
    way: Way,
    ledger: &'a Mutex<Ledger>,
    /// Frames with the time at which they may go.
    queue: VecDeque<(Instant, Vec<u8>)>,
    unfinished: Vec<u8>,
    opaque: bool,
    /// The reading side has ended.
    ended: bool,
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Open,
    /// Something was lost here, so nothing may follow, not even the end of the stream.
    Silent,
    /// Nobody takes what is written.
    Unheard,
}

/// What may be done now.
struct Gate {
    read: bool,
    write: bool,
    wake: Option<Instant>,
}

impl<'a> Pump<'a> {
    pub(super) fn new(shared: &'a Shared, id: u64, way: Way, ledger: &'a Mutex<Ledger>) -> Self {
        Self {
            shared,
            id,
            way,
            ledger,
            queue: VecDeque::new(),
            unfinished: Vec::new(),
            opaque: shared.opaque,
            ended: false,
            output: Output::Open,
        }
    }

    /// Pumps until the reading side has ended and everything was written.
    pub(super) async fn run(mut self, from: ReadHalf<'_>, mut to: WriteHalf<'_>) {
        let mut changed = self.shared.changes();
        while !self.ended || !self.queue.is_empty() {
            changed.borrow_and_update();
            let gate = self.gate(&self.shared.lock());
            tokio::select! {
                _ = changed.changed() => {}
                _ = from.readable(), if gate.read => self.read(&from),
                _ = to.writable(), if gate.write => self.write(&to),
                () = sleep_until(gate.wake.unwrap_or_else(Instant::now)), if gate.wake.is_some() => {}
            }
        }
        match (self.way, self.output) {
            (_, Output::Silent) => std::future::pending().await,
            (Way::Requests, _) => drop(to.shutdown().await),
            (Way::Replies, _) => {}
        }
    }

    fn gate(&self, state: &State) -> Gate {
        let held = match self.way {
            Way::Requests => state.hold_requests || state.held.contains(&self.id),
            Way::Replies => state.hold_replies,
        };
        let open = !state.black_hole && !state.doomed.contains(&self.id);
        let due = self.queue.front().map(|(due, _)| *due).filter(|_| open && !held);
        let now = Instant::now();
        Gate { read: open && !self.ended, write: due.is_some_and(|due| due <= now), wake: due.filter(|due| *due > now) }
    }

    /// Reads what is there. Under the lock, so that no control takes effect between the look at the gate and the read.
    fn read(&mut self, from: &ReadHalf<'_>) {
        let mut state = self.shared.lock();
        if !self.gate(&state).read {
            return;
        }
        let mut buffer = [0; 16 * 1024];
        match from.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(read) if read > 0 => {
                self.unfinished.extend_from_slice(&buffer[..read]);
                self.split(&mut state);
            }
            // A reset by the client is no reason to forget what it had sent.
            Ok(_) | Err(_) => {
                self.ended = true;
                let rest = std::mem::take(&mut self.unfinished);
                self.push(&state, rest);
            }
        }
        drop(state);
        if self.way == Way::Requests {
            self.shared.tell();
        }
    }

    fn write(&mut self, to: &WriteHalf<'_>) {
        let shared = self.shared;
        let state = shared.lock();
        while self.gate(&state).write {
            let Some((_, frame)) = self.queue.front_mut() else {
                return;
            };
            match to.try_write(frame) {
                Ok(written) if written == frame.len() => drop(self.queue.pop_front()),
                Ok(written) => drop(frame.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.receiver_gone(),
            }
        }
    }

    fn receiver_gone(&mut self) {
        self.queue.clear();
        match self.way {
            Way::Requests => self.ended = true,
            // Go on reading: a server whose replies nobody takes would stop executing what is still to come.
            Way::Replies => self.output = Output::Unheard,
        }
    }

    /// Takes the whole frames out of what was read.
    fn split(&mut self, state: &mut State) {
        let bytes = std::mem::take(&mut self.unfinished);
        let mut rest = &bytes[..];
        while !rest.is_empty() && !self.opaque {
            let length = match self.way {
                Way::Requests => resp::request_len(rest),
                Way::Replies => resp::frame_len(rest),
            };
            match length {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let (frame, after) = rest.split_at(length);
                    self.frame(state, frame);
                    rest = after;
                }
                Err(resp::Malformed) => self.opaque = true,
            }
        }
        if self.opaque {
            self.push(state, rest.to_vec());
        } else {
            self.unfinished = rest.to_vec();
        }
    }

    fn frame(&mut self, state: &mut State, frame: &[u8]) {
        let lost = match self.way {
            Way::Requests => self.request(state, frame),
            Way::Replies => self.lock_ledger().received(frame),
        };
        if lost {
            self.output = Output::Silent;
            state.maimed.insert(self.id);
        }
        self.push(state, frame.to_vec());
    }

    /// Counts a command; true when it is to be dropped.
    fn request(&self, state: &mut State, frame: &[u8]) -> bool {
        let words = resp::words(frame);
        // An empty line is no command; Redis does not answer it.
        let Some(name) = words.first() else {
            return false;
        };
        state.log.push(String::from_utf8_lossy(name).to_ascii_uppercase());
        let fault = state.faults.remove(&state.commands());
        if matches!(fault, Some(Fault::DropRequest)) {
            return true;
        }
        self.lock_ledger().sent(frame, matches!(fault, Some(Fault::SwallowReply)));
        false
    }

    fn push(&mut self, state: &State, bytes: Vec<u8>) {
        if self.output == Output::Open && !bytes.is_empty() {
            self.queue.push_back((Instant::now() + state.delay, bytes));
        }
    }

    fn lock_ledger(&self) -> std::sync::MutexGuard<'a, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
