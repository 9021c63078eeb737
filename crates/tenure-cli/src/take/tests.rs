use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Lease, MemoryStore};

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

/// A store that refuses so many acquisitions for a reason.
#[derive(Debug)]
struct Refuses(MemoryStore, ErrorKind, Arc<AtomicU32>);

#[async_trait]
impl Store for Refuses {
    fn features(&self) -> Features {
        self.0.features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        match self.2.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::new(self.1, "as the test wants it")),
            Err(_) => self.0.acquire(request).await,
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.0.acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.0.release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.0.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.0.inspect(name).await
    }
}

impl fmt::Display for Refuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refuses:")
    }
}

/// Takes the name in a store that has answered before, and refuses three times now. Returns the exit code.
async fn code(kind: ErrorKind, wait: Option<Duration>, is_patient: bool) -> u8 {
    let common = Common { store: Some(OsString::from("sqlite:none")), quiet: true, verbose: false };
    let settings = Settings::load(&common).unwrap();
    let (left, ttl) = (Arc::new(AtomicU32::new(0)), Some(Duration::from_secs(1)));
    let locker = Locker::new(Refuses(MemoryStore::new(), kind, Arc::clone(&left)));
    drop(locker.mutex("warm").acquire().await.unwrap());
    left.store(3, Ordering::Relaxed);
    let taking = Taking { wait, ttl, ..Taking::default() };
    let plan = Plan { is_patient, ..Plan::guarded("x".as_ref(), &taking, &settings).unwrap() };
    let taken = plan.take_on(&locker, BootTime::now(), &mut Signals::passed_on().unwrap()).await;
    taken.map_or_else(|failure| failure.code, |_| 0)
}

/// Only what somebody has to mend ends a wait. No outage ends a candidate.
#[tokio::test]
async fn each_kind_of_error_ends_what_it_has_to() {
    let (try_once, at_most) = (Some(Duration::ZERO), Some(Duration::from_secs(50)));
    for (kind, once, waiting) in [
        (ErrorKind::Unreachable, 69, 0),
        (ErrorKind::Unavailable, 69, 0),
        (ErrorKind::Overloaded, 69, 0),
        (ErrorKind::Refused, 77, 77),
        (ErrorKind::Mismatch, 77, 77),
        (ErrorKind::Damaged, 74, 74),
        (ErrorKind::Invalid, 64, 64),
        (ErrorKind::Unsupported, 64, 64),
    ] {
        let run = [code(kind, try_once, false).await, code(kind, at_most, false).await, code(kind, None, false).await];
        assert_eq!((run, code(kind, None, true).await), ([once, waiting, waiting], waiting), "{kind:?}");
    }
}
