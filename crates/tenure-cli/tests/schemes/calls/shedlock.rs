//! `@SchedulerLock`: how long a job is locked at most, and at least.

use tenure::Locker;
use tenure_redis::Options;

use super::{Done, Here, SHEDLOCK, secs};

impl Here {
    /// Whether another node starts the job.
    fn theirs_starts(&self) -> bool {
        let value = "ADDED:2026-01-01T00:00:00.000Z@node-7:00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11";
        self.server.command(&["SET", "job-lock:default:report", value, "NX", "PX", "60000"]) == "OK"
    }

    /// The rest of the time for which the job is locked, in ms.
    fn rest(&self) -> i64 {
        self.server.command(&["PTTL", "job-lock:default:report"]).int()
    }

    fn unlock(&self) {
        self.server.command(&["DEL", "job-lock:default:report"]);
    }
}

#[tokio::test]
async fn at_most() -> Done {
    let (here, job, at_most) = (Here::new(SHEDLOCK), "report", secs(4));
    let locks = Locker::builder(Options::parse(&here.url)?.open().await?).safety_margin(secs(2)).build()?;
    let guard = locks.mutex(job).ttl(at_most).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert!(!here.theirs_starts() && (1..=4_000).contains(&here.rest()));
    let _ = guard.lost().await;
    assert!(!here.theirs_starts(), "ours knows of the end before it comes");
    while !here.theirs_starts() {
        tokio::time::sleep(secs(1) / 20).await;
    }
    drop(guard);
    locks.flush_releases().await;
    assert!(here.rest() > 0, "theirs goes on");
    let line = "tenure run -n --ttl 14m --no-renew report -- ./charge";
    assert_eq!((here.code(line), here.ran()), (75, 0));
    here.unlock();
    assert_eq!((here.code(line), here.ran()), (0, 1));
    assert!(here.theirs_starts(), "it is free when the work is done");
    Ok(())
}

#[tokio::test]
async fn at_least() -> Done {
    let (here, job, at_least) = (Here::new(SHEDLOCK), "report", secs(60));
    let locks = here.locks().await;
    let guard = locks.mutex(job).min_hold(at_least).try_acquire().await?.ok_or("it is free")?;
    let _ = guard.release().await?;
    assert!(!here.theirs_starts() && (1..=60_000).contains(&here.rest()));
    here.unlock();
    assert_eq!(here.code("tenure run -n --min-hold 5m report -- ./charge"), 0);
    assert!(!here.theirs_starts() && (60_001..=300_000).contains(&here.rest()));
    Ok(())
}

#[tokio::test]
async fn at_most_and_at_least() -> Done {
    let (here, job, at_most, at_least) = (Here::new(SHEDLOCK), "report", secs(120), secs(60));
    let locks = here.locks().await;
    let guard = locks.mutex(job).ttl(at_most).fixed_lease().min_hold(at_least).try_acquire().await?.ok_or("it is free")?;
    assert!((60_001..=120_000).contains(&here.rest()));
    let _ = guard.release().await?;
    assert!(!here.theirs_starts() && (1..=60_000).contains(&here.rest()));
    here.unlock();
    assert_eq!(here.code("tenure run -n --ttl 14m --no-renew --min-hold 5m report -- ./charge"), 0);
    assert!(!here.theirs_starts() && (60_001..=300_000).contains(&here.rest()));
    Ok(())
}

#[tokio::test]
async fn extend_active_lock() -> Done {
    let (here, job, span) = (Here::new(SHEDLOCK), "report", secs(60));
    let locks = here.locks().await;
    let guard = locks.mutex(job).ttl(secs(10)).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    guard.extend(span).await?;
    assert!((10_001..=60_000).contains(&here.rest()));
    let lease = guard.into_lease();
    let line = r#"tenure renew report --token "$TENURE_TOKEN" --ttl 5m"#;
    let code = here.code(&format!("TENURE_TOKEN={}; {line}", lease.owner));
    assert!(code == 0 && here.rest() > 60_000, "{code}");
    Ok(())
}
