//! The lines of the page, in stories. What the library promises beyond them is seen by the conformance cases of each scheme.

use tenure::{EndReason, ErrorKind, Guard, Lease, Locker, Name, Owner, ReleaseOutcome, Share, State};
use tenure_redis::Options;

use super::{Done, Here, JAVA, PHP, SET_NX, SHEDLOCK, SPRING, TAKE, ms, secs};

/// Where the class of PHP keeps the lock of an invoice.
const KEY: &str = "Lock:invoice";

#[tokio::test]
async fn php_lock() -> Done {
    let (here, name, timeout, expire) = (Here::new(PHP), "invoice", secs(10), secs(15));
    let (locks, others) = (here.locks().await, here.locks().await);
    let guard = locks.mutex(name).ttl(expire).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert!(others.mutex(name).try_acquire().await?.is_none());
    assert_eq!(here.code("tenure acquire -n --ttl 15s invoice"), 75);
    let held = others.mutex(name).wait(ms(200)).acquire().await.unwrap_err();
    assert_eq!(held.kind(), ErrorKind::TimedOut);
    assert_eq!(held.holder().map(|holder| &holder.owner), Some(guard.token()));
    let _ = guard.release().await?;
    assert_eq!(here.code("tenure acquire -n --ttl 15s invoice"), 0);
    assert!((13_000..=15_000).contains(&here.server.command(&["PTTL", KEY]).int()));
    // Somebody who is done before the time is.
    let soon = || here.server.command(&["SET", KEY, "other", "PX", "300"]);
    soon();
    let _ = locks.mutex(name).wait(timeout).ttl(expire).fixed_lease().acquire().await?.release().await?;
    soon();
    assert_eq!(here.code("tenure acquire -w 10 --ttl 15s invoice"), 0);
    soon();
    let interval = ms(20);
    let _ = locks.mutex(name).poll_interval(interval).wait(timeout).ttl(expire).fixed_lease().acquire().await?.release().await?;
    soon();
    assert_eq!(here.code(r#"tenure acquire -w 10 --ttl 15s --store "$TENURE_STORE&poll_interval=50ms" invoice"#), 0);
    here.server.command(&["DEL", KEY]);
    let short = locks.mutex(name).ttl(secs(2)).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert!(short.lease_remaining() > secs(3), "it is raised to 5 s");
    assert_eq!(locks.mutex("").try_acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(here.code(r#"tenure acquire -n """#), 64);
    assert!(locks.mutex("0").try_acquire().await?.is_some());
    Ok(())
}

#[tokio::test]
async fn php_expire() -> Done {
    let (here, name, span, expire) = (Here::new(PHP), "invoice", secs(20), secs(15));
    let guard = here.locks().await.mutex(name).ttl(secs(6)).fixed_lease().acquire().await?;
    let left = || here.server.command(&["PTTL", KEY]).int();
    for _ in 0..3 {
        guard.extend(expire).await?;
    }
    assert!(guard.remaining() > secs(10));
    guard.extend(span).await?;
    assert!((15_000..=20_000).contains(&left()));
    guard.extend(secs(6)).await?;
    assert!(guard.lease_remaining() > secs(15), "it was shortened");
    assert_eq!(guard.extend(ms(100)).await.unwrap_err().kind(), ErrorKind::Invalid);
    here.server.command(&["SET", KEY, "other", "PX", "60000"]);
    assert_eq!(guard.extend(span).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(left() > 50_000, "another's lease was changed");
    here.server.command(&["DEL", KEY]);
    let renewed = here.sh(&[TAKE, r#"tenure renew invoice --token "$TENURE_TOKEN" --ttl 20s"#].concat());
    assert!(renewed.code == 0 && (15_000..=20_000).contains(&left()), "{renewed:?}");
    assert_eq!(here.code(r#"TENURE_TOKEN=mine; tenure renew invoice --token "$TENURE_TOKEN" --ttl 20s"#), 79);
    here.server.command(&["DEL", KEY]);
    let each = r#"tenure renew invoice --token "$TENURE_TOKEN" --ttl 15s || exit"#;
    assert_eq!(here.code(&format!("{TAKE} for row in 1 2 3; do {each}; done; exit 3")), 3);
    assert_eq!(here.code(&format!("TENURE_TOKEN=mine; for row in 1 2 3; do {each}; done; exit 3")), 79);
    Ok(())
}

#[tokio::test]
async fn php_unlock() -> Done {
    let (here, name) = (Here::new(PHP), "invoice");
    let locks = here.locks().await;
    let take = |name: &str| locks.mutex(name).ttl(secs(15)).fixed_lease();
    let guard = take(name).acquire().await?;
    guard.verify().await?;
    assert!(matches!(guard.release().await?, ReleaseOutcome::Released) && here.is_free());
    let guard = take(name).acquire().await?;
    here.server.command(&["SET", KEY, "other"]);
    assert_eq!(guard.state(), State::Held, "nobody has asked yet");
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((guard.state(), guard.end_reason()), (State::Lost, Some(EndReason::Gone)));
    assert!(matches!(guard.release().await?, ReleaseOutcome::WasLost));
    assert_eq!(here.server.command(&["GET", KEY]).text(), "other");
    let unlock = r#"tenure release invoice --token "$TENURE_TOKEN""#;
    let asks = r#"tenure show -o json invoice | grep -qF "$TENURE_TOKEN""#;
    assert_eq!(here.code(&format!("TENURE_TOKEN=mine; {asks}")), 1);
    assert_eq!(here.code(&format!("TENURE_TOKEN=mine; {unlock}")), 79);
    here.server.command(&["DEL", KEY]);
    assert_eq!((here.code(&format!("{TAKE} {asks} && {unlock}")), here.is_free()), (0, true));
    let (_a, _b, lost) = (take("a").acquire().await?, take("b").acquire().await?, take("lost").acquire().await?);
    here.server.command(&["DEL", "Lock:b", "Lock:lost"]);
    assert!(lost.verify().await.is_err());
    let all = locks.release_all().await;
    let told: Vec<_> =
        all.iter().map(|(name, release)| (name.as_str(), matches!(release, Ok(ReleaseOutcome::Released)))).collect();
    assert_eq!(told, [("a", true), ("b", false)]);
    assert_eq!(here.server.command(&["EXISTS", "Lock:a", "Lock:b", "Lock:lost"]), 0);
    Ok(())
}

#[tokio::test]
async fn java_lock() -> Done {
    let (here, name, wait, lease) = (Here::new(JAVA), "invoice", secs(10), secs(4));
    let (locks, others) = (here.locks().await, here.locks().await);
    let guard = locks.mutex(name).acquire().await?;
    here.server.command(&["DEL", "invoice"]);
    assert!(guard.verify().await.is_err());
    assert_eq!(guard.run(std::future::pending::<()>()).await.unwrap_err().kind(), ErrorKind::Lost);
    let guard = locks.mutex(name).try_acquire().await?.ok_or("it is free")?;
    assert!(others.mutex(name).try_acquire().await?.is_none());
    assert_eq!(others.mutex(name).wait(ms(100)).acquire().await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!((here.code("tenure run -n invoice -- ./charge"), here.ran()), (75, 0));
    let (next, _) = tokio::join!(async { locks.mutex(name).wait(wait).acquire().await }, guard.release());
    let _ = next?.release().await?;
    let guard = locks.mutex(name).wait(wait).ttl(lease).fixed_lease().acquire().await?;
    assert!((1..=4_000).contains(&here.server.command(&["PTTL", "invoice"]).int()));
    let _ = guard.release().await?;
    for (line, ran) in [
        ("tenure run invoice -- ./charge", 1),
        ("tenure run -n invoice -- ./charge", 2),
        ("tenure run -w 10 invoice -- ./charge", 3),
        ("tenure run -w 10 --ttl 30s --no-renew invoice -- ./charge", 4),
    ] {
        assert_eq!((here.code(line), here.ran()), (0, ran), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn java_unlock() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let guard = locks.mutex(name).acquire().await?;
    let again = guard.reenter();
    assert_eq!(guard.holds(), 2);
    assert!(matches!(again.release().await?, ReleaseOutcome::StillHeld(1)));
    assert_eq!(guard.holds(), 1);
    assert!(locks.mutex(name).try_acquire().await?.is_none(), "what holds is the guard");
    assert!(matches!(guard.release().await?, ReleaseOutcome::Released) && here.is_free());
    drop(locks.mutex(name).acquire().await?);
    locks.flush_releases().await;
    assert!(here.is_free());
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
async fn java_look() -> Done {
    let (here, name) = (Here::new(JAVA), "invoice");
    let locks = here.locks().await;
    let shown = || here.sh("tenure show -o json invoice").out;
    assert_eq!((locks.inspect(name).await?.is_some(), &*shown()), (false, "[]\n"));
    here.server.command(&["SET", "invoice", "other"]);
    assert_eq!(locks.inspect(name).await?.map(|entry| entry.holders[0].ttl), Some(None));
    assert!(shown().contains("\"ttl_ms\":null"), "{}", shown());
    here.server.command(&["DEL", "invoice"]);
    let guard = locks.mutex(name).ttl(secs(6)).acquire().await?;
    assert!((secs(3)..=secs(6)).contains(&guard.lease_remaining()));
    assert!(locks.inspect(name).await?.is_some_and(|entry| entry.holders[0].ttl.is_some_and(|left| left <= secs(6))));
    assert!(guard.state() != State::Lost);
    assert_eq!(here.code("tenure break invoice"), 0);
    assert_eq!(guard.lost().await, EndReason::Gone);
    assert_eq!((guard.state(), here.code("tenure break invoice")), (State::Lost, 1));
    // Of Redisson, with its scheme.
    let (theirs, there) = ("00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48", Here::new("?scheme=redisson"));
    there.server.command(&["HSET", "invoice", theirs, "1"]);
    assert!(there.sh("tenure show -o json invoice").out.contains(theirs));
    Ok(())
}

fn given() -> Owner {
    Owner::from_bytes(&b"1700000010000"[..])
}

#[tokio::test]
async fn spring_lock() -> Done {
    for scheme in SPRING {
        let (here, key, timeout, ttl) = (Here::new(scheme), "order/7", secs(10), secs(10));
        let locks = here.locks().await;
        let value = given();
        let guard = locks.mutex(key).token(value).ttl(timeout).fixed_lease().try_acquire().await?.ok_or("it is free")?;
        let at_the_key = here.server.command(&["GET", "order/7"]).text();
        assert_eq!(at_the_key == "1700000010000", scheme == SPRING[0], "{scheme}: {at_the_key}");
        let again = here.locks().await.mutex(key).token(given()).ttl(timeout).fixed_lease().try_acquire().await?;
        assert!(again.is_none(), "{scheme}");
        assert_eq!(here.code("tenure acquire -n --ttl 10s --token 1700000010000 order/7"), 75, "{scheme}");
        drop(guard.into_lease());
        let wrong = Lease::new(Name::new(key)?, Owner::from_bytes(&b"2"[..]), Share::MUTEX, ttl);
        assert!(matches!(locks.release(&wrong).await?, ReleaseOutcome::WasLost), "{scheme}");
        let (name, value) = (Name::new(key)?, given());
        let released = locks.release(&Lease::new(name, value, Share::MUTEX, ttl)).await?;
        assert!(matches!(released, ReleaseOutcome::Released) && here.is_free(), "{scheme}");
        // Once more by the command, in processes that are really two.
        assert_eq!(here.code("tenure acquire -n --ttl 10s --token 1700000010000 order/7"), 0, "{scheme}");
        assert_eq!(here.code("tenure release order/7 --token 2"), 79, "{scheme}");
        assert_eq!(here.code("tenure release order/7 --token 1700000010000"), 0, "{scheme}");
        let guard = locks.mutex(key).ttl(secs(15)).acquire().await?;
        let lease = guard.into_lease();
        let locks = here.locks().await;
        let adopted = locks.adopt(&lease).await?;
        assert_ne!(adopted.token(), &lease.owner, "{scheme}");
        assert!(matches!(adopted.release().await?, ReleaseOutcome::Released), "{scheme}");
        let there = r#"tenure release order/7 --token "$TENURE_TOKEN""#;
        let printed = here.sh("tenure acquire -n --ttl 10m order/7");
        assert_eq!((printed.code, here.is_free()), (0, false), "{scheme}");
        assert_eq!((here.code(&format!("{}\n{there}", printed.out)), here.is_free()), (0, true), "{scheme}");
    }
    Ok(())
}

#[tokio::test]
async fn set_nx_cool_down() -> Done {
    let (here, key, window) = (Here::new(SET_NX), "sign-in/42", secs(6));
    let locks = here.locks().await;
    let (rest, over) = (|| here.server.command(&["PTTL", "sign-in/42"]).int(), || here.server.command(&["DEL", "sign-in/42"]));
    let left = locks.mutex(key).ttl(window).fixed_lease().try_acquire().await?.map(Guard::into_lease);
    assert!(left.is_some() && locks.mutex(key).try_acquire().await?.is_none() && (1..=6_000).contains(&rest()));
    over();
    let guard = locks.mutex(key).min_hold(window).try_acquire().await?.ok_or("it is free")?;
    let _ = guard.release().await?;
    assert!(locks.mutex(key).min_hold(window).try_acquire().await?.is_none() && (1..=6_000).contains(&rest()));
    over();
    let guard = locks.mutex(key).try_acquire().await?.ok_or("it is free")?;
    let work = tokio::spawn(async move { guard.run(async { panic!("on purpose") }).await });
    assert!(work.await.unwrap_err().is_panic());
    locks.flush_releases().await;
    assert!(here.is_free());
    for code in [0, 75] {
        assert_eq!(here.code("tenure acquire -n --ttl 60s sign-in/42"), code);
    }
    assert!(rest() > 50_000);
    over();
    let gift = "tenure run -n sign-in/42 -- ./gift";
    assert_eq!((here.code(&format!("CODE=3 {gift}")), here.code(gift), here.ran()), (3, 0, 2));
    for code in [0, 75] {
        assert_eq!(here.code("tenure run -n --min-hold 60s sign-in/42 -- ./gift"), code);
    }
    assert_eq!(here.ran(), 3);
    Ok(())
}

#[tokio::test]
async fn shedlock_job() -> Done {
    const KEY: &str = "job-lock:default:report";
    let (here, job, at_most, at_least, span) = (Here::new(SHEDLOCK), "report", secs(120), secs(60), secs(200));
    let locks = Locker::builder(Options::parse(&here.url)?.open().await?).safety_margin(secs(2)).build()?;
    let (rest, over) = (|| here.server.command(&["PTTL", KEY]).int(), || here.server.command(&["DEL", KEY]));
    // Whether another node starts the job.
    let theirs_starts = || {
        let value = "ADDED:2026-01-01T00:00:00.000Z@node-7:00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11";
        here.server.command(&["SET", KEY, value, "NX", "PX", "60000"]) == "OK"
    };
    let guard = locks.mutex(job).ttl(at_most).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert!(!theirs_starts() && (60_001..=120_000).contains(&rest()));
    assert_eq!((here.code("tenure run -n --ttl 14m --no-renew report -- ./charge"), here.ran()), (75, 0));
    guard.extend(span).await?;
    assert!((120_001..=200_000).contains(&rest()));
    let lease = guard.into_lease();
    let line = r#"tenure renew report --token "$TENURE_TOKEN" --ttl 5m"#;
    assert!(here.code(&format!("TENURE_TOKEN={}; {line}", lease.owner)) == 0 && rest() > 200_000);
    over();
    let _ = locks.mutex(job).min_hold(at_least).try_acquire().await?.ok_or("it is free")?.release().await?;
    assert!(!theirs_starts() && (1..=60_000).contains(&rest()));
    over();
    let guard = locks.mutex(job).ttl(at_most).fixed_lease().min_hold(at_least).try_acquire().await?.ok_or("it is free")?;
    assert!((60_001..=120_000).contains(&rest()));
    let _ = guard.release().await?;
    assert!(!theirs_starts() && (1..=60_000).contains(&rest()));
    over();
    assert_eq!((here.code("tenure run -n --ttl 14m --no-renew report -- ./charge"), here.ran()), (0, 1));
    assert!(theirs_starts(), "it is free when the work is done");
    for line in
        ["tenure run -n --min-hold 5m report -- ./charge", "tenure run -n --ttl 14m --no-renew --min-hold 5m report -- ./charge"]
    {
        over();
        assert_eq!(here.code(line), 0, "{line}");
        assert!(!theirs_starts() && (60_001..=300_000).contains(&rest()), "{line}");
    }
    Ok(())
}
