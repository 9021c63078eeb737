//! `tenure acquire --watch-pid`: a process in the background that keeps the lease for as long as
//! another process lives.

mod handover;
mod socket;

use std::env::{ArgsOs, args_os};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::parent_id;
use std::pin::pin;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, set_parent_process_death_signal, setsid,
    test_kill_process,
};
use tenure::{EndReason, Guards, Name};
use tokio::io::AsyncReadExt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::time::timeout;

pub(crate) use self::socket::{Asked, ask_release};
use self::socket::{Sockets, release_for};
use crate::args::{Acquire, Cli, Command, OnLost};
use crate::command_line::parse;
use crate::config::{Handed, Settings};
use crate::event_loop::block_on;
use crate::exit::{CANNOT_RUN, Failure, LOST, USAGE, by_signal, say, say_aside};
use crate::give_up::{give_up, left_taken};
use crate::loss::why_lost;
use crate::myself;
use crate::output::deliver;
use crate::signals::{Signals, unheard_before};
use crate::take::Plan;
use crate::variables::{text, variables};

/// First argument of a keeper.
pub(crate) const WORD: &str = "__keep";
/// Answer of the starter when it has passed the lease on.
const HANDED_OVER: u8 = b'\n';

/// Starts the keeper and prints what it took.
pub(crate) fn start(pid: i32, args: &Acquire) -> Result<u8, Failure> {
    watched(pid, args.on_lost)?;
    // On the main thread: until it has the lock the keeper dies with the thread that started it.
    block_on(relay(pid, args))
}

/// Starts the keeper. Other users can read its arguments, so its flags and its password reach it
/// through a pipe.
fn spawn(pid: i32, args: &Acquire) -> io::Result<Child> {
    let mut keeper = myself::command();
    keeper.arg(WORD).arg(std::process::id().to_string()).arg("--watch-pid").arg(pid.to_string()).arg("--").arg(&args.name);
    let handed = Handed::ours();
    handed.hide(&mut keeper);
    let mut keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let flags: Vec<OsString> = args_os().skip(2).collect();
    let pipe = keeper.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    // A keeper that is gone has said why, and its end is seen below.
    let _ = handover::send(pipe, &flags).and_then(|()| handover::send(pipe, &handed.into_words()));
    Ok(keeper)
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
        return Err(bad(&"it is another user's, so a loss could not be reported to it (see --on-lost)"));
    }
    Ok(process)
}

/// The process as something to wait for.
#[expect(deprecated, reason = "the replacement is unsafe, because of other types: an `OwnedFd` keeps its descriptor open")]
fn pollable(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(process, Interest::READABLE)
}

/// Starts the keeper, waits for what it prints and passes that on.
async fn relay(pid: i32, args: &Acquire) -> Result<u8, Failure> {
    let mut signals = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let keeper = spawn(pid, args);
    let mut keeper =
        keeper.map_err(|e| Failure::new(CANNOT_RUN, format!("the keeper cannot be started, {e}; nothing is held")))?;
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
    deliver(&lease).map_err(|failure| stop(&mut keeper, failure))?;
    // From here on the lease stands: the caller has it.
    match keeper.stdin.take().map(|mut keeper| keeper.write_all(&[HANDED_OVER])) {
        Some(Ok(())) => Ok(0),
        _ => Err(ended(&mut keeper)),
    }
}

/// The failure of a keeper that has ended, and has said why unless it was killed.
fn ended(keeper: &mut Child) -> Failure {
    let status = keeper.wait();
    let code = status.as_ref().ok().and_then(ExitStatus::code).and_then(|code| u8::try_from(code).ok());
    let killed = || {
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::new(CANNOT_RUN, format!("the keeper was killed, {how}; what it had taken may stay taken for its ttl"))
    };
    code.map_or_else(killed, Failure::told)
}

/// Has the keeper give up what it took.
fn stop(keeper: &mut Child, failure: Failure) -> Failure {
    if let Some(pid) = i32::try_from(keeper.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
        let _ = keeper.wait();
    }
    failure
}

/// The keeper itself: `tenure __keep STARTER`, and what the starter tells through standard input.
pub(crate) fn main(mut args: ArgsOs) -> Result<u8, Failure> {
    // A session of its own: neither the keys nor the end of the terminal reach it. Until it has the
    // lock it ends with its starter.
    let _ = setsid();
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    if args.next() != Some(parent_id().to_string().into()) {
        return Err(not_for_people());
    }
    let (cli, handed) = from_starter().map_err(|_| not_for_people())?;
    let Command::Acquire(args) = cli?.command else { return Err(not_for_people()) };
    // Reads the password before its descriptor, which a shell may have opened for us, is closed.
    let settings = Settings::handed(&args.common, &handed)?;
    close_inherited();
    block_on(keep(&args, &settings))
}

fn not_for_people() -> Failure {
    Failure::new(USAGE, "__keep is for tenure itself; use `tenure acquire --watch-pid`")
}

/// The flags, and the part of the environment that nobody is to read.
fn from_starter() -> io::Result<(Result<Cli, Failure>, Handed)> {
    let mut pipe = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let flags = handover::receive(&mut pipe)?;
    let handed = Handed::from_words(handover::receive(&mut pipe)?);
    Ok((parse(["tenure".into(), "acquire".into()].into_iter().chain(flags)), handed))
}

async fn keep(args: &Acquire, settings: &Settings) -> Result<u8, Failure> {
    let process = watched(args.watch_pid.unwrap_or_default(), args.on_lost)?;
    let process = pollable(process).map_err(|e| unheard_before(&e))?;
    let starter = starter().map_err(|e| unheard_before(&e))?;
    let nowhere = File::options().read(true).write(true).open("/dev/null").map_err(|e| {
        Failure::new(CANNOT_RUN, format!("the keeper cannot open /dev/null to let go of its streams, {e}; nothing is held"))
    })?;
    let plan = Plan::guarded(&args.name, &args.taking, settings)?;
    let mut signals = Signals::passed_on().map_err(|e| unheard_before(&e))?;
    let (locker, mut guards) = tokio::select! {
        biased;
        _ = process.readable() => return Err(Failure::usage("the process to watch has ended; nothing is held")),
        taken = plan.take(&mut signals) => taken?,
    };
    let mut sockets = Sockets::open(&guards, settings).await;
    if let [(name, why), others @ ..] = sockets.failed() {
        let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        let what = format!("`tenure release` cannot reach the keeper of {name:?}{others}, {why}");
        settings.voice.say(format_args!("{what}; let the watched process end instead: a release is taken for a loss"));
    }
    if let Err(failure) = deliver(&text(args.output, &variables(&guards), plan.ttl)) {
        return Err(give_up(&locker, guards, failure).await);
    }
    // The end of our stdout tells the starter that this is all; its own end is now that of the pipe
    // it answers through.
    let _ = set_parent_process_death_signal(None);
    detach(Stream::Out, &nowhere);
    let end = match handed_over(&guards, starter, &mut signals).await {
        End::HandedOver => {
            settle(args.on_lost, &nowhere);
            watch(&mut guards, &process, &mut sockets, &mut signals, args.on_lost).await
        }
        end => end,
    };
    // Who comes now asks the store at once.
    drop(sockets);
    let code = match end {
        End::Lost(name, loss) => {
            tell_loss(&name, &why_lost(&guards, &name, loss), &process, args.on_lost).await;
            // It stops its work now; what is left of the lease covers that, and must not be given
            // up under it.
            let _ = timeout(guards.lease_remaining(), process.readable()).await;
            LOST
        }
        End::Abandoned => by_signal(Signal::TERM.as_raw()),
        End::HandedOver | End::Done => 0,
    };
    if let Some(left) = left_taken(&locker, guards, false).await {
        say(left);
    }
    Ok(code)
}

/// How far the keeper has come.
#[derive(Debug)]
enum End {
    /// The starter has passed the lease on.
    HandedOver,
    /// The starter is gone, or wants nothing any more.
    Abandoned,
    /// The watched process has ended, or everything was released.
    Done,
    /// A tenure ended first.
    Lost(Name, EndReason),
}

/// Waits until the starter has passed the lease on. Nobody has the lease of a starter that dies
/// before.
async fn handed_over(guards: &Guards, mut starter: pipe::Receiver, signals: &mut Signals) -> End {
    tokio::select! {
        biased;
        (name, loss) = guards.lost() => End::Lost(name, loss),
        answer = starter.read_u8() => if answer.is_ok() { End::HandedOver } else { End::Abandoned },
        _ = signals.next() => End::Abandoned,
    }
}

/// Keeps what is held for as long as the process lives, but for what is released meanwhile.
async fn watch(
    guards: &mut Guards,
    process: &AsyncFd<OwnedFd>,
    sockets: &mut Sockets,
    signals: &mut Signals,
    on_lost: OnLost,
) -> End {
    while guards.iter().next().is_some() {
        let (name, client) = {
            let mut ended = pin!(guards.lost());
            let mut client = pin!(sockets.client());
            loop {
                tokio::select! {
                    biased;
                    (name, loss) = &mut ended => return End::Lost(name, loss),
                    _ = process.readable() => return End::Done,
                    client = &mut client => break client,
                    // Our end is the end of the protection, so the work has to end first. We stay
                    // until it has.
                    signal = signals.next() => if signal != Signal::USR1 && signal != Signal::USR2 {
                        tell(process, on_lost);
                    },
                }
            }
        };
        if let Some(guard) = guards.take(&name) {
            release_for(guard, client).await;
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
async fn tell_loss(name: &Name, loss: &str, process: &AsyncFd<OwnedFd>, on_lost: OnLost) {
    tell(process, on_lost);
    say_aside(format!("the lock {name:?} is lost: {loss}")).finish().await;
}

/// The pipe through which the starter answers.
fn starter() -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)
}

/// Closes whatever else the caller had open: a lock of `flock`, say, or a pipe whose reader waits
/// for its end.
pub(crate) fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect();
    for inherited in open {
        // Nothing of ours is open yet. The one that listed them is closed by now and no longer
        // there.
        let _ = nix::unistd::close(inherited);
    }
}

/// Lets go of what is the caller's: its streams, so that their readers see the end, and its
/// directory.
fn settle(on_lost: OnLost, nowhere: &File) {
    detach(Stream::In, nowhere);
    if on_lost == OnLost::Term && !io::stderr().is_terminal() {
        detach(Stream::Err, nowhere);
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

/// Has a stream lead nowhere. That was opened before: who reads the stream waits for its end.
fn detach(stream: Stream, nowhere: &File) {
    let _ = match stream {
        Stream::In => rustix::stdio::dup2_stdin(nowhere),
        Stream::Out => rustix::stdio::dup2_stdout(nowhere),
        Stream::Err => rustix::stdio::dup2_stderr(nowhere),
    };
}
