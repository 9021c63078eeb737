//! This program, to be started once more.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// This program once more, under its own name.
pub(crate) fn command() -> Command {
    let mut command = Command::new(myself());
    command.arg0("tenure");
    command
}

/// The file of this program, also after it was replaced by a newer one.
fn myself() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    let path = env::current_exe();
    if !cfg!(target_os = "linux") || !link.exists() {
        return path.unwrap_or_else(|_| "tenure".into());
    }
    // By its path, so that `ps` shows its name; unless another file is there by now.
    path.ok().filter(|path| is_same_file(path, link)).unwrap_or_else(|| link.into())
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    id(a).is_some_and(|a| Some(a) == id(b))
}
