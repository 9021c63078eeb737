//! What must hold in every state, and what must come about in one, lest a search has looked at nothing.

use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Range;

use stateright::{Model, Property};

use super::story::{Story, client_name};
use super::traffic::Id;

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
    /// Nobody holds by a grant for which one who waited was passed over.
    InOrder,
    /// A process does not pass a name from task to task for ever while another waits.
    InTurn,
    /// One of those who wait gets the name in time, whatever message is lost.
    Served,
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
            Self::InOrder => "nobody who waits is passed over",
            Self::InTurn => "a process passes a name on among its tasks for no longer than a turn while another waits",
            Self::Served => "one of those who wait is served in time, though every push is lost",
        }
    }

    fn property<P: Subject>(self) -> Property<P> {
        // A property has no room for what it is of.
        let condition = match self {
            Self::OneHolder => |m: &P, s: &P::State| m.keeps(s, Self::OneHolder),
            Self::FencesRise => |m: &P, s: &P::State| m.keeps(s, Self::FencesRise),
            Self::NoOrphan => |m: &P, s: &P::State| m.keeps(s, Self::NoOrphan),
            Self::LossIsFinal => |m: &P, s: &P::State| m.keeps(s, Self::LossIsFinal),
            Self::NoFalseLoss => |m: &P, s: &P::State| m.keeps(s, Self::NoFalseLoss),
            Self::InOrder => |m: &P, s: &P::State| m.keeps(s, Self::InOrder),
            Self::InTurn => |m: &P, s: &P::State| m.keeps(s, Self::InTurn),
            Self::Served => |m: &P, s: &P::State| m.keeps(s, Self::Served),
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
    /// Another holds what had no end, and whose owner was dead.
    Orphan,
    /// Another holds by a lease that was passed on.
    Adopted,
    /// A fence was told after data was lost.
    AfterFlush,
    /// A claim has a place.
    Queued,
    /// A pushed grant is believed.
    Pushed,
    /// A push comes that must not be believed.
    Ignored,
    /// A task holds by the lease of another.
    Passed,
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
            Self::Orphan => "taken over though it had no end",
            Self::Adopted => "adopted",
            Self::AfterFlush => "granted after data was lost",
            Self::Queued => "queued",
            Self::Pushed => "a push is believed",
            Self::Ignored => "a push is too old",
            Self::Passed => "passed from task to task",
        }
    }

    fn property<P: Subject>(self) -> Property<P> {
        let condition = match self {
            Self::Granted => |m: &P, s: &P::State| m.sees(s, Self::Granted),
            Self::Renewed => |m: &P, s: &P::State| m.sees(s, Self::Renewed),
            Self::Lost => |m: &P, s: &P::State| m.sees(s, Self::Lost),
            Self::Over => |m: &P, s: &P::State| m.sees(s, Self::Over),
            Self::TakenOver => |m: &P, s: &P::State| m.sees(s, Self::TakenOver),
            Self::AfterCrash => |m: &P, s: &P::State| m.sees(s, Self::AfterCrash),
            Self::Orphan => |m: &P, s: &P::State| m.sees(s, Self::Orphan),
            Self::Adopted => |m: &P, s: &P::State| m.sees(s, Self::Adopted),
            Self::AfterFlush => |m: &P, s: &P::State| m.sees(s, Self::AfterFlush),
            Self::Queued => |m: &P, s: &P::State| m.sees(s, Self::Queued),
            Self::Pushed => |m: &P, s: &P::State| m.sees(s, Self::Pushed),
            Self::Ignored => |m: &P, s: &P::State| m.sees(s, Self::Ignored),
            Self::Passed => |m: &P, s: &P::State| m.sees(s, Self::Passed),
        };
        Property::sometimes(self.words(), condition)
    }
}

/// A protocol with what it promises.
pub(crate) trait Subject:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Copy + Debug + PartialEq + Send + Sync>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// What a step is that lets a tick pass.
    const TICK: Self::Action;

    /// How many clients there are, and how many claims each makes. Claims are numbered through, client by client.
    fn claimants(&self) -> (u8, u8);

    fn client_of(&self, id: Id) -> usize {
        usize::from(id / self.claimants().1)
    }

    fn claims_of(&self, client: usize) -> Range<Id> {
        let (_, claims) = self.claimants();
        let first = u8::try_from(client).expect("clients are few") * claims;
        first..first + claims
    }

    fn all_claims(&self) -> Id {
        let (clients, claims) = self.claimants();
        clients * claims
    }

    /// `A`, and `A2` for its second claim.
    fn name_of(&self, id: Id) -> String {
        let (client, nth) = (client_name(self.client_of(id)), id % self.claimants().1);
        if nth == 0 { client } else { format!("{client}{}", nth + 1) }
    }

    /// What must hold in every state that is reached.
    fn promises(&self) -> &[Promise];

    /// What must hold in one of them.
    fn sights(&self) -> &[Sight];

    fn keeps(&self, state: &Self::State, promise: Promise) -> bool;

    fn sees(&self, state: &Self::State, sight: Sight) -> bool;

    /// Tells `actions`, which end in a broken `promise`.
    fn told(&self, actions: &[Self::Action], promise: Promise) -> Story;

    fn all_properties(&self) -> Vec<Property<Self>> {
        let sights = self.sights().iter().map(|sight| sight.property());
        self.promises().iter().map(|promise| promise.property()).chain(sights).collect()
    }
}
