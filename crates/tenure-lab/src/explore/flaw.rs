//! Flaws that are made on purpose, so that the exploration can show its teeth.

use crate::tables::worded;

worded! {
    /// How a store or a clock breaks its contract.
    Flaw {
        ReleasesAnyone = "a release does not look whose lease it is",
        ShortLease = "a lease is a tenth shorter than the answer says",
        ShortClaim = "a lease that is handed over lasts for half of what its place says",
        SlowClock = "the clocks of the holders are five percent slow",
        FenceFallsBack = "the grant counter falls back now and then",
        LosesReleases = "releases are confirmed and not carried out",
        RenewalShortens = "a renewal for a shorter ttl, or one that runs late, shortens the lease",
        SuppliedIsMine = "a supplied token that stands already is success",
        AdoptsAnything = "a take-over does not look whose lease it is",
        EndsNoConnection = "a new connection lets run what the old one had under way, though the store says otherwise",
        KeepsShare = "a holder goes on for all that it was granted after a downgrade",
        ShrinksShare = "a renewal leaves less of a share than there was",
        ReportsOldFence = "a grant is reported with the fence of the one before",
    }
}
