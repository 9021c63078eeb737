//! A fault of a server or of the way to it, and the servers that it is done to.

use tenure_testkit::redis;

use crate::item::Run;
use crate::scenarios::fixtures::{Redis, on_redis};
use crate::scenarios::scheme::Scheme;
use crate::scenarios::stage::Stage;

pub(super) type Row = fn(&mut Stage<'_>, &Redis);

/// A fault of a server or of the way to it, and the end of it. The rows of a quorum do it to some of its servers.
#[derive(Clone, Copy)]
pub(in crate::scenarios) struct Fault {
    pub(in crate::scenarios) what: &'static str,
    pub(in crate::scenarios) begin: fn(&Redis),
    pub(in crate::scenarios) end: fn(&Redis),
}

impl Fault {
    /// A fault that is over at once, or is never mended.
    pub(super) const fn once(what: &'static str, begin: fn(&Redis)) -> Self {
        Self { what, begin, end: |_| () }
    }

    /// For less than a lease lasts.
    pub(super) fn for_a_moment(self) -> impl Fn(&mut Stage<'_>, &Redis) + Copy {
        move |stage, redis| stage.is_away_for_a_moment(|| (self.begin)(redis), Some(&|| (self.end)(redis)))
    }

    /// For longer than the validity.
    pub(super) fn for_long(self) -> impl Fn(&mut Stage<'_>, &Redis) + Copy {
        move |stage, redis| stage.is_away_for_long(|| (self.begin)(redis), || (self.end)(redis))
    }
}

/// A server that writes its log with every command.
pub(in crate::scenarios) fn kept(how: redis::Builder) -> redis::Builder {
    how.arg("appendonly", "yes").arg("appendfsync", "always")
}

/// A server with a user `app`, whose password is `app`, who may not end connections.
pub(in crate::scenarios) fn unprivileged(how: redis::Builder) -> redis::Builder {
    how.acl("user default on nopass ~* &* +@all\nuser app on >app ~* &* +@all -client|kill\n")
}

impl Scheme {
    /// On a server without persistence.
    pub(in crate::scenarios) fn plain(
        self,
        row: impl Fn(&mut Stage<'_>, &Redis) + Copy + Send + Sync + 'static,
    ) -> impl Fn(&str) -> Run {
        on_redis(self, |how| how, row)
    }

    /// On a server that writes its log with every command.
    pub(super) fn kept(self, row: impl Fn(&mut Stage<'_>, &Redis) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
        on_redis(self, kept, row)
    }

    /// On a server whose wall clock can be set.
    pub(in crate::scenarios) fn clocked(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, redis::Builder::shifted_clock, row)
    }

    /// On a server with a user `app`, whose password is `app`, who may not end connections.
    pub(super) fn unprivileged(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, unprivileged, row)
    }
}
