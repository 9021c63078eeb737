//! `tenure show`: who holds what.

use std::io::{Write, stdout};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::{Entry, Holder, Kind, Share};

use crate::args::{Output, Show};
use crate::config::Settings;
use crate::exit::{DAMAGED, Failure};
use crate::lease::open;
use crate::take::lock_name;

/// Prints the holders of one name, or of all.
pub(crate) async fn main(args: &Show) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(lock_name).transpose()?;
    let settings = Settings::load(&args.common)?;
    let mut entries = match (open(&settings, None).await?, &name) {
        (None, _) => Vec::new(),
        (Some(locker), Some(name)) => locker.inspect(name).await?.into_iter().collect(),
        (Some(locker), None) => locker.list().await?,
    };
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    match args.output {
        Output::Json => print(&format!("{}\n", entries.iter().map(to_json).collect::<Value>()))?,
        Output::Text if entries.is_empty() => match name {
            Some(name) => settings.voice.say(format_args!("{name:?} is free")),
            None => settings.voice.say("nothing of ours is held"),
        },
        Output::Text => print(&table(&entries))?,
    }
    Ok(0)
}

/// Writes the result of a command to stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::new(DAMAGED, format!("the result cannot be written to stdout, {e}; give it a place to go")))
}

fn to_json(entry: &Entry) -> Value {
    let holders = entry.holders.iter().map(|holder| {
        json!({
            "owner": holder.owner.to_string(),
            "fence": holder.fence.map(|fence| fence.to_string()),
            "ttl_ms": holder.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            "shared": !holder.share.is_exclusive(),
            "permits": permits(holder.share),
        })
    });
    let kind = kind(entry.holders.first().map_or(Share::MUTEX, |holder| holder.share));
    json!({ "name": entry.name, "kind": kind, "holders": holders.collect::<Value>(), "waiters": entry.waiters })
}

fn kind(share: Share) -> &'static str {
    match share.kind() {
        Kind::Mutex => "mutex",
        Kind::ReadWrite => "rw",
        Kind::Semaphore(_) => "semaphore",
    }
}

fn permits(share: Share) -> Option<String> {
    matches!(share.kind(), Kind::Semaphore(_)).then(|| format!("{}/{}", share.weight(), share.capacity()))
}

/// The kind of a share, and what it is of it.
fn held_as(share: Share) -> String {
    match (share, permits(share)) {
        (Share::READ, _) => "rw, shared".to_owned(),
        (_, Some(permits)) => format!("semaphore {permits}"),
        _ => kind(share).to_owned(),
    }
}

fn table(entries: &[Entry]) -> String {
    let head = ["NAME", "HOLDER", "KIND", "FENCE", "AGE", "TTL", "WAITERS"].map(String::from);
    let rows = entries.iter().flat_map(|entry| entry.holders.iter().map(|holder| row(entry, holder)));
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let padding = if column + 1 == row.len() { 0 } else { width - cell.chars().count() + 2 };
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', padding));
        }
        text.push('\n');
    }
    text
}

fn row(entry: &Entry, holder: &Holder) -> [String; 7] {
    let owner = match holder.owner.label() {
        Some("") => "(no label)".to_owned(),
        Some(label) => label.to_owned(),
        None => holder.owner.to_string(),
    };
    let shown = |cell: &str| cell.chars().flat_map(printable).collect();
    let dash = || "-".to_owned();
    let age = holder.age.map_or_else(dash, span);
    let ttl = holder.ttl.map_or_else(|| "none".to_owned(), span);
    let fence = holder.fence.map_or_else(dash, |fence| fence.to_string());
    [shown(entry.name.as_str()), shown(&owner), held_as(holder.share), fence, age, ttl, entry.waiters.to_string()]
}

/// Values come from others and must not drive the terminal.
fn printable(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}

/// A duration for people, rounded to what matters.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{:.1}s", span.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::{Fence, Name, Owner};

    fn entry() -> Entry {
        let owner = Owner::from_bytes(*b"web.42.0123456789abcdef0123456789abcdef");
        let (fence, ttl, age) = (Fence::from_counter(3), Some(Duration::from_millis(29_500)), Some(Duration::from_secs(90)));
        let holder = Holder::new(owner, Share::MUTEX).with_fence(fence).with_ttl(ttl).with_age(age);
        Entry::new(Name::new("invoice/42").unwrap(), vec![holder], 2)
    }

    #[test]
    fn json_has_exactly_the_promised_fields() {
        let expected = json!({
            "name": "invoice/42", "kind": "mutex", "waiters": 2,
            "holders": [{
                "owner": "web.42.0123456789abcdef0123456789abcdef",
                "fence": "3072", "ttl_ms": 29_500, "shared": false, "permits": null,
            }],
        });
        assert_eq!(to_json(&entry()), expected);
        let mut unknown = entry();
        unknown.holders[0].fence = None;
        unknown.holders[0].ttl = None;
        assert_eq!(to_json(&unknown)["holders"][0]["fence"], Value::Null);
        assert_eq!(to_json(&unknown)["holders"][0]["ttl_ms"], Value::Null);
    }

    #[test]
    fn the_table_is_aligned() {
        let head = "NAME        HOLDER  KIND   FENCE  AGE    TTL    WAITERS\n";
        let expected = "invoice/42  web.42  mutex  3072   1m30s  29.5s  2\n";
        assert_eq!(table(&[entry()]), format!("{head}{expected}"));
    }

    #[test]
    fn every_kind_is_named() {
        let permits = Share::permits(2, 5).unwrap();
        for (share, name, shared, some, told) in [
            (Share::READ, "rw", true, None, "rw, shared"),
            (Share::WRITE, "rw", false, None, "rw"),
            (permits, "semaphore", true, Some("2/5"), "semaphore 2/5"),
        ] {
            let mut entry = entry();
            entry.holders[0].share = share;
            let json = to_json(&entry);
            let holder = &json["holders"][0];
            assert_eq!((json["kind"].as_str(), holder["shared"].as_bool()), (Some(name), Some(shared)));
            assert_eq!((holder["permits"].as_str(), held_as(share).as_str()), (some, told));
        }
    }

    #[test]
    fn a_foreign_value_does_not_drive_the_terminal() {
        let mut entry = entry();
        entry.holders[0].owner = Owner::from_bytes(*b"\x1b[2J.0123456789abcdef0123456789abcdef");
        assert!(!table(&[entry]).contains('\x1b'));
    }

    #[test]
    fn spans_are_short() {
        let table = [(0, "0ms"), (999, "999ms"), (1500, "1.5s"), (61_000, "1m01s"), (3_700_000, "1h01m"), (90_000_000, "1d01h")];
        for (millis, text) in table {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }
}
