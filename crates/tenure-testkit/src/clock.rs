//! A clock that jumps while its process runs, as after a bad time server, a leap, a restored machine, or a sleep that it
//! does not count.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::Preload;

const SOURCE: &str = include_str!("clock.c");

/// The clocks of the processes it was applied to; keep it as long as they run.
///
/// `CLOCK_REALTIME`, `gettimeofday` and `time` move by [`shift`](Self::shift), `CLOCK_MONOTONIC` by
/// [`shift_monotonic`](Self::shift_monotonic), and every other clock goes on undisturbed. It works by preloading a library, so a statically linked program, and one that makes its own system calls, does not see it.
#[derive(Debug)]
pub struct ShiftedClock {
    preload: Preload,
    offset: File,
}

impl ShiftedClock {
    /// A clock that is right until [`shift`](Self::shift). The compiler is `$CC`, else `cc`; a missing one panics.
    pub fn new() -> Self {
        let preload = Preload::new(SOURCE);
        let offset = OpenOptions::new().write(true).create_new(true).open(preload.path("offset"));
        let clock = Self { preload, offset: offset.expect("a directory of ours can be written") };
        clock.shift(0);
        clock.shift_monotonic(0);
        clock
    }

    /// Gives the clock to a process that is about to start, and to all it starts.
    pub fn apply(&self, command: &mut Command) {
        self.preload.apply(command);
        command.env("TENURE_CLOCK_OFFSET", self.preload.path("offset"));
    }

    /// Lets processes of other users have it.
    pub(crate) fn open_to_all(&self) {
        use std::os::unix::fs::PermissionsExt as _;
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        for path in [self.preload.path(""), self.preload.library(), self.preload.path("offset")] {
            open(&path).expect("a directory of ours can be opened");
        }
    }

    /// Sets the wall clock this far off the true time, in force when this returns; 0 sets it right.
    pub fn shift(&self, milliseconds: i64) {
        self.write(milliseconds, 0);
    }

    /// As [`shift`](Self::shift) for the monotonic clock. To leave out a sleep, move it back bit by bit: it never goes backwards.
    pub fn shift_monotonic(&self, milliseconds: i64) {
        self.write(milliseconds, size_of::<i64>() as u64);
    }

    fn write(&self, milliseconds: i64, at: u64) {
        self.offset.write_all_at(&milliseconds.to_ne_bytes(), at).expect("a file of ours can be written");
    }
}

impl Default for ShiftedClock {
    fn default() -> Self {
        Self::new()
    }
}
