//! Settings of the server, the database or the user that others have made, and rows that others have locked.

use std::time::Duration;

use tenure_sql::postgres::Options;
use tenure_testkit::{PostgresServer, Proxy, wait_until};

use crate::requests::{granted, owner, request};
use crate::{PATIENCE, open};

/// Points in time are written as the database likes, in a zone whose short name stands for another one too.
#[tokio::test]
async fn a_predecessor_is_found_whatever_the_style_of_dates() {
    let server = PostgresServer::builder().set("datestyle", "SQL, DMY").set("timezone", "Asia/Kolkata").start();
    let proxy = Proxy::start_opaque(server.addr());
    let url = PostgresServer::url_at(proxy.addr(), "locks") + "&timeout=2s&application_name=first";
    let store = open(&url).await;
    granted(&store, &request("y", &owner())).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.hold_present_requests();
    let given = request("x", &owner()).with_generated(false);
    let error = store.acquire(&given).await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error:?}");
    assert!(store.inspect(None).await.unwrap().iter().all(|entry| entry.name.as_str() != "x"));
    assert!(!store.features().late_commands, "its session has ended");
    proxy.release_requests();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'first'";
    wait_until(PATIENCE, "the first session to end", || server.sql(sessions) == ["1"]);
    let found = store.inspect(None).await.unwrap();
    assert!(found.iter().all(|entry| entry.name.as_str() != "x"), "it ran late: {found:?}");
}

#[test]
fn no_part_of_a_password_is_shown() {
    for url in
        ["postgres://app:pa?s3cret@db/locks", "postgres://app:pa?x=1&s3cret@db/locks", "postgres://app:pa?x=s3cret@db/locks"]
    {
        let error = Options::parse(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{url}: {error:?}");
    }
    for url in
        ["postgres://app:pa@s3cret@db/locks", "postgres://app:pa@s3cret:x@db/locks", "postgres://app:pa:s3cret@db:port/locks"]
    {
        let shown = match Options::parse(url) {
            Ok(options) => options.to_string(),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("s3cret"), "{url}: {shown}");
    }
}
