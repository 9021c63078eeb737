//! Servers that all take writes, on a real Galera cluster.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure::{Error, ErrorKind};
use tenure_sql::mysql::Options;

use crate::requests::{busy, granted, owner, request};
use crate::{PATIENCE, Server};

/// Opens a table as soon as its cluster is ready.
async fn settled(url: &str) -> Result<Arc<dyn Store>, Error> {
    let settled = async {
        loop {
            match Options::parse(url).unwrap().open().await {
                Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(50)).await,
                outcome => return outcome,
            }
        }
    };
    tokio::time::timeout(3 * PATIENCE, settled).await.expect("the cluster is never ready")
}

/// A lease ends by the clock of the server that is asked, so a server whose clock is ahead would grant what another holds.
#[tokio::test]
async fn writers_with_different_clocks_are_refused() {
    if Server::is_mysql() {
        return;
    }
    let first = Server::builder().member(None).start();
    let second = Server::builder().shifted_clock().member(Some(&first)).start();
    let [one, two] = [&first, &second].map(|server| server.url("locks") + "&timeout=10s");
    let (ours, theirs) = (settled(&one).await.unwrap(), settled(&two).await.unwrap());
    let held = request("x", &owner());
    assert_eq!(granted(&ours, &held).await.ttl, held.ttl);
    assert_eq!(busy(&theirs, &request("x", &owner())).await.holder.unwrap().owner, held.owner);
    let lasts = first.sql("SELECT until - since FROM locks.locks WHERE name = 'x'")[0].parse::<u128>().unwrap();
    assert!(lasts >= held.ttl.as_micros() + 500_000, "by a clock that is ahead it ends too early: {lasts}");
    second.shift_clock(20_000);
    for url in [&one, &two] {
        let error = settled(url).await.unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Refused && text.contains("clocks") && text.contains("writers=one"), "{error:?}");
        let session = settled(&url.replace("create=yes&table=locks", "scheme=advisory")).await.unwrap_err();
        assert!(session.kind() == ErrorKind::Unsupported && session.to_string().contains("clocks"), "{session:?}");
    }
    busy(&settled(&(one + "&writers=one")).await.unwrap(), &request("x", &owner())).await;
    // As while it joins, or has lost the majority.
    first.sql("SET GLOBAL wsrep_reject_queries = ALL");
    let error = ours.acquire(&request("y", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("member"), "{error:?}");
}
