//! Who counts as another machine: a mount name space with another boot id and machine id stands for it, and a time name space for
//! the clock it counts by.

use std::fs;
use std::path::Path;

use tenure::store::{RenewReply, Store as _};
use tenure_sql::SqliteStore;
use tenure_sql::sqlite::open;
use tenure_testkit::Spawned;

use crate::child::{finish, start_apart, turned_away};
use crate::common::{busy, fresh, granted, lease, owner, patient, raw, request, wait_until_closed};

/// Machine id that the other side has instead of ours.
#[derive(Clone, Copy, PartialEq)]
enum Id {
    Same,
    None,
}

/// A process that sees another boot id, and a boot-time clock that is apart from ours by so many seconds.
fn elsewhere(id: Id, apart: i64, role: &str, path: &Path) -> Spawned {
    let dir = path.parent().unwrap();
    fs::write(dir.join("boot"), "11111111-2222-3333-4444-555555555555\n").unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    let dir = dir.display();
    let hidden = match id {
        Id::Same => "",
        Id::None => "/etc/machine-id /var/lib/dbus/machine-id",
    };
    let mount = format!(
        "mount --bind {dir}/boot /proc/sys/kernel/random/boot_id; \
         for f in {hidden}; do [ ! -e $f ] || mount --bind {dir}/empty $f; done"
    );
    if apart == 0 {
        return start_apart(&[], &mount, role, path);
    }
    start_apart(&["-T", "--boottime", &apart.to_string()], &mount, role, path)
}

/// Where ids are none, the file says none as well.
async fn held(id: Id, path: &Path) -> (SqliteStore, tenure::Owner) {
    let (store, owner) = (open(path).unwrap(), owner());
    if id == Id::None {
        raw(path).execute("UPDATE meta SET machine = ''", []).unwrap();
    }
    granted(&store, &request("x", &owner)).await;
    (store, owner)
}

async fn is_renewed(store: &SqliteStore, owner: &tenure::Owner) {
    assert_eq!(store.renew(&[lease("x", owner)]).await.remove(0).unwrap(), RenewReply::Renewed);
}

/// Clones of one image have one machine id, and many containers have none. Who comes second is turned away, and who holds goes on.
#[tokio::test]
async fn a_second_machine_with_the_same_id_is_turned_away() {
    for id in [Id::Same, Id::None] {
        let (_dir, path) = fresh();
        let (store, owner) = held(id, &path).await;
        finish(vec![elsewhere(id, 1_000, "turned away", &path)]);
        is_renewed(&store, &owner).await;
    }
}

/// A container may have a boot id of its own (LXC, systemd-nspawn), a new one whenever it is started. The kernel is the same, and so
/// is the clock that leases are counted by.
#[tokio::test]
async fn a_container_with_a_boot_id_of_its_own_shares_the_locks() {
    for id in [Id::Same, Id::None] {
        let (_dir, path) = fresh();
        let (store, owner) = held(id, &path).await;
        finish(vec![elsewhere(id, 0, "busy", &path)]);
        is_renewed(&store, &owner).await;
    }
}

/// The holder had nothing to write since the other machine booted, which therefore takes it for an earlier boot. The holder is
/// notified at its next call, by what it knows itself: the file was of its own boot, which has not ended.
#[tokio::test]
async fn a_holder_whose_file_another_boot_took_is_told() {
    let (_dir, path) = fresh();
    let (store, owner) = held(Id::Same, &path).await;
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    let booted = tenure::BootTime::now().since_boot().as_secs();
    let just_booted = 1 - i64::try_from(booted).unwrap();
    finish(vec![elsewhere(Id::Same, just_booted, "take", &path)]);
    // As if the two clocks were apart.
    raw(&path).execute("UPDATE meta SET written = 1", []).unwrap();
    turned_away(&store.renew(&[lease("x", &owner)]).await.remove(0).unwrap_err());
    turned_away(&store.acquire(&request("y", &owner)).await.unwrap_err());
}

/// In a time name space the boot-time clock is another one, although the boot id is the same.
#[tokio::test]
async fn a_time_name_space_is_turned_away() {
    let boot = fs::read_to_string("/proc/uptime").unwrap();
    let booted: i64 = boot.split('.').next().unwrap().parse().unwrap();
    for apart in [1_000, 1 - booted] {
        let (_dir, path) = fresh();
        let (store, owner) = held(Id::Same, &path).await;
        finish(vec![start_apart(&["-T", "--boottime", &apart.to_string()], "true", "turned away", &path)]);
        is_renewed(&store, &owner).await;
        busy(&store, &request("x", &crate::common::owner())).await;
    }
}

/// If the clock says that nothing was written since, the store accepts a restart. If the clock says otherwise, because it was set
/// back, the store asks the user.
#[tokio::test]
async fn a_restart_is_told_by_the_clock() {
    let (_dir, path) = fresh();
    let owner = owner();
    granted(&open(&path).unwrap(), &request("x", &owner)).await;
    wait_until_closed(&path);
    raw(&path).execute("UPDATE meta SET boot = 'an earlier boot', booted = booted - 1000000000", []).unwrap();
    turned_away(&open(&path).unwrap_err());
    raw(&path).execute("UPDATE meta SET written = booted", []).unwrap();
    granted(&open(&path).unwrap(), &request("x", &owner)).await;
}

/// All who are started with the machine find the file of the boot before, and none of them takes another's first write for that of
/// another machine.
#[test]
fn many_find_the_file_of_an_earlier_boot_at_once() {
    const MANY: usize = 12;
    for _ in 0..25 {
        let (_dir, path) = fresh();
        drop(open(&path).unwrap());
        wait_until_closed(&path);
        raw(&path).execute("UPDATE meta SET boot = 'an earlier boot', booted = 1, written = 2", []).unwrap();
        let together = std::sync::Barrier::new(MANY);
        let begins = |_| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            together.wait();
            let owner = owner();
            runtime.block_on(async { granted(&patient(&path), &request(&owner.to_string(), &owner)).await });
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..MANY).map(|n| scope.spawn(move || begins(n))).collect();
            for thread in started {
                thread.join().unwrap();
            }
        });
    }
}

/// Another machine looks whether anything was written since it booted, so a renewal counts as much as a grant.
#[tokio::test]
async fn every_change_is_noted() {
    let (_dir, path) = fresh();
    let (store, owner) = held(Id::Same, &path).await;
    let noted = || raw(&path).query_row("SELECT written > booted FROM meta", [], |row| row.get::<_, bool>(0)).unwrap();
    let forget = || raw(&path).execute("UPDATE meta SET written = booted", []).unwrap();
    assert!(noted(), "a grant");
    forget();
    is_renewed(&store, &owner).await;
    assert!(noted(), "a renewal");
    forget();
    store.release(&lease("x", &owner), std::time::Duration::ZERO).await.unwrap();
    assert!(noted(), "a release");
}
