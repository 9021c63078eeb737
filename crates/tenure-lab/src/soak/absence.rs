//! How a server of a quorum is away.

use tenure_testkit::{Proxy, RedisServer, Snapshot};

/// How a server is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// It executes nothing, and then all that it was sent.
    Stopped,
    /// Nothing passes to or from it.
    Silent,
    Refusing,
    /// It was killed, and comes back with a copy of its own from before.
    OlderCopy,
    /// It was killed, and comes back with nothing.
    Empty,
    /// It was killed, and comes back with its log.
    Restarted,
}

impl Absence {
    pub(super) const ALL: [Self; 6] =
        [Self::Stopped, Self::Silent, Self::Refusing, Self::OlderCopy, Self::Empty, Self::Restarted];

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Silent => "silent",
            Self::Refusing => "refusing connections",
            Self::OlderCopy => "back with an older copy",
            Self::Empty => "back empty",
            Self::Restarted => "back with the log",
        }
    }

    pub(super) fn begin(self, server: &RedisServer, proxy: &Proxy) {
        match self {
            Self::Stopped => server.stop(),
            Self::Silent => proxy.black_hole(),
            Self::Refusing => {
                proxy.refuse();
                proxy.cut();
            }
            Self::OlderCopy | Self::Empty | Self::Restarted => server.kill(),
        }
    }

    pub(super) fn end(self, server: &RedisServer, proxy: &Proxy, copy: Option<&Snapshot>) {
        match (self, copy) {
            (Self::Stopped, _) => server.cont(),
            (Self::Silent | Self::Refusing, _) => proxy.heal(),
            (Self::OlderCopy, Some(copy)) => server.restart_with(copy),
            (Self::Empty, _) => server.restart_empty(),
            (Self::OlderCopy | Self::Restarted, _) => server.restart(),
        }
    }
}
