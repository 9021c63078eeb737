//! Passwords that change while locks are in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::store::{Credentials, Login};
use tenure::{ErrorKind, Locker};
use tenure_redis::Options;
use tenure_testkit::{Passwords, Proxy, RedisCluster, SentinelGroup, admit, rotation};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::pretender::listens_as;
use crate::quorum::wait_for;
use crate::subject::Lent;
use crate::{PATIENCE, patient};

async fn locker(url: &str, credentials: Credentials) -> Locker {
    Locker::new(Options::parse(url).unwrap().credentials(credentials).open().await.unwrap())
}

fn with_app() -> Lent {
    let server = Lent::alone();
    server.make_app("first");
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_password_changes() {
    let server = with_app();
    let url = server.url().replace("redis://", "redis://app@");
    rotation("first", |credentials| locker(&url, credentials), |password| server.change_password(password)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_of_a_quorum_is_lost_while_the_password_changes() {
    let servers: Vec<Lent> = (0..3).map(|_| with_app()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    admit(&format!("quorum+redis://{}", hosts.join(",")));
    let url = format!("quorum+redis://app@{}", hosts.join(","));
    let change_all = |password: &str| servers.iter().for_each(|server| server.change_password(password));
    rotation("first", |credentials| locker(&url, credentials), change_all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_of_a_cluster_is_lost_while_the_password_changes() {
    let cluster = RedisCluster::start(3, 0);
    cluster.servers().iter().for_each(|server| server.make_app("first"));
    let url = patient(&cluster.url().replace("://", "://app@"));
    let change_all = |password: &str| cluster.servers().iter().for_each(|server| server.change_password(password));
    rotation("first", |credentials| locker(&url, credentials), change_all).await;
}

/// Those of the sentinels and those of the servers, which then are asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_passwords_of_sentinels_and_servers_change() {
    let group = SentinelGroup::start();
    let all = || group.sentinels.iter().chain(&group.servers);
    all().for_each(|server| server.make_app("first"));
    // A call goes on for so long while the password is refused.
    let url = format!("{}?timeout=1s", group.url().replace("://", "://app@"));
    let open = async |credentials: Credentials| {
        let options = Options::parse(&url).unwrap().sentinel_credentials(credentials.clone().with_user("app"));
        Locker::new(options.credentials(credentials).open().await.unwrap())
    };
    rotation("first", open, |password| all().for_each(|server| server.change_password(password))).await;
}

/// It says so on each new connection, or it answers a greeting and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_goes_on_while_a_proxy_has_no_server() {
    const UPSTREAM: &str = "-ERR upstream failure\r\n";
    for (greeted, answer) in [
        (false, "-DENIED no upstream\r\n"),
        (false, UPSTREAM),
        (false, "HTTP/1.1 502 Bad Gateway\r\n\r\n"),
        (true, UPSTREAM),
        (true, "-ERR backend gone\r\n"),
    ] {
        let server = Lent::alone();
        let proxy = Proxy::start_opaque(server.addr());
        let held = locker(&server.url(), Credentials::default()).await.mutex("door").acquire().await.unwrap();
        let (locks, waits) = (locker(&proxy.url(), Credentials::default()).await, Arc::new(Notify::new()));
        let tells = Arc::clone(&waits);
        let waiter = tokio::spawn(locks.mutex("door").on_wait(move |_| tells.notify_one()).acquire());
        waits.notified().await;
        let asked = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&asked);
        proxy.lead_to(listens_as(move |words| {
            counts.fetch_add(1, Ordering::Relaxed);
            let greets = greeted && ["HELLO", "CLIENT", "SUBSCRIBE", "PING"].contains(&&*words[0]);
            if greets { "+OK\r\n" } else { answer }.into()
        }));
        proxy.cut();
        wait_for("it to be refused, or to give up", || asked.load(Ordering::Relaxed) >= 20 || waiter.is_finished()).await;
        proxy.lead_to(server.addr());
        proxy.cut();
        held.release().await.unwrap();
        let granted = timeout(PATIENCE, waiter).await.expect("it waits for ever").unwrap();
        assert!(granted.is_ok(), "{answer:?}: {}", granted.unwrap_err());
    }
}

/// It has never heard a server there, but knows what Envoy and twemproxy say. Envoy greets by itself, so that the first command fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_while_a_proxy_has_no_server_waits() {
    for answer in ["-ERR Connection refused\r\n", "-no upstream host\r\n", "-upstream failure\r\n"] {
        let proxy = listens_as(move |words| match &*words[0] {
            "HELLO" if answer.starts_with("-upstream") => "-ERR unknown command\r\n".into(),
            "CLIENT" | "PING" if answer.starts_with("-upstream") => "+OK\r\n".into(),
            _ => answer.into(),
        });
        let told = match Options::parse(&format!("redis://{proxy}")).unwrap().open().await {
            Ok(store) => Locker::new(store).mutex("door").try_acquire().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(told.kind() == ErrorKind::Unavailable && told.to_string().contains("no server behind"), "{answer}: {told:?}");
    }
}

/// A function that does not answer costs the call its time, and is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_does_not_answer_is_named() {
    let server = with_app();
    let ask = || std::future::pending::<Result<Login, tenure::Error>>();
    let options = Options::parse(&format!("{}?timeout=300ms", server.url())).unwrap();
    let error = options.credentials(Credentials::asking("the vault", ask)).open().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("the vault gave no login in time"), "{error}");
}
