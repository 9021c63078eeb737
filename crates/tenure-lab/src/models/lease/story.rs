//! A counterexample in words.

use super::protocol::{Action, Protocol};
use super::state::{Answer, Claim, Id, Op, Phase, Reply, Request, State};
use crate::models::promise::{Promise, Subject as _};
use crate::models::story::{self, Story, UnderWay, client_name};

/// Tells a story as it goes on.
pub(super) struct Narrator<'a> {
    protocol: &'a Protocol,
    now: u32,
    sent: UnderWay<Request>,
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

    fn begin(&self, _: &State) -> Story {
        Story::new()
    }

    fn step(&mut self, before: &State, action: Action, after: &State) -> Story {
        let mut lines = Vec::new();
        match action {
            Action::Execute(at) => lines.push(self.arrives(before, before.traffic.requests[at], after)),
            Action::Hear(at) => lines.push(self.hears(before, before.traffic.replies[at], after)),
            Action::Ask(id) => lines.push(self.asks(before, id)),
            Action::Renew(id, short) => {
                let how = if short { "for one tick" } else { "for the full ttl" };
                lines.push(format!("{} sends a renewal {how}", self.name(id)));
            }
            Action::Release(id) => lines.push(format!("{} sends a release", self.name(id))),
            Action::GiveUp(id) => lines.push(self.gives_up(id, after)),
            Action::ClearAgain(id) => lines.push(format!("{} sends its release again", self.name(id))),
            Action::PassOn(id) => lines.push(format!("{} passes its lease on", self.name(id))),
            Action::Adopt(id) => lines.push(format!("{} asks to take over the lease that was passed on", self.name(id))),
            Action::Reconnect(client) => lines.push(self.reconnects(client)),
            Action::Crash(client) => lines.push(format!("{} crashes", client_name(client))),
            Action::Flush if self.protocol.bounds.older_copy => {
                lines.push("the server goes back to an older copy of its data".to_owned());
            }
            Action::Flush => lines.push("the server loses all its data".to_owned()),
            Action::Tick => lines.extend(self.passes(before, after)),
        }
        self.follow(before, action, after);
        lines
    }

    fn end(&self, state: &State, promise: Promise) -> String {
        let believers: Vec<String> = (0..self.protocol.all_claims())
            .filter(|id| state.claims[usize::from(*id)].believed > 0)
            .map(|id| self.name(id))
            .collect();
        let owner = state.server.owner.map_or_else(|| "nobody".to_owned(), |owner| self.name(owner));
        let until = self.now + u32::from(state.server.left);
        match promise {
            Promise::OneHolder => format!("BROKEN: {} both believe to hold the name", believers.join(" and ")),
            Promise::FencesRise => "BROKEN: this fence is not above one that was heard before".to_owned(),
            Promise::NoOrphan if state.server.left > state.server.asked_for => {
                format!("BROKEN: the name is taken for {owner} until t={until}, and none of its own commands asked for that")
            }
            Promise::NoOrphan => format!("BROKEN: the name is taken until t={until} for {owner}, which is done with it"),
            Promise::LossIsFinal => format!("BROKEN: {} had lost the name and believes again", believers.join(" and ")),
            Promise::NoFalseLoss => "BROKEN: its lease had to stand, and nobody had released it".to_owned(),
            other => format!("BROKEN: {}", other.words()),
        }
    }
}

impl Narrator<'_> {
    /// Keeps account of what is under way.
    fn follow(&mut self, before: &State, action: Action, after: &State) {
        if let Action::Execute(at) = action {
            self.sent.arrives(plain(before.traffic.requests[at]));
        }
        self.sent.is(after.traffic.requests.iter().copied().map(plain).collect(), self.now);
    }

    fn asks(&self, before: &State, id: Id) -> String {
        let claim = &before.claims[usize::from(id)];
        let name = self.name(id);
        match claim.phase {
            Phase::Unused if self.protocol.bounds.given => format!("{name} asks for the name by the given value"),
            Phase::Unused if !id.is_multiple_of(self.protocol.bounds.claims) => {
                format!("{} asks for the name once more, as {name}", client_name(self.protocol.client_of(id)))
            }
            Phase::Unused => format!("{name} asks for the name"),
            Phase::Clearing => format!("{name} asks again with the token whose release it has sent"),
            _ if claim.awaits => format!("{name} has heard nothing and asks again with the same token"),
            _ => format!("{name} asks again with the same token"),
        }
    }

    fn gives_up(&self, id: Id, after: &State) -> String {
        let name = self.name(id);
        match after.claims[usize::from(id)].phase {
            Phase::Clearing => format!("{name} gives up waiting and sends a release"),
            _ => format!("{name} gives up waiting and sends nothing"),
        }
    }

    fn reconnects(&self, client: usize) -> String {
        let name = client_name(client);
        if self.protocol.rules.kills_predecessor {
            format!("{name} connects anew and has the server end its old connection")
        } else {
            format!("{name} connects anew; its old connection still delivers")
        }
    }

    /// A request at the server.
    fn arrives(&self, before: &State, request: Request, after: &State) -> String {
        let late = self.sent.since(plain(request), self.now);
        let what = match request.op {
            Op::Take { .. } | Op::Claim { from: None, .. } => "acquire",
            Op::Claim { from: Some(_), .. } => "take-over",
            Op::Renew { .. } => "renewal",
            Op::Release => "release",
        };
        format!("{}'s {what}{late} reaches the server: {}", self.name(request.claim), self.outcome(before, request, after))
    }

    fn outcome(&self, before: &State, request: Request, after: &State) -> String {
        let mut server = before.server.clone();
        let until = self.now + u32::from(after.server.left);
        match self.protocol.execute(&mut server, request) {
            Answer::Took { counter, .. } => format!("granted until t={until}, fence {counter}"),
            Answer::Granted { counter } => {
                let fence = if self.protocol.counts() { format!(", fence {counter}") } else { String::new() };
                let mine = if self.protocol.has(&before.server, request.claim) { "it is there already: " } else { "" };
                format!("{mine}granted until t={until}{fence}")
            }
            Answer::NotFree { .. } | Answer::Busy => match before.server.owner {
                Some(owner) => format!("busy, {} has it", self.name(owner)),
                None => "refused, nobody has it".to_owned(),
            },
            Answer::Renewed { .. } => match before.server.owner {
                Some(owner) if owner == request.claim => format!("it lasts until t={until}"),
                Some(owner) => format!("{}'s lease lasts until t={until}", self.name(owner)),
                None => format!("nothing was there, and now it is taken until t={until}"),
            },
            Answer::Released => match before.server.owner {
                Some(owner) if owner != request.claim => format!("{}'s lease is deleted", self.name(owner)),
                _ => "the name is free".to_owned(),
            },
            Answer::Gone | Answer::NotHeld => "nothing of it is there".to_owned(),
        }
    }

    /// A reply at its client.
    fn hears(&self, before: &State, reply: Reply, after: &State) -> String {
        let (id, was) = (reply.claim, before.claims[usize::from(reply.claim)]);
        let claim = after.claims[usize::from(id)];
        let name = self.name(id);
        let until = self.now + u32::from(claim.believed);
        match (claim.phase, reply.answer) {
            (Phase::Holding, Answer::Took { counter, .. }) => {
                format!("{name} hears that it is granted and believes until t={until}, fence {counter}")
            }
            (Phase::Holding, Answer::Granted { counter }) if self.protocol.counts() => {
                format!("{name} hears that it is granted and believes until t={until}, fence {counter}")
            }
            (Phase::Holding, Answer::Granted { .. }) => format!("{name} hears that it is granted and believes until t={until}"),
            (Phase::Holding | Phase::Lost, Answer::Renewed { .. }) if claim.believed > 0 => {
                format!("{name} hears that it is renewed and believes until t={until}")
            }
            (Phase::Asking, Answer::Took { .. }) => format!("{name} does not trust the fence and asks for another"),
            (_, Answer::Took { .. } | Answer::Granted { .. }) => {
                format!("{name} hears of its grant too late and sends a release")
            }
            (_, Answer::NotFree { .. }) => format!("{name} hears that it is not free and asks who has it"),
            (_, Answer::Busy) => format!("{name} hears that it is busy"),
            (_, Answer::Gone) if was.phase == Phase::Holding => {
                format!("{name} hears that its lease is gone, and believes no more")
            }
            (Phase::Over, _) => format!("{name} hears that it is released and is done"),
            _ => format!("{name} hears an answer that changes nothing"),
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
        lines
    }

    fn name(&self, id: Id) -> String {
        self.protocol.name_of(id)
    }
}

/// As it was sent.
fn plain(request: Request) -> Request {
    Request { awaited: true, age: 0, ..request }
}
