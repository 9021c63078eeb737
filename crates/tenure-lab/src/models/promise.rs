//! What must hold in every state, and what must come about in one, lest a search has looked at nothing.

use crate::tables::worded;

worded! {
    /// What the protocol promises.
    Promise {
        OneHolder = "at most one believes to hold the name",
        FencesRise = "who asks after a grant was heard gets a larger fence",
        NoOrphan = "no name is taken for nobody for longer than its last command asked for, nor after its clean-up",
        LossIsFinal = "a tenure that has ended is not believed again",
        NoFalseLoss = "no lease is lost that nothing has taken away",
        InOrder = "nobody who waits is passed over",
        InTurn = "a process passes a name on among its tasks for no longer than a turn while another waits",
        Served = "one of those who wait is served in time, though every push is lost",
    }
}

worded! {
    /// What must come about, or the model says nothing.
    Sight {
        Granted = "granted",
        Renewed = "renewed",
        Lost = "lost",
        Over = "cleared up",
        TakenOver = "taken over after a lease has ended",
        AfterCrash = "taken over after a crash",
        Orphan = "taken over though it had no end",
        Adopted = "adopted",
        AfterFlush = "granted after data was lost",
        Queued = "queued",
        Pushed = "a push is believed",
        Ignored = "a push is too old",
        Passed = "passed from task to task",
    }
}
