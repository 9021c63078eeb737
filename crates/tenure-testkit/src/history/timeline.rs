//! A history as a picture: a line for each process, time from left to right.

use std::fmt::Write;

use super::check::{check, span};
use super::{At, Event, History, What};

const WIDTH: usize = 100;

/// Draws `history` with what the checker found. What a process did to the guarded resource stands below what it believed.
///
/// ```text
/// A    ?===================x
///         ww   ww   w  w        r
/// B          ?              =========>
/// ```
pub fn picture(history: &History) -> String {
    let mut text = format!("{} (seed {})\n", history.id, history.seed);
    let (Some(first), Some(last)) = (history.events.first(), history.events.last()) else {
        return text + "nothing happened\n";
    };
    let scale = Scale { first: first.at, per_column: (last.at - first.at) / (WIDTH as u64 - 1) + 1 };
    let mut people: Vec<&str> = Vec::new();
    for event in &history.events {
        if event.who != "lab" && !people.contains(&event.who.as_str()) {
            people.push(&event.who);
        }
    }
    let margin = people.iter().map(|who| who.len()).max().unwrap_or(0).max(3);
    let _ = writeln!(text, "{:margin$}  0{:>width$}", "", span(last.at - first.at), width = WIDTH - 1);
    for who in &people {
        let _ = writeln!(text, "{who:margin$}  {}", lane(history, who, &scale, mark).trim_end());
        let visits = lane(history, "", &scale, |event| visit(event).filter(|_| event.who == *who));
        if !visits.trim().is_empty() {
            let _ = writeln!(text, "{:margin$}  {}", "", visits.trim_end());
        }
    }
    for event in history.events.iter().filter(|event| event.who == "lab") {
        if let What::Fault { text: fault } = &event.what {
            let _ = writeln!(
                text,
                "{:margin$}  {:column$}^ {fault} ({})",
                "",
                "",
                span(event.at - first.at),
                column = scale.column(event.at)
            );
        }
    }
    for finding in check(history) {
        let _ = writeln!(text, "!! at {}: {finding}", span(finding.at.saturating_sub(first.at)));
    }
    text.push_str(
        "?  asks   q  queues   =  believes   x  is told of its loss   >  gives up   +  dies        w  writes   r  is refused\n",
    );
    text
}

struct Scale {
    first: At,
    per_column: u64,
}

impl Scale {
    fn column(&self, at: At) -> usize {
        usize::try_from(at.saturating_sub(self.first) / self.per_column).map_or(WIDTH - 1, |column| column.min(WIDTH - 1))
    }
}

/// The beliefs of `who`, and a mark for each event that has one.
fn lane(history: &History, who: &str, scale: &Scale, mark: impl Fn(&Event) -> Option<u8>) -> String {
    let mut lane = vec![b' '; WIDTH];
    for claim in history.claims().iter().filter(|claim| claim.who == who) {
        for &(from, until) in claim.beliefs.iter().filter(|(from, until)| from < until) {
            lane[scale.column(from)..=scale.column(until)].fill(b'=');
        }
    }
    for event in history.events.iter().filter(|event| who.is_empty() || event.who == who) {
        if let Some(mark) = mark(event) {
            lane[scale.column(event.at)] = mark;
        }
    }
    String::from_utf8_lossy(&lane).into_owned()
}

fn mark(event: &Event) -> Option<u8> {
    Some(match event.what {
        What::Ask { .. } => b'?',
        What::Queued { .. } => b'q',
        What::Lost { .. } => b'x',
        What::Release { .. } => b'>',
        What::Died => b'+',
        _ => return None,
    })
}

fn visit(event: &Event) -> Option<u8> {
    Some(match event.what {
        What::Write { accepted: true, .. } => b'w',
        What::Write { accepted: false, .. } | What::Read { value: None, .. } => b'r',
        _ => return None,
    })
}
