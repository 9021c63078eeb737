//! The commands that have a server push.

use redis::{Cmd, cmd};

use super::Pushes;

/// Where pushes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The channel of the connection.
    Own,
    /// Keys that other clients change.
    Keys,
    /// Another channel.
    Other(String),
}

/// Has the server track the keys that a command reads, if it comes behind [`TRACK_NEXT`].
pub(crate) const TRACKING: [&[u8]; 4] = [b"CLIENT", b"TRACKING", b"ON", b"OPTIN"];
pub(crate) const TRACK_NEXT: [&[u8]; 3] = [b"CLIENT", b"CACHING", b"YES"];

impl Pushes {
    /// The command that subscribes a link.
    pub(crate) fn subscribe(&self) -> Cmd {
        subscribe(&self.channel)
    }

    /// The commands that subscribe a new link to all that is listened to.
    pub(crate) fn subscriptions(&self) -> Vec<(Cmd, Source)> {
        let own = self.are_wanted().then(|| (self.subscribe(), Source::Own));
        let changes = (self.tracks() || self.ends_with_data).then(|| {
            let command = TRACKING.iter().fold(Cmd::new(), |mut cmd, word| {
                cmd.arg(word);
                cmd
            });
            (command, Source::Keys)
        });
        let others = self.others();
        let others =
            others.keys().filter(|_| !self.in_cluster).map(|channel| (subscribe(channel), Source::Other(channel.clone())));
        own.into_iter().chain(changes).chain(others).collect()
    }
}

fn subscribe(channel: &str) -> Cmd {
    let mut subscribe = cmd("SUBSCRIBE");
    subscribe.arg(channel);
    subscribe
}
