//! A host with several addresses.

use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

/// How long an address is alone before the next one is tried as well.
const ALONE: Duration = Duration::from_millis(100);

/// Connects to the first of a host's `addresses` that answers. If one is silent for 100 ms, the next one is tried beside it, and
/// what answers later is dropped. For authors of stores.
///
/// # Errors
/// That of the address that failed last, when all have.
pub async fn connect<A, T, F>(addresses: impl IntoIterator<Item = A>, dial: impl Fn(A) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let (mut dialing, mut failed) = (FuturesUnordered::new(), io::ErrorKind::NotFound.into());
    for address in addresses {
        dialing.push(dial(address));
        match timeout(ALONE, dialing.next()).await {
            Ok(Some(Ok(connected))) => return Ok(connected),
            Ok(Some(Err(error))) => failed = error,
            Ok(None) | Err(_) => {}
        }
    }
    while let Some(dialed) = dialing.next().await {
        match dialed {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;

    /// An address that answers after so many ms, refuses, or says nothing.
    async fn dial(address: Option<Result<u64, io::ErrorKind>>) -> io::Result<u64> {
        let Some(answer) = address else { return pending().await };
        let after = answer?;
        sleep(Duration::from_millis(after)).await;
        Ok(after)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_holds_up_no_other() {
        let refused = Some(Err(io::ErrorKind::ConnectionRefused));
        for (addresses, answer, ms) in [
            (vec![None, Some(Ok(1))], Ok(1), 101),
            (vec![refused, Some(Ok(90)), Some(Ok(1))], Ok(90), 90),
            (vec![Some(Ok(150)), None, Some(Ok(9))], Ok(150), 150),
            (vec![None, None, refused, Some(Ok(3_000))], Ok(3_000), 3_200),
            (vec![refused, refused], Err(io::ErrorKind::ConnectionRefused), 0),
            (vec![], Err(io::ErrorKind::NotFound), 0),
        ] {
            let began = Instant::now();
            let connected = connect(addresses.clone(), dial).await.map_err(|error| error.kind());
            assert_eq!((connected, began.elapsed().as_millis()), (answer, ms), "{addresses:?}");
        }
    }
}
