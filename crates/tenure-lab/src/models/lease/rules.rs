//! What the protocol does, rule by rule, and how far a search goes.

use crate::models::counted;
use crate::models::traffic::Wire;

/// What tenure does. Each rule is one that can be left out, to see what it is there for.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent rules")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Belief counts from the moment the request was sent, not from the reply.
    pub(crate) believes_from_send: bool,
    /// Only the answer to the last request counts.
    pub(crate) matches_answers: bool,
    /// An answer that comes after the deadline changes nothing.
    pub(crate) deadline_is_final: bool,
    /// A renewal extends only what is in place.
    pub(crate) renewal_compares: bool,
    /// A renewal makes nothing that is gone.
    pub(crate) renewal_never_creates: bool,
    /// A renewal never shortens a lease.
    pub(crate) renewal_never_shortens: bool,
    /// An acquire that finds its own token in place sets the full ttl again.
    pub(crate) repeat_extends: bool,
    /// A release deletes only its own token.
    pub(crate) release_compares: bool,
    /// A token whose release was sent is never acquired again.
    pub(crate) one_way: bool,
    /// An attempt that is given up is followed by a release.
    pub(crate) clears_up: bool,
    /// A rebuilt connection first has the server end its predecessor.
    pub(crate) kills_predecessor: bool,
    /// Where a command may run late, the clean-up of a token whose acquire was not heard is repeated until its ttl has passed.
    pub(crate) repeats_clean_up: bool,
    /// So is the release of a tenure of such a token.
    pub(crate) repeats_release: bool,
    /// The last of these clean-ups is sent after the ttl has passed, not only answered.
    pub(crate) last_clean_up_is_late: bool,
    /// A value that was given is busy when it is found in place.
    pub(crate) given_is_busy: bool,
    /// A value that was given is not released when the lease may have ended by the time the release runs.
    pub(crate) given_released_in_time: bool,
    /// Whoever passes a lease on believes nothing any more.
    pub(crate) passing_ends_belief: bool,
    /// Adoption takes over only from the owner that it was told.
    pub(crate) adoption_compares: bool,
    /// The counter is lifted to the server's time through a new connection.
    pub(crate) lifts: bool,
    /// A grant that is not above the largest counter seen is not handed out.
    pub(crate) rechecks: bool,
}

impl Rules {
    /// The protocol as it stands.
    pub(crate) const TENURE: Self = Self {
        believes_from_send: true,
        matches_answers: true,
        deadline_is_final: true,
        renewal_compares: true,
        renewal_never_creates: true,
        renewal_never_shortens: true,
        repeat_extends: true,
        release_compares: true,
        one_way: true,
        clears_up: true,
        kills_predecessor: true,
        repeats_clean_up: true,
        repeats_release: true,
        last_clean_up_is_late: true,
        given_is_busy: true,
        given_released_in_time: true,
        passing_ends_belief: true,
        adoption_compares: true,
        lifts: true,
        rechecks: true,
    };
}

/// How fences are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// Not modelled.
    No,
    /// Every acquire is one step at the server, as in memory.
    InOneStep,
    /// As on Redis: a transaction first, and a script for what it could not settle.
    InTwoSteps,
}

/// How far a search goes. Time has no end: only what is left of each span is kept.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent bounds")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) wire: Wire,
    pub(crate) counting: Counting,
    /// All claims are made by one given value instead of by tokens of their own.
    pub(crate) given: bool,
    pub(crate) clients: u8,
    /// Of each client, one after another.
    pub(crate) claims: u8,
    /// In ticks.
    pub(crate) ttl: u8,
    /// An attempt may be given up while an answer is awaited.
    pub(crate) cancels: bool,
    /// Times that one token is sent to be acquired.
    pub(crate) asks: u8,
    /// Renewals sent of one claim.
    pub(crate) renewals: u8,
    /// Those may be for one tick as well.
    pub(crate) shorter: bool,
    /// Releases sent of one claim.
    pub(crate) releases: u8,
    /// Connections replaced by each client.
    pub(crate) reconnects: u8,
    /// Clients that may crash.
    pub(crate) crashes: u8,
    /// Times that the server may lose its data.
    pub(crate) flushes: u8,
    /// It comes back with a copy of its data from before the first grant, instead of with none.
    pub(crate) older_copy: bool,
    /// Holders that may pass their lease on.
    pub(crate) passes: u8,
    /// Commands and answers under way at once; `None`: any number.
    pub(crate) under_way: Option<usize>,
    /// A command arrives within so many ticks of its send, or never; `None`: whenever it likes.
    pub(crate) latest: Option<u8>,
}

impl Bounds {
    /// The least of everything; what a model needs is added.
    pub(crate) const LEAST: Self = Self {
        wire: Wire::Connections,
        counting: Counting::No,
        given: false,
        clients: 2,
        claims: 1,
        ttl: 3,
        cancels: true,
        asks: 1,
        renewals: 0,
        shorter: false,
        releases: 1,
        reconnects: 0,
        crashes: 0,
        flushes: 0,
        older_copy: false,
        passes: 0,
        under_way: None,
        latest: None,
    };

    /// In words.
    pub(crate) fn words(&self) -> String {
        let mut words = vec![
            format!("{} clients with {} each", self.clients, counted(self.claims, "claim")),
            format!("a ttl of {} ticks", self.ttl),
            format!("up to {}", counted(self.asks, "acquire")),
            counted(self.renewals, "renewal") + if self.shorter { " (of any ttl)" } else { "" },
            counted(self.releases, "release") + " sent of each claim",
        ];
        words.push(match self.wire {
            Wire::Connections => format!("{} for each client, in order on each", counted(self.reconnects + 1, "connection")),
            Wire::Unordered => "commands in any order".to_owned(),
        });
        words.push(match self.latest {
            None => "each command and each answer arrives at any time or never".to_owned(),
            Some(ticks) => {
                format!("each command arrives within {} or never, each answer at any time or never", counted(ticks, "tick"))
            }
        });
        for (count, what) in [(self.crashes, "crash"), (self.flushes, "loss of all data"), (self.passes, "lease passed on")] {
            if count > 0 {
                words.push(format!("up to {count} {what}"));
            }
        }
        words.push(match self.counting {
            Counting::No => "fences left out".to_owned(),
            Counting::InOneStep => "an acquire is one step".to_owned(),
            Counting::InTwoSteps => "an acquire is a transaction, then a script".to_owned(),
        });
        if let Some(most) = self.under_way {
            words.push(format!("at most {most} commands and answers under way at once"));
        }
        if !self.cancels {
            words.push("a wait is given up only after an answer".to_owned());
        }
        words.push("clients pause at will".to_owned());
        words.push("time without end".to_owned());
        words.join("; ")
    }
}
