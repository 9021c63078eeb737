//! Hints between the tasks of one process that a name was freed.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure::{Name, Notice};
use tokio::sync::watch;

/// So that a release wakes few of those who wait for other names.
const CHANNELS: u64 = 16;

/// Who listens, by name. Clones are the same.
#[derive(Clone)]
pub(super) struct Freed(Arc<[watch::Sender<()>]>);

impl Default for Freed {
    fn default() -> Self {
        Self((0..CHANNELS).map(|_| watch::Sender::new(())).collect())
    }
}

impl Freed {
    /// Wakes those who wait for `name`.
    pub(super) fn tell(&self, name: &Name) {
        if let Some(channel) = self.channel(name) {
            channel.send_replace(());
        }
    }

    /// A hint for each release of `name` from now on; some may fall together, and some may be about another name.
    pub(super) fn listen(&self, name: &Name) -> BoxStream<'static, Notice> {
        let Some(channel) = self.channel(name) else { return stream::pending().boxed() };
        let next = |mut freed: watch::Receiver<()>| async move { freed.changed().await.ok().map(|()| (Notice::Look, freed)) };
        stream::unfold(channel.subscribe(), next).boxed()
    }

    fn channel(&self, name: &Name) -> Option<&watch::Sender<()>> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.0.get(usize::try_from(hasher.finish() % CHANNELS).unwrap_or(0))
    }
}

impl fmt::Debug for Freed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Freed")
    }
}
