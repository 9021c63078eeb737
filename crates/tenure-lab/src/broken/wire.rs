//! The commands of the schemes as bytes for a real server, and its replies as values.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::Reply;

use super::command::{Command, OK, Value, Writer};
use super::program::Tick;

/// How the steps of a story are laid out in real time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scale {
    /// When step 0 begins, in nanoseconds since boot.
    pub start: u64,
    pub step: Duration,
    /// The wall clock of a right host at step 0, in milliseconds.
    pub wall: i64,
    /// Keeps the tokens of one run apart from those of another.
    pub nonce: u64,
}

impl Scale {
    /// Nanoseconds since boot at which a step begins.
    pub(crate) fn at(&self, tick: Tick) -> u64 {
        self.start.saturating_add_signed(self.nanos(tick))
    }

    /// The end of a validity that was to end at `until` and is learnt of in step `now`: half a step
    /// before, as leases do at the server.
    pub(crate) fn end(&self, learnt: u64, now: Tick, until: Tick) -> u64 {
        learnt.saturating_add_signed(self.nanos(until - now)) - self.half()
    }

    fn nanos(&self, ticks: Tick) -> i64 {
        i64::from(ticks) * i64::try_from(self.step.as_nanos()).expect("steps are short")
    }

    /// Half a step, in nanoseconds.
    pub(crate) fn half(&self) -> u64 {
        u64::try_from(self.step.as_nanos() / 2).expect("steps are short")
    }

    /// The time on a wall clock, in milliseconds.
    pub(crate) fn milliseconds(&self, at: Tick) -> i64 {
        self.wall + i64::from(at) * i64::try_from(self.step.as_millis()).expect("steps are short")
    }

    /// The step of a time on a wall clock.
    pub(crate) fn ticks(&self, milliseconds: i64) -> Tick {
        let step = i64::try_from(self.step.as_millis()).expect("steps are short");
        Tick::try_from((milliseconds - self.wall).div_euclid(step)).unwrap_or(Tick::MIN)
    }

    /// How long a lease lasts at the server, in milliseconds: half a step short, so that what ends at
    /// a step has ended when the step is played.
    pub(crate) fn lease(&self, ticks: Tick) -> u128 {
        let step = self.step.as_millis();
        u128::from(ticks.unsigned_abs()) * step - step / 2
    }

    /// The words of a command, one list for each that is sent; their last reply counts.
    pub(crate) fn words(&self, command: Command) -> Vec<Vec<String>> {
        if let Some(plain) = command.plain(self) {
            return plain.split(", ").map(|one| one.split(' ').map(str::to_owned).collect()).collect();
        }
        let script = command.script(self).map(|(lua, key, arguments)| {
            let head = ["EVAL", lua, "1", key].map(str::to_owned);
            head.into_iter().chain(arguments).collect()
        });
        script.into_iter().collect()
    }

    /// The server's last reply to `command` as a value.
    pub(crate) fn value(&self, command: Command, reply: &Reply) -> Value {
        match (command, reply) {
            (_, Reply::Nil) => Value::Nil,
            (Command::Ttl(_), Reply::Int(left)) if *left >= 0 => {
                // A lease is half a step short; what is left of it is rounded up to whole steps.
                let step = i64::try_from(self.step.as_millis()).expect("steps are short");
                Value::Int(Tick::try_from((left + step / 2 + step - 1) / step).unwrap_or(Tick::MAX))
            }
            (_, Reply::Int(number)) => Value::Int(Tick::try_from(*number).unwrap_or(Tick::MAX)),
            (Command::ExecDel(_) | Command::ExecSetPx(..), Reply::Array(all)) => {
                all.first().map_or(Value::Nil, |first| self.value(command, first))
            }
            (Command::Subscribe(_), Reply::Array(_)) => OK,
            (_, Reply::Bytes(bytes)) => self.read(&String::from_utf8_lossy(bytes)),
            (_, other) => panic!("{command}: the server answered {other:?}"),
        }
    }

    /// A value as a scheme has written it.
    pub(crate) fn read(&self, text: &str) -> Value {
        if let Some((owner, ends)) = text.split_once(' ') {
            return match (self.read(owner), self.read(ends)) {
                (Value::Token { who, take }, Value::At(ends)) => Value::Record { who, take, ends },
                _ => panic!("{text:?} is no record of ours"),
            };
        }
        if let Some((who, take)) = text.strip_prefix("token-").and_then(|rest| rest.split_once('-')) {
            let take = take.split('-').next().and_then(|take| take.parse().ok());
            return match (who.parse(), take) {
                (Ok(who), Some(take)) => Value::Token { who, take },
                _ => panic!("{text:?} is no token of ours"),
            };
        }
        match (text, text.parse::<i64>()) {
            ("1", _) => super::schemes::FIXED,
            ("OK", _) => OK,
            (_, Ok(milliseconds)) => Value::At(self.ticks(milliseconds)),
            _ => panic!("{text:?} is nothing that a scheme writes"),
        }
    }
}

impl Writer for Scale {
    fn text(&self, value: Value) -> String {
        match value {
            Value::At(at) => self.milliseconds(at).to_string(),
            Value::Token { who, take } => format!("token-{who}-{take}-{:x}", self.nonce),
            Value::Record { who, take, ends } => {
                format!("{} {}", self.text(Value::Token { who, take }), self.text(Value::At(ends)))
            }
            other => other.to_string(),
        }
    }

    fn ttl(&self, ticks: Tick) -> String {
        self.lease(ticks).to_string()
    }

    fn span(&self, ticks: Tick) -> String {
        (u128::from(ticks.unsigned_abs()) * self.step.as_millis()).to_string()
    }
}
