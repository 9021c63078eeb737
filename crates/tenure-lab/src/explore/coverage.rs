//! How often each fault and each path of the core occurred: an exploration that never met a path
//! says nothing of it.

use std::fmt;

use crate::tables::worded;

worded! {
    /// A fault or a path that is counted. The faults that may meet a command or a push stand
    /// together, from `Slow` to `PushedTwice`.
    Met {
        Grant = "grants",
        Queued = "heartbeats of places",
        Served = "waiters served",
        Pushed = "pushes accepted",
        Passed = "leases passed on without the store",
        Adoption = "adoptions",
        TimedOut = "waits that timed out",
        NoAnswer = "waits that ended in an outage",
        Refusal = "refusals",
        CancelledWait = "cancelled waits",
        CancelledRelease = "cancelled releases",
        Renewal = "renewals that prolong a lease",
        Jeopardy = "jeopardies",
        LostExpired = "losses: expired",
        LostGone = "losses: gone",
        LostMaxHold = "losses: longest hold",
        LostReleased = "losses: given up",
        Released = "releases: released",
        WasLost = "releases: was lost",
        UnknownRelease = "releases: unknown",
        Dropped = "guards dropped",
        HandedOn = "leases handed on",
        Extended = "extensions",
        NotExtended = "extensions without effect",
        Downgraded = "downgrades",
        NotDowngraded = "downgrades without effect",
        CancelledDowngrade = "cancelled downgrades",
        Reentered = "tenures entered again",
        Together = "names taken together",
        Compared = "claims compared with the store",
        Verified = "verifications",
        Written = "writes taken",
        RefusedWrite = "stale writes refused",
        CleanUp = "clean-ups",
        LateCommand = "commands that ran late",
        Killed = "commands ended with their connection",
        Slow = "fault: slow",
        LostRequest = "fault: request lost",
        LostReply = "fault: reply lost",
        Twice = "fault: ran twice",
        FailedBefore = "fault: error before it ran",
        FailedAfter = "fault: error after it ran",
        Reset = "fault: connection reset",
        Unavailable = "fault: unavailable",
        Abstained = "fault: abstained",
        Forbidden = "fault: forbidden",
        Partial = "fault: batch answered in part",
        Panicked = "fault: panic in the store",
        LostPush = "fault: push lost",
        PushedTwice = "fault: pushed twice",
        Cut = "fault: commands cut off",
        Stalled = "fault: commands at a stopped server",
        Crash = "fault: process killed",
        Nap = "fault: process stopped",
        Flush = "fault: data lost",
        JumpForward = "fault: clock forward",
        JumpBack = "fault: clock back",
    }
}

/// The counts of one run or of many.
#[derive(Clone, PartialEq, Eq)]
pub struct Coverage([u64; Met::ALL.len()]);

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
        Met::ALL.iter().map(|met| met.words()).zip(self.0)
    }
}

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Met::ALL.len()])
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
