//! How the processes that share a file tell each other of a hand-over: a datagram to the one that waits.
//!
//! Each process that waits has a socket of its own beside the file. Nothing depends on it: a waiter that is not told finds out by
//! the heartbeat of its place.

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
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tenure::store::Notice;
use tenure::store::record::{Change, Listeners};
use tenure::{Fence, Name, Owner};

/// The largest name and the largest owner that are told; for larger ones the heartbeat is left.
const LARGEST: usize = 16 * 1024;

/// Tells waiters, here and in other processes, and has this process told.
#[derive(Debug)]
pub(super) struct Wake {
    /// Where the sockets of all processes are.
    dir: PathBuf,
    listeners: Listeners,
    /// Made when somebody waits here for the first time.
    ear: Option<Ear>,
    /// To make it was tried, whatever came of it.
    tried: bool,
    /// From where others are told; made when there is somebody to tell.
    voice: Option<UnixDatagram>,
}

impl Wake {
    /// With the sockets of all processes in `dir`.
    pub(super) fn new(dir: PathBuf, listeners: Listeners) -> Self {
        Self { dir, listeners, ear: None, tried: false, voice: None }
    }

    pub(super) fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// By what others find this process. Empty where they cannot.
    pub(super) fn address(&self) -> &str {
        self.ear.as_ref().map_or("", |ear| &ear.name)
    }

    /// Opens this process's socket. Where that fails, a wait is slower, not wrong.
    pub(super) fn listen(&mut self) {
        if std::mem::replace(&mut self.tried, true) {
            return;
        }
        match Ear::open(&self.dir, self.listeners()) {
            Ok(ear) => {
                self.ear = Some(ear);
                self.clear();
            }
            Err(error) => tracing::debug!(dir = %self.dir.display(), %error, "no socket for hand-overs; waiters look often"),
        }
    }

    /// Tells those whom a call served, after it was committed.
    pub(super) fn tell<T>(&mut self, name: &Name, turn: &Change<T>) {
        self.listeners().tell(name, turn, |address, notice| self.send(address, name, &notice));
    }

    fn send(&mut self, address: &str, name: &Name, notice: &Notice) {
        let (true, Notice::Granted { owner, fence, handoff_ttl: claim }) = (is_address(address), notice) else { return };
        let text = format!("{}\n{}\n{owner}\n{name}", fence.counter(), claim.as_nanos());
        self.reach(address, |voice, to| voice.send_to(text.as_bytes(), to).map(drop));
    }

    /// Does something with the socket at an address, and removes it if nobody listens at it any more.
    fn reach(&mut self, address: &str, work: impl FnOnce(&UnixDatagram, &Path) -> io::Result<()>) {
        if self.voice.is_none() {
            self.voice = UnixDatagram::unbound().and_then(|voice| voice.set_nonblocking(true).map(|()| voice)).ok();
        }
        let Some(voice) = &self.voice else { return };
        let Ok(dir) = Dir::open(&self.dir) else { return };
        let to = dir.path.join(address);
        let is_dead = work(voice, &to).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        if is_dead && is_ours(&self.dir).is_ok() {
            let _ = fs::remove_file(to);
        }
    }

    /// Removes what killed processes have left.
    fn clear(&mut self) {
        let Ok(all) = fs::read_dir(&self.dir) else { return };
        for left in all.flatten() {
            if let Some(address) = left.file_name().to_str().filter(|address| is_address(address)) {
                self.reach(address, |voice, to| voice.connect(to));
            }
        }
        // It has a peer now.
        self.voice = None;
    }
}

/// Whether a text from the file is what this module wrote, and not a path to somewhere else.
fn is_address(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Fails where another user may put files, or links, in place of ours.
fn is_ours(dir: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if ours { Ok(()) } else { Err(io::Error::other("the directory is not this user's alone")) }
}

/// A directory, by a path that leaves room for the name of a socket: of a longer one than this a socket cannot be made.
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

/// This process's socket and the thread that reads it. Both go when it is dropped.
struct Ear {
    name: String,
    path: PathBuf,
    socket: Arc<UnixDatagram>,
    ended: Arc<AtomicBool>,
}

impl Ear {
    fn open(dir: &Path, listeners: Listeners) -> io::Result<Self> {
        let name = format!("{:016x}", fastrand::u64(..));
        let socket = Arc::new(bind(dir, &name)?);
        let ear = Self { path: dir.join(&name), name, socket, ended: Arc::default() };
        let (socket, ended) = (ear.socket.clone(), ear.ended.clone());
        let run = move || hear(&socket, &ended, &listeners);
        thread::Builder::new().name("tenure-wake".into()).stack_size(128 * 1024).spawn(run)?;
        Ok(ear)
    }
}

/// Makes the socket under another name first: whoever finds one at which nobody listens removes it.
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

fn hear(socket: &UnixDatagram, ended: &AtomicBool, listeners: &Listeners) {
    let mut letter = vec![0; LARGEST];
    loop {
        let received = socket.recv(&mut letter);
        if ended.load(Ordering::Acquire) {
            return;
        }
        let length = match received {
            Ok(length) => length,
            // A signal of the program we are part of.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let notice = letter.get(..length).and_then(|letter| std::str::from_utf8(letter).ok()).and_then(read);
        if let Some((name, owner, notice)) = notice {
            listeners.notify(&name, Some(&owner), &notice);
        }
    }
}

fn read(letter: &str) -> Option<(Name, Owner, Notice)> {
    let mut lines = letter.splitn(4, '\n');
    let fence = Fence::from_counter(lines.next()?.parse().ok()?)?;
    let claim = Duration::from_nanos(lines.next()?.parse().ok()?);
    let owner: Owner = lines.next()?.parse().ok()?;
    let name = Name::new(lines.next()?).ok()?;
    Some((name, owner.clone(), Notice::Granted { owner, fence, handoff_ttl: claim }))
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // It wakes the thread.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = fs::remove_file(&self.path);
        // Only the last one finds it empty.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

impl fmt::Debug for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ear").field(&self.path).finish()
    }
}
