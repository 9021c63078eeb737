//! `tenure break`: what it breaks, and what it leaves alone.

use tenure_testkit::RedisServer;

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
        assert_eq!(ended.code, 1, "{condition:?}: {ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains("nothing is broken") && holds(&web) && holds(&other), "{condition:?}: {ended:?}");
    }
    assert_eq!(place.output(&["break", "--if-held-by", "web", "--fence", &fence, "x"]).code, 0);
    assert!(!holds(&web) && holds(&other), "one reader of two was meant");
    assert_eq!(place.output(&["break", "--if-held-by", &other, "x"]).code, 0);
    assert!(!holds(&other) && place.is_free("x"));
}
