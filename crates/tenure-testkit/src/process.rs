//! Processes under test: signals, guards that leave nothing behind, and bounded waiting.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::guardian;

/// The signals that tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Hang up.
    Hup,
    /// Interrupt, as ^C.
    Int,
    /// Quit, as ^\.
    Quit,
    /// Die at once; cannot be caught.
    Kill,
    /// First user signal.
    Usr1,
    /// Second user signal.
    Usr2,
    /// Please end.
    Term,
    /// Go on after a stop.
    Cont,
    /// Freeze; cannot be caught.
    Stop,
}

impl From<Signal> for rustix::process::Signal {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Hup => Self::HUP,
            Signal::Int => Self::INT,
            Signal::Quit => Self::QUIT,
            Signal::Kill => Self::KILL,
            Signal::Usr1 => Self::USR1,
            Signal::Usr2 => Self::USR2,
            Signal::Term => Self::TERM,
            Signal::Cont => Self::CONT,
            Signal::Stop => Self::STOP,
        }
    }
}

/// Sends `signal` to the one process `pid`.
///
/// After `Stop` it returns once the process is frozen (or gone), after `Cont` once it is not.
pub fn signal(pid: u32, signal: Signal) -> std::io::Result<()> {
    let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid_of_process = raw.ok_or(std::io::ErrorKind::InvalidInput)?;
    rustix::process::kill_process(pid_of_process, signal.into())?;
    // The kernel delivers these two in its own time; a test that goes on at once would race with it.
    match signal {
        Signal::Stop => wait_until(SETTLE, "the process to stop", || is_stopped(pid) || !is_alive(pid)),
        Signal::Cont => wait_until(SETTLE, "the process to go on", || state(pid) != Some('T')),
        _ => {}
    }
    Ok(())
}

const SETTLE: Duration = Duration::from_secs(10);

/// True while `pid` runs or is stopped; false for a zombie and for a process that is gone (Linux: reads `/proc`).
pub fn is_alive(pid: u32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// True while `pid` is stopped by a signal, with all of its threads: they stop one after another.
pub fn is_stopped(pid: u32) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().peekable();
    threads.peek().is_some() && threads.all(|thread| state_at(&thread.path()).is_none_or(|state| matches!(state, 'T' | 't')))
}

/// The processes that `parent` has started, and that are there.
pub fn children(parent: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The state letter of a process, none when there is no such process.
fn state(pid: u32) -> Option<char> {
    state_at(Path::new(&format!("/proc/{pid}")))
}

/// The state letter of a process or thread, in its directory of `/proc`.
fn state_at(of: &Path) -> Option<char> {
    let stat = fs::read(of.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The command name stands in parentheses and may itself hold any of them.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A child that is killed and reaped when this is dropped, and killed when this process is.
#[derive(Debug)]
pub struct Spawned(Child);

impl Spawned {
    /// Takes over a running child.
    pub fn new(child: Child) -> Self {
        guardian::keep(child.id());
        Self(child)
    }

    /// Starts `command` under a guard.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        command.spawn().map(Self::new)
    }

    /// Runs `command` to its end and collects what it says, as [`Command::output`] does.
    pub fn output(command: &mut Command) -> std::io::Result<Output> {
        Self::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
    }

    /// Waits for its end and collects what it says, as [`Child::wait_with_output`] does.
    pub fn wait_with_output(mut self) -> std::io::Result<Output> {
        drop(self.stdin.take());
        let (mut out, mut err) = (self.stdout.take(), self.stderr.take());
        let (stdout, stderr) = std::thread::scope(|scope| {
            let stderr = scope.spawn(|| all_of(err.as_mut()));
            (all_of(out.as_mut()), stderr.join().expect("a thread that reads"))
        });
        Ok(Output { status: self.wait()?, stdout: stdout?, stderr: stderr? })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Sends `signal` to the child; an error once it was reaped.
    pub fn signal(&mut self, signal: Signal) -> std::io::Result<()> {
        // A reaped child's number may belong to somebody else by now.
        match self.0.try_wait()? {
            None => self::signal(self.pid(), signal),
            Some(_) => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Kills the child and reaps it, also when it is stopped or has already ended.
    pub fn kill(&mut self) -> ExitStatus {
        let _ = self.0.kill();
        self.0.wait().expect("a child of ours can be reaped")
    }

    /// Waits for the child to end by itself; panics after `timeout`.
    pub fn wait_exit(&mut self, timeout: Duration) -> ExitStatus {
        let mut status = None;
        wait_until(timeout, "the child to end", || {
            status = self.0.try_wait().expect("a child of ours can be waited for");
            status.is_some()
        });
        status.expect("just seen")
    }
}

fn all_of(stream: Option<&mut impl Read>) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.map_or(Ok(0), |stream| stream.read_to_end(&mut all))?;
    Ok(all)
}

impl Deref for Spawned {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Spawned {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        guardian::forget(self.0.id());
    }
}

/// Polls `condition` every 2 ms until it holds; panics with `what` after `timeout`. Blocks the calling thread.
#[track_caller]
pub fn wait_until(timeout: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A name that begins with `what`, and that nobody else has: no other caller, and no other process.
pub(crate) fn fresh(what: &str) -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}_{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// A loopback port nobody listens on now. This process gets it once.
///
/// It lies below the range from which systems number outgoing connections, so none of those can take it while a
/// server that owns it is down. Another process may still pick it, so a caller must be ready to ask again.
pub fn free_port() -> u16 {
    // A server may listen only seconds after this, and others start meanwhile.
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    const FIRST: u16 = 12_000;
    const COUNT: u64 = 20_000;
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let random = || u16::try_from(RandomState::new().build_hasher().finish() % COUNT).expect("COUNT fits");
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let port = (0..1000).map(|_| FIRST + random()).find(|port| !given.contains(port) && free(port));
    let port = port.expect("one of a thousand ports is free");
    given.insert(port);
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_alive_and_a_zombie_is_not() {
        let mut child = Spawned::spawn(Command::new("sleep").arg("60")).unwrap();
        let pid = child.pid();
        assert!(!is_stopped(pid));
        child.signal(Signal::Stop).unwrap();
        assert!(is_stopped(pid) && is_alive(pid));
        child.signal(Signal::Cont).unwrap();
        assert!(!is_stopped(pid));
        signal(pid, Signal::Kill).unwrap();
        wait_until(SETTLE, "the zombie", || state(pid) == Some('Z'));
        assert!(!is_alive(pid));
    }

    #[test]
    #[should_panic(expected = "waited 10ms in vain for the moon")]
    fn waiting_in_vain_names_what_was_waited_for() {
        wait_until(Duration::from_millis(10), "the moon", || false);
    }
}
