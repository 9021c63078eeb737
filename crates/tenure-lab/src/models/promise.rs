//! What must hold in every state, and what must come about in one, lest a search has looked at nothing.

use stateright::Property;

use super::protocol::Protocol;
use super::state::{Id, Phase, State};

/// What the protocol promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// At most one claim believes.
    OneHolder,
    /// Who asks after a grant was heard gets a larger fence, and nobody gets one twice.
    FencesRise,
    /// What was cleared up is not in place, and nothing is in place for longer than its own commands have asked for.
    NoOrphan,
    /// A tenure that has ended is not believed again.
    LossIsFinal,
    /// Nobody is told that a lease is gone that nothing has taken away.
    NoFalseLoss,
}

impl Promise {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::OneHolder => "at most one believes to hold the name",
            Self::FencesRise => "who asks after a grant was heard gets a larger fence",
            Self::NoOrphan => "no name is taken for nobody for longer than its last command asked for, nor after its clean-up",
            Self::LossIsFinal => "a tenure that has ended is not believed again",
            Self::NoFalseLoss => "no lease is lost that nothing has taken away",
        }
    }

    fn kept(self, protocol: &Protocol, state: &State) -> bool {
        match self {
            Self::OneHolder => state.believers() <= 1,
            Self::FencesRise => !state.fell,
            Self::NoOrphan => {
                let over = |owner: Id| state.claims[usize::from(owner)].phase == Phase::Over;
                !state.server.owner.is_some_and(over) && state.server.left <= state.server.asked_for || protocol.bounds.given
            }
            Self::LossIsFinal => !state.claims.iter().any(|claim| claim.phase == Phase::Lost && claim.believed > 0),
            Self::NoFalseLoss => !state.robbed,
        }
    }

    pub(crate) fn property(self) -> Property<Protocol> {
        let condition = match self {
            Self::OneHolder => |m: &Protocol, s: &State| Self::OneHolder.kept(m, s),
            Self::FencesRise => |m: &Protocol, s: &State| Self::FencesRise.kept(m, s),
            Self::NoOrphan => |m: &Protocol, s: &State| Self::NoOrphan.kept(m, s),
            Self::LossIsFinal => |m: &Protocol, s: &State| Self::LossIsFinal.kept(m, s),
            Self::NoFalseLoss => |m: &Protocol, s: &State| Self::NoFalseLoss.kept(m, s),
        };
        Property::always(self.words(), condition)
    }
}

/// What must come about, or the model says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A claim is granted.
    Granted,
    /// A renewal is heard in time.
    Renewed,
    /// A holder loses the name by its own clock.
    Lost,
    /// A claim is given up and cleared up.
    Over,
    /// Another holds after a lease has ended that nobody released.
    TakenOver,
    /// Another holds after a client has crashed.
    AfterCrash,
    /// Another holds by a lease that was passed on.
    Adopted,
    /// A fence was told after data was lost.
    AfterFlush,
}

impl Sight {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Renewed => "renewed",
            Self::Lost => "lost",
            Self::Over => "cleared up",
            Self::TakenOver => "taken over after a lease has ended",
            Self::AfterCrash => "taken over after a crash",
            Self::Adopted => "adopted",
            Self::AfterFlush => "granted after data was lost",
        }
    }

    fn there(self, state: &State) -> bool {
        let any = |phase: Phase| state.claims.iter().any(|claim| claim.phase == phase);
        let holding = any(Phase::Holding);
        match self {
            Self::Granted => holding,
            Self::Renewed => state.claims.iter().any(|claim| claim.phase == Phase::Holding && claim.sent > 0 && !claim.awaits),
            Self::Lost => any(Phase::Lost),
            Self::Over => any(Phase::Over),
            Self::TakenOver => any(Phase::Lost) && holding,
            Self::AfterCrash => any(Phase::Dead) && holding,
            Self::Adopted => any(Phase::Passed) && holding && state.passed.is_none(),
            Self::AfterFlush => state.flushes > 0 && state.heard > 0 && holding,
        }
    }

    pub(crate) fn property(self) -> Property<Protocol> {
        let condition = match self {
            Self::Granted => |_: &Protocol, s: &State| Self::Granted.there(s),
            Self::Renewed => |_: &Protocol, s: &State| Self::Renewed.there(s),
            Self::Lost => |_: &Protocol, s: &State| Self::Lost.there(s),
            Self::Over => |_: &Protocol, s: &State| Self::Over.there(s),
            Self::TakenOver => |_: &Protocol, s: &State| Self::TakenOver.there(s),
            Self::AfterCrash => |_: &Protocol, s: &State| Self::AfterCrash.there(s),
            Self::Adopted => |_: &Protocol, s: &State| Self::Adopted.there(s),
            Self::AfterFlush => |_: &Protocol, s: &State| Self::AfterFlush.there(s),
        };
        Property::sometimes(self.words(), condition)
    }
}
