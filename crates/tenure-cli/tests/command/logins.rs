//! The password changes while the command holds or waits.

use nix::sys::signal::Signal;
use tenure_testkit::RedisServer;

use crate::common::{Place, Running, wait_for};

/// Sets another password, and ends all connections.
fn change(server: &RedisServer, from: &str, to: &str) {
    let mut client = server.connect().unwrap();
    for words in [
        &["AUTH", from][..],
        &["CONFIG", "SET", "requirepass", to],
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        &["CLIENT", "KILL", "TYPE", "pubsub"],
    ] {
        client.command(words).unwrap();
    }
}

fn server() -> RedisServer {
    let server = RedisServer::start();
    server.cli("CONFIG SET requirepass old");
    server
}

/// It has never logged in, so nothing but the file says that the password may be a new one soon.
#[test]
fn a_command_that_starts_while_the_password_changes_waits_for_the_file() {
    let (place, server) = (Place::new(), server());
    let write = |text| std::fs::write(place.path("secret"), text).unwrap();
    write("");
    let start = |args: &[&str], log: &str| {
        let mut command =
            place.tenure(&[args, &["--store", &server.url(), log, "--", "sh", "-c", "echo > ran-$0; sleep 60", log]].concat());
        let log = std::fs::File::create(place.path(log)).unwrap();
        Running::of(command.env("TENURE_PASSWORD_FILE", "secret").stderr(log).spawn().unwrap())
    };
    let waiting = [start(&["lead"], "lead"), start(&["run"], "run")];
    let hear = |words: &str| {
        wait_for(words, || ["lead", "run"].iter().all(|log| place.read(log).contains(words)));
    };
    hear("is empty");
    write("older");
    hear("WRONGPASS");
    write("old");
    for (running, ran) in waiting.iter().zip(["ran-lead", "ran-run"]) {
        place.line(ran);
        running.signal(Signal::SIGTERM);
    }
    write("older");
    let once =
        place.tenure(&["run", "-n", "--store", &server.url(), "x", "--", "true"]).env("TENURE_PASSWORD_FILE", "secret").output();
    assert_eq!(once.unwrap().status.code(), Some(77));
}

#[test]
fn a_loss_is_told_with_the_last_answer_of_the_server() {
    let (place, server) = (Place::new(), server());
    let mut command =
        place.tenure(&["run", "--ttl", "4s", "--store", &server.url(), "x", "--", "sh", "-c", "echo > up; sleep 60"]);
    let run = Running::start(command.env("TENURE_PASSWORD", "old"));
    place.line("up");
    change(&server, "old", "new");
    let ended = run.end();
    assert!(ended.err.contains("its last renewal failed") && ended.err.contains("WRONGPASS"), "{ended:?}");
}
