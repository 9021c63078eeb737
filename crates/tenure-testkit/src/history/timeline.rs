//! A history as a picture: a line for each process, time from left to right.

use std::fmt::Write;

use super::check::{check, span};
use super::{At, Event, History, What};

/// The columns of a terminal.
const COLUMNS: usize = 80;

/// Draws `history` with the findings of the checker. The visits of a process to the guarded
/// resource stand below its validity.
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
    let mut people: Vec<&str> = Vec::new();
    for event in &history.events {
        if event.who != "lab" && !people.contains(&event.who.as_str()) {
            people.push(&event.who);
        }
    }
    let margin = people.iter().map(|who| who.len()).max().unwrap_or(0).max(3);
    let width = COLUMNS - margin - 2;
    let scale = Scale { first: first.at, per_column: (last.at - first.at) / (width as u64 - 1) + 1, width };
    let _ = writeln!(text, "{:margin$}  0{:>width$}", "", span(last.at - first.at), width = width - 1);
    for who in &people {
        let _ = writeln!(text, "{who:margin$}  {}", lane(history, who, &scale, mark).trim_end());
        let visits = lane(history, "", &scale, |event| visit(event).filter(|_| event.who == *who));
        if !visits.trim().is_empty() {
            let _ = writeln!(text, "{:margin$}  {}", "", visits.trim_end());
        }
    }
    for event in history.events.iter().filter(|event| event.who == "lab") {
        if let What::Fault { text: fault } = &event.what {
            let (at, fault) = (margin + 2 + scale.column(event.at), format!("{fault} ({})", span(event.at - first.at)));
            // On the side of the mark that has more room.
            if 2 * at < COLUMNS || at < fault.len() + 1 {
                text.push_str(&wrapped(&format!("{:at$}^ ", ""), &fault, (at + 2).min(COLUMNS / 2)));
            } else {
                let _ = writeln!(text, "{fault:>before$} ^", before = at - 1);
            }
        }
    }
    for finding in check(history) {
        text.push_str(&wrapped("!! ", &format!("at {}: {finding}", span(finding.at.saturating_sub(first.at))), 3));
    }
    text.push_str(
        "? asks   q queues   = holds, as it knows   x learns of its loss   > gives up\n\
         + dies   w writes   r is refused\n",
    );
    text
}

/// Returns `text` behind `first`, in lines of 80 columns of which all but the first begin with so many blanks.
pub fn wrapped(first: &str, text: &str, blanks: usize) -> String {
    let (mut line, mut all, mut begun) = (first.to_owned(), String::new(), false);
    for word in text.split(' ') {
        let columns = line.chars().count() + usize::from(begun) + word.chars().count();
        if columns > COLUMNS && (begun || line.len() > blanks) {
            all.push_str(line.trim_end());
            all.push('\n');
            line = " ".repeat(blanks);
        } else if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    all + line.trim_end() + "\n"
}

struct Scale {
    first: At,
    per_column: u64,
    width: usize,
}

impl Scale {
    fn column(&self, at: At) -> usize {
        usize::try_from(at.saturating_sub(self.first) / self.per_column)
            .map_or(self.width - 1, |column| column.min(self.width - 1))
    }
}

/// Draws the validity of `who`, and a mark for each event that has one.
fn lane(history: &History, who: &str, scale: &Scale, sign: impl Fn(&Event) -> Option<u8>) -> String {
    let mut lane = vec![b' '; scale.width];
    for acquisition in history.claims().iter().filter(|acquisition| acquisition.who == who) {
        for &(from, until) in acquisition.validity.iter().filter(|(from, until)| from < until) {
            lane[scale.column(from)..=scale.column(until)].fill(b'=');
        }
    }
    for event in history.events.iter().filter(|event| who.is_empty() || event.who == who) {
        if let Some(sign) = sign(event) {
            lane[scale.column(event.at)] = sign;
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
