//! The example as its README has it, for some seconds.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_testkit::{EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, Spawned, ZooKeeperServer, patient};

fn run(args: &[&str]) -> String {
    let (report, error) = ended(args);
    assert_eq!(error, None, "{report}");
    report
}

/// The report of a run, and why it failed.
fn ended(args: &[&str]) -> (String, Option<String>) {
    let output = Spawned::output(Command::new(env!("CARGO_BIN_EXE_gateway")).args(args)).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    println!("{args:?}\n{report}");
    let error = (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned());
    (report, error)
}

/// Numbers in the row of a table.
fn row(report: &str, name: &str) -> Vec<f64> {
    let found = report.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name:?}: {report}"));
    found.split_whitespace().map_while(|cell| cell.parse().ok()).collect()
}

fn whole(numbers: &[f64]) -> Vec<i64> {
    numbers.iter().map(|number| format!("{number:.0}").parse().unwrap()).collect()
}

#[test]
fn a_double_click_is_one_gift_with_the_layer_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", dir.path().join("locks.db").display());
    let (memcached, zookeeper) = (MemcachedServer::start(), ZooKeeperServer::start());
    let (etcd, mysql, postgres) = (EtcdCluster::of(1).start(), MariaDbServer::start(), PostgresServer::start());
    let others = [memcached.url(), zookeeper.url("gateway"), etcd.url("gateway"), mysql.url("locks"), postgres.url("locks")];
    // A server that gets no processor for a second is no outage.
    let urls = [file].into_iter().chain(others.map(|url| patient(&url, "5s"))).map(Some);
    for url in [None].into_iter().chain(urls) {
        let store = url.iter().flat_map(|url| ["--store", url]);
        let report = run(&["clicks", "--users", "200"].into_iter().chain(store).collect::<Vec<_>>());
        let [gifts, refused, others, doubled] = whole(&row(&report, "with the layer"))[..] else { panic!("{report}") };
        assert_eq!((gifts, refused + others, doubled), (200, 200, 0), "{report}");
        let without = whole(&row(&report, "without a lock"));
        assert!(without[0] > 200 && without[3] > 0, "{report}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let cases: [&[&str]; 6] = [
        &["load", "--rate", "0"],
        &["load", "--connections", "0"],
        &["load", "--threads", "0"],
        &["load", "--seconds", "0"],
        &["load", "--turns", "0"],
        &["serve", "--threads", "0"],
    ];
    for args in cases {
        let output = Spawned::output(Command::new(env!("CARGO_BIN_EXE_gateway")).args(args)).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

/// The file of the locks is this user's own, and the counters can be read by a collector.
#[test]
fn the_service_keeps_its_locks_in_a_file_of_its_user() {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(["serve", "--listen", "127.0.0.1:0"]).env("XDG_STATE_HOME", state.path());
    let mut service = Spawned::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped())).unwrap();
    let mut line = String::new();
    BufReader::new(service.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    assert!(state.path().join("tenure/gateway.db").exists());
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&at).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nx-user-id: 7\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("POST /gift").contains("a gift, with fence"));
    let metrics = ask("GET /metrics");
    assert!(metrics.contains("# TYPE gateway_granted_total counter\ngateway_granted_total 1\n"), "{metrics}");
}

#[test]
fn every_request_of_a_load_is_answered() {
    let (report, error) = ended(&["load", "--rate", "200", "--seconds", "2", "--turns", "2", "--no-limit"]);
    for name in ["with the layer", "without it"] {
        let row = row(&report, name);
        assert_eq!(whole(&row[..2]), [400, 0], "{report}");
        // Of a busy machine the run itself says that it was too slow, as its error.
        assert!(row[2] >= 180.0, "400 answers took {:?}", Duration::from_secs_f64(400.0 / row[2]));
        assert!(row[3] < 30.0, "half of the answers came only after {:?}", Duration::from_secs_f64(row[3] / 1e3));
    }
    assert_eq!(error, None, "{report}");
}
