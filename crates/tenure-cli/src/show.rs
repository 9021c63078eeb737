//! `tenure show`: who holds what.

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::{BootTime, Entry, Fence, Holder, Kind, Locker, Name, Owner, Queued, Share, format_duration};
use tokio::time::sleep;

use crate::args::{Output, Show};
use crate::config::Settings;
use crate::exit::{Failure, NOT_ACQUIRED, Voice};
use crate::names::lock_name;
use crate::output::is_read;
pub(crate) use crate::output::print;
use crate::{min_hold, servers, store};

/// Exit code of `--check` for a name that is free.
const FREE: u8 = 1;
/// How often a name is looked at whose end is waited for.
const LOOK: Duration = Duration::from_millis(200);
/// Number of waiters that are printed as text.
const QUEUE_SHOWN: usize = 20;
/// How long a search of the whole store is silent.
const SILENCE: Duration = Duration::from_secs(1);

/// Prints the holders of one name, or of all.
pub(crate) async fn main(args: &Show) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(lock_name).transpose()?;
    let settings = Settings::load(&args.common)?;
    if args.servers {
        return servers::show(&settings, name.as_ref(), args.output).await;
    }
    let locker = store::open_existing(&settings, None).await?;
    if let (Some(name), true) = (&name, args.watch) {
        return follow(locker, name, args, &settings).await;
    }
    let mut entries = match (&locker, &name) {
        (None, _) => Vec::new(),
        (Some(locker), Some(name)) => look(locker, name, args).await?.into_iter().collect(),
        (Some(locker), None) => everything(locker, settings.voice).await?,
    };
    if args.check {
        return Ok(if entries.is_empty() { FREE } else { 0 });
    }
    entries.retain(|entry| args.matching.as_deref().is_none_or(|pattern| matches(pattern, entry.name.as_str())));
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let all = entries.len();
    entries.truncate(args.limit.unwrap_or(all));
    match args.output {
        Output::Json => print(&format!("{}\n", entries.iter().map(to_json).collect::<Value>()))?,
        Output::Text => {
            say_which(&settings, name.as_ref(), args.matching.as_deref(), entries.len(), all);
            if !entries.is_empty() {
                print(&text(&entries, columns()))?;
            }
            // Of all names it would be too much.
            if let (Some(_), [entry]) = (&name, &entries[..]) {
                print(&queue(entry))?;
            }
        }
    }
    Ok(if args.waits() && !entries.is_empty() { NOT_ACQUIRED } else { 0 })
}

/// Names the store, and says what is left out.
fn say_which(settings: &Settings, name: Option<&Name>, pattern: Option<&str>, shown: usize, all: usize) {
    let (voice, store) = (settings.voice, store::shown(settings));
    match name {
        Some(name) if shown == 0 => voice.say(format_args!("{name:?} is free in {store}")),
        None if all == 0 => match pattern {
            Some(pattern) => voice.say(format_args!("no name like {pattern:?} is held in {store}")),
            None => voice.say(format_args!("no lock of tenure is held in {store}")),
        },
        _ if shown < all => voice.say(format_args!("{shown} of {all} names in {store}")),
        _ => {}
    }
}

/// Returns the entry of a name: at once, or when it is free or the wait is over.
async fn look(locker: &Locker, name: &Name, args: &Show) -> Result<Option<Entry>, Failure> {
    let started = BootTime::now();
    loop {
        let entry = locker.inspect(name).await?.filter(|entry| !args.waits() || !entry.holders.is_empty());
        let left = args.wait.map_or(Duration::MAX, |wait| wait.saturating_sub(BootTime::now().since(started)));
        let Some(held) = entry.as_ref().filter(|_| args.waits() && !left.is_zero()) else { return Ok(entry) };
        let ends = held.holders.iter().filter_map(|holder| holder.ttl).min().unwrap_or(LOOK);
        // A store that counts whole seconds shows the same rest for a while, or none.
        let soon = (ends + Duration::from_millis(1)).max(LOOK / 2);
        sleep(LOOK.min(left).min(soon)).await;
    }
}

/// Prints a line at each change of the holders of a name, until a signal ends that.
async fn follow(mut locker: Option<Locker>, name: &Name, args: &Show, settings: &Settings) -> Result<u8, Failure> {
    let (mut seen_before, mut outage) = (Followed::default(), false);
    loop {
        is_read()?;
        let seen = match &locker {
            Some(locker) => locker.inspect(name).await,
            // A file that nobody has made yet.
            None => Ok(None),
        };
        match seen {
            Ok(entry) => {
                if std::mem::take(&mut outage) {
                    settings.voice.say("the store serves us again");
                }
                let mut entry = entry.unwrap_or_else(|| Entry::new(name.clone(), Vec::new(), Vec::new()));
                if seen_before.is_change(&mut entry) {
                    match args.output {
                        Output::Json => print(&format!("{}\n", to_json(&entry)))?,
                        Output::Text => print(&follow_line(&entry))?,
                    }
                }
            }
            Err(error) if error.is_transient() => {
                if !std::mem::replace(&mut outage, true) {
                    settings.voice.say(format_args!("the store does not serve us, {error}; following goes on"));
                }
            }
            Err(error) => return Err(error.into()),
        }
        sleep(LOOK).await;
        if locker.is_none() {
            locker = store::open_existing(settings, None).await?;
        }
    }
}

/// The holders of a name that were printed last. Nothing before the first.
#[derive(Debug, Default)]
struct Followed(Option<Vec<(Owner, Share, Option<Fence>)>>);

impl Followed {
    /// Whether the holders are others than before. A fence that the store does not show for a moment is
    /// that of before.
    fn is_change(&mut self, entry: &mut Entry) -> bool {
        for holder in &mut entry.holders {
            let known = self.0.iter().flatten().find(|(owner, ..)| *owner == holder.owner);
            holder.fence = holder.fence.or(known.and_then(|(.., fence)| *fence));
        }
        let holders = Some(entry.holders.iter().map(|holder| (holder.owner.clone(), holder.share, holder.fence)).collect());
        let is_change = self.0 != holders;
        self.0 = holders;
        is_change
    }
}

/// One line for all holders of a name.
fn follow_line(entry: &Entry) -> String {
    let holder = |[name, holder, kind, fence, ..]: [String; 7]| {
        let fence = if fence == "-" { String::new() } else { format!(", fence {fence}") };
        format!("{name}  {holder}  {kind}{fence}\n")
    };
    if entry.holders.is_empty() {
        return format!("{}  nobody\n", shown(entry.name.as_str()));
    }
    rows(entry).into_iter().map(holder).collect()
}

/// Every name of the store. It takes as long as the store is large.
async fn everything(locker: &Locker, voice: Voice) -> Result<Vec<Entry>, Failure> {
    let mut list = std::pin::pin!(locker.list());
    let told = tokio::select! {
        entries = &mut list => return Ok(entries?),
        () = sleep(SILENCE) => voice.say_aside("every key of the store is looked at; a NAME, or a prefix= of the store, is faster"),
    };
    drop(told);
    Ok(list.await?)
}

/// Whether a name is like a pattern: `*` is any text, `?` any character.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pattern = pattern.chars();
    match pattern.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = pattern.as_str();
            name.char_indices().any(|(at, _)| matches(rest, &name[at..])) || matches(rest, "")
        }
        Some(c) => {
            let mut name = name.chars();
            name.next().is_some_and(|n| c == '?' || c == n) && matches(pattern.as_str(), name.as_str())
        }
    }
}

/// Width of the terminal that is written to.
fn columns() -> Option<usize> {
    let size = stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(stdout()).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

fn to_json(entry: &Entry) -> Value {
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

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
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

const HEAD: [&str; 7] = ["NAME", "HOLDER", "KIND", "FENCE", "AGE", "TTL", "WAITERS"];

/// The entries as a table, or one below the other if that is too wide.
fn text(entries: &[Entry], columns: Option<usize>) -> String {
    let rows: Vec<_> = entries.iter().flat_map(rows).collect();
    let table = table(HEAD, &rows);
    let widest = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if columns.is_some_and(|columns| widest > columns) { stacked(&rows) } else { table }
}

pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = std::iter::once(head.map(String::from)).chain(rows.iter().cloned()).collect();
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

/// The waiters of a name, in order.
fn queue(entry: &Entry) -> String {
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

/// Values come from others and must not drive the terminal.
fn printable(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}

#[cfg(test)]
mod tests {
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
    fn a_pattern_is_matched_as_a_whole() {
        for (pattern, name, fits) in [
            ("deploy/*", "deploy/web", true),
            ("deploy/*", "x/deploy/web", false),
            ("*", "", true),
            ("*/web", "deploy/web", true),
            ("d?ploy/*b", "deploy/web", true),
            ("deploy", "deploy/web", false),
            ("?", "é", true),
            ("a*b*c", "aXbYbc", true),
            ("a*b*c", "aXcb", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
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
