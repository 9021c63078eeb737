//! Who may use a lock file: its owner alone, unless sharing was asked for.
//!
//! A user who may read a lock file can keep writers out of it, so nothing lies between "not at all"
//! and "read and write".

use std::path::Path;

use tenure::Error;

use super::failure::{Failure, damaged};

/// Mode and group of a lock file that is made, and of the two files beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    mode: u32,
    group: Option<u32>,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

impl Sharing {
    /// Checks what was asked for.
    pub(super) fn new(mode: Option<u32>, group: Option<u32>) -> Result<Self, Error> {
        let usual = if group.is_some() { 0o660 } else { 0o600 };
        match (mode.unwrap_or(usual), group) {
            (0o600, Some(_)) => {
                Err(Error::invalid("a lock file of mode 0600 is not open to its group")
                    .with_hint("use the mode 0660, or no group"))
            }
            (mode @ (0o600 | 0o660 | 0o666), group) => Ok(Self { mode, group }),
            (mode, _) => {
                let what = format!("a lock file cannot have the mode {mode:04o}");
                Err(Error::invalid(what)
                    .with_hint("use 0600 for one user, 0660 for a group or 0666 for all: who may use it reads and writes"))
            }
        }
    }

    /// Whether others than the owner may use the file.
    pub(super) fn is_wanted(self) -> bool {
        self != Self::default()
    }

    /// Makes an empty file with this mode and group. At no moment does the name mean a file with
    /// others.
    ///
    /// Any member of a group may be able to rename files in the directory. So the mode and the
    /// group are set on the file that was made, not on what its name means by then.
    #[cfg(target_os = "linux")]
    pub(super) fn make(self, path: &Path) -> Result<(), Failure> {
        use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with, unlink};
        let fresh = path.with_file_name(format!(".tenure-{:016x}", fastrand::u64(..)));
        let failed = |step: &str, errno: rustix::io::Errno| {
            let why = format!("it cannot be {step} ({})", std::io::Error::from(errno));
            damaged(path, &why, "be a member of the group, make the directory writable, or have root make the file once")
        };
        mknodat(CWD, &fresh, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0).map_err(|errno| failed("made", errno))?;
        let settled = self.set(&fresh).map_err(|errno| failed("given this mode and group", errno));
        let named = settled.and_then(|()| match renameat_with(CWD, &fresh, CWD, path, RenameFlags::NOREPLACE) {
            // Another process was first.
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(errno) => Err(failed("given its name", errno)),
        });
        let _ = unlink(&fresh);
        Ok(named?)
    }

    /// Sets the mode and the group of an empty file of this process's own, if it is one.
    #[cfg(target_os = "linux")]
    fn set(self, fresh: &Path) -> Result<(), rustix::io::Errno> {
        let file = handle::Handle::of(fresh)?;
        if file.found.st_size != 0 || !file.is_ours() {
            return Err(rustix::io::Errno::PERM);
        }
        file.set(self.mode, self.group)
    }

    /// Elsewhere nothing names a file without opening it.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn make(self, path: &Path) -> Result<(), Failure> {
        Err(damaged(path, "a file for several users can be made on Linux only", "make an empty file with that mode first").into())
    }
}

/// Gives a file that SQLite has made beside a shared one the group of that: in a directory without
/// setgid it has its maker's.
///
/// Failures leave it as it is: other users are then refused by name.
#[cfg(target_os = "linux")]
pub(super) fn align(companion: &Path, file: &std::fs::Metadata) {
    use std::os::unix::fs::MetadataExt as _;
    let (mode, group) = (file.mode() & 0o666, file.gid());
    if mode & 0o066 == 0 {
        return;
    }
    let Ok(found) = handle::Handle::of(companion) else { return };
    if found.is_ours() && (found.found.st_gid, found.found.st_mode & 0o777) != (group, mode) {
        let _ = found.set(mode, Some(group));
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn align(_companion: &Path, _file: &std::fs::Metadata) {}

#[cfg(target_os = "linux")]
mod handle {
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::path::Path;

    use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, chmod, chownat, fstat, open};
    use rustix::io::Errno;
    use rustix::process::geteuid;

    /// A file by itself, whatever its name comes to mean. It is not opened: to close it would end
    /// this process's locks on it.
    pub(super) struct Handle {
        fd: OwnedFd,
        pub(super) found: Stat,
    }

    impl Handle {
        pub(super) fn of(path: &Path) -> Result<Self, Errno> {
            let fd = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            Ok(Self { found: fstat(&fd)?, fd })
        }

        /// Whether it is a file of this user with no other name.
        pub(super) fn is_ours(&self) -> bool {
            let is_file = FileType::from_raw_mode(self.found.st_mode) == FileType::RegularFile;
            is_file && self.found.st_nlink == 1 && self.found.st_uid == geteuid().as_raw()
        }

        /// Sets the group first: with the mode first, the old group could open it.
        pub(super) fn set(&self, mode: u32, group: Option<u32>) -> Result<(), Errno> {
            if let Some(group) = group {
                chownat(&self.fd, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
            }
            chmod(format!("/proc/self/fd/{}", self.fd.as_raw_fd()), Mode::from_raw_mode(mode))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_for_one_user_or_for_those_who_read_and_write() {
        assert!(!Sharing::default().is_wanted() && !Sharing::new(None, None).unwrap().is_wanted());
        assert_eq!(Sharing::new(None, Some(33)).unwrap(), Sharing { mode: 0o660, group: Some(33) });
        assert_eq!(Sharing::new(Some(0o666), None).unwrap(), Sharing { mode: 0o666, group: None });
        for (mode, group) in [(0o644, None), (0o640, Some(33)), (0o600, Some(33)), (0o770, None), (0o1660, None), (0, None)] {
            assert!(Sharing::new(Some(mode), group).is_err(), "{mode:o}");
        }
    }
}
