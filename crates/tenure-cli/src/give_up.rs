//! Giving up what was taken when the work cannot begin or has ended, and saying what is true of it.

use tenure::{Guards, Locker, Release};
use tokio::time::timeout;

use crate::exit::Failure;
use crate::show::span;
use crate::take::CLEAN_UP;

/// Releases what was taken before `failure`, and says in it how that went. Nothing is left to the background.
pub(crate) async fn give_up(locker: &Locker, guards: Guards, failure: Failure) -> Failure {
    match left_taken(locker, guards).await {
        // What was told already needs no more words.
        None if failure.text.is_none() => failure,
        None => failure.and("nothing is held any more"),
        Some(left) => failure.and(&left),
    }
}

/// Releases, and says which names may stay taken for how long; `None` where none does.
pub(crate) async fn left_taken(locker: &Locker, guards: Guards) -> Option<String> {
    let lease = span(guards.lease_remaining());
    let (mut left, mut unheard) = (Vec::new(), Vec::new());
    for (name, release) in guards.release().await {
        match release {
            Ok(Release::Released | Release::StillHeld(_) | Release::WasLost) => {}
            Ok(Release::Unknown { until, .. }) => unheard.push(format!("{name:?} may stay taken for up to {}", span(until))),
            Err(error) => left.push(format!("{name:?} could not be released, {error}, and may stay taken for up to {lease}")),
        }
    }
    // A release without an answer is repeated in the background for as long as we are there.
    if timeout(CLEAN_UP, locker.settled()).await.is_err() {
        left.append(&mut unheard);
    }
    if left.is_empty() { None } else { Some(left.join("; ")) }
}
