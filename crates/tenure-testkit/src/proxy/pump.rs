//! One direction of one connection: read, cut into frames, hold as ordered, write.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

use super::ledger::Ledger;
use super::state::{Fault, LossMode, Pushes, Shared, State};
use crate::resp;

/// The most by which a throttled connection makes up for being late.
const CATCH_UP: Duration = Duration::from_millis(250);

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
    queue: VecDeque<Frame>,
    unfinished: Vec<u8>,
    opaque: bool,
    /// The reading side has ended.
    ended: bool,
    output: Output,
    /// When a throttle lets the next byte go.
    paced: Instant,
}

/// Bytes that were read. Without bytes it is the end of the stream, which waits its turn as they
/// do.
struct Frame {
    /// When it may go, if nothing was healed meanwhile.
    due: Instant,
    heals: u64,
    bytes: Vec<u8>,
    written: usize,
    /// Nobody asked for it.
    push: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Open,
    /// Something was lost here, so nothing may follow.
    Lost(LossMode),
    /// Nobody takes what is written.
    Unheard,
}

/// Steps that are allowed now.
struct Gate {
    read: bool,
    write: bool,
    wake: Option<Instant>,
    /// Others get a turn between two writes.
    sliced: bool,
}

/// Treatment of a frame.
enum Fate {
    Pass(Duration),
    Push,
    Vanish,
    Lose(LossMode),
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
            paced: Instant::now(),
        }
    }

    /// Pumps until the reading side has ended and everything was written.
    pub(super) async fn run(mut self, from: ReadHalf<'_>, mut to: WriteHalf<'_>) {
        let mut changed = self.shared.changes();
        while !self.is_done() {
            changed.borrow_and_update();
            let gate = self.gate(&self.shared.lock());
            tokio::select! {
                _ = changed.changed() => {}
                _ = from.readable(), if gate.read => self.read(&from),
                _ = to.writable(), if gate.write => {
                    self.write(&to);
                    if gate.sliced {
                        tokio::task::yield_now().await;
                    }
                }
                () = sleep_until(gate.wake.unwrap_or_else(Instant::now)), if gate.wake.is_some() => {}
            }
        }
        match (self.output, self.way) {
            (Output::Lost(loss), _) => {
                if loss == LossMode::Reset {
                    self.shared.change(|state| state.doomed.insert(self.id));
                }
                pending::<()>().await;
            }
            (_, Way::Requests) => drop(to.shutdown().await),
            (_, Way::Replies) => {}
        }
    }

    fn is_done(&self) -> bool {
        self.queue.is_empty() && (self.ended || self.output == Output::Lost(LossMode::Reset))
    }

    fn gate(&self, state: &State) -> Gate {
        let held = match self.way {
            Way::Requests => state.hold_requests || state.held.contains(&self.id),
            Way::Replies => state.hold_replies,
        };
        let open = !state.black_hole && !state.doomed.contains(&self.id);
        let due = self.next(state).map(|at| self.due(&self.queue[at], state)).filter(|_| open && !held);
        let now = Instant::now();
        Gate {
            read: open && !self.ended,
            write: due.is_some_and(|due| due <= now),
            wake: due.filter(|due| *due > now),
            sliced: state.slice.is_some(),
        }
    }

    /// Which frame goes next. Pushes that wait are overtaken, but not by the end of the stream.
    fn next(&self, state: &State) -> Option<usize> {
        if let Some(begun) = self.queue.iter().position(|frame| frame.written > 0) {
            return Some(begun);
        }
        let waits = |frame: &Frame| frame.push && state.pushes == Pushes::Wait;
        let at = self.queue.iter().position(|frame| !waits(frame))?;
        (at == 0 || !self.queue[at].bytes.is_empty()).then_some(at)
    }

    fn due(&self, frame: &Frame, state: &State) -> Instant {
        let healed = frame.heals != state.heals;
        let due = if healed { frame.due.min(Instant::now()) } else { frame.due };
        state.throttle.map_or(due, |_| due.max(self.paced))
    }

    /// Reads what is there. Under the lock, so that no control takes effect between the look at the gate and the read.
    fn read(&mut self, from: &ReadHalf<'_>) {
        let mut state = self.shared.lock();
        if !self.gate(&state).read {
            return;
        }
        let mut buffer = [0; 16 * 1024];
        match from.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(read) if read > 0 => {
                self.unfinished.extend_from_slice(&buffer[..read]);
                self.split(&mut state);
            }
            // A reset by the client is no reason to forget what it had sent.
            Ok(_) | Err(_) => {
                self.ended = true;
                let rest = std::mem::take(&mut self.unfinished);
                if !rest.is_empty() {
                    self.enqueue(&state, rest, Duration::ZERO, false);
                }
                self.enqueue(&state, Vec::new(), Duration::ZERO, false);
            }
        }
        drop(state);
        self.shared.tell();
    }

    fn write(&mut self, to: &WriteHalf<'_>) {
        let shared = self.shared;
        let state = shared.lock();
        while self.gate(&state).write {
            let Some(at) = self.next(&state) else { return };
            let frame = &mut self.queue[at];
            let rest = &frame.bytes[frame.written..];
            match to.try_write(&rest[..rest.len().min(portion(&state))]) {
                Ok(written) => {
                    frame.written += written;
                    let due = frame.due;
                    if frame.written == frame.bytes.len() {
                        self.queue.remove(at);
                    }
                    self.pace(&state, due, written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.receiver_gone(),
            }
            if state.slice.is_some() {
                return;
            }
        }
    }

    /// Counts from when the bytes might have gone, not from when they went: a timer that rings late for each of many small
    /// pieces must not add up.
    fn pace(&mut self, state: &State, due: Instant, written: usize) {
        let Some(rate) = state.throttle else {
            return;
        };
        let now = Instant::now();
        // Data that was held back, or stood behind such data, is not sent faster for that.
        let begun = self.paced.max(due.min(now)).max(now.checked_sub(CATCH_UP).unwrap_or(now));
        let written = u32::try_from(written).expect("a portion is small");
        self.paced = begun + Duration::from_secs(1) * written / rate;
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
        if !self.opaque {
            self.unfinished = rest.to_vec();
        } else if !rest.is_empty() {
            if self.way == Way::Requests {
                state.log.push(String::new());
            }
            self.enqueue(state, rest.to_vec(), Duration::ZERO, false);
        }
    }

    fn frame(&mut self, state: &mut State, frame: &[u8]) {
        let fate = match self.way {
            Way::Requests => self.request(state, frame),
            Way::Replies => self.reply(state, frame),
        };
        match fate {
            Fate::Pass(held) => self.enqueue(state, frame.to_vec(), held, false),
            Fate::Push => self.enqueue(state, frame.to_vec(), Duration::ZERO, true),
            Fate::Vanish => {}
            Fate::Lose(loss) => {
                state.maimed.insert(self.id);
                if matches!(self.output, Output::Open | Output::Lost(LossMode::Silence)) {
                    self.output = Output::Lost(loss);
                }
            }
        }
    }

    /// Counts a command and looks up what shall become of it.
    fn request(&self, state: &mut State, frame: &[u8]) -> Fate {
        let words = resp::words(frame);
        // An empty line is no command; Redis does not answer it.
        let Some(name) = words.first() else {
            return Fate::Pass(Duration::ZERO);
        };
        state.log.push(String::from_utf8_lossy(name).to_ascii_uppercase());
        let (fate, lose_reply) = match state.faults.remove(&state.commands()) {
            Some(Fault::Request(loss)) => return Fate::Lose(loss),
            Some(Fault::Reply(loss)) => (Fate::Pass(Duration::ZERO), Some(loss)),
            Some(Fault::Hold(time)) => (Fate::Pass(time), None),
            None => (Fate::Pass(Duration::ZERO), None),
        };
        self.lock_ledger().sent(frame, lose_reply);
        fate
    }

    fn reply(&self, state: &mut State, frame: &[u8]) -> Fate {
        let mut ledger = self.lock_ledger();
        if !ledger.is_answer(frame) {
            state.pushed += 1;
            return if state.pushes == Pushes::Vanish { Fate::Vanish } else { Fate::Push };
        }
        state.replies += 1;
        ledger.received(frame).map_or(Fate::Pass(Duration::ZERO), Fate::Lose)
    }

    fn enqueue(&mut self, state: &State, bytes: Vec<u8>, held: Duration, push: bool) {
        if self.output == Output::Open {
            let due = Instant::now() + state.delay + held;
            self.queue.push_back(Frame { due, heals: state.heals, bytes, written: 0, push });
        }
    }

    fn lock_ledger(&self) -> std::sync::MutexGuard<'a, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most that may be written at once. A throttled connection gets its bytes in ticks of about 10 ms.
fn portion(state: &State) -> usize {
    let tick = state.throttle.map_or(usize::MAX, |rate| usize::try_from(rate / 100).expect("a u32 fits").max(1));
    state.slice.unwrap_or(usize::MAX).min(tick)
}
