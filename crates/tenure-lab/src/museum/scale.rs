//! The times and words of a story, as they are played.

use std::time::Duration;

use super::server::Engine;
use super::story::script;

/// How long a lease is, in steps.
pub(super) const LEASE: i16 = 2;
/// The wall clock of a right host at step 0, in milliseconds.
pub(super) const WALL: i64 = 1_700_000_000_000;

/// How the steps of a story are laid out in real time.
pub(super) struct Scale {
    pub(super) engine: Engine,
    pub(super) step: Duration,
    /// When step 0 begins, in nanoseconds since boot.
    pub(super) start: u64,
}

impl Scale {
    pub(super) fn at(&self, step: i16) -> u64 {
        self.start.saturating_add_signed(self.nanos(step))
    }

    pub(super) fn nanos(&self, steps: i16) -> i64 {
        i64::from(steps) * i64::try_from(self.step.as_nanos()).expect("steps are short")
    }

    pub(super) fn milliseconds(&self, steps: i16) -> i64 {
        i64::from(steps) * i64::try_from(self.step.as_millis()).expect("steps are short")
    }

    /// How long a lease lasts at the server, in milliseconds: half a step short, so that what ends
    /// at a step has ended when the step is played.
    pub(super) fn lease(&self, steps: i16) -> i64 {
        self.milliseconds(steps) - self.milliseconds(1) / 2
    }

    /// Commands as they are sent: `, ` stands between several on Redis.
    pub(super) fn commands(&self, command: &str) -> Vec<Vec<String>> {
        let words = |command: &str| command.split(' ').map(|word| self.played(word)).collect::<Vec<_>>();
        match command.strip_prefix("script ").and_then(|call| call.split_once(' ')) {
            Some((name, arguments)) => {
                let head = ["EVAL", script(name), "1"].map(str::to_owned);
                vec![head.into_iter().chain(words(arguments)).collect()]
            }
            None if self.engine == Engine::Redis => command.split(", ").map(words).collect(),
            None => vec![words(command)],
        }
    }

    /// A word of a story as it is sent.
    fn played(&self, word: &str) -> String {
        let steps = |number: &str| number.parse::<i16>().ok();
        let part = |part: &str| match (part.strip_prefix('t').and_then(steps), part.strip_prefix("lease*").and_then(steps)) {
            (Some(at), _) => (WALL + self.milliseconds(at)).to_string(),
            (_, Some(times)) => self.lease(LEASE * times).to_string(),
            _ if part == "lease" && self.engine == Engine::Memcached => ((self.lease(LEASE) + 999) / 1000).to_string(),
            _ if part == "lease" => self.lease(LEASE).to_string(),
            _ if part == "span" => self.milliseconds(LEASE).to_string(),
            _ => part.to_owned(),
        };
        word.split('/').map(part).collect::<Vec<_>>().join("/")
    }

    /// A reply as a story has it.
    pub(super) fn told(&self, command: &str, heard: &str) -> String {
        let step = self.milliseconds(1);
        let number = |part: &str| part.parse::<i64>().ok();
        let part = |part: &str| match number(part) {
            Some(at) if at > WALL / 2 => format!("t{}", (at - WALL).div_euclid(step)),
            // A lease is half a step short; what is left of it is rounded up to whole steps.
            Some(left) if left >= 0 && command.starts_with("PTTL") => ((left + step / 2 + step - 1) / step).to_string(),
            _ => part.to_owned(),
        };
        let word = |word: &str| word.split('/').map(part).collect::<Vec<_>>().join("/");
        heard.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }
}
