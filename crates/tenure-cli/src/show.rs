//! `tenure show`: who holds what.

mod entry;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use serde_json::Value;
use tenure::{BootTime, Entry, Fence, Locker, Name, Owner, Share};
use tokio::time::sleep;

use self::entry::{follow_line, queue, text, to_json};
use crate::args::{Output, Show};
use crate::config::Settings;
use crate::exit::{Failure, NOT_ACQUIRED, Voice};
use crate::names::lock_name;
use crate::output::{is_read, print};
use crate::{servers, store};

/// Exit code of `--check` for a name that is free.
const FREE: u8 = 1;
/// How often a name is looked at whose end is waited for.
const LOOK: Duration = Duration::from_millis(200);
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
