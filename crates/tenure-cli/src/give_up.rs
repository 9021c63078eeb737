//! Giving up what was taken when the work cannot begin or has ended, and saying what is true of it.

use std::time::Duration;

use futures_util::future::join_all;
use tenure::{Guards, Locker, Name, Owner, ReleaseOutcome, format_duration};
use tokio::time::timeout;

use crate::exit::Failure;

/// How long a clean-up may hold up our end.
const CLEAN_UP: Duration = Duration::from_secs(1);

/// Releases what was taken before `failure`, and says in it how that went. Nothing is left to the
/// background. No work has begun, so no shortest hold is kept.
pub(crate) async fn give_up(locker: &Locker, guards: Guards, failure: Failure) -> Failure {
    match left_taken(locker, guards, true).await {
        Some(left) => failure.and(&left),
        // Its message was printed before: add nothing.
        None if failure.text.is_none() => failure,
        None => failure.and("nothing is held any more"),
    }
}

/// Releases, and says which names may stay taken for how long; `None` where none does.
pub(crate) async fn left_taken(locker: &Locker, guards: Guards, unused: bool) -> Option<String> {
    let lease = format_duration(guards.lease_remaining());
    let tokens: Vec<_> = guards.iter().map(|guard| (guard.name().clone(), guard.token().clone())).collect();
    let (mut left, mut unheard) = (Vec::new(), Vec::new());
    let releases = if unused { guards.release_unused().await } else { guards.release().await };
    for (name, release) in releases {
        match release {
            Ok(ReleaseOutcome::Released | ReleaseOutcome::StillHeld(_) | ReleaseOutcome::WasLost) => {}
            Ok(ReleaseOutcome::Unknown { until, .. }) => unheard.push((name, until)),
            Err(error) => left.push(format!("{name:?} may stay taken for up to {lease}, as it could not be released: {error}")),
        }
    }
    // A release without an answer is repeated in the background for as long as we are there, but
    // for a token that was given.
    let settled = settle(locker).await;
    // A release in the background also ends when the store refuses it, so look at the store.
    let looks = unheard.into_iter().map(|(name, until)| {
        let token = tokens.iter().find(|(taken, _)| *taken == name).map(|(_, token)| token);
        async move { (!settled || may_hold(locker, &name, token).await).then_some((name, until)) }
    });
    let unheard = join_all(looks).await.into_iter().flatten();
    left.extend(unheard.map(|(name, until)| format!("{name:?} may stay taken for up to {}", format_duration(until))));
    if left.is_empty() { None } else { Some(left.join("; ")) }
}

/// Lets what is under way in the background be done before the process ends. Returns whether it is.
pub(crate) async fn settle(locker: &Locker) -> bool {
    timeout(CLEAN_UP, locker.flush_releases()).await.is_ok()
}

/// Whether the store keeps the name for this token, as far as it says.
async fn may_hold(locker: &Locker, name: &Name, token: Option<&Owner>) -> bool {
    match timeout(CLEAN_UP, locker.inspect(name)).await {
        Ok(Ok(entry)) => entry.is_some_and(|entry| entry.holders.iter().any(|holder| Some(&holder.owner) == token)),
        Ok(Err(_)) | Err(_) => true,
    }
}
