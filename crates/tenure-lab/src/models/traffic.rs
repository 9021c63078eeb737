//! Commands and answers on their way between clients and the server.

/// The index of a attempt; its client is found from it.
pub(crate) type Id = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[rustfmt::skip]
pub(crate) enum Op {
    /// Takes a free name, and counts; `raise`s the counter before.
    Take { raise: bool, seen: u8 },
    /// Takes a free name, or finds it taken by this token (if that `mine_counts`), or takes it over
    /// `from` another.
    Attempt { mine_counts: bool, from: Option<Id>, seen: u8 },
    /// Serves the waiters, then takes the name, or an entry in the queue.
    Join,
    /// As `Join`, but first gives up what a `Take` has taken.
    Yield,
    /// The heartbeat of an entry.
    Keep,
    /// For the ttl, or for one tick.
    Renew { short: bool },
    Release,
}

impl Op {
    pub(crate) const TAKE: Self = Self::Take { raise: false, seen: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[rustfmt::skip]
pub(crate) enum Answer {
    /// To `Take`: taken, with this counter, which should be above the floor.
    Took { counter: u8, floor: u8 },
    /// To `Take`: it is not free.
    NotFree { floor: u8 },
    Granted { counter: u8, waiting: bool },
    Busy,
    /// It has an entry; so many were granted when this was said.
    Queued { grant_seq: u8 },
    /// To `Keep`: it has no entry, and was served none that it still has.
    NoPlace,
    Renewed { short: bool },
    Gone,
    Released,
    NotHeld,
}

/// A command on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) attempt: Id,
    /// The connection of its client that carries it.
    pub(crate) link: u8,
    pub(crate) op: Op,
    /// Somebody still waits for the answer.
    pub(crate) awaited: bool,
    /// Ticks since it was sent, if that matters.
    pub(crate) age: u8,
}

/// An answer on its way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reply {
    pub(crate) attempt: Id,
    pub(crate) answer: Answer,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Traffic {
    /// In order for each connection.
    pub(crate) requests: Vec<Request>,
    pub(crate) replies: Vec<Reply>,
}

/// The way of commands to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Wire {
    /// Connections: in order on each; a client may replace its own by another.
    Connections,
    /// Anything: commands overtake each other.
    Unordered,
}

impl Traffic {
    pub(crate) fn send(&mut self, attempt: Id, link: u8, op: Op) {
        self.requests.push(Request { attempt, link, op, awaited: true, age: 0 });
    }

    /// A request was executed.
    pub(crate) fn answer(&mut self, request: Request, answer: Answer) {
        if request.awaited {
            self.replies.push(Reply { attempt: request.attempt, answer });
        }
    }

    /// Nobody waits for what was sent of this attempt any more.
    pub(crate) fn abandon(&mut self, attempt: Id) {
        for request in self.requests.iter_mut().filter(|request| request.attempt == attempt) {
            request.awaited = false;
        }
        self.replies.retain(|reply| reply.attempt != attempt);
    }

    /// How much is under way.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.replies.len()
    }

    /// The requests that may be the next to arrive.
    pub(crate) fn arriving(&self, wire: Wire, client_of: impl Fn(Id) -> usize) -> Vec<usize> {
        let lane = |at: usize| (client_of(self.requests[at].attempt), self.requests[at].link);
        let all = 0..self.requests.len();
        match wire {
            Wire::Unordered => all.filter(|&at| !self.requests[..at].contains(&self.requests[at])).collect(),
            Wire::Connections => all.filter(|&at| !(0..at).any(|before| lane(before) == lane(at))).collect(),
        }
    }

    /// A request that is older than `latest` ticks does not arrive any more.
    pub(crate) fn tick(&mut self, latest: Option<u8>) {
        let Some(latest) = latest else { return };
        for request in &mut self.requests {
            request.age += 1;
        }
        self.requests.retain(|request| request.age <= latest);
    }

    /// Makes one of what differs in nothing that matters.
    pub(crate) fn tidy(&mut self, wire: Wire, client_of: impl Fn(Id) -> usize) {
        match wire {
            Wire::Unordered => self.requests.sort_unstable(),
            Wire::Connections => self.requests.sort_by_key(|request| (client_of(request.attempt), request.link)),
        }
        self.replies.sort_unstable();
    }
}
