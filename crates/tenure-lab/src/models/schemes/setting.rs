//! The clients at the lock, and the faults that may happen.

use super::client::Scheme;
use super::rules::{Faults, Rules, TTL, Tick};

/// Our clients, if there are others: the first two. The third is of the others.
pub(super) const OURS: u8 = 2;

/// Two of ours, and maybe one of the others, who ask once each.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) scheme: Scheme,
    pub(super) rules: Rules,
    /// The scheme of others at the same name, if the last client is one.
    pub(super) others: Option<Scheme>,
    pub(super) clients: u8,
    /// When the run ends.
    pub(super) horizon: Tick,
    /// By how much the wall clock of the last client is ahead.
    pub(super) skew: Tick,
    /// By how much the server's clock is ahead.
    pub(super) clock_ahead: Tick,
    pub(super) faults: Faults,
}

impl Setting {
    pub(super) fn is_other(&self, who: u8) -> bool {
        self.others.is_some() && who >= OURS
    }

    pub(super) fn scheme_of(&self, who: u8) -> &Scheme {
        self.others.as_ref().filter(|_| who >= OURS).unwrap_or(&self.scheme)
    }

    /// How far it goes, in words.
    pub(super) fn bounds(&self) -> String {
        let Self { clients, others, horizon, faults, clock_ahead, skew, .. } = self;
        let theirs = u8::from(others.is_some());
        let mut words = vec![format!("{} clients of ours", clients - theirs)];
        words.extend((theirs > 0).then(|| format!("{theirs} of the others")));
        words.push(format!("each asks once, for {TTL} ticks, within {horizon} ticks"));
        for (count, what) in [
            (faults.crashes, "crash"),
            (faults.lost_replies, "lost reply"),
            (faults.lost_requests, "lost command"),
            (faults.slow, "late command"),
        ] {
            words.extend((count > 0).then(|| format!("up to {count} {what}")));
        }
        words.extend((*clock_ahead != 0).then(|| format!("the server's clock is ahead by {clock_ahead} ticks")));
        words.extend((*skew != 0).then(|| format!("the other's clock is ahead by {skew} ticks")));
        words.push("clients pause at will".to_owned());
        words.join("; ")
    }
}
