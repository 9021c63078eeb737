//! The other side of a test: a program of another library, and its turns beside ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Place, Running, wait_for};
use tenure_testkit::overlap::Damage;
use tenure_testkit::{Counter, RedisServer, Reply};

/// Processes of ours, and of the other side.
pub(crate) const OURS: usize = 3;
pub(crate) const THEIRS: usize = 2;
/// Turns of each side that are enough.
const ENOUGH: usize = 25;

/// For the turns of all of them, on a machine that has much else to do.
const TURNS: Duration = Duration::from_secs(180);

pub(crate) const HELP: &str = "./scripts/test gets what the sides of others need";

/// A turn of ours: a visit of the [`Counter`], whose file is never cut short.
const VISIT: &str = "cd \"./$0\"
echo \"enter tenure.$$ ${TENURE_FENCE:--}\" >> log
n=$(cat counter)
printf %020d \"$(expr \"$n\" + 1)\" 1<> counter
echo \"leave tenure.$$\" >> log";

pub(crate) struct Library {
    pub(crate) name: &'static str,
    /// The parameters of a URL by which ours shares its locks.
    pub(crate) parameters: &'static str,
    /// Flags by which ours takes the same kind of lock.
    pub(crate) flags: &'static [&'static str],
    /// Where it keeps the lock of `x`.
    pub(crate) keys: &'static [&'static str],
    /// A process of it that does this.
    pub(crate) program: fn(&[&str]) -> Command,
    /// Whether it tells that the lock had gone when it gave it up.
    pub(crate) tells_loss: bool,
}

pub(crate) const fn library(name: &'static str, parameters: &'static str, program: fn(&[&str]) -> Command) -> Library {
    Library { name, parameters, flags: &[], keys: &["x"], program, tells_loss: true }
}

pub(crate) fn compare(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compare").join(path)
}

/// The Python that has what the sides need.
pub(crate) fn interpreter() -> Command {
    let python = std::env::var("TENURE_TEST_PYTHON").ok().filter(|path| !path.is_empty());
    Command::new(python.unwrap_or_else(|| panic!("TENURE_TEST_PYTHON names no Python; {HELP}")))
}

pub(crate) fn python(words: &[&str]) -> Command {
    let mut command = interpreter();
    command.arg(compare("python/side.py")).args(words);
    command
}

pub(crate) fn java(words: &[&str]) -> Command {
    let lib = compare("java/lib");
    assert!(lib.join("classes/Side.class").exists(), "compare/java/lib has no classes; {HELP}");
    let mut command = Command::new("java");
    // It lives for seconds.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp"]);
    command.arg(format!("{}:{}", lib.join("classes").display(), lib.join("jars/*").display())).arg("Side").args(words);
    command
}

impl Library {
    /// `urls`: of its servers, with commas in between.
    pub(crate) fn start(&self, place: &Place, urls: &str, what: &str) -> Running {
        self.start_with(place, urls, what, |_| ())
    }

    /// As [`start`](Self::start), started as `change` has it.
    pub(crate) fn start_with(&self, place: &Place, urls: &str, what: &str, change: impl FnOnce(&mut Command)) -> Running {
        let mut command = (self.program)(&[self.name, urls, "x", what]);
        change(&mut command);
        launched(place, command)
    }

    /// One that holds, until its input ends.
    pub(crate) fn holds(&self, place: &Place, url: &str) -> Running {
        let mut side = self.start(place, url, "hold");
        wait_for("the other side to hold", || place.path("held").exists() || side.0.try_wait().unwrap().is_some());
        assert!(place.path("held").exists(), "{:?}; {HELP}", side.end());
        side
    }

    /// The command that takes the same kind of lock at `x`, with these flags and this program.
    pub(crate) fn ours<'a>(&self, url: &'a str, flags: &[&'a str], program: &[&'a str]) -> Vec<&'a str> {
        [&["run", "--store", url], self.flags, flags, &["x", "--"], program].concat()
    }

    /// Where ours finds its locks.
    pub(crate) fn at(&self, url: &str) -> String {
        if self.parameters.is_empty() { url.to_owned() } else { format!("{url}?{}", self.parameters) }
    }

    pub(crate) fn is_redisson(&self) -> bool {
        self.name.starts_with("redisson")
    }

    /// The owner that stands at the key.
    pub(crate) fn holder(&self, server: &RedisServer) -> String {
        let found = server.command(&[if self.is_redisson() { "HKEYS" } else { "GET" }, self.keys[0]]);
        // A read/write lock has its mode in front, and marks a writer.
        let found = if let Reply::Array(mut fields) = found { fields.pop().unwrap() } else { found };
        match found {
            Reply::Bytes(value) => printed(value).trim_end_matches(":write").to_owned(),
            other => panic!("{} keeps no lock at {}: {other:?}", self.name, self.keys[0]),
        }
    }

    /// Runs a command with all keys of the lock.
    pub(crate) fn at_keys(&self, server: &RedisServer, command: &str) -> i64 {
        server.command(&[&[command], self.keys].concat()).int()
    }
}

fn launched(place: &Place, mut command: Command) -> Running {
    place.settle(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::of(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; {HELP}")))
}

/// Ends the turns in a folder, also when the test fails.
pub(crate) struct Enough(pub(crate) PathBuf);

impl Drop for Enough {
    fn drop(&mut self) {
        std::fs::write(self.0.join("enough"), "").unwrap();
    }
}

/// Whether each side had its turns, many of them between two of the other.
fn is_enough(log: &str) -> bool {
    let ours: Vec<bool> =
        log.lines().filter_map(|line| line.strip_prefix("enter ")).map(|id| id.starts_with("tenure.")).collect();
    let changes = ours.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let turns = ours.iter().filter(|ours| **ours).count();
    turns >= ENOUGH && ours.len() - turns >= ENOUGH && changes >= 12
}

pub(crate) fn take_turns(library: &Library, parameters: &str) {
    let judged = beside(library, parameters);
    assert!(judged.is_ok(), "who begins with tenure is ours, the others are of {}:\n{}", library.name, judged.unwrap_err());
}

/// All processes take the name `x` of one server at once. Returns the damage, if there was any.
pub(crate) fn beside(library: &Library, parameters: &str) -> Result<(), Damage> {
    let server = RedisServer::start();
    let judged = contend(library, &server.url(), &format!("{}?{parameters}", server.url()));
    assert_eq!(library.at_keys(&server, "EXISTS"), 0, "{}", library.name);
    judged
}

pub(crate) fn contend(library: &Library, their_urls: &str, our_url: &str) -> Result<(), Damage> {
    let place = Place::new();
    contend_at(&place, &[(library, "x", our_url.to_owned())], || library.start(&place, their_urls, "count"))
}

/// All processes take turns with several locks of one program, each at a name and in a folder of its own. Ours are found at the
/// same URL with the parameters of the lock.
pub(crate) fn all_take_turns(libraries: &[Library], url: &str) {
    let (place, names) = (Place::new(), libraries.iter().map(|library| library.name).collect::<Vec<_>>());
    let at: Vec<_> = libraries.iter().map(|library| (library, library.name, library.at(url))).collect();
    let judged = contend_at(&place, &at, || launched(&place, (libraries[0].program)(&[&names.join(","), url, "-", "count"])));
    assert!(judged.is_ok(), "who begins with tenure is ours, the others are of {names:?}:\n{}", judged.unwrap_err());
}

/// Of each lock: its library, the name, and the URL of ours.
fn contend_at(place: &Place, at: &[(&Library, &str, String)], start: impl Fn() -> Running) -> Result<(), Damage> {
    let folders: Vec<_> = at.iter().map(|(_, name, _)| place.path(folder(name))).collect();
    let counters: Vec<_> = folders
        .iter()
        .map(|folder| {
            std::fs::create_dir_all(folder).unwrap();
            Counter::create(folder)
        })
        .collect();
    let log = |folder: &PathBuf| std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let mut theirs: Vec<_> = (0..THEIRS).map(|_| start()).collect();
    let mut turns: Vec<u64> = std::thread::scope(|scope| {
        let ours =
            at.iter().map(|(library, name, url)| [(); OURS].map(|()| scope.spawn(|| our_turns(library, place, url, name))));
        let (ours, enough): (Vec<_>, Vec<_>) = (ours.collect(), folders.iter().cloned().map(Enough).collect());
        let started = Instant::now();
        while !folders.iter().all(|folder| is_enough(&log(folder)))
            && theirs.iter_mut().all(|side| side.0.try_wait().unwrap().is_none())
        {
            let logs = || folders.iter().map(log).collect::<String>();
            assert!(started.elapsed() < TURNS, "waited {TURNS:?} for both sides to have had their turns:\n{}", logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(enough);
        ours.into_iter().map(|ours| ours.map(|ours| ours.join().unwrap()).iter().sum()).collect()
    });
    for side in theirs {
        let ended = side.end();
        assert_eq!(ended.code, 0, "the other side, not ours: {ended:?}; {HELP}");
        for ((library, ..), turns) in at.iter().zip(&mut turns) {
            let of_it = ended.out.lines().find_map(|line| line.strip_prefix(library.name)?.strip_prefix(' '));
            *turns += of_it.or(ended.out.split_whitespace().last()).unwrap().parse::<u64>().unwrap();
        }
    }
    for ((counter, folder), turns) in counters.iter().zip(&folders).zip(turns) {
        assert!(is_enough(&log(folder)), "{}", log(folder));
        counter.check(turns)?;
    }
    Ok(())
}

/// Where the turns at a name are counted.
fn folder(name: &str) -> &str {
    if name == "x" { "" } else { name }
}

pub(crate) fn our_turns(library: &Library, place: &Place, url: &str, name: &str) -> u64 {
    let mut turns = 0;
    while !place.path(folder(name)).join("enough").exists() {
        let args = [&["run", "--store", url][..], library.flags, &[name, "--", "sh", "-c", VISIT, folder(name)]].concat();
        let ended = place.output(&args);
        assert_eq!(ended.code, 0, "our side: {ended:?}");
        turns += 1;
        // Along our line a name is handed on and never free: with somebody always in it, who polls has no turn.
        std::thread::sleep(Duration::from_millis(50));
    }
    turns
}

/// A value as we show it.
fn printed(value: Vec<u8>) -> String {
    String::from_utf8(value)
        .unwrap_or_else(|no_text| no_text.as_bytes().iter().fold("hex:".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// They hold and we are refused; their lock is deleted and ours does not go with it; we hold and they are refused.
pub(crate) fn one_at_a_time(library: &Library, parameters: &str) {
    let (place, server) = (Place::new(), RedisServer::start());
    let (url, name) = (tenure_testkit::patient(&format!("{}?{parameters}", server.url()), "5s"), library.name);

    let mut theirs = library.holds(&place, &server.url());
    let value = library.holder(&server);
    let refused = place.output(&library.ours(&url, &["-n"], &["touch", "ran"]));
    // Of a generated token people are shown the label.
    let shown = value.rsplit_once('.').filter(|(_, random)| random.len() == 32).map_or(&*value, |(label, _)| label);
    assert!(refused.code == 75 && refused.err.contains(shown), "{name}: {value} {refused:?}");
    let shown: serde_json::Value =
        serde_json::from_str(&place.output(&["show", "--store", &url, "-o", "json", "x"]).out).unwrap();
    assert_eq!(shown[0]["holders"][0]["owner"], value.as_str(), "{name}: {shown}");

    // It may hold before it has asked for its last key.
    let all = i64::try_from(library.keys.len()).unwrap();
    wait_for("all keys of the other side", || library.at_keys(&server, "EXISTS") == all);
    assert_eq!(library.at_keys(&server, "DEL"), all, "{name}");
    let args = library.ours(&url, &["-n"], &["sh", "-c", "echo in > ours; cat"]);
    let mut ours = Running::start(place.tenure(&args).stdin(Stdio::piped()));
    place.line("ours");
    if name.starts_with("rueidislock") {
        // It hears of its loss, and does not ask at its release.
        place.line("lost");
    }
    drop(theirs.0.stdin.take());
    let ended = theirs.end();
    let (code, word) = if library.tells_loss { (79, "lost") } else { (0, "released") };
    assert!(ended.code == code && ended.out.contains(word), "the side of {name}: {ended:?}");

    assert_eq!(library.start(&place, &server.url(), "try").end().code, 75, "{name} took the lock that is ours");
    drop(ours.0.stdin.take());
    let ended = ours.end();
    assert_eq!(ended.code, 0, "{name}: {ended:?}");
    assert!(!place.path("ran").exists(), "{name}");
}

/// Neither side polls here: ours every 30 s, the others not before 30 s. `waits` finds out whether a waiter of ours, or of the
/// library, has begun to wait.
pub(crate) fn each_wakes_the_other(library: &Library, waits: [&dyn Fn(&RedisServer) -> bool; 2]) {
    let server = RedisServer::start();
    let [ours_waits, theirs_waits] = waits;
    let theirs_sleeps = || theirs_waits(&server) && is_at_rest(&server);
    let waits: [&dyn Fn() -> bool; 3] = [&|| ours_waits(&server), &|| !ours_waits(&server), &theirs_sleeps];
    each_wakes_the_other_at(&server.url(), library, waits);
}

/// Whether no client has asked anything for a second. A waiter of Redisson that has asked and does not sleep yet misses what wakes all
/// that sleep.
pub(crate) fn is_at_rest(server: &RedisServer) -> bool {
    let clients = server.cli("CLIENT LIST");
    clients.lines().filter(|client| !client.contains("cmd=client")).all(|client| !client.contains(" idle=0 "))
}

/// As [`each_wakes_the_other`]. `waits` finds out whether ours waits, does no more, and theirs waits.
pub(crate) fn each_wakes_the_other_at(their_url: &str, library: &Library, waits: [&dyn Fn() -> bool; 3]) {
    const BOUND: Duration = Duration::from_secs(5);
    let [ours_waits, ours_is_served, theirs_waits] = waits;
    let place = Place::new();
    let url = format!("{their_url}?{}&poll_interval=30s", library.parameters);
    let mut theirs = library.holds(&place, their_url);
    let args = library.ours(&url, &[], &["sh", "-c", "echo in > ours; cat"]);
    let mut ours = Running::start(place.tenure(&args).stdin(Stdio::piped()));
    wait_for("ours to wait", ours_waits);
    drop(theirs.0.stdin.take());
    let released = Instant::now();
    place.line("ours");
    let ours_after = released.elapsed();
    assert_eq!(theirs.end().code, 0);
    wait_for("ours to wait no more", ours_is_served);
    std::fs::remove_file(place.path("held")).unwrap();
    let mut theirs = library.start(&place, their_url, "hold");
    wait_for("the other side to wait", theirs_waits);
    drop(ours.0.stdin.take());
    let released = Instant::now();
    place.line("held");
    let theirs_after = released.elapsed();
    drop(theirs.0.stdin.take());
    assert_eq!((ours.end().code, theirs.end().code), (0, 0));
    assert!(ours_after < BOUND, "ours beside {} only after {ours_after:?}", library.name);
    assert!(theirs_after < BOUND, "{} only after {theirs_after:?}", library.name);
}
