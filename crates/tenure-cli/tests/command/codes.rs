//! Exit codes, and what is said with them.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::common::{Ended, Place, assert_one_line};

#[test]
fn the_commands_own_code_is_ours() {
    let place = Place::new();
    for code in [0, 1, 42, 255] {
        let ended = place.output(&["run", "x", "--", "sh", "-c", &format!("echo out; exit {code}")]);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (code, "out\n", ""));
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130), ("RTMIN", 162)] {
        let ended = place.output(&["run", "x", "--", "bash", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ended.code, code, "{signal}");
    }
}

#[test]
fn bad_input_is_one_clear_line() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir.db")).unwrap();
    std::fs::write(place.path("bad.db"), "this is no database at all, not even a bit\n".repeat(99)).unwrap();
    std::fs::write(place.path("plain"), "no program").unwrap();
    let long = "n".repeat(1025);
    let table: &[(&[&str], i32, &str)] = &[
        (&["run", "", "--", "true"], 64, "name is empty"),
        (&["run", &long, "--", "true"], 64, "1025 bytes"),
        (&["run", "a\nb", "--", "true"], 64, "U+000A"),
        (&["run", "x"], 64, "no command"),
        (&["run", "x", "--"], 64, "no command"),
        (&["run", "x", "true"], 64, "'true' found; the command to run is written behind --"),
        (&["run"], 64, "NAME"),
        (&["run", "--ttl", "0", "x", "--", "true"], 64, "ttl"),
        (&["run", "--ttl", "200ms", "x", "--", "true"], 64, "too short"),
        (&["run", "--ttl", "soon", "x", "--", "true"], 64, "\"soon\""),
        (&["run", "-w", "-1", "x", "--", "true"], 64, "-1"),
        (&["run", "-w", "5x", "x", "--", "true"], 64, "500ms"),
        (&["run", "-n", "-w", "1", "x", "--", "true"], 64, "--wait"),
        (&["run", "--kill-after", "11", "x", "--", "true"], 64, "a third of the ttl"),
        (&["run", "-E", "256", "x", "--", "true"], 64, "256"),
        (&["run", "--label", "a\nb", "x", "--", "true"], 64, "control characters"),
        (&["run", "--store", "ftp://h", "x", "--", "true"], 64, "ftp:"),
        (&["run", "--store", "postgres://h", "x", "--", "true"], 64, "cannot speak postgres: yet"),
        (&["run", "--store", "quorum+redis://a,b,c", "x", "--", "true"], 64, "cannot speak quorum+redis: yet"),
        (&["run", "--store", "redis://h/?nonsense=1", "x", "--", "true"], 64, "nonsense="),
        (&["run", "--store", "sqlite:x?nonsense=1", "x", "--", "true"], 64, "nonsense="),
        (&["run", "--store", "sqlite:dir.db", "x", "--", "true"], 74, "dir.db"),
        (&["run", "--store", "sqlite:bad.db", "x", "--", "true"], 74, "bad.db"),
        (&["run", "--store", "sqlite:plain/x.db", "x", "--", "true"], 74, "plain"),
        (&["run", "--store", "redis://127.0.0.1:1", "-n", "x", "--", "true"], 69, "127.0.0.1:1"),
        (&["run", "x", "--", "no-such-command"], 127, "no-such-command"),
        (&["run", "x", "--", "./plain"], 126, "./plain"),
        (&["run", "x", "--", "./dir.db"], 126, "./dir.db"),
        (&["run", "x", "--", ""], 127, "\"\""),
        (&["frobnicate"], 64, "frobnicate"),
        (&["run", "--shared", "--write", "x", "--", "true"], 64, "--write"),
        (&["run", "--shared", "--permits", "1/2", "x", "--", "true"], 64, "--permits"),
        (&["acquire", "--write", "--permits", "1/2", "x"], 64, "--permits"),
        (&["run", "--permits", "2", "x", "--", "true"], 64, "e.g. 1/5"),
        (&["run", "--permits", "0/3", "x", "--", "true"], 64, "1 to N of N permits"),
        (&["run", "--permits", "4/3", "x", "--", "true"], 64, "4 of 3 permits"),
        (&["run", "--permits", "1/4294967295", "x", "--", "true"], 64, "at most 4294967294"),
        (&["run", "-a", "", "x", "--", "true"], 64, "name is empty"),
        (&["run", "-a", "y", "--token", "t", "x", "--", "true"], 64, "leave the token out"),
        (&["release", "x", "--token", ""], 64, "token"),
        (&["release", "x", "--token", "hex:1"], 64, "--token"),
        (&["release", "x"], 64, "--token"),
        (&["release", "x", "--token", "t"], 79, "not held"),
        (&["renew", "x", "--token", "t"], 79, "x"),
        (&["break", "x"], 1, "not held"),
        (&["acquire", "--max-hold", "1m", "x"], 64, "--watch-pid"),
        (&["acquire", "--watch-pid", "999999999", "x"], 64, "no such process"),
        (&["acquire", "--watch-pid", "-1", "x"], 64, "-1"),
    ];
    for (args, code, why) in table {
        let ended = place.output(args);
        assert_eq!(ended.code, *code, "{args:?}: {ended:?}");
        let out = if args[0] == "acquire" { format!("(exit {code})\n") } else { String::new() };
        assert_eq!(ended.out, out, "{args:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
        assert!(place.is_free("x"), "{args:?} left something behind");
    }
}

#[test]
fn names_that_are_not_utf8_are_refused() {
    let place = Place::new();
    let mut command = place.tenure(&["run"]);
    command.arg(OsStr::from_bytes(b"a\xff")).args(["--", "true"]);
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, 64);
    assert_one_line(&ended);
    assert!(ended.err.contains("not UTF-8"), "{}", ended.err);
}

#[test]
fn arguments_of_the_command_may_be_any_bytes() {
    let place = Place::new();
    let mut command = place.tenure(&["run", "x", "--", "printf", "%s"]);
    command.arg(OsStr::from_bytes(b"a\xff"));
    assert_eq!(command.output().unwrap().stdout, b"a\xff");
}

#[test]
fn help_is_no_error_and_nothing_to_do_is() {
    let place = Place::new();
    let help = place.output(&["run", "--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for taught in ["tenure run -n", "tenure run -w", "TENURE_FENCE", "75", "79", "TENURE_PASSWORD"] {
        assert!(help.out.contains(taught), "{taught} is not taught");
    }
    assert_eq!(place.output(&["--version"]).code, 0);
    let bare = place.output(&[]);
    assert_eq!((bare.code, bare.out.as_str()), (64, ""));
    assert!(bare.err.contains("Usage: tenure"));
    assert!(!format!("{}{}", help.out, bare.err).contains('\x1b'), "colour without a terminal");
}

#[test]
fn a_held_name_is_75_with_label_and_age() {
    let place = Place::new();
    let held = place.output(&["acquire", "--label", "night shift", "x"]);
    assert_eq!(held.code, 0);
    // From a tenth of a second on the age is told.
    assert_eq!(place.output(&["run", "-w", "100ms", "x", "--", "true"]).code, 75);
    for (args, code) in [(&["-n"][..], 75), (&["-w", "0"], 75), (&["-w", "50ms"], 75), (&["-n", "-E", "0"], 0), (&["-nE9"], 9)] {
        let mut line = vec!["run"];
        line.extend(args);
        line.extend(["x", "--", "echo", "ran"]);
        let ended = place.output(&line);
        assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains("night shift, for 0."), "{}", ended.err);
    }
    assert_eq!(place.output(&["run", "-nq", "x", "--", "true"]).err, "");
}

#[test]
fn configuration_errors_name_file_and_key() {
    let place = Place::new();
    let table = [
        ("stor = \"sqlite:x\"", "stor"),
        ("ttl = \"soon\"", "ttl"),
        ("wait = true", "wait"),
        ("store = 7", "store"),
        ("store = \"ftp://h\"", "store: ftp:"),
        ("label = \"a\\nb\"", "label"),
        ("ttl = \"1ms\"", "ttl: a ttl of 1ms"),
        ("ttl = \"200y\"", "ttl: "),
        ("store = \"sqlite:relative.db\"", "store: the path \"relative.db\" is relative"),
        ("= 7", "line 1"),
        ("password_file = \"/nonexistent/p\"\nstore = \"redis://127.0.0.1:1\"", "/nonexistent/p"),
    ];
    for (text, key) in table {
        place.write_config(text);
        let ended = place.output(&["run", "x", "--", "true"]);
        assert_eq!(ended.code, 78, "{text}: {ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains("config") && ended.err.contains(key), "{}", ended.err);
    }
    std::fs::remove_file(place.path("config/tenure/config.toml")).unwrap();
    std::fs::create_dir(place.path("config/tenure/config.toml")).unwrap();
    let ended = place.output(&["run", "x", "--", "true"]);
    assert_eq!(ended.code, 78);
    assert!(ended.err.contains("config.toml"), "{}", ended.err);
}

#[test]
fn flags_go_before_environment_before_file() {
    let place = Place::new();
    let url = |name: &str| format!("sqlite:{}", place.path(name).display());
    place.write_config(&format!("store = \"{}\"\nlabel = \"filed\"", url("from-file.db")));
    assert_eq!(place.output(&["run", "x", "--", "true"]).code, 0);
    assert!(place.path("from-file.db").exists());
    let code = |command: &mut std::process::Command| command.status().unwrap().code();
    assert_eq!(code(place.tenure(&["run", "x", "--", "true"]).env("TENURE_STORE", url("from-env.db"))), Some(0));
    assert!(place.path("from-env.db").exists());
    let flag = ["run", "--store", "sqlite:from-flag.db", "x", "--", "true"];
    assert_eq!(code(place.tenure(&flag).env("TENURE_STORE", url("from-env2.db"))), Some(0));
    assert!(place.path("from-flag.db").exists() && !place.path("from-env2.db").exists());
    std::fs::remove_file(place.path("from-file.db")).unwrap();
    let printed = Ended::from(place.tenure(&["acquire", "x"]).env("TENURE_STORE", "").output().unwrap());
    assert!(printed.out.contains("TENURE_TOKEN=filed."), "{printed:?}");
    assert!(place.path("from-file.db").exists(), "an empty TENURE_STORE counts as unset");
}

#[test]
fn a_password_is_never_told() {
    let place = Place::new();
    for url in
        ["redis://:s3cret@127.0.0.1:1", "ftp://u:s3cret@h", "u:s3cret@h", "redis://u:s3cret@h:bad", "redis://u:s3cret@h/x?y=z"]
    {
        let ended = place.output(&["run", "-v", "-w", "0", "--store", url, "x", "--", "true"]);
        assert!([64, 69].contains(&ended.code), "{ended:?}");
        assert!(!ended.err.contains("s3cret"), "{}", ended.err);
    }
}

#[test]
fn documents_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.output(&["completions", shell]).out.contains("tenure"));
    }
    assert!(place.output(&["man"]).out.contains(".TH"));
    assert_eq!(place.output(&["man", "pages"]).code, 0);
    assert!(place.read("pages/tenure-run.1").contains("TENURE_FENCE"));
    assert!(!place.read("pages/tenure.1").contains("__exec"));
}

#[test]
fn a_relative_file_is_for_the_moment_only() {
    let place = Place::new();
    for args in [&["run", "x", "--", "true"][..], &["show"], &["release", "x", "--token", "t"]] {
        let ended = Ended::from(place.tenure(args).env("TENURE_STORE", "sqlite:here.db").output().unwrap());
        assert_eq!(ended.code, 64, "{args:?}: {ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains("TENURE_STORE") && ended.err.contains("absolute"), "{}", ended.err);
    }
    assert!(!place.path("here.db").exists());
    assert_eq!(place.output(&["run", "--store", "sqlite:here.db", "x", "--", "true"]).code, 0);
    assert!(place.path("here.db").exists());
}

#[test]
fn a_ttl_of_the_file_is_not_blamed_for_flags() {
    let place = Place::new();
    place.write_config("ttl = \"9s\"");
    for flags in [&["--label", "a\nb"][..], &["--ttl", "1ms"], &["--max-hold", "0"]] {
        let ended = place.output(&[&["run"], flags, &["x", "--", "true"]].concat());
        assert_eq!(ended.code, 64, "{flags:?}: {ended:?}");
    }
    place.write_config("ttl = \"1ms\"");
    assert_eq!(place.output(&["run", "x", "--", "true"]).code, 78);
    // A first step made the file.
    assert_eq!(place.output(&["run", "--ttl", "9s", "x", "--", "true"]).code, 0);
}

#[test]
fn looking_creates_nothing() {
    let place = Place::new();
    let table: &[(&[&str], i32)] = &[
        (&["show"], 0),
        (&["show", "x"], 0),
        (&["show", "-o", "json"], 0),
        (&["break", "x"], 1),
        (&["renew", "x", "--token", "t"], 79),
        (&["release", "x", "--token", "t"], 79),
    ];
    for (args, code) in table {
        let ended = place.output(args);
        assert_eq!(ended.code, *code, "{args:?}: {ended:?}");
        assert!(!place.path("state").exists(), "{args:?} created a file");
    }
    assert_eq!(place.output(&["show", "-o", "json"]).out, "[]\n");
}

#[test]
fn help_warns_of_other_users() {
    let help = Place::new().output(&["run", "--help"]).out;
    for taught in ["sudo tenure run", "gets TERM after this long", "during an outage"] {
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(taught), "{taught} is not taught");
    }
}
