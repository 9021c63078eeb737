//! Events of a run, as every process saw them: asks, grants, renewals, losses, writes and faults.
//! All have times of the one clock of this machine.
//!
//! A [`History`] is plain data. It is made by a [`Recorder`], saved as lines of JSON, read back, [checked](check::check) as often
//! as one likes, and drawn as a [timeline](timeline::picture).

pub mod check;
pub mod record;
pub mod timeline;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use check::{Finding, Rule, Verdict, check};
pub use record::Recorder;

/// A point on the boot-time clock, in nanoseconds since boot.
pub type At = u64;

/// All that was seen of one run, with what was promised for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Of the scenario or broken lock.
    pub id: String,
    /// By which the run can be made again.
    pub seed: u64,
    /// How much of a name there is: 1 for a mutex, N for a semaphore.
    pub capacity: u32,
    /// No holder may lose its lock in this run.
    pub keeps: bool,
    /// In order of time.
    pub events: Vec<Event>,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: At,
    /// To whom: a process, or `lab` for what was done to all.
    pub who: String,
    /// Kind of the event, with its fields.
    #[serde(flatten)]
    pub what: What,
}

/// Kind of an event.
///
/// `acquisition` is the number of an acquisition within its process, `name` the name that is locked, `fence` the fencing number where
/// there is one, `within` a time in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "what most fields mean stands above")]
pub enum What {
    /// It begins to ask for the name.
    Ask { acquisition: u32, name: String },
    /// It knows of a place in a queue that is to be served in order, and looks after it from now on.
    Queued { acquisition: u32, name: String },
    /// From now on the process regards itself as the holder.
    Grant {
        acquisition: u32,
        name: String,
        /// How much of the capacity.
        weight: u32,
        /// The owner's bytes, where they are to be unique.
        token: Option<String>,
        fence: Option<u64>,
        /// End of the validity if no renewal follows; `None` if the process looks at no clock.
        until: Option<At>,
    },
    /// A renewal has moved the end of the validity.
    Valid { acquisition: u32, until: Option<At> },
    /// The process has noticed the loss of its lease, for this reason.
    Lost { acquisition: u32, why: String },
    /// The process begins to release the name, and no longer regards itself as the holder.
    Release { acquisition: u32 },
    /// How the release went, as the process knows it.
    Released { acquisition: u32, how: String },
    /// The acquisition failed. `kind` is the class of the error; `None` for one that has none.
    Failed { acquisition: u32, kind: Option<String>, text: String },
    /// The guarded resource was read for an update; no value if it refused.
    Read { acquisition: u32, fence: Option<u64>, value: Option<u64> },
    /// The guarded resource was written with what was made of the value that was read before, or refused to be.
    Write { acquisition: u32, fence: Option<u64>, read: u64, wrote: u64, accepted: bool },
    /// The process has ended, and with it the validity of all its leases.
    Died,
    /// Something was broken, or mended.
    Fault { text: String },
    /// The present holder of `name` must notice the loss within this time.
    LossDue { name: String, within: u64 },
    /// Somebody must be granted `name` within this time.
    GrantDue { name: String, within: u64 },
    /// `name` must be seen free, or be granted, within this time.
    FreeDue { name: String, within: u64 },
    /// Answer of the store to an inspection of `name`: its holder, `None` when it is free.
    Seen {
        name: String,
        holder: Option<String>,
        /// It is held and nothing will ever end that.
        forever: bool,
    },
}

impl History {
    /// Nothing has happened.
    pub fn new(id: impl Into<String>, seed: u64) -> Self {
        Self { id: id.into(), seed, capacity: 1, keeps: false, events: Vec::new() }
    }

    /// Writes it as lines of JSON: what it is of, then an event a line.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let head = Self { events: Vec::new(), ..self.clone() };
        let lines = std::iter::once(serde_json::to_string(&head)).chain(self.events.iter().map(serde_json::to_string));
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        fs::write(path, lines.join("\n") + "\n")
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// When the file cannot be read, naming the line that is no event.
    pub fn load(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path)?;
        let broken = |line: usize, error: serde_json::Error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}, line {line}: {error}", path.display()))
        };
        let mut lines = text.lines().zip(1..);
        let head =
            lines.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{}: is empty", path.display())))?;
        let mut history: Self = serde_json::from_str(head.0).map_err(|error| broken(1, error))?;
        for (line, number) in lines {
            history.events.push(serde_json::from_str(line).map_err(|error| broken(number, error))?);
        }
        history.events.sort_by_key(|event| event.at);
        Ok(history)
    }

    /// Every acquisition with its life, in the order of the grants.
    pub fn claims(&self) -> Vec<Claim> {
        let mut claims: Vec<Claim> = Vec::new();
        let mut asked = BTreeMap::new();
        for Event { at, who, what } in &self.events {
            match what {
                What::Ask { acquisition, .. } => {
                    asked.insert((who.as_str(), *acquisition), *at);
                }
                What::Grant { acquisition, name, weight, token, fence, until } => {
                    let asked = asked.get(&(who.as_str(), *acquisition)).copied().unwrap_or(*at);
                    claims.push(Claim {
                        who: who.clone(),
                        number: *acquisition,
                        name: name.clone(),
                        weight: *weight,
                        token: token.clone(),
                        fence: *fence,
                        asked,
                        granted: *at,
                        lost: None,
                        ended: None,
                        validity: vec![(*at, until.unwrap_or(At::MAX).max(*at))],
                        in_time: until.is_none_or(|until| until > *at),
                        revived: None,
                    });
                }
                What::Died => {
                    claims.iter_mut().filter(|acquisition| acquisition.who == *who).for_each(|acquisition| acquisition.end(*at));
                }
                What::Valid { acquisition, until } => {
                    let _ = last(&mut claims, who, *acquisition).map(|acquisition| acquisition.renew(*at, *until));
                }
                What::Lost { acquisition, why } => {
                    if let Some(acquisition) = last(&mut claims, who, *acquisition) {
                        acquisition.lost.get_or_insert((*at, why.clone()));
                        acquisition.end(*at);
                    }
                }
                What::Release { acquisition } => {
                    let _ = last(&mut claims, who, *acquisition).map(|acquisition| acquisition.end(*at));
                }
                _ => {}
            }
        }
        claims
    }
}

/// A process that was started again may use its numbers again: the last is meant.
fn last<'a>(claims: &'a mut [Claim], who: &str, number: u32) -> Option<&'a mut Claim> {
    claims.iter_mut().rfind(|acquisition| acquisition.who == who && acquisition.number == number)
}

/// One acquisition that was granted, from the ask to the end of its validity.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The process.
    pub who: String,
    /// Which of its acquisitions.
    pub number: u32,
    /// Name that is locked.
    pub name: String,
    /// How much of it.
    pub weight: u32,
    /// The owner's bytes.
    pub token: Option<String>,
    /// The fencing number.
    pub fence: Option<u64>,
    /// When it asked.
    pub asked: At,
    /// When it heard that it was granted.
    pub granted: At,
    /// When the process noticed a loss, and the reason.
    pub lost: Option<(At, String)>,
    /// When it released, lost or died; `None` if it did none of these.
    pub ended: Option<At>,
    /// Begin and end of each time in which the process regarded itself as the holder.
    pub validity: Vec<(At, At)>,
    /// The grant came before the end of its validity.
    pub in_time: bool,
    /// When the process regarded itself as the holder again, after the end.
    pub revived: Option<At>,
}

impl Claim {
    fn renew(&mut self, at: At, until: Option<At>) {
        if self.ended.is_some() {
            self.revived.get_or_insert(at);
        }
        self.stop_at(at);
        self.validity.push((at, until.unwrap_or(At::MAX).max(at)));
    }

    fn end(&mut self, at: At) {
        if self.ended.is_none() {
            self.stop_at(at);
            self.ended = Some(at);
        }
    }

    fn stop_at(&mut self, at: At) {
        if let Some((_, until)) = self.validity.last_mut() {
            *until = (*until).min(at);
        }
    }

    /// Returns the end of its validity.
    pub fn believed_until(&self) -> At {
        self.validity.last().map_or(self.granted, |&(_, until)| until)
    }

    /// Returns whether the process regarded itself as the holder at that moment.
    pub fn believes_at(&self, at: At) -> bool {
        self.validity.iter().any(|&(from, until)| from <= at && at < until)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.who, self.number)?;
        if let Some(fence) = self.fence { write!(f, " (fence {fence})") } else { Ok(()) }
    }
}

/// Nanoseconds of a span.
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
