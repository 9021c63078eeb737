//! How the command ends: what it leaves running, and what it leaves at the store.

use std::process::Stdio;

use crate::common::{Place, Running, full_pipe, is_printing, wait_for};
use nix::sys::signal::Signal;
use tenure_testkit::{Proxy, RedisServer};

/// The last step before the command, in a process whose tenure is another's, or dead.
#[test]
fn a_command_whose_tenure_is_gone_is_not_started() {
    let place = Place::new();
    let ended = place.output(&["__exec", "1", "back", "touch", "done"]);
    assert_eq!((ended.code, place.path("done").exists()), (126, false), "{ended:?}");
}

/// The end of the process does not come before that of its clean-up.
#[test]
fn a_wait_that_a_signal_ended_leaves_no_place() {
    let (place, server) = (Place::new(), RedisServer::start());
    server.cli("SET x another PX 60000");
    for _ in 0..3 {
        let waiting = place.spawn(&["run", "--store", &server.url(), "x", "--", "true"]);
        wait_for("its place", || server.cli("KEYS *").lines().count() > 2);
        waiting.signal(Signal::SIGTERM);
        let ended = waiting.end();
        assert_eq!(ended.code, 143, "{ended:?}");
        let left = || server.cli("KEYS *").lines().count();
        // The server did not answer within a second, and does it later.
        if ended.err.contains("may stay taken") {
            wait_for("the end of its place", || left() == 2);
        }
        assert_eq!(left(), 2, "{ended:?} {}", server.cli("KEYS *"));
    }
}

/// Takes `x` by a lease that then cannot be printed, after `fault` has begun. Checks whether the name `stays` taken,
/// and returns the message.
fn given_up(flags: &[&str], stays: bool, fault: impl Fn(&RedisServer, &Proxy)) -> String {
    let (place, server) = (Place::new(), RedisServer::start());
    // It has our functions, so that a release is one command.
    assert_eq!(place.output(&["run", "--store", &server.url(), "x", "--", "true"]).code, 0);
    let proxy = Proxy::start(server.addr());
    // The print waits for us.
    let (reader, writer) = full_pipe();
    let mut command = place.tenure(&[&["acquire", "--store", &proxy.url(), "--ttl", "10s"], flags, &["x"]].concat());
    let mut taking = Running::of(command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap());
    drop(command);
    wait_for("the lease to be printed", || is_printing(taking.pid()));
    fault(&server, &proxy);
    drop(reader);
    let status = taking.status();
    let told = std::io::read_to_string(taking.0.stderr.take().unwrap()).unwrap();
    assert_eq!((crate::common::code(status), server.cli("EXISTS x") == "1"), (74, stays), "{flags:?}: {told}");
    told
}

const GIVEN: [&str; 2] = ["--token", "t"];

#[test]
fn a_name_that_may_not_have_been_released_is_told() {
    for flags in [&GIVEN[..], &[]] {
        let told = given_up(flags, true, |_, proxy| proxy.black_hole());
        assert!(told.contains("\"x\" may stay taken for up to"), "{flags:?}: {told}");
    }
    let lost = given_up(&GIVEN, true, |_, proxy| proxy.drop_request(1));
    assert!(lost.contains("\"x\" may stay taken for up to"), "{lost}");
    let unheard = given_up(&GIVEN, false, |_, proxy| proxy.swallow_reply(1));
    assert!(unheard.contains("nothing is held any more"), "{unheard}");
}

/// The release is lost on both connections that it is sent on, and the clean-up after it refused.
#[test]
fn a_name_whose_clean_up_was_refused_is_told() {
    let told = given_up(&[], true, |server, proxy| {
        proxy.drop_request(1);
        proxy.drop_request(2);
        server.cli("ACL SETUSER default -@write -@scripting -@transaction");
    });
    assert!(told.contains("\"x\" may stay taken for up to") && !told.contains("NOPERM"), "{told}");
}

#[test]
fn a_name_under_which_no_work_began_has_no_shortest_hold() {
    let told = given_up(&["--min-hold", "20s"], false, |_, _| {});
    assert!(told.contains("nothing is held any more"), "{told}");
}
