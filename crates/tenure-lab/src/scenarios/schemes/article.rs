//! The other side: a program that sends the commands of its article itself, word by word.

use std::cell::Cell;
use std::time::Duration;

use tenure_testkit::history::{What, nanos};
use tenure_testkit::{Client, Reply, wait_until};

use crate::scenarios::fixtures::Redis;
use crate::scenarios::stage::{DOOR, PATIENCE, Stage, now};

/// A client that counts as one process. The history has its validity, as it has that of our holders.
pub(super) struct Article<'a> {
    redis: &'a Redis,
    recorder: tenure_testkit::Recorder,
    claims: Cell<u32>,
}

const WHO: &str = "article";

/// One try of an article to take its lock; whether it has.
pub(super) type Takes = fn(&Article<'_>) -> bool;

impl<'a> Article<'a> {
    pub(super) fn beside(stage: &Stage<'_>, redis: &'a Redis) -> Self {
        Self { redis, recorder: stage.recorder.clone(), claims: Cell::default() }
    }

    /// Sends a command, in which `KEY` is where the lock of the door is.
    pub(super) fn says(&self, line: &str) -> Reply {
        let words: Vec<String> = line.split_whitespace().map(|word| self.word(word)).collect();
        self.redis.server.command(&words)
    }

    /// A connection to keep.
    pub(super) fn connects(&self) -> Client {
        self.redis.server.connect().expect("the server answers")
    }

    /// Has the server run a script over that key.
    pub(super) fn runs(&self, script: &str, arguments: &[&str]) -> Reply {
        let key = self.redis.key(DOOR);
        self.redis.server.command(&[&["EVAL", script, "1", &key], arguments].concat())
    }

    fn word(&self, word: &str) -> String {
        if word == "KEY" { self.redis.key(DOOR) } else { word.to_owned() }
    }

    /// Tries again and again until it takes the lock. From then on it regards itself as the holder until its lease ends.
    pub(super) fn takes(&self, lease: Duration, tries: impl Fn(&Self) -> bool) {
        let (name, acquisition) = (DOOR.to_owned(), self.claims.get() + 1);
        self.claims.set(acquisition);
        self.recorder.record(WHO, What::Ask { name: name.clone(), acquisition });
        let mut sent = now();
        wait_until(PATIENCE, "the article to take the door", || {
            sent = now();
            tries(self)
        });
        if self.redis.scheme.fences {
            // It has none, and our fences order our own holders only.
            return;
        }
        let (until, weight, token, fence) = (Some(sent + nanos(lease)), 1, None, None);
        self.recorder.record(WHO, What::Grant { name, weight, token, fence, until, acquisition });
    }

    /// It has to take the door within this time.
    pub(super) fn take_due(&self, stage: &Stage<'_>, within: Duration) {
        if !self.redis.scheme.fences {
            stage.grant_due(within);
        }
    }

    /// Its work is done, and it has still to give up.
    pub(super) fn rests(&self) {
        let acquisition = self.claims.get();
        self.recorder.record(WHO, What::Release { acquisition });
    }

    /// Gives up, with this.
    pub(super) fn leaves(&self, line: &str) {
        self.rests();
        self.says(line);
    }
}
