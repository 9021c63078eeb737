//! Exit codes, and what is said with them.
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::common::{Ended, Place, assert_one_line};
use tenure_testkit::Spawned;

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
fn stdin_arguments_and_output_pass_as_they_are() {
    let place = Place::new();
    std::fs::write(place.path("in"), "through\n").unwrap();
    let mut command = place.tenure(&["run", "x", "--", "sh", "-c", "cat; printf %s \"$1\"", "sh"]);
    command.arg(OsStr::from_bytes(b"a\xff")).stdin(std::fs::File::open(place.path("in")).unwrap());
    assert_eq!(command.output().unwrap().stdout, b"through\na\xff");
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
        (&["run", "--store", "quorum+redis://a,b", "x", "--", "true"], 64, "an odd number of them"),
        (&["run", "--store", "quorum+redis://a,b,a", "x", "--", "true"], 64, "redis://a:6379 twice"),
        (&["admit", "--store", "redis://a"], 64, "quorum+redis://"),
        (&["show", "--servers", "--store", "redis://a"], 64, "quorum+redis://"),
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
    ended.says(64, "not UTF-8");
}

#[test]
fn help_is_no_error_and_nothing_to_do_is() {
    let place = Place::new();
    let help = place.output(&["run", "--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    let words = help.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = "tenure run -n|tenure run -w|TENURE_FENCE|75|79|TENURE_PASSWORD|sudo tenure run|gets TERM after this long|\
               send KILL this long after TERM|fencing token|lock timeout";
    for taught in all.split('|') {
        assert!(words.contains(taught), "{taught} is not taught");
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
    for (args, code) in [(&["-n"][..], 75), (&["-w", "0"], 75), (&["-w", "50ms"], 75), (&["-n", "-E", "0"], 0), (&["-nE9"], 9)] {
        let mut line = vec!["run"];
        line.extend(args);
        line.extend(["x", "--", "echo", "ran"]);
        let ended = place.output(&line).without_wait();
        assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains("held by night shift, for "), "{}", ended.err);
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
        ended.says(78, "config");
        assert!(ended.err.contains(key), "{}", ended.err);
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
        for args in [&["run", "-v", "-w", "0", "x", "--", "true"][..], &["show", "-v"], &["acquire", "-vn", "x"]] {
            let ended = place.output(&[&args[..1], &["--store", url], &args[1..]].concat());
            assert!([64, 69].contains(&ended.code), "{ended:?}");
            assert!(!ended.err.contains("s3cret"), "{}", ended.err);
        }
    }
}

#[test]
fn documents_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.output(&["completions", shell]).out.contains("tenure"));
    }
    assert!(place.output(&["man"]).out.contains(".TH"));
    assert_eq!(place.output(&["man", "--dir", "pages"]).code, 0);
    let run = place.output(&["man", "run"]);
    assert!(run.out.contains(".TH tenure-run") && run.out.contains("TENURE_FENCE"), "{run:?}");
    assert!(!place.path("run").exists(), "the page of a command is no directory");
    assert_eq!(place.output(&["man", "nothing"]).code, 64);
    assert!(place.read("pages/tenure-run.1").contains("TENURE_FENCE"));
    assert!(!place.read("pages/tenure.1").contains("__exec"));
}

#[test]
fn a_relative_file_is_for_the_moment_only() {
    let place = Place::new();
    for args in [&["run", "x", "--", "true"][..], &["show"], &["release", "x", "--token", "t"]] {
        let ended = Ended::from(place.tenure(args).env("TENURE_STORE", "sqlite:here.db").output().unwrap());
        ended.says(64, "TENURE_STORE");
        assert!(ended.err.contains("absolute"), "{}", ended.err);
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

/// Words of flock(1), timeout(1) and other commands are refused, and the message has ours.
#[test]
fn what_others_call_it_is_told_as_ours() {
    let place = Place::new();
    let table: &[(&[&str], &str)] = &[
        (&["run", "--timeout", "5", "x", "--", "true"], "--wait DUR"),
        (&["run", "--nonblock", "x", "--", "true"], "-n"),
        (&["run", "x", "-c", "true"], "sh -c"),
        (&["run", "x", "true"], "behind --"),
        (&["ls"], "`tenure show`"),
        (&["status"], "`tenure show`"),
        (&["lock", "x"], "`tenure run`"),
        (&["exec", "x"], "`tenure run`"),
        (&["rnu", "x"], "`tenure run`"),
        (&["help", "frobnicate"], "store, config, codes, words"),
    ];
    for (args, fix) in table {
        let ended = place.output(args);
        ended.says(64, fix);
        assert!(!ended.err.contains("'-- --timeout'"), "{args:?}: {}", ended.err);
    }
}

/// Every command's help has its short form, and says where the rest is.
#[test]
fn help_is_short_and_leads_to_the_rest() {
    let place = Place::new();
    for command in ["run", "acquire", "renew", "release", "show", "break", "man", "completions"] {
        let help = place.output(&[command, "--help"]).out;
        let options: Vec<_> = help.lines().filter(|line| line.starts_with("  -h, --help")).collect();
        assert_eq!(options.len(), 1, "{command}: {help}");
        assert!(options[0].contains("Print help"), "the long form: {command}: {help}");
        assert_eq!(place.output(&["help", command]).out, help, "{command}");
    }
    assert!(place.output(&["--help"]).out.contains("tenure help store"));
    for (topic, words) in [
        ("store", &["mode=", "group=", "ACL SETUSER", "TENURE_STORE"][..]),
        ("config", &["/etc/tenure/config.toml", "password_file"]),
        ("codes", &["75", "79", "141"]),
        ("words", &["fencing token", "watchdog", "TTL", "lock timeout"]),
    ] {
        let page = place.output(&["help", topic]);
        assert!(page.code == 0 && words.iter().all(|word| page.out.contains(word)), "{topic}: {page:?}");
        assert!(page.out.lines().all(|line| line.chars().count() <= 81), "{topic}");
    }
}

/// The page of the stores has every kind of URL that the command says it speaks, and every parameter.
#[test]
fn the_page_of_the_stores_has_every_kind_of_url() {
    let place = Place::new();
    let page = place.output(&["help", "store"]).out;
    let refused = place.output(&["show", "--store", "nowhere:x"]);
    let words = refused.err.split_whitespace().filter_map(|word| Some(&word[..word.find("://")? + "://".len()]));
    let spoken: BTreeSet<_> = words.collect();
    assert!(spoken.len() > 10, "{refused:?}");
    for kind in spoken {
        assert!(page.contains(kind), "{kind}: {page}");
    }
    for (scheme, table) in tenure_stores::PARAMETERS {
        assert!(table.iter().all(|row| page.contains(&format!("\n  {}={}", row.name, row.value))), "{scheme}: {page}");
    }
}

/// `head` has seen enough.
#[test]
fn a_reader_that_leaves_is_no_error() {
    let place = Place::new();
    assert_eq!(place.output(&["acquire", "x"]).code, 0);
    for command in ["help store", "man", "man run", "completions bash", "show -q", "show -o json"] {
        // The reader is gone before anything is written.
        let line = format!("exec 3<>out 4>out 3>&-; \"$TENURE\" {command} >&4 2>said; echo $? >code; cat said code");
        let mut shell = place.shell("bash", &format!("rm -f out said code; mkfifo out; {line}"));
        let ended = Ended::from(Spawned::output(&mut shell).unwrap());
        assert_eq!(ended.out, "141\n", "{command}: {ended:?}");
    }
}

#[test]
fn the_log_is_what_rust_log_asks_for() {
    let place = Place::new();
    let mut command = place.tenure(&["run", "--store", "redis://127.0.0.1:1", "-w", "300ms", "x", "--", "true"]);
    let quiet = Ended::from(Spawned::output(&mut command).unwrap());
    assert!(!quiet.err.contains(" DEBUG "), "{}", quiet.err);
    // No socket can be made here. Only the log at the debug level says so.
    std::fs::write(place.path("x.db-wake"), "").unwrap();
    let store = format!("sqlite:{}", place.path("x.db").display());
    assert_eq!(place.output(&["acquire", "--store", &store, "x"]).code, 0);
    let mut command = place.tenure(&["run", "--store", &store, "-w", "2s", "x", "--", "true"]);
    let loud = Ended::from(Spawned::output(command.env("RUST_LOG", "info,tenure=debug")).unwrap());
    assert_eq!(loud.code, 75, "{loud:?}");
    assert!(loud.err.contains("Z DEBUG tenure_sql::sqlite::wake: no socket for hand-overs"), "{}", loud.err);
}
