//! One question to all nodes at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::{BootTime, Error};

/// Time for an answer that is in most cases on its way.
pub(super) const MOMENT: Duration = Duration::from_millis(20);

/// Until when answers count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) end: Instant,
    /// The same by the clock that goes on while the machine sleeps.
    real: BootTime,
}

impl Until {
    pub(super) fn after(limit: Duration) -> Self {
        Self { end: Instant::now() + limit, real: BootTime::now() + limit }
    }
}

/// How much longer than a majority each node may take where its answer decides. A node that is far is waited for, and one
/// that stays silent is not for long.
pub(super) struct Paces(Vec<AtomicU64>);

/// For a node that has not answered yet: it may be far, and there is no connection yet.
const UNKNOWN: Duration = Duration::from_secs(1);

impl Paces {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicU64::new(micros(UNKNOWN))).collect())
    }

    fn allowed(&self, at: usize) -> Duration {
        Duration::from_micros(self.0[at].load(Ordering::Relaxed))
    }

    pub(super) fn heard(&self, at: usize, after: Duration) {
        self.0[at].store(micros(2 * after), Ordering::Relaxed);
    }

    fn missed(&self, at: usize) {
        self.0[at].store(micros(self.allowed(at) / 2), Ordering::Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The calls of one round, and how long they may take.
pub(super) struct Round<T> {
    calls: FuturesUnordered<BoxFuture<'static, (usize, Result<T, Error>)>>,
    /// Answers that have come and were not looked at.
    answers: VecDeque<(usize, Result<T, Error>)>,
    began: Instant,
    until: Until,
    /// Answers after which the others have `node_timeout`.
    need: usize,
    node_timeout: Duration,
    /// Whether an answer is one of those. An error never is.
    counts: fn(&T) -> bool,
    paces: Option<Arc<Paces>>,
    /// The nodes without an answer.
    open: Vec<usize>,
}

impl<T: Send + 'static> Round<T> {
    pub(super) fn new(until: Until) -> Self {
        Self {
            calls: FuturesUnordered::new(),
            answers: VecDeque::new(),
            began: Instant::now(),
            until,
            need: usize::MAX,
            node_timeout: Duration::ZERO,
            counts: |_| true,
            paces: None,
            open: Vec::new(),
        }
    }

    /// After `need` answers, the other nodes have `node_timeout`.
    pub(super) fn hurrying_after(self, need: usize, node_timeout: Duration) -> Self {
        Self { need, node_timeout, ..self }
    }

    /// Lets a node have the time that it needs in most cases, if that is longer.
    pub(super) fn at_their(self, paces: &Arc<Paces>) -> Self {
        Self { paces: Some(Arc::clone(paces)), ..self }
    }

    /// Counts only some answers among those after which the others are hurried.
    pub(super) fn counting(self, counts: fn(&T) -> bool) -> Self {
        Self { counts, ..self }
    }

    /// Adds the call to a node.
    pub(super) fn ask(&mut self, node: usize, call: impl Future<Output = Result<T, Error>> + Send + 'static) {
        self.open.push(node);
        self.calls.push(Box::pin(async move { (node, call.await) }));
    }

    /// Number of calls without an answer.
    pub(super) fn pending(&self) -> usize {
        self.calls.len() + self.answers.len()
    }

    /// The nodes without an answer.
    pub(super) fn open(&self) -> &[usize] {
        &self.open
    }

    /// The next answer. None when there are no more, or none in time.
    ///
    /// Every call has begun before the first answer is returned. So at each node it comes before what is
    /// asked later. An answer that was there too late is none, also where the process was stopped meanwhile.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T, Error>)> {
        if self.answers.is_empty() {
            let (calls, answers) = (&mut self.calls, &mut self.answers);
            let some = poll_fn(|cx| {
                while let Poll::Ready(Some(answer)) = calls.poll_next_unpin(cx) {
                    answers.push_back(answer);
                }
                if answers.is_empty() && !calls.is_empty() { Poll::Pending } else { Poll::Ready(()) }
            });
            if timeout_at(self.until.end, some).await.is_err() {
                self.open.iter().for_each(|at| self.paces.iter().for_each(|paces| paces.missed(*at)));
                return None;
            }
        }
        if BootTime::now() > self.until.real {
            return None;
        }
        let answer = self.answers.pop_front()?;
        let now = Instant::now();
        self.open.retain(|at| *at != answer.0);
        self.paces.iter().for_each(|paces| paces.heard(answer.0, now - self.began));
        // An error decides nothing.
        let counts = answer.1.as_ref().is_ok_and(self.counts);
        self.need -= usize::from(counts && self.need > 0);
        if self.need == 0 {
            // As much again as the majority needed, if that is longer: the nodes may be far away.
            let paces = self.paces.iter().flat_map(|paces| self.open.iter().map(|at| paces.allowed(*at)));
            let more = paces.chain([self.node_timeout, now - self.began]).max().unwrap_or_default();
            self.until.end = self.until.end.min(now + more);
        }
        Some(answer)
    }

    /// Lets the calls without an answer go on in the background, until `end` at the latest.
    pub(super) fn finish(self, end: Instant, look: impl FnMut(usize, Result<T, Error>) + Send + 'static) {
        if self.pending() > 0 {
            tokio::spawn(self.rest(end, look));
        }
    }

    /// The answers that have not been looked at, until `end`.
    pub(super) async fn rest(mut self, end: Instant, mut look: impl FnMut(usize, Result<T, Error>)) {
        loop {
            let answer = match self.answers.pop_front() {
                Some(answer) => Some(answer),
                None => timeout_at(end, self.calls.next()).await.ok().flatten(),
            };
            let Some((at, answer)) = answer else { return };
            self.paces.iter().for_each(|paces| paces.heard(at, self.began.elapsed()));
            look(at, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Else a slow node would get an acquisition after its release.
    #[tokio::test]
    async fn every_call_has_begun_before_the_first_answer_is_returned() {
        let mut round = Round::new(Until::after(Duration::from_secs(60)));
        let begun = Arc::new(AtomicUsize::new(0));
        for node in 0..5 {
            let begun = Arc::clone(&begun);
            round.ask(node, async move {
                begun.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
        }
        assert!(round.next().await.is_some());
        assert_eq!((begun.load(Ordering::Relaxed), round.pending()), (5, 4));
    }

    /// Its node may have lost its data meanwhile, after which the others knew of no lease.
    #[tokio::test]
    async fn an_answer_that_is_looked_at_too_late_does_not_count() {
        let mut round = Round::new(Until { real: BootTime::now(), ..Until::after(Duration::from_secs(60)) });
        round.ask(0, async { Ok(()) });
        assert!(round.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_node_has_as_long_again_as_the_majority_needed() {
        let millis = Duration::from_millis;
        for (majority, node_timeout, slow, heard) in
            [(20, 5, 35, true), (20, 5, 45, false), (1, 30, 25, true), (1, 30, 35, false)]
        {
            let mut round = Round::new(Until::after(Duration::from_secs(60))).hurrying_after(2, millis(node_timeout));
            for (node, takes) in [majority, majority, slow].into_iter().enumerate() {
                round.ask(node, async move {
                    tokio::time::sleep(millis(takes)).await;
                    Ok(())
                });
            }
            assert!(round.next().await.is_some() && round.next().await.is_some());
            assert_eq!(round.next().await.is_some(), heard, "{majority} {node_timeout} {slow}");
        }
    }

    /// It may have granted what a near one has not released yet.
    #[tokio::test(start_paused = true)]
    async fn a_far_node_is_waited_for_and_a_silent_one_not_for_long() {
        let paces = Arc::new(Paces::new(3));
        let third = async |takes: u64| {
            let mut round =
                Round::new(Until::after(Duration::from_secs(60))).hurrying_after(2, Duration::from_millis(5)).at_their(&paces);
            for (node, takes) in [1, 1, takes].into_iter().enumerate() {
                round.ask(node, async move {
                    tokio::time::sleep(Duration::from_millis(takes)).await;
                    Ok(())
                });
            }
            let began = Instant::now();
            let mut heard = 0;
            while round.next().await.is_some() {
                heard += 1;
            }
            (heard == 3, began.elapsed() < Duration::from_millis(10))
        };
        assert_eq!([third(150).await, third(250).await, third(150).await], [(true, false); 3]);
        for _ in 0..8 {
            assert!(!third(50_000).await.0);
        }
        assert_eq!(third(50_000).await, (false, true));
    }

    /// Otherwise a far node would never be heard beside one that does not vote.
    #[tokio::test(start_paused = true)]
    async fn answers_that_do_not_count_hurry_nobody() {
        let mut round = Round::new(Until::after(Duration::from_secs(60))).hurrying_after(2, Duration::ZERO).counting(|yes| *yes);
        for (node, (takes, counts)) in [(1, true), (1, false), (500, true)].into_iter().enumerate() {
            round.ask(node, async move {
                tokio::time::sleep(Duration::from_millis(takes)).await;
                Ok(counts)
            });
        }
        for _ in 0..3 {
            assert!(round.next().await.is_some());
        }
    }
}
