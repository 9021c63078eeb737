//! Passwords that change while locks are in use.

use tenure::Locker;
use tenure::store::{Credentials, Login};
use tenure_redis::Options;
use tenure_testkit::{RedisServer, SentinelGroup, admit, rotation};

async fn locker(url: &str, credentials: Credentials) -> Locker {
    Locker::new(Options::parse(url).unwrap().credentials(credentials).open().await.unwrap())
}

/// Sets another password, and ends all connections.
fn change(server: &RedisServer, password: &str) {
    let mut client = server.connect().unwrap();
    for words in [
        &["ACL", "SETUSER", "app", "resetpass", &format!(">{password}")][..],
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        &["CLIENT", "KILL", "TYPE", "pubsub"],
    ] {
        client.command(words).unwrap();
    }
}

fn with_user() -> RedisServer {
    RedisServer::builder().acl("user app on >first ~* &* +@all").start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_password_changes() {
    let server = with_user();
    let url = server.url().replace("redis://", "redis://app@");
    rotation("first", |credentials| locker(&url, credentials), |password| change(&server, password)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_of_a_quorum_is_lost_while_the_password_changes() {
    let servers: Vec<RedisServer> = (0..3).map(|_| with_user()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    admit(&format!("quorum+redis://{}", hosts.join(",")));
    let url = format!("quorum+redis://app@{}", hosts.join(","));
    let change_all = |password: &str| servers.iter().for_each(|server| change(server, password));
    rotation("first", |credentials| locker(&url, credentials), change_all).await;
}

/// The sentinels have credentials of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sentinels_are_logged_in_to_by_their_own_function() {
    let group = SentinelGroup::start_with(None, Some("s3cret"), None);
    let ask = || async { Ok::<_, tenure::Error>(Login::of_password("s3cret")) };
    let options = Options::parse(&group.url()).unwrap().sentinel_credentials(Credentials::asking("the vault", ask));
    let locks = Locker::new(options.open().await.unwrap());
    locks.mutex("door").acquire().await.unwrap().release().await.unwrap();
}

/// A function that does not answer costs the call its time, and is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_does_not_answer_is_named() {
    let server = with_user();
    let ask = || std::future::pending::<Result<Login, tenure::Error>>();
    let options = Options::parse(&format!("{}?timeout=300ms", server.url())).unwrap();
    let error = options.credentials(Credentials::asking("the vault", ask)).open().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("the vault gave no login in time"), "{error}");
}
