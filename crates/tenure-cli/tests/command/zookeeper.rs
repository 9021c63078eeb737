//! The command on a ZooKeeper.

use tenure_testkit::{ZooKeeperEnsemble, ZooKeeperServer as Server, some_of};

use crate::common::{Place, assert_one_line, count};

fn url() -> String {
    Server::shared().url(&Server::fresh_chroot())
}

#[test]
fn turns_on_zookeeper() {
    count(10, some_of(25), Some(&url()), || ());
}

/// The others go on, and every session with them.
#[test]
fn turns_go_on_when_the_leader_is_killed() {
    let ensemble = ZooKeeperEnsemble::start();
    count(4, some_of(25), Some(&ensemble.url("turns")), || ensemble.leader().kill());
}

#[test]
fn every_command_speaks_to_a_zookeeper() {
    let (place, url) = (Place::new(), url());
    let run =
        place.output(&["run", "--store", &url, "x", "--", "sh", "-c", "echo $TENURE_FENCE; tenure=$TENURE; $tenure show x"]);
    assert!(run.code == 0 && run.out.lines().count() >= 2, "{run:?}");
    let held = ["run", "--store", &url, "x", "--"];
    let inner = format!("{} run -n --store {url} --shared x -- true; echo $?", env!("CARGO_BIN_EXE_tenure"));
    let busy = place.output(&[&held[..], &["env", "-u", "TENURE_NAME", "sh", "-c", &inner]].concat());
    assert!(busy.code == 0 && busy.out.trim().ends_with("75"), "{busy:?}");
    let shown = place.output(&["show", "--store", &url, "-o", "json"]);
    assert_eq!(shown.out.trim(), "[]", "{shown:?}");
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-a", "y", "--permits", "1/3", "x", "--", "true"]).code, 0);
    // It would end with this process.
    let refused = place.output(&["acquire", "--store", &url, "--ttl", "1m", "x"]);
    assert_eq!(refused.code, 64, "{refused:?}");
    let refused = place.output(&["run", "--store", &url, "--once-per", "1h", "x", "--", "true"]);
    assert!(refused.code == 64 && refused.err.contains("--once-per"), "{refused:?}");
    assert_one_line(&refused);
    let bad = place.output(&["run", "--store", &format!("{url}?ttl=1"), "x", "--", "true"]);
    assert!(bad.code == 64 && bad.err.contains("ttl="), "{bad:?}");
    assert_one_line(&bad);
}
