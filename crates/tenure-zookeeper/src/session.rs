//! A session: nodes live as long as it does, and it outlives its connections.
//!
//! A task owns the connection. Requests of one session are executed in the order in which they were
//! sent.

mod call;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::call::{Call, Command, Shared};
pub(crate) use self::call::{How, Reply, SILENT};
use self::task::{Task, dial};
use crate::failure::Failed;
use crate::link::{Identity, Undialled};
use crate::wire::Frame;

pub(crate) type Pending = oneshot::Receiver<Result<Reply, Failed>>;

/// Waits for an answer.
pub(crate) async fn answer(pending: &mut Pending) -> Result<Reply, Failed> {
    // Without one, the runtime of the session has ended.
    pending.await.unwrap_or(Err(Failed::Cut { sent: true }))
}

/// A session of the ensemble. It is closed when nobody has it any more.
#[derive(Debug)]
pub(crate) struct Session {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
    /// The timeout that it was made with.
    pub(crate) made: Duration,
    /// Entries that have their nodes here, and those of them that wait.
    pub(crate) users: AtomicUsize,
    pub(crate) waiters: AtomicUsize,
}

impl Session {
    /// Makes a session. The ensemble knows it by the timeout `made`, and this connection by the one that is `wanted`. A leader
    /// that is elected later, or one that hears of the session from another server, may go by `made`.
    pub(crate) async fn open(
        how: Arc<How>,
        made: Duration,
        wanted: Duration,
        end: Instant,
        runtime: &Handle,
    ) -> Result<Self, Undialled> {
        let (mut identity, mut at) = (Identity::default(), fastrand::usize(..how.hosts.len()));
        let (link, made) = dial(&how, &mut identity, made, end, &mut at).await?;
        let (link, timeout) = if wanted >= made {
            (link, made)
        } else {
            drop(link);
            dial(&how, &mut identity, wanted, end, &mut at).await?
        };
        let (commands, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(timeout));
        let task = Task::new(how, (identity, at), shared.clone(), received, (made, timeout));
        runtime.spawn(task.run(link));
        Ok(Self { commands, shared, made, users: AtomicUsize::new(0), waiters: AtomicUsize::new(0) })
    }

    /// The timeout in force.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.shared.timeout.load(Ordering::Acquire))
    }

    /// Whether a server takes its requests, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        !self.shared.is_adrift.load(Ordering::Acquire)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shared.over.borrow().is_some() || self.commands.is_closed()
    }

    /// Whether the ensemble has ended it. If it was given up here, its nodes may be there for another timeout.
    pub(crate) fn has_expired(&self) -> bool {
        *self.shared.over.borrow() == Some(Failed::Over)
    }

    /// Waits until the session is lost.
    pub(crate) async fn over(&self) {
        let mut over = self.shared.over.subscribe();
        let _ = over.wait_for(Option::is_some).await;
    }

    /// Sends requests one behind the other. One whose answer nobody wants any more is not sent.
    pub(crate) fn ask_all<const N: usize>(&self, frames: [Frame; N]) -> [Pending; N] {
        let mut calls = Vec::with_capacity(N);
        let pending = frames.map(|frame| {
            let (reply, pending) = oneshot::channel();
            calls.push(Call { frame, reply });
            pending
        });
        if let Err(mpsc::error::SendError(Command::Calls(calls))) = self.commands.send(Command::Calls(calls)) {
            let failed = self.shared.over.borrow().unwrap_or(Failed::Cut { sent: true });
            for call in calls {
                call.answer(Err(failed));
            }
        }
        pending
    }

    /// Sends requests one behind the other, and returns their answers.
    pub(crate) async fn ask_each(&self, frames: Vec<Frame>) -> Vec<Result<Reply, Failed>> {
        let mut pending: Vec<_> = frames.into_iter().map(|frame| self.ask_all([frame])).collect();
        let mut answers = Vec::with_capacity(pending.len());
        // They come in order. So when the last one is there, nothing has to be waited for any more.
        while let Some([mut last]) = pending.pop() {
            answers.push(answer(&mut last).await);
        }
        answers.reverse();
        answers
    }

    pub(crate) async fn ask(&self, frame: Frame) -> Result<Reply, Failed> {
        let [mut pending] = self.ask_all([frame]);
        answer(&mut pending).await
    }

    /// Connects with this timeout from now on. It does not become shorter unless it `shortens`.
    pub(crate) async fn retime(&self, timeout: Duration, shortens: bool) {
        let (done, is_done) = oneshot::channel();
        let _ = self.commands.send(Command::Retime { timeout, shortens, done });
        let _ = is_done.await;
    }
}
