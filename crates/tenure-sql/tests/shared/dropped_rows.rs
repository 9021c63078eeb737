//! Each call on a table dropped at each of its polls. No transaction is left open.

use std::time::Duration;

use tenure_testkit::{Proxy, wait_until};

use crate::dropped::{Calls, Stores};
use crate::{OPEN_TRANSACTIONS, Server, open};

pub(crate) async fn leave_what_a_release_clears(stores: impl AsyncFn() -> Stores) {
    Calls { polls: 6, until_sent: 1, apart: &[] }.leave_what_a_release_clears(stores).await;
    // Those of other tests end by themselves, and others begin.
    let mut open = Server::shared().sql(OPEN_TRANSACTIONS);
    wait_until(crate::PATIENCE, "the open transactions to end", || {
        // InnoDB gives the same answer again to a client that asks more often than every 100 ms.
        std::thread::sleep(Duration::from_millis(150));
        let still = Server::shared().sql(OPEN_TRANSACTIONS);
        open.retain(|transaction| still.contains(transaction));
        println!("still open: {open:?}");
        open.is_empty()
    });
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let stores = async || {
        let (proxy, table) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_table());
        let behind = open(&(Server::url_at(proxy.addr(), &table) + "&timeout=20s")).await;
        (proxy, behind, open(&(Server::shared().url(&table) + "&timeout=20s")).await)
    };
    leave_what_a_release_clears(stores).await;
}
