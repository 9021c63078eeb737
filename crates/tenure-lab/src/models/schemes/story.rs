//! A way to break a scheme, in words.

use super::client::Change;
use super::command::name;
use super::setting::Setting;
use super::world::{Action, Said, World};
use crate::models::Story;

/// One line for each thing that happens, with its step.
pub(super) fn told(setting: &Setting, path: &[(World, Action)]) -> Story {
    let mut lines = Story::new();
    for (world, action) in path {
        let said = world.clone().apply(setting, *action);
        let crash = if let Action::Crash(who) = action { Some(format!("{} is killed", name(*who))) } else { None };
        let words: Vec<String> = crash.into_iter().chain(said.iter().map(tell)).collect();
        if !words.is_empty() {
            lines.push(format!("{:>2}  {}", world.now, words.join("; ")));
        }
    }
    lines
}

fn tell(said: &Said) -> String {
    match said {
        Said::Ran(who, command, reply) => format!("{}: {command} -> {reply}", name(*who)),
        Said::Sent(who, command) => format!("{}: {command} is sent, and is slow", name(*who)),
        Said::Lost(who, command) => format!("{}: {command} is lost on the way", name(*who)),
        Said::Hears(who, reply) => format!("{} hears {reply}", name(*who)),
        Said::Changed(who, change) => {
            let who = name(*who);
            match change {
                Change::Holds(until) => format!("{who} HOLDS until {until}"),
                Change::ValidUntil(until) => format!("{who} holds on until {until}"),
                Change::Lost => format!("{who} thinks that it has lost the lock"),
                Change::Releases => format!("{who} stops working"),
                Change::Busy => format!("{who} does not get it"),
            }
        }
    }
}
