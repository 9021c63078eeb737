//! Connections that a pool of the application lends, for one statement each.

use std::time::Duration;

use tenure::Error;
use tokio::time::{Instant, timeout_at};

use super::Failed;

/// A connection that a pool has lent. Dropping it gives it back.
pub(crate) trait Lent: Send + 'static {
    /// Closes it: it is in a state in which nobody else can use it.
    fn discard(self);
}

/// A lent connection, which is closed if it is dropped while a statement is under way.
pub(crate) struct Borrowed<L: Lent> {
    lent: Option<L>,
    is_busy: bool,
}

impl<L: Lent> Borrowed<L> {
    /// The connection, for work that may leave it in an unknown state until [`Borrowed::give_back`].
    pub(crate) fn client(&mut self) -> Option<&mut L> {
        self.is_busy = true;
        self.lent.as_mut()
    }

    /// Gives it back. Its state is as it was.
    pub(crate) fn give_back(mut self) {
        self.is_busy = false;
    }
}

impl<L: Lent> Drop for Borrowed<L> {
    fn drop(&mut self) {
        if self.is_busy {
            self.lent.take().into_iter().for_each(L::discard);
        }
    }
}

/// Time by which a pool has to lend a connection for a statement that is to be sent by `end`: its error
/// is to be there before the caller gives up.
pub(crate) fn lend_by(end: Instant) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now).min(Duration::from_secs(30)) * 7 / 8
}

/// Waits for a connection. `failed` translates the pool's error. Fails if the time is over, and lets other
/// tasks run: a pool may lend dead connections, again and again, without a wait.
pub(crate) async fn lend<L: Lent, E>(
    by: Instant,
    lending: impl Future<Output = Result<L, E>>,
    failed: impl FnOnce(E) -> Error,
) -> Result<Borrowed<L>, Failed> {
    let began = Instant::now();
    let late = |_| {
        let waited = by.saturating_duration_since(began);
        Error::overloaded(format!("the pool lent no connection within {waited:?}"))
            .with_hint("give the pool more connections, or the locks one of their own")
    };
    let lending = async {
        tokio::task::yield_now().await;
        lending.await
    };
    let lent = timeout_at(by, lending).await.map_err(late).and_then(|lent| lent.map_err(failed));
    // Nothing was sent, so nothing is open.
    let lent = lent.map_err(|error| Failed { error, answered: true, is_over: false })?;
    Ok(Borrowed { lent: Some(lent), is_busy: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dead;

    impl Lent for Dead {
        fn discard(self) {}
    }

    /// Its caller throws each of them away and asks for the next.
    #[tokio::test]
    async fn a_pool_that_lends_dead_connections_is_left_in_time() {
        let by = Instant::now() + Duration::from_millis(20);
        for _ in 0..50_000_000 {
            let lent = lend(by, std::future::ready(Ok::<_, Error>(Dead)), |error| error).await;
            if let Err(failed) = lent {
                assert!(failed.answered && Instant::now() >= by, "{failed:?}");
                return;
            }
        }
        panic!("it goes on for ever");
    }
}
