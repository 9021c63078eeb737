//! Watching over the command and the lease at once.

use std::pin::pin;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_current_process_group, kill_process};
use tenure::{BootClock, BootTime, Clock, EndReason, Guards, Name, format_duration};
use tokio::time::sleep;

use crate::child::{Change, Child};
use crate::exec;
use crate::exit::{Voice, say_aside};
use crate::guardian::Guardian;
use crate::loss::why_lost;
use crate::signals::{Signals, asks_to_end};
use crate::terminal::{self, Terminal};

/// How long a group that was asked to stop itself may take before it is stopped.
const STOPPING: Duration = Duration::from_millis(500);
/// How often to look whether a group is gone: its members are not all our children.
const LOOK: Duration = Duration::from_millis(5);
/// Left between the KILL and the end of the lease when we are late.
const MARGIN: Duration = Duration::from_millis(50);
/// How long after the KILL we go on looking: what the kernel cannot end by then, nothing we do
/// will.
const GIVE_UP: Duration = Duration::from_secs(5);

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended while the lock was held, with this exit code.
    Ended(u8),
    /// The tenure ended first, and the command's group is gone.
    Lost,
}

/// Who is to be interrupted after the command died of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// It died of something else, or not at all.
    Nobody,
    /// We alone: the others have had it.
    Us,
    /// The larger job that we are a part of: the terminal sent the key to the command's group
    /// alone.
    Job,
}

impl Interrupt {
    /// Dies of it where that is due, as the command would have without us.
    pub(crate) fn pass_on(self) {
        if self == Self::Job {
            let _ = kill_current_process_group(Signal::INT);
        }
        if self != Self::Nobody {
            exec::die_of_interrupt();
        }
    }
}

/// A command that runs under a lock.
#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    guards: &'a Guards,
    pub(crate) child: Child,
    pub(crate) terminal: Terminal,
    kill_after: Duration,
    voice: Voice,
    guardian: &'a Guardian,
    /// Why a lease runs out that nobody renews.
    pub(crate) unrenewed: Option<&'static str>,
    /// When to stop a group that was asked to stop itself.
    stop_at: Option<BootTime>,
    /// A TSTP that we sent to our own group, and that arrives here as well.
    echo: bool,
    /// The CONT that ended our own stop arrives here as well.
    woken: bool,
    /// Signals that ask to end, and came by us. So an interrupt among them was not the key.
    pub(crate) asked: Vec<Signal>,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        guards: &'a Guards,
        child: Child,
        terminal: Terminal,
        kill_after: Duration,
        voice: Voice,
        guardian: &'a Guardian,
    ) -> Self {
        Self {
            guards,
            child,
            terminal,
            kill_after,
            voice,
            guardian,
            unrenewed: None,
            stop_at: None,
            echo: false,
            woken: false,
            asked: Vec::new(),
        }
    }

    /// Watches until the command has ended, or has been ended because the lock was lost.
    pub(crate) async fn watch(&mut self, passed_on: &mut Signals, jobs: &mut Signals) -> End {
        let mut lost = pin!(self.guards.lost());
        self.tell_guardian();
        // Several times between two renewals. The guardian acts by a word that is a ttl old at least.
        let every = (self.guards.lease_remaining() / 12).max(LOOK);
        let mut renewals = pin!(sleep(every));
        loop {
            // By the clock: after a stop or a sleep, before anything else is done for the command.
            if let Some((name, loss)) = self.guards.end_reason() {
                self.end_group(name, loss).await;
                return End::Lost;
            }
            if let Some(code) = self.child.ended() {
                return End::Ended(code);
            }
            let stop_at = self.stop_at;
            tokio::select! {
                biased;
                _ = &mut lost => {}
                signal = jobs.next() => self.job_control(signal),
                signal = passed_on.next() => {
                    self.asked.extend(Some(signal).filter(|signal| asks_to_end(*signal)));
                    self.child.signal(signal);
                }
                () = &mut renewals => {
                    self.tell_guardian();
                    renewals.set(sleep(every));
                }
                // It did not stop by itself; or it was stopped before, and we hear of no stop.
                () = reached(stop_at) => self.suspend(false),
            }
        }
    }

    /// Who else is to be interrupted as the command was.
    pub(crate) fn interrupt(&self) -> Interrupt {
        if self.child.died_of() != Some(Signal::INT.as_raw()) {
            Interrupt::Nobody
        } else if self.terminal.was_given() && !self.asked.contains(&Signal::INT) && terminal::own_group() != Some(getpid()) {
            Interrupt::Job
        } else {
            Interrupt::Us
        }
    }

    /// Tells the guardian until when the command may run.
    fn tell_guardian(&self) {
        self.guardian.arm(self.child.group(), Some(may_run_until(self.guards)));
    }

    fn job_control(&mut self, signal: Signal) {
        match signal {
            Signal::TSTP if std::mem::take(&mut self.echo) => {}
            Signal::TSTP => {
                self.stop_at = Some(BootTime::now() + STOPPING);
                self.child.signal(Signal::TSTP);
            }
            // What woke us from a stop of our own was obeyed at once; obeyed again it would undo
            // the next stop.
            Signal::CONT if std::mem::take(&mut self.woken) => {}
            Signal::CONT => self.resume(false),
            _ => {
                if let Some(Change::Stopped(signal)) = self.child.look() {
                    self.stopped(signal);
                }
            }
        }
    }

    /// The command was stopped, by a key, by the terminal it wanted to use, or by somebody's
    /// signal.
    fn stopped(&mut self, signal: i32) {
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if wants_terminal && self.terminal.give(self.child.group()) {
            self.child.signal(Signal::CONT);
        } else if wants_terminal || self.terminal.was_given() || self.stop_at.is_some() {
            self.suspend(wants_terminal);
        }
        // Any other stop is between the command and who sent it: the lease goes on.
    }

    /// Stops what is left of the group, then ourselves with everything in our own group, as a shell
    /// expects it of a job.
    fn suspend(&mut self, wants_terminal: bool) {
        // A member that ignored the stop would run on with nobody to renew the lease.
        self.child.signal(Signal::STOP);
        let asked = self.stop_at.take().is_some();
        if !terminal::has_shell() {
            // Nobody would ever continue us.
            if !wants_terminal {
                self.resume(false);
            }
            return;
        }
        self.terminal.take_back();
        if !asked {
            // The key stopped the command's group alone.
            self.echo = kill_current_process_group(Signal::TSTP).is_ok();
        }
        // The group is stopped as well, so it may live on.
        self.guardian.arm(self.child.group(), None);
        self.woken = kill_process(getpid(), Signal::STOP).is_ok();
        self.resume(wants_terminal);
    }

    /// Continues the group, unless the lock was lost while we were stopped.
    fn resume(&mut self, wants_terminal: bool) {
        self.stop_at = None;
        if self.guards.end_reason().is_some() {
            self.child.signal(Signal::KILL);
            return;
        }
        self.tell_guardian();
        if wants_terminal || self.terminal.was_given() {
            self.terminal.give(self.child.group());
        }
        self.child.signal(Signal::CONT);
    }

    /// TERM, then KILL, until nothing of the group is left, nor of what it started outside: the
    /// group of another tenure, say.
    async fn end_group(&mut self, name: &Name, loss: EndReason) {
        let grace = self.grace();
        let kill_at = BootTime::now() + grace;
        self.child.signal(Signal::TERM);
        let grace = format_duration(grace);
        let unrenewed = self.unrenewed.filter(|_| loss == EndReason::Expired);
        let why = unrenewed.map_or_else(|| why_lost(self.guards, name, loss), String::from);
        let told = say_aside(format!("the lock {name:?} is lost: {why}; the command gets TERM, and KILL {grace} later"));
        let killed = self.ended_by(kill_at).await;
        told.finish().await;
        if let Some(gone) = killed {
            self.tell_kill(gone).await;
        }
        self.terminal.take_back();
        self.terminal.restore();
    }

    /// Ends what the command has left behind, while the lock is held.
    pub(crate) async fn end_rest(&mut self) {
        let kill_at = BootTime::now() + self.grace();
        if self.child.is_left() {
            self.child.signal(Signal::TERM);
        }
        if let Some(gone) = self.ended_by(kill_at).await {
            self.tell_kill(gone).await;
        }
    }

    /// Time between TERM and KILL: nothing runs when the lease ends.
    fn grace(&self) -> Duration {
        self.kill_after.min(self.guards.lease_remaining().saturating_sub(MARGIN))
    }

    /// Waits for the group, which has got TERM, and ends what it has started outside. `None` if all obeyed
    /// in time. Else they were killed: whether they are gone.
    async fn ended_by(&mut self, kill_at: BootTime) -> Option<bool> {
        if self.gone_by(kill_at).await && self.strays_gone_by(kill_at).await {
            return None;
        }
        self.child.signal(Signal::KILL);
        Some(self.killed_by(BootTime::now() + GIVE_UP).await)
    }

    async fn tell_kill(&self, gone: bool) {
        let group = self.child.group();
        if !gone {
            let what = format!("some of what the command started cannot be killed; see `ps`, its process group is {group}");
            say_aside(what).finish().await;
        } else if self.voice >= Voice::Normal {
            say_aside("the command did not end by itself and was killed".to_owned()).finish().await;
        }
    }

    async fn gone_by(&mut self, deadline: BootTime) -> bool {
        while self.child.is_left() {
            if BootTime::now() >= deadline {
                return false;
            }
            sleep(LOOK.min(deadline.since(BootTime::now()))).await;
        }
        true
    }

    /// Asks what is left outside the group, which has heard of nothing yet, to end.
    async fn strays_gone_by(&mut self, deadline: BootTime) -> bool {
        signal_each(&self.child.strays(), Signal::TERM);
        while !self.child.strays().is_empty() {
            if BootTime::now() >= deadline {
                return false;
            }
            sleep(LOOK.min(deadline.since(BootTime::now()))).await;
        }
        true
    }

    /// Kills what is left outside the group, and what that leaves to us, until both are gone.
    async fn killed_by(&mut self, deadline: BootTime) -> bool {
        loop {
            // In this order: what ends leaves its own children to us.
            let is_left = self.child.is_left();
            let strays = self.child.strays();
            signal_each(&strays, Signal::KILL);
            if strays.is_empty() && !is_left {
                return true;
            }
            if BootTime::now() >= deadline {
                return false;
            }
            sleep(LOOK).await;
        }
    }
}

/// End of the lease at the store, a little earlier: nothing runs then.
pub(crate) fn may_run_until(guards: &Guards) -> BootTime {
    BootTime::now() + guards.lease_remaining().saturating_sub(MARGIN)
}

fn signal_each(processes: &[Pid], signal: Signal) {
    for process in processes {
        // One that is gone needs none.
        let _ = kill_process(*process, signal);
    }
}

async fn reached(at: Option<BootTime>) {
    match at {
        Some(at) => BootClock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}
