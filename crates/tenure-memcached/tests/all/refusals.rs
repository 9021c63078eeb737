//! Servers on which no lock is safe, or which somebody meant otherwise.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, Credentials};
use tenure::{Error, ErrorKind, Locker};
use tenure_memcached::Options;
use tenure_testkit::{MemcachedServer, Proxy, rotation};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::requests::{busy, granted, owner, request};
use crate::{PATIENCE, open};

async fn refused(url: &str) -> Error {
    let error = Options::parse(url).unwrap().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    error
}

/// A login looks like a write. A server that wants none would keep the password for everybody to read.
#[tokio::test]
async fn a_login_is_not_shown_to_a_server_that_wants_none() {
    let server = MemcachedServer::start();
    let error = refused(&server.url().replace("//", "//app:s3cret@")).await.to_string();
    assert!(error.contains("-Y") && !error.contains("s3cret"), "{error}");
    let shown = server.ask("get tenure", None);
    assert!(shown.is_empty(), "anybody can read {shown:?}");
}

/// A password that is refused may come back in the answer.
#[tokio::test]
async fn a_wrong_login_is_refused_without_a_word_of_it() {
    let server = MemcachedServer::builder().login("app", "s3cret").start();
    let error = refused(&server.url().replace("//", "//app:wr0ng@")).await.to_string();
    assert!(error.contains("password") && !error.contains("wr0ng"), "{error}");
    open(&server.url().replace("//", "//app:s3cret@")).await;
}

/// Others have them all. That is no other kind of server, and ends no wait.
#[tokio::test]
async fn a_server_without_a_free_connection_is_asked_again() {
    for login in [None, Some("app:s3cret@")] {
        let server = login.map_or_else(MemcachedServer::builder, |_| MemcachedServer::builder().login("app", "s3cret"));
        let server = server.arg("-c").arg("64").start();
        let mut others = Vec::new();
        // Each is answered before the next comes, because the server counts it somewhat later than it accepts it.
        loop {
            let mut other = BufReader::new(TcpStream::connect(server.addr()).await.unwrap());
            let mut answer = String::new();
            // A server that refuses it may have closed it before.
            let _ = other.get_mut().write_all(b"version\r\n").await;
            let _ = other.read_line(&mut answer).await;
            if answer.is_empty() || answer.starts_with("ERROR") {
                break;
            }
            others.push(other);
        }
        let url = server.url().replace("//", &format!("//{}", login.unwrap_or_default()));
        let error = Options::parse(&url).unwrap().open().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Overloaded && error.to_string().contains("-c"), "{error:?}");
        others.clear();
        let opened = async { while Options::parse(&url).unwrap().open().await.is_err() {} };
        timeout(PATIENCE, opened).await.expect("it is not found again");
    }
}

/// A user alone logs nobody in.
#[tokio::test]
async fn a_user_without_a_password_is_refused() {
    let server = MemcachedServer::start();
    let options = Options::parse(&server.url().replace("//", "//app@")).unwrap();
    let error = options.open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("password"), "{error:?}");
}

/// Spaces and percent signs of a prefix count three times, as those of a name do.
#[tokio::test]
async fn a_prefix_takes_what_its_key_takes() {
    let server = MemcachedServer::start();
    let store = open(&(server.url() + "?prefix=%20%25")).await;
    let longest = store.features().max_name;
    assert_eq!(longest, 250 - 6);
    granted(&store, &request(&"n".repeat(longest), &owner())).await;
    let blank = "%20".repeat(50);
    let error = Options::parse(&format!("{}?prefix={blank}", server.url())).unwrap_err();
    assert!(error.to_string().contains("128"), "{error}");
}

/// Without versions nothing can be compared before it is swapped.
#[tokio::test]
async fn a_server_without_versions_is_refused() {
    let server = MemcachedServer::builder().arg("-C").start();
    let error = refused(&server.url()).await.to_string();
    assert!(error.contains("-C"), "{error}");
}

/// It shows no rest of a life that is nearly over. A waiter does not ask again at once for that.
#[tokio::test]
async fn a_waiter_asks_at_intervals_until_the_very_end() {
    let server = MemcachedServer::start();
    let store = open(&(server.url() + "?poll_interval=50ms")).await;
    let dying = request("x", &owner()).with_ttl(Duration::from_secs(1));
    granted(&store, &dying).await;
    let busy = busy(&store, &request("x", &owner())).await;
    let rest = busy.holder.unwrap().ttl.unwrap();
    assert!(rest >= Duration::from_millis(50), "{rest:?}");
    assert!(matches!(store.acquire(&request("y", &owner())).await.unwrap(), AcquireReply::Granted(_)));
}

/// The server ends no connection when its logins change, so the way to it is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_password_changes() {
    let server = MemcachedServer::builder().login("app", "first").start();
    let proxy = Proxy::start_opaque(server.addr());
    let url = format!("memcached://app@{}?timeout=10s", proxy.addr());
    let open = async |credentials: Credentials| {
        Locker::new(Arc::new(Options::parse(&url).unwrap().credentials(credentials).open().await.unwrap()))
    };
    let change = |password: &str| {
        server.change_password("app", password);
        proxy.cut();
    };
    rotation("first", open, change).await;
}
