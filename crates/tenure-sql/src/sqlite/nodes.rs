//! The files that the names of a lock file mean. A name may come to mean another file at any
//! moment. Then nobody sees locks in the one before.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::failure::{Failure, damaged};
use super::share;

/// Device and inode.
type Node = (u64, u64);

/// The file, its log and the index of that. None for a file that does not exist.
pub(super) type Nodes = [Option<Node>; 3];

/// The file that a path means now.
pub(super) fn node(path: &Path) -> Option<Node> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The names of the file and of what SQLite keeps beside it.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) path: PathBuf,
    pub(super) log: PathBuf,
    index: PathBuf,
    /// Directory of the waiters' sockets.
    pub(super) wake: PathBuf,
}

impl Names {
    /// Companions stand beside the file itself, not beside a link that leads to it.
    pub(super) fn of(path: &Path) -> Self {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let beside = |end| {
            let mut companion = real.clone().into_os_string();
            companion.push(end);
            companion.into()
        };
        Self { path: path.to_owned(), log: beside("-wal"), index: beside("-shm"), wake: beside("-wake") }
    }

    /// The file, its log and the index of that: SQLite keeps the three as they were when it opened
    /// them.
    pub(super) fn nodes(&self) -> Nodes {
        [&self.path, &self.log, &self.index].map(|path| node(path))
    }
}

impl Names {
    /// Refuses companions that somebody else has put beside a file to which its owner alone may
    /// write.
    pub(super) fn check(&self, file: &Metadata) -> Result<(), Failure> {
        let planted = |path: &&PathBuf| fs::metadata(path).is_ok_and(|found| found.uid() != file.uid());
        match [&self.log, &self.index].into_iter().find(planted) {
            Some(planted) if file.mode() & 0o022 == 0 => {
                let why = format!("{} beside it belongs to another user, who may change its locks", planted.display());
                Err(damaged(&self.path, &why, "stop the programs that use the file, and delete what is not yours").into())
            }
            _ => Ok(()),
        }
    }
}

impl Names {
    /// Gives the companions the group and the mode of a shared file.
    pub(super) fn align(&self, file: &Metadata) {
        for companion in [&self.log, &self.index] {
            share::align(companion, file);
        }
    }
}

/// Refuses a file that others reach by another name: its companions are found by name, so each
/// would have a log of its own.
pub(super) fn check(path: &Path, file: &Metadata) -> Result<(), Failure> {
    if file.is_file() && file.nlink() > 1 {
        let why = "it has more than one name (hard links), and who uses another one would see none of its locks";
        return Err(damaged(path, why, "remove the other names, or give another path").into());
    }
    if is_mounted_alone(path) {
        let why = "the file is mounted here without the companions beside it, so nobody elsewhere would see its locks";
        return Err(damaged(path, why, "mount its directory instead, or give another path").into());
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn is_mounted_alone(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(target_os = "linux"))]
fn is_mounted_alone(_path: &Path) -> bool {
    false
}
