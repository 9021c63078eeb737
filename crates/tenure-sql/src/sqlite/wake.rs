//! Notifies waiters in other processes of a hand-over, by a datagram.
//!
//! Each process that waits has a socket of its own beside the file. Nothing depends on it: a waiter
//! that is not notified finds out by the heartbeat of its queue entry.

use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Mode, OFlags};
use tenure::Name;
use tenure::store::Notice;
use tenure::store::record::{Change, Listeners};

use crate::handover;

/// The largest name and owner token in a datagram. With larger ones, the waiter has its heartbeat.
const LARGEST: usize = 16 * 1024;

/// Notifies waiters, here and in other processes, and receives for this process.
#[derive(Debug)]
pub(super) struct Wake {
    /// Directory of the sockets of all processes.
    dir: PathBuf,
    listeners: Listeners,
    /// This process's socket. Created when somebody waits here for the first time.
    own: Option<WakeSocket>,
    /// Whether it was tried to create it.
    tried: bool,
    /// Socket for sending. Created when there is somebody to notify.
    sender: Option<UnixDatagram>,
}

impl Wake {
    /// With the sockets of all processes in `dir`.
    pub(super) fn new(dir: PathBuf, listeners: Listeners) -> Self {
        Self { dir, listeners, own: None, tried: false, sender: None }
    }

    pub(super) fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// Address of this process for others. Empty if there is none.
    pub(super) fn address(&self) -> &str {
        self.own.as_ref().map_or("", |own| &own.name)
    }

    /// Opens this process's socket. If that fails, a wait is slower, not wrong.
    pub(super) fn listen(&mut self) {
        if std::mem::replace(&mut self.tried, true) {
            return;
        }
        match WakeSocket::open(&self.dir, self.listeners()) {
            Ok(own) => {
                self.own = Some(own);
                self.clear();
            }
            Err(error) => tracing::debug!(dir = %self.dir.display(), %error, "no socket for hand-overs; waiters look often"),
        }
    }

    /// Notifies those whom a call served, after it was committed.
    pub(super) fn notify<T>(&mut self, name: &Name, change: &Change<T>) {
        self.listeners().publish(name, change, |address, notice| self.send(address, name, &notice));
    }

    fn send(&mut self, address: &str, name: &Name, notice: &Notice) {
        let (true, Notice::Granted { owner, fence, handoff_ttl }) = (is_address(address), notice) else { return };
        let text = handover::write(name, owner, *fence, *handoff_ttl);
        self.reach(address, |sender, to| sender.send_to(text.as_bytes(), to).map(drop));
    }

    /// Uses the socket at an address, and removes it if nobody listens at it any more.
    fn reach(&mut self, address: &str, work: impl FnOnce(&UnixDatagram, &Path) -> io::Result<()>) {
        if self.sender.is_none() {
            self.sender = UnixDatagram::unbound().and_then(|sender| sender.set_nonblocking(true).map(|()| sender)).ok();
        }
        let Some(sender) = &self.sender else { return };
        let Ok(dir) = Dir::open(&self.dir) else { return };
        let to = dir.path.join(address);
        let is_dead = work(sender, &to).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        if is_dead && is_ours(&self.dir).is_ok() {
            let _ = fs::remove_file(to);
        }
    }

    /// Removes the sockets of killed processes.
    fn clear(&mut self) {
        let Ok(all) = fs::read_dir(&self.dir) else { return };
        for left in all.flatten() {
            if let Some(address) = left.file_name().to_str().filter(|address| is_address(address)) {
                self.reach(address, |sender, to| sender.connect(to));
            }
        }
        // It is connected now.
        self.sender = None;
    }
}

/// Whether a text from the file is an address that this module wrote, and not a path to somewhere
/// else.
fn is_address(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Fails if another user may put files or links in place of ours.
fn is_ours(dir: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if ours { Ok(()) } else { Err(io::Error::other("the directory is not this user's alone")) }
}

/// A directory, by a path that leaves room for the name of a socket: the system limits the length.
struct Dir {
    path: PathBuf,
    /// Keeps a path of its own number alive.
    _fd: Option<OwnedFd>,
}

impl Dir {
    const ROOM: usize = 80;

    fn open(dir: &Path) -> io::Result<Self> {
        if cfg!(not(target_os = "linux")) || dir.as_os_str().len() <= Self::ROOM {
            return Ok(Self { path: dir.to_owned(), _fd: None });
        }
        let fd = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path: format!("/proc/self/fd/{}", fd.as_raw_fd()).into(), _fd: Some(fd) })
    }
}

/// This process's socket, and the thread that reads it. Dropping it ends both.
struct WakeSocket {
    name: String,
    path: PathBuf,
    socket: Arc<UnixDatagram>,
    ended: Arc<AtomicBool>,
}

impl WakeSocket {
    fn open(dir: &Path, listeners: Listeners) -> io::Result<Self> {
        let name = format!("{:016x}", fastrand::u64(..));
        let socket = Arc::new(bind(dir, &name)?);
        let own = Self { path: dir.join(&name), name, socket, ended: Arc::default() };
        let (socket, ended) = (own.socket.clone(), own.ended.clone());
        let run = move || receive(&socket, &ended, &listeners);
        thread::Builder::new().name("tenure-wake".into()).stack_size(128 * 1024).spawn(run)?;
        Ok(own)
    }
}

/// Creates the socket under another name first: other processes remove one at which nobody listens.
fn bind(dir: &Path, name: &str) -> io::Result<UnixDatagram> {
    let made = || {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        is_ours(dir)?;
        let dir = Dir::open(dir)?;
        UnixDatagram::bind(dir.path.join(format!(".{name}")))
    };
    // The last process that left may have removed the directory in between.
    let socket = made().or_else(|error| if error.kind() == ErrorKind::NotFound { made() } else { Err(error) })?;
    let fresh = dir.join(format!(".{name}"));
    let settled = fs::set_permissions(&fresh, Permissions::from_mode(0o600)).and_then(|()| fs::rename(&fresh, dir.join(name)));
    if settled.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    settled.map(|()| socket)
}

fn receive(socket: &UnixDatagram, ended: &AtomicBool, listeners: &Listeners) {
    let mut datagram = vec![0; LARGEST];
    loop {
        let received = socket.recv(&mut datagram);
        if ended.load(Ordering::Acquire) {
            return;
        }
        let length = match received {
            Ok(length) => length,
            // A signal of the program we are part of.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let notice = datagram.get(..length).and_then(|datagram| std::str::from_utf8(datagram).ok()).and_then(handover::read);
        if let Some((name, owner, notice)) = notice {
            listeners.notify(&name, Some(&owner), &notice);
        }
    }
}

impl Drop for WakeSocket {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // It wakes the thread.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = fs::remove_file(&self.path);
        // Only the last process finds it empty.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

impl fmt::Debug for WakeSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WakeSocket").field(&self.path).finish()
    }
}
