//! A store over compare-and-swap on a slow connection that answers one call after another, with a crowd of this process.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::cas::{Cas, CasStore, Found, Repeat, Tried, Write, Wrote};
use tenure::store::record::Record;
use tenure::store::{AcquireReply, Busy, Features, Grant, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Name, Owner, Share};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

const ROUND_TRIP: Duration = Duration::from_millis(40);
const TTL: Duration = Duration::from_secs(6);

/// Clones are the same server.
#[derive(Clone, Debug)]
struct Slow {
    connection: Arc<Semaphore>,
    /// The version of the one name, the number of its last grant, and its record.
    state: Arc<Mutex<(u64, u64, Record)>>,
    /// Writes that come before the next one of this process.
    rivals: Arc<Mutex<u32>>,
    began: Instant,
}

impl Slow {
    async fn call<T>(&self, end: Instant, call: impl FnOnce() -> T) -> Result<T, Error> {
        let answer = async {
            let _turn = self.connection.acquire().await.unwrap();
            sleep(ROUND_TRIP).await;
            call()
        };
        timeout_at(end, answer).await.map_err(|_| Error::unreachable("no answer"))
    }

    fn found(&self) -> Found<u64> {
        let (version, counter, record) = self.state.lock().unwrap().clone();
        Found::new(record, self.began.elapsed(), counter, version)
    }
}

#[async_trait]
impl Cas for Slow {
    type Version = u64;

    fn features(&self) -> Features {
        Features::basic().with_fence(true)
    }

    async fn read(&self, _: &[&Name], end: Instant) -> Result<Vec<Found<u64>>, Error> {
        self.call(end, || vec![self.found()]).await
    }

    async fn write(&self, writes: &[Write<'_, u64>], _: Repeat, end: Instant) -> Result<Wrote<u64>, Error> {
        let write = || {
            let mut state = self.state.lock().unwrap();
            state.0 += u64::from(std::mem::take(&mut *self.rivals.lock().unwrap()));
            if writes[0].found.version != state.0 {
                return Wrote::nothing();
            }
            *state = (state.0 + 1, writes[0].counter, writes[0].found.record.clone());
            Wrote::all()
        };
        self.call(end, write).await
    }

    async fn list(&self, _: Instant) -> Result<Vec<Entry>, Error> {
        Ok(Vec::new())
    }

    fn busy(&self, busy: Busy, _: bool) -> Busy {
        busy
    }

    async fn take(&self, _: &Request, end: Instant) -> Result<Tried<Grant, u64>, Error> {
        self.call(end, || Tried::Other(Some(self.found()))).await
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow:")
    }
}

fn asks() -> Request {
    Request::new(Name::new("door").unwrap(), Owner::generate("x").unwrap(), Share::MUTEX, TTL)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_and_released_beside_many_of_its_process_that_try() {
    let connection = Arc::new(Semaphore::new(1));
    let slow = Slow { connection, state: Arc::default(), rivals: Arc::default(), began: Instant::now() };
    let store = Arc::new(CasStore::new(slow.clone()));
    let held = asks();
    assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    for _ in 0..100 {
        let store = Arc::clone(&store);
        tokio::spawn(async move { while !matches!(store.acquire(&asks()).await, Ok(AcquireReply::Granted(_))) {} });
    }
    for _ in 0..10 {
        sleep(TTL / 3).await;
        // Both are overtaken once, by another process.
        *slow.rivals.lock().unwrap() = 1;
        assert!(matches!(store.renew(&[held.lease()]).await[..], [Ok(RenewReply::Renewed)]));
    }
    *slow.rivals.lock().unwrap() = 1;
    assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}
