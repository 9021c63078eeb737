//! docs/calls.md line by line: what the calls of other locks are in the library and in the command.

mod lines;

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Ended, Place, script};
use tenure::Locker;
use tenure_testkit::RedisServer;

type Done = Result<(), Failed>;

/// An error in a test: a panic, so that a call without an answer counts as late.
#[derive(Debug)]
enum Failed {}

impl From<tenure::Error> for Failed {
    #[track_caller]
    fn from(error: tenure::Error) -> Self {
        panic!("it failed: {error:?}")
    }
}

impl From<std::io::Error> for Failed {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        panic!("it failed: {error:?}")
    }
}

impl From<&str> for Failed {
    #[track_caller]
    fn from(error: &str) -> Self {
        panic!("it is not so: {error}")
    }
}

const PHP: &str = "?scheme=php";
const JAVA: &str = "?prefix=";
const SPRING: [&str; 2] = ["?scheme=set-nx", "?scheme=getset"];
const SET_NX: &str = SPRING[0];
const SHEDLOCK: &str = "?scheme=set-nx&profile=shedlock";

/// Puts the token of a lease into the environment of what follows, as scripts do.
const TAKE: &str = r#"eval "$(tenure acquire -n --ttl 10s invoice)" || exit; "#;

/// A server, and a shell beside it.
struct Here {
    place: Place,
    server: RedisServer,
    url: String,
}

impl Here {
    fn new(parameters: &str) -> Self {
        let (place, server) = (Place::new(), RedisServer::start());
        for program in ["charge", "gift"] {
            script(&place.path(program), "#!/bin/sh\necho in >> ran\nexit \"${CODE:-0}\"\n");
        }
        let url = format!("{}{parameters}", server.url());
        Self { place, server, url }
    }

    /// A process of its own, as far as the server can tell.
    async fn locks(&self) -> Locker {
        tenure_redis::connect(&self.url).await.unwrap()
    }

    /// Runs a line of a script.
    fn sh(&self, line: &str) -> Ended {
        let tenure = std::path::Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap().display();
        let mut shell = Command::new("sh");
        self.place.settle(&mut shell);
        shell
            .env("PATH", format!("{tenure}:{}", std::env::var("PATH").unwrap()))
            .env("TENURE_STORE", format!("{}&timeout=5s", self.url));
        Ended::from(shell.args(["-c", line]).stdin(Stdio::null()).output().unwrap())
    }

    fn code(&self, line: &str) -> i32 {
        self.sh(line).code
    }

    /// How often the commands of the table have done their work.
    fn ran(&self) -> usize {
        self.place.read("ran").lines().count()
    }

    fn is_free(&self) -> bool {
        self.server.command(&["EXISTS", "invoice", "Lock:invoice", "order/7", "sign-in/42"]) == 0
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A line of the table changes only together with its test.
#[test]
fn each_line_is_what_its_test_runs() {
    let table = include_str!("../../../../docs/calls.md");
    let tests = tests_of(include_str!("calls/lines.rs"));
    let lines: Vec<_> = table.lines().filter(|line| line.ends_with("` |")).collect();
    let named: Vec<_> = lines.iter().map(|line| line.rsplit('`').nth(1).unwrap()).collect();
    let known: Vec<_> = tests.iter().map(|(name, _)| *name).collect();
    let mut stories = named.clone();
    stories.dedup();
    assert_eq!(stories, known);
    for (line, name) in lines.iter().zip(named) {
        let (_, test) = tests.iter().find(|(known, _)| *known == name).unwrap();
        let line = line.replace("\\|", "\u{0}");
        let ours = line.split('|').nth(2).unwrap().replace('\u{0}', "|");
        let snippets: Vec<_> = ours.split('`').skip(1).step_by(2).collect();
        assert!(!snippets.is_empty(), "{line}");
        for snippet in snippets {
            assert!(test.contains(&plain(snippet)), "{name} does not run {snippet}");
        }
    }
}

/// The tests of a file, with what they run.
fn tests_of(file: &str) -> Vec<(&str, String)> {
    let tests = file.split("#[tokio::test]\nasync fn ").skip(1);
    tests.map(|test| (test.split('(').next().unwrap(), plain(test))).collect()
}

/// The text as no formatting of the code changes it.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<String>().replace(",)", ")").replace(",}", "}")
}
