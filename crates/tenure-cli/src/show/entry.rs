//! An entry of the store as people read it, and as programs do.

use serde_json::{Value, json};
use tenure::{Entry, Holder, Kind, Owner, Queued, Share, format_duration};

use crate::min_hold;
use crate::output::{millis, table};

/// Number of waiters that are printed as text.
const QUEUE_SHOWN: usize = 20;

const HEAD: [&str; 7] = ["NAME", "HOLDER", "KIND", "FENCE", "AGE", "TTL", "WAITERS"];

pub(super) fn to_json(entry: &Entry) -> Value {
    let holders = entry.holders.iter().map(|holder| {
        json!({
            "owner": holder.owner.to_string(),
            "fence": holder.fence.map(|fence| fence.to_string()),
            "ttl_ms": holder.ttl.map(millis),
            "held_for_ms": holder.age.map(millis),
            "shared": !holder.share.is_exclusive(),
            "permits": permits(holder.share),
        })
    });
    let queue = entry.waiters.iter().map(|waiter| {
        let Queued { owner, share, .. } = waiter;
        json!({ "owner": owner.to_string(), "kind": kind(*share), "shared": !share.is_exclusive(), "permits": permits(*share) })
    });
    json!({
        "name": entry.name,
        "kind": kind(share(entry)),
        "holders": holders.collect::<Value>(),
        "waiters": entry.waiters.len(),
        "queue": queue.collect::<Value>(),
    })
}

/// A share that is held, or else waited for.
fn share(entry: &Entry) -> Share {
    let held = entry.holders.first().map(|holder| holder.share);
    held.or_else(|| entry.waiters.first().map(|waiter| waiter.share)).unwrap_or(Share::MUTEX)
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

/// The entries as a table, or one below the other if that is too wide.
pub(super) fn text(entries: &[Entry], columns: Option<usize>) -> String {
    let rows: Vec<_> = entries.iter().flat_map(rows).collect();
    let table = table(HEAD, &rows);
    let widest = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if columns.is_some_and(|columns| widest > columns) { stacked(&rows) } else { table }
}

fn stacked(rows: &[[String; 7]]) -> String {
    let one = |[name, holder, kind, fence, age, ttl, waiters]: &[String; 7]| {
        format!("{name}\n  holder {holder}\n  {kind}, fence {fence}, age {age}, ttl {ttl}, waiters {waiters}\n")
    };
    rows.iter().map(one).collect()
}

/// The rows of a name: its holders, or nobody if there are only waiters.
fn rows(entry: &Entry) -> Vec<[String; 7]> {
    if entry.holders.is_empty() {
        let cells = ["nobody", kind(share(entry)), "-", "-", "-"].map(str::to_owned);
        let [holder, kind, fence, age, ttl] = cells;
        return vec![[shown(entry.name.as_str()), holder, kind, fence, age, ttl, entry.waiters.len().to_string()]];
    }
    entry.holders.iter().map(|holder| row(entry, holder)).collect()
}

fn row(entry: &Entry, holder: &Holder) -> [String; 7] {
    let gone = holder.owner.lingers_after();
    let owner = label(gone.as_ref().unwrap_or(&holder.owner));
    // Nobody holds it: it is kept taken for the rest of a shortest hold, or for a linger.
    let owner = if gone.is_some() { format!("nobody (after {owner})") } else { owner };
    let dash = || "-".to_owned();
    let age = holder.age.map_or_else(dash, format_duration);
    let ttl = holder.ttl.map_or_else(|| "none".to_owned(), format_duration);
    let fence = holder.fence.map_or_else(dash, |fence| fence.to_string());
    [shown(entry.name.as_str()), owner, held_as(holder.share), fence, age, ttl, entry.waiters.len().to_string()]
}

/// One line for all holders of a name.
pub(super) fn follow_line(entry: &Entry) -> String {
    let holder = |[name, holder, kind, fence, ..]: [String; 7]| {
        let fence = if fence == "-" { String::new() } else { format!(", fence {fence}") };
        format!("{name}  {holder}  {kind}{fence}\n")
    };
    if entry.holders.is_empty() {
        return format!("{}  nobody\n", shown(entry.name.as_str()));
    }
    rows(entry).into_iter().map(holder).collect()
}

/// The waiters of a name, in order.
pub(super) fn queue(entry: &Entry) -> String {
    let waiter = |(waiter, n): (&Queued, usize)| format!("waiter {n}: {}, {}", label(&waiter.owner), held_as(waiter.share));
    let mut lines: Vec<String> = entry.waiters.iter().take(QUEUE_SHOWN).zip(1..).map(waiter).collect();
    if let Some(more) = entry.waiters.len().checked_sub(QUEUE_SHOWN).filter(|more| *more > 0) {
        lines.push(format!("and {more} more; --output json has them all"));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// The label of an owner token, or the token if it has none of ours.
fn label(owner: &Owner) -> String {
    match owner.label().map(min_hold::without) {
        Some("") => "(no label)".to_owned(),
        Some(label) => shown(label),
        None => shown(&owner.to_string()),
    }
}

fn shown(cell: &str) -> String {
    cell.chars().flat_map(printable).collect()
}

/// Values come from others and must not drive the terminal.
fn printable(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tenure::{Fence, Name};

    fn entry() -> Entry {
        let owner = Owner::from_bytes(*b"web.42.0123456789abcdef0123456789abcdef");
        let (fence, ttl, age) = (Fence::from_counter(3), Some(Duration::from_millis(29_500)), Some(Duration::from_secs(90)));
        let holder = Holder::new(owner, Share::MUTEX).with_fence(fence).with_ttl(ttl).with_age(age);
        let waiter = |label: &str, share| {
            Queued::new(Owner::from_bytes(format!("{label}.0123456789abcdef0123456789abcdef").into_bytes()), share)
        };
        let waiters = vec![waiter("web.7", Share::MUTEX), waiter("web.9", Share::READ)];
        Entry::new(Name::new("invoice/42").unwrap(), vec![holder], waiters)
    }

    #[test]
    fn json_has_exactly_the_promised_fields() {
        let expected = json!({
            "name": "invoice/42", "kind": "mutex", "waiters": 2,
            "holders": [{
                "owner": "web.42.0123456789abcdef0123456789abcdef",
                "fence": "3072", "ttl_ms": 29_500, "held_for_ms": 90_000, "shared": false, "permits": null,
            }],
            "queue": [
                { "owner": "web.7.0123456789abcdef0123456789abcdef", "kind": "mutex", "shared": false, "permits": null },
                { "owner": "web.9.0123456789abcdef0123456789abcdef", "kind": "rw", "shared": true, "permits": null },
            ],
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
        assert_eq!(text(&[entry()], None), format!("{head}{expected}"));
        assert_eq!(text(&[entry()], Some(57)), format!("{head}{expected}"));
    }

    #[test]
    fn waiters_are_listed_in_order() {
        let mut entry = entry();
        assert_eq!(queue(&entry), "waiter 1: web.7, mutex\nwaiter 2: web.9, rw, shared\n");
        entry.waiters = vec![entry.waiters[0].clone(); QUEUE_SHOWN + 3];
        assert!(queue(&entry).ends_with("waiter 20: web.7, mutex\nand 3 more; --output json has them all\n"));
        entry.holders.clear();
        assert!(text(&[entry], None).ends_with("invoice/42  nobody  mutex  -      -    -    23\n"));
    }

    #[test]
    fn what_is_too_wide_for_the_terminal_stands_below_one_another() {
        let mut entry = entry();
        entry.name = Name::new("n".repeat(70)).unwrap();
        let shown = text(&[entry], Some(80));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert_eq!(shown.lines().nth(2), Some("  mutex, fence 3072, age 1m30s, ttl 29.5s, waiters 2"));
    }

    #[test]
    fn nobody_holds_what_lingers() {
        let mut entry = entry();
        entry.holders[0].owner = Owner::generate("web.42+hold10000ms").unwrap().lingering();
        assert!(text(&[entry], None).contains("  nobody (after web.42)  "));
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
        assert!(!text(&[entry], None).contains('\x1b'));
    }
}
