//! What the protocol does for those who wait and for those who pass a lease on, rule by rule, and how far a search goes.

use crate::models::counted;

/// What tenure does. Each rule is one that can be left out, to see what it is there for.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent rules")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// A pushed grant is believed only if its counter is above the largest mark seen.
    pub(crate) compares_marks: bool,
    /// A heartbeat looks after a place and makes none.
    pub(crate) keep_never_joins: bool,
    /// A token that was served and not taken up is used up; its client queues again under a new one.
    pub(crate) served_once: bool,
    /// A grant that is handed over lasts for the claim of its own place.
    pub(crate) own_claim: bool,
    /// A pushed grant is believed from the send of the last answered heartbeat, not from its answer.
    pub(crate) believes_from_send: bool,
    /// Nor from the push.
    pub(crate) believes_from_heartbeat: bool,
    /// A token whose release was sent is not queued again.
    pub(crate) one_way: bool,
    /// A wait that is given up is followed by a release.
    pub(crate) clears_up: bool,
    /// Whoever takes a name that others wait for hands it to the first of them, and queues.
    pub(crate) yields: bool,
    /// A heartbeat serves a name that is free, and tells its own owner that it was served.
    pub(crate) rechecks: bool,
    /// When the index of hand-overs is used up, the lease goes back to the server.
    pub(crate) index_ends: bool,
    /// A lease whose release was sent is passed to nobody.
    pub(crate) release_is_last: bool,
    /// Whoever is passed a lease believes until the deadline that stood, not for a ttl from then on.
    pub(crate) deadline_stands: bool,
    /// When its turn is over, the lease goes back to the server.
    pub(crate) takes_turns: bool,
    /// A turn counts from the send of what was granted, not from the answer.
    pub(crate) turn_from_send: bool,
    /// A renewal begins no other turn.
    pub(crate) one_turn_a_grant: bool,
}

impl Rules {
    /// The protocol as it stands.
    pub(crate) const TENURE: Self = Self {
        compares_marks: true,
        keep_never_joins: true,
        served_once: true,
        own_claim: true,
        believes_from_send: true,
        believes_from_heartbeat: true,
        one_way: true,
        clears_up: true,
        yields: true,
        rechecks: true,
        index_ends: true,
        release_is_last: true,
        deadline_stands: true,
        takes_turns: true,
        turn_from_send: true,
        one_turn_a_grant: true,
    };
}

/// How far a search goes. Time has no end: only what is left of each span is kept.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent bounds")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) clients: u8,
    /// Of each client, one after another, each with a token of its own.
    pub(crate) claims: u8,
    /// In ticks.
    pub(crate) ttl: u8,
    /// How long a grant lasts that was handed over, until it is renewed.
    pub(crate) claim: u8,
    /// How long a place lasts without a heartbeat.
    pub(crate) keep: u8,
    /// A pushed grant is believed; else it is a hint, which tells nothing that a heartbeat does not.
    pub(crate) pushes: bool,
    /// Times that one token is sent to be acquired, and to be queued.
    pub(crate) asks: u8,
    /// Heartbeats sent for one place.
    pub(crate) beats: u8,
    /// Renewals sent of one claim.
    pub(crate) renewals: u8,
    /// Releases sent of one claim.
    pub(crate) releases: u8,
    /// A wait may be given up.
    pub(crate) cancels: bool,
    /// Commands that may be lost with their connection.
    pub(crate) cuts: u8,
    /// Clients that may crash.
    pub(crate) crashes: u8,
    /// Commands of one client may overtake each other, and arrive within this many ticks or never; else they arrive in order.
    pub(crate) unordered: Option<u8>,
    /// Commands and answers under way at once.
    pub(crate) under_way: usize,
    /// How many tasks may have one lease under one counter.
    pub(crate) tasks: u8,
    /// For how many ticks they may pass it on.
    pub(crate) turn: u8,
    /// Grants by the server.
    pub(crate) grants: u8,
    /// If everybody who lives acts at once from now on, one who waits is served within so many ticks.
    pub(crate) served_within: u8,
}

impl Bounds {
    /// The least of everything; what a model needs is added.
    pub(crate) const LEAST: Self = Self {
        clients: 3,
        claims: 1,
        ttl: 3,
        claim: 2,
        keep: 2,
        pushes: true,
        asks: 1,
        beats: 1,
        renewals: 0,
        releases: 1,
        cancels: false,
        cuts: 0,
        crashes: 0,
        unordered: None,
        under_way: usize::MAX,
        tasks: 1,
        turn: 0,
        grants: u8::MAX,
        served_within: 0,
    };

    /// In words.
    pub(crate) fn words(&self) -> String {
        let Self { clients, ttl, claim, keep, .. } = self;
        let mut words = vec![
            format!("{clients} clients with {} each, of which the first holds", counted(self.claims, "claim")),
            format!("a ttl of {ttl} ticks, a claim of {claim}, places that last {keep}"),
            format!("up to {}", counted(self.asks, "acquire")),
            counted(self.beats, "heartbeat"),
            counted(self.renewals, "renewal"),
            counted(self.releases, "release") + " sent of each claim",
        ];
        words.push(match self.unordered {
            None => "commands in order for each client".to_owned(),
            Some(ticks) => format!("commands in any order within {} or never", counted(ticks, "tick")),
        });
        words.push("each answer at any time or never".to_owned());
        if self.pushes {
            words.push("each push at any time, more than once or never".to_owned());
        }
        if self.tasks > 1 {
            words.push(format!("{} tasks under one counter, a turn of {}", self.tasks, counted(self.turn, "tick")));
        }
        for (count, what) in [(self.crashes, "crash"), (self.cuts, "connection lost with all that is on it")] {
            if count > 0 {
                words.push(format!("up to {count} {what}"));
            }
        }
        if self.grants < u8::MAX {
            words.push(format!("up to {} grants", self.grants));
        }
        if self.under_way < usize::MAX {
            words.push(format!("at most {} commands and answers under way at once", self.under_way));
        }
        words.push("clients pause at will; time without end".to_owned());
        words.join("; ")
    }
}
