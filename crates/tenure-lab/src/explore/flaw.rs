//! What is broken on purpose, so that the exploration can show its teeth.

/// A store or a clock that breaks its contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    /// Everything is as it should be.
    #[default]
    None,
    /// A renewal does not look whose lease it is.
    RenewsAnyone,
    /// A release does not look whose lease it is.
    ReleasesAnyone,
    /// A lease is a tenth shorter than it was told.
    ShortLease,
    /// A lease that is handed over lasts for half of what its place says.
    ShortClaim,
    /// The clocks of the holders are five percent slow.
    SlowClock,
    /// The grant counter falls back now and then.
    FenceFallsBack,
    /// Releases are confirmed and not carried out.
    LosesReleases,
    /// A renewal for a shorter ttl, or one that runs late, shortens the lease.
    RenewalShortens,
    /// An acquisition that runs again, late, shortens the lease that a renewal has prolonged.
    RepeatShortens,
    /// A renewal brings back what lingers.
    RenewsLinger,
    /// A value that was given and stands already is success.
    GivenIsMine,
    /// A take-over does not look whose lease it is.
    AdoptsAnything,
    /// A new connection lets run what the old one had under way, though the store says otherwise.
    EndsNoConnection,
    /// A holder goes on for all that it was granted after a downgrade.
    KeepsShare,
    /// A renewal leaves less of a share than there was.
    ShrinksShare,
    /// A grant is told with the fence of the one before.
    TellsOldFence,
}

impl Flaw {
    /// What is found within some hundred seeds. The others need many thousands: a late command at a rare moment.
    pub const ALL: [Self; 13] = [
        Self::ReleasesAnyone,
        Self::ShortLease,
        Self::ShortClaim,
        Self::SlowClock,
        Self::FenceFallsBack,
        Self::LosesReleases,
        Self::RenewalShortens,
        Self::GivenIsMine,
        Self::AdoptsAnything,
        Self::EndsNoConnection,
        Self::KeepsShare,
        Self::ShrinksShare,
        Self::TellsOldFence,
    ];
}
