//! The signals that reach us.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{self, SigSet};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{Failure, UNREACHABLE};
use crate::terminal;

/// Signals that are forwarded to the child, and obeyed while there is none.
const PASSED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals as they arrive, instead of what they would do by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// Signals that our parent had us ignore, as a mask. They stay ignored, by us and by the
    /// command.
    ignored: u64,
    /// We were started on a terminal, whose end is a HUP.
    has_terminal: bool,
}

impl Signals {
    /// From now on the forwarded signals arrive here.
    pub(crate) fn passed_on() -> io::Result<Self> {
        Self::listen(&PASSED_ON, ignored())
    }

    /// From now on stops, continuations and the ends of children arrive here.
    pub(crate) fn job_control(&self) -> io::Result<Self> {
        // That somebody does not care for its children must not keep us from caring for ours.
        Self::listen(&[Signal::CONT, Signal::CHILD, Signal::TSTP], self.ignored & bit(Signal::TSTP))
    }

    /// From now on the ends of children arrive here.
    pub(crate) fn of_children() -> io::Result<Self> {
        Self::listen(&[Signal::CHILD], 0)
    }

    fn listen(signals: &[Signal], ignored: u64) -> io::Result<Self> {
        let heard = signals.iter().filter(|signal| ignored & bit(**signal) == 0);
        let streams = heard.map(|signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)));
        let streams = streams.collect::<io::Result<_>>()?;
        unblock(signals);
        Ok(Self { streams, ignored, has_terminal: terminal::is_there() })
    }

    /// Whether a candidate ends that has no command running. Without a terminal a HUP is for a command
    /// that reads its configuration anew.
    pub(crate) fn end_candidate(&self, signal: Signal) -> bool {
        asks_to_end(signal) && (signal != Signal::HUP || self.has_terminal)
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Unblocks them. Our parent may have blocked them, which `exec` keeps: the end of a child would go
/// unnoticed.
fn unblock(signals: &[Signal]) {
    let signals = signals.iter().filter_map(|signal| signal::Signal::try_from(signal.as_raw()).ok());
    let _ = signals.collect::<SigSet>().thread_unblock();
}

/// Returns the signals that our parent had us ignore, as a mask.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Failure of a command that cannot receive signals, before anything was taken.
pub(crate) fn unheard_before(error: &io::Error) -> Failure {
    unheard(error).and("nothing was taken")
}

/// Failure of a command that cannot receive signals.
pub(crate) fn unheard(error: &io::Error) -> Failure {
    Failure::new(UNREACHABLE, format!("signals cannot be received, {error}"))
}

/// Whether a program that gets it is to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}
