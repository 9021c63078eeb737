//! A few clients, their server, and what can happen to them: one step at a time.

use super::client::{Change, Client, Part, Stage};
use super::command::{Command, Value};
use super::others::{Others, Ran};
use super::rules::{Faults, TTL, Tick};
use super::server::Server;
use super::setting::Setting;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: Tick,
    pub(super) server: Server,
    pub(super) clients: Vec<Client>,
    /// The faults that may still occur.
    left: Faults,
    /// The others' part in the history.
    pub(super) others: Others,
    /// A lease was lost that nothing had taken away.
    lost_falsely: bool,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// A client sends its next command, beginning a routine first if it says so.
    Send(Move, Way),
    Run(u8, usize),
    Hear(u8, usize),
    Crash(u8),
    Tick,
}

/// Fate of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// The client hears the reply at once.
    Answered,
    /// It is on its way.
    Late,
    /// The reply is lost with the connection.
    ReplyLost,
    /// It is lost itself, with the connection.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Move {
    who: u8,
    lane: usize,
    begin: Option<Part>,
}

/// The outcome of an action, for the story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A client sent a command and got, or will get, this.
    Ran(u8, Command, Value),
    Sent(u8, Command),
    Lost(u8, Command),
    /// A client heard what was executed before.
    Hears(u8, Value),
    Changed(u8, Change),
}

impl World {
    pub(super) fn new(setting: &Setting) -> Self {
        let skew = |who: u8| if who + 1 == setting.clients { setting.skew } else { 0 };
        Self {
            now: 0,
            server: Server::default(),
            clients: (0..setting.clients).map(|who| Client::new(who, skew(who))).collect(),
            left: setting.faults,
            others: Others::default(),
            lost_falsely: false,
        }
    }

    /// Everything that can happen next.
    pub(super) fn actions(&self, setting: &Setting, actions: &mut Vec<Action>) {
        for client in self.clients.iter().filter(|client| client.died.is_none()) {
            self.moves(setting, client, actions);
            actions.extend((self.left.crashes > 0 && client.asked).then_some(Action::Crash(client.who)));
        }
        actions.extend((self.now < setting.horizon).then_some(Action::Tick));
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
                Stage::Sent(..) => {
                    actions.push(Action::Run(who, lane));
                    continue;
                }
                Stage::Ran(..) => {
                    actions.push(Action::Hear(who, lane));
                    continue;
                }
            };
            let next = Move { who, lane, begin };
            for (may, way) in [
                (true, Way::Answered),
                (self.left.slow > 0, Way::Late),
                (self.left.lost_replies > 0, Way::ReplyLost),
                (self.left.lost_requests > 0, Way::Lost),
            ] {
                actions.extend(may.then_some(Action::Send(next, way)));
            }
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
                let asked = |other: &Client| other.asked || setting.is_other(other.who) != setting.is_other(client.who);
                (!client.asked && (setting.skew != 0 || before.iter().all(asked))).then_some(Part::Acquire)
            }
            (0, Some(_)) => Some(Part::Release),
            (_, Some(_)) => scheme.renew.map(|_| Part::Renew),
            (_, None) => None,
        }
    }

    pub(super) fn apply(&mut self, setting: &Setting, action: Action) -> Vec<Said> {
        let mut said = Vec::new();
        match action {
            Action::Send(next, way) => self.send(setting, next, way, &mut said),
            Action::Run(who, lane) => {
                if let Stage::Sent(connection, line, command) = self.client(who).lanes[lane].stage {
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
            Action::Crash(who) => {
                self.left.crashes -= 1;
                let now = self.now;
                let client = self.client(who);
                (client.died, client.hold, client.lanes) = (Some(now), None, <_>::default());
                self.server.disconnect(who);
            }
            Action::Tick => self.now += 1,
        }
        said
    }

    fn send(&mut self, setting: &Setting, next: Move, way: Way, said: &mut Vec<Said>) {
        match way {
            Way::Answered => {}
            Way::Late => self.left.slow -= 1,
            Way::ReplyLost => self.left.lost_replies -= 1,
            Way::Lost => self.left.lost_requests -= 1,
        }
        let (Move { who, lane, begin }, now) = (next, self.now);
        if let Some(part) = begin {
            let change = self.client(who).begin(setting.scheme_of(who), setting.rules, part, now);
            said.extend(change.map(|change| Said::Changed(who, change)));
        }
        let Some((connection, command)) = self.client(who).send(lane, now) else { return };
        let reply = match way {
            Way::Late => return said.push(Said::Sent(who, command)),
            Way::Lost => {
                said.push(Said::Lost(who, command));
                Value::Broken
            }
            Way::Answered | Way::ReplyLost => {
                let reply = self.run(setting, who, connection, command);
                let heard = if way == Way::Answered { reply } else { Value::Broken };
                said.push(Said::Ran(who, command, heard));
                heard
            }
        };
        if way != Way::Answered {
            self.server.hang_up((who, connection));
        }
        self.hear(setting, who, lane, reply, said);
    }

    fn client(&mut self, who: u8) -> &mut Client {
        &mut self.clients[usize::from(who)]
    }

    fn run(&mut self, setting: &Setting, who: u8, connection: u8, command: Command) -> Value {
        let now = self.now + setting.clock_ahead;
        let before = self.server.at_lock(now);
        let reply = self.server.run(setting.rules, (who, connection), command, now);
        if setting.others.is_some() {
            let (mine, past) = (self.clients[usize::from(who)].mine, before.value.is_past(self.now));
            let ran = Ran { who, theirs: setting.is_other(who), mine, command, reply, before, past, now };
            self.others.judge(&ran, &self.server);
        }
        reply
    }

    fn hear(&mut self, setting: &Setting, who: u8, lane: usize, reply: Value, said: &mut Vec<Said>) {
        let now = self.now;
        let client = self.client(who);
        let (was_valid, owner) = (client.is_valid(now), client.mine);
        let change = client.hear(setting.scheme_of(who), setting.rules, lane, reply, now);
        let lost = was_valid && change == Some(Change::Lost);
        self.lost_falsely |= lost && self.server.is_taken_by(owner, now + setting.clock_ahead);
        said.extend(change.map(|change| Said::Changed(who, change)));
    }

    /// Whether a client regards itself as the holder.
    pub(super) fn is_held(&self) -> bool {
        self.clients.iter().any(|client| client.is_valid(self.now))
    }

    pub(super) fn lost_falsely(&self) -> bool {
        self.lost_falsely
    }

    /// Two regard themselves as the holder.
    pub(super) fn overlaps(&self) -> bool {
        self.clients.iter().filter(|client| client.is_valid(self.now)).count() > 1
    }

    /// The name is taken, though nobody holds, nobody is about to, and each client that died did so
    /// longer than a lease ago.
    pub(super) fn leaks(&self, setting: &Setting) -> bool {
        let over = |client: &Client| client.died.map_or(client.is_idle(), |died| self.now > died + TTL);
        self.server.is_taken(self.now + setting.clock_ahead)
            && self.clients.iter().all(over)
            && self.clients.iter().any(|client| client.asked)
    }
}
