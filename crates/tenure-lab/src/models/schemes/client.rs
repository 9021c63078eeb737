//! A lock client as a program of single commands.
//!
//! A scheme is three small functions, one each for taking, renewing and giving up. Each is asked
//! again with the reply to the command it gave last, and says what to do next.

use super::command::{Command, Value};
use super::rules::{Rules, Tick};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Next {
    /// Sends a command on connection 0 or 1, and goes on at this line with the reply.
    Call(u8, u8, Command),
    /// It holds, valid until then on its monotonic clock.
    Won(Tick),
    Busy,
    /// It goes on holding, valid until then, if it holds.
    Renewed(Option<Tick>),
    /// It has learnt that it holds no more.
    Gone,
    Freed,
}

pub(super) fn call(line: u8, command: Command) -> Next {
    Next::Call(0, line, command)
}

/// The view of a routine when it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Where it is in the routine; 0 at its beginning.
    pub(super) line: u8,
    /// The reply to its last command.
    pub(super) reply: Value,
    /// The client's wall clock, which may be wrong.
    pub(super) wall: Tick,
    pub(super) now: Tick,
    /// `now`, when the last command was sent.
    pub(super) sent: Tick,
    /// Its rules, if it is ours.
    pub(super) rules: Rules,
}

pub(super) type Routine = fn(&mut Client, Turn) -> Next;

#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    pub(super) acquire: Routine,
    pub(super) renew: Option<Routine>,
    pub(super) release: Routine,
    /// It does one thing after another: renewals do not run beside the rest.
    pub(super) in_turn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Acquire,
    /// Prolonging; on the second lane, beside the others.
    Renew,
    Release,
}

/// A routine on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Track {
    /// Which; none when idle.
    pub(super) part: Option<Part>,
    /// The command that is to be sent, was sent, or was answered.
    pub(super) stage: Stage,
    sent: Tick,
}

/// How far a command of a lane is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// To be sent on this connection; the line to go on at.
    Ready(u8, u8, Command),
    /// On its way.
    Sent(u8, u8, Command),
    /// Executed, and the reply is on its way.
    Ran(u8, Value),
}

/// One process. It asks once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) who: u8,
    pub(super) died: Option<Tick>,
    /// By how much its wall clock is ahead.
    skew: Tick,
    pub(super) asked: bool,
    /// Its routines: taking and giving up, and beside them renewing.
    pub(super) lanes: [Track; 2],
    /// End of the validity of its hold, if it regards itself as the holder.
    pub(super) hold: Option<Tick>,
    /// When its last renewal, or what it took the name with, was sent.
    pub(super) renewed: Tick,
    /// A value to remember: its own, in most schemes.
    pub(super) mine: Value,
    pub(super) seen: Value,
}

/// An event at a client, for the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Holds(Tick),
    ValidUntil(Tick),
    Lost,
    Releases,
    Busy,
}

impl Client {
    pub(super) fn new(who: u8, skew: Tick) -> Self {
        Self { who, skew, ..Self::default() }
    }

    /// It is valid until the deadline that was written, by its own clock.
    pub(super) fn won_until_mine(&self) -> Next {
        if let Value::At(deadline) = self.mine { Next::Won(deadline - self.skew) } else { Next::Busy }
    }

    /// Whether it regards itself as the holder.
    pub(super) fn is_valid(&self, now: Tick) -> bool {
        self.died.is_none() && self.hold.is_some_and(|until| now < until)
    }

    /// It does nothing and holds nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.hold.is_none() && self.lanes.iter().all(|lane| lane.part.is_none())
    }

    /// Begins a routine: what it sends first is ready afterwards.
    pub(super) fn begin(&mut self, scheme: &Scheme, rules: Rules, part: Part, now: Tick) -> Option<Change> {
        let lane = usize::from(part == Part::Renew);
        self.asked = true;
        let releases = (part == Part::Release).then(|| self.hold = None).map(|()| Change::Releases);
        self.lanes[lane] = Track { part: Some(part), stage: Stage::Idle, sent: now };
        releases.into_iter().chain(self.ask(scheme, rules, lane, (0, Value::Nil), now)).last()
    }

    /// The lane's command is on its way from now on.
    pub(super) fn send(&mut self, lane: usize, now: Tick) -> Option<(u8, Command)> {
        let Stage::Ready(connection, then, command) = self.lanes[lane].stage else { return None };
        let lane = &mut self.lanes[lane];
        (lane.stage, lane.sent) = (Stage::Sent(connection, then, command), now);
        Some((connection, command))
    }

    /// The lane hears `reply`.
    pub(super) fn hear(&mut self, scheme: &Scheme, rules: Rules, lane: usize, reply: Value, now: Tick) -> Option<Change> {
        match self.lanes[lane].stage {
            Stage::Sent(_, then, _) | Stage::Ran(then, _) => self.ask(scheme, rules, lane, (then, reply), now),
            Stage::Idle | Stage::Ready(..) => None,
        }
    }

    /// Asks the routine of a lane what it does next.
    fn ask(&mut self, scheme: &Scheme, rules: Rules, lane: usize, (here, reply): (u8, Value), now: Tick) -> Option<Change> {
        let sent = self.lanes[lane].sent;
        let turn = Turn { line: here, reply, wall: now + self.skew, now, sent, rules };
        let routine = match self.lanes[lane].part? {
            Part::Acquire => scheme.acquire,
            Part::Renew => scheme.renew?,
            Part::Release => scheme.release,
        };
        let next = routine(self, turn);
        if let Next::Call(connection, then, command) = next {
            self.lanes[lane].stage = Stage::Ready(connection, then, command);
            return None;
        }
        self.lanes[lane] = Track::default();
        match next {
            Next::Won(until) => {
                (self.hold, self.renewed) = (Some(until), sent);
                Some(Change::Holds(until))
            }
            Next::Renewed(until) => {
                self.renewed = sent;
                self.hold = self.hold.and(until);
                self.hold.map(Change::ValidUntil)
            }
            Next::Gone => self.hold.take().map(|_| Change::Lost),
            Next::Busy => Some(Change::Busy),
            Next::Freed | Next::Call(..) => None,
        }
    }
}
