//! The command on etcd, and `etcdctl lock` beside it.

use std::process::{Command, Stdio};

use tenure_testkit::{EtcdCluster, Spawned};

use crate::common::{Place, wait_for};

/// Processes of each kind, on one counter that bears no overlap.
#[test]
fn etcdctl_lock_and_tenure_take_turns() {
    const EACH: usize = 8;
    let (place, etcd, prefix) = (Place::new(), EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (url, name) = (etcd.url(&prefix), format!("{prefix}counter"));
    std::fs::write(place.path("count"), "0").unwrap();
    let step = format!("n=$(cat {0}); sleep 0.002; echo $((n + 1)) > {0}", place.path("count").display());
    let theirs = || {
        let mut theirs = etcd.etcdctl();
        theirs.args(["lock", "--ttl=10", &name, "--", "sh", "-c", &step]);
        theirs
    };
    let ours = || place.tenure(&["run", "--store", &url, "counter", "--", "sh", "-c", &step]);
    let taking = |start: &(dyn Fn() -> Command + Sync)| {
        for _ in 0..EACH {
            let ended = Spawned::output(&mut start()).unwrap();
            assert!(ended.status.success(), "{ended:?}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| taking(&theirs));
            scope.spawn(|| taking(&ours));
        }
    });
    assert_eq!(place.read("count").trim(), (EACH * 6).to_string(), "two were inside at once");
}

/// A documented hole: the lock of `etcdctl lock` is broken, and its command goes on beside the next holder.
#[test]
fn etcdctl_lock_notices_no_loss() {
    let (place, etcd, prefix) = (Place::new(), EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    // `run -n` asks once, so there is time for an answer.
    let (url, name) = (etcd.url(&prefix) + "&timeout=5s", format!("{prefix}x"));
    let (begun, goes_on) = (place.path("begun"), place.path("goes-on"));
    let script = format!("touch {0}; until [ -e {1} ]; do sleep 0.01; done", begun.display(), goes_on.display());
    let mut lock = etcd.etcdctl();
    let mut theirs = Spawned::spawn(lock.args(["lock", &name, "--", "sh", "-c", &script]).stdout(Stdio::null())).unwrap();
    wait_for("etcdctl to lock", || begun.exists());
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 75);
    assert_eq!(place.output(&["break", "--foreign", "--store", &url, "x"]).code, 0);
    let ours = place.output(&["run", "-n", "--store", &url, "x", "--", "touch", goes_on.to_str().unwrap()]);
    assert_eq!(ours.code, 0, "{ours:?}");
    theirs.wait_exit(std::time::Duration::from_secs(30));
}

/// A fence is 1024 times a revision, and `etcdctl lock` shows the revision.
#[test]
fn a_fence_divided_by_1024_is_a_revision_of_etcd() {
    let (place, etcd, prefix) = (Place::new(), EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (url, name) = (etcd.url(&prefix), format!("{prefix}x"));
    let ours = || {
        let run = place.output(&["run", "--store", &url, "x", "--", "sh", "-c", "echo $((TENURE_FENCE / 1024))"]);
        run.out.trim().parse::<u64>().unwrap_or_else(|_| panic!("{run:?}"))
    };
    let theirs = || {
        let mut lock = etcd.etcdctl();
        lock.args(["lock", &name, "--", "sh", "-c", "echo $ETCD_LOCK_REV"]);
        let said = String::from_utf8(Spawned::output(&mut lock).unwrap().stdout).unwrap();
        said.trim().parse::<u64>().unwrap_or_else(|_| panic!("{said:?}"))
    };
    let revision = || {
        let answer: serde_json::Value = serde_json::from_str(&etcd.ctl(&["get", "nothing", "-w", "json"])).unwrap();
        answer["header"]["revision"].as_u64().unwrap()
    };
    let before = revision();
    let order = [ours(), theirs(), ours(), theirs()];
    let after = revision();
    assert!(order.is_sorted_by(|one, next| one < next), "{order:?}");
    assert!(before < order[0] && order[3] <= after, "{order:?}, from {before} to {after}");
}
