//! The way between processes and server: every command and every reply has a fate, and what was
//! sent lives on without its sender.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::store::{AcquireReply, Busy, RenewReply};
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::Flaw;
use super::clock::{At, ms};
use super::coverage::Met;
use super::mix::{Blow, Mix};
use super::network::{Answer, Command, Job, Op, Reply};
use super::world::{Inner, World};

/// A command under way. Dropped before its answer came, it is one that was given up.
#[derive(Debug)]
pub(super) struct Call {
    world: Arc<World>,
    process: usize,
    epoch: u32,
    answer: oneshot::Receiver<Answer>,
    done: bool,
}

impl Call {
    pub(super) async fn answer(mut self) -> Answer {
        let answer = (&mut self.answer).await.unwrap_or_else(|_| Err(Error::unreachable("the simulation ended").maybe_applied()));
        self.done = true;
        answer
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.world.state();
            let connection = &mut state.network.connections[self.process];
            connection.suspect |= connection.epoch == self.epoch;
        }
    }
}

impl World {
    /// Sends a command.
    pub(super) fn send(self: &Arc<Self>, process: usize, op: Op) -> Call {
        let now = self.now();
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        let epoch = if self.mix.late { 0 } else { state.connect(process) };
        let command = Command { process, epoch, sent_at: now, op, spoilt: None, copy: false, reply: Some(reply) };
        let panics = state.dispatch(&self.mix, now, command);
        let earlier = state.network.next() < state.network.asleep_until;
        drop(state);
        if earlier {
            self.wake.notify_one();
        }
        let call = Call { world: Arc::clone(self), process, epoch, answer, done: false };
        if panics {
            drop(call);
            // Without the hook, which would write of it.
            resume_unwind(Box::new("the simulated store panics"));
        }
        call
    }

    /// Carries commands and replies for as long as the run lasts.
    pub(super) async fn carry(self: Arc<Self>) {
        loop {
            let now = self.now();
            let next = {
                let mut state = self.state();
                while state.network.next() <= now {
                    let Some((_, job)) = state.network.queue.pop_first() else { break };
                    state.carry(self.as_ref(), now, job);
                }
                state.network.asleep_until = state.network.next();
                state.network.asleep_until
            };
            if next == At::MAX {
                self.wake.notified().await;
            } else {
                tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = sleep_until(self.at(next)) => {}
                }
            }
        }
    }
}

impl Inner {
    fn connect(&mut self, process: usize) -> u32 {
        let connection = &mut self.network.connections[process];
        if std::mem::take(&mut connection.suspect) {
            connection.epoch += 1;
            connection.last = 0;
        }
        connection.epoch
    }

    pub(super) fn happens(&mut self, mix: &Mix, now: At, fate: Met) -> bool {
        // Commands may be slow for a while yet: no network promises otherwise.
        let until = if fate == Met::Slow { mix.heal + ms(500) } else { mix.heal };
        let happens = now < until && mix.odds(fate) > 0 && self.rng.u32(0..1_000) < mix.odds(fate);
        if happens {
            self.coverage.met(fate);
        }
        happens
    }

    /// How long one way takes.
    pub(super) fn way(&mut self, mix: &Mix, now: At) -> u64 {
        let slow = self.happens(mix, now, Met::Slow);
        // Nothing arrives at the very moment it was sent: what its sender did before comes first.
        ms(self.rng.u64(1..=if slow { mix.slow } else { mix.way }))
    }

    /// Sends a command on its way; whether the store panics instead.
    fn dispatch(&mut self, mix: &Mix, now: At, mut command: Command) -> bool {
        let (mut request_lost, mut reply_lost) = (false, false);
        for cut in &mix.cuts {
            if cut.process == command.process && cut.from <= now && now < cut.until {
                self.coverage.met(Met::Cut);
                if cut.deaf { reply_lost = true } else { request_lost = true }
            }
        }
        if matches!(command.op, Op::Renew(_)) && self.happens(mix, now, Met::Panicked) {
            return true;
        }
        request_lost |= self.happens(mix, now, Met::LostRequest);
        let before = [
            (Met::FailedBefore, Error::unreachable("the connection was refused")),
            (Met::Unavailable, Error::unavailable("the server is loading")),
            (Met::Forbidden, Error::refused("no permission")),
        ];
        for (fate, error) in before {
            if !request_lost && self.happens(mix, now, fate) {
                let at = now + self.way(mix, now);
                self.tell(at, &mut command, Err(error));
                return false;
            }
        }
        reply_lost |= self.happens(mix, now, Met::LostReply);
        if reply_lost || request_lost {
            // Its client waits in vain.
            self.network.lost.extend(command.reply.take());
        }
        if request_lost {
            return false;
        }
        if self.happens(mix, now, Met::Reset) {
            let at = now + self.way(mix, now);
            let connection = &mut self.network.connections[command.process];
            connection.suspect |= connection.epoch == command.epoch;
            self.tell(at, &mut command, Err(Error::unreachable("the connection was reset").maybe_applied()));
        }
        let spoils = [Met::FailedAfter, Met::Abstained, Met::Partial];
        command.spoilt = spoils.into_iter().find(|&fate| spoils_it(fate, &command.op) && self.happens(mix, now, fate));
        let at = now + self.way(mix, now);
        let at = self.in_order(mix, &command, at);
        if self.happens(mix, now, Met::Twice) {
            let later = at + self.way(mix, now);
            let copy = Command { op: command.op.clone(), spoilt: None, copy: true, reply: None, ..command };
            self.network.push(at, Job::Run(command));
            let later = self.in_order(mix, &copy, later);
            self.network.push(later, Job::Run(copy));
        } else {
            self.network.push(at, Job::Run(command));
        }
        false
    }

    /// When a command runs that would arrive at `at`: not before those sent earlier on its
    /// connection.
    fn in_order(&mut self, mix: &Mix, command: &Command, at: At) -> At {
        let connection = &mut self.network.connections[command.process];
        if mix.late || connection.epoch != command.epoch {
            return at;
        }
        connection.last = connection.last.max(at);
        connection.last
    }

    fn tell(&mut self, at: At, command: &mut Command, answer: Answer) {
        if let Some(reply) = command.reply.take() {
            let gone = match (&command.op, &answer) {
                (Op::Renew(leases), Ok(Reply::Renewed(answers))) => {
                    let gone = leases.iter().zip(answers).filter(|(_, answer)| matches!(answer, Ok(RenewReply::Gone)));
                    gone.map(|(lease, _)| lease.owner.clone()).collect()
                }
                _ => Vec::new(),
            };
            self.network.push(at, Job::Tell(reply, answer, gone));
        }
    }

    fn carry(&mut self, world: &World, now: At, job: Job) {
        match job {
            Job::Tell(reply, answer, gone) => {
                // Its client may have gone.
                if reply.send(answer).is_ok() {
                    self.gone.extend(gone);
                }
            }
            Job::Notify(watcher, notice) => {
                let _ = watcher.send(notice);
            }
            Job::Blow(blow) => self.blow(now, blow),
            Job::Run(command) => {
                if let Some(&(_, until)) = world.mix.stalls.iter().find(|(from, until)| *from <= now && now < *until) {
                    self.coverage.met(Met::Stalled);
                    self.network.push(until, Job::Run(command));
                } else {
                    self.run(world, now, command);
                }
            }
        }
    }

    fn run(&mut self, world: &World, now: At, mut command: Command) {
        let connection = &mut self.network.connections[command.process];
        if command.epoch < connection.ran && world.flaw != Some(Flaw::EndsNoConnection) {
            self.coverage.met(Met::Killed);
            let at = now + self.way(&world.mix, now);
            return self.tell(at, &mut command, Err(Error::unreachable("the connection was ended").maybe_applied()));
        }
        connection.ran = connection.ran.max(command.epoch);
        if command.reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
            self.coverage.met(Met::LateCommand);
        }
        let answer = match (self.execute(world, now, &command), command.spoilt) {
            (Ok(_), Some(Met::FailedAfter)) => Err(Error::unreachable("the connection broke").maybe_applied()),
            (Ok(Reply::Renewed(answers)), Some(Met::Partial)) => Ok(Reply::Renewed(self.in_part(answers))),
            (answer, _) => answer,
        };
        let at = now + self.way(&world.mix, now);
        self.tell(at, &mut command, answer);
    }

    fn execute(&mut self, world: &World, now: At, command: &Command) -> Answer {
        Ok(match &command.op {
            Op::Acquire(_) if command.spoilt == Some(Met::Abstained) => {
                let until = Duration::from_millis(self.rng.u64(1..200));
                Reply::Acquired(AcquireReply::Refused { until, why: "it may have forgotten leases".to_owned() })
            }
            Op::Acquire(request) => {
                let done = self.server.acquire(request, now, command.sent_at, command.copy)?;
                match &done.answer {
                    AcquireReply::Granted(_) => self.given(now, &request.name, &request.owner),
                    AcquireReply::Busy(Busy { position: Some(_), .. }) => self.coverage.met(Met::Queued),
                    _ => {}
                }
                Reply::Acquired(self.settle(&world.mix, now, &request.name, done))
            }
            Op::Renew(leases) => Reply::Renewed(leases.iter().map(|lease| Ok(self.server.renew(lease, now))).collect()),
            Op::Release(lease, linger) => {
                let done = self.server.release(lease, *linger, now);
                Reply::Released(self.settle(&world.mix, now, &lease.name, done))
            }
            Op::Inspect(name) => Reply::Entries(self.server.inspect(name.as_ref(), now)),
            Op::Watch(watcher) => {
                self.network.watchers.push(watcher.clone());
                Reply::Watching
            }
        })
    }

    /// A batch of which one lease had an error, or the last ones no answer.
    fn in_part(&mut self, mut answers: Vec<Result<RenewReply, Error>>) -> Vec<Result<RenewReply, Error>> {
        let one = self.rng.usize(0..answers.len());
        if self.rng.bool() {
            answers.truncate(one);
        } else {
            answers[one] = Err(Error::refused("no permission for this name"));
        }
        answers
    }

    fn blow(&mut self, now: At, blow: Blow) {
        let met = match blow {
            Blow::Flush | Blow::Delete(_) => Met::Flush,
            Blow::Forward(_) => Met::JumpForward,
            Blow::Back(_) => Met::JumpBack,
        };
        self.server.suffer(blow);
        self.coverage.met(met);
        self.record(now, "lab", tenure_testkit::history::What::Fault { text: format!("{blow:?}") });
    }
}

fn spoils_it(fate: Met, op: &Op) -> bool {
    match fate {
        Met::Abstained => matches!(op, Op::Acquire(_)),
        Met::Partial => matches!(op, Op::Renew(_)),
        _ => true,
    }
}
