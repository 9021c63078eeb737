use super::lead;
use tokio::signal::unix::{SignalKind, signal};

pub async fn serve(locks: &tenure::Locker) -> Result<(), Box<dyn std::error::Error>> {
    let mut term = signal(SignalKind::terminate())?;
    let leading = async {
        let candidate = locks.election("leader").candidate(tenure::default_label());
        let leadership = candidate.campaign().await?;
        leadership.run(lead()).await // Err(Lost) as soon as the leadership is lost
    };
    let outcome = tokio::select! {
        done = leading => done,
        _ = term.recv() => Ok(()), // the leadership is dropped with the future
    };
    for (name, outcome) in locks.release_all().await {
        println!("{name}: {outcome:?}"); // guards that other tasks hold
    }
    locks.flush_releases().await; // what was dropped is released before the program ends
    Ok(outcome?)
}
