//! docs/calls.md line by line: what the calls of other locks are in the library and in the command.

mod java;
mod php;
mod set_nx;
mod shedlock;
mod spring;

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

    /// How many commands the server has run.
    fn commands(&self) -> u64 {
        let stats = self.server.cli("INFO stats");
        let count = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        count.unwrap().trim().parse().unwrap()
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
    let files = [
        ("php", include_str!("calls/php.rs")),
        ("java", include_str!("calls/java.rs")),
        ("spring", include_str!("calls/spring.rs")),
        ("set_nx", include_str!("calls/set_nx.rs")),
        ("shedlock", include_str!("calls/shedlock.rs")),
    ];
    let tests: Vec<_> = files.iter().flat_map(|(module, file)| tests_of(module, file)).collect();
    let lines: Vec<_> = table.lines().filter(|line| line.ends_with("` |")).collect();
    let named: Vec<_> = lines.iter().map(|line| line.rsplit('`').nth(1).unwrap()).collect();
    assert_eq!(named, tests.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for (line, (name, test)) in lines.iter().zip(&tests) {
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
fn tests_of(module: &str, file: &str) -> Vec<(String, String)> {
    let tests = file.split("#[tokio::test]\nasync fn ").skip(1);
    tests.map(|test| (format!("{module}::{}", test.split('(').next().unwrap()), plain(test))).collect()
}

/// The text as no formatting of the code changes it.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<String>().replace(",)", ")").replace(",}", "}")
}
