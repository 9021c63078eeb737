//! A lock client as a program of single commands, that runs in the model and on a real server
//! alike.
//!
//! A scheme is three small functions, one each for taking, renewing and giving up. Each is asked
//! again with the reply to the command it gave last, and says what to do next. Nothing in it knows
//! where the command runs, so what the model finds can be played on a real server by the same code.

use std::fmt;

use tenure_testkit::register::Comparison;

use super::command::{Command, Value};
use super::engine::Engine;
use super::timestamp::{Rules, Unit};

/// A moment or a span, in steps of the run's clock.
pub(crate) type Tick = i16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next {
    /// Sends a command on connection 0 or 1, and goes on at this line with the reply.
    Call(u8, u8, Command),
    /// Waits: goes on at this line when a message comes.
    Listen(u8),
    /// Waits: sends a command when it polls, and goes on at this line with the reply.
    Look(u8, Command),
    /// It holds, valid until then; for ever if it looks at no clock.
    Won {
        /// On its monotonic clock.
        until: Option<Tick>,
        fence: Option<i16>,
    },
    /// It holds, looks at no clock, and goes on at this line with the reply to a command.
    WonAnd(u8, Command),
    /// It has done what it had to do besides.
    Done,
    Busy,
    /// It goes on holding, valid until then.
    Renewed(Option<Tick>),
    /// It has learnt, or so it thinks, that it holds no more.
    Gone,
    Freed,
}

pub(crate) fn call(line: u8, command: Command) -> Next {
    Next::Call(0, line, command)
}

/// As [`call`] on a second connection of the same client.
pub(crate) fn call_on_another(line: u8, command: Command) -> Next {
    Next::Call(1, line, command)
}

pub(crate) fn won() -> Next {
    Next::Won { until: None, fence: None }
}

pub(crate) fn won_until(until: Tick) -> Next {
    Next::Won { until: Some(until), fence: None }
}

/// The view of a routine when it is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Where it is in the routine; 0 at its beginning.
    pub(crate) line: u8,
    /// The reply to its last command.
    pub(crate) reply: Value,
    /// The client's wall clock, which may be wrong.
    pub(crate) wall: Tick,
    /// The client's monotonic clock.
    pub(crate) now: Tick,
    /// `now`, when the last command was sent.
    pub(crate) sent: Tick,
    /// Its rules, if it is ours.
    pub(crate) rules: Rules,
    /// Its kind of values, if it is ours.
    pub(crate) unit: Unit,
}

pub(crate) type Routine = fn(&mut Client, Turn) -> Next;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheme {
    pub(crate) about: &'static str,
    /// Where it runs.
    pub(crate) engine: Engine,
    pub(crate) acquire: Routine,
    pub(crate) renew: Option<Routine>,
    pub(crate) release: Routine,
    /// The work goes on while the name is given up.
    pub(crate) works_on: bool,
    /// How the guarded resource compares a fence, if there is one.
    pub(crate) resource: Option<Comparison>,
    /// Its lease is to end when its caller asked, given up or not.
    pub(crate) fixed: bool,
    /// The value of a free name whose key stays.
    pub(crate) free: Option<Value>,
    /// It does one thing after another: renewals do not run beside the rest.
    pub(crate) in_turn: bool,
    /// Its rules, if it is ours.
    pub(crate) rules: Rules,
    /// Its kind of values, if it is ours.
    pub(crate) unit: Unit,
}

impl Scheme {
    /// One on Redis that never renews.
    pub(crate) const fn new(about: &'static str, acquire: Routine, release: Routine) -> Self {
        Self {
            about,
            engine: Engine::Redis,
            acquire,
            renew: None,
            release,
            works_on: false,
            resource: None,
            fixed: false,
            free: None,
            in_turn: false,
            rules: Rules::TENURE,
            unit: Unit::Php,
        }
    }

    /// One that renews, with what is to be said of that.
    pub(crate) const fn renewed_by(self, about: &'static str, renew: Routine) -> Self {
        Self { about, renew: Some(renew), ..self }
    }

    /// The same on another engine.
    pub(crate) const fn on(self, engine: Engine) -> Self {
        Self { engine, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) enum Part {
    Acquire,
    /// Prolonging; on the second lane, beside the others.
    Renew,
    Release,
}

impl Part {
    /// Renewals run beside everything else.
    pub(crate) const fn lane(self) -> usize {
        match self {
            Self::Acquire | Self::Release => 0,
            Self::Renew => 1,
        }
    }
}

/// A routine on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Track {
    /// Which; none when idle.
    pub(crate) part: Option<Part>,
    /// The command that is to be sent, was sent, or was answered.
    pub(crate) stage: Stage,
    pub(crate) sent: Tick,
}

/// How far a command of a lane is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// To be sent on this connection; the line to go on at.
    Ready(u8, u8, Command),
    /// On its way.
    Sent(u8, u8, Command),
    /// Executed, and the reply is on its way.
    Ran(u8, Value),
    Listening(u8),
}

/// The lease that a client regards as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    /// On its monotonic clock; for ever where it looks at none.
    pub(crate) until: Option<Tick>,
    pub(crate) fence: Option<i16>,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) who: u8,
    pub(crate) died: Option<Tick>,
    /// Its process is stopped, and may go on.
    pub(crate) stopped: bool,
    /// By how much its wall clock is ahead.
    pub(crate) skew: Tick,
    /// For how long its machine has slept, which its monotonic clock knows nothing of.
    pub(crate) slept: Tick,
    /// How many times it has asked.
    pub(crate) takes: u8,
    /// Its routines: taking and giving up, and beside them renewing.
    pub(crate) lanes: [Track; 2],
    pub(crate) hold: Option<Hold>,
    /// It has begun to give up what it holds.
    pub(crate) releasing: bool,
    /// It waits for its turn.
    pub(crate) waits: bool,
    /// When its last renewal, or what it took the name with, was sent.
    pub(crate) renewed: Tick,
    /// A value to remember: its own, in most schemes.
    pub(crate) mine: Value,
    pub(crate) seen: Value,
}

/// An event at a client, for the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Asks,
    Queued,
    Holds(Hold),
    ValidUntil(Option<Tick>),
    Lost,
    Releases,
    Freed,
    Busy,
}

impl Client {
    pub(crate) fn new(who: u8, skew: Tick) -> Self {
        Self { who, skew, ..Self::default() }
    }

    /// A value that no other take of any client has.
    pub(crate) fn token(&self) -> Value {
        Value::Token { who: self.who, take: self.takes }
    }

    /// Its monotonic clock when the world's is `now`.
    pub(crate) fn clock(&self, now: Tick) -> Tick {
        now - self.slept
    }

    /// Whether it regards itself as the holder.
    pub(crate) fn is_valid(&self, now: Tick) -> bool {
        let in_time = |hold: Hold| hold.until.is_none_or(|until| self.clock(now) < until);
        self.died.is_none() && self.hold.is_some_and(in_time)
    }

    /// It does nothing and holds nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.hold.is_none() && self.lanes.iter().all(|lane| lane.part.is_none())
    }

    /// Begins a routine: what it sends first is ready afterwards.
    pub(crate) fn begin(&mut self, scheme: &Scheme, part: Part, now: Tick) -> Vec<Change> {
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
        let lane = Track { part: Some(part), stage: Stage::Idle, sent: self.clock(now) };
        self.lanes[part.lane()] = lane;
        changes.extend(self.ask(scheme, part.lane(), 0, Value::Nil, now));
        changes
    }

    /// The lane's command is on its way from now on.
    pub(crate) fn send(&mut self, lane: usize, now: Tick) -> Option<(u8, Command)> {
        let sent = self.clock(now);
        let lane = &mut self.lanes[lane];
        let Stage::Ready(connection, then, command) = lane.stage else { return None };
        *lane = Track { stage: Stage::Sent(connection, then, command), sent, ..*lane };
        Some((connection, command))
    }

    /// The lane hears `reply`.
    pub(crate) fn hear(&mut self, scheme: &Scheme, lane: usize, reply: Value, now: Tick) -> Vec<Change> {
        match self.lanes[lane].stage {
            Stage::Sent(_, then, _) | Stage::Ran(then, _) | Stage::Listening(then) => self.ask(scheme, lane, then, reply, now),
            Stage::Idle | Stage::Ready(..) => Vec::new(),
        }
    }

    /// The work that went on while the name was given up is done.
    pub(crate) fn end_work(&mut self) -> Vec<Change> {
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
        let turn =
            Turn { line: here, reply, wall: now + self.slept + self.skew, now, sent, rules: scheme.rules, unit: scheme.unit };
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
            Next::WonAnd(then, command) => {
                *stage = Stage::Ready(0, then, command);
                self.renewed = sent;
                return self.end(won());
            }
            end => {
                self.lanes[lane] = Track::default();
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
            Next::Renewed(until) => {
                let hold = self.hold.iter_mut();
                hold.map(|hold| hold.until = until).map(|()| Change::ValidUntil(until)).collect()
            }
            Next::Gone => self.hold.take().map(|_| Change::Lost).into_iter().collect(),
            Next::Freed => vec![Change::Freed],
            Next::Done | Next::WonAnd(..) | Next::Call(..) | Next::Listen(_) | Next::Look(..) => Vec::new(),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self.who))
    }
}

/// A, B, C.
pub(crate) fn name(who: u8) -> String {
    char::from(b'A' + who).to_string()
}
