//! Terms of a lease: its ttl, and the part of it for which the holder may go on.
//!
//! [`Terms::validity`] counts from the moment the request was sent, because the store may have
//! executed it at once. Clock drift, the resolution of clocks and the safety margin are taken off.

use std::time::Duration;

use crate::store::Features;
use crate::{Error, ErrorKind, format_duration};

/// Terms on which a lease is requested and held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// Part of every second by which clocks may run apart.
    pub(crate) drift: f64,
    /// Time to stop work, between the end of the validity and the end of the lease.
    pub(crate) safety_margin: Duration,
    pub(crate) renews: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    /// Time for which the name stays taken by nobody after its release.
    pub(crate) linger: Duration,
    /// The lease may go from task to task of this process without the store, which then keeps the token
    /// and the fence of the first.
    pub(crate) hands_on: bool,
}

impl Terms {
    /// Makes the terms of a lease that is renewed for as long as its holder keeps it.
    pub(crate) const fn new(ttl: Duration, drift: f64) -> Self {
        let (safety_margin, min_hold, linger) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { ttl, drift, safety_margin, renews: true, max_hold: None, min_hold, linger, hands_on: true }
    }

    /// Resolution of clocks, which are read in whole milliseconds at either end.
    const GRAIN: Duration = Duration::from_millis(2);

    /// Time for which a lease of `ttl` certainly stands at the store, counted from the *sending* of
    /// its request, unless it is broken.
    pub(super) fn certain(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl.mul_f64(self.drift)).saturating_sub(Self::GRAIN)
    }

    /// Returns the terms of a handed-over lease until its first renewal.
    pub(crate) fn for_handoff(self, handoff_ttl: Duration) -> Self {
        Self { safety_margin: handoff_ttl / 10, ..self }
    }

    /// Time for which the holder of a lease of `ttl` may go on, counted from the *sending* of its
    /// request.
    pub(crate) fn validity(&self, ttl: Duration) -> Duration {
        self.certain(ttl).saturating_sub(self.safety_margin)
    }

    /// Refuses settings under which no lease could be kept.
    pub(crate) fn check(&self, features: &Features) -> Result<(), Error> {
        let Self { ttl, safety_margin: margin, min_hold, .. } = *self;
        check_ttl(features, ttl)?;
        check_span("shortest hold", min_hold)?;
        check_span("linger", self.linger)?;
        // A renewal must have time to fail once before work has to stop.
        let timeout = features.limit(ttl);
        let needed = if self.renews { ttl / 3 + timeout } else { timeout };
        let validity = self.validity(ttl);
        if validity <= needed {
            let [ttl, validity, margin, timeout, needed] = [ttl, validity, margin, timeout, needed].map(format_duration);
            let what = format!(
                "a ttl of {ttl} is too short: it is valid for {validity} (less clock drift and the safety margin of {margin}), \
                 and a renewal with its timeout of {timeout} needs {needed}"
            );
            return Err(
                Error::invalid(what).with_hint("use a longer ttl, a shorter operation timeout or a smaller safety margin")
            );
        }
        match self.max_hold {
            Some(max) if max.is_zero() => {
                Err(Error::invalid("a longest hold of zero allows no work").with_hint("leave max-hold out or raise it"))
            }
            Some(max) if max < min_hold => {
                let [max, min] = [max, min_hold].map(format_duration);
                let what = format!("the longest hold of {max} is shorter than the shortest of {min}");
                Err(Error::invalid(what).with_hint("raise max-hold or lower min-hold"))
            }
            _ if features.process_bound && !(min_hold.is_zero() && self.linger.is_zero()) => Err(not_after_release()),
            _ => Ok(()),
        }
    }
}

/// A store that cannot keep a name taken without a holder.
fn not_after_release() -> Error {
    let what = "a name of this store cannot stay taken after its release: its lease ends with the process that has it";
    Error::new(ErrorKind::Unsupported, what).with_hint("leave min-hold out, or use another store")
}

/// Longest span. Longer ones overflow the arithmetic of some stores.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Refuses a ttl that the store cannot keep.
pub(crate) fn check_ttl(features: &Features, ttl: Duration) -> Result<(), Error> {
    let min = features.min_ttl;
    if ttl < min {
        let [ttl, min] = [ttl, min].map(format_duration);
        return Err(
            Error::invalid(format!("a ttl of {ttl} is shorter than the {min} this store can keep")).with_hint("use a longer ttl")
        );
    }
    check_span("ttl", ttl)
}

pub(crate) fn check_span(what: &str, span: Duration) -> Result<(), Error> {
    if span > CENTURY {
        let fix = "use a shorter one: renewal keeps the lock for as long as the holder lives";
        return Err(Error::invalid(format!("a {what} of {span:?} is longer than a century")).with_hint(fix));
    }
    Ok(())
}
