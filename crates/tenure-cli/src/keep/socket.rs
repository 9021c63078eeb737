//! The sockets of a keeper, by which `tenure release` finds it, in a directory that only this user
//! can enter.
//!
//! An address without a file could be taken by any user before the keeper has it, or after it has
//! died. In this directory no other user can connect, so none can keep a keeper busy. No other user
//! can listen there either. Both sides check who the other is all the same.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use tenure::{Guard, Guards, Name, Owner, ReleaseOutcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::config::Settings;
use crate::store;

/// Timeout of each side of a conversation between a keeper and a client.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many callers are listened to at one socket at once; further ones wait until one of these has
/// spoken or is given up.
const CALLERS: usize = 16;
/// How often a keeper looks whether its socket is still there: the system removes it when the user
/// logs out.
const LOOK: Duration = Duration::from_secs(2);
/// The pause after a caller could not be let in, for want of descriptors, say.
const BREATH: Duration = Duration::from_millis(100);
/// The length of an address.
const DIGITS: usize = 32;
/// Age from which a socket is removed at which nobody listens. A younger one may be about to
/// listen.
const STALE: Duration = Duration::from_secs(60);

/// The open sockets of a keeper, one for each name.
#[derive(Debug)]
pub(super) struct Sockets {
    requests: mpsc::Receiver<(Name, UnixStream)>,
    paths: Vec<Arc<Mutex<PathBuf>>>,
    /// Who listens at them; ends with us.
    tasks: JoinSet<()>,
    /// The sockets that could not be opened, and why.
    failed: Vec<(Name, String)>,
}

impl Sockets {
    pub(super) async fn open(guards: &Guards, settings: &Settings) -> Self {
        let (clients, requests) = mpsc::channel(1);
        let mut sockets = Self { requests, paths: Vec::new(), tasks: JoinSet::new(), failed: Vec::new() };
        for (name, token) in guards.iter().map(|guard| (guard.name(), guard.token())) {
            let address = address(name, token, settings);
            match listen(&address).await {
                Ok((path, listener)) => {
                    let path = Arc::new(Mutex::new(path));
                    sockets.paths.push(Arc::clone(&path));
                    let mut socket = Socket { listener, address, path };
                    let (name, token, clients) = (name.clone(), token.clone(), clients.clone());
                    sockets.tasks.spawn(async move { socket.serve(name, token, clients).await });
                }
                Err(why) => sockets.failed.push((name.clone(), why)),
            }
        }
        sockets
    }

    /// The names whose keeper nobody can reach, and why.
    pub(super) fn failed(&self) -> &[(Name, String)] {
        &self.failed
    }

    /// The next one who comes with a token, and the name that it is for.
    pub(super) async fn client(&mut self) -> (Name, UnixStream) {
        match self.requests.recv().await {
            Some(client) => client,
            // There is no socket.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = fs::remove_file(&*path.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// A socket, and where it is.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    address: String,
    path: Arc<Mutex<PathBuf>>,
}

impl Socket {
    /// Listens to many callers at once: one who says nothing must not hold up another.
    async fn serve(&mut self, name: Name, token: Owner, clients: mpsc::Sender<(Name, UnixStream)>) {
        let expected = format!("{token}\n").into_bytes();
        let mut callers = FuturesUnordered::new();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if callers.len() < CALLERS => match accepted {
                    Ok((caller, _)) if is_us(&caller) => callers.push(heard(caller, &expected)),
                    Ok(_) => {}
                    Err(_) => sleep(BREATH).await,
                },
                Some(caller) = callers.next() => if let Some(client) = caller {
                    let _ = clients.send((name.clone(), client)).await;
                },
                _ = look.tick() => self.mend().await,
            }
        }
    }

    /// Makes the socket anew if it was removed. If that fails, it is tried again after the next
    /// interval.
    async fn mend(&mut self) {
        let is_gone = {
            let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
            fs::symlink_metadata(&*path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        if is_gone && let Ok((path, listener)) = listen(&self.address).await {
            *self.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
            self.listener = listener;
        }
    }
}

/// The caller, once it has said the token.
async fn heard(mut caller: UnixStream, expected: &[u8]) -> Option<UnixStream> {
    let mut said = vec![0; expected.len()];
    let read = timeout(PATIENCE, caller.read_exact(&mut said)).await;
    (matches!(read, Ok(Ok(_))) && said == expected).then_some(caller)
}

/// Releases for a client and tells it how that went.
pub(super) async fn release_for(guard: Guard, mut client: UnixStream) {
    let answer: &[u8] = match guard.release().await {
        Ok(ReleaseOutcome::Released) => b"released\n",
        Ok(ReleaseOutcome::WasLost) => b"lost\n",
        // The client asks the store itself.
        _ => b"unknown\n",
    };
    let _ = timeout(PATIENCE, client.write_all(answer)).await;
}

/// Result of asking the keeper of a lease.
#[derive(Debug)]
pub(crate) enum Asked {
    /// There is none.
    Nobody,
    /// It has released the lease, or found it gone.
    Answered(ReleaseOutcome),
    /// The keeper was not asked; the text says why.
    Unheard(String),
    /// It has the token. Whether it has released the lease is unknown, for this reason.
    Unknown(&'static str),
}

/// Asks the process that keeps the lease to release it.
///
/// Sends the token only to a process of this user: with the token a process can release the lease,
/// and this command trusts the answer.
pub(crate) async fn ask_release(name: &Name, token: &Owner, settings: &Settings) -> Asked {
    let address = address(name, token, settings);
    let mut unheard = None;
    for directory in directories() {
        let path = directory.join(&address);
        if fs::symlink_metadata(&path).is_err() {
            continue;
        }
        let asked = match check(&directory) {
            Ok(()) => ask(&path, token).await,
            Err(why) => Asked::Unheard(why),
        };
        match asked {
            Asked::Nobody => {}
            Asked::Answered(_) | Asked::Unknown(_) => return asked,
            Asked::Unheard(why) => unheard = Some(why),
        }
    }
    unheard.map_or(Asked::Nobody, Asked::Unheard)
}

async fn ask(path: &Path, token: &Owner) -> Asked {
    let connected = timeout(PATIENCE, UnixStream::connect(path)).await;
    let mut keeper = match connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
        Ok(keeper) => keeper,
        Err(error) if is_deserted(&error) => return Asked::Nobody,
        Err(error) => return Asked::Unheard(format!("its socket {} cannot be used, {error}", path.display())),
    };
    if !is_us(&keeper) {
        return Asked::Unheard(format!("another user listens at {}", path.display()));
    }
    let spoken = format!("{token}\n");
    if !matches!(timeout(PATIENCE, keeper.write_all(spoken.as_bytes())).await, Ok(Ok(()))) {
        return Asked::Unheard("it does not listen".into());
    }
    // From here on it may release, whether we hear of it or not.
    let mut answer = String::new();
    let heard = timeout(PATIENCE, keeper.read_to_string(&mut answer)).await;
    match (heard, answer.as_str()) {
        (Ok(Ok(_)), "released\n") => Asked::Answered(ReleaseOutcome::Released),
        (Ok(Ok(_)), "lost\n") => Asked::Answered(ReleaseOutcome::WasLost),
        (Ok(Ok(_)), "unknown\n") => Asked::Unknown("its keeper has heard no outcome from the store"),
        _ => Asked::Unknown("its keeper gives no answer"),
    }
}

/// Directories that may hold the sockets of our keepers, and nothing else. A keeper uses the first
/// that it can. A release searches all: its environment may differ from that of the acquisition.
fn directories() -> Vec<PathBuf> {
    let us = geteuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let parents = given.into_iter().chain([format!("/run/user/{us}").into()]);
    let parents = parents.map(|parent| parent.join("tenure-keepers"));
    let mut directories: Vec<_> = parents.chain([format!("/tmp/tenure-keepers-{us}").into()]).collect();
    directories.dedup();
    directories
}

/// Whether a directory is ours, and nobody else can enter it.
fn check(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let found = fs::symlink_metadata(directory).map_err(|error| format!("the directory {shown} cannot be used, {error}"))?;
    if !found.is_dir() {
        return Err(format!("{shown} is no directory"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(format!("the directory {shown} is another user's"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("the directory {shown} is open to other users"));
    }
    Ok(())
}

/// Makes a socket in the first directory that can be used.
async fn listen(address: &str) -> Result<(PathBuf, UnixListener), String> {
    let mut unusable = Vec::new();
    for directory in directories() {
        match enter(&directory, address).await {
            Ok(opened) => return Ok(opened),
            Err(why) => unusable.push(why),
        }
    }
    Err(unusable.join("; "))
}

async fn enter(directory: &Path, address: &str) -> Result<(PathBuf, UnixListener), String> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("the directory {} cannot be made, {error}", directory.display())),
    }
    check(directory)?;
    sweep(directory).await;
    let path = directory.join(address);
    let listener = match UnixListener::bind(&path) {
        // Left by a keeper that was killed, of a token that was given.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(&path).await => {
            fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
        }
        bound => bound,
    };
    match listener {
        Ok(listener) => Ok((path, listener)),
        Err(error) => Err(format!("the socket {} cannot be made, {error}", path.display())),
    }
}

/// Removes what keepers left that were killed.
async fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).map(|made| SystemTime::now().duration_since(made));
        if matches!(age, Ok(Ok(age)) if age > STALE) && is_left(&entry.path()).await {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether this is a socket of a keeper of ours at which nobody listens any more. Does not wait for
/// one who does.
///
/// Another kind of file refuses a connection as well, and may be anything: it is never ours to
/// remove.
async fn is_left(path: &Path) -> bool {
    let has_our_shape = |name: &OsStr| name.len() == DIGITS && name.as_bytes().iter().all(u8::is_ascii_hexdigit);
    let is_our_socket = |found: fs::Metadata| found.file_type().is_socket() && found.uid() == geteuid().as_raw();
    path.file_name().is_some_and(has_our_shape)
        && fs::symlink_metadata(path).is_ok_and(is_our_socket)
        && UnixStream::connect(path).await.is_err_and(|error| is_deserted(&error))
}

fn is_deserted(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

/// An address that only those can tell who know the token.
fn address(name: &Name, token: &Owner, settings: &Settings) -> String {
    let mut digest = Sha256::new();
    digest.update(name.as_str());
    digest.update([0]);
    digest.update(token.as_bytes());
    if !token.is_generated() {
        // A given token may be in use in another store as well.
        digest.update([0]);
        digest.update(store::identity(settings).as_encoded_bytes());
    }
    let digest = digest.finalize();
    let half = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
    format!("{half:0DIGITS$x}")
}

/// Whether the other end is a process of this very user. Not root's either: a root in another
/// user's place must not be asked by chance.
fn is_us(peer: &UnixStream) -> bool {
    peer.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}
