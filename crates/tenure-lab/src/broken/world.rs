//! A few clients of one scheme, their server, and what can happen to them: one step at a time.

use tenure_testkit::history::Rule;
use tenure_testkit::register::Comparison;

use super::beside::Beside;
use super::case::{Faults, Setting};
use super::command::{Command, Value};
use super::program::{Change, Client, Part, Stage, Tick};
use super::server::Server;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) now: Tick,
    pub(crate) server: Server,
    /// By how much its clock is ahead.
    pub(crate) jumped: Tick,
    pub(crate) clients: Vec<Client>,
    /// The faults that may still occur.
    pub(crate) left: Faults,
    /// The largest fence that was ever given.
    largest: i16,
    /// For each client, the largest fence that was given before it asked.
    floors: Vec<i16>,
    /// For each client, who waited when it asked, a bit each.
    before: Vec<u8>,
    /// The fence that the guarded resource has seen.
    resource: Option<i16>,
    /// The others' part in the history.
    pub(crate) beside: Beside,
    /// Rules that were broken in a step, and not in a state.
    pub(crate) broken: Vec<Rule>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A client sends its next command and hears the reply, beginning a routine first if it says
    /// so.
    Step(Move),
    /// A client sends its next command, which is on its way.
    Send(Move),
    Run(u8, usize),
    Hear(u8, usize),
    /// As a step, but the reply is lost with the connection.
    LoseReply(Move),
    /// As a step, but the command is lost with the connection.
    LoseRequest(Move),
    Notify(u8),
    /// A client writes to the guarded resource, which looks at its fence.
    Write(u8),
    /// The work of a client that has given up is done.
    EndWork(u8),
    Crash(u8),
    /// A process is stopped.
    Stop(u8),
    /// A stopped process goes on.
    Continue(u8),
    Flush,
    /// The server has no memory left, and evicts the lock.
    Evict,
    /// Another server takes over, which has none of the data.
    Failover,
    Jump,
    /// A client hears no more of what is published, and does not know.
    Deafen(u8),
    Tick,
    /// Time passes, and the client's machine sleeps meanwhile.
    Sleep(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Move {
    pub(crate) who: u8,
    pub(crate) lane: usize,
    pub(crate) begin: Option<Part>,
}

/// The outcome of an action, for the story and the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A client sent a command and got, or will get, this.
    Ran(u8, Command, Value),
    Sent(u8, Command),
    Lost(u8, Command),
    /// A client heard what was executed before.
    Hears(u8, Value),
    Changed(u8, Change),
    Wrote(u8, Option<i16>, bool),
}

impl World {
    pub(crate) fn new(setting: &Setting) -> Self {
        let clients = (0..setting.clients).map(|who| Client::new(who, setting.skews[usize::from(who)]));
        Self {
            now: 0,
            server: Server::default(),
            jumped: setting.clock_ahead,
            clients: clients.collect(),
            left: setting.faults,
            largest: 0,
            floors: vec![0; usize::from(setting.clients)],
            before: vec![0; usize::from(setting.clients)],
            resource: None,
            beside: Beside::default(),
            broken: Vec::new(),
        }
    }

    /// Everything that can happen next.
    pub(crate) fn actions(&self, setting: &Setting, actions: &mut Vec<Action>) {
        for client in self.clients.iter().filter(|client| client.died.is_none() && !client.stopped) {
            self.moves(setting, client, actions);
        }
        let passes = self.now < setting.horizon && !self.is_renewal_due(setting) && !(setting.prompt && self.is_busy());
        for (may, action) in [
            (self.left.flushes > 0, Action::Flush),
            (self.left.evictions > 0 && self.server.is_taken(self.now), Action::Evict),
            (self.left.failovers > 0, Action::Failover),
            (self.left.jump != 0, Action::Jump),
            (passes, Action::Tick),
        ] {
            actions.extend(may.then_some(action));
        }
        // Last, so that of two stories as short it is the one in which the others come first.
        let stopped = self.clients.iter().filter(|client| client.stopped && client.died.is_none());
        actions.extend(stopped.map(|client| Action::Continue(client.who)));
    }

    /// Somebody renews at this very moment, if renewals are punctual.
    fn is_renewal_due(&self, setting: &Setting) -> bool {
        let due = |client: &Client| {
            let since = client.clock(self.now) - client.renewed;
            client.hold.is_some() && !client.releasing && setting.punctual.is_some_and(|every| since >= every)
        };
        self.clients.iter().any(due)
    }

    /// Somebody has something to do before time passes: a command to send, or a lease that would
    /// end.
    fn is_busy(&self) -> bool {
        let next = self.now + 1;
        let in_work = |client: &Client| client.lanes.iter().any(|lane| matches!(lane.stage, Stage::Ready(..)));
        let ends = |client: &Client| client.is_valid(self.now) && !client.is_valid(next);
        self.clients.iter().any(|client| client.died.is_none() && (in_work(client) || ends(client)))
    }

    fn moves(&self, setting: &Setting, client: &Client, actions: &mut Vec<Action>) {
        let who = client.who;
        for lane in 0..2 {
            let begin = match client.lanes[lane].stage {
                Stage::Ready(..) => None,
                Stage::Idle => match self.may_begin(setting, client, lane) {
                    Some(part) => Some(part),
                    None => continue,
                },
                under_way => {
                    let hears = self.server.mail.contains(&who);
                    actions.extend(match under_way {
                        Stage::Sent(..) => Some(Action::Run(who, lane)),
                        Stage::Ran(..) => Some(Action::Hear(who, lane)),
                        _ => hears.then_some(Action::Notify(who)),
                    });
                    continue;
                }
            };
            let next = Move { who, lane, begin };
            actions.push(Action::Step(next));
            actions.extend((self.left.slow > 0).then_some(Action::Send(next)));
            actions.extend((self.left.lost_replies > 0).then_some(Action::LoseReply(next)));
            actions.extend((self.left.lost_requests > 0).then_some(Action::LoseRequest(next)));
        }
        let (holds, left) = (client.hold.is_some(), &self.left);
        let writes = setting.scheme_of(who).resource.is_some() && client.is_valid(self.now);
        for (may, action) in [
            (writes, Action::Write(who)),
            (client.releasing && holds && client.lanes[0].part.is_none(), Action::EndWork(who)),
            (left.crashes > 0 && client.takes > 0, Action::Crash(who)),
            (left.deaf > 0 && self.server.listens(who), Action::Deafen(who)),
            (left.sleeps > 0 && holds && self.now < setting.horizon, Action::Sleep(who)),
            (left.stops > 0 && holds, Action::Stop(who)),
        ] {
            actions.extend(may.then_some(action));
        }
    }

    fn may_begin(&self, setting: &Setting, client: &Client, lane: usize) -> Option<Part> {
        let scheme = setting.scheme_of(client.who);
        if scheme.in_turn && client.lanes[1 - lane].part.is_some() {
            return None;
        }
        match (lane, client.hold) {
            // Clients are alike but for their clocks and whose they are: the first to ask is A, and
            // so on.
            (0, None) => {
                let before = &self.clients[..usize::from(client.who)];
                let asked = |other: &Client| other.takes > 0 || setting.is_other(other.who) != setting.is_other(client.who);
                let in_turn = client.takes > 0 || before.iter().all(asked);
                let differ = setting.skews.iter().any(|skew| *skew != 0);
                (client.takes == 0 && (in_turn || differ)).then_some(Part::Acquire)
            }
            (0, Some(_)) => (!client.releasing).then_some(Part::Release),
            (_, Some(_)) => scheme.renew.filter(|_| !client.releasing).map(|_| Part::Renew),
            (_, None) => None,
        }
    }

    pub(crate) fn apply(&mut self, setting: &Setting, action: Action) -> Vec<Said> {
        let mut said = Vec::new();
        match action {
            Action::Step(next) | Action::Send(next) | Action::LoseReply(next) | Action::LoseRequest(next) => {
                self.say(setting, action, next, &mut said);
            }
            Action::Run(who, lane) => {
                let stage = self.client(who).lanes[lane].stage;
                if let Stage::Sent(connection, line, command) = stage {
                    let reply = self.run(setting, who, connection, command);
                    self.client(who).lanes[lane].stage = Stage::Ran(line, reply);
                    said.push(Said::Ran(who, command, reply));
                }
            }
            Action::Hear(who, lane) => {
                if let Stage::Ran(_, reply) = self.client(who).lanes[lane].stage {
                    said.push(Said::Hears(who, reply));
                    self.hear(setting, who, lane, reply, &mut said);
                }
            }
            Action::Notify(who) => {
                self.server.mail.remove(&who);
                said.push(Said::Hears(who, Value::Word("message")));
                self.hear(setting, who, 0, Value::Word("message"), &mut said);
            }
            Action::Write(who) => self.write(setting, who, &mut said),
            Action::EndWork(who) => {
                let changes = self.client(who).end_work();
                said.extend(changes.into_iter().map(|change| Said::Changed(who, change)));
            }
            fault => self.suffer(fault),
        }
        said
    }

    /// A client sends its next command; what is not slow is heard at once.
    fn say(&mut self, setting: &Setting, action: Action, next: Move, said: &mut Vec<Said>) {
        match action {
            Action::Send(_) => self.left.slow -= 1,
            Action::LoseReply(_) => self.left.lost_replies -= 1,
            Action::LoseRequest(_) => self.left.lost_requests -= 1,
            _ => {}
        }
        let Move { who, lane, .. } = next;
        let Some((connection, command)) = self.send(setting, next, said) else { return };
        let mut reply = Value::Broken;
        match action {
            Action::Send(_) => return said.push(Said::Sent(who, command)),
            Action::LoseRequest(_) => said.push(Said::Lost(who, command)),
            _ => {
                let ran = self.run(setting, who, connection, command);
                if matches!(action, Action::Step(_)) {
                    reply = ran;
                }
                said.push(Said::Ran(who, command, reply));
            }
        }
        if !matches!(action, Action::Step(_)) {
            self.server.hang_up((who, connection));
        }
        self.hear(setting, who, lane, reply, said);
    }

    fn suffer(&mut self, fault: Action) {
        match fault {
            Action::Crash(who) => {
                self.left.crashes -= 1;
                let now = self.now;
                let client = self.client(who);
                (client.died, client.hold, client.lanes) = (Some(now), None, <_>::default());
                self.server.disconnect(who);
                self.server.miss(who, now);
            }
            Action::Stop(who) => {
                self.left.stops -= 1;
                self.client(who).stopped = true;
                self.server.miss(who, self.now);
            }
            Action::Continue(who) => {
                self.client(who).stopped = false;
                self.server.hear_again(who, self.now);
            }
            Action::Flush => {
                self.left.flushes -= 1;
                self.server.forget();
            }
            Action::Evict => {
                self.left.evictions -= 1;
                self.server.evict();
            }
            Action::Failover => {
                self.left.failovers -= 1;
                self.server = Server::default();
            }
            Action::Deafen(who) => {
                self.left.deaf -= 1;
                self.server.deafen(who);
            }
            Action::Jump => self.jumped += std::mem::take(&mut self.left.jump),
            Action::Sleep(who) => {
                self.left.sleeps -= 1;
                self.now += 1;
                self.client(who).slept += 1;
            }
            _ => {
                self.now += 1;
                self.server.end_sessions(self.now);
            }
        }
    }

    fn client(&mut self, who: u8) -> &mut Client {
        &mut self.clients[usize::from(who)]
    }

    fn send(&mut self, setting: &Setting, next: Move, said: &mut Vec<Said>) -> Option<(u8, Command)> {
        let Move { who, lane, begin } = next;
        let now = self.now;
        if let Some(part) = begin {
            let changes = self.client(who).begin(setting.scheme_of(who), part, now);
            self.note(who, changes, said);
        }
        self.client(who).send(lane, now)
    }

    fn run(&mut self, setting: &Setting, who: u8, connection: u8, command: Command) -> Value {
        let now = self.now + self.jumped;
        let before = self.server.at_lock(now);
        let reply = self.server.run((who, connection), command, now);
        if setting.others.is_some() {
            self.judge(setting, who, command, reply, before, now);
        }
        reply
    }

    fn hear(&mut self, setting: &Setting, who: u8, lane: usize, reply: Value, said: &mut Vec<Said>) {
        let now = self.now;
        let client = self.client(who);
        let (was_valid, owner) = (client.is_valid(now), client.mine);
        let changes = client.hear(setting.scheme_of(who), lane, reply, now);
        if changes.contains(&Change::Lost) && was_valid && self.server.is_taken_by(owner, now + self.jumped) {
            self.broken.push(Rule::FalseLoss);
        }
        self.note(who, changes, said);
    }

    fn note(&mut self, who: u8, changes: Vec<Change>, said: &mut Vec<Said>) {
        for change in changes {
            match change {
                Change::Asks => {
                    self.floors[usize::from(who)] = self.largest;
                    self.before[usize::from(who)] = self.waiting();
                }
                Change::Holds(hold) => {
                    if self.before[usize::from(who)] & self.waiting() != 0 {
                        self.broken.push(Rule::Overtaken);
                    }
                    if let Some(fence) = hold.fence {
                        if fence <= self.floors[usize::from(who)] {
                            self.broken.push(Rule::FenceOrder);
                        }
                        self.largest = self.largest.max(fence);
                    }
                }
                _ => {}
            }
            said.push(Said::Changed(who, change));
        }
    }

    /// Who waits, a bit each.
    fn waiting(&self) -> u8 {
        let waiting = self.clients.iter().filter(|client| client.waits && client.died.is_none());
        waiting.fold(0, |all, client| all | 1 << client.who)
    }

    fn write(&mut self, setting: &Setting, who: u8, said: &mut Vec<Said>) {
        let fence = self.client(who).hold.and_then(|hold| hold.fence);
        let accepted = match setting.scheme_of(who).resource {
            Some(Comparison::Equality) => self.resource.is_none() || self.resource == fence,
            Some(Comparison::Nothing) => true,
            _ => self.resource <= fence,
        };
        if accepted {
            if fence < self.resource {
                self.broken.push(Rule::StaleWrite);
            }
            self.resource = self.resource.max(fence);
        } else if fence >= Some(self.largest) {
            self.broken.push(Rule::RefusedHolder);
        }
        said.push(Said::Wrote(who, fence, accepted));
    }
}
