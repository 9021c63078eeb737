//! Session locks of MariaDB, beside other programs that call `GET_LOCK`.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::{AcquireReply, ReleaseReply};
use tenure_conformance::exceptions;
use tenure_sql::mysql::Options;

use crate::requests::{busy, granted, lease, owner, request};
use crate::{PATIENCE, Server, open};

/// Sessions hold mutexes, the lock ends with them, and the server lists none.
pub(crate) const SESSION_EXCEPTIONS: &[&[&str]] =
    &[exceptions::NO_FOREIGN_LOCKS, exceptions::MUTEXES_ONLY, exceptions::PROCESS_BOUND, exceptions::NO_LIST];

/// Locks that nobody else in this process has: those with a prefix of their own.
pub(crate) fn fresh_space(_: &Server) -> String {
    Server::fresh_table() + "."
}

pub(crate) fn url_at(addr: SocketAddr, space: &str) -> String {
    format!("mysql://root@{addr}/locks?scheme=advisory&prefix={space}")
}

/// `GET_LOCK` does not tell these names apart from others, on every server.
pub(crate) fn refuses(name: &str) -> bool {
    !name.is_ascii() || name.trim_end() != name || Server::is_mysql() && name.to_lowercase() != name
}

/// The number of the session that holds a lock.
pub(crate) fn holding(server: &Server, space: &str, name: &str) -> String {
    server.sql(&format!("SELECT IS_USED_LOCK('{space}{name}')")).remove(0)
}

/// Ends the session that holds a lock.
pub(crate) fn end_session_of(server: &Server, space: &str, name: &str) {
    server.sql(&format!("KILL {}", holding(server, space, name)));
}

/// The numbers of the sessions of all clients, without the one that asks.
pub(crate) fn sessions(server: &Server) -> Vec<String> {
    server.sql("SELECT id FROM information_schema.processlist WHERE db = 'locks' AND id <> CONNECTION_ID()")
}

/// The names of the client are ours. MariaDB tells upper case from lower.
#[tokio::test]
async fn other_clients_and_we_keep_each_other_out() {
    let server = Server::shared();
    let store = open(&format!("mysql://root@{}/locks?scheme=advisory", server.addr())).await;
    let name = format!("door {}", fastrand::u32(..));
    let upper = (!Server::is_mysql()).then(|| name.to_uppercase());
    for name in upper.into_iter().chain([name]) {
        let theirs = &name;
        let mut client = server.session();
        assert_eq!(client.run(&format!("SELECT GET_LOCK('{theirs}', 0);")), ["1"]);
        let holder = busy(&store, &request(&name, &owner())).await.holder.unwrap();
        assert!(holder.owner.to_string().contains("root@") && holder.ttl.is_none(), "{holder}");
        // Nor does it tell a session of ours in another process from theirs, and ours has an end.
        assert!(holder.to_string().ends_with(", until its session ends"), "{holder}");
        assert_eq!(client.run(&format!("SELECT RELEASE_LOCK('{theirs}');")), ["1"]);
        let held = owner();
        granted(&store, &request(&name, &held)).await;
        assert_eq!(client.run(&format!("SELECT GET_LOCK('{theirs}', 0);")), ["0"]);
        assert_eq!(client.run(&format!("SELECT RELEASE_LOCK('{theirs}');")), ["0"]);
        assert_eq!(store.release(&lease(&name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        assert_eq!(client.run(&format!("SELECT GET_LOCK('{theirs}', 0);")), ["1"]);
        drop(client);
        let ours = request(&name, &owner());
        let taken = async {
            while !matches!(store.acquire(&ours).await.unwrap(), AcquireReply::Granted(_)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.expect("a client that dies lets go of it");
        store.release(&lease(&name, &ours.owner), Duration::ZERO).await.unwrap();
    }
}

/// The prefix counts: it is part of the name.
#[tokio::test]
async fn a_name_that_would_be_mixed_up_is_refused() {
    let addr = Server::shared().addr();
    let store = open(&format!("mysql://root@{addr}/locks?scheme=advisory&prefix=app.")).await;
    assert_eq!(store.features().max_name, 60);
    for name in ["t\u{fc}r", "door ", &"n".repeat(61)] {
        let error = store.acquire(&request(name, &owner())).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && !error.may_have_been_applied(), "{error:?}");
    }
    granted(&store, &request(&"n".repeat(60), &owner())).await;
    let prefix = format!("mysql://root@{addr}/locks?scheme=advisory&prefix=app%20");
    let error = Options::parse(&prefix).unwrap().open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("prefix="), "{error:?}");
}

#[tokio::test]
async fn a_replica_is_refused() {
    let server = Server::start();
    server.sql("SET GLOBAL read_only = 1");
    let error = Options::parse(&url_at(server.addr(), "")).unwrap().open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("replica"), "{error:?}");
}
