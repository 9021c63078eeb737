//! A lock client as a program of single commands, that runs in the model and on a real server alike.
//!
//! A scheme is three small functions, one each for taking, renewing and giving up. Each is asked again with the reply to the
//! command it gave last, and says what to do next. Nothing in it knows where the command runs, so what the model finds can be played
//! on a real server by the same code.

use std::fmt;

use tenure_testkit::register::Comparison;

use super::command::{Command, Value};
use super::stamp::Rules;

/// A moment or a span, in steps of the run's clock.
pub(super) type Tick = i16;

/// What a routine does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Sends a command on connection 0 or 1, and goes on at this line with the reply.
    Call(u8, u8, Command),
    /// Waits: goes on at this line when a message comes.
    Listen(u8),
    /// Waits: sends a command at its next look, and goes on at this line with the reply.
    Look(u8, Command),
    /// It holds, as it believes until then; for ever where it looks at no clock.
    Won {
        /// On its monotonic clock.
        until: Option<Tick>,
        /// Its fencing number.
        fence: Option<i16>,
    },
    /// It does not hold; the try is over.
    Busy,
    /// It goes on holding, as it believes until then.
    Renewed(Option<Tick>),
    /// It has learnt, or so it thinks, that it holds no more.
    Gone,
    /// It has given up.
    Freed,
}

/// Sends `command`, and goes on at `line`.
pub(super) fn call(line: u8, command: Command) -> Next {
    Next::Call(0, line, command)
}

/// As [`call`] on a second connection of the same client.
pub(super) fn call_on_another(line: u8, command: Command) -> Next {
    Next::Call(1, line, command)
}

/// It holds and looks at no clock.
pub(super) fn won() -> Next {
    Next::Won { until: None, fence: None }
}

/// It holds until `until`.
pub(super) fn won_until(until: Tick) -> Next {
    Next::Won { until: Some(until), fence: None }
}

/// What a routine sees when it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Where it is in the routine; 0 at its beginning.
    pub line: u8,
    /// The reply to its last command.
    pub reply: Value,
    /// The client's wall clock, which may be wrong.
    pub wall: Tick,
    /// The client's monotonic clock.
    pub now: Tick,
    /// `now`, when the last command was sent.
    pub sent: Tick,
    /// What it minds, where it is ours.
    pub rules: Rules,
}

/// Part of a lock client.
pub(super) type Routine = fn(&mut Client, Turn) -> Next;

/// A lock client.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// In words.
    pub about: &'static str,
    /// Takes the name, once.
    pub acquire: Routine,
    /// Prolongs the lease.
    pub renew: Option<Routine>,
    /// Gives the name up.
    pub release: Routine,
    /// The work goes on while the name is given up.
    pub works_on: bool,
    /// What the guarded resource compares a fence by, where there is one.
    pub resource: Option<Comparison>,
    /// It does one thing after another: renewals do not run beside the rest.
    pub in_turn: bool,
    /// What it minds, where it is ours.
    pub rules: Rules,
}

impl Scheme {
    /// One that never renews.
    pub const fn new(about: &'static str, acquire: Routine, release: Routine) -> Self {
        Self { about, acquire, renew: None, release, works_on: false, resource: None, in_turn: false, rules: Rules::TENURE }
    }

    /// One that renews, with what is to be said of that.
    pub const fn renewed_by(self, about: &'static str, renew: Routine) -> Self {
        Self { about, renew: Some(renew), ..self }
    }
}

/// Which routine a lane runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Part {
    /// Taking.
    Acquire,
    /// Prolonging; on the second lane, beside the others.
    Renew,
    /// Giving up.
    Release,
}

impl Part {
    /// Renewals run beside everything else.
    pub const fn lane(self) -> usize {
        match self {
            Self::Acquire | Self::Release => 0,
            Self::Renew => 1,
        }
    }
}

/// A routine on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Which; none when idle.
    pub part: Option<Part>,
    /// What is to be sent, was sent, or was answered.
    pub stage: Stage,
    /// When the last command was sent.
    pub sent: Tick,
}

/// How far a command of a lane is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Nothing to do.
    #[default]
    Idle,
    /// To be sent on this connection; the line to go on at.
    Ready(u8, u8, Command),
    /// On its way.
    Sent(u8, u8, Command),
    /// Executed, and the reply is on its way.
    Ran(u8, Value),
    /// Waits for a message.
    Listening(u8),
}

/// What a client holds, as it believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// On its monotonic clock; for ever where it looks at none.
    pub until: Option<Tick>,
    /// Its fencing number.
    pub fence: Option<i16>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its number, which is also its place among the letters.
    pub who: u8,
    /// When it died.
    pub died: Option<Tick>,
    /// By how much its wall clock is ahead.
    pub skew: Tick,
    /// For how long its machine has slept, which its monotonic clock knows nothing of.
    pub slept: Tick,
    /// How many times it has asked.
    pub takes: u8,
    /// What it does: taking and giving up, and beside it renewing.
    pub lanes: [Lane; 2],
    /// What it holds.
    pub hold: Option<Hold>,
    /// It has begun to give up what it holds.
    pub releasing: bool,
    /// It waits for its turn.
    pub waits: bool,
    /// When its last renewal, or what it took the name with, was sent.
    pub renewed: Tick,
    /// A value to remember: its own, in most schemes.
    pub mine: Value,
    /// Another.
    pub seen: Value,
}

/// What a client has just experienced, for the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It begins to ask.
    Asks,
    /// It waits from now on.
    Queued,
    /// It believes that it holds.
    Holds(Hold),
    /// The end of its belief has moved.
    Believes(Option<Tick>),
    /// It was told that it holds no more.
    Lost,
    /// It begins to give up.
    Releases,
    /// It has given up.
    Freed,
    /// It did not get the name.
    Busy,
}

impl Client {
    /// One that has done nothing yet.
    pub fn new(who: u8, skew: Tick) -> Self {
        let (mine, seen) = (Value::Nil, Value::Nil);
        Self {
            who,
            died: None,
            skew,
            slept: 0,
            takes: 0,
            lanes: <_>::default(),
            hold: None,
            releasing: false,
            waits: false,
            renewed: 0,
            mine,
            seen,
        }
    }

    /// A value that no other take of any client has.
    pub fn token(&self) -> Value {
        Value::Token { who: self.who, take: self.takes }
    }

    /// Its monotonic clock when the world's is `now`.
    pub fn clock(&self, now: Tick) -> Tick {
        now - self.slept
    }

    /// Whether it believes that it holds.
    pub fn believes(&self, now: Tick) -> bool {
        let in_time = |hold: Hold| hold.until.is_none_or(|until| self.clock(now) < until);
        self.died.is_none() && self.hold.is_some_and(in_time)
    }

    /// It does nothing and holds nothing.
    pub fn is_idle(&self) -> bool {
        self.hold.is_none() && self.lanes.iter().all(|lane| lane.part.is_none())
    }

    /// Begins a routine: what it sends first is ready afterwards.
    pub fn begin(&mut self, scheme: &Scheme, part: Part, now: Tick) -> Vec<Change> {
        let mut changes = Vec::new();
        match part {
            Part::Acquire => {
                self.takes += 1;
                changes.push(Change::Asks);
            }
            Part::Release => {
                self.releasing = true;
                if !scheme.works_on {
                    self.hold = None;
                    changes.push(Change::Releases);
                }
            }
            Part::Renew => {}
        }
        let lane = Lane { part: Some(part), stage: Stage::Idle, sent: self.clock(now) };
        self.lanes[part.lane()] = lane;
        changes.extend(self.ask(scheme, part.lane(), 0, Value::Nil, now));
        changes
    }

    /// The lane's command is on its way from now on.
    pub fn send(&mut self, lane: usize, now: Tick) -> Option<(u8, Command)> {
        let sent = self.clock(now);
        let lane = &mut self.lanes[lane];
        let Stage::Ready(connection, then, command) = lane.stage else { return None };
        *lane = Lane { stage: Stage::Sent(connection, then, command), sent, ..*lane };
        Some((connection, command))
    }

    /// The lane hears `reply`.
    pub fn hear(&mut self, scheme: &Scheme, lane: usize, reply: Value, now: Tick) -> Vec<Change> {
        match self.lanes[lane].stage {
            Stage::Sent(_, then, _) | Stage::Ran(then, _) | Stage::Listening(then) => self.ask(scheme, lane, then, reply, now),
            Stage::Idle | Stage::Ready(..) => Vec::new(),
        }
    }

    /// The work that went on while the name was given up is done.
    pub fn end_work(&mut self) -> Vec<Change> {
        self.hold = None;
        vec![Change::Releases]
    }

    /// Asks the routine of a lane what it does next.
    fn ask(&mut self, scheme: &Scheme, lane: usize, here: u8, reply: Value, now: Tick) -> Vec<Change> {
        let part = self.lanes[lane].part;
        let routine = match part {
            Some(Part::Acquire) => Some(scheme.acquire),
            Some(Part::Renew) => scheme.renew,
            Some(Part::Release) => Some(scheme.release),
            None => None,
        };
        let (now, sent) = (self.clock(now), self.lanes[lane].sent);
        let turn = Turn { line: here, reply, wall: now + self.slept + self.skew, now, sent, rules: scheme.rules };
        let next = routine.map_or(Next::Freed, |routine| routine(self, turn));
        let stage = &mut self.lanes[lane].stage;
        match next {
            Next::Call(connection, then, command) => *stage = Stage::Ready(connection, then, command),
            Next::Listen(then) => {
                *stage = Stage::Listening(then);
                return self.queues();
            }
            Next::Look(then, command) => {
                *stage = Stage::Ready(0, then, command);
                return self.queues();
            }
            end => {
                self.lanes[lane] = Lane::default();
                if matches!(end, Next::Won { .. } | Next::Renewed(_)) {
                    self.renewed = sent;
                }
                return self.end(end);
            }
        }
        Vec::new()
    }

    fn queues(&mut self) -> Vec<Change> {
        if std::mem::replace(&mut self.waits, true) { Vec::new() } else { vec![Change::Queued] }
    }

    fn end(&mut self, next: Next) -> Vec<Change> {
        self.waits &= matches!(next, Next::Renewed(_));
        match next {
            Next::Won { until, fence } => {
                let hold = Hold { until, fence };
                self.hold = Some(hold);
                self.releasing = false;
                vec![Change::Holds(hold)]
            }
            Next::Busy => vec![Change::Busy],
            Next::Renewed(until) => match &mut self.hold {
                Some(hold) => {
                    hold.until = until;
                    vec![Change::Believes(until)]
                }
                None => Vec::new(),
            },
            Next::Gone => match self.hold.take() {
                Some(_) => vec![Change::Lost],
                None => Vec::new(),
            },
            Next::Freed => vec![Change::Freed],
            Next::Call(..) | Next::Listen(_) | Next::Look(..) => Vec::new(),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self.who))
    }
}

/// A, B, C.
pub(super) fn name(who: u8) -> String {
    char::from(b'A' + who).to_string()
}
