//! Dropping a future half-way, as a timeout or a `select!` does.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Does `work`, and drops it when `end` comes, or at its `polls`th poll where that did not finish
/// it.
pub(crate) async fn cut_off<T>(polls: u32, end: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut end, mut left) = (pin!(work), pin!(end), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        if left == 0 || end.as_mut().poll(context).is_ready() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::task::yield_now;

    use super::cut_off;

    async fn yields(times: u32) {
        for _ in 0..times {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_ends_at_its_poll_and_not_before() {
        assert_eq!(cut_off(3, pending(), yields(2)).await, Some(()));
        assert_eq!(cut_off(2, pending(), yields(2)).await, None);
        assert_eq!(cut_off(0, pending(), yields(0)).await, None);
        assert_eq!(cut_off(u32::MAX, ready(()), yields(1)).await, None);
        assert_eq!(cut_off(u32::MAX, ready(()), yields(0)).await, Some(()));
    }
}
