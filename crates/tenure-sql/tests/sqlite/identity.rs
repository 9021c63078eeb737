//! A restart of the machine, and a second machine: told by what the file says of its last use.

use std::path::Path;
use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::{ReleaseReply, RenewReply, Store as _};
use tenure_sql::sqlite::open;

use crate::common::{busy, fresh, granted, joining, lease, one_line, owner, raw, request};

/// As if it was last used then.
fn last_used(path: &Path, boot: &str, machine: Option<&str>) {
    let used = "UPDATE meta SET boot = ?1, machine = coalesce(?2, machine), booted = 1, written = 1";
    raw(path).execute(used, (boot, machine)).unwrap();
}

#[tokio::test]
async fn a_restart_ends_every_lease() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b) = (owner(), owner());
    let old = granted(&store, &request("x", &a)).await;
    granted(&store, &request("y", &a)).await;
    busy(&store, &joining("y")).await;
    drop(store);
    last_used(&path, "an earlier boot", None);
    let store = open(&path).unwrap();
    assert_eq!(store.inspect(None).await.unwrap(), []);
    assert_eq!(store.inspect(Some(&"x".parse().unwrap())).await.unwrap(), []);
    assert_eq!(store.renew(&[lease("y", &a)]).await.remove(0).unwrap(), RenewReply::Gone);
    assert_eq!(store.release(&lease("y", &a), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert!(granted(&store, &request("x", &b)).await.fence > old.fence);
    busy(&open(&path).unwrap(), &request("x", &a)).await;
    granted(&store, &request("y", &b)).await;
}

#[tokio::test]
async fn another_machine_is_refused() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let a = owner();
    granted(&store, &request("x", &a)).await;
    last_used(&path, "a boot over there", Some("another machine"));
    let refused = [
        open(&path).unwrap_err(),
        store.acquire(&request("y", &a)).await.unwrap_err(),
        store.renew(&[lease("x", &a)]).await.remove(0).unwrap_err(),
        store.release(&lease("x", &a), Duration::ZERO).await.unwrap_err(),
        store.inspect(None).await.unwrap_err(),
        store.inspect(Some(&"x".parse().unwrap())).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Damaged);
        let text = one_line(&error);
        assert!(text.contains("two machines") && text.contains("redis") && text.contains("delete the file"), "{text}");
    }
    let left: i64 = raw(&path).query_row("SELECT count(*) FROM lock", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1, "the other machine's leases are left alone");
}

/// A container of this machine may have a machine id of its own, or none.
#[tokio::test]
async fn a_container_of_this_machine_is_not_another_machine() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    granted(&store, &request("x", &owner())).await;
    raw(&path).execute("UPDATE meta SET machine = 'a container'", []).unwrap();
    busy(&store, &request("x", &owner())).await;
    drop(store);
    last_used(&path, "an earlier boot", Some(""));
    granted(&open(&path).unwrap(), &request("x", &owner())).await;
}

/// If the numbers are used up, the store reports that, and does not begin anew.
#[tokio::test]
async fn fences_that_are_used_up_are_told() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    raw(&path).execute("UPDATE meta SET counter = ?1", [(1_i64 << 53) - 2]).unwrap();
    granted(&store, &request("x", &owner())).await;
    let error = store.acquire(&request("y", &owner())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(one_line(&error).contains("used up"), "{error}");
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);
}
