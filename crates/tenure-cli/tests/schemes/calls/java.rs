//! Redisson's `RLock`.

use tenure::{EndReason, ErrorKind, Locker, ReleaseOutcome, State};
use tenure_redis::Options;

use super::{Done, Here, JAVA, ms, secs};

#[tokio::test]
async fn lock() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).acquire().await?;
    here.server.command(&["DEL", "invoice"]);
    assert!(guard.verify().await.is_err());
    let work = std::future::pending::<()>();
    assert_eq!(guard.run(work).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((here.code("tenure run invoice -- ./charge"), here.ran()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn try_lock() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).try_acquire().await?.ok_or("it is free")?;
    assert!(here.locks().await.mutex(name).try_acquire().await?.is_none());
    assert_eq!((here.code("tenure run -n invoice -- ./charge"), here.ran()), (75, 0));
    let _ = guard.release().await?;
    assert_eq!((here.code("tenure run -n invoice -- ./charge"), here.ran()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn try_lock_waits() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let (url, others) = (&here.url, here.locks().await);
    let locks = Locker::builder(Options::parse(url)?.connect().await?).ttl(secs(6)).build()?;
    let other = others.mutex(name).acquire().await?;
    let wait = ms(100);
    assert_eq!(locks.mutex(name).wait(wait).acquire().await.unwrap_err().kind(), ErrorKind::TimedOut);
    let wait = secs(10);
    let (guard, _) = tokio::join!(async { locks.mutex(name).wait(wait).acquire().await }, other.release());
    let guard = guard?;
    tokio::time::sleep(ms(6_500)).await;
    assert_eq!(guard.state(), State::Held, "nobody renewed it");
    let _ = guard.release().await?;
    assert_eq!((here.code("tenure run -w 10 invoice -- ./charge"), here.ran()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn try_lock_with_a_lease() -> Done {
    let (here, name, wait, lease) = (Here::new(JAVA), "invoice", secs(10), secs(4));
    let locks = Locker::builder(Options::parse(&here.url)?.connect().await?).safety_margin(secs(2)).build()?;
    let guard = locks.mutex(name).wait(wait).ttl(lease).fixed_lease().acquire().await?;
    assert!((1..=4_000).contains(&here.server.command(&["PTTL", "invoice"]).int()));
    assert_eq!(guard.lost().await, EndReason::Expired);
    assert!(!guard.lease_remaining().is_zero(), "told when it was too late");
    assert_eq!((here.code("tenure run -w 10 --ttl 30s --no-renew invoice -- ./charge"), here.ran()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn unlock() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).acquire().await?;
    assert!(matches!(guard.release().await?, ReleaseOutcome::Released));
    assert!(here.is_free());
    drop(locks.mutex(name).acquire().await?);
    locks.flush_releases().await;
    assert!(here.is_free());
    Ok(())
}

#[tokio::test]
async fn unlock_when_not_held() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).acquire().await?;
    here.server.command(&["DEL", "invoice"]);
    assert!(matches!(guard.release().await?, ReleaseOutcome::WasLost));
    let lease = locks.mutex(name).acquire().await?.into_lease();
    assert!(matches!(locks.release(&lease).await?, ReleaseOutcome::Released));
    assert!(matches!(locks.release(&lease).await?, ReleaseOutcome::WasLost));
    assert_eq!(here.code(r#"TENURE_TOKEN=mine; tenure release invoice --token "$TENURE_TOKEN""#), 79);
    Ok(())
}

#[tokio::test]
async fn lock_again() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).acquire().await?;
    let again = guard.reenter();
    assert!(matches!(again.release().await?, ReleaseOutcome::StillHeld(1)));
    assert!(locks.mutex(name).try_acquire().await?.is_none(), "what holds is the guard");
    assert!(matches!(guard.release().await?, ReleaseOutcome::Released));
    Ok(())
}

#[tokio::test]
async fn hold_count() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let guard = here.locks().await.mutex(name).acquire().await?;
    let again = guard.reenter();
    assert_eq!(guard.holds(), 2);
    drop(again);
    assert_eq!(guard.holds(), 1);
    Ok(())
}

#[tokio::test]
async fn remain_time_to_live() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let ttl = async || {
        let entry = locks.inspect(name).await?;
        Ok::<_, tenure::Error>(entry.map(|entry| entry.holders[0].ttl))
    };
    let shown = || here.sh("tenure show -o json invoice").out;
    assert_eq!((ttl().await?, &*shown()), (None, "[]\n"));
    here.server.command(&["SET", "invoice", "other"]);
    assert_eq!(ttl().await?, Some(None));
    assert!(shown().contains("\"ttl_ms\":null"), "{}", shown());
    here.server.command(&["DEL", "invoice"]);
    let guard = locks.mutex(name).ttl(secs(30)).acquire().await?;
    assert!((secs(20)..=secs(30)).contains(&guard.lease_remaining()));
    assert!(ttl().await?.flatten().is_some_and(|left| (secs(20)..=secs(30)).contains(&left)));
    Ok(())
}

#[tokio::test]
async fn is_locked() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    assert!(locks.inspect(name).await?.is_none());
    let _guard = locks.mutex(name).acquire().await?;
    assert!(locks.inspect(name).await?.is_some());
    assert_ne!(here.sh("tenure show -o json invoice").out, "[]\n");
    Ok(())
}

#[tokio::test]
async fn is_held() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let guard = here.locks().await.mutex(name).acquire().await?;
    assert!(guard.state() != State::Lost);
    guard.verify().await?;
    here.server.command(&["DEL", "invoice"]);
    assert!(guard.verify().await.is_err());
    assert!(guard.state() == State::Lost);
    Ok(())
}

#[tokio::test]
async fn is_held_by_thread() -> Done {
    const THEIRS: &str = "00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48";
    let here = Here::new("?scheme=redisson");
    here.server.command(&["HSET", "invoice", THEIRS, "1"]);
    assert!(here.sh("tenure show -o json invoice").out.contains(THEIRS));
    Ok(())
}

#[tokio::test]
async fn force_unlock() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let guard = here.locks().await.mutex(name).ttl(secs(6)).acquire().await?;
    assert_eq!(here.code("tenure break invoice"), 0);
    assert_eq!(guard.lost().await, EndReason::Gone);
    assert_eq!(here.code("tenure break invoice"), 1);
    Ok(())
}
