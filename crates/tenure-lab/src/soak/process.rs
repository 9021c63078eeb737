//! The processes of a soak.

use std::sync::mpsc;
use std::time::Duration;

use tenure::{BootTime, Error};
use tenure_testkit::Signal;
use tenure_testkit::lines::Process;

use super::party::{Order, Said};
use super::report::Tally;
use crate::Lab;
use crate::bench::Address;

/// How long after the end a process may take for its last word.
const LAST_WORD: Duration = Duration::from_secs(240);
/// How long it may take to open its store.
const START: Duration = Duration::from_secs(30);

/// All that run, and the names of those that were killed.
pub(super) struct Crew<'a> {
    lab: &'a Lab,
    order: Order,
    /// Where every third process reaches the store, if that is elsewhere: on the way there replies are lost.
    lossy: Option<Address>,
    members: Vec<Member>,
    started: u64,
    dead: Vec<String>,
    findings: Vec<String>,
}

struct Member {
    who: String,
    process: Process,
    says: mpsc::Receiver<Said>,
}

impl<'a> Crew<'a> {
    /// Starts so many.
    pub(super) fn start(lab: &'a Lab, order: Order, lossy: Option<Address>, count: u32) -> Result<Self, Error> {
        let mut crew = Self { lab, order, lossy, members: Vec::new(), started: 0, dead: Vec::new(), findings: Vec::new() };
        for _ in 0..count.max(1) {
            crew.add()?;
        }
        for member in &crew.members {
            match member.says.recv_timeout(START) {
                Ok(Said::Began) => {}
                Ok(Said::Failed(why)) => return Err(Error::unavailable(why)),
                _ => return Err(Error::unavailable("a process of the soak did not start")),
            }
        }
        Ok(crew)
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Stops one for a while.
    pub(super) fn stop(&mut self, index: usize, span: Duration) {
        // A process that has ended is reported at the end.
        if self.members[index].process.child().signal(Signal::Stop).is_ok() {
            std::thread::sleep(span);
            let _ = self.members[index].process.child().signal(Signal::Cont);
        }
    }

    /// Kills one, and starts another in its place.
    pub(super) fn kill(&mut self, index: usize) -> Result<(), Error> {
        let Member { who, mut process, says } = self.members.swap_remove(index);
        let ended = says.try_iter().any(|said| matches!(said, Said::Ended(_) | Said::Failed(_)));
        if ended || !matches!(process.child().try_wait(), Ok(None)) {
            self.findings.push(format!("{who} had ended before it was to be killed"));
        }
        process.child().kill();
        self.dead.push(who);
        self.add()
    }

    /// Waits for the last words of all; and who was killed.
    pub(super) fn end(self) -> (Tally, Vec<String>) {
        let until = BootTime::now() + LAST_WORD;
        let mut tally = Tally::default();
        tally.findings.extend(self.findings);
        for Member { who, process: _ends_now, says } in self.members {
            let last = loop {
                match says.recv_timeout(until.since(BootTime::now())) {
                    Ok(Said::Began) => {}
                    other => break other,
                }
            };
            match last {
                Ok(Said::Ended(its)) => tally.absorb(*its),
                Ok(Said::Failed(why)) => tally.findings.add(format!("{who}: {why}")),
                _ => tally.findings.add(format!("{who} ended without a word")),
            }
        }
        (tally, self.dead)
    }

    fn add(&mut self) -> Result<(), Error> {
        self.started += 1;
        let (who, seed) = (format!("P{}", self.started), self.order.seed.wrapping_add(self.started));
        let failed = |error| Error::unavailable("no process can be started").with_source(error);
        let mut process = Process::start(self.lab.worker(&["soak"])).map_err(failed)?;
        let address = self.lossy.clone().filter(|_| self.started % 3 == 1).or_else(|| self.order.address.clone());
        process.tell(&Order { who: who.clone(), seed, address, ..self.order.clone() }).map_err(failed)?;
        let (heard, says) = mpsc::channel();
        process.listen(move |said| said.ok().flatten().is_some_and(|said| heard.send(said).is_ok()));
        self.members.push(Member { who, process, says });
        Ok(())
    }
}
