//! Ends what a run of the lab has started, however the run itself is ended.
//!
//! A run that is killed can clean up nothing, and a stopped worker does not notice that nobody speaks to it any more. So a process beside the
//! run keeps the list of its children, and when the run is gone kills those that are left and removes their files.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tenure_testkit::{Signal, signal, tell_of_children};

use crate::Lab;

/// Has everything that this process starts from now on, and every temporary file, ended with it.
///
/// # Errors
/// When the process beside ours cannot be started.
pub fn watch_over_us(lab: &Lab) -> io::Result<()> {
    let dir = TempDir::with_prefix("tenure-lab-")?.keep();
    let mut command = lab.worker();
    // In a group of its own: an interrupt from the terminal is for us.
    command.arg("reap").arg(&dir).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
    let list = command.spawn()?.stdin.take();
    tell_of_children(list.ok_or(io::ErrorKind::BrokenPipe)?);
    let _ = tempfile::env::override_temp_dir(&dir);
    Ok(())
}

/// Keeps the list that standard input tells, and ends those on it when that ends.
pub(crate) fn reap(dir: &Path) {
    let mut living = BTreeSet::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match (line.get(..1), line.get(1..).and_then(|pid| pid.parse::<u32>().ok())) {
            (Some("+"), Some(pid)) => drop(living.insert(pid)),
            (_, Some(pid)) => drop(living.remove(&pid)),
            _ => {}
        }
    }
    for pid in living {
        let _ = signal(pid, Signal::Kill);
    }
    let _ = fs::remove_dir_all(dir);
}
