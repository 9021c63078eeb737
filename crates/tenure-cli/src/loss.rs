//! The words for a lock that was lost.

use tenure::{EndReason, Guards, Name};

use crate::exit::{Failure, LOST};

/// Why a lock was lost, with the last that the store has said.
pub(crate) fn why_lost(guards: &Guards, name: &Name, loss: EndReason) -> String {
    let of_it = guards.iter().find(|guard| guard.name() == name);
    loss.because_of(of_it.and_then(tenure::Guard::renewal_error).as_ref())
}

/// The failure of a lock that was lost before its command was started.
pub(crate) fn lost_before(name: &Name, loss: &str) -> Failure {
    Failure::new(LOST, format!("the lock {name:?} was lost before the command was started: {loss}; nothing was run"))
}
