//! The resource that a lock guards: one number that remembers the largest fence it has seen and refuses smaller ones.
//!
//! It stands in the lab's process and is reached over a unix socket, so it survives its visitors.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::Recorder;
use crate::history::What;
use crate::lines::{Service, hear, say};

/// The resource. Dropping it ends its service.
#[derive(Debug)]
pub struct Register {
    service: Service,
    state: Arc<Mutex<State>>,
}

/// How a resource looks at the fence of a visitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Comparison {
    /// It refuses one that is smaller than the largest it has seen.
    #[default]
    Order,
    /// It refuses one that differs from the first it has seen: a mistake that is made.
    Equality,
    /// It lets everybody in, as most resources do.
    Nothing,
}

#[derive(Debug, Default)]
struct State {
    value: u64,
    /// The largest fence that was seen, and the first.
    largest: Option<u64>,
    first: Option<u64>,
    compares: Comparison,
}

/// A visit to the resource, a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Visit {
    who: String,
    acquisition: u32,
    fence: Option<u64>,
    asked: Asked,
}

/// Request of a visitor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Asked {
    /// To read the number.
    Read,
    /// To change the number.
    Write {
        /// Value that the visitor had read before.
        read: u64,
        /// Value to write.
        wrote: u64,
    },
}

impl Register {
    /// Opens for visitors; every visit is written to `recorder`.
    pub fn open(recorder: Recorder) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let theirs = Arc::clone(&state);
        let answer = move |_, visit| lock(&theirs).visit(visit, &recorder);
        Self { service: Service::open(answer, |_| {}).expect("a socket can be bound"), state }
    }

    /// Looks at fences in this way from now on.
    pub fn compares(&self, how: Comparison) {
        lock(&self.state).compares = how;
    }

    /// Lets everybody in from now on.
    pub fn compares_nothing(&self) {
        self.compares(Comparison::Nothing);
    }

    /// Where it is reached.
    pub fn path(&self) -> &Path {
        self.service.path()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Lets a visitor in or not, and says what it read or wrote.
    fn visit(&mut self, visit: Visit, recorder: &Recorder) -> Option<u64> {
        let Visit { who, acquisition, fence, asked } = visit;
        let accepted = match self.compares {
            Comparison::Order => fence >= self.largest,
            Comparison::Equality => self.first.is_none() || fence == self.first,
            Comparison::Nothing => true,
        };
        self.largest = self.largest.max(fence);
        self.first = self.first.or(fence);
        // Recorded before the lock is given back, so that the log stands in the order of the visits.
        match asked {
            Asked::Read => {
                let value = accepted.then_some(self.value);
                recorder.record(who, What::Read { acquisition, fence, value });
                value
            }
            Asked::Write { read, wrote } => {
                if accepted {
                    self.value = wrote;
                }
                recorder.record(who, What::Write { acquisition, fence, read, wrote, accepted });
                accepted.then_some(wrote)
            }
        }
    }
}

/// Client that visits the resource for one acquisition.
#[derive(Debug)]
pub struct Visitor {
    stream: BufReader<UnixStream>,
    who: String,
    acquisition: u32,
    fence: Option<u64>,
}

impl Visitor {
    /// One that comes to the register at this path.
    pub fn new(register: &Path, who: String, acquisition: u32, fence: Option<u64>) -> Self {
        let stream = BufReader::new(UnixStream::connect(register).expect("the register is open"));
        Self { stream, who, acquisition, fence }
    }

    /// One visit; `None` when it was refused, or the register is gone.
    pub fn ask(&mut self, asked: Asked) -> Option<u64> {
        let visit = Visit { who: self.who.clone(), acquisition: self.acquisition, fence: self.fence, asked };
        say(self.stream.get_mut(), &visit).ok()?;
        hear(&mut self.stream).ok()??
    }
}
