//! An etcd with other data in it, and names that lie below others.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::store::{ReleaseReply, Store};
use tenure::{Name, Owner};
use tenure_testkit::{EtcdCluster, Proxy};

use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, open};

/// Writes a key whose value is as long as that.
fn put(etcd: &EtcdCluster, key: &str, bytes: usize) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "x".repeat(bytes)).unwrap();
    let mut put = etcd.etcdctl();
    put.args(["put", key]).stdin(file.reopen().unwrap()).stdout(Stdio::null());
    assert!(put.status().unwrap().success());
}

/// A record of another program looks like a key of a lock. It is not one, and nobody deletes it.
#[tokio::test]
async fn data_of_another_program_is_no_lock() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let store = open(&etcd.url(&prefix)).await;
    let (name, key) = (Name::new("invoice").unwrap(), format!("{prefix}invoice/42"));
    etcd.ctl(&["put", &key, r#"{"total":99}"#]);
    assert!(store.inspect(Some(&name)).await.unwrap().is_empty());
    let broken = lease("invoice", &Owner::from_bytes(key.clone().into_bytes()));
    assert_eq!(store.release(&broken, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    let held = owner();
    granted(&store, &request("invoice", &held)).await;
    let waits = joining("invoice");
    assert_eq!(busy(&store, &waits).await.position, Some(0));
    // A second of the ttl may pass between the two.
    let all_is_one = async { while store.inspect(None).await.unwrap() != store.inspect(Some(&name)).await.unwrap() {} };
    tokio::time::timeout(PATIENCE, all_is_one).await.expect("a list shows something else");
    store.release(&lease("invoice", &held), Duration::ZERO).await.unwrap();
    granted(&store, &waits).await;
    store.release(&waits.lease(), Duration::ZERO).await.unwrap();
    assert!(etcd.ctl(&["get", &key]).contains("99"), "the record is gone");
}

/// The values below a name are larger than an answer may be.
#[tokio::test]
async fn a_name_above_large_data_is_locked_and_shown() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    for at in 0..4 {
        put(etcd, &format!("{prefix}data/file{at}"), 1_200_000);
    }
    let (store, other) = (open(&etcd.url(&prefix)).await, open(&etcd.url(&prefix)).await);
    let (held, waits) = (owner(), joining("data"));
    granted(&store, &request("data", &held)).await;
    assert_eq!(busy(&other, &request("data", &owner())).await.holder.unwrap().owner, held);
    assert_eq!(busy(&other, &waits).await.position, Some(0));
    let shown = store.inspect(None).await.unwrap();
    assert!(shown.len() == 1 && shown[0].holders[0].owner == held && shown[0].waiters.len() == 1, "{shown:?}");
    store.release(&lease("data", &held), Duration::ZERO).await.unwrap();
    granted(&other, &waits).await;
    store.release(&waits.lease(), Duration::ZERO).await.unwrap();
    assert!(store.inspect(None).await.unwrap().is_empty());
}

/// A list takes no longer for values that no lock has.
#[tokio::test]
async fn a_list_does_not_read_the_data_of_others() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    for at in 0..3 {
        put(etcd, &format!("{prefix}data/file{at}"), 1_200_000);
    }
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let store = open(&(EtcdCluster::url_at(proxy.addr(), &prefix) + "&timeout=10s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    proxy.throttle(100_000);
    let shown = store.inspect(None).await.unwrap();
    assert!(shown.len() == 1 && shown[0].holders[0].owner == held, "{shown:?}");
}

/// A list of many locks is not given up because each of them is asked how long it has.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_locks_are_listed() {
    const MANY: usize = 6_000;
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let session = etcd.ctl(&["lease", "grant", "300"]).split_whitespace().nth(1).unwrap().to_owned();
    let names: Vec<usize> = (0..MANY).collect();
    for names in names.chunks(120) {
        let puts: Vec<_> = names.iter().map(|at| format!("put --lease={session} {prefix}n{at}/{session} \"\"\n")).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("\n{}\n\n", puts.concat())).unwrap();
        let mut write = etcd.etcdctl();
        write.arg("txn").stdin(file.reopen().unwrap()).stdout(Stdio::null());
        assert!(write.status().unwrap().success());
    }
    let store = open(&etcd.url(&prefix)).await;
    let shown = store.inspect(None).await.unwrap();
    assert!(shown.len() == MANY && shown.iter().all(|entry| entry.holders.len() == 1), "{} are listed", shown.len());
    // Of as many as there is time for.
    let told = async { while store.inspect(None).await.unwrap()[0].holders[0].ttl.is_none() {} };
    tokio::time::timeout(PATIENCE, told).await.expect("nobody's ttl is known");
    etcd.ctl(&["lease", "revoke", &session]);
}

/// Others take and free the names below it all the time. The name itself is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_name_is_had_although_the_names_below_it_are_busy() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (done, near) = (Arc::new(AtomicBool::new(false)), open(&etcd.url(&prefix)).await);
    let below = (0..2).map(|task| {
        let (done, near) = (Arc::clone(&done), Arc::clone(&near));
        tokio::spawn(async move {
            // The next one is taken before the last is freed, so there is always a young key.
            let (mut at, name) = (0, |at: u32| format!("deploy/web{task}{}", at % 2));
            let mut held = owner();
            while !done.load(Ordering::Relaxed) {
                let next = owner();
                near.acquire(&request(&name(at + 1), &next)).await.ok();
                near.release(&lease(&name(at), &held), Duration::ZERO).await.ok();
                (at, held) = (at + 1, next);
            }
        })
    });
    let below: Vec<_> = below.collect();
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let far = open(&(EtcdCluster::url_at(proxy.addr(), &prefix) + "&timeout=10s")).await;
    proxy.delay(Duration::from_millis(40));
    for _ in 0..3 {
        let held = owner();
        granted(&far, &request("deploy", &held)).await;
        let mine = far.inspect(Some(&Name::new("deploy").unwrap())).await.unwrap();
        assert!(mine.len() == 1 && mine[0].holders.len() == 1, "{mine:?}");
        // It is taken for others, and their tries leave nothing.
        busy(&far, &request("deploy", &owner())).await;
        far.release(&lease("deploy", &held), Duration::ZERO).await.unwrap();
        assert!(near.inspect(Some(&Name::new("deploy").unwrap())).await.unwrap().is_empty());
    }
    done.store(true, Ordering::Relaxed);
    for task in below {
        task.await.unwrap();
    }
}
