//! Processes that are killed and stopped at random, and replaced.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_testkit::{Signal, Spawned, signal};

use crate::Error;

/// Time between two looks at the children.
const LOOK: Duration = Duration::from_millis(10);

/// Kills and stops of the children, at random times.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Mean time between two kills. Zero: none.
    pub kill_every: Duration,
    /// Mean time between the end of a stop and the next. Zero: none.
    pub stop_every: Duration,
    /// Length of a stop: longer than a lease.
    pub stop_for: Duration,
}

impl Faults {
    /// Nothing is done to them.
    pub const NONE: Self = Self { kill_every: Duration::ZERO, stop_every: Duration::ZERO, stop_for: Duration::ZERO };

    /// As many faults in a time that is `times` as long. Stops last as long as before.
    #[must_use]
    pub fn rarer(self, times: f64) -> Self {
        Self { kill_every: self.kill_every.mul_f64(times), stop_every: self.stop_every.mul_f64(times), ..self }
    }
}

/// Children of one kind. One that dies is replaced.
#[derive(Debug)]
pub struct Children {
    command: Vec<String>,
    running: Vec<Spawned>,
    /// Faults from now on. One that is stopped goes on at the end of its stop.
    pub faults: Faults,
    /// The one that faults are for. `None`: any.
    pub aim: Option<usize>,
    stop_for: Duration,
    stopped: Option<(usize, Instant)>,
    /// When the last one that was stopped went on.
    went_on: Option<Instant>,
    looked: Instant,
    /// Number of children that died of a signal.
    pub killed: u32,
    /// Number of stops.
    pub stops: u32,
}

impl Children {
    /// Starts this program `count` times, with these arguments and its own number.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn start(count: usize, command: Vec<String>, faults: Faults) -> Result<Self, Error> {
        let running = (0..count).map(|number| spawn(&command, number)).collect::<Result<_, _>>()?;
        Ok(Self {
            command,
            running,
            faults,
            aim: None,
            stop_for: faults.stop_for,
            stopped: None,
            went_on: None,
            looked: Instant::now(),
            killed: 0,
            stops: 0,
        })
    }

    /// Waits a moment, kills and stops some, and replaces those that died. Returns whether all have
    /// ended by themselves.
    ///
    /// # Errors
    /// If a process fails otherwise than by a signal.
    pub fn tend(&mut self) -> Result<bool, Error> {
        std::thread::sleep(LOOK);
        let passed = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        let mut ended = 0;
        for number in 0..self.running.len() {
            match self.running[number].try_wait()? {
                None => {}
                Some(status) if status.success() => ended += 1,
                Some(status) if status.code().is_none() => {
                    self.killed += 1;
                    self.running[number] = spawn(&self.command, number)?;
                }
                Some(status) => return Err(format!("a process of the example failed: {status}").into()),
            }
        }
        if is_due(self.faults.kill_every, passed) {
            let _ = self.any().1.signal(Signal::Kill);
        }
        match self.stopped {
            None if is_due(self.faults.stop_every, passed) => {
                let (number, child) = self.any();
                // It may just have ended.
                if child.signal(Signal::Stop).is_ok() {
                    self.stopped = Some((number, Instant::now()));
                    self.stops += 1;
                }
            }
            Some((number, since)) if since.elapsed() >= self.stop_for => {
                let _ = self.running[number].signal(Signal::Cont);
                self.stopped = None;
                self.went_on = Some(Instant::now());
            }
            _ => {}
        }
        Ok(ended == self.running.len())
    }

    /// Whether nobody is stopped, nor was within this time.
    pub fn all_went_on_for(&self, time: Duration) -> bool {
        self.stopped.is_none() && self.went_on.is_none_or(|since| since.elapsed() > time)
    }

    fn any(&mut self) -> (usize, &mut Spawned) {
        let number = self.aim.unwrap_or_else(|| fastrand::usize(..self.running.len()));
        (number, &mut self.running[number])
    }
}

/// Whether something that happens `every` so often happens in a time that has `passed`.
fn is_due(every: Duration, passed: Duration) -> bool {
    !every.is_zero() && fastrand::f64() < passed.as_secs_f64() / every.as_secs_f64()
}

fn spawn(command: &[String], number: usize) -> Result<Spawned, Error> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(command).args(["--number", &number.to_string()]).stdin(Stdio::null());
    Ok(Spawned::spawn(&mut child)?)
}

/// Dies at once, as by `kill -9`, with this probability.
pub fn crash(probability: f64) {
    if fastrand::f64() < probability {
        let _ = signal(std::process::id(), Signal::Kill);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_stopped_has_not_gone_on() {
        let now = Instant::now();
        let before = now.checked_sub(Duration::from_secs(1)).unwrap();
        let children = |stopped, went_on| {
            let none = Children::start(0, Vec::new(), Faults::NONE).unwrap();
            Children { stopped, went_on, ..none }
        };
        let long = Duration::from_secs(3_600);
        assert!(children(None, None).all_went_on_for(long), "nobody was ever stopped");
        assert!(!children(Some((0, now)), None).all_went_on_for(Duration::ZERO));
        assert!(!children(None, Some(now)).all_went_on_for(long));
        assert!(children(None, Some(before)).all_went_on_for(Duration::ZERO));
    }
}
