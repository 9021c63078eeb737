//! Programs that want a terminal, on one.
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::{Place, Running, is_stopped, wait_for};
use nix::pty::openpty;

/// A command on a terminal of its own, and the screen that shows what it writes.
struct Screen {
    running: Running,
    keys: File,
    shown: Arc<Mutex<String>>,
}

impl Screen {
    /// `setsid --ctty` makes the terminal the controlling one and becomes the command.
    fn open(place: &Place, command: &[&str]) -> Self {
        let pty = openpty(None, None).unwrap();
        let mut setsid = Command::new("setsid");
        place.settle(&mut setsid);
        let end = || pty.slave.try_clone().unwrap();
        setsid.arg("--ctty").args(command).stdin(end()).stdout(end()).stderr(end()).env("PS1", "$ ").env("TERM", "dumb");
        let running = Running::of(setsid.spawn().unwrap());
        drop(pty.slave);
        let shown = Arc::new(Mutex::new(String::new()));
        let keys = File::from(pty.master);
        let screen = keys.try_clone().unwrap();
        let writer = Arc::clone(&shown);
        std::thread::spawn(move || copy(screen, &writer));
        Self { running, keys, shown }
    }

    fn shell(place: &Place) -> Self {
        let mut screen = Self::open(place, &["bash", "--norc", "--noprofile", "-i"]);
        screen.wait("$ ");
        // What is typed is not shown, so that only answers are found.
        screen.enter("stty -echo; echo rea''dy");
        screen.wait("ready");
        screen
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    fn text(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    fn wait(&self, text: &str) {
        wait_for(&format!("{text:?} on the screen"), || self.text().contains(text));
    }

    fn code(&mut self) -> i32 {
        crate::common::code(self.running.status())
    }
}

fn copy(mut screen: File, shown: &Mutex<String>) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = screen.read(&mut buffer) {
        shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
}

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

#[test]
fn an_editor_like_program_reads_keys() {
    let place = Place::new();
    let program = "stty raw -echo; printf up; key=$(dd bs=1 count=1 2>/dev/null); stty sane; echo got-$key; exit 4";
    let mut screen = Screen::open(&place, &[TENURE, "run", "x", "--", "bash", "-c", program]);
    screen.wait("up");
    screen.press("q");
    screen.wait("got-q");
    assert_eq!(screen.code(), 4);
}

#[test]
fn the_command_is_in_front_from_its_first_instruction() {
    let place = Place::new();
    // Fields 5 and 8 are the process group and the one that has the terminal.
    let program = "read -r _ _ _ _ group _ _ front _ < /proc/$$/stat; [ $group = $$ ] && [ $front = $$ ]";
    for _ in 0..5 {
        let mut screen = Screen::open(&place, &[TENURE, "run", "x", "--", "bash", "-c", program]);
        assert_eq!(screen.code(), 0, "{}", screen.text());
    }
}

#[test]
fn the_terminal_is_given_back_as_it_was_before() {
    let place = Place::new();
    let left_raw = "\"$TENURE\" run --max-hold 6s x -- bash -c 'stty raw -echo; echo up; exec sleep 60'";
    let looks = "echo code-$?; stty -a | tr '\\n' ' '; echo do''ne; read line; echo read-$line";
    let mut screen = Screen::open(&place, &["bash", "-c", &format!("\"$TENURE\" run x -- true; {left_raw}; {looks}")]);
    screen.wait("done");
    let text = screen.text();
    assert!(text.contains("up") && text.contains("is lost") && text.contains("code-79"), "{text}");
    assert!(text.contains(" icanon ") && text.contains(" echo "), "raw after the loss: {text}");
    screen.enter("it");
    screen.wait("read-it");
    assert_eq!(screen.code(), 0);
}

#[test]
fn interrupt_ends_the_command_and_its_script_as_under_flock() {
    let place = Place::new();
    let mut screen = Screen::open(&place, &[TENURE, "run", "x", "--", "sh", "-c", "echo up; exec sleep 60"]);
    screen.wait("up");
    screen.press("\x03");
    assert_eq!(screen.code(), 130);
    for runner in ["\"$TENURE\" run x --", "flock lockfile"] {
        interrupted(&place, &format!("{runner} sh -c 'echo up; exec sleep 60'"), "up");
    }
    // Whose command has no keyboard.
    interrupted(&place, "\"$TENURE\" run x -- sh -c 'echo up; exec sleep 60' </dev/null", "up");
    assert!(place.is_free("x"));
    // Whose wait it ended.
    assert_eq!(place.output(&["acquire", "--ttl", "60s", "x"]).code, 0);
    for waits in ["run -v x -- true", "acquire -v x", "acquire -v --watch-pid $$ x"] {
        interrupted(&place, &format!("\"$TENURE\" {waits}"), "waiting");
    }
}

#[test]
fn a_job_is_stopped_and_goes_on() {
    let place = Place::new();
    let mut screen = Screen::shell(&place);
    screen.enter("\"$TENURE\" run --ttl 60s x -- sh -c 'echo $$ > child; read line; echo got-$line'; echo rc-$?");
    let child = place.pid("child");
    for _ in 0..3 {
        screen.press("\x1a");
        wait_for("the command to stop", || is_stopped(child));
        screen.enter("echo shell-answers");
        screen.wait("shell-answers");
        screen.enter("fg");
        wait_for("the command to go on", || !is_stopped(child));
        screen.shown.lock().unwrap().clear();
    }
    screen.enter("hello");
    screen.wait("got-hello");
    screen.wait("$ ");
}

#[test]
fn a_job_resumed_after_its_lease_is_killed_before_it_goes_on() {
    let place = Place::new();
    let mut screen = Screen::shell(&place);
    screen.enter("\"$TENURE\" run --ttl 3s x -- bash -c 'echo $$ > child; while :; do echo >> ticks; sleep 0.01; done'");
    let child = place.pid("child");
    screen.press("\x1a");
    wait_for("the command to stop", || is_stopped(child));
    screen.wait("Stopped");
    wait_for("the end of the lease", || place.is_free("x"));
    let ticks = place.read("ticks").len();
    screen.enter("fg; echo rc-$?");
    screen.wait("rc-79");
    assert_eq!(place.read("ticks").len(), ticks, "it ran on without the lock");
}

#[test]
fn a_background_job_that_wants_the_terminal_stops_and_gets_it() {
    let place = Place::new();
    let mut screen = Screen::shell(&place);
    screen.enter("\"$TENURE\" run --ttl 60s x -- sh -c 'echo $PPID > tenure; echo $$ > child; read line; echo got-$line' &");
    let child = place.pid("child");
    let tenure = place.pid("tenure");
    wait_for("the terminal to stop both", || is_stopped(child) && is_stopped(tenure));
    screen.enter("jobs");
    screen.wait("Stopped");
    screen.enter("fg");
    screen.enter("hello");
    screen.wait("got-hello");
}

#[test]
fn both_ends_of_a_pipe_have_the_keyboard() {
    let place = Place::new();
    let asks = "bash -c 'read data; echo want; read key < /dev/tty; echo $data-$key'";
    for line in [
        format!("\"$TENURE\" run x -- sh -c 'echo data; sleep 0.2' | {asks}"),
        format!("echo data | \"$TENURE\" run x -- {asks}"),
    ] {
        let mut screen = Screen::shell(&place);
        screen.enter(&line);
        screen.wait("want");
        screen.enter("key");
        screen.wait("data-key");
    }
}

/// Runs a program of bash that waits for a key, interrupts it, and checks that it does not go on.
fn interrupted(place: &Place, program: &str, ready: &str) {
    let mut screen = Screen::open(place, &["bash", "-c", &format!("{program}; echo went on")]);
    screen.wait(ready);
    screen.press("\x03");
    let status = screen.running.status();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{program}: {}", screen.text());
    assert!(!screen.text().contains("went on"), "{program}");
}

#[test]
fn interrupt_ends_a_loop() {
    let place = Place::new();
    let mut screen = Screen::shell(&place);
    screen.enter("for i in 1 2 3; do \"$TENURE\" run x -- sh -c 'echo up; exec sleep 60'; echo went-on; done; echo do''ne");
    screen.wait("up");
    screen.press("\x03");
    screen.enter("echo code-$?");
    screen.wait("code-130");
    assert!(!screen.text().contains("went-on") && !screen.text().contains("done"), "{}", screen.text());
}

/// The answer is for the holder that was shown, and nobody else.
#[test]
fn a_break_asks_and_spares_who_took_the_name_meanwhile() {
    let place = Place::new();
    let take = || {
        let lease = place.output(&["acquire", "-o", "json", "--ttl", "1m", "x"]);
        let lease: serde_json::Value = serde_json::from_str(&lease.out).unwrap();
        lease["token"].as_str().unwrap().to_owned()
    };
    let first = take();
    let mut screen = Screen::open(&place, &[TENURE, "break", "x"]);
    screen.wait("break it?");
    screen.enter("n");
    assert_eq!(screen.code(), 1, "{}", screen.text());
    let mut screen = Screen::open(&place, &[TENURE, "break", "x"]);
    screen.wait("break it?");
    assert_eq!(place.output(&["release", "--token", &first, "x"]).code, 0, "a no has broken it");
    let next = take();
    screen.enter("y");
    assert_eq!(screen.code(), 1, "{}", screen.text());
    assert_eq!(place.output(&["renew", "--token", &next, "x"]).code, 0, "the next holder was broken");
    let mut screen = Screen::open(&place, &[TENURE, "break", "--yes", "x"]);
    assert_eq!(screen.code(), 0, "{}", screen.text());
    assert!(place.is_free("x"));
}
