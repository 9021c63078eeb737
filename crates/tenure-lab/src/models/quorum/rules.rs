//! The rules of a model of a quorum, and how far it is searched.

/// Rules of the clients and the nodes.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "a list of independent rules")]
pub(in crate::models) struct Rules {
    /// A fence is handed out when a majority has exactly it; else when a majority has at least it.
    pub(in crate::models) exact: bool,
    /// Where counters disagree there is a second round; else the largest is handed out.
    pub(in crate::models) confirms: bool,
    /// A node takes a fence up only for the owner that holds there.
    pub(in crate::models) compares_owner: bool,
    /// A node takes up no fence below its counter.
    pub(in crate::models) never_lowers: bool,
    /// Validity counts from the first round; else from the second.
    pub(in crate::models) valid_from_first: bool,
    /// A node that has lost its data votes again only when no lease from before can stand, as far as the others know.
    pub(in crate::models) waits: bool,
    /// It asks them when all that counts has arrived there; else at once.
    pub(in crate::models) settles: bool,
    /// An answer that comes later than that does not count.
    pub(in crate::models) in_time: bool,
    /// It counts on from what the others have counted by then.
    pub(in crate::models) counts_on: bool,
    /// That is noted when it asks them until when to wait, and one that waits itself knows it by its note; else those that vote when it
    /// has waited are asked, however few they are.
    pub(in crate::models) notes_counter: bool,
    /// A node that comes back with a copy trusts it: it votes if the copy says that it does.
    pub(in crate::models) trusts_copy: bool,
}

impl Rules {
    pub(in crate::models) const TENURE: Self = Self {
        exact: true,
        confirms: true,
        compares_owner: true,
        never_lowers: true,
        valid_from_first: true,
        waits: true,
        settles: true,
        in_time: true,
        counts_on: true,
        notes_counter: true,
        trusts_copy: false,
    };
}

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Bounds {
    pub(in crate::models) nodes: usize,
    pub(in crate::models) attempts: usize,
    pub(in crate::models) ttl: u8,
    /// Commands that run twice.
    pub(in crate::models) doubles: u8,
    /// Nodes that lose their data.
    pub(in crate::models) restarts: u8,
    /// They come back with any older copy of it; else with nothing.
    pub(in crate::models) copies: bool,
    /// By how much one node has counted further in the beginning.
    pub(in crate::models) lead: u8,
    /// No reply is lost.
    pub(in crate::models) heard: bool,
}

impl Bounds {
    pub(in crate::models) const fn majority(self) -> usize {
        self.nodes / 2 + 1
    }

    pub(in crate::models) fn words(self) -> String {
        let Self { nodes, attempts, ttl, doubles, restarts, copies, lead, heard } = self;
        let times = |n: u8, what: &str| match n {
            0 => format!("no {what}"),
            1 => format!("one {what}"),
            n => format!("{n} times a {what}"),
        };
        let twice = times(doubles, "command that runs twice");
        let empty = times(restarts, if copies { "restart with any older copy" } else { "restart without data" });
        let lost = if heard {
            "commands late or lost without limit, each reply heard"
        } else {
            "commands and replies late or lost without limit"
        };
        let leads = if lead > 0 { format!(", one of them {lead} further") } else { String::new() };
        format!("{nodes} nodes{leads}, {attempts} attempts, a ttl of {ttl} ticks, {twice}, {empty}; {lost}")
    }
}
