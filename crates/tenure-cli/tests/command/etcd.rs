//! The command on etcd, and `etcdctl lock` beside it.

use std::process::Stdio;

use tenure_testkit::{EtcdCluster, Spawned, some_of};

use crate::common::{Place, assert_one_line, count};

fn url() -> String {
    url_at(&EtcdCluster::fresh_prefix())
}

/// `run -n` asks once, so there is time for an answer.
fn url_at(prefix: &str) -> String {
    EtcdCluster::shared().url(prefix) + "&timeout=5s"
}

#[test]
fn turns_on_etcd() {
    count(10, some_of(25), Some(&url()), || ());
}

#[test]
fn every_command_speaks_to_etcd() {
    let (place, prefix) = (Place::new(), EtcdCluster::fresh_prefix());
    let url = url_at(&prefix);
    let run =
        place.output(&["run", "--store", &url, "x", "--", "sh", "-c", "echo $TENURE_FENCE; tenure=$TENURE; $tenure show x"]);
    assert!(run.code == 0 && run.out.lines().count() >= 2, "{run:?}");
    let lease = place.output(&["acquire", "--store", &url, "--ttl", "1m", "x"]);
    assert!(lease.code == 0 && lease.out.contains("TENURE_FENCE="), "{lease:?}");
    let token = lease.out.lines().find_map(|line| line.split_once("TENURE_TOKEN=")).expect("it prints the token").1;
    let token = token.split(';').next().unwrap().trim_matches('\'').to_owned();
    assert_eq!(place.output(&["renew", "--store", &url, "--ttl", "2m", "--token", &token, "x"]).code, 0, "{token}");
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 75);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "--shared", "x", "--", "true"]).code, 75);
    let shown = place.output(&["show", "--store", &url, "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert!(shown[0]["holders"][0]["ttl_ms"].as_u64().unwrap() > 60_000, "{shown}");
    assert_eq!(place.output(&["release", "--store", &url, "--token", &token, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-a", "y", "--permits", "1/3", "x", "--", "true"]).code, 0);
    // The lock of another client is shown by its key, and can be broken.
    let key = prefix + "x/694d8d2f";
    let granted = EtcdCluster::shared().ctl(&["lease", "grant", "60"]);
    let session = format!("--lease={}", granted.split_whitespace().nth(1).unwrap());
    EtcdCluster::shared().ctl(&["put", &session, &key, ""]);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 75);
    assert_eq!(place.output(&["break", "--foreign", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
    // A key without a lease is data of another program. It is not in the way, and nothing deletes it.
    EtcdCluster::shared().ctl(&["put", &key, "data"]);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
    place.output(&["break", "--foreign", "--store", &url, "x"]);
    assert!(EtcdCluster::shared().ctl(&["get", &key]).contains("data"));
}

#[test]
fn faulty_urls_of_etcd_say_what_is_wrong() {
    let place = Place::new();
    for (url, code, why) in [
        ("etcd://h?colour=red", 64, "colour="),
        ("etcd://", 64, "host"),
        ("etcds://127.0.0.1:1?ca=/nowhere", 64, "/nowhere"),
        ("etcd://127.0.0.1:1", 69, "refused"),
    ] {
        let refused = place.output(&["run", "-n", "--store", url, "x", "--", "true"]);
        assert!(refused.code == code && refused.err.contains(why), "{url}: {refused:?}");
        assert_one_line(&refused);
    }
}

/// Five processes of each kind, on one counter that bears no overlap.
#[test]
fn etcdctl_lock_and_tenure_take_turns() {
    const TURNS: usize = 10;
    let (place, etcd, prefix) = (Place::new(), EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (url, name) = (etcd.url(&prefix), format!("{prefix}counter"));
    let file = place.path("count");
    std::fs::write(&file, "0").unwrap();
    let step = format!("n=$(cat {0}); sleep 0.002; echo $((n + 1)) > {0}", file.display());
    let mut children = Vec::new();
    for turn in 0..TURNS {
        for _ in 0..5 {
            let mut theirs = etcd.etcdctl();
            theirs.args(["lock", "--ttl=10", &name, "--", "sh", "-c", &step]).stdout(Stdio::null());
            children.push((turn, Spawned::spawn(&mut theirs).unwrap()));
            let mut ours = place.tenure(&["run", "--store", &url, "counter", "--", "sh", "-c", &step]);
            children.push((turn, Spawned::spawn(ours.stdout(Stdio::null())).unwrap()));
        }
        while let Some(at) = children.iter().position(|(begun, _)| *begun < turn) {
            let status = children.swap_remove(at).1.wait_exit(std::time::Duration::from_secs(60));
            assert!(status.success(), "{status}");
        }
    }
    for (_, mut child) in children {
        assert!(child.wait_exit(std::time::Duration::from_secs(60)).success());
    }
    let counted = std::fs::read_to_string(&file).unwrap();
    assert_eq!(counted.trim(), (TURNS * 10).to_string(), "two were inside at once");
}

/// A documented hole: the lock of `etcdctl lock` is broken, and its command goes on beside the next holder.
#[test]
fn etcdctl_lock_notices_no_loss() {
    let (place, etcd, prefix) = (Place::new(), EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (url, name) = (url_at(&prefix), format!("{prefix}x"));
    let (begun, goes_on) = (place.path("begun"), place.path("goes-on"));
    let script = format!("touch {0}; until [ -e {1} ]; do sleep 0.01; done", begun.display(), goes_on.display());
    let mut lock = etcd.etcdctl();
    let mut theirs = Spawned::spawn(lock.args(["lock", &name, "--", "sh", "-c", &script]).stdout(Stdio::null())).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !begun.exists() {
        assert!(std::time::Instant::now() < deadline, "etcdctl does not lock");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
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

/// A lease takes 2 s at least, which is the whole of a period of 2 s.
#[test]
fn a_period_that_is_too_short_for_its_leases_is_refused() {
    let (place, url) = (Place::new(), EtcdCluster::shared().url(&EtcdCluster::fresh_prefix()));
    let run = |period: &str| place.output(&["run", "--store", &url, "--once-per", period, "x", "--", "echo", "run"]);
    let ended = run("2s");
    assert!(ended.code == 64 && ended.out.is_empty() && ended.err.contains("--once-per"), "{ended:?}");
    assert_one_line(&ended);
    assert_eq!(run("1m").out, "run\n");
    assert_eq!(run("1m").code, 75);
}
