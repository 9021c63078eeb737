//! `tenure __guard PID`: a process beside `tenure` that ends the command's group when `tenure` cannot.
//!
//! A `tenure` that is stopped renews nothing and ends nothing. One that is killed takes the command with
//! it, and not what the command has started. The guardian is in a session of its own, and no signal reaches
//! it that can be blocked. Its orders are a value in memory that `tenure` writes and it reads, so there is
//! no older word than the last.

use std::env::ArgsOs;
use std::fs::File;
use std::io::{self, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::Child;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal, setsid};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use tenure::BootTime;

use crate::{keep, myself, terminal};

/// The longest time for it to come up. A late one guards all the same.
const COMES_UP: u16 = 1_000;
/// First argument of this program when it is the guardian.
pub(crate) const WORD: &str = "__guard";

/// An order to the guardian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Order {
    /// The group to end, by its leader; 0 for none.
    group: u64,
    /// When that leader was started: another process may get its number.
    started: u64,
    /// When to end it, in nanoseconds since boot.
    until: u64,
}

impl Order {
    const LENGTH: usize = 32;

    fn bytes(self) -> [u8; Self::LENGTH] {
        let Self { group, started, until } = self;
        let mut bytes = [0; Self::LENGTH];
        for (part, number) in bytes.chunks_exact_mut(8).zip([group, started, until, !(group ^ started ^ until)]) {
            part.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// The order in the file. One that is just being written is read again.
    fn read(file: &File) -> Self {
        let mut bytes = [0; Self::LENGTH];
        for _ in 0..1_000 {
            let mut numbers = [0; 4];
            if file.read_exact_at(&mut bytes, 0).is_ok() {
                for (number, part) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
                    *number = u64::from_ne_bytes(part.try_into().unwrap_or_default());
                }
            }
            let [group, started, until, check] = numbers;
            if check == !(group ^ started ^ until) {
                return Self { group, started, until };
            }
            std::thread::yield_now();
        }
        Self::default()
    }

    fn is_due(self) -> bool {
        self.group != 0 && nanos(BootTime::now()) >= self.until
    }

    /// Kills the group, unless its number may be another's by now. The kernel gives a number to nobody while
    /// a group has it.
    fn carry_out(self) {
        let group = i32::try_from(self.group).ok().and_then(Pid::from_raw);
        if let Some(group) = group.filter(|group| terminal::started(*group).is_none_or(|at| at == self.started)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The guardian as its `tenure` has it. There may be none: the system may have no process to spare.
#[derive(Debug, Default)]
pub(crate) struct Guardian(Option<Parts>);

#[derive(Debug)]
struct Parts {
    orders: File,
    /// Wakes it, and ends with us.
    bell: PipeWriter,
    process: Option<JoinHandle<io::Result<(Child, OwnedFd)>>>,
    running: Option<(Child, OwnedFd)>,
}

impl Guardian {
    /// Starts it on a thread of its own, so that it comes up while the lock is taken.
    pub(crate) fn start() -> Self {
        Self(Parts::start().ok())
    }

    /// Waits until it is there. Before the command is started: what is there before is not of the command.
    pub(crate) fn wait(&mut self) {
        if let Some(parts) = &mut self.0
            && let Some(process) = parts.process.take()
        {
            parts.running = process.join().ok().and_then(Result::ok);
        }
    }

    /// Has it end `group` at `until`, or when we are gone.
    pub(crate) fn arm(&self, group: Pid, until: Option<BootTime>) {
        let Some(Parts { orders, .. }) = &self.0 else { return };
        let (number, before) = (u64::from(group.as_raw_nonzero().get().unsigned_abs()), Order::read(orders));
        // Read once: later there may be no descriptor to spare.
        let known = (before.group == number).then_some(before.started);
        let started = known.or_else(|| terminal::started(group)).unwrap_or_default();
        self.order(Order { group: number, started, until: until.map_or(u64::MAX, nanos) });
    }

    /// Has it end nothing any more.
    pub(crate) fn disarm(&self) {
        self.order(Order::default());
    }

    fn order(&self, order: Order) {
        let Some(parts) = &self.0 else { return };
        let before = Order::read(&parts.orders);
        // Its timer is set by the last word that it has read, and it reads again before it acts.
        if parts.orders.write_all_at(&order.bytes(), 0).is_ok() && (before.group != order.group || order.until < before.until) {
            let _ = (&parts.bell).write(&[0]);
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.disarm();
        self.wait();
        if let Some((mut child, process)) = self.0.take().and_then(|parts| parts.running) {
            let _ = pidfd_send_signal(process, Signal::KILL);
            // It may have been collected with the children of the command.
            let _ = child.wait();
        }
    }
}

impl Parts {
    fn start() -> io::Result<Self> {
        let orders = File::from(memfd_create("tenure-guardian", MemfdFlags::CLOEXEC)?);
        orders.write_all_at(&Order::default().bytes(), 0)?;
        let (ear, bell) = pipe()?;
        ioctl_fionbio(&bell, true)?;
        let (up, says_so) = pipe()?;
        let mut command = myself::command();
        command.arg(WORD).arg(std::process::id().to_string()).env_clear().current_dir("/");
        command.stdin(orders.try_clone()?).stdout(ear).stderr(says_so);
        let spawn = move || {
            // It inherits that from this thread, and has it from its first instruction on.
            SigSet::all().thread_block()?;
            let child = command.spawn()?;
            // With it goes our end of what it says.
            drop(command);
            let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let id = id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            let process = pidfd_open(id, PidfdFlags::empty())?;
            let _ = poll(&mut [PollFd::new(up.as_fd(), PollFlags::POLLIN)], COMES_UP);
            Ok((child, process))
        };
        let process = Builder::new().name("tenure-guardian".into()).stack_size(128 * 1024).spawn(spawn)?;
        Ok(Self { orders, bell, process: Some(process), running: None })
    }
}

fn nanos(at: BootTime) -> u64 {
    u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

/// Watches until `tenure` has ended, in any way.
pub(crate) fn main(_: ArgsOs) -> u8 {
    let _ = setsid();
    keep::close_inherited();
    // From now on it is alone.
    let _ = io::stderr().write_all(&[0]);
    u8::from(watch().is_err())
}

fn watch() -> io::Result<()> {
    let orders = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut bell = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut done = None;
    loop {
        let order = Order::read(&orders);
        if order.is_due() && done != Some(order) {
            order.carry_out();
            done = Some(order);
        }
        let at = if order.group == 0 || done == Some(order) { u64::MAX } else { order.until };
        set(&timer, at)?;
        let mut polled = [PollFd::new(bell.as_fd(), PollFlags::POLLIN), PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let rings = polled[0].revents().is_some_and(|events| !events.is_empty());
        if rings && bell.read(&mut [0; 64])? == 0 {
            Order::read(&orders).carry_out();
            return Ok(());
        }
    }
}

/// Sets a timer of the boot-time clock, which goes on while the machine sleeps.
fn set(timer: &OwnedFd, at: u64) -> io::Result<()> {
    let at = Duration::from_nanos(if at == u64::MAX { 0 } else { at.max(1) });
    let it_value = Timespec { tv_sec: at.as_secs().cast_signed(), tv_nsec: i64::from(at.subsec_nanos()) };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_is_half_written_is_none() {
        let orders = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        let order = Order { group: 7, started: 8, until: 9 };
        orders.write_all_at(&order.bytes(), 0).unwrap();
        assert_eq!(Order::read(&orders), order);
        orders.write_all_at(&Order { until: 10, ..order }.bytes()[..24], 0).unwrap();
        assert_eq!(Order::read(&orders), Order::default());
    }
}
