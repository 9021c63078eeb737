//! The PHP class with `lock`, `expire`, `isLocking`, `unlock` and `unlockAll`.

use std::time::Instant;

use tenure::{EndReason, ErrorKind, ReleaseOutcome, State};

use super::{Done, Here, PHP, TAKE, ms, secs};

/// Where the class keeps the lock of an invoice.
const KEY: &str = "Lock:invoice";

#[tokio::test]
async fn lock_tries_once() -> Done {
    let (here, name, expire) = (Here::new(PHP), "invoice", secs(15));
    let (locks, others) = (here.locks().await, here.locks().await);
    let guard = locks.mutex(name).ttl(expire).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert!(others.mutex(name).try_acquire().await?.is_none());
    assert_eq!(here.code("tenure acquire -n --ttl 15s invoice"), 75);
    let _ = guard.release().await?;
    assert_eq!(here.code("tenure acquire -n --ttl 15s invoice"), 0);
    assert!((13_000..=15_000).contains(&here.server.command(&["PTTL", KEY]).int()));
    here.server.command(&["DEL", KEY]);
    let short = locks.mutex(name).ttl(secs(2)).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert!(short.lease_remaining() > secs(3), "it is raised to 5 s");
    Ok(())
}

#[tokio::test]
async fn lock_waits() -> Done {
    let (here, name, timeout, expire) = (Here::new(PHP), "invoice", secs(10), secs(15));
    let locks = here.locks().await;
    // Somebody who is done before the time is.
    here.server.command(&["SET", KEY, "other", "PX", "300"]);
    let guard = locks.mutex(name).wait(timeout).ttl(expire).fixed_lease().acquire().await?;
    assert_eq!(here.code("tenure acquire -w 200ms --ttl 15s invoice"), 75);
    let held = here.locks().await.mutex(name).wait(ms(200)).acquire().await.unwrap_err();
    assert_eq!(held.kind(), ErrorKind::TimedOut);
    assert_eq!(held.holder().map(|holder| &holder.owner), Some(guard.token()));
    let _ = guard.release().await?;
    here.server.command(&["SET", KEY, "other", "PX", "300"]);
    assert_eq!(here.code("tenure acquire -w 10 --ttl 15s invoice"), 0);
    Ok(())
}

#[tokio::test]
async fn lock_asks_in_an_interval() -> Done {
    let (here, name, expire) = (Here::new(PHP), "invoice", secs(15));
    let (locks, timeout) = (here.locks().await, ms(2_400));
    here.server.command(&["SET", KEY, "other"]);
    let mut asked = Vec::new();
    for interval in [ms(20), ms(300)] {
        let before = here.commands();
        let wait = locks.mutex(name).poll_interval(interval).wait(timeout).ttl(expire).fixed_lease().acquire().await;
        assert_eq!(wait.unwrap_err().kind(), ErrorKind::TimedOut);
        asked.push(here.commands() - before);
    }
    assert!(asked[0] > asked[1] + 5, "{asked:?}");
    let freed = std::thread::spawn({
        let mut client = here.server.connect()?;
        move || {
            std::thread::sleep(ms(300));
            client.command(&["DEL", KEY]).unwrap()
        }
    });
    assert_eq!(here.code(r#"tenure acquire -w 10 --ttl 15s --store "$TENURE_STORE&poll_interval=50ms" invoice"#), 0);
    assert_eq!(freed.join().unwrap(), 1);
    Ok(())
}

#[tokio::test]
async fn lock_without_a_name() -> Done {
    let here = Here::new(PHP);
    let locks = here.locks().await;
    assert_eq!(locks.mutex("").try_acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(here.code(r#"tenure acquire -n """#), 64);
    assert!(locks.mutex("0").try_acquire().await?.is_some());
    Ok(())
}

#[tokio::test]
async fn expire() -> Done {
    let (here, name, span) = (Here::new(PHP), "invoice", secs(20));
    let locks = here.locks().await;
    let guard = locks.mutex(name).ttl(secs(6)).fixed_lease().acquire().await?;
    guard.extend(span).await?;
    assert!((15_000..=20_000).contains(&here.server.command(&["PTTL", KEY]).int()));
    guard.extend(secs(6)).await?;
    assert!(guard.lease_remaining() > secs(15), "it was shortened");
    assert_eq!(guard.extend(ms(100)).await.unwrap_err().kind(), ErrorKind::Invalid);
    here.server.command(&["SET", KEY, "other", "PX", "60000"]);
    assert_eq!(guard.extend(span).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(here.server.command(&["PTTL", KEY]).int() > 50_000, "another's lease was changed");
    here.server.command(&["DEL", KEY]);
    let renewed = here.sh(&[TAKE, r#"tenure renew invoice --token "$TENURE_TOKEN" --ttl 20s"#].concat());
    assert_eq!(renewed.code, 0, "{renewed:?}");
    assert!((15_000..=20_000).contains(&here.server.command(&["PTTL", KEY]).int()));
    assert_eq!(here.code(r#"TENURE_TOKEN=mine; tenure renew invoice --token "$TENURE_TOKEN" --ttl 20s"#), 79);
    Ok(())
}

#[tokio::test]
async fn expire_in_a_loop() -> Done {
    let (here, name, expire) = (Here::new(PHP), "invoice", secs(15));
    let guard = here.locks().await.mutex(name).ttl(expire).fixed_lease().acquire().await?;
    let end = || Instant::now() + guard.remaining();
    for _ in 0..3 {
        let before = end();
        tokio::time::sleep(ms(200)).await;
        guard.extend(expire).await?;
        assert!(end() > before + ms(100), "{before:?}");
    }
    let _ = guard.release().await?;
    let each = r#"tenure renew invoice --token "$TENURE_TOKEN" --ttl 15s || exit"#;
    assert_eq!(here.code(&format!("{TAKE} for row in 1 2 3; do {each}; done; exit 3")), 3);
    assert_eq!(here.code(&format!("TENURE_TOKEN=mine; for row in 1 2 3; do {each}; done; exit 3")), 79);
    Ok(())
}

#[tokio::test]
async fn is_locking() -> Done {
    let (here, name) = (Here::new(PHP), "invoice");
    let guard = here.locks().await.mutex(name).ttl(secs(15)).fixed_lease().acquire().await?;
    guard.verify().await?;
    here.server.command(&["SET", KEY, "other", "PX", "60000"]);
    assert_eq!(guard.state(), State::Held, "nobody has asked yet");
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((guard.state(), guard.end_reason()), (State::Lost, Some(EndReason::Gone)));
    let asks = r#"tenure show -o json invoice | grep -qF "$TENURE_TOKEN""#;
    assert_eq!(here.code(&format!("TENURE_TOKEN=mine; {asks}")), 1);
    here.server.command(&["DEL", KEY]);
    assert_eq!(here.code(&format!("{TAKE} {asks}")), 0);
    Ok(())
}

#[tokio::test]
async fn unlock() -> Done {
    let (here, name) = (Here::new(PHP), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).ttl(secs(15)).fixed_lease().acquire().await?;
    assert!(matches!(guard.release().await?, ReleaseOutcome::Released));
    assert!(here.is_free());
    let guard = locks.mutex(name).ttl(secs(15)).fixed_lease().acquire().await?;
    here.server.command(&["SET", KEY, "other"]);
    assert!(matches!(guard.release().await?, ReleaseOutcome::WasLost));
    assert_eq!(here.server.command(&["GET", KEY]).text(), "other");
    let unlock = r#"tenure release invoice --token "$TENURE_TOKEN""#;
    assert_eq!(here.code(&format!("TENURE_TOKEN=mine; {unlock}")), 79);
    here.server.command(&["DEL", KEY]);
    assert_eq!(here.code(&format!("{TAKE} {unlock}")), 0);
    assert!(here.is_free());
    Ok(())
}

#[tokio::test]
async fn unlock_all() -> Done {
    let here = Here::new(PHP);
    let locks = here.locks().await;
    assert!(locks.release_all().await.is_empty(), "nothing is held");
    let mut guards = Vec::new();
    for name in ["a", "b", "lost"] {
        guards.push(locks.mutex(name).ttl(secs(15)).fixed_lease().acquire().await?);
    }
    here.server.command(&["DEL", "Lock:b", "Lock:lost"]);
    assert!(guards[2].verify().await.is_err());
    let all = locks.release_all().await;
    let told: Vec<_> =
        all.iter().map(|(name, release)| (name.as_str(), matches!(release, Ok(ReleaseOutcome::Released)))).collect();
    assert_eq!(told, [("a", true), ("b", false)]);
    assert_eq!(here.server.command(&["EXISTS", "Lock:a", "Lock:b", "Lock:lost"]), 0);
    Ok(())
}
