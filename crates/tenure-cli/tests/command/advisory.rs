//! The command on locks that a session of a database holds.

use tenure_testkit::some_of;

use crate::common::{Ended, Place, assert_one_line, turns};

/// Counts, and says that there is no fence.
pub(crate) fn turns_of_sessions(url: &str) {
    let place = turns(10, some_of(25), Some(url), || ());
    assert!(place.read("fences").lines().all(str::is_empty), "a session lock has no fence");
}

/// Most is as anywhere. A lease that is to outlive its process is refused, with the reason.
pub(crate) fn every_command(url: &str) {
    let place = Place::new();
    let inside =
        |script: &str| place.output(&["run", "--store", url, "door", "--", "sh", "-c", &format!("tenure=$TENURE; {script}")]);
    let has = |ended: &Ended, code: i32, why: &str| {
        assert!(ended.code == code && format!("{}{}", ended.out, ended.err).contains(why), "{why}: {ended:?}");
    };
    has(&inside("$tenure show door"), 0, "door");
    has(&inside("env -u TENURE_NAME -u TENURE_TOKEN $tenure run -n door -- true"), 75, "door");
    has(&inside("$tenure run door -- true"), 64, "by the command around this one");
    has(&inside("$tenure renew door --token $TENURE_TOKEN"), 64, "another process");
    has(&inside("$tenure break door; sleep 30"), 79, "lost");
    has(&inside("$tenure release door --token $TENURE_TOKEN; sleep 30"), 79, "lost");
    has(
        &inside(
            "lease=$($tenure acquire --watch-pid $$ attic) && eval \"$lease\" && $tenure release attic --token $TENURE_TOKEN",
        ),
        0,
        "",
    );
    for (args, why) in [
        (&["acquire", "attic"][..], "--watch-pid"),
        (&["run", "--min-hold", "1s", "attic", "--", "true"], "min-hold"),
        (&["run", "--once-per", "1h", "attic", "--", "true"], "--once-per"),
        (&["run", "--shared", "attic", "--", "true"], "mutex"),
        (&["run", "--permits", "1/3", "attic", "--", "true"], "mutex"),
    ] {
        let ended = place.output(&[&args[..1], &["--store", url][..], &args[1..]].concat());
        has(&ended, 64, why);
        assert_one_line(&ended);
    }
    assert_eq!(place.output(&["run", "-n", "--store", url, "-a", "attic", "door", "--", "true"]).code, 0);
    for (parameter, why) in [("table=x", "session locks"), ("create=yes", "session locks"), ("colour=red", "colour=")] {
        let ended = place.output(&["run", "-n", "--store", &format!("{url}&{parameter}"), "door", "--", "true"]);
        has(&ended, 64, why);
        assert_one_line(&ended);
    }
}
