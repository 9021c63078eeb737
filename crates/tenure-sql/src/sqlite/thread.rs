//! The one thread that owns the connection.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tenure::store::record::Listeners;
use tenure::{Error, ErrorKind};
use tokio::sync::oneshot;

use super::file::LockFile;
use super::patience;
use super::share::Sharing;

type Job = Box<dyn FnOnce(&mut LockFile) + Send>;

/// The first open may have to wait for other processes that make the file.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// A process with more calls than this is no short command: it stays.
const SHORT: usize = 50;

/// How long a tidy-up waits for other processes, which wait for it meanwhile.
const TIDY_LIMIT: Duration = Duration::from_millis(50);

/// Sends work to the thread. The thread ends when the last clone is dropped and all work that was
/// sent is done.
#[derive(Clone, Debug)]
pub(super) struct Worker(mpsc::Sender<Job>);

impl Worker {
    /// Starts the thread, which opens the file and then calls `opened` with itself.
    pub(super) fn start(
        path: PathBuf,
        sharing: Sharing,
        listeners: Listeners,
        opened: impl FnOnce(Result<Self, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let worker = Self(sender);
        let run = move || match patience::until(Instant::now() + OPEN_LIMIT, || LockFile::open(path, sharing, listeners)) {
            Ok(mut file) => {
                opened(Ok(worker));
                serve(&mut file, &jobs);
            }
            Err(error) => opened(Err(error)),
        };
        match thread::Builder::new().name("tenure-sqlite".into()).stack_size(512 * 1024).spawn(run) {
            Ok(_) => Ok(()),
            Err(e) => Err(Error::unreachable("the system gave no thread for the lock file").with_source(e)),
        }
    }

    /// Runs `work` on the thread, after earlier work, and waits for other processes within `limit`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work still runs. If it has not begun and is `skippable`, it is
    /// left out.
    pub(super) async fn call<T, W>(&self, limit: Duration, skippable: bool, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: FnOnce(&mut LockFile) -> Result<T, Error> + Send + 'static,
    {
        // A caller that gives up at the limit would not learn that nothing was done.
        let until = Instant::now() + limit.mul_f64(0.8);
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |file| {
            if !(skippable && reply.is_closed()) {
                // The caller may have gone.
                let _ = reply.send(patience::until(until, || work(file)));
            }
        });
        self.0.send(job).map_err(|_| ended())?;
        answer.await.map_err(|_| ended().maybe_applied())?
    }
}

fn serve(file: &mut LockFile, jobs: &mpsc::Receiver<Job>) {
    for (done, job) in jobs.iter().enumerate() {
        if done == SHORT {
            file.stays();
        }
        job(file);
        // The caller has its answer and does not wait for this.
        patience::until(Instant::now() + TIDY_LIMIT, || file.tidy());
    }
}

/// Nothing but a panic ends the thread while a handle is left.
pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Damaged, "the thread that keeps the lock file has ended").with_hint("open the file again")
}
