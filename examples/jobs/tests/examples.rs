//! The examples as their README has them, for some seconds each.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use tenure_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, SentinelGroup, Spawned, ZooKeeperServer, page,
};

/// Tries until a fault has met a step where it does harm.
const TRIES: usize = 8;

/// An example that `cargo test` has built beside this test.
fn example(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join(name);
    let built = fs::metadata(&path).and_then(|file| file.modified()).ok();
    // With `--test`, cargo builds no examples, and an older one would be tested.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Its own alone: cargo leaves an example as it is if another has changed.
    let changed = sources(&root.join(name)).max(sources(&root.join("src")));
    assert!(built > changed, "{} is not there, or older than its source: use `cargo test -p jobs` as a whole", path.display());
    path
}

/// Time of the last change in a folder of sources.
fn sources(folder: &Path) -> Option<SystemTime> {
    let files = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let changed = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => sources(&path),
        Some(extension) if extension == "rs" => fs::metadata(&path).and_then(|file| file.modified()).ok(),
        _ => None,
    };
    files.filter_map(changed).max()
}

/// Runs an example. Returns whether it was content, and its report.
fn run(name: &str, args: &[&str]) -> (bool, String) {
    let output = Spawned::output(Command::new(example(name)).args(args)).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    println!("{name} {args:?}\n{report}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.success(), report)
}

/// Number in a column of the row that begins with `row`.
fn number(report: &str, row: &str, column: usize) -> i64 {
    let line = report.lines().find_map(|line| line.strip_prefix(row)).unwrap_or_else(|| panic!("no {row:?}: {report}"));
    // The rest of the name is no number.
    let numbers: Vec<&str> = line.split_whitespace().filter(|word| word.parse::<f64>().is_ok()).collect();
    numbers.get(column).unwrap_or_else(|| panic!("{row:?} has no column {column}: {report}")).parse().unwrap()
}

fn sold(report: &str, row: &str) -> i64 {
    number(report, row, 0)
}

fn twice(report: &str, row: &str) -> i64 {
    number(report, row, 1)
}

fn at_once(report: &str, row: &str) -> i64 {
    number(report, row, 2)
}

fn dead(report: &str, row: &str) -> i64 {
    number(report, row, 3)
}

#[test]
fn a_flash_sale_shows_the_dead_stock_of_a1() {
    let is_dead = || {
        let (_, report) = run("flash_sale", &["--store", "redis", "--only", "A1"]);
        dead(&report, "A1 SETNX, EXPIRE") > 0
    };
    assert!((0..TRIES).any(|_| is_dead()), "no crash between SETNX and EXPIRE left stock");
}

/// As the README has the command: a third buyer comes while the second one pays.
#[test]
fn a_flash_sale_shows_the_double_sale_of_a5() {
    let is_double = || {
        let (_, report) = run("flash_sale", &["--only", "A5"]);
        twice(&report, "A5 SET NX EX, DEL") > 0 && at_once(&report, "A5 SET NX EX, DEL") > 0
    };
    assert!((0..TRIES).any(|_| is_double()), "no late buyer let two in at once");
}

#[test]
fn a_flash_sale_under_tenure_sells_each_unit_once() {
    let picture = tempfile::NamedTempFile::new().unwrap();
    let (rows, small) = (["tenure, a file", "tenure, native", "tenure, permits"], ["--items", "3", "--units", "20"]);
    let only = rows.iter().flat_map(|row| ["--only", *row]);
    let file = ["--picture", picture.path().to_str().unwrap()];
    let args: Vec<&str> = ["--store", "redis"].into_iter().chain(small).chain(only).chain(file).collect();
    let (is_content, report) = run("flash_sale", &args);
    for row in rows {
        assert_eq!((sold(&report, row), twice(&report, row), dead(&report, row)), (60, 0, 0), "{row}");
    }
    assert!(is_content);
    let picture = fs::read_to_string(picture.path()).unwrap();
    assert!(rows.iter().all(|row| picture.contains(row)) && picture.ends_with("</svg>\n"), "{picture}");
}

#[test]
fn a_flash_sale_without_a_server_names_what_it_leaves_out() {
    let args = ["--store", "embedded", "--items", "2", "--units", "10", "--no-crashes"];
    let (is_content, report) = run("flash_sale", &args);
    assert!(is_content && twice(&report, "no lock") > 0, "{report}");
    assert_eq!((sold(&report, "tenure, a file"), twice(&report, "tenure, a file")), (20, 0));
    let left_out = report.lines().find(|line| line.starts_with("not shown")).unwrap();
    assert!(["A1 ", "A8 ", "tenure as A4", "tenure, native"].iter().all(|row| left_out.contains(row)), "{left_out}");
}

/// Each is an error with its reason, and nothing begins.
#[test]
fn bad_input_is_refused() {
    let server = RedisServer::start();
    let url = format!("{}?scheme=set-nx", server.url());
    for (name, args, why) in [
        ("flash_sale", &["--only", "nothing-like-it"][..], "nothing-like-it"),
        ("flash_sale", &["--buyers", "0"], "--buyers"),
        ("flash_sale", &["--items", "0"], "--items"),
        ("flash_sale", &["--units", "0"], "--units"),
        ("task_queue", &["--workers", "0"], "--workers"),
        ("task_queue", &["--tasks", "1"], "--tasks"),
        ("task_queue", &["--store", &url, "--only", "fence"], "fence"),
        ("task_queue", &["--store", "redis"], "/nonexistent"),
        ("nightly_job", &["--ticks", "0"], "--ticks"),
        ("nightly_job", &["--only", "twice"], "--only"),
        ("nightly_job", &["--store", "redis"], "/nonexistent"),
        ("nightly_job", &["--store", "ftp://localhost"], "ftp: is no store"),
        ("one_leader", &["--steps", "0"], "--steps"),
        ("one_leader", &["--candidates", "0"], "--candidates"),
        ("one_leader", &["--store", &url], "no fence"),
        ("one_leader", &["--store", "redis"], "/nonexistent"),
        ("numbers", &["--processes", "0"], "--processes"),
        ("numbers", &["--numbers", "0"], "--numbers"),
        ("numbers", &["--store", &url], "no fence"),
        ("numbers", &["--store", "redis"], "/nonexistent"),
        ("numbers", &["--store", "ftp://localhost"], "ftp: is no store"),
    ] {
        let mut command = Command::new(example(name));
        if why == "/nonexistent" {
            command.env("TENURE_REDIS_SERVER", why);
        }
        let output = Spawned::output(command.args(args)).unwrap();
        let (told, said) = (String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap());
        assert!([Some(1), Some(2)].contains(&output.status.code()), "{name} {args:?}: {}: {told}", output.status);
        assert!(told.contains(why) && !told.contains("panicked") && said.is_empty(), "{name} {args:?}: {told}{said}");
    }
}

#[test]
fn a_task_queue_does_each_task_once() {
    const ROW: &str = "lock and fence";
    for store in ["embedded", "redis"] {
        let refused = (0..TRIES).map(|_| {
            let (is_content, report) = run("task_queue", &["--store", store, "--only", "fence", "--tasks", "300"]);
            let [made, done, twice, lost, refused] = [0, 1, 2, 3, 4].map(|column| number(&report, ROW, column));
            assert_eq!((made, done, twice, lost), (300, 300, 0, 0));
            assert!(is_content && number(&report, ROW, 5) > 0 && number(&report, ROW, 6) > 0, "nobody was killed and stopped");
            refused
        });
        assert!(refused.into_iter().any(|refused| refused > 0), "{store}: no stopped worker ever came too late");
    }
}

#[test]
fn a_task_queue_without_a_lock_does_tasks_twice_or_loses_them() {
    let goes_wrong = || {
        let (_, report) = run("task_queue", &["--only", "nothing", "--only", "pop", "--tasks", "300"]);
        number(&report, "no lock, removed when done", 2) > 0 && number(&report, "no lock, removed first", 3) > 0
    };
    assert!((0..TRIES).any(|_| goes_wrong()), "nothing went wrong");
}

/// Each tick is under one of the columns. No count is of what a slow machine does.
#[test]
fn a_nightly_job_runs_once_at_each_tick() {
    for store in ["embedded", "redis"] {
        let killed = (0..TRIES).map(|_| {
            let (is_content, report) = run("nightly_job", &["--store", store, "--only", "once-per", "--ticks", "5"]);
            let [ticks, _, once, twice, not_run, lost, late, killed] =
                std::array::from_fn(|column| number(&report, "once per period", column));
            assert_eq!((is_content, ticks, twice, not_run, once + lost + late), (true, 5, 0, 0, 5));
            once > 0 && killed > 0
        });
        assert!({ killed }.any(|killed| killed), "{store}: no tick ran, or nobody was killed");
    }
}

#[test]
fn a_nightly_job_with_no_lock_or_a_plain_one_runs_twice_at_a_tick() {
    let goes_wrong = || {
        let (_, report) = run("nightly_job", &["--only", "nothing", "--only", "lock", "--ticks", "3"]);
        ["no lock", "a lock"].iter().all(|row| number(&report, row, 3) > 0)
    };
    assert!((0..TRIES).any(|_| goes_wrong()), "no tick ran twice");
}

#[test]
fn one_leader_loses_no_step() {
    for store in ["embedded", "redis"] {
        let refused = (0..TRIES).map(|_| {
            let (is_content, report) = run("one_leader", &["--store", store, "--only", "fence", "--steps", "150"]);
            let [steps, lost, refused, _, seen, back] =
                std::array::from_fn(|column| number(&report, "an election and its fence", column));
            assert_eq!((is_content, steps >= 150, lost, back), (true, true, 0, 0));
            refused > 0 && seen > 0
        });
        assert!({ refused }.any(|refused| refused), "{store}: no stopped leader came too late, or nobody saw who leads");
    }
}

#[test]
fn leaders_without_a_fence_lose_steps() {
    let goes_wrong = || {
        let (_, report) = run("one_leader", &["--only", "nothing", "--only", "election", "--steps", "150"]);
        ["no election", "an election, no fence"].iter().all(|row| number(&report, row, 1) > 0)
    };
    assert!((0..TRIES).any(|_| goes_wrong()), "no step was lost");
}

/// The program of the page is a part of an example, which is compiled and run.
#[test]
fn the_page_of_numbers_has_the_text_of_the_example() {
    let lines = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("numbers/floors.rs")).unwrap();
    let block = page::blocks("numbers.md", "Without gaps", "rust,ignore").swap_remove(0);
    let (own, page) = (lines(&source), lines(&block.replace("\"thread/42\"", "name")));
    assert!(own.contains(&page), "{page}\n\nis not in\n\n{own}");
}

#[test]
fn floors_have_no_gap_though_their_writers_are_killed() {
    for store in ["embedded", "redis"] {
        let killed = (0..TRIES).map(|_| {
            let (is_content, report) = run("numbers", &["--store", store, "--numbers", "40", "--no-costs"]);
            assert!(is_content, "a gap or a duplicate");
            let [floors, wanted] = [0, 1].map(|column| number(&report, "floors ", column));
            assert_eq!((floors, wanted, number(&report, "duplicates ", 0), number(&report, "gaps ", 0)), (1_280, 1_280, 0, 0));
            let line = report.lines().next().unwrap();
            line.rsplit_once("s, ").unwrap().1.split(' ').next().unwrap().parse::<u32>().unwrap()
        });
        assert!(killed.into_iter().any(|killed| killed > 0), "{store}: nobody was killed");
    }
}

/// Each example, briefly, with its locks in the store of this URL.
fn on(url: &str) {
    let (is_content, report) = run("numbers", &["--store", url, "--processes", "8", "--numbers", "10"]);
    assert_eq!((is_content, number(&report, "floors ", 0), number(&report, "gaps ", 0)), (true, 80, 0), "{url}");
    assert!(number(&report, "ids, the store ", 0) > 0, "{url}");

    let (is_content, report) = run("task_queue", &["--store", url, "--only", "fence", "--tasks", "60"]);
    let counts = [0, 1, 2, 3].map(|column| number(&report, "lock and fence", column));
    assert_eq!((is_content, counts), (true, [60, 60, 0, 0]), "{url}");

    let (is_content, report) = run("one_leader", &["--store", url, "--only", "fence", "--steps", "60"]);
    assert_eq!((is_content, number(&report, "an election and its fence", 1)), (true, 0), "{url}");

    let rows = ["tenure, native", "tenure, permits"];
    let only = rows.iter().flat_map(|row| ["--only", *row]);
    let args: Vec<&str> = ["--store", url, "--items", "4", "--units", "5"].into_iter().chain(only).collect();
    let (is_content, report) = run("flash_sale", &args);
    for row in rows {
        assert_eq!((sold(&report, row), twice(&report, row), dead(&report, row)), (20, 0, 0), "{url}: {row}");
    }
    assert!(is_content, "{url}");
}

/// A tick or more, where the store can keep a name without a holder.
fn nightly(url: &str, ticks: &str) {
    let (is_content, report) = run("nightly_job", &["--store", url, "--only", "once-per", "--ticks", ticks]);
    assert_eq!((is_content, number(&report, "once per period", 3)), (true, 0), "{url}");
}

/// A user whose Redis has the locks of another library gives its scheme.
#[test]
fn the_examples_take_a_redis_with_a_scheme() {
    let server = RedisServer::start();
    let url = format!("{}?scheme=redisson", server.url());
    let rows = ["A6 with a token", "tenure, native"];
    let args = ["--store", &url, "--no-crashes", "--items", "2", "--units", "5", "--only", "tenure", "--only", "A6"];
    let (is_content, report) = run("flash_sale", &args);
    assert!(is_content && rows.iter().all(|row| sold(&report, row) >= 10), "{report}");
    let left_out = report.lines().find(|line| line.starts_with("not shown")).unwrap();
    assert!(["tenure as A1", "tenure as A8"].iter().all(|row| left_out.contains(row)), "{left_out}");
}

#[test]
fn the_examples_take_etcd() {
    let etcd = EtcdCluster::of(1).start();
    on(&etcd.url("jobs"));
    nightly(&etcd.url("jobs"), "1");
}

#[test]
fn the_examples_take_zookeeper() {
    let zookeeper = ZooKeeperServer::start();
    on(&zookeeper.url("jobs"));
    let refused = Spawned::output(Command::new(example("nightly_job")).args(["--store", &zookeeper.url("jobs")])).unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot stay taken after its release"), "{refused:?}");
}

#[test]
fn the_examples_take_memcached() {
    on(&MemcachedServer::start().url());
}

#[test]
fn the_examples_take_tables() {
    let (postgres, mariadb) = (PostgresServer::start(), MariaDbServer::start());
    for url in [postgres.url("jobs"), mariadb.url("jobs")] {
        on(&url);
        nightly(&url, "3");
    }
}

#[test]
fn the_examples_take_sentinels_and_a_file() {
    on(&SentinelGroup::start().url());
    let dir = tempfile::tempdir().unwrap();
    on(&format!("sqlite:{}", dir.path().join("locks.db").display()));
}
