//! A task that does one job after another to its end, also if nobody waits for it any more.
//!
//! A client library may leave its connection in an unknown state if a future is dropped, and a
//! connection that was lent has to go back as it came.

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// The part of the task that does the jobs.
#[async_trait]
pub(crate) trait Worker: Send + 'static {
    type Job: Send + 'static;
    type Answer: Send + 'static;

    /// Does a job. Returns whether another can be done as well.
    async fn work(&mut self, job: Self::Job) -> (Self::Answer, bool);

    /// Ends, when there will be no more jobs.
    async fn end(self);
}

/// The queue of such a task, which ends with the last of the jobs when this is dropped.
pub(crate) struct Jobs<J, A>(mpsc::UnboundedSender<(J, oneshot::Sender<A>)>);

impl<J: Send + 'static, A: Send + 'static> Jobs<J, A> {
    pub(crate) fn start(worker: impl Worker<Job = J, Answer = A>) -> (Self, AbortHandle) {
        let (jobs, work) = mpsc::unbounded_channel();
        (Self(jobs), tokio::spawn(drive(worker, work)).abort_handle())
    }

    /// Has a job done. `None` if the task has ended.
    pub(crate) async fn run(&self, job: J) -> Option<A> {
        let (reply, answer) = oneshot::channel();
        self.0.send((job, reply)).ok()?;
        answer.await.ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

async fn drive<W: Worker>(mut worker: W, mut jobs: mpsc::UnboundedReceiver<(W::Job, oneshot::Sender<W::Answer>)>) {
    while let Some((job, reply)) = jobs.recv().await {
        let (answer, goes_on) = worker.work(job).await;
        let _ = reply.send(answer);
        if !goes_on {
            return;
        }
    }
    worker.end().await;
}
