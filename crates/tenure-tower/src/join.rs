//! Requests that get a copy of another one's answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, Version, response};
use http_body::Frame;
use tenure::Name;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::frames::Frames;
use crate::problem::Problem;

/// Longest wait for the first one's answer. Its client may stop reading, and then the answer never ends.
const LONGEST_JOIN: Duration = Duration::from_secs(30);

/// Headers of requests that join nobody.
const SPECIAL: [HeaderName; 7] = [RANGE, IF_RANGE, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, UPGRADE];

/// An answer, or why there is none.
type Outcome = Result<Arc<Copied>, Problem>;

/// The first requests of this process that are being served.
#[derive(Debug, Default)]
pub(crate) struct Joins(Mutex<HashMap<Question, watch::Receiver<Option<Outcome>>>>);

/// Requests that get the same answer. A key may name no more than the user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    name: Name,
    method: Method,
    target: Option<PathAndQuery>,
}

/// Part of a request in a crowd with the same key.
pub(crate) enum Joined {
    First(Lead),
    Later(Follower),
}

/// The first request. Its drop ends the crowd: those without an answer get none.
#[derive(Debug)]
pub(crate) struct Lead {
    joins: Arc<Joins>,
    question: Question,
    outcome: watch::Sender<Option<Outcome>>,
}

/// A request that waits for the first one's answer.
pub(crate) struct Follower(watch::Receiver<Option<Outcome>>);

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) frames: Frames,
    pub(crate) unsent: Option<u64>,
}

/// Copies an answer while it is sent.
#[derive(Debug)]
pub(crate) struct Recorder {
    lead: Lead,
    copied: Copied,
    limit: usize,
}

impl Question {
    /// Whether the answer may be of use to this client alone: a part, that nothing has changed, or another protocol on its
    /// connection.
    pub(crate) fn is_special<B>(request: &Request<B>) -> bool {
        request.method() == Method::CONNECT || SPECIAL.iter().any(|header| request.headers().contains_key(header))
    }

    pub(crate) fn of<B>(name: &Name, request: &Request<B>) -> Self {
        let target = request.uri().path_and_query().cloned();
        Self { name: name.clone(), method: request.method().clone(), target }
    }
}

impl Joins {
    pub(crate) fn enter(self: &Arc<Self>, question: Question) -> Joined {
        let mut first = self.first();
        if let Some(outcome) = first.get(&question) {
            return Joined::Later(Follower(outcome.clone()));
        }
        let (outcome, followers) = watch::channel(None);
        first.insert(question.clone(), followers);
        Joined::First(Lead { joins: Arc::clone(self), question, outcome })
    }

    fn first(&self) -> MutexGuard<'_, HashMap<Question, watch::Receiver<Option<Outcome>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lead {
    /// Ends the crowd with a refusal.
    pub(crate) fn refuse(self, problem: Problem) {
        self.outcome.send_replace(Some(Err(problem)));
    }

    pub(crate) fn record(self, head: &response::Parts, unsent: Option<u64>, limit: usize) -> Recorder {
        let (status, version, headers, frames) = (head.status, head.version, head.headers.clone(), Frames::default());
        Recorder { lead: self, copied: Copied { status, version, headers, frames, unsent }, limit }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // Before the sender goes: who comes from now on is the first of the next crowd.
        self.joins.first().remove(&self.question);
    }
}

impl Follower {
    /// Waits for the answer.
    ///
    /// # Cancel safety
    /// A dropped future changes nothing.
    pub(crate) async fn outcome(mut self) -> Outcome {
        let outcome = timeout(LONGEST_JOIN, self.0.wait_for(Option::is_some)).await;
        let outcome = outcome.ok().and_then(|answer| answer.ok()?.clone());
        outcome.unwrap_or(Err(Problem::FirstFailed))
    }
}

impl Recorder {
    /// Copies a frame. `None` if the answer is too large by now.
    pub(crate) fn push(mut self, frame: &Frame<Bytes>) -> Option<Self> {
        self.copied.frames.push(frame);
        if self.copied.frames.len() > self.limit as u64 {
            self.lead.refuse(Problem::FirstTooLarge);
            return None;
        }
        Some(self)
    }

    /// Bytes of the copy.
    pub(crate) fn len(&self) -> u64 {
        self.copied.frames.len()
    }

    /// Ends the crowd with the answer.
    pub(crate) fn publish(self) {
        self.lead.outcome.send_replace(Some(Ok(Arc::new(self.copied))));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops where its set-up does")]

    use super::*;

    /// The first one's client does not read, so its answer never ends.
    #[tokio::test(start_paused = true)]
    async fn a_joiner_does_not_wait_for_ever() {
        let joins = Arc::new(Joins::default());
        let question = Question::of(&Name::new("door").unwrap(), &Request::new(()));
        let Joined::First(_lead) = joins.enter(question.clone()) else { panic!("there is another one") };
        let Joined::Later(follower) = joins.enter(question) else { panic!("it would run the handler") };
        assert!(matches!(follower.outcome().await, Err(Problem::FirstFailed)));
    }
}
