//! A pool that lends sessions for single transactions is refused. PgBouncer 1.18 gave the arguments of one client to the statement of
//! another, when both sent one statement behind another.

use tenure::ErrorKind;
use tenure_sql::postgres::Options;
use tenure_testkit::{PgBouncer, PostgresServer};

use crate::open;

#[tokio::test]
async fn a_pool_is_found_out_and_refused() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let pool = PgBouncer::start(server);
    let url = PostgresServer::url_at(pool.addr(), &table);
    for _ in 0..5 {
        let error = Options::parse(&url).unwrap().open().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("pool"), "{error:?}");
        assert!(!error.may_have_been_applied(), "{error:?}");
    }
    assert!(open(&server.url(&table)).await.features().push, "the server itself is taken");
}
