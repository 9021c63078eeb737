//! `tenure break`: what it breaks, and what it leaves alone.

use tenure_testkit::{EtcdCluster, MemcachedServer, RedisServer, ZooKeeperServer};

use crate::common::{Place, assert_one_line};

/// A key that an application wrote is deleted only by who says so.
#[test]
fn data_of_an_application_is_broken_on_demand_alone() {
    let (place, server) = (Place::new(), RedisServer::start());
    let (url, named) = (server.url(), format!("{}?scheme=set-nx", server.url()));
    for (args, code) in [
        (&["break", "--store", &url, "basket"][..], 77),
        (&["break", "--store", &url, "--yes", "basket"], 77),
        (&["break", "--store", &url, "--foreign", "basket"], 0),
        (&["break", "--store", &named, "basket"], 0),
    ] {
        server.command(&["SET", "basket", "three apples"]);
        let ended = place.output(args);
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        assert_one_line(&ended);
        assert_eq!(server.command(&["EXISTS", "basket"]), i64::from(code != 0), "{args:?}");
        assert!(code == 0 || ended.err.contains("three apples") && ended.err.contains("--foreign"), "{}", ended.err);
    }
    server.command(&["SET", "basket", "three apples"]);
    let ended = place.output(&["break", "--store", &named, "--fence", "1", "basket"]);
    assert!(ended.code == 1 && ended.err.contains("does not show; say --if-held-by"), "{ended:?}");
    let memcached = MemcachedServer::start();
    memcached.set_bytes("basket", b"three apples", 0);
    // That scheme is our own.
    for url in [memcached.url(), format!("{}?scheme=cas", memcached.url())] {
        assert_eq!(place.output(&["break", "--store", &url, "basket"]).code, 77, "{url}");
    }
}

/// A key or a node may look like a lock of another client, and be data. It locks the name all the same.
#[test]
fn a_key_of_others_in_etcd_or_zookeeper_is_broken_on_demand_alone() {
    let (place, etcd, zookeeper) = (Place::new(), EtcdCluster::shared(), ZooKeeperServer::shared());
    let (prefix, chroot) = (EtcdCluster::fresh_prefix(), ZooKeeperServer::fresh_chroot());
    let key = format!("{prefix}data/694d8d2f");
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    etcd.ctl(&["put", &format!("--lease={}", granted.split_whitespace().nth(1).unwrap()), &key, "three apples"]);
    let is_in_etcd = || etcd.ctl(&["get", &key]).contains("three apples");
    let node = |name: &str| format!("/{chroot}{name}");
    assert!(["", "/data", "/data/x-__READ__0000000003"].iter().all(|name| zookeeper.create(&node(name))));
    // One that is there is not made again.
    let is_in_zookeeper = || !zookeeper.create(&node("/data/x-__READ__0000000003"));
    for (url, is_there) in [(etcd.url(&prefix), &is_in_etcd as &dyn Fn() -> bool), (zookeeper.url(&chroot), &is_in_zookeeper)] {
        for (args, code) in [(&["break"][..], 77), (&["break", "--yes"], 77), (&["break", "--foreign"], 0)] {
            let ended = place.output(&[args, &["--store", &url, "data"]].concat());
            assert_eq!((ended.code, is_there()), (code, code != 0), "{url} {args:?}: {ended:?}");
            assert_one_line(&ended);
            assert!(code == 0 || ended.err.contains("--foreign") && !ended.err.contains("scheme"), "{}", ended.err);
        }
        let holder = place.spawn(&["run", "--store", &url, "ours", "--", "sh", "-c", "echo > held; sleep 600"]);
        place.line("held");
        assert_eq!(place.output(&["break", "--store", &url, "ours"]).code, 0, "{url}");
        drop(holder);
        std::fs::remove_file(place.path("held")).unwrap();
    }
}

/// A caller that names a holder or a grant breaks nothing else.
#[test]
fn a_condition_that_does_not_hold_breaks_nothing() {
    let place = Place::new();
    let take = |label: &str| {
        let lease = place.output(&["acquire", "-o", "json", "--shared", "--ttl", "1m", "--label", label, "x"]);
        let lease: serde_json::Value = serde_json::from_str(&lease.out).unwrap();
        ["token", "fence"].map(|key| lease[key].as_str().unwrap().to_owned())
    };
    let ([web, fence], [other, _]) = (take("web"), take("other"));
    let holds = |token: &str| place.output(&["renew", "--token", token, "x"]).code == 0;
    for condition in [&["--if-held-by", "nobody"][..], &["--fence", "1"], &["--if-held-by", "other", "--fence", &fence]] {
        let ended = place.output(&[&["break"], condition, &["x"]].concat());
        ended.says(1, "nothing is broken");
        assert!(holds(&web) && holds(&other), "{condition:?}: {ended:?}");
    }
    assert_eq!(place.output(&["break", "--if-held-by", "web", "--fence", &fence, "x"]).code, 0);
    assert!(!holds(&web) && holds(&other), "one reader of two was meant");
    assert_eq!(place.output(&["break", "--if-held-by", &other, "x"]).code, 0);
    assert!(!holds(&other) && place.is_free("x"));
}
