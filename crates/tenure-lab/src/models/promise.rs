//! Promises that hold in every state, and sights that must occur in one, lest a search has looked
//! at nothing.

use crate::tables::worded;

worded! {
    /// A promise of the protocol.
    Promise {
        OneHolder = "at most one regards itself as the holder",
        FencesRise = "who asks after a grant was heard gets a larger fence",
        FencesDiffer = "no two grants have the same fence",
        NoOrphan = "no name is taken for nobody for longer than its last command asked for, nor after its clean-up",
        LossIsFinal = "a lease that has ended is not valid again",
        NoFalseLoss = "no lease is lost that nothing has taken away",
        InOrder = "nobody who waits is passed over",
        InTurn = "a process passes a name on among its tasks for no longer than a turn while another waits",
        Served = "one of those who wait is served in time, though every push is lost",
    }
}

worded! {
    /// An event that must occur, or the model says nothing.
    Sight {
        Granted = "granted",
        Renewed = "renewed",
        Lost = "lost",
        Over = "cleared up",
        TakenOver = "taken over after a lease has ended",
        AfterCrash = "taken over after a crash",
        WithoutTtl = "taken over though it had no end",
        Adopted = "adopted",
        AfterFlush = "granted after data was lost",
        Queued = "queued",
        Pushed = "a push is accepted",
        Ignored = "a push is too old",
        Passed = "passed from task to task",
        Confirmed = "counters disagree, and a second round settles it",
    }
}
