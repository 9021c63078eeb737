//! Programs that refuse to run as root, and the directories that are theirs.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that is not root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user for a database server: `None` if we are not root ourselves, else the one of this name, or nobody.
    pub(crate) fn for_server(name: &str) -> Option<Self> {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = passwd.lines().find_map(|line| {
            let mut fields = line.strip_prefix(name)?.strip_prefix(':')?.split(':').skip(1);
            Some(Self { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
        });
        Some(found.unwrap_or(Self { uid: NOBODY, gid: NOBODY }))
    }

    /// Gives it a file or a directory.
    pub(crate) fn give(self, path: &Path) {
        chown(path, Some(self.uid), Some(self.gid)).expect("root may give a file away");
    }

    /// Has a command run as this user.
    pub(crate) fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

/// The newest directory below `parent` that has a `program` in its `bin`.
pub(crate) fn newest_bin(parent: &str, program: &str) -> Option<PathBuf> {
    let versions = fs::read_dir(parent).ok()?.flatten().map(|version| version.path());
    let number = |path: &PathBuf| path.file_name()?.to_str()?.split('.').next()?.parse::<u32>().ok();
    let newest = versions.filter(|path| path.join("bin").join(program).exists()).max_by_key(number)?;
    Some(newest.join("bin"))
}
