//! The lab's end of a worker.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::{Fence, Lease};
use tenure_conformance::Process;

use super::load::{Load, Tally};
use super::orders::{ByHand, ClaimOrder, Order, Said, Terms};
use super::probe::{Deed, Probe};
use crate::history::{Event, History, What};
use crate::lines;
use crate::{Recorder, Register, Signal};

/// How long a worker may take for what nothing hinders.
const PATIENCE: Duration = Duration::from_secs(60);

/// The near end of a worker. Killed when dropped.
///
/// A thread reads the output of the worker and writes its events to the recorder, its death too.
#[derive(Debug)]
pub struct Worker {
    who: String,
    process: lines::Process,
    answers: mpsc::Receiver<Said>,
    recorder: Recorder,
    /// Its end is no surprise.
    may_end: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
    claims: u32,
}

impl Worker {
    /// Starts `command`, which must become a [`Program`](super::Program)'s worker, with a history of its own.
    pub fn start(command: Command) -> Self {
        Self::join(command, "worker", Recorder::new(History::new("worker", 0)))
    }

    /// The same, as `who` in the history of `recorder`. Waits until the worker has opened its store
    /// or failed to. It reports a failure as that of acquisition 0.
    pub fn join(command: Command, who: impl Into<String>, recorder: Recorder) -> Self {
        let who = who.into();
        let mut process = lines::Process::start(command).expect("the worker starts");
        let (says, answers) = mpsc::channel();
        let may_end = Arc::<AtomicBool>::default();
        let listener = Listener { who: who.clone(), recorder: recorder.clone(), says, may_end: Arc::clone(&may_end) };
        let listening = Some(process.listen(move |said| listener.hears(said)));
        // Hung up on when the worker failed to open its store.
        let _ = answers.recv_timeout(PATIENCE);
        Self { who, process, answers, recorder, may_end, listening, claims: 0 }
    }

    /// Its name in the history.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Takes a lock, waits for it, and renews it from then on. Later calls without a number are
    /// about this acquisition.
    pub fn acquire(&mut self, name: &str, ttl: Duration) -> Option<Fence> {
        let acquisition = self.ask(name, Terms::new(ttl));
        self.granted(acquisition)
    }

    /// Begins to wait for a lock.
    pub fn begin_acquire(&mut self, name: &str, ttl: Duration) {
        self.ask(name, Terms::new(ttl));
    }

    /// Begins to ask for a lock. Returns the number of the acquisition.
    pub fn ask(&mut self, name: &str, terms: Terms) -> u32 {
        self.claims += 1;
        self.tell(&Order::Acquire { acquisition: self.claims, name: name.into(), terms });
        self.claims
    }

    /// Takes over a lease that another worker handed over.
    pub fn adopt(&mut self, lease: &Lease) -> Option<Fence> {
        self.claims += 1;
        self.tell(&Order::Adopt { acquisition: self.claims, lease: lease.clone() });
        self.granted(self.claims)
    }

    /// Ends the validity of the worker's lease and returns the lease.
    pub fn hand_over(&mut self) -> Lease {
        self.hand_over_claim(self.claims)
    }

    /// Ends the validity of `acquisition` and returns its lease.
    pub fn hand_over_claim(&mut self, acquisition: u32) -> Lease {
        match self.ask_of(acquisition, ClaimOrder::HandOver) {
            Said::Lease(lease) => lease,
            other => panic!("the worker said {other:?}"),
        }
    }

    /// Renews `acquisition` for `ttl` now; a failure is in the history.
    pub fn extend(&mut self, acquisition: u32, ttl: Duration) {
        self.tell(&Order::To { acquisition, order: ClaimOrder::Extend { ttl } });
        self.finish();
    }

    /// Its wall clock, in milliseconds since 1970.
    pub fn wall_clock(&mut self) -> i64 {
        self.tell(&Order::WallClock);
        match self.answer() {
            Said::Answer(ms) => ms.parse().expect("a number"),
            other => panic!("the worker said {other:?}"),
        }
    }

    /// The state of what it holds.
    pub fn state(&mut self) -> String {
        match self.ask_of(self.claims, ClaimOrder::State) {
            Said::State(state) => state,
            other => panic!("the worker said {other:?}"),
        }
    }

    /// Gives up what it holds.
    pub fn release(&mut self) {
        let how = self.release_claim(self.claims);
        assert_eq!(how, "Released");
    }

    /// Releases `acquisition` after its work, and returns the outcome.
    pub fn release_claim(&mut self, acquisition: u32) -> String {
        self.begin_release(acquisition);
        let about = |what: &What| matches!(what, What::Released { acquisition: of, .. } if *of == acquisition);
        match self.wait("its release", about) {
            What::Released { how, .. } => how,
            other => panic!("{other:?}"),
        }
    }

    /// Begins to release `acquisition`.
    pub fn begin_release(&mut self, acquisition: u32) {
        self.tell(&Order::To { acquisition, order: ClaimOrder::Release });
    }

    /// Drops the guard of `acquisition`, or the future that asks for it.
    pub fn drop_claim(&mut self, acquisition: u32) {
        self.begin_drop(acquisition);
        self.finish();
    }

    /// Begins to drop it; [`finish`](Self::finish) waits until it is dropped.
    pub fn begin_drop(&mut self, acquisition: u32) {
        self.tell(&Order::To { acquisition, order: ClaimOrder::Drop });
    }

    /// Has `acquisition` read and write the resource from now on, without asking its guard, until
    /// the resource refuses.
    pub fn work(&mut self, acquisition: u32, register: &Register) {
        let (who, register) = (self.who.clone(), register.path().to_owned());
        self.tell(&Order::To { acquisition, order: ClaimOrder::Work { who, register } });
    }

    /// Has `acquisition` read and write the resource from now on, for as long as its guard allows.
    pub fn run(&mut self, acquisition: u32, register: &Register) {
        let (who, register) = (self.who.clone(), register.path().to_owned());
        self.tell(&Order::To { acquisition, order: ClaimOrder::Run { who, register } });
    }

    /// Has the work of `acquisition` end.
    pub fn rest(&mut self, acquisition: u32) {
        self.tell(&Order::To { acquisition, order: ClaimOrder::Rest });
    }

    /// Has the worker renew or release `name` by `token` alone; how that went.
    pub fn by_hand(&mut self, what: ByHand, name: &str, token: &str) -> String {
        self.tell(&Order::ByHand { what, name: name.into(), token: token.into() });
        match self.answer() {
            Said::Answer(how) => how,
            other => panic!("the worker said {other:?}"),
        }
    }

    /// Has the worker do something to itself at a step.
    pub fn arm(&mut self, probe: Probe) {
        if probe.deed == Deed::Die {
            self.may_end.store(true, Ordering::Relaxed);
        }
        self.tell(&Order::Arm(probe));
    }

    /// Waits until an armed [`Deed::Cancel`] was done.
    pub fn cancelled(&mut self) {
        self.finish();
    }

    /// Blocks the thread of its only runtime for this long.
    pub fn block(&mut self, span: Duration) {
        self.tell(&Order::Block { ms: millis(span) });
    }

    /// Moves its boot-time clock on, as if its machine had slept.
    pub fn jump(&mut self, span: Duration) {
        self.tell(&Order::Jump { ms: millis(span) });
    }

    /// Waits until what it left behind is cleared up.
    pub fn settle(&mut self) {
        self.tell(&Order::Settle);
        self.finish();
    }

    /// Begins to carry a load; [`tally`](Self::tally) returns the result.
    pub fn begin_load(&mut self, load: &Load) {
        self.tell(&Order::Load(load.clone()));
    }

    /// Waits until the load was carried, for so long.
    pub fn tally(&mut self, patience: Duration) -> Tally {
        match self.answers.recv_timeout(patience).expect("the load is carried in time") {
            Said::Tally(tally) => tally,
            other => panic!("the worker said {other:?}"),
        }
    }

    /// Waits until what was begun is done.
    pub fn finish(&mut self) {
        match self.answer() {
            Said::Done => {}
            other => panic!("the worker said {other:?}"),
        }
    }

    /// Stops it or lets it go on.
    pub fn signal(&mut self, signal: Signal) {
        self.process.child().signal(signal).expect("the worker runs");
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.may_end.store(true, Ordering::Relaxed);
        self.process.child().kill();
        // So that all it said, and its death, are in the history.
        let _ = self.listening.take().map(JoinHandle::join);
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn granted(&mut self, number: u32) -> Option<Fence> {
        let about = |what: &What| matches!(what, What::Grant { acquisition, .. } | What::Failed { acquisition, .. } if *acquisition == number);
        match self.wait("a grant", about) {
            What::Grant { fence, .. } => fence.map(|fence| fence.to_string().parse().expect("a fence")),
            other => panic!("{other:?}"),
        }
    }

    fn wait(&self, for_what: &str, is_it: impl Fn(&What) -> bool) -> What {
        let who = &self.who;
        self.recorder.wait(PATIENCE, &format!("{for_what} of {who}"), |event| event.who == *who && is_it(&event.what)).what
    }

    fn ask_of(&mut self, acquisition: u32, order: ClaimOrder) -> Said {
        self.tell(&Order::To { acquisition, order });
        self.answer()
    }

    fn tell(&mut self, order: &Order) {
        self.process.tell(order).expect("the worker listens");
    }

    fn answer(&mut self) -> Said {
        self.answers.recv_timeout(PATIENCE).expect("the worker answers")
    }
}

impl Process for Worker {
    fn acquire(&mut self, name: &str, ttl: Duration) -> Option<Fence> {
        self.acquire(name, ttl)
    }

    fn begin_acquire(&mut self, name: &str, ttl: Duration) {
        self.begin_acquire(name, ttl);
    }

    fn hand_over(&mut self) -> Lease {
        self.hand_over()
    }

    fn adopt(&mut self, lease: &Lease) -> Option<Fence> {
        self.adopt(lease)
    }

    fn release(&mut self) {
        self.release();
    }

    fn is_lost(&mut self) -> bool {
        self.state() == "Lost"
    }

    fn begin_visits(&mut self, name: &str, dir: &Path, times: u64) {
        self.tell(&Order::Visits { name: name.into(), dir: dir.into(), times });
    }

    fn finish_visits(&mut self) {
        self.finish();
    }

    fn stop(&mut self, stopped: bool) {
        self.signal(if stopped { Signal::Stop } else { Signal::Cont });
    }

    fn kill(&mut self) {
        self.kill();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.may_end.store(true, Ordering::Relaxed);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("a sane span")
}

/// Takes down what a worker says.
struct Listener {
    who: String,
    recorder: Recorder,
    says: mpsc::Sender<Said>,
    may_end: Arc<AtomicBool>,
}

impl Listener {
    /// Whether more may follow.
    fn hears(&self, said: io::Result<Option<Said>>) -> bool {
        match said.unwrap_or_else(|error| panic!("the worker: {error}")) {
            Some(Said::Event { at, what }) => {
                if matches!(what, What::Failed { acquisition: 0, .. }) {
                    self.may_end.store(true, Ordering::Relaxed);
                }
                self.recorder.add(Event { at, who: self.who.clone(), what });
                true
            }
            Some(answer) => {
                // Nobody asks any more when the controller is gone.
                let _ = self.says.send(answer);
                true
            }
            None => {
                if !self.may_end.load(Ordering::Relaxed) {
                    let text = "the worker has ended by itself".to_owned();
                    self.recorder.record(&*self.who, What::Failed { acquisition: 0, kind: None, text });
                }
                self.recorder.record(&*self.who, What::Died);
                false
            }
        }
    }
}
