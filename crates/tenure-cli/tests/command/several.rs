//! Several names, all or nothing.
use crate::common::{Ended, Place, is_dead, keepers, wait_for, watched};
use serde_json::Value;

fn lines<'a>(printed: &'a str, key: &str) -> Vec<&'a str> {
    let value = printed.split_once(&format!("{key}='")).unwrap_or_else(|| panic!("no {key} in {printed}")).1;
    value.split('\'').next().unwrap().lines().collect()
}

#[test]
fn the_command_is_told_of_every_name() {
    let place = Place::new();
    let show = "echo \"$TENURE_NAME\"; echo \"$TENURE_TOKEN\"; echo \"$TENURE_FENCE\"; echo $TENURE_EXPIRES_AT; date +%s%3N";
    let ended = place.output(&[
        "run",
        "--ttl",
        "20s",
        "--label",
        "me",
        "-a",
        "заказ 7",
        "-a",
        "a",
        "-a",
        "заказ 7",
        "b",
        "--",
        "sh",
        "-c",
        show,
    ]);
    let told: Vec<&str> = ended.out.lines().collect();
    assert_eq!((ended.code, told.len(), &told[..3]), (0, 3 * 3 + 2, &["a", "b", "заказ 7"][..]), "{ended:?}");
    assert!(told[3] != told[4] && told[4] != told[5], "each name has a token of its own");
    assert!(told[3].starts_with("me.") && told[3].len() == 3 + 32, "{}", told[3]);
    assert!(told[6..9].iter().all(|fence| fence.parse::<u64>().is_ok_and(|fence| fence > 0)));
    let left = told[9].parse::<i64>().unwrap() - told[10].parse::<i64>().unwrap();
    assert!((15_000..=20_000).contains(&left), "{left} ms left of 20 s");
    assert_eq!(place.output(&["show"]).out, "");
    // One that is held keeps all from being taken, and is named.
    assert_eq!(place.output(&["acquire", "b"]).code, 0);
    let ended = place.output(&["run", "-w", "100ms", "-a", "b", "-a", "c", "a", "--", "echo", "ran"]);
    assert!(ended.code == 75 && ended.out.is_empty() && ended.err.contains("\"b\""), "{ended:?}");
    assert!(place.is_free("a") && place.is_free("c"));
}

#[test]
fn a_loss_of_one_ends_the_command() {
    let place = Place::new();
    let run = place.spawn(&["run", "--ttl", "6s", "-a", "a", "b", "--", "sh", "-c", "echo $$ > child; sleep 60"]);
    let child = place.pid("child");
    assert_eq!(place.output(&["break", "a"]).code, 0);
    let ended = run.end();
    assert_eq!(ended.code, 79, "{ended:?}");
    assert!(ended.err.contains("the lock \"a\" is lost"), "{}", ended.err);
    assert!(is_dead(child));
    assert!(place.is_free("a") && place.is_free("b"));
}

#[test]
fn what_acquire_prints_has_a_line_for_each() {
    let place = Place::new();
    let printed = place.output(&["acquire", "-a", "b", "a"]);
    assert_eq!((printed.code, lines(&printed.out, "TENURE_NAME")), (0, vec!["a", "b"]), "{printed:?}");
    for (name, token) in ["a", "b"].iter().zip(lines(&printed.out, "TENURE_TOKEN")) {
        assert_eq!(place.output(&["renew", name, "--token", token, "--ttl", "60s"]).code, 0);
        assert_eq!(place.output(&["release", name, "--token", token]).code, 0);
        assert!(place.is_free(name));
    }
    let json = place.output(&["acquire", "-o", "json", "-a", "b", "a"]).out;
    let leases: Value = serde_json::from_str(&json).unwrap();
    let names: Vec<&str> = leases.as_array().unwrap().iter().map(|lease| lease["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    let script = "lease=$($TENURE acquire -a d c) || exit; eval \"$lease\"; printf '%s ' $TENURE_NAME";
    let ended = Ended::from(place.shell("sh", script).output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (0, "c d "), "{ended:?}");
}

#[test]
fn a_keeper_keeps_what_was_not_released() {
    let place = Place::new();
    let script = watched();
    let pid = script.pid().to_string();
    let lease = ["--ttl", "3s", "--kill-after", "100ms"];
    let printed = place.output(&[&["acquire", "--watch-pid", &pid], &lease[..], &["-a", "b", "-a", "c", "a"]].concat());
    assert_eq!(printed.code, 0, "{printed:?}");
    let tokens = lines(&printed.out, "TENURE_TOKEN");
    assert_eq!(place.output(&["release", "b", "--token", tokens[1]]).code, 0);
    assert!(place.is_free("b"));
    // Another waits in vain for longer than the ttl.
    assert_eq!(place.output(&["run", "-w", "4s", "-a", "c", "a", "--", "true"]).code, 75, "nobody renews the others");
    assert!(!place.is_free("a") && !place.is_free("c"), "nobody renews one of the others");
    assert_eq!(keepers(&place).len(), 1);
    for (name, token) in [("c", tokens[2]), ("a", tokens[0])] {
        assert_eq!(place.output(&["release", name, "--token", token]).code, 0);
    }
    wait_for("the end of the keeper", || keepers(&place).is_empty());
    assert!(!is_dead(script.pid()), "releasing was taken for a loss");
}

#[test]
fn a_keeper_that_loses_one_ends_the_work() {
    let place = Place::new();
    let mut script = watched();
    let pid = script.pid().to_string();
    assert_eq!(place.output(&["acquire", "--watch-pid", &pid, "--ttl", "6s", "-a", "b", "a"]).code, 0);
    assert_eq!(place.output(&["break", "b"]).code, 0);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&script.status()), Some(15));
    wait_for("the end of the keeper", || keepers(&place).is_empty());
    assert!(place.is_free("a") && place.is_free("b"));
}
