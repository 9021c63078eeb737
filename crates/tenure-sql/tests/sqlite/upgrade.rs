//! A file that an older version has made.

use std::path::Path;
use std::time::Duration;

use tenure::store::{ReleaseReply, RenewReply, Store as _};
use tenure::{BootTime, ErrorKind, Fence, Owner, Share};
use tenure_sql::sqlite::open;

use crate::common::{TTL, busy, check_integrity, fresh, granted, lease, owner, raw, request};

const VERSION_1: &str = "
CREATE TABLE meta (
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  counter INTEGER NOT NULL,
  boot    TEXT NOT NULL,
  machine TEXT NOT NULL,
  hand    TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE lock (
  name        TEXT PRIMARY KEY,
  owner       BLOB,
  released_by BLOB,
  fence       INTEGER NOT NULL,
  since       INTEGER NOT NULL,
  until       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
PRAGMA application_id = 0x746e7265;
PRAGMA user_version = 1;";

const COUNTER: u64 = 1 << 51;

/// Odd bytes stay as they are.
fn odd() -> Owner {
    Owner::from_bytes(&b"\xff\x00'\n\xc3"[..])
}

/// A file of version 1 in which "held" is held, "left" lingers after somebody, and "over" has ended.
pub(crate) fn version_1(path: &Path) {
    drop(open(path).unwrap());
    let read = |what| raw(path).query_row(&format!("SELECT {what} FROM meta"), [], |row| row.get::<_, String>(0)).unwrap();
    let (boot, machine) = (read("boot"), read("machine"));
    for end in ["", "-wal", "-shm"] {
        // Not all of them are there.
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
    let file = raw(path);
    file.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    file.execute_batch(VERSION_1).unwrap();
    file.execute("INSERT INTO meta VALUES (1, ?1, ?2, ?3, '')", (i64::try_from(COUNTER).unwrap(), boot, machine)).unwrap();
    let nanos = |at: BootTime| i64::try_from(at.since_boot().as_nanos()).unwrap();
    let now = BootTime::now();
    let mut put = file.prepare("INSERT INTO lock VALUES (?1, ?2, ?3, ?4, ?5, ?6)").unwrap();
    let odd = odd();
    for (name, owner, released_by, until) in [
        ("held", Some(odd.as_bytes()), None, now + TTL),
        ("left", None, Some(odd.as_bytes()), now + TTL),
        ("over", Some(odd.as_bytes()), None, now),
    ] {
        put.execute((name, owner, released_by, 7, nanos(now), nanos(until))).unwrap();
    }
}

#[tokio::test]
async fn leases_of_version_1_stand_on() {
    let (_dir, path) = fresh();
    version_1(&path);
    let store = open(&path).unwrap();
    let holder = busy(&store, &request("held", &owner())).await.holder.unwrap();
    assert_eq!((&holder.owner, holder.share, holder.fence), (&odd(), Share::MUTEX, Fence::from_counter(7)));
    assert!(holder.ttl.unwrap() > TTL / 2);
    assert!(matches!(
        store.renew(&[lease("held", &odd()), lease("left", &odd())]).await[..],
        [Ok(RenewReply::Renewed), Ok(RenewReply::Gone)]
    ));
    assert_eq!(busy(&store, &request("left", &owner())).await.holder.unwrap().owner, odd().lingering());
    assert_eq!(store.release(&lease("left", &odd()), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lease("left", &odd().lingering()), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let grant = granted(&store, &request("over", &owner())).await;
    assert!(grant.fence.unwrap().counter() > COUNTER, "{grant:?}");
    let permit = request("held", &owner()).with_share(Share::permits(1, 3).unwrap());
    assert_eq!(store.acquire(&permit).await.unwrap_err().kind(), ErrorKind::Mismatch);
    check_integrity(&path);
    drop(store);
    assert_eq!(open(&path).unwrap().inspect(None).await.unwrap().len(), 2, "held and over");
}

/// Many processes find the old file at the same moment.
#[tokio::test]
async fn a_file_is_brought_up_to_date_once() {
    let (_dir, path) = fresh();
    version_1(&path);
    let opening: Vec<_> = (0..8).map(|_| path.clone()).map(|path| std::thread::spawn(move || open(path).unwrap())).collect();
    for store in opening.into_iter().map(|opening| opening.join().unwrap()) {
        assert_eq!(store.inspect(None).await.unwrap().len(), 2);
    }
    check_integrity(&path);
}

/// A process of the older version does not write what a newer one would misread.
#[test]
fn the_older_version_is_kept_out() {
    let (_dir, path) = fresh();
    version_1(&path);
    let old = raw(&path);
    let found: i64 = old.query_row("SELECT count(*) FROM lock", [], |row| row.get(0)).unwrap();
    assert_eq!(found, 3);
    drop(open(&path).unwrap());
    assert!(old.query_row("SELECT count(released_by) FROM lock", [], |row| row.get::<_, i64>(0)).is_err());
    let grant = "INSERT INTO lock (name, owner, released_by, fence, since, until) VALUES ('x', x'00', NULL, 1, 2, 3)";
    assert!(old.execute(grant, []).is_err());
}

/// The first files of this version did not note when they were written to.
#[tokio::test]
async fn a_file_without_times_gets_them() {
    let (_dir, path) = fresh();
    let held = owner();
    granted(&open(&path).unwrap(), &request("x", &held)).await;
    let drop_times = "ALTER TABLE meta DROP COLUMN booted; ALTER TABLE meta DROP COLUMN written";
    raw(&path).execute_batch(drop_times).unwrap();
    let store = open(&path).unwrap();
    busy(&store, &request("x", &owner())).await;
    granted(&store, &request("y", &owner())).await;
    let noted = "SELECT written > 0 FROM meta";
    assert!(raw(&path).query_row(noted, [], |row| row.get::<_, bool>(0)).unwrap());
}
