//! Requests at a constant rate, whether the answers come or not.
//!
//! Each request has a planned time, and its latency is counted from there. If the service stands
//! still, the requests that could not be sent meanwhile count as slow (*coordinated omission* is
//! corrected). A generator that waits for its answers would leave them out.
//!
//! A request that finds every connection busy gets another one, up to a most. Those that come when
//! there are so many wait for an answer to another request, which a real crowd would not do. They
//! are counted, and their latency still counts from the planned time.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use hdrhistogram::Histogram;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::Error;
use crate::client::Client;

/// A longer latency counts as this one.
const LONGEST: Duration = Duration::from_secs(60);

/// Connections at the start.
const FIRST: u32 = 64;

/// A constant rate of arrivals, for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rate: u64,
    pub(crate) time: Duration,
    /// Most connections.
    pub(crate) connections: u32,
}

/// Results of a plan, or of several.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From the planned time to the end of the answer, in microseconds.
    latencies: Histogram<u64>,
    /// Served with status 200.
    pub(crate) served: u64,
    /// Refused, or without an answer.
    pub(crate) failed: u64,
    /// Those of them with status 503.
    pub(crate) refused: u64,
    /// Requests that waited for an answer to another one, because there were no more connections.
    pub(crate) held: u64,
    /// Most requests under way at once.
    pub(crate) at_once: u64,
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
    under_way: AtomicU64,
    at_once: AtomicU64,
}

impl Measured {
    pub(crate) fn new() -> Result<Self, Error> {
        let latencies = Histogram::new_with_max(micros(LONGEST), 3)?;
        let (served, failed, refused, held, at_once) = (0, 0, 0, 0, 0);
        Ok(Self { latencies, served, failed, refused, held, at_once, took: Duration::ZERO, late: Duration::ZERO })
    }

    /// Notes the end of a request; its status, if it was answered.
    fn note(&mut self, latency: Duration, status: Option<StatusCode>) {
        self.latencies.saturating_record(micros(latency));
        if status.is_some_and(|status| status.is_success()) {
            self.served += 1;
        } else {
            self.failed += 1;
            self.refused += u64::from(status == Some(StatusCode::SERVICE_UNAVAILABLE));
        }
    }

    /// Adds the results of other connections in the same time.
    fn merge(&mut self, other: &Self) -> Result<(), Error> {
        self.latencies.add(&other.latencies)?;
        self.served += other.served;
        self.failed += other.failed;
        self.refused += other.refused;
        self.held += other.held;
        self.at_once = self.at_once.max(other.at_once);
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

    /// Says why these are not the figures of a service that kept up with `rate`, or served `part` of it
    /// at least.
    pub(crate) fn complaint(&self, rate: u64, part: f64) -> Option<String> {
        let (served, planned) = (self.rate(), f64::from(u32::try_from(rate).unwrap_or(u32::MAX)));
        if self.failed > 0 {
            Some(format!("{} requests were refused or had no answer", self.failed))
        } else if self.held > 0 {
            Some(format!("{} requests waited for a connection; raise --connections", self.held))
        } else if served < planned * part {
            Some(format!("{served:.0} a second were served, and {rate} came"))
        } else {
            None
        }
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
    for _ in 0..FIRST.min(plan.connections) {
        clients.push(Client::connect(to).await?);
    }
    let (planned, under_way, at_once) = <_>::default();
    let arrivals = Arc::new(Arrivals { planned, there: Semaphore::new(0), under_way, at_once });
    let (more, mut wanted) = mpsc::unbounded_channel();
    let (began, first) = (Instant::now(), first_user());
    let mut users = (first..).step_by(1 << 32);
    let mut sending = JoinSet::new();
    for (user, client) in users.by_ref().zip(clients) {
        sending.spawn(send(Arc::clone(&arrivals), Some(client), to, user));
    }
    // A thread of its own: the timers of the runtime are too coarse for one request each 100 us.
    let arriving = std::thread::spawn({
        let arrivals = Arc::clone(&arrivals);
        move || arrivals.arrive(began, plan, &more)
    });
    // Ends when the last request has arrived.
    while wanted.recv().await.is_some() {
        if let Some(user) = users.next() {
            sending.spawn(send(Arc::clone(&arrivals), None, to, user));
        }
    }
    let mut all = Measured::new()?;
    while let Some(measured) = sending.join_next().await {
        all.merge(&measured??)?;
    }
    all.took = began.elapsed();
    (all.late, all.held) = arriving.join().map_err(|_| "the thread of arrivals failed")?;
    all.at_once = arrivals.at_once.load(Ordering::Relaxed);
    Ok(all)
}

impl Arrivals {
    /// Announces each request at its time, and wants one more connection if all are busy. Returns the
    /// greatest delay, and how many requests came when there were no more connections.
    fn arrive(&self, began: Instant, plan: Plan, more: &mpsc::UnboundedSender<()>) -> (Duration, u64) {
        let (mut late, mut held) = (Duration::ZERO, 0);
        let mut connections = FIRST.min(plan.connections);
        for n in 0..plan.rate * plan.time.as_secs() {
            let planned = began + Duration::from_nanos(n * 1_000_000_000 / plan.rate);
            let now = Instant::now();
            if planned > now {
                std::thread::sleep(planned - now);
            } else {
                late = late.max(now - planned);
            }
            self.planned.lock().unwrap_or_else(PoisonError::into_inner).push_back(planned);
            self.there.add_permits(1);
            // Nobody waits for it.
            if self.there.available_permits() > 0 {
                if connections < plan.connections {
                    connections += 1;
                    // It fails when the run was given up.
                    let _ = more.send(());
                } else {
                    held += 1;
                }
            }
        }
        self.there.close();
        (late, held)
    }

    async fn next(&self) -> Option<Instant> {
        if let Ok(permit) = self.there.acquire().await {
            permit.forget();
        }
        // After the end the rest is taken without permits.
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Sends one request after another. A connection that cannot be opened fails the request that wanted
/// it.
async fn send(arrivals: Arc<Arrivals>, client: Option<Client>, to: SocketAddr, first_user: u64) -> Result<Measured, Error> {
    let (mut measured, mut user) = (Measured::new()?, first_user);
    let mut client = client.unwrap_or_else(|| Client::new(to));
    while let Some(planned) = arrivals.next().await {
        user += 1;
        let under_way = arrivals.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        arrivals.at_once.fetch_max(under_way, Ordering::Relaxed);
        let answer = client.post("/ping", user).await;
        arrivals.under_way.fetch_sub(1, Ordering::Relaxed);
        measured.note(planned.elapsed(), answer.ok().map(|(status, _)| status));
    }
    Ok(measured)
}

/// First user of a run, at random. Users of another run may still be taken at a store that is kept.
fn first_user() -> u64 {
    // The users after it have larger numbers.
    RandomState::new().hash_one(std::process::id()) >> 1
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
        assert!(measured.held >= 100, "{} held", measured.held);
    }

    /// Containers that start at once have equal process ids.
    #[test]
    fn runs_with_the_same_process_id_have_users_of_their_own() {
        assert_ne!(first_user(), first_user());
    }

    /// A crowd does not wait for the answers to others.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_request_is_sent_at_its_time() {
        // Nobody is answered before all have come.
        let all = Arc::new(tokio::sync::Barrier::new(200));
        let ping = move || {
            let all = Arc::clone(&all);
            async move {
                let _ = all.wait().await;
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, Router::new().route("/ping", post(ping))).into_future());
        let plan = Plan { rate: 200, time: Duration::from_secs(1), connections: 800 };
        let measured = measure(at, plan).await.unwrap();
        assert_eq!((measured.served, measured.failed, measured.held, measured.at_once), (200, 0, 0, 200));
    }
}
