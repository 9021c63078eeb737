//! How often each fault and each path of the core occurred: an exploration that never met a path says nothing of it.

use std::fmt;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Met { $($(#[$doc])* $name,)* }

        const TEXTS: &[&str] = &[$($text,)*];
    };
}

counters! {
    /// A tenure began.
    Grant = "grants",
    /// A place was made, or looked after.
    Queued = "heartbeats of places",
    /// A waiter was handed the name.
    Served = "waiters served",
    /// A push was believed.
    Believed = "pushes believed",
    /// A lease passed from task to task.
    Passed = "leases passed on without the store",
    /// A lease was taken over.
    Adoption = "adoptions",
    /// A wait ended while another held.
    TimedOut = "waits that timed out",
    /// A wait ended without an answer.
    NoAnswer = "waits that ended in an outage",
    /// The store refused.
    Refusal = "refusals",
    /// An acquisition was dropped.
    CancelledWait = "cancelled waits",
    /// A release was dropped.
    CancelledRelease = "cancelled releases",
    /// A renewal moved a deadline.
    Renewal = "renewals believed",
    /// A renewal was overdue.
    Jeopardy = "jeopardies",
    /// Lost by the clock.
    LostExpired = "losses: expired",
    /// Lost by the store's word.
    LostGone = "losses: gone",
    /// Lost by its longest hold.
    LostMaxHold = "losses: longest hold",
    /// Ended by a release of all.
    LostGivenUp = "losses: given up",
    /// A release said so.
    Released = "releases: released",
    /// A release found nothing.
    WasLost = "releases: was lost",
    /// A release had no answer.
    UnknownRelease = "releases: unknown",
    /// A guard was dropped.
    Dropped = "guards dropped",
    /// A lease was handed on.
    HandedOn = "leases handed on",
    /// An extension was granted.
    Extended = "extensions",
    /// An extension was not.
    NotExtended = "extensions without effect",
    /// A part of a share was kept.
    Downgraded = "downgrades",
    /// A downgrade had an error or no answer.
    NotDowngraded = "downgrades without effect",
    /// A downgrade was dropped.
    CancelledDowngrade = "cancelled downgrades",
    /// A second guard stood for a tenure.
    Reentered = "tenures entered again",
    /// Two names were taken, all or nothing.
    Together = "names taken together",
    /// A claim was compared with what the store keeps.
    Compared = "claims compared with the store",
    /// The store was asked whether a tenure stands.
    Verified = "verifications",
    /// The resource took a write.
    Written = "writes taken",
    /// The resource refused a stale holder.
    RefusedWrite = "stale writes refused",
    /// A token was released that nobody was granted.
    CleanUp = "clean-ups",
    /// A command ran after its caller had given it up.
    LateCommand = "commands that ran late",
    /// A command never ran because its connection was ended.
    Killed = "commands ended with their connection",
    /// A command took long on its way.
    Slow = "fault: slow",
    /// A request was lost.
    LostRequest = "fault: request lost",
    /// A reply was lost.
    LostReply = "fault: reply lost",
    /// A command ran twice.
    Twice = "fault: ran twice",
    /// An error before anything was done.
    FailedBefore = "fault: error before it ran",
    /// An error after it was done.
    FailedAfter = "fault: error after it ran",
    /// An error while it was under way.
    Reset = "fault: connection reset",
    /// The store said that it cannot serve.
    Unavailable = "fault: unavailable",
    /// The store took no part.
    Abstained = "fault: abstained",
    /// The store withdrew a permission.
    Forbidden = "fault: forbidden",
    /// Some leases of a batch had an error or no answer.
    Partial = "fault: batch answered in part",
    /// The store's code panicked.
    Panicked = "fault: panic in the store",
    /// A push was lost.
    LostPush = "fault: push lost",
    /// A push came twice.
    PushedTwice = "fault: pushed twice",
    /// A process was cut off.
    Cut = "fault: commands cut off",
    /// The server stood still.
    Stalled = "fault: commands at a stopped server",
    /// A process was killed.
    Crash = "fault: process killed",
    /// A process was stopped for a while.
    Nap = "fault: process stopped",
    /// The store's data was lost, or a name in it.
    Flush = "fault: data lost",
    /// The server's clock jumped forward.
    JumpForward = "fault: clock forward",
    /// The server's clock jumped back.
    JumpBack = "fault: clock back",
}

/// The counts of one run or of many.
#[derive(Clone, PartialEq, Eq)]
pub struct Coverage([u64; TEXTS.len()]);

impl Coverage {
    pub(super) fn met(&mut self, what: Met) {
        self.0[what as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// How often it occurred.
    pub fn of(&self, what: Met) -> u64 {
        self.0[what as usize]
    }

    /// Everything that is counted, in words.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        TEXTS.iter().copied().zip(self.0)
    }
}

impl Default for Coverage {
    fn default() -> Self {
        Self([0; TEXTS.len()])
    }
}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.all()).finish()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all().try_for_each(|(what, count)| writeln!(f, "{count:>12}  {what}"))
    }
}
