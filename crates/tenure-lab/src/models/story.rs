//! A counterexample in words.

use super::promise::Promise;
use super::protocol::{Action, Protocol};
use super::search::{Path, Subject};
use super::state::{Answer, Attempt, Id, Op, Phase, State};
use super::traffic::{Reply, Request};

/// A counterexample, a line for each step, in order.
pub type Story = Vec<String>;

/// Tells `path`, which ends in the state `last` that breaks `promise`.
pub(super) fn told(protocol: &Protocol, path: &Path<Protocol>, last: &State, promise: Promise) -> Story {
    let mut narrator = Narrator { protocol, now: 0, sent: Vec::new() };
    let mut story = Story::new();
    if protocol.bounds.queued {
        let fence = narrator.fence(&protocol.first().attempts[0]);
        story.push(format!("t=0  A holds until t={}, fence {fence}", protocol.bounds.ttl));
    }
    let states = path.iter().map(|(state, _)| state).skip(1).chain([last]);
    for ((before, action), after) in path.iter().zip(states) {
        narrator.now += u32::from(*action == Action::Tick);
        let lines = narrator.step(before, *action, after);
        story.extend(lines.into_iter().map(|line| format!("t={}  {line}", narrator.now)));
    }
    let end = narrator.end(last, promise);
    story.push(format!("t={}  BROKEN: {end}", narrator.now));
    story
}

/// A, B, C.
pub(crate) fn client_name(client: usize) -> &'static str {
    ["A", "B", "C"][client]
}

struct Narrator<'a> {
    protocol: &'a Protocol,
    /// Ticks since the beginning.
    now: u32,
    /// Requests under way, and since when.
    sent: Vec<(Request, u32)>,
}

impl Narrator<'_> {
    /// A line for each thing that a step does.
    fn step(&mut self, before: &State, action: Action, after: &State) -> Story {
        let line = match action {
            Action::Execute(at) => self.arrives(before, before.traffic.requests[at]),
            Action::Hear(at) => self.hears(before.traffic.replies[at], before, after),
            Action::HearPush(at) => self.hears_push(before, at, after),
            Action::Reconnect(client) if self.protocol.rules.kills_predecessor => {
                format!("{} connects anew and has the server end its old connection", client_name(client))
            }
            Action::Reconnect(client) => {
                format!("{} connects anew; its old connection still delivers", client_name(client))
            }
            Action::Cut(client) => format!("{} loses its connection, and what is on it", client_name(client)),
            Action::Crash(client) => format!("{} crashes", client_name(client)),
            Action::Flush if self.protocol.bounds.older_copy => "the server goes back to an older copy of its data".to_owned(),
            Action::Flush => "the server loses all its data".to_owned(),
            Action::Ask(id) => self.asks(before, id, after),
            Action::HandToTask(id) => {
                let (name, attempt) = (self.name(id), &after.attempts[usize::from(id)]);
                let (until, fence) = (self.until(attempt.valid), self.fence(attempt));
                format!("a task of {name} passes the lease to the next, valid until {until}, fence {fence}")
            }
            Action::Beat(id)
            | Action::Renew(id, _)
            | Action::Release(id)
            | Action::GiveUp(id)
            | Action::ClearAgain(id)
            | Action::PassOn(id)
            | Action::Adopt(id) => format!("{} {}", self.name(id), self.sends(action, after.phase(id))),
            Action::Tick => String::new(),
        };
        self.follow(before, action, after);
        if action == Action::Tick { self.passes(before, after) } else { vec![line] }
    }

    fn sends(&self, action: Action, phase: Phase) -> &'static str {
        match action {
            Action::Beat(_) => "sends a heartbeat",
            Action::Renew(..) if self.protocol.bounds.queued => "sends a renewal",
            Action::Renew(_, false) => "sends a renewal for the full ttl",
            Action::Renew(_, true) => "sends a renewal for one tick",
            Action::GiveUp(_) if phase == Phase::Clearing => "gives up waiting and sends a release",
            Action::GiveUp(_) => "gives up waiting and sends nothing",
            Action::ClearAgain(_) => "sends its release again",
            Action::PassOn(_) => "passes its lease on",
            Action::Adopt(_) => "asks to take over the lease that was passed on",
            _ => "sends a release",
        }
    }

    /// Keeps account of what is under way.
    fn follow(&mut self, before: &State, action: Action, after: &State) {
        let plain = |request: &Request| Request { awaited: true, age: 0, ..*request };
        if let Action::Execute(at) = action {
            let arrived = plain(&before.traffic.requests[at]);
            if let Some(index) = self.sent.iter().position(|(sent, _)| *sent == arrived) {
                self.sent.remove(index);
            }
        }
        let mut left: Vec<Request> = after.traffic.requests.iter().map(plain).collect();
        self.sent.retain(|(sent, _)| left.iter().position(|other| other == sent).map(|index| left.remove(index)).is_some());
        self.sent.extend(left.into_iter().map(|request| (request, self.now)));
    }

    /// ` of t=2`, if it was sent before now.
    fn since(&self, request: Request) -> String {
        let plain = Request { awaited: true, age: 0, ..request };
        let since = self.sent.iter().find(|(sent, _)| *sent == plain).map_or(self.now, |(_, since)| *since);
        if since < self.now { format!(" of t={since}") } else { String::new() }
    }

    fn asks(&self, before: &State, id: Id, after: &State) -> String {
        let bounds = &self.protocol.bounds;
        let (name, attempt) = (self.name(id), &before.attempts[usize::from(id)]);
        let op = after.traffic.requests.iter().rfind(|request| request.attempt == id).map(|request| request.op);
        match (attempt.phase, op) {
            (Phase::Unused, _) if bounds.supplied => format!("{name} asks for the name by the supplied token"),
            (Phase::Unused, _) if !bounds.queued && !id.is_multiple_of(bounds.attempts) => {
                format!("{} asks for the name once more, as {name}", client_name(self.protocol.client_of(id)))
            }
            (Phase::Unused, _) => format!("{name} asks for the name"),
            (Phase::Clearing, _) if bounds.queued => format!("{name} asks for a place with the token whose release it has sent"),
            (Phase::Clearing, _) => format!("{name} asks again with the token whose release it has sent"),
            (_, Some(Op::Take { .. })) if bounds.queued => format!("{name} has heard nothing and asks again"),
            _ if bounds.queued => format!("{name} has heard nothing and asks for a place again"),
            _ if attempt.awaits => format!("{name} has heard nothing and asks again with the same token"),
            _ => format!("{name} asks again with the same token"),
        }
    }

    /// A request at the server.
    fn arrives(&self, before: &State, request: Request) -> String {
        let what = match request.op {
            Op::Take { .. } | Op::Attempt { from: None, .. } => "acquire",
            Op::Attempt { from: Some(_), .. } => "take-over",
            Op::Join => "acquire with a place",
            Op::Yield => "hand-over",
            Op::Keep => "heartbeat",
            Op::Renew { .. } => "renewal",
            Op::Release => "release",
        };
        let late = self.since(request);
        let mut after = before.clone();
        let outcome = if self.protocol.bounds.queued {
            let answer = self.protocol.execute_queued(&mut after, request.attempt, request.op);
            self.outcome_queued(before, request.attempt, answer, &after)
        } else {
            let answer = self.protocol.execute(&mut after.server, request);
            self.outcome(before, request.attempt, answer, &after)
        };
        format!("{}'s {what}{late} reaches the server: {outcome}", self.name(request.attempt))
    }

    fn outcome(&self, before: &State, id: Id, answer: Answer, after: &State) -> String {
        let until = self.until(after.server.left);
        let owner = before.server.owner;
        let another = owner.filter(|owner| *owner != id).map(|owner| self.name(owner));
        match answer {
            Answer::Took { counter, .. } => format!("granted until {until}, fence {counter}"),
            Answer::Granted { counter, .. } => {
                let fence = if self.protocol.counts() { format!(", fence {counter}") } else { String::new() };
                let mine = if self.protocol.has(&before.server, id) { "it is there already: " } else { "" };
                format!("{mine}granted until {until}{fence}")
            }
            Answer::NotFree { .. } | Answer::Busy => match owner {
                Some(owner) => format!("busy, {} has it", self.name(owner)),
                None => "refused, nobody has it".to_owned(),
            },
            Answer::Renewed { .. } => match (another, owner) {
                (Some(another), _) => format!("{another}'s lease lasts until {until}"),
                (None, Some(_)) => format!("it lasts until {until}"),
                (None, None) => format!("nothing was there, and now it is taken until {until}"),
            },
            Answer::Released => another.map_or("the name is free".to_owned(), |another| format!("{another}'s lease is deleted")),
            _ => "nothing of it is there".to_owned(),
        }
    }

    fn outcome_queued(&self, before: &State, id: Id, answer: Answer, after: &State) -> String {
        let (until, counter) = (self.until(after.server.left), after.server.counter);
        let said = match answer {
            Answer::Granted { waiting, .. } => {
                let others = if waiting { ", others wait" } else { "" };
                format!("granted until {until}, counter {counter}{others}")
            }
            Answer::NotFree { .. } => "it is not free".to_owned(),
            Answer::Queued { grant_seq } => {
                let place = after.server.queue.iter().position(|place| place.attempt == id).unwrap_or(0);
                format!("place {} in the queue, grant_seq {grant_seq}", place + 1)
            }
            Answer::NoPlace => "it has no place".to_owned(),
            Answer::Renewed { .. } => format!("it lasts until {until}"),
            Answer::Released if before.server.owner == Some(id) => "the name is free".to_owned(),
            Answer::Released => "it does not hold".to_owned(),
            _ => "nothing of it is there".to_owned(),
        };
        match after.server.owner.filter(|owner| *owner != id && before.server.owner != Some(*owner)) {
            Some(owner) => format!("{said}; handed to {} until {until}, counter {counter}", self.name(owner)),
            None => said,
        }
    }

    /// A reply at its client.
    fn hears(&self, Reply { attempt: id, answer }: Reply, before: &State, after: &State) -> String {
        let (was, attempt) = (before.phase(id), after.attempts[usize::from(id)]);
        let heard = match (attempt.phase, answer) {
            (Phase::Holding, Answer::Took { .. } | Answer::Granted { .. }) if was != Phase::Holding => {
                format!("it is granted, valid until {}{}", self.until(attempt.valid), self.fence_of(&attempt, answer))
            }
            (Phase::Holding, Answer::Granted { .. } | Answer::Renewed { .. }) if self.protocol.bounds.queued => {
                format!("it holds, valid until {}", self.until(attempt.valid))
            }
            (Phase::Holding | Phase::Lost, Answer::Renewed { .. }) if attempt.valid > 0 => {
                format!("it is renewed, valid until {}", self.until(attempt.valid))
            }
            (Phase::Joining, Answer::Granted { .. }) => "others wait and hands it to the first of them".to_owned(),
            (Phase::Joining, Answer::NotFree { .. }) => "it is not free and asks for a place".to_owned(),
            (Phase::Joining, Answer::NoPlace) => "it has no place and asks for another with the same token".to_owned(),
            (Phase::Waiting, Answer::Queued { grant_seq }) => {
                format!("it waits: a push above {grant_seq} would be accepted until {}", self.until(attempt.covered))
            }
            (_, Answer::NotFree { .. }) => "it is not free and asks who has it".to_owned(),
            (_, Answer::Busy) => "it is busy".to_owned(),
            (_, Answer::NoPlace) => "it has no place".to_owned(),
            (_, Answer::Gone) if was == Phase::Holding => "its lease is gone".to_owned(),
            (Phase::Over, Answer::Released | Answer::NotHeld) => "it is released and is done".to_owned(),
            _ => return format!("{} {}", self.name(id), unheeded(attempt.phase, answer)),
        };
        format!("{} hears that {heard}", self.name(id))
    }

    fn hears_push(&self, before: &State, at: usize, after: &State) -> String {
        let push = before.pushes[at];
        let attempt = after.attempts[usize::from(push.attempt)];
        let heard = format!("{} hears the push of counter {}", self.name(push.attempt), push.counter);
        if attempt.phase == Phase::Holding {
            format!("{heard}, valid until {}", self.until(attempt.valid))
        } else {
            format!("{heard} and ignores it")
        }
    }

    /// The ends that a tick brings.
    fn passes(&self, before: &State, after: &State) -> Story {
        let is_valid = |state: &State, id: Id| state.attempts[usize::from(id)].valid > 0;
        let ended = (0..self.protocol.all_attempts()).filter(|id| is_valid(before, *id) && !is_valid(after, *id));
        let mut lines: Story = ended.map(|id| format!("{}'s validity ends", self.name(id))).collect();
        if let (Some(owner), None) = (before.server.owner, after.server.owner) {
            lines.push(format!("{}'s lease ends at the server", self.name(owner)));
        }
        let stays = |id: Id| after.server.queue.iter().any(|place| place.attempt == id);
        let lapsed = before.server.queue.iter().filter(|place| !stays(place.attempt));
        lines.extend(lapsed.map(|place| format!("{}'s place lapses", self.name(place.attempt))));
        lines
    }

    /// How the promise is broken in the end.
    fn end(&self, state: &State, promise: Promise) -> String {
        let queued = self.protocol.bounds.queued;
        let holders = state.holders().map(|id| self.name(id)).collect::<Vec<_>>().join(" and ");
        match promise {
            Promise::OneHolder => format!("{holders} both regard themselves as the holder"),
            Promise::FencesRise if queued => "this fence is not above the one before".to_owned(),
            Promise::FencesRise | Promise::FencesDiffer => "this fence is not above one that was heard before".to_owned(),
            Promise::NoOrphan if queued => "one that is done with it has the name or a place".to_owned(),
            Promise::NoOrphan => {
                let owner = state.server.owner.map_or_else(|| "nobody".to_owned(), |owner| self.name(owner));
                let until = self.until(state.server.left);
                if state.server.left > state.server.asked_for {
                    format!("the name is taken for {owner} until {until}, and none of its own commands asked for that")
                } else {
                    format!("the name is taken until {until} for {owner}, which is done with it")
                }
            }
            Promise::LossIsFinal => format!("{holders} had lost the name and is its holder again"),
            Promise::NoFalseLoss => "its lease had to stand, and nobody had released it".to_owned(),
            Promise::InOrder => format!("{holders} holds, and others waited"),
            Promise::InTurn => "another has waited for longer than a turn".to_owned(),
            Promise::Served => {
                let ticks = self.protocol.bounds.served_within;
                format!("though everybody acts at once from now on, nobody who waits is served within {ticks} ticks")
            }
        }
    }

    fn until(&self, left: u8) -> String {
        format!("t={}", self.now + u32::from(left))
    }

    /// `, fence 3`, if fences are shown.
    fn fence_of(&self, attempt: &Attempt, answer: Answer) -> String {
        match answer {
            _ if self.protocol.bounds.queued => format!(", fence {}", self.fence(attempt)),
            Answer::Took { counter, .. } | Answer::Granted { counter, .. } if self.protocol.counts() => {
                format!(", fence {counter}")
            }
            _ => String::new(),
        }
    }

    fn fence(&self, attempt: &Attempt) -> String {
        let (counter, index) = attempt.fence;
        if self.protocol.bounds.tasks > 1 { format!("{counter}.{index}") } else { counter.to_string() }
    }

    /// `A`, and `A2` for its second attempt.
    fn name(&self, id: Id) -> String {
        let (client, nth) = (client_name(self.protocol.client_of(id)), id % self.protocol.bounds.attempts);
        if nth == 0 { client.to_owned() } else { format!("{client}{}", nth + 1) }
    }
}

/// An answer that is not what was asked for.
fn unheeded(phase: Phase, answer: Answer) -> &'static str {
    match (phase, answer) {
        (Phase::Asking, Answer::Took { .. }) => "does not trust the fence and asks for another",
        (_, Answer::Took { .. } | Answer::Granted { .. }) => "hears of its grant too late and sends a release",
        _ => "hears an answer that changes nothing",
    }
}
