//! Many processes on one file, and some that are killed.

use std::fs;
use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Store as _};

use crate::child::{finish, start};
use crate::common::{check_integrity, fresh, granted, lease, owner, patient, raw, request};

/// Ttl of leases that outlast a test.
const LONG: Duration = Duration::from_secs(600);

/// The file exists, for 20 and more processes that all want the same name.
#[test]
fn processes_exclude_each_other_and_fences_follow_the_order() {
    const PROCESSES: u64 = 24;
    let (_dir, path) = fresh();
    fs::write(path.with_extension("number"), "0").unwrap();
    fs::write(path.with_extension("log"), "").unwrap();
    let begun = Instant::now();
    finish((0..PROCESSES).map(|_| start("count", &path)).collect());
    println!("{} turns of {PROCESSES} processes: {:?}", PROCESSES * 50, begun.elapsed());
    assert_eq!(fs::read_to_string(path.with_extension("number")).unwrap(), (PROCESSES * 50).to_string());
    let log = fs::read_to_string(path.with_extension("log")).unwrap();
    let fences: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len() as u64, PROCESSES * 50);
    assert!(fences.is_sorted_by(|a, b| a < b), "a later holder has a smaller fence");
    check_integrity(&path);
}

/// No process gets the error that the file is busy when all make it at once.
#[test]
fn processes_make_the_file_together() {
    for round in 0..5 {
        let (_dir, path) = fresh();
        fs::write(path.with_extension("log"), "").unwrap();
        let children = (0..32).map(|_| start("first", &path)).collect();
        std::thread::sleep(Duration::from_millis(300));
        fs::write(path.with_extension("go"), "").unwrap();
        finish(children);
        let log = fs::read_to_string(path.with_extension("log")).unwrap();
        let mut times: Vec<u64> = log.lines().map(|line| line.split(' ').next_back().unwrap().parse().unwrap()).collect();
        times.sort_unstable();
        println!("round {round}: open, acquire and release of 32 at once: median {} us, max {} us", times[16], times[31]);
        assert_eq!(raw(&path).query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
        check_integrity(&path);
    }
}

/// Killed in mid-write, again and again: the file stays whole, the living are not disturbed, and the dead hold no longer than
/// their ttl.
#[tokio::test]
async fn a_killed_process_leaves_a_whole_file() {
    let (_dir, path) = fresh();
    let store = patient(&path);
    let (keeper, mut last) = (owner(), None);
    granted(&store, &request("kept", &keeper).with_ttl(LONG)).await;
    for round in 0..40_u64 {
        let mut children: Vec<_> = (0..3).map(|_| start("churn", &path)).collect();
        let until = Instant::now() + Duration::from_millis(60 + round * 7 % 60);
        while Instant::now() < until {
            let owner = owner();
            let grant = granted(&store, &request("mine", &owner)).await;
            assert!(grant.fence > last);
            last = grant.fence;
            store.release(&lease("mine", &owner), Duration::ZERO).await.unwrap();
        }
        for child in &mut children {
            assert!(child.try_wait().unwrap().is_none(), "a process ended by itself");
            child.child().kill().unwrap();
        }
        for child in &mut children {
            child.wait().unwrap();
        }
        check_integrity(&path);
    }
    tokio::time::sleep(Duration::from_millis(120)).await;
    let held: Vec<_> = store.inspect(None).await.unwrap().into_iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(held, ["kept"], "the dead hold names after their ttl");
    let log = fs::metadata(path.with_file_name("locks.db-wal")).unwrap().len();
    println!("log after 40 rounds of kills: {log} bytes");
    assert!(log < 8 << 20);
}

/// Every process is killed and the file is opened by a new one, which alone recovers the log.
#[tokio::test]
async fn a_file_whose_users_were_all_killed_is_recovered() {
    let (_dir, path) = fresh();
    for round in 0..15_u64 {
        let mut children: Vec<_> = (0..3).map(|_| start("churn", &path)).collect();
        std::thread::sleep(Duration::from_millis(50 + round * 11 % 50));
        for child in &mut children {
            child.child().kill().unwrap();
        }
        for child in &mut children {
            child.wait().unwrap();
        }
        let store = tenure_sql::sqlite::open(&path).unwrap();
        granted(&store, &request(&format!("round{round}"), &owner()).with_ttl(LONG)).await;
        assert!(store.inspect(None).await.unwrap().iter().any(|entry| entry.name.as_str() == "round0"), "a lease was lost");
        check_integrity(&path);
    }
}

/// A process that keeps the file locked makes a call fail in time, with nothing done.
#[tokio::test]
async fn a_busy_file_is_told_within_the_operation_timeout() {
    let (_dir, path) = fresh();
    let store = tenure_sql::sqlite::open(&path).unwrap();
    let blocker = raw(&path);
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (owner, begun) = (owner(), Instant::now());
    let asked = request("x", &owner).with_ttl(Duration::from_millis(600));
    let error = store.acquire(&asked).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(100), "took {:?}", begun.elapsed());
    assert_eq!((error.kind(), error.may_have_been_applied()), (tenure::ErrorKind::Overloaded, false));
    println!("{error}");
    blocker.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(store.acquire(&asked).await.unwrap(), AcquireReply::Granted(_)));
}
