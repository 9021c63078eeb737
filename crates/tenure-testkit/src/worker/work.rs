//! Work of a worker under a lock: it reads the resource, waits as if it computed, and writes the
//! result.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::register::{Asked, Visitor};

const THOUGHT: Duration = Duration::from_millis(5);

/// Work that does not look at the guard, on a thread of its own: what a fence is there for.
pub(super) struct Work {
    end: Arc<AtomicBool>,
    ended: tokio::sync::oneshot::Receiver<()>,
}

impl Work {
    pub(super) fn begin(register: &Path, who: String, acquisition: u32, fence: Option<u64>) -> Self {
        let (end, (done, ended)) = (Arc::<AtomicBool>::default(), tokio::sync::oneshot::channel());
        let (theirs, mut visitor) = (Arc::clone(&end), Visitor::new(register, who, acquisition, fence));
        std::thread::spawn(move || {
            while !theirs.load(Ordering::Relaxed) {
                let Some(read) = visitor.ask(Asked::Read) else { break };
                std::thread::sleep(THOUGHT);
                if visitor.ask(Asked::Write { read, wrote: read + 1 }).is_none() {
                    break;
                }
                std::thread::sleep(THOUGHT);
            }
            let _ = done.send(());
        });
        Self { end, ended }
    }

    /// Ends after the write that is under way.
    pub(super) async fn end(self) {
        self.end.store(true, Ordering::Relaxed);
        let _ = self.ended.await;
    }
}

/// Work whose every step the guard can forbid.
pub(super) async fn careful(register: &Path, who: String, acquisition: u32, fence: Option<u64>) {
    let mut visitor = Visitor::new(register, who, acquisition, fence);
    while let Some(read) = visitor.ask(Asked::Read) {
        tokio::time::sleep(THOUGHT).await;
        if visitor.ask(Asked::Write { read, wrote: read + 1 }).is_none() {
            return;
        }
        tokio::time::sleep(THOUGHT).await;
    }
}
