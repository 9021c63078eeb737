//! A way to break a scheme, in words.

use super::case::Setting;
use super::program::{Change, Tick, name};
use super::world::{Action, Said, World};

/// One line for each thing that happens; time is counted in steps, of which a lease has `ttl`.
pub(crate) fn story(setting: &Setting, path: &[(World, Action)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (world, action) in path {
        let mut world = world.clone();
        let now = world.now;
        let said = world.apply(setting, *action);
        let line = match action {
            Action::Tick => continue,
            action => line(*action, setting, &said),
        };
        if !line.is_empty() {
            lines.push(format!("{now:>2}  {line}"));
        }
    }
    lines
}

fn line(action: Action, setting: &Setting, said: &[Said]) -> String {
    let mut words = match action {
        Action::Crash(who) => vec![format!("{} is killed", name(who))],
        Action::Stop(who) => vec![format!("the process of {} is stopped", name(who))],
        Action::Continue(who) => vec![format!("the process of {} goes on", name(who))],
        Action::Evict => vec!["the server is full, and evicts the lock".to_owned()],
        Action::Flush => vec!["the server loses its data".to_owned()],
        Action::Failover => vec!["the server dies, and its replica takes over without the last writes".to_owned()],
        Action::Jump => vec![format!("the server's clock jumps by {}", setting.faults.jump)],
        Action::Deafen(who) => vec![format!("the subscription of {} is lost, and it does not know", name(who))],
        Action::Sleep(who) => vec![format!("the machine of {} sleeps for a step", name(who))],
        _ => Vec::new(),
    };
    words.extend(said.iter().filter_map(tell));
    words.join("; ")
}

fn tell(said: &Said) -> Option<String> {
    Some(match said {
        Said::Ran(who, command, reply) => format!("{}: {command} -> {reply}", name(*who)),
        Said::Sent(who, command) => format!("{}: {command} is sent, and is slow", name(*who)),
        Said::Lost(who, command) => format!("{}: {command} is lost on the way", name(*who)),
        Said::Hears(who, reply) => format!("{} hears {reply}", name(*who)),
        Said::Wrote(who, fence, accepted) => {
            let fence = fence.map_or_else(String::new, |fence| format!(" with fence {fence}"));
            format!("{} writes{fence}, and is {}", name(*who), if *accepted { "let in" } else { "refused" })
        }
        Said::Changed(who, change) => return changed(*who, *change),
    })
}

fn changed(who: u8, change: Change) -> Option<String> {
    let until = |until: Option<Tick>| until.map_or_else(String::new, |until| format!(" until {until}"));
    let who = name(who);
    Some(match change {
        Change::Holds(hold) => {
            let fence = hold.fence.map_or_else(String::new, |fence| format!(" with fence {fence}"));
            format!("{who} HOLDS{}{fence}", until(hold.until))
        }
        Change::ValidUntil(end) => format!("{who} holds on{}", until(end)),
        Change::Lost => format!("{who} thinks that it has lost the lock"),
        Change::Releases => format!("{who} stops working"),
        Change::Queued => format!("{who} waits"),
        Change::Busy => format!("{who} does not get it"),
        Change::Asks | Change::Freed => return None,
    })
}
