//! `SET key value NX EX` for an action that is not to be done twice.

use std::time::Instant;

use tenure::Guard;

use super::{Done, Here, SET_NX, secs};

#[tokio::test]
async fn cool_down() -> Done {
    let (here, key, window) = (Here::new(SET_NX), "sign-in/42", secs(6));
    let locks = here.locks().await;
    let began = Instant::now();
    let left = locks.mutex(key).ttl(window).fixed_lease().try_acquire().await?.map(Guard::into_lease);
    assert!(left.is_some());
    let again = locks.mutex(key).ttl(window).fixed_lease().acquire().await?;
    assert!(began.elapsed() >= window, "{:?}", began.elapsed());
    let _ = again.release().await?;
    for code in [0, 75] {
        assert_eq!(here.code("tenure acquire -n --ttl 60s sign-in/42"), code);
    }
    assert!(here.server.command(&["PTTL", "sign-in/42"]).int() > 50_000);
    Ok(())
}

#[tokio::test]
async fn cool_down_with_work() -> Done {
    let (here, key, window) = (Here::new(SET_NX), "sign-in/42", secs(2));
    let locks = here.locks().await;
    let guard = locks.mutex(key).min_hold(window).try_acquire().await?.ok_or("it is free")?;
    let _ = guard.release().await?;
    assert!(locks.mutex(key).min_hold(window).try_acquire().await?.is_none(), "the window is not over");
    assert!((1..=2_000).contains(&here.server.command(&["PTTL", "sign-in/42"]).int()));
    here.server.command(&["DEL", "sign-in/42"]);
    for code in [0, 75] {
        assert_eq!(here.code("tenure run -n --min-hold 60s sign-in/42 -- ./gift"), code);
    }
    assert_eq!(here.ran(), 1);
    Ok(())
}

#[tokio::test]
async fn until_done() -> Done {
    let (here, key) = (Here::new(SET_NX), "sign-in/42");
    let locks = here.locks().await;
    let guard = locks.mutex(key).try_acquire().await?.ok_or("it is free")?;
    assert!(locks.mutex(key).try_acquire().await?.is_none(), "too frequent");
    let work = tokio::spawn(async move { guard.run(async { panic!("on purpose") }).await });
    assert!(work.await.unwrap_err().is_panic());
    locks.flush_releases().await;
    assert!(here.is_free());
    let gift = "tenure run -n sign-in/42 -- ./gift";
    assert_eq!(here.code(&format!("CODE=3 {gift}")), 3);
    assert_eq!((here.code(gift), here.ran()), (0, 2));
    Ok(())
}
