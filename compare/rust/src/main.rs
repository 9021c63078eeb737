//! The Rust peers, one program: `compare PEER URL CASE TASKS SECONDS` prints what compare/harness/peers.py says. `scripts/compare` runs it.

mod drive;
mod peers;
mod raw;
mod record;
mod resp;
mod wake;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use crate::drive::{Task, drive};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [peer, url, case, tasks, seconds] = &args[..] else {
        eprintln!("compare PEER URL cycle|handover|handover-fast TASKS SECONDS");
        return ExitCode::from(64);
    };
    match measure(peer, url, case, tasks, seconds).await {
        Ok(figures) => {
            println!("{figures}");
            // Waiters that are still there are left where they are.
            std::process::exit(0);
        }
        Err(error) => {
            eprintln!("{peer}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(peer: &str, url: &str, case: &str, tasks: &str, seconds: &str) -> Result<serde_json::Value, Failure> {
    let time = Duration::from_secs_f64(seconds.parse()?);
    let task = Task { url: url.to_owned(), case: case.parse()?, tasks: tasks.parse()?, time };
    match peer {
        "raw" => raw::measure(&task).await,
        "tenure" => drive::<peers::Tenure>(task).await,
        "wake-retry" => drive::<wake::WakeRetry>(task).await,
        "wake-one" => drive::<wake::WakeOne>(task).await,
        "rslock" => drive::<peers::Rslock>(task).await,
        "distributed-lock" => drive::<peers::DistributedLock>(task).await,
        other => Err(format!("{other:?} is no peer of this program").into()),
    }
}
