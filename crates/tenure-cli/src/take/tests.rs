use std::ffi::OsString;

use tenure::MemoryStore;
use tenure_testkit::{Fate, Faulty, Operation};

use super::*;
use crate::args::Common;

#[test]
fn work_gets_at_most_a_third_of_the_ttl_to_stop() {
    let s = Duration::from_secs;
    assert_eq!(kill_after(s(30), None, None).unwrap(), s(5));
    assert_eq!(kill_after(s(3), None, Some(s(2))).unwrap(), s(1));
    assert_eq!(kill_after(s(30), None, Some(s(2))).unwrap(), s(2));
    assert_eq!(kill_after(s(30), Some(s(10)), None).unwrap(), s(10));
    assert_eq!(kill_after(s(30), Some(s(11)), None).unwrap_err().code, 64);
}

/// Takes the name in a store that has answered before, and refuses three times now. Returns the exit code.
async fn code(kind: ErrorKind, wait: Option<Duration>, is_patient: bool) -> u8 {
    let common = Common { store: Some(OsString::from("sqlite:none")), quiet: true, verbose: false };
    let settings = Settings::load(&common).unwrap();
    let store = Faulty::new(MemoryStore::new());
    let locker = Locker::new(store.clone());
    drop(locker.mutex("warm").acquire().await.unwrap());
    (1..=3).for_each(|call| store.at(Operation::Acquire, call, Fate::Fails(kind)));
    let taking = Taking { wait, ttl: Some(Duration::from_secs(1)), ..Taking::default() };
    let plan = Plan { is_patient, ..Plan::guarded("x".as_ref(), &taking, &settings).unwrap() };
    let taken = plan.take_on(&locker, BootTime::now(), &mut Signals::passed_on().unwrap()).await;
    taken.map_or_else(|failure| failure.code, |_| 0)
}

/// Only what somebody has to mend ends a wait. No outage ends a candidate. docs/errors.md says so.
#[tokio::test]
async fn each_kind_of_error_ends_what_it_has_to() {
    let (try_once, at_most) = (Some(Duration::ZERO), Some(Duration::from_secs(50)));
    let rows = tenure_testkit::page::rows("errors.md", "What is done with each kind");
    for kind in [
        ErrorKind::Unreachable,
        ErrorKind::Unavailable,
        ErrorKind::Overloaded,
        ErrorKind::Refused,
        ErrorKind::Mismatch,
        ErrorKind::Damaged,
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
    ] {
        let row = rows.iter().find(|row| row[0] == format!("`{kind:?}`")).expect("it is on the page");
        let said = [2, 3, 4, 5].map(|cell| if row[cell].starts_with("waits") { 0 } else { row[cell].parse::<u8>().unwrap() });
        let [once, limited, run] =
            [(try_once, false), (at_most, false), (None, false)].map(|(wait, lead)| code(kind, wait, lead));
        assert_eq!([once.await, limited.await, run.await, code(kind, None, true).await], said, "{kind:?}");
        let waits = Error::new(kind, "x").is_transient();
        assert_eq!(said.map(|code| code == 0), [false, waits, waits, waits], "{kind:?}");
    }
}
