//! Rights that servers give a client, and take away.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::{Credentials, RenewReply, Store as _};
use tenure_testkit::{Proxy, ZooKeeperServer as Server, free_port};
use tenure_zookeeper::Options;
use tokio::net::TcpListener;

use crate::raw::{ALL, MAKE, READ, Raw, WRITE, refuse_login};
use crate::requests::{granted, lease, owner, request};
use crate::{PATIENCE, gone, open};

/// A node that its process cannot delete goes with its session.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_be_made_and_not_deleted_goes_with_its_session() {
    let chroot = Server::fresh_chroot();
    let mut admin = Raw::connect(Server::shared().addr(), "admin:secret").await;
    admin.create(&format!("/{chroot}"), ALL).await;
    admin.create(&format!("/{chroot}/x"), READ | WRITE | MAKE).await;
    let url = Server::shared().url(&chroot) + "?timeout=10s";
    let (store, other) = (open(&url).await, open(&url).await);
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let error = store.release(&lease("x", &held), Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    gone(&*other, "x", "its process goes on, and holds nothing").await;
}

/// Its node is there until the session ends, so a release has to be sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_may_not_read_has_made_its_node() {
    let chroot = Server::fresh_chroot();
    let mut admin = Raw::connect(Server::shared().addr(), "admin:secret").await;
    admin.create(&format!("/{chroot}"), ALL).await;
    admin.create(&format!("/{chroot}/x"), WRITE | MAKE).await;
    let store = open(&(Server::shared().url(&chroot) + "?timeout=10s")).await;
    // The session goes on for it.
    granted(&store, &request("y", &owner())).await;
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.may_have_been_applied(), "its node is there: {error:?}");
}

/// A server that counts the nodes of a path takes no more than were allowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_used_up_is_named() {
    let server = Server::start_with("enforceQuota=true\n");
    let store = open(&(server.url("counted") + "?timeout=10s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let mut admin = Raw::connect(server.addr(), "admin:secret").await;
    admin.create("/zookeeper/quota/counted", ALL).await;
    let limits = "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3";
    admin.create_with("/zookeeper/quota/counted/zookeeper_limits", limits, ALL).await;
    admin.create_with("/zookeeper/quota/counted/zookeeper_stats", "count=3,bytes=0", ALL).await;
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("quota") && !error.may_have_been_applied(), "{error:?}");
    // Who holds is not touched.
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}

/// Another client has its own node where ours would have theirs below.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_takes_no_others_below_is_no_lock() {
    let chroot = Server::fresh_chroot();
    let mut admin = Raw::connect(Server::shared().addr(), "admin:secret").await;
    admin.create(&format!("/{chroot}"), ALL).await;
    admin.create_ephemeral(&format!("/{chroot}/x")).await;
    let store = open(&(Server::shared().url(&chroot) + "?timeout=10s")).await;
    for name in ["x", "x/y"] {
        let error = store.acquire(&request(name, &owner())).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Mismatch, false), "{name}: {error:?}");
    }
}

/// The lease is there, whatever the server thinks of the question.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_refused_is_no_loss() {
    let chroot = Server::fresh_chroot();
    let store = open(&(Server::shared().url(&chroot) + "?timeout=10s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let mut admin = Raw::connect(Server::shared().addr(), "admin:secret").await;
    let path = format!("/{chroot}/x");
    let node = admin.only_child(&path).await;
    admin.set_acl(&format!("{path}/{node}"), MAKE).await;
    let error = store.renew(&[lease("x", &held)]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

/// It was a broken connection, which is tried again for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_is_an_error_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            tokio::spawn(refuse_login(listener.accept().await.unwrap().0));
        }
    });
    let gone = format!("{addr},127.0.0.1:{}", free_port());
    // That which is gone will be back, and may take it.
    for (hosts, kind) in [(format!("{addr},localhost:{}", addr.port()), ErrorKind::Refused), (gone, ErrorKind::Unreachable)] {
        let error = match Options::parse(&format!("zookeeper://me:wrong@{hosts}")).unwrap().open().await {
            Err(error) => error,
            Ok(store) => store.acquire(&request("x", &owner())).await.unwrap_err(),
        };
        assert!(error.kind() == kind && error.to_string().contains("login"), "{error}");
    }
}

/// Others see what they may.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_node_hides_no_other_in_a_list() {
    let plain = Server::shared().url(&Server::fresh_chroot());
    let closed = open(&(plain.replace("://", "://me:secret@") + "?acl=creator&prefix=theirs")).await;
    let all = open(&plain).await;
    let mine = request("mine", &owner());
    granted(&all, &mine).await;
    granted(&closed, &request("x", &owner())).await;
    let names: Vec<_> = all.inspect(None).await.unwrap().iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, ["mine"]);
    all.release(&mine.lease(), Duration::ZERO).await.unwrap();
    let error = all.inspect(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "what it may not see may be a lock: {error}");
}

/// It says so in the answer to each request, and a wait went on asking.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_a_login_refuses_those_without_one() {
    let server = Server::start_with("enforce.auth.enabled=true\nenforce.auth.schemes=digest\n");
    let store = open(&(server.url("app") + "?timeout=3s")).await;
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("log"), "{error:?}");
    let store = open(&server.url("app").replace("://", "://me:secret@")).await;
    granted(&store, &request("x", &owner())).await;
}

/// A server takes any password, and each is another identity. The session goes on with the one that the file has.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_logs_in_again_with_the_password_of_the_file() {
    let (server, chroot, dir) = (Server::shared(), Server::fresh_chroot(), tempfile::tempdir().unwrap());
    let mut second = Raw::connect(server.addr(), "app:second").await;
    second.create(&format!("/{chroot}"), ALL).await;
    second.create(&format!("/{chroot}/x"), READ).await;
    let file = dir.path().join("password");
    std::fs::write(&file, "first").unwrap();
    let proxy = Proxy::start_opaque(server.addr());
    let options = Options::parse(&(Server::url_at(proxy.addr(), &chroot) + "?timeout=10s")).unwrap();
    let store = options.credentials(Credentials::password_file(&file).with_user("app")).open().await.unwrap();
    let held = owner();
    granted(&store, &request("held", &held)).await;
    assert_eq!(store.acquire(&request("x", &owner())).await.unwrap_err().kind(), ErrorKind::Refused);
    std::fs::write(&file, "second").unwrap();
    proxy.cut();
    // The first calls may find the connection that is gone.
    let taken = async { while store.acquire(&request("x", &owner())).await.is_err() {} };
    tokio::time::timeout(PATIENCE, taken).await.expect("it logs in as it did before");
    assert_eq!(store.renew(&[lease("held", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}
