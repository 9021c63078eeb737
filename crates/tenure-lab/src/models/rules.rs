//! The rules of the protocol, and how far a search goes.

use super::state::Wire;
use crate::tables::settings;

settings! {
    /// The rules of tenure. Each is one that can be left out, to see its purpose.
    Rules::TENURE {
        /// Validity counts from the moment the request was sent, not from the reply.
        valid_from_send: bool = true,
        /// Only the answer to the last request counts.
        matches_answers: bool = true,
        /// An answer that comes after the deadline changes nothing.
        deadline_is_final: bool = true,
        /// A renewal extends only what is in place.
        renewal_compares: bool = true,
        /// A renewal makes nothing that is gone.
        renewal_never_creates: bool = true,
        /// A renewal never shortens a lease.
        renewal_never_shortens: bool = true,
        /// An acquire that finds its own token in place sets the full ttl again.
        repeat_extends: bool = true,
        /// A release deletes only its own token.
        release_compares: bool = true,
        /// A token whose release was sent is never acquired again, nor queued.
        one_way: bool = true,
        /// An attempt that is given up is followed by a release.
        clears_up: bool = true,
        /// A rebuilt connection first has the server end its predecessor.
        kills_predecessor: bool = true,
        /// If commands may run late, the clean-up of a token whose acquire was not heard is
        /// repeated until its ttl has passed.
        repeats_clean_up: bool = true,
        /// So is the release of a tenure of such a token.
        repeats_release: bool = true,
        /// The last of these clean-ups is sent after the ttl has passed, not only answered.
        last_clean_up_is_late: bool = true,
        /// A supplied token is busy when it is found in place.
        supplied_is_busy: bool = true,
        /// A supplied token is not released when the lease may have ended by the time the release
        /// runs.
        supplied_released_in_time: bool = true,
        /// A client that passes a lease on is no longer its holder.
        passing_ends_validity: bool = true,
        /// Adoption takes over only from the owner that it was given.
        adoption_compares: bool = true,
        /// The counter is raised to the server's time through a new connection.
        raises: bool = true,
        /// A grant that is not above the largest counter seen is not handed out.
        compares_fences: bool = true,
        /// A pushed grant is accepted only if its counter is above the largest `grant_seq` seen.
        compares_marks: bool = true,
        /// A heartbeat looks after an entry of the queue and makes none.
        keep_never_joins: bool = true,
        /// A token that was served and not taken up is used up; its client queues again under a new
        /// one.
        served_once: bool = true,
        /// A grant that is handed over lasts for the handoff ttl of its own entry.
        own_handoff_ttl: bool = true,
        /// A pushed grant is accepted from the last answered heartbeat, not from the push.
        accepts_from_heartbeat: bool = true,
        /// A client that takes a name that others wait for hands it to the first of them, and
        /// queues.
        yields: bool = true,
        /// A heartbeat serves a name that is free, and tells its own owner that it was served.
        heartbeat_serves: bool = true,
        /// When the index of hand-overs is used up, the lease goes back to the server.
        index_ends: bool = true,
        /// A lease whose release was sent is passed to nobody.
        release_is_last: bool = true,
        /// A task that is passed a lease is valid until the deadline that stood, not for a ttl from
        /// then on.
        deadline_stands: bool = true,
        /// When its turn is over, the lease goes back to the server.
        takes_turns: bool = true,
        /// A turn counts from the send of what was granted, not from the answer.
        turn_from_send: bool = true,
        /// A renewal begins no other turn.
        one_turn_a_grant: bool = true,
    }
}

/// How fences are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Counting {
    /// Not modelled.
    No,
    /// Every acquire is one step at the server, as in memory.
    InOneStep,
    /// As on Redis: a transaction first, and a script for what it could not settle.
    InTwoSteps,
}

settings! {
    /// How far a search goes. Time has no end: only what is left of each span is kept.
    Bounds::LEAST {
        /// Clients may wait in a queue; the first of them holds at the beginning.
        queued: bool = false,
        wire: Wire = Wire::Connections,
        counting: Counting = Counting::No,
        /// All attempts are made by one supplied token instead of by tokens of their own.
        supplied: bool = false,
        clients: u8 = 2,
        /// Of each client, one after another.
        attempts: u8 = 1,
        /// In ticks, as all spans.
        ttl: u8 = 3,
        /// How long a grant lasts that was handed over, until it is renewed.
        handoff_ttl: u8 = 2,
        /// How long an entry of the queue lasts without a heartbeat.
        entry_ttl: u8 = 2,
        /// A pushed grant is accepted; else it is a hint, which tells nothing that a heartbeat does
        /// not.
        pushes: bool = false,
        /// An attempt may be given up while an answer is awaited.
        cancels: bool = true,
        /// Times that one token is sent to be acquired, and to be queued.
        asks: u8 = 1,
        /// Heartbeats sent for one entry.
        beats: u8 = 0,
        /// Renewals sent of one attempt.
        renewals: u8 = 0,
        /// Those may be for one tick as well.
        shorter: bool = false,
        /// Releases sent of one attempt.
        releases: u8 = 1,
        /// Connections replaced by each client.
        reconnects: u8 = 0,
        /// Connections that are lost with all that is on them.
        cuts: u8 = 0,
        /// Clients that may crash.
        crashes: u8 = 0,
        /// Times that the server may lose its data.
        flushes: u8 = 0,
        /// It comes back with a copy of its data from before the first grant, instead of with none.
        older_copy: bool = false,
        /// Holders that may pass their lease on.
        passes: u8 = 0,
        /// How many tasks may have one lease under one counter.
        tasks: u8 = 1,
        /// For how long they may pass it on.
        turn: u8 = 0,
        /// Grants by the server.
        grants: u8 = u8::MAX,
        /// If everybody who lives acts at once from now on, one who waits is served within so many
        /// ticks.
        served_within: u8 = 0,
        /// Commands and answers under way at once; `None`: any number.
        under_way: Option<usize> = None,
        /// A command arrives within so many ticks of its send, or never; `None`: whenever it likes.
        latest: Option<u8> = None,
    }
}

impl Bounds {
    /// The least of a queue.
    pub(crate) const QUEUED: Self = Self { queued: true, clients: 3, pushes: true, beats: 1, cancels: false, ..Self::LEAST };

    /// In words.
    pub(crate) fn words(&self) -> String {
        let Self { queued, clients, ttl, handoff_ttl, entry_ttl, .. } = *self;
        let (holds, spans) = if queued {
            (", of which the first holds", format!(", a handoff ttl of {handoff_ttl}, entries that last {entry_ttl}"))
        } else {
            ("", String::new())
        };
        let mut words = vec![
            format!("{clients} clients with {} each{holds}", counted(self.attempts, "attempt")),
            format!("a ttl of {ttl} ticks{spans}"),
            format!("up to {}", counted(self.asks, "acquire")),
        ];
        words.extend(queued.then(|| counted(self.beats, "heartbeat")));
        words.push(counted(self.renewals, "renewal") + if self.shorter { " (of any ttl)" } else { "" });
        words.push(counted(self.releases, "release") + " sent of each attempt");
        words.extend(if queued { self.queued_traffic() } else { self.traffic() });
        for (count, what) in [
            (self.crashes, "crash"),
            (self.cuts, "connection lost with all that is on it"),
            (self.flushes, "loss of all data"),
            (self.passes, "lease passed on"),
        ] {
            words.extend((count > 0).then(|| format!("up to {count} {what}")));
        }
        words.extend(match self.counting {
            Counting::No if queued => None,
            Counting::No => Some("fences left out".to_owned()),
            Counting::InOneStep => Some("an acquire is one step".to_owned()),
            Counting::InTwoSteps => Some("an acquire is a transaction, then a script".to_owned()),
        });
        words.extend((self.grants < u8::MAX).then(|| format!("up to {} grants", self.grants)));
        words.extend(self.under_way.map(|most| format!("at most {most} commands and answers under way at once")));
        words.extend((!queued && !self.cancels).then(|| "a wait is given up only after an answer".to_owned()));
        words.push("clients pause at will; time without end".to_owned());
        words.join("; ")
    }

    fn traffic(&self) -> Vec<String> {
        let order = match self.wire {
            Wire::Connections => format!("{} for each client, in order on each", counted(self.reconnects + 1, "connection")),
            Wire::Unordered => "commands in any order".to_owned(),
        };
        let arrival = match self.latest {
            None => "each command and each answer arrives at any time or never".to_owned(),
            Some(ticks) => {
                format!("each command arrives within {} or never, each answer at any time or never", counted(ticks, "tick"))
            }
        };
        vec![order, arrival]
    }

    fn queued_traffic(&self) -> Vec<String> {
        let mut words = vec![match self.latest {
            None => "commands in order for each client".to_owned(),
            Some(ticks) => format!("commands in any order within {} or never", counted(ticks, "tick")),
        }];
        words.push("each answer at any time or never".to_owned());
        words.extend(self.pushes.then(|| "each push at any time, more than once or never".to_owned()));
        if self.tasks > 1 {
            words.push(format!("{} tasks under one counter, a turn of {}", self.tasks, counted(self.turn, "tick")));
        }
        words
    }
}

/// `1 attempt`, `2 attempts`.
fn counted(count: u8, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
