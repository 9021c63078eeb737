//! `tenure acquire --watch-pid`: a process in the background that keeps the lease for as long as another process lives.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::os::unix::process::parent_id;
use std::pin::pin;
use std::process::{Child, Stdio};
use std::time::Duration;

use futures_util::future::select_all;
use rustix::process::{
    Pid, PidfdFlags, Signal, geteuid, kill_process, pidfd_open, pidfd_send_signal, set_parent_process_death_signal, setsid,
    test_kill_process,
};
use sha2::{Digest, Sha256};
use tenure::{Guard, Guards, Loss, Name, Owner, Release, Released};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::args::{Acquire, Cli, OnLost};
use crate::config::Settings;
use crate::exit::{CANNOT_RUN, Failure, LOST, USAGE, by_signal, say_aside};
use crate::run::no_signals;
use crate::show::print;
use crate::signals::Signals;
use crate::take::{Plan, variables};
use crate::{acquire, block_on, child, store};

/// What stands in front of a keeper's arguments.
pub(crate) const WORD: &str = "__keep";
/// How long the keeper and those who ask it wait for each other.
const PATIENCE: Duration = Duration::from_secs(3);
/// What the starter answers when it has passed the lease on.
const HANDED_OVER: u8 = b'\n';

/// Starts the keeper and prints what it took.
pub(crate) fn start(pid: i32, args: &Acquire) -> Result<u8, Failure> {
    watched(pid, args.on_lost)?;
    // The keeper reads the same flags again.
    let flags = std::env::args_os().skip(2);
    let mut keeper = child::command();
    keeper.arg(WORD).arg(std::process::id().to_string()).args(flags).stdin(Stdio::piped()).stdout(Stdio::piped());
    // The keeper dies with the thread that starts it until it has the lock, so it is started from the main thread.
    let keeper =
        keeper.spawn().map_err(|e| Failure::new(CANNOT_RUN, format!("the keeper cannot be started, {e}; nothing is held")))?;
    block_on(relay(keeper))
}

/// The process to watch.
fn watched(pid: i32, on_lost: OnLost) -> Result<OwnedFd, Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::usage(format!("--watch-pid {pid} cannot be watched, {why}; use e.g. $$"));
    let id = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(|| bad(&"process ids are positive"))?;
    let process = pidfd_open(id, PidfdFlags::NONBLOCK).map_err(|e| match e {
        rustix::io::Errno::SRCH => bad(&"there is no such process"),
        other => bad(&other),
    })?;
    if on_lost == OnLost::Term && test_kill_process(id).is_err() {
        return Err(bad(&"it is another user's, so it could not be told of a loss (see --on-lost)"));
    }
    Ok(process)
}

/// The process as something to wait for.
#[expect(deprecated, reason = "the replacement is unsafe, because of other types: an `OwnedFd` keeps its descriptor open")]
fn pollable(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(process, Interest::READABLE)
}

/// Waits for what the keeper prints and passes it on.
async fn relay(mut keeper: Child) -> Result<u8, Failure> {
    let mut signals = Signals::passed_on().map_err(|e| no_signals(&e))?;
    let pipe = keeper.stdout.take().map(OwnedFd::from);
    let pipe = pipe.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe)).and_then(pipe::Receiver::from_owned_fd);
    let mut pipe =
        pipe.map_err(|e| stop(&mut keeper, Failure::new(CANNOT_RUN, format!("the keeper cannot be heard, {e}; try again"))))?;
    let mut lease = String::new();
    tokio::select! {
        biased;
        signal = signals.next() => return Err(stop(&mut keeper, Failure::signalled(signal.as_raw()))),
        _ = pipe.read_to_string(&mut lease) => {}
    }
    if lease.is_empty() {
        return Err(ended(&mut keeper));
    }
    print(&lease).map_err(|failure| stop(&mut keeper, failure))?;
    // From here on the lease stands: whoever asked for it has it.
    match keeper.stdin.take().map(|mut keeper| keeper.write_all(&[HANDED_OVER])) {
        Some(Ok(())) => Ok(0),
        _ => Err(ended(&mut keeper)),
    }
}

/// The failure of a keeper that has ended, and has said why.
fn ended(keeper: &mut Child) -> Failure {
    let code = keeper.wait().ok().and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    Failure::told(code.unwrap_or(CANNOT_RUN))
}

/// Has the keeper give up what it took.
fn stop(keeper: &mut Child, failure: Failure) -> Failure {
    if let Some(pid) = i32::try_from(keeper.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
        let _ = keeper.wait();
    }
    failure
}

/// The keeper itself.
pub(crate) fn main(cli: Cli, starter: Option<&OsStr>) -> Result<u8, Failure> {
    let crate::args::Command::Acquire(args) = cli.command else {
        return Err(Failure::new(USAGE, "__keep is for tenure itself; use `tenure acquire --watch-pid`"));
    };
    // A session of its own: neither the keys nor the end of the terminal reach it. Until it has the lock it ends with its starter.
    let _ = setsid();
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    if starter != Some(parent_id().to_string().as_ref()) {
        return Err(Failure::told(by_signal(Signal::TERM.as_raw())));
    }
    // Reads the password before its descriptor, which a shell may have opened for us, is closed.
    let settings = Settings::load(&args.common)?;
    close_inherited();
    block_on(keep(&args, &settings))
}

async fn keep(args: &Acquire, settings: &Settings) -> Result<u8, Failure> {
    let process = watched(args.watch_pid.unwrap_or_default(), args.on_lost)?;
    let process = pollable(process).map_err(|e| no_signals(&e))?;
    let starter = starter().map_err(|e| no_signals(&e))?;
    let plan = Plan::guarded(&args.name, &args.taking, settings)?;
    let mut signals = Signals::passed_on().map_err(|e| no_signals(&e))?;
    let (locker, mut guards) = tokio::select! {
        biased;
        _ = process.readable() => return Err(Failure::usage("the process to watch has ended; nothing is held")),
        taken = plan.take(&mut signals) => taken?,
    };
    let doors: Vec<Door> = guards.iter().filter_map(|guard| Door::open(guard, settings)).collect();
    if let Err(failure) = print(&acquire::text(args.output, &variables(&guards), plan.ttl)) {
        drop(guards.release().await);
        return Err(failure);
    }
    // The end of our stdout tells the starter that this is all; its own end is now that of the pipe it answers through.
    let _ = set_parent_process_death_signal(None);
    detach(Stream::Out);
    let end = match handed_over(&guards, starter, &mut signals).await {
        End::HandedOver => {
            settle(args.on_lost);
            watch(&mut guards, &process, &doors, &mut signals, args.on_lost).await
        }
        end => end,
    };
    let code = match end {
        End::Lost(name, loss) => {
            tell_loss(&name, loss, &process, args.on_lost).await;
            // It stops its work now; what is left of the lease covers that, and must not be given up under it.
            let _ = timeout(guards.lease_remaining(), process.readable()).await;
            LOST
        }
        End::GivenUp => by_signal(Signal::TERM.as_raw()),
        End::HandedOver | End::Done => 0,
    };
    drop(guards.release().await);
    let _ = timeout(PATIENCE, locker.settled()).await;
    Ok(code)
}

/// How far the keeper has come.
#[derive(Debug)]
enum End {
    /// The starter has passed the lease on.
    HandedOver,
    /// The starter is gone, or wants nothing any more.
    GivenUp,
    /// The watched process has ended, or everything was released.
    Done,
    /// A tenure ended first.
    Lost(Name, Loss),
}

/// Waits until the starter has passed the lease on. A starter that dies before has passed on nothing that anyone believes.
async fn handed_over(guards: &Guards, mut starter: pipe::Receiver, signals: &mut Signals) -> End {
    tokio::select! {
        biased;
        (name, loss) = guards.lost() => End::Lost(name, loss),
        answer = starter.read_u8() => if answer.is_ok() { End::HandedOver } else { End::GivenUp },
        _ = signals.next() => End::GivenUp,
    }
}

/// Keeps what is held for as long as the process lives, but for what is released meanwhile.
async fn watch(guards: &mut Guards, process: &AsyncFd<OwnedFd>, doors: &[Door], signals: &mut Signals, on_lost: OnLost) -> End {
    while guards.iter().next().is_some() {
        let (visited, visitor) = {
            let mut ended = pin!(guards.lost());
            let mut visitor = pin!(visitor(doors));
            loop {
                tokio::select! {
                    biased;
                    (name, loss) = &mut ended => return End::Lost(name, loss),
                    _ = process.readable() => return End::Done,
                    visitor = &mut visitor => break visitor,
                    // Whoever ends us ends the protection, so the work has to end first; we stay until it has.
                    signal = signals.next() => if signal != Signal::USR1 && signal != Signal::USR2 {
                        tell(process, on_lost);
                    },
                }
            }
        };
        if let Some(guard) = guards.take(visited) {
            release_for(guard, visitor).await;
        }
    }
    End::Done
}

/// Has the watched process stop its work.
fn tell(process: &AsyncFd<OwnedFd>, on_lost: OnLost) {
    if on_lost == OnLost::Term {
        let _ = pidfd_send_signal(process, Signal::TERM);
    }
}

/// Tells of a loss: first who works, then who reads, which may be a terminal that stands still.
async fn tell_loss(name: &Name, loss: Loss, process: &AsyncFd<OwnedFd>, on_lost: OnLost) {
    tell(process, on_lost);
    say_aside(format!("the lock {name:?} is lost: {loss}")).finish().await;
}

/// What the starter answers through.
fn starter() -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)
}

/// Closes whatever else the caller had open: a lock of `flock`, say, or a pipe whose reader waits for its end.
fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect();
    for inherited in open {
        // Nothing of ours is open yet. The one that listed them is closed by now and no longer there.
        let _ = nix::unistd::close(inherited);
    }
}

/// Lets go of what is the caller's: its streams, so that whoever reads them sees their end, and its directory.
fn settle(on_lost: OnLost) {
    detach(Stream::In);
    if on_lost == OnLost::Term && !io::stderr().is_terminal() {
        detach(Stream::Err);
    }
    let _ = rustix::process::chdir("/");
}

/// A standard stream.
#[derive(Clone, Copy, Debug)]
enum Stream {
    In,
    Out,
    Err,
}

fn detach(stream: Stream) {
    let Ok(nowhere) = std::fs::File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = match stream {
        Stream::In => rustix::stdio::dup2_stdin(&nowhere),
        Stream::Out => rustix::stdio::dup2_stdout(&nowhere),
        Stream::Err => rustix::stdio::dup2_stderr(&nowhere),
    };
}

/// Where `tenure release` finds the keeper of one name.
#[derive(Debug)]
struct Door {
    name: Name,
    token: Owner,
    listener: UnixListener,
}

impl Door {
    fn open(guard: &Guard, settings: &Settings) -> Option<Self> {
        let (name, token) = (guard.name(), guard.token());
        let listener = StdListener::bind_addr(&address(&name, &token, settings).ok()?).ok()?;
        listener.set_nonblocking(true).ok()?;
        Some(Self { name, token, listener: UnixListener::from_std(listener).ok()? })
    }

    /// The next one who comes with the token.
    async fn visitor(&self) -> UnixStream {
        let expected = format!("{}\n", self.token);
        loop {
            let Ok((mut visitor, _)) = self.listener.accept().await else {
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            let mut said = vec![0; expected.len()];
            let read = timeout(PATIENCE, visitor.read_exact(&mut said)).await;
            if matches!(read, Ok(Ok(_))) && said == expected.as_bytes() && is_ours(visitor.peer_cred().map(|peer| peer.uid())) {
                return visitor;
            }
        }
    }
}

/// The next one who comes with a token, and the name that it is for.
async fn visitor(doors: &[Door]) -> (&Name, UnixStream) {
    if doors.is_empty() {
        return std::future::pending().await;
    }
    select_all(doors.iter().map(|door| Box::pin(async move { (&door.name, door.visitor().await) }))).await.0
}

/// An address that only those can tell who know the token.
fn address(name: &Name, token: &Owner, settings: &Settings) -> io::Result<SocketAddr> {
    let mut digest = Sha256::new();
    digest.update(name.as_str());
    digest.update([0]);
    digest.update(token.as_bytes());
    if !token.is_ours() {
        // A given token may be in use in another store as well.
        digest.update([0]);
        digest.update(store::identity(settings).as_bytes());
    }
    let digest = digest.finalize();
    let half = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
    SocketAddr::from_abstract_name(format!("tenure/{half:032x}"))
}

/// Releases for a visitor and tells it how that went.
async fn release_for(guard: Guard, mut visitor: UnixStream) {
    let answer: &[u8] = match guard.release().await {
        Ok(Release::Released) => b"released\n",
        Ok(Release::WasLost) => b"lost\n",
        // The visitor sees no answer and asks the store itself.
        _ => b"",
    };
    let _ = timeout(PATIENCE, visitor.write_all(answer)).await;
}

/// Asks the process that keeps the lease to release it; `None` where there is none.
pub(crate) fn ask_release(name: &Name, token: &Owner, settings: &Settings) -> Option<Released> {
    let mut keeper = StdStream::connect_addr(&address(name, token, settings).ok()?).ok()?;
    let peer = rustix_peer(&keeper);
    if !is_ours(peer) {
        return None;
    }
    keeper.set_read_timeout(Some(PATIENCE)).ok()?;
    keeper.set_write_timeout(Some(PATIENCE)).ok()?;
    keeper.write_all(format!("{token}\n").as_bytes()).ok()?;
    let mut answer = String::new();
    keeper.read_to_string(&mut answer).ok()?;
    match answer.as_str() {
        "released\n" => Some(Released::Released),
        "lost\n" => Some(Released::NotHeld),
        _ => None,
    }
}

fn rustix_peer(stream: &StdStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

/// Whether the other end is us or root, or we are root.
fn is_ours(peer: io::Result<u32>) -> bool {
    let us = geteuid().as_raw();
    peer.is_ok_and(|peer| peer == us || peer == 0 || us == 0)
}
