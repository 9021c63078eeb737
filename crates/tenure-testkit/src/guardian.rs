//! Ends what a process of tests has started, however that process itself is ended.
//!
//! A run that is killed can clean up nothing, and a stopped worker does not notice that nobody speaks to it any more. So a shell beside
//! the process keeps the list of its children, by a pipe that ends with the process: it then kills those that are left with what they
//! have started, and removes the temporary files of all.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;

/// `+ PID START` for a child, `- PID` when it is gone. The time of its start tells it from another of the same number.
const KEEP_AND_END: &str = r#"
trap '' HUP INT QUIT TERM
cd /
living=' '
while read -r sign pid start; do
    case $living in *" $pid:"*) living="${living%% $pid:*} ${living#* $pid:* }" ;; esac
    [ "$sign" = + ] && living="$living$pid:$start "
done
end() {
    for list in "/proc/$1/task/"*/children; do
        children=; read -r children <"$list"
        for child in $children; do end "$child"; done
    done
    kill -KILL "$1"
}
for one in $living; do
    pid=${one%%:*} start=${one#*:}
    if [ "$start" ]; then
        read -r stat <"/proc/$pid/stat" || continue
        set -- ${stat##*") "}
        [ "${20}" = "$start" ] || continue
    fi
    end "$pid"
done
rm -rf "$0"
"#;

/// The pipe to the guardian, once there is one.
static LIST: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Has everything that this process starts from now on, and every temporary file, ended with it; once more is no error.
///
/// A process that cargo started ends with cargo, too.
///
/// # Errors
/// When the guardian cannot be started.
pub fn watch_over_us() -> io::Result<()> {
    begin(&mut list())
}

fn list() -> MutexGuard<'static, Option<ChildStdin>> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin(list: &mut Option<ChildStdin>) -> io::Result<()> {
    if list.is_some() {
        return Ok(());
    }
    let dir = TempDir::with_prefix("tenure-run-")?.keep();
    // What another user is to enter says so by its own mode.
    fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    let mut shell = Command::new("sh");
    // In a group of its own: an interrupt from the terminal is for us. Nobody who reads our output waits for its end.
    shell.args(["-c", KEEP_AND_END]).arg(&dir).process_group(0);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    *list = Some(shell.spawn()?.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let _ = tempfile::env::override_temp_dir(&dir);
    end_with_cargo();
    Ok(())
}

/// Has a child ended with us.
pub(crate) fn keep(pid: u32) {
    let start = started(pid).unwrap_or_default();
    tell(&format!("+ {pid} {start}\n")).expect("a shell is there, which ends our children if we cannot");
}

/// A child that is gone.
pub(crate) fn forget(pid: u32) {
    // A guardian that is gone is no reason to stop here.
    let _ = tell(&format!("- {pid}\n"));
}

fn tell(line: &str) -> io::Result<()> {
    let mut list = list();
    begin(&mut list)?;
    list.as_mut().map_or(Ok(()), |list| list.write_all(line.as_bytes()))
}

/// When a process was started, as the kernel writes it.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').nth(19)?.to_owned())
}

/// A run of tests that lost its cargo runs for nobody.
fn end_with_cargo() {
    let parent = parent_id();
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    if !name.starts_with("cargo") {
        return;
    }
    // The kernel tells the end of a parent to the thread alone that asks, and only by a signal. So we look.
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(200));
        }
        let _ = kill_process(getpid(), Signal::KILL);
    });
}
