//! A witness of which servers of a quorum could answer, and when. It asks each again and again, on the way of the clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::BootTime;
use tenure_testkit::history::{At, nanos};
use tenure_testkit::{Client, Reply};

/// Pause between two questions.
const EVERY: Duration = Duration::from_millis(20);
/// A server that takes longer to answer is away.
const PROMPT: Duration = Duration::from_millis(200);
/// How long a server votes until each lease has been renewed there, and each client has come back to it.
pub(super) const SETTLED: Duration = Duration::from_secs(2);

/// The spans in which a server voted, from an answer to the last question that was answered.
type Spans = Vec<(At, At)>;

#[derive(Debug)]
pub(super) struct Witness {
    seen: Arc<Mutex<Vec<Spans>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn lock(seen: &Mutex<Vec<Spans>>) -> MutexGuard<'_, Vec<Spans>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn now() -> At {
    nanos(BootTime::now().since_boot())
}

impl Witness {
    pub(super) fn start(servers: &[SocketAddr]) -> Self {
        let (seen, ends) = (Arc::new(Mutex::new(vec![Spans::new(); servers.len()])), Arc::new(AtomicBool::new(false)));
        let ask = |(at, server): (usize, &SocketAddr)| {
            let (server, seen, ends) = (*server, Arc::clone(&seen), Arc::clone(&ends));
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let _ = watch(server, &ends, |asked, is_new| {
                        let spans = &mut lock(&seen)[at];
                        match spans.last_mut() {
                            Some((_, to)) if !is_new => *to = asked,
                            _ => spans.push((now(), now())),
                        }
                    });
                    std::thread::sleep(EVERY);
                }
            })
        };
        let threads = servers.iter().enumerate().map(ask).collect();
        Self { seen, ends, threads }
    }

    /// Whether a majority votes without this server, and has for so long. `back` is when each was back that was away: an answer
    /// from before says nothing.
    pub(super) fn can_spare(&self, server: usize, back: &[At], long: Duration) -> bool {
        let (seen, now) = (lock(&self.seen), now());
        let votes = |(from, to): &(At, At), back: At| *to > back && now < to + nanos(PROMPT) && *to >= from + nanos(long);
        let others = seen.iter().zip(back).enumerate().filter(|(at, _)| *at != server);
        others.filter(|(_, (spans, back))| spans.last().is_some_and(|last| votes(last, **back))).count() > seen.len() / 2
    }

    /// Whether a majority voted all the while, and the clients had come back to it.
    pub(super) fn could_answer(&self, began: At, ended: At) -> bool {
        could_answer(&lock(&self.seen), began, ended)
    }

    /// How long ago each voted last.
    pub(super) fn told(&self) -> String {
        let (seen, now) = (lock(&self.seen), now());
        let ago = |spans: &Spans| spans.last().map(|(_, to)| Duration::from_nanos(now.saturating_sub(*to)));
        format!("{:?} ago", seen.iter().map(ago).collect::<Vec<_>>())
    }
}

fn could_answer(seen: &[Spans], began: At, ended: At) -> bool {
    let all_the_while = |spans: &&Spans| spans.iter().any(|(from, to)| from + nanos(SETTLED) <= began && ended <= *to);
    seen.iter().filter(all_the_while).count() > seen.len() / 2
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Asks a server on one connection, and tells `votes` when it asked and whether a new span begins, until one is not answered in time.
fn watch(server: SocketAddr, ends: &AtomicBool, mut votes: impl FnMut(At, bool)) -> std::io::Result<()> {
    let mut client = Client::connect(server, PROMPT)?;
    let info = client.command(&["INFO", "server"])?.text();
    let mut is_new = true;
    while !ends.load(Ordering::Relaxed) {
        let asked = now();
        let known = client.command(&["HMGET", "tenure:node", "run", "floor"])?;
        let Reply::Array(known) = known else { return Ok(()) };
        let run = known[0].text();
        // The memory of another run of the server counts for nothing.
        let is_run = run.split_once('/').is_some_and(|(run, _)| info.contains(run));
        let has_voted = is_run && !known[1].is_nil();
        if has_voted {
            votes(asked, is_new);
        }
        is_new = !has_voted;
        std::thread::sleep(EVERY);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_could_answer_if_the_same_servers_voted_all_the_while() {
        let secs = |secs: u64| nanos(Duration::from_secs(secs));
        let seen = |spans: [&[(u64, u64)]; 3]| {
            spans.map(|spans| spans.iter().map(|(from, to)| (secs(*from), secs(*to))).collect::<Spans>())
        };
        let could = |spans, began, ended| could_answer(&seen(spans), secs(began), secs(ended));
        let (all, early, late) = (&[(0, 90)][..], &[(0, 50)][..], &[(30, 90)][..]);
        assert!(could([all, all, &[]], 10, 80));
        assert!(could([all, early, late], 10, 50) && could([all, early, late], 32, 80));
        // Two voted at each moment, and no two of them from the first to the last.
        assert!(!could([all, early, late], 29, 60) && !could([all, &[(0, 40), (50, 90)], &[]], 30, 60));
        // Nobody had come back to it.
        assert!(!could([all, &[], late], 31, 60));
    }
}
