//! Requests at a constant rate, whether the answers come or not.
//!
//! Each request has a planned time, and its latency is counted from there. If the service stands
//! still, the requests that could not be sent meanwhile count as slow (*coordinated omission* is
//! corrected). A generator that waits for its answers would leave them out.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Error;
use crate::client::Client;

/// A longer latency counts as this one.
const LONGEST: Duration = Duration::from_secs(60);

/// A constant rate of arrivals, for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rate: u64,
    pub(crate) time: Duration,
    pub(crate) connections: usize,
}

/// Results of a plan, or of several.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From the planned time to the end of the answer, in microseconds.
    latencies: Histogram<u64>,
    /// Served with status 200.
    pub(crate) served: u64,
    pub(crate) failed: u64,
    /// Time from the first planned request to the last answer.
    pub(crate) took: Duration,
    /// Greatest delay of the generator itself behind its plan.
    pub(crate) late: Duration,
}

/// Planned times of requests that no connection has taken yet.
#[derive(Debug)]
struct Arrivals {
    planned: Mutex<VecDeque<Instant>>,
    there: Semaphore,
}

impl Measured {
    pub(crate) fn new() -> Result<Self, Error> {
        let latencies = Histogram::new_with_max(micros(LONGEST), 3)?;
        Ok(Self { latencies, served: 0, failed: 0, took: Duration::ZERO, late: Duration::ZERO })
    }

    fn note(&mut self, latency: Duration, served: bool) {
        self.latencies.saturating_record(micros(latency));
        if served {
            self.served += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Adds the results of other connections in the same time.
    fn merge(&mut self, other: &Self) -> Result<(), Error> {
        self.latencies.add(&other.latencies)?;
        self.served += other.served;
        self.failed += other.failed;
        Ok(())
    }

    /// Adds the results of a later time.
    pub(crate) fn append(&mut self, later: &Self) -> Result<(), Error> {
        self.merge(later)?;
        self.took += later.took;
        self.late = self.late.max(later.late);
        Ok(())
    }

    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.latencies.value_at_quantile(quantile))
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.latencies.max())
    }

    /// Requests served in a second.
    pub(crate) fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.served).unwrap_or(u32::MAX)) / self.took.as_secs_f64()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Sends the requests of a plan, each as another user, and waits for all answers.
pub(crate) async fn measure(to: SocketAddr, plan: Plan) -> Result<Measured, Error> {
    let mut clients = Vec::new();
    for _ in 0..plan.connections {
        clients.push(Client::connect(to).await?);
    }
    let arrivals = Arc::new(Arrivals { planned: Mutex::default(), there: Semaphore::new(0) });
    let began = Instant::now();
    let requests = plan.rate * plan.time.as_secs();
    // A thread of its own: the timers of the runtime are too coarse for one request each 100 us.
    let arriving = std::thread::spawn({
        let arrivals = Arc::clone(&arrivals);
        move || arrivals.arrive(began, plan.rate, requests)
    });
    let first = first_user();
    let mut sending = JoinSet::new();
    for (user, client) in (first..).step_by(1 << 32).zip(clients) {
        sending.spawn(send(Arc::clone(&arrivals), client, user));
    }
    let mut all = Measured::new()?;
    while let Some(measured) = sending.join_next().await {
        all.merge(&measured??)?;
    }
    all.took = began.elapsed();
    all.late = arriving.join().map_err(|_| "the thread of arrivals failed")?;
    Ok(all)
}

impl Arrivals {
    /// Announces each request at its time. Returns the greatest delay.
    fn arrive(&self, began: Instant, rate: u64, requests: u64) -> Duration {
        let mut late = Duration::ZERO;
        for n in 0..requests {
            let planned = began + Duration::from_nanos(n * 1_000_000_000 / rate);
            let now = Instant::now();
            if planned > now {
                std::thread::sleep(planned - now);
            } else {
                late = late.max(now - planned);
            }
            self.planned.lock().unwrap_or_else(PoisonError::into_inner).push_back(planned);
            self.there.add_permits(1);
        }
        self.there.close();
        late
    }

    async fn next(&self) -> Option<Instant> {
        if let Ok(permit) = self.there.acquire().await {
            permit.forget();
        }
        // After the end the rest is taken without permits.
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

async fn send(arrivals: Arc<Arrivals>, mut client: Client, first_user: u64) -> Result<Measured, Error> {
    let (mut measured, mut user) = (Measured::new()?, first_user);
    while let Some(planned) = arrivals.next().await {
        user += 1;
        let served = matches!(client.post("/ping", user).await, Ok((status, _)) if status.is_success());
        measured.note(planned.elapsed(), served);
    }
    Ok(measured)
}

/// First user of a run. Users of another run may still be taken at a store that is kept.
fn first_user() -> u64 {
    u64::from(std::process::id()) << 16
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::Router;
    use axum::routing::post;
    use tokio::net::TcpListener;

    use super::*;

    /// A generator that waits for its answers would see one slow request.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_service_that_stands_still_makes_all_slow_that_came_meanwhile() {
        let asked = Arc::new(AtomicU64::new(0));
        let ping = move || {
            let n = asked.fetch_add(1, Ordering::Relaxed);
            async move { tokio::time::sleep(Duration::from_millis(if n == 100 { 600 } else { 0 })).await }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, Router::new().route("/ping", post(ping))).into_future());
        let plan = Plan { rate: 200, time: Duration::from_secs(2), connections: 1 };
        let measured = measure(at, plan).await.unwrap();
        assert_eq!((measured.served, measured.failed), (400, 0));
        let slow = measured.latencies.count_between(100_000, u64::MAX);
        // Those of the first 500 ms of the pause, at 200 a second.
        assert!(slow >= 100, "{slow} slow");
        assert!(measured.longest() >= Duration::from_millis(590), "{:?}", measured.longest());
    }
}
