//! Attacks by another user of the machine on a keeper and on the commands that ask it, tried as that user.
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ended, Place, Running, is_dead, keepers, wait_for, watched};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_testkit::RedisServer;

/// Far less than the time that a keeper and a caller have patience with each other.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A place that other users can enter, as far as its modes go.
fn open_place() -> Place {
    let place = Place::new();
    fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o755)).unwrap();
    place
}

/// A program of another user.
fn as_nobody(program: &str) -> Command {
    assert!(rustix::process::geteuid().is_root(), "this test acts as another user, which only root can: run it as root");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", program]).stdin(Stdio::null());
    // What root finds elsewhere may be for root alone.
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

fn python(mut command: Command, program: &str, args: &[&str]) -> (Running, BufReader<ChildStdout>) {
    let mut running = Running::start(command.args(["-c", program]).args(args));
    let said = BufReader::new(running.0.stdout.take().unwrap());
    (running, said)
}

fn line(said: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Has `x` kept for as long as `script` lives; the keeper and the token.
fn kept(place: &Place, script: &Running, flags: &[&str]) -> (Pid, String) {
    let pid = script.pid().to_string();
    let flags = [&["acquire", "--ttl", "6s", "--watch-pid", &pid][..], flags, &["x"]].concat();
    let ended = place.output(&flags);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{ended:?}");
    let token = ended.out.lines().find_map(|line| line.strip_prefix("TENURE_TOKEN=")).unwrap().to_owned();
    (keepers(place)[0], token)
}

/// The addresses at which a process listens or has a unix socket: a path, or `@` and an abstract name.
fn addresses(process: Pid) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let links: Vec<_> = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned())).collect();
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let named = table.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        (links.contains(&format!("socket:[{}]", words.get(6)?))).then(|| words.get(7).map(|name| (*name).to_owned()))?
    });
    named.collect()
}

/// Directory in which the keepers of this place have their sockets.
fn room(place: &Place) -> PathBuf {
    place.path("tenure-keepers")
}

/// The only socket in that directory.
fn socket(place: &Place) -> PathBuf {
    let mut entries = fs::read_dir(room(place)).unwrap().flatten();
    entries.next().unwrap().path()
}

fn assert_not_told(script: &mut Running) {
    assert!(script.0.try_wait().unwrap().is_none(), "the script was notified of a loss");
}

/// Releases `x`, which has to go through the keeper: a keeper that finds its lease released by another takes it for a loss.
fn release_at_once(place: &Place, token: &str, keeper: Pid, script: &mut Running) {
    let asked = Instant::now();
    let ended = place.output(&["release", "x", "--token", token]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{ended:?}");
    assert!(asked.elapsed() < AT_ONCE, "the release took {:?}", asked.elapsed());
    wait_for("the end of the keeper", || is_dead(keeper));
    assert!(place.is_free("x"));
    assert_not_told(script);
}

const CROWD: &str = "
import socket, sys, time
held = []
for name in sys.argv[1:]:
    for _ in range(64):
        try:
            s = socket.socket(socket.AF_UNIX); s.setblocking(False)
            s.connect(name.replace('@', chr(0), 1)); held.append(s)
        except OSError: pass
print(len(held), flush=True)
time.sleep(600)";

#[test]
fn callers_of_another_user_do_not_reach_the_keeper() {
    let (place, mut script) = (open_place(), watched());
    let (keeper, token) = kept(&place, &script, &[]);
    let addresses = addresses(keeper);
    assert!(!addresses.is_empty());
    let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (_crowd, mut said) = python(as_nobody("python3"), CROWD, &names);
    assert_eq!(line(&mut said), "0", "another user has connected to {addresses:?}");
    let room = fs::metadata(room(&place)).unwrap();
    assert_eq!((room.mode() & 0o777, room.uid()), (0o700, rustix::process::geteuid().as_raw()));
    let tried = as_nobody("kill").arg("-KILL").arg(keeper.to_string()).stderr(Stdio::null()).status().unwrap();
    assert!(!tried.success() && !is_dead(keeper), "another user has ended the keeper");
    release_at_once(&place, &token, keeper, &mut script);
}

#[test]
fn callers_that_say_nothing_do_not_delay_a_release_and_have_their_turn() {
    let (place, mut script) = (Place::new(), watched());
    let (keeper, token) = kept(&place, &script, &[]);
    let callers = |many: usize| (0..many).map(|_| UnixStream::connect(socket(&place)).unwrap()).collect::<Vec<_>>();
    // More than are heard at a time.
    let mut many = callers(40);
    let of_callers = || fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().count();
    wait_for("callers to be let in", || of_callers() > 16);
    assert!(of_callers() < 40, "{} descriptors", of_callers());
    // Who is given up sees the end of the stream, so that its turn has come for each.
    for caller in &mut many {
        caller.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        // Also where a signal interrupts it.
        assert_eq!(caller.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
    assert_not_told(&mut script);
    let _few = callers(8);
    release_at_once(&place, &token, keeper, &mut script);
}

#[test]
fn releases_of_two_names_at_once_both_reach_the_keeper() {
    for _ in 0..3 {
        let (place, mut script) = (Place::new(), watched());
        let pid = script.pid().to_string();
        let printed = place.output(&["acquire", "-o", "json", "--ttl", "6s", "--watch-pid", &pid, "-a", "y", "x"]).out;
        let leases: serde_json::Value = serde_json::from_str(&printed).unwrap();
        let release = |n: usize| {
            let (name, token) = (leases[n]["name"].as_str().unwrap(), leases[n]["token"].as_str().unwrap());
            place.spawn(&["release", name, "--token", token])
        };
        let both = [release(0), release(1)];
        for ended in both.map(Running::end) {
            assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        }
        assert_not_told(&mut script);
    }
}

const SPOOFER: &str = "
import os, socket, sys
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
l = socket.socket(socket.AF_UNIX); l.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); l.listen(8)
print('listens', flush=True)
while True:
    c, _ = l.accept(); c.sendall(b'released\\n'); print('got', c.recv(4096), flush=True); c.close()";

/// Another user listens at `path`, and says that it has released.
fn spoofer(path: &Path) -> (Running, BufReader<ChildStdout>) {
    let (running, mut said) = python(as_nobody("python3"), SPOOFER, &[path.to_str().unwrap()]);
    assert_eq!(line(&mut said), "listens");
    (running, said)
}

/// Releases `x` by the token `t` where only a spoofer could be asked: the store is asked, and the spoofer hears nothing of worth.
fn released_at_the_store(place: &Place, (running, mut said): (Running, BufReader<ChildStdout>), why: &str) {
    let ended = place.output(&["release", "x", "--token", "t"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains(why) && ended.err.contains("the store is asked instead"), "{ended:?}");
    assert!(place.is_free("x"), "a stranger's answer was accepted");
    drop(running);
    let mut heard = String::new();
    said.read_to_string(&mut heard).unwrap();
    assert!(!heard.contains("t\\n"), "a stranger was sent the token: {heard}");
}

/// A place where a keeper of `x` by the token `t` was, and the address that it had.
fn known_address(place: &Place) -> PathBuf {
    let script = watched();
    let (keeper, _) = kept(place, &script, &["--token", "t"]);
    let address = socket(place);
    kill(keeper, Signal::SIGKILL).unwrap();
    wait_for("the end of the keeper", || is_dead(keeper));
    assert_eq!(place.output(&["release", "x", "--token", "t"]).code, 0);
    address
}

/// A keeper uses another directory then.
#[test]
fn who_listens_in_the_directory_of_another_user_is_not_asked() {
    let place = open_place();
    let address = known_address(&place);
    fs::remove_dir_all(room(&place)).unwrap();
    fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o777)).unwrap();
    let theirs = spoofer(&address);
    let mut script = watched();
    let (keeper, _) = kept(&place, &script, &["--token", "t"]);
    let ended = place.output(&["release", "x", "--token", "t"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    wait_for("the end of the keeper", || is_dead(keeper));
    assert!(place.is_free("x"));
    assert_not_told(&mut script);
    assert_eq!(place.output(&["acquire", "--token", "t", "x"]).code, 0);
    released_at_the_store(&place, theirs, "another user");
}

/// Behind a link, or moved into our directory.
#[test]
fn another_user_who_listens_in_our_directory_is_not_asked() {
    for by_link in [true, false] {
        let place = open_place();
        let address = known_address(&place);
        fs::create_dir(place.path("theirs")).unwrap();
        fs::set_permissions(place.path("theirs"), PermissionsExt::from_mode(0o777)).unwrap();
        let made = place.path("theirs").join(address.file_name().unwrap());
        let theirs = spoofer(&made);
        if by_link {
            fs::remove_dir_all(room(&place)).unwrap();
            symlink(place.path("theirs"), room(&place)).unwrap();
        } else {
            fs::rename(made, address).unwrap();
        }
        assert_eq!(place.output(&["acquire", "--token", "t", "x"]).code, 0);
        released_at_the_store(&place, theirs, if by_link { "is no directory" } else { "another user" });
    }
}

#[test]
fn a_keeper_replaces_the_socket_of_one_that_was_killed() {
    let place = Place::new();
    let left = known_address(&place);
    assert!(left.exists());
    let mut script = watched();
    let (keeper, token) = kept(&place, &script, &["--token", "t"]);
    release_at_once(&place, &token, keeper, &mut script);
    assert!(!left.exists(), "a keeper leaves its socket");
    // What nobody listens at is removed after a while, by a keeper of another lease.
    assert_eq!(known_address(&place), left);
    assert!(Command::new("touch").args(["-d", "2 minutes ago"]).arg(&left).status().unwrap().success());
    let (_keeper, _) = kept(&place, &script, &[]);
    assert!(!left.exists(), "what nobody listens at is left");
}

/// A lock file, say: it refuses a connection as a socket does at which nobody listens.
#[test]
fn what_is_no_socket_of_a_keeper_is_left_alone() {
    let place = Place::new();
    let (digest, linked) = ("0123456789abcdef".repeat(2), "fedcba9876543210".repeat(2));
    let mut others = Vec::new();
    for room in [place.path("tenure"), room(&place)] {
        fs::create_dir(&room).unwrap();
        fs::set_permissions(&room, PermissionsExt::from_mode(0o700)).unwrap();
        for name in ["locks.db", &digest] {
            fs::write(room.join(name), "locks").unwrap();
        }
        drop(UnixListener::bind(room.join("socket")).unwrap());
        symlink(room.join("socket"), room.join(&linked)).unwrap();
        others.extend(["locks.db", &digest, "socket", &linked].map(|name| room.join(name)));
    }
    assert!(Command::new("touch").args(["-h", "-d", "2 minutes ago"]).args(&others).status().unwrap().success());
    let script = watched();
    let (_keeper, _) = kept(&place, &script, &[]);
    for other in others {
        assert!(fs::symlink_metadata(&other).is_ok(), "{} was removed", other.display());
    }
}

/// As the system does when a user logs out.
#[test]
fn a_keeper_whose_directory_was_removed_makes_another() {
    let (place, mut script) = (Place::new(), watched());
    let (keeper, token) = kept(&place, &script, &[]);
    fs::remove_dir_all(room(&place)).unwrap();
    wait_for("another socket", || {
        let sockets = fs::read_dir(room(&place)).into_iter().flatten().flatten();
        sockets.map(|socket| UnixStream::connect(socket.path())).any(|connected| connected.is_ok())
    });
    release_at_once(&place, &token, keeper, &mut script);
}

/// Where every directory for a socket is another user's.
#[test]
fn a_keeper_that_cannot_be_reached_says_so() {
    assert!(rustix::process::geteuid().is_root(), "this test acts as another user, which only root can: run it as root");
    let place = open_place();
    fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o777)).unwrap();
    let user = 70_000 + std::process::id() % 100_000;
    let theirs = PathBuf::from(format!("/tmp/tenure-keepers-{user}"));
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(room(&place)).unwrap();
    let script = "\"$TENURE\" acquire --watch-pid $$ -a b a >/dev/null; \"$TENURE\" acquire --watch-pid $$ x >lease && . ./lease && \
                  exec \"$TENURE\" release x --token $TENURE_TOKEN";
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), "--clear-groups", "sh", "-c", script]);
    place.settle(&mut command);
    let ended = Ended::from(command.output().unwrap());
    fs::remove_dir(theirs).unwrap();
    assert!(ended.err.contains("cannot reach the keeper of \"a\" and 1 more, "), "{ended:?}");
    assert!(ended.err.contains("cannot reach the keeper of \"x\", ") && ended.err.contains("another user's"), "{ended:?}");
}

#[test]
fn a_keeper_shows_no_password() {
    let server = RedisServer::builder().password("s3cret").start();
    let bare = format!("redis://127.0.0.1:{}", server.port());
    let (with, none) = (server.url(), String::new());
    for (store, variable, password) in
        [(&with, &none, ""), (&none, &with, ""), (&bare, &none, "s3cret"), (&none, &bare, "s3cret")]
    {
        let (place, mut script) = (Place::new(), watched());
        let pid = script.pid().to_string();
        let told = |words: &[&str]| {
            let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            if !store.is_empty() {
                words.insert(1, format!("--store={store}"));
            }
            let mut command = place.tenure(&words.iter().map(String::as_str).collect::<Vec<_>>());
            command.env("TENURE_STORE", variable).env("TENURE_PASSWORD", password);
            Ended::from(command.output().unwrap())
        };
        let printed = told(&["acquire", "--ttl", "3s", "--kill-after", "100ms", "--watch-pid", &pid, "x"]);
        assert_eq!(printed.code, 0, "{printed:?}");
        let keeper = keepers(&place)[0];
        for file in ["cmdline", "environ"] {
            let shown = String::from_utf8_lossy(&fs::read(format!("/proc/{keeper}/{file}")).unwrap()).into_owned();
            assert!(!shown.contains("s3cret"), "{file}: {shown}");
        }
        // The keeper goes on with the store and the password that it was started with.
        let left = || server.command(&["PTTL", "x"]).int();
        let mut before = left();
        wait_for("a renewal", || {
            let now = left();
            now > std::mem::replace(&mut before, now)
        });
        let token = printed.out.lines().find_map(|line| line.strip_prefix("TENURE_TOKEN=")).unwrap();
        assert_eq!(told(&["release", "x", "--token", token]).code, 0);
        assert_not_told(&mut script);
        wait_for("the end of the keeper", || is_dead(keeper));
    }
}
