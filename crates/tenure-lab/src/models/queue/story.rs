//! A counterexample in words.

use super::protocol::{Action, Protocol};
use super::state::{Answer, Claim, Id, Op, Phase, Request, State};
use crate::models::promise::{Promise, Subject as _};
use crate::models::story::{self, Story, UnderWay, client_name};

/// Tells a story as it goes on.
pub(super) struct Narrator<'a> {
    protocol: &'a Protocol,
    now: u32,
    sent: UnderWay<(Id, Op)>,
}

impl<'a> Narrator<'a> {
    pub(super) fn new(protocol: &'a Protocol) -> Self {
        Self { protocol, now: 0, sent: UnderWay::nothing() }
    }
}

impl story::Narrator<Protocol> for Narrator<'_> {
    fn now(&mut self) -> &mut u32 {
        &mut self.now
    }

    fn begin(&self, state: &State) -> Story {
        vec![format!("A holds until t={}, fence {}", self.protocol.bounds.ttl, self.fence(&state.claims[0]))]
    }

    fn step(&mut self, before: &State, action: Action, after: &State) -> Story {
        let what = |request: &Request| (request.claim, request.op);
        let line = match action {
            Action::Execute(at) => self.arrives(before, before.traffic.requests[at]),
            Action::Hear(at) => self.hears(before.traffic.replies[at].claim, before.traffic.replies[at].answer, before, after),
            Action::HearPush(at) => self.hears_push(before, at, after),
            Action::Ask(id) => self.asks(before, id, after),
            Action::Beat(id) => format!("{} sends a heartbeat", self.name(id)),
            Action::Renew(id) => format!("{} sends a renewal", self.name(id)),
            Action::PassOn(id) => {
                let (name, fence) = (self.name(id), self.fence(&after.claims[usize::from(id)]));
                let until = self.now + u32::from(after.claims[usize::from(id)].believed);
                format!("a task of {name} passes the lease to the next, which believes until t={until}, fence {fence}")
            }
            Action::Release(id) => format!("{} sends a release", self.name(id)),
            Action::GiveUp(id) if after.phase(id) == Phase::Over => {
                format!("{} gives up waiting and sends nothing", self.name(id))
            }
            Action::GiveUp(id) => format!("{} gives up waiting and sends a release", self.name(id)),
            Action::ClearAgain(id) => format!("{} sends its release again", self.name(id)),
            Action::Cut(client) => format!("{} loses its connection, and what is on it", client_name(client)),
            Action::Crash(client) => format!("{} crashes", client_name(client)),
            Action::Tick => String::new(),
        };
        if let Action::Execute(at) = action {
            self.sent.arrives(what(&before.traffic.requests[at]));
        }
        self.sent.is(after.traffic.requests.iter().map(what).collect(), self.now);
        if action == Action::Tick { self.passes(before, after) } else { vec![line] }
    }

    fn end(&self, state: &State, promise: Promise) -> String {
        let believers: Vec<String> = state.believers().map(|id| self.name(u8::try_from(id).unwrap_or(0))).collect();
        match promise {
            Promise::OneHolder => format!("BROKEN: {} both believe to hold the name", believers.join(" and ")),
            Promise::FencesRise => "BROKEN: this fence is not above the one before".to_owned(),
            Promise::NoOrphan => "BROKEN: one that is done with it has the name or a place".to_owned(),
            Promise::InOrder => format!("BROKEN: {} holds, and others waited", believers.join(" and ")),
            Promise::InTurn => "BROKEN: another has waited for longer than a turn".to_owned(),
            Promise::Served => {
                let ticks = self.protocol.bounds.served_within;
                format!("BROKEN: though everybody acts at once from now on, nobody who waits is served within {ticks} ticks")
            }
            other => format!("BROKEN: {}", other.words()),
        }
    }
}

impl Narrator<'_> {
    fn asks(&self, before: &State, id: Id, after: &State) -> String {
        let name = self.name(id);
        let what = after.traffic.requests.iter().rfind(|request| request.claim == id).map(|request| request.op);
        match (before.phase(id), what) {
            (Phase::Unused, _) => format!("{name} asks for the name"),
            (Phase::Clearing, _) => format!("{name} asks for a place with the token whose release it has sent"),
            (_, Some(Op::Take)) => format!("{name} has heard nothing and asks again"),
            _ => format!("{name} has heard nothing and asks for a place again"),
        }
    }

    /// A request at the server.
    fn arrives(&self, before: &State, request: Request) -> String {
        let (id, late) = (request.claim, self.sent.since((request.claim, request.op), self.now));
        let what = match request.op {
            Op::Take => "acquire",
            Op::Join => "acquire with a place",
            Op::Yield => "hand-over",
            Op::Keep => "heartbeat",
            Op::Renew => "renewal",
            Op::Release => "release",
        };
        format!("{}'s {what}{late} reaches the server: {}", self.name(id), self.outcome(before, request))
    }

    fn outcome(&self, before: &State, request: Request) -> String {
        let mut after = before.clone();
        let answer = self.protocol.execute(&mut after, request.claim, request.op);
        let until = self.now + u32::from(after.server.left);
        let counter = after.server.counter;
        let said = match answer {
            Answer::Granted { waiting, .. } => {
                let others = if waiting { ", others wait" } else { "" };
                format!("granted until t={until}, counter {counter}{others}")
            }
            Answer::NotFree => "it is not free".to_owned(),
            Answer::Queued { mark } => {
                let place = after.server.queue.iter().position(|place| place.claim == request.claim).unwrap_or(0);
                format!("place {} in the queue, mark {mark}", place + 1)
            }
            Answer::NoPlace => "it has no place".to_owned(),
            Answer::Renewed => format!("it lasts until t={until}"),
            Answer::Gone => "nothing of it is there".to_owned(),
            Answer::Released => match before.server.owner {
                Some(owner) if owner == request.claim => "the name is free".to_owned(),
                _ => "it does not hold".to_owned(),
            },
        };
        match after.server.owner.filter(|owner| *owner != request.claim && before.server.owner != Some(*owner)) {
            Some(owner) => format!("{said}; handed to {} until t={until}, counter {counter}", self.name(owner)),
            None => said,
        }
    }

    /// A reply at its client.
    fn hears(&self, id: Id, answer: Answer, before: &State, after: &State) -> String {
        let (was, claim) = (before.claims[usize::from(id)], after.claims[usize::from(id)]);
        let (name, until) = (self.name(id), self.now + u32::from(claim.believed));
        match (claim.phase, answer) {
            (Phase::Holding, Answer::Granted { .. }) if was.phase != Phase::Holding => {
                format!("{name} hears that it is granted and believes until t={until}, fence {}", self.fence(&claim))
            }
            (Phase::Holding, Answer::Granted { .. } | Answer::Renewed) => {
                format!("{name} hears that it holds and believes until t={until}")
            }
            (Phase::Joining, Answer::Granted { .. }) => {
                format!("{name} hears that others wait and hands it to the first of them")
            }
            (Phase::Joining, Answer::NotFree) => format!("{name} hears that it is not free and asks for a place"),
            (Phase::Joining, Answer::NoPlace) => {
                format!("{name} hears that it has no place and asks for another with the same token")
            }
            (_, Answer::Granted { .. }) => format!("{name} hears of its grant too late and sends a release"),
            (Phase::Waiting, Answer::Queued { mark }) => {
                let until = self.now + u32::from(claim.covered);
                format!("{name} hears that it waits: a push above {mark} it would believe until t={until}")
            }
            (_, Answer::NoPlace) => format!("{name} hears that it has no place"),
            (_, Answer::Gone) => format!("{name} hears that its lease is gone, and believes no more"),
            (_, Answer::Released) => format!("{name} hears that it is released and is done"),
            _ => format!("{name} hears an answer that changes nothing"),
        }
    }

    fn hears_push(&self, before: &State, at: usize, after: &State) -> String {
        let push = before.pushes[at];
        let claim = after.claims[usize::from(push.claim)];
        let heard = format!("{} hears the push of counter {}", self.name(push.claim), push.counter);
        if claim.phase == Phase::Holding {
            format!("{heard} and believes until t={}", self.now + u32::from(claim.believed))
        } else {
            format!("{heard} and does not believe it")
        }
    }

    /// What a tick ends.
    fn passes(&self, before: &State, after: &State) -> Vec<String> {
        let mut lines = Vec::new();
        for id in 0..self.protocol.all_claims() {
            let (was, is): (Claim, Claim) = (before.claims[usize::from(id)], after.claims[usize::from(id)]);
            if was.believed > 0 && is.believed == 0 {
                lines.push(format!("{}'s belief ends", self.name(id)));
            }
        }
        if let (Some(owner), None) = (before.server.owner, after.server.owner) {
            lines.push(format!("{}'s lease ends at the server", self.name(owner)));
        }
        let lapsed =
            before.server.queue.iter().filter(|place| !after.server.queue.iter().any(|other| other.claim == place.claim));
        lines.extend(lapsed.map(|place| format!("{}'s place lapses", self.name(place.claim))));
        lines
    }

    fn fence(&self, claim: &Claim) -> String {
        let (counter, index) = claim.fence;
        if self.protocol.bounds.tasks > 1 { format!("{counter}.{index}") } else { counter.to_string() }
    }

    fn name(&self, id: Id) -> String {
        self.protocol.name_of(id)
    }
}
