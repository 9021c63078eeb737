//! A server that comes back with older data: what a power loss, a backup or a restored machine leaves.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{DATA, RedisServer, remove_data};
use crate::process::wait_until;
use crate::server::START;

const DUMP: &str = DATA[2];

/// The data of a server as it was at some time.
#[derive(Debug)]
pub struct Snapshot(TempDir);

impl RedisServer {
    /// Copies the data as it is now.
    ///
    /// An append-only file is copied as it stands: what the server has answered is in it, whatever
    /// `appendfsync` says. So the server may be stopped or killed. Without such a file the server
    /// has to execute `SAVE`, so it must answer.
    pub fn snapshot(&self) -> Snapshot {
        let copy = TempDir::with_prefix("tenure-redis-copy-").expect("a temporary directory can be made");
        let has_log = DATA.iter().any(|name| *name != DUMP && self.dir().join(name).exists());
        if !has_log {
            assert_eq!(self.cli("SAVE"), "OK");
        }
        copy_data(self.dir(), copy.path());
        if !has_log {
            // A later restart of a server without persistence must forget.
            let _ = fs::remove_file(self.dir().join(DUMP));
        }
        Snapshot(copy)
    }

    /// Kills what still runs and starts again on the same port with that older data; returns when it is loaded.
    pub fn restart_with(&self, snapshot: &Snapshot) {
        self.kill();
        remove_data(self.dir());
        copy_data(snapshot.0.path(), self.dir());
        self.restart();
        self.wait_until_loaded();
        if !self.dir().join(DATA[0]).exists() && !self.dir().join(DATA[1]).exists() {
            let _ = fs::remove_file(self.dir().join(DUMP));
        }
    }

    /// Waits until it has read the data with which it was started. Before that it refuses most commands.
    pub fn wait_until_loaded(&self) {
        wait_until(START, "redis-server to load its data", || self.info("persistence", "loading") == "0");
    }

    /// One field of a section of `INFO`.
    pub(super) fn info(&self, section: &str, field: &str) -> String {
        let section = self.cli(&format!("INFO {section}"));
        let found = section.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_default().trim().to_owned()
    }
}

fn copy_data(from: &Path, to: &Path) {
    for name in DATA {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            fs::create_dir(&to).expect("a directory of ours can be written");
            for entry in fs::read_dir(&from).expect("a server's directory can be read") {
                let path = entry.expect("a server's directory can be read").path();
                copy(&path, &to.join(path.file_name().expect("an entry has a name")));
            }
        } else if from.exists() {
            copy(&from, &to);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{} cannot be copied: {error}", from.display()));
}
