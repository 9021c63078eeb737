//! Commands that the schemes of plain keys send.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, Request, Store};
use tenure::{ErrorKind, Lease, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::RedisServer;

use crate::subject::Lent;
use crate::with_user;

const LONG: Duration = Duration::from_secs(60);

async fn open(url: &str) -> Arc<dyn Store> {
    Options::parse(&format!("{url}?scheme=set-nx&timeout=10s")).unwrap().open().await.unwrap()
}

fn lease(owner: &Owner) -> Lease {
    Lease::new(Name::new("door").unwrap(), owner.clone(), Share::MUTEX, LONG)
}

async fn take(store: &dyn Store) -> Lease {
    let Lease { name, owner, share, ttl, .. } = lease(&Owner::generate("plain").unwrap());
    let request = Request::new(name, owner, share, ttl);
    assert!(matches!(store.acquire(&request).await.unwrap(), AcquireReply::Granted(_)));
    lease(&request.owner)
}

/// A name that is taken and given up; how often a script ran for that, and whether anything was refused.
async fn cycle(server: &RedisServer, store: &dyn Store) -> (usize, bool) {
    server.cli("CONFIG RESETSTAT");
    let held = take(store).await;
    assert_eq!(store.release(&held, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(server.cli("EXISTS door"), "0");
    let (stats, errors) = (server.cli("INFO commandstats"), server.cli("INFO errorstats"));
    let ran = |line: &&str| line.starts_with("cmdstat_eval") && !line.contains(":calls=0,");
    (stats.lines().filter(ran).count(), errors.contains("errorstat_ERR") || errors.contains("errorstat_NOPERM"))
}

/// The server's own command that deletes a key if it holds a value.
fn delete_of(server: &RedisServer) -> Option<&'static str> {
    let known = |words: &[&str]| !server.command(words).text().starts_with("ERR unknown command");
    [("DELEX", &["DELEX", "door", "IFEQ", "x"][..]), ("DELIFEQ", &["DELIFEQ", "door", "x"])]
        .into_iter()
        .find_map(|(command, words)| known(words).then_some(command))
}

/// A key is deleted by a command where the server has one for this user, and by a script where not; what there is is asked once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_deleted_by_a_command_where_there_is_one() {
    let (server, url) = with_user("~* &* +@all");
    let delete = delete_of(&server);
    let store = open(&url).await;
    cycle(&server, &*store).await;
    let by_script = usize::from(delete.is_none());
    for _ in 0..2 {
        assert_eq!(cycle(&server, &*store).await, (by_script, false), "{delete:?}");
    }
    if let Some(delete) = delete {
        server.cli(&format!("ACL SETUSER app -{}", delete.to_lowercase()));
        cycle(&server, &*store).await;
        assert_eq!(cycle(&server, &*store).await, (1, false), "{delete} is forbidden, and is not asked for again");
    }
}

/// Whatever a key is deleted by, a release says the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_says_the_same_by_command_and_by_script() {
    let (server, url) = with_user("~* &* +@all");
    for by_script in [false, true] {
        if by_script && let Some(delete) = delete_of(&server) {
            server.cli(&format!("ACL SETUSER app -{}", delete.to_lowercase()));
        }
        let store = open(&url).await;
        let held = take(&*store).await;
        let other = lease(&Owner::generate("other").unwrap());
        assert_eq!(store.release(&other, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
        assert_eq!(server.cli("GET door"), held.owner.to_string());
        assert_eq!(store.release(&held, LONG).await.unwrap(), ReleaseReply::Released);
        assert_eq!(store.release(&held, Duration::ZERO).await.unwrap(), ReleaseReply::Released, "it has been given up");
        assert_eq!(server.cli("GET door"), held.owner.lingering().to_string(), "it lingers");
        server.cli("DEL door");
        assert_eq!(store.release(&held, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
        server.cli("LPUSH door x");
        assert_eq!(store.release(&held, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld, "a list is nobody's");
        assert_eq!(server.cli("TYPE door"), "list");
        server.cli("DEL door");
    }
}

/// Who may run no scripts could neither renew nor give up: it is refused before anything is taken.
#[tokio::test]
async fn who_may_run_no_scripts_takes_nothing() {
    let (server, url) = with_user("~* &* +@all -@scripting");
    let store = open(&url).await;
    let Lease { name, owner, share, ttl, .. } = lease(&Owner::generate("plain").unwrap());
    let request = Request::new(name, owner, share, ttl);
    assert_eq!(store.acquire(&request).await.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(server.cli("EXISTS door"), "0");
}

/// The server repeats in its refusal of an unknown command what it was sent, and may cut that in the middle of a character.
#[tokio::test]
async fn odd_names_and_values_are_given_up() {
    let server = Lent::alone();
    for (name, owner) in [("door".to_owned(), &b"\x01\xff\xfe\x80abc"[..]), ("锁".repeat(43), b"1"), ("锁".repeat(44), b"\r\n")]
    {
        // A link of its own: what a server knows is asked once.
        let store = open(&server.url()).await;
        assert_eq!(server.command(&[&b"SET"[..], name.as_bytes(), owner]), "OK");
        let held = lease(&Owner::from_bytes(owner)).with_name(Name::new(&name).unwrap());
        assert_eq!(store.release(&held, Duration::ZERO).await.unwrap(), ReleaseReply::Released, "{name:?} {owner:?}");
        assert_eq!(server.command(&["EXISTS", &name]), 0);
    }
}

/// A server out of memory takes what gives up, with a linger and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_needs_no_memory() {
    let server = Lent::alone();
    let store = open(&server.url()).await;
    for linger in [Duration::ZERO, LONG] {
        let held = take(&*store).await;
        server.cli("CONFIG SET maxmemory 1");
        assert_eq!(store.release(&held, linger).await.unwrap(), ReleaseReply::Released);
        server.cli("CONFIG SET maxmemory 0");
    }
    assert!(server.cli("GET door").starts_with("linger:"));
}
