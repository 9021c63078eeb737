//! Events of the library on stderr, as far as `RUST_LOG` asks for them.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::exit::say;

/// How many lines wait for a reader that is slow. Further ones are dropped: no reader may hold up a
/// renewal.
const LINES: usize = 1_000;
/// How long the end waits for what is not written yet.
const FLUSH: Duration = Duration::from_millis(100);

static LOG: OnceLock<SyncSender<Line>> = OnceLock::new();

enum Line {
    Text(String),
    Flush(SyncSender<()>),
}

/// Listens if `RUST_LOG` says so.
pub(crate) fn listen() {
    let Some(level) = std::env::var("RUST_LOG").ok().and_then(|text| level(&text)) else { return };
    let (lines, waiting) = sync_channel(LINES);
    let writer = Builder::new().name("tenure-log".into()).stack_size(128 * 1024).spawn(move || write(&waiting));
    if writer.is_ok() && LOG.set(lines).is_ok() {
        // Nobody else listens in this process.
        let _ = tracing::subscriber::set_global_default(Log(level));
    }
}

/// Waits a moment for the last lines.
pub(crate) fn finish() {
    let Some(lines) = LOG.get() else { return };
    let (done, written) = sync_channel(1);
    if lines.try_send(Line::Flush(done)).is_ok() {
        let _ = written.recv_timeout(FLUSH);
    }
}

fn write(lines: &Receiver<Line>) {
    for line in lines {
        match line {
            Line::Text(text) => say(text),
            Line::Flush(done) => drop(done.send(())),
        }
    }
}

/// The level of `debug`, or of the first of several parts that is for all or for us:
/// `info,tenure=debug`.
fn level(text: &str) -> Option<LevelFilter> {
    let parts = text.split(',').filter_map(|part| match part.trim().split_once('=') {
        None => Some((false, part.trim())),
        Some((target, level)) => target.starts_with("tenure").then_some((true, level)),
    });
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|(ours, _)| !ours);
    parts.first().filter(|(_, level)| !level.is_empty())?.1.parse().ok()
}

#[derive(Debug)]
struct Log(LevelFilter);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0 && metadata.target().starts_with("tenure")
    }

    fn event(&self, event: &Event<'_>) {
        let since_midnight =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() % 86_400_000;
        let (seconds, millis) = (since_midnight / 1_000, since_midnight % 1_000);
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let mut text = Text(format!("{hour:02}:{minute:02}:{second:02}.{millis:03}Z {level} {target}:"));
        event.record(&mut text);
        if let Some(lines) = LOG.get() {
            let _ = lines.try_send(Line::Text(text.0));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_for_all_or_for_us() {
        for (text, expected) in [
            ("debug", Some(LevelFilter::DEBUG)),
            ("info,tenure=trace", Some(LevelFilter::TRACE)),
            ("tenure_redis=warn,info", Some(LevelFilter::WARN)),
            ("hyper=debug", None),
            ("", None),
            ("loud", None),
        ] {
            assert_eq!(level(text), expected, "{text}");
        }
    }
}
