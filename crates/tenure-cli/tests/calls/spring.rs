//! `lock(key, value)` and `unlock(key, value)` of articles for Spring.

use tenure::{Lease, Name, Owner, Release, Released, Share};

use crate::{Done, Here, SPRING, secs};

#[tokio::test]
async fn lock() -> Done {
    let (here, key, timeout) = (Here::new(SPRING), "order/7", secs(10));
    let (locks, given) = (here.locks().await, || Owner::from_bytes(&b"1700000010000"[..]));
    let value = given();
    let guard = locks.mutex(key).token(value).ttl(timeout).fixed_lease().try_acquire().await?.ok_or("it is free")?;
    assert_eq!(here.server.command(&["GET", "order/7"]).text(), "1700000010000");
    assert!(here.locks().await.mutex(key).token(given()).ttl(timeout).fixed_lease().try_acquire().await?.is_none());
    let again = here.sh("tenure acquire -n --ttl 10s --token 1700000010000 order/7");
    assert_eq!(again.code, 75, "{again:?}");
    assert!(matches!(guard.release().await?, Release::Released));
    assert_eq!(here.code("tenure acquire -n --ttl 10s --token 1700000010000 order/7"), 0);
    assert_eq!(here.server.command(&["GET", "order/7"]).text(), "1700000010000");
    Ok(())
}

#[tokio::test]
async fn unlock_elsewhere() -> Done {
    let (here, key, ttl) = (Here::new(SPRING), "order/7", secs(10));
    let (locks, given) = (here.locks().await, || Owner::from_bytes(&b"1700000010000"[..]));
    let guard = here.locks().await.mutex(key).token(given()).ttl(ttl).fixed_lease().acquire().await?;
    drop(guard.into_lease());
    let wrong = Lease { name: Name::new(key)?, owner: Owner::from_bytes(&b"2"[..]), share: Share::MUTEX, ttl, fence: None };
    assert_eq!(locks.release(&wrong).await?, Released::NotHeld);
    let (name, value) = (Name::new(key)?, given());
    let released = locks.release(&Lease { name, owner: value, share: Share::MUTEX, ttl, fence: None }).await?;
    assert_eq!(released, Released::Released);
    assert!(here.is_free());
    // Once more between the library and the command, in processes that are really two.
    drop(locks.mutex(key).token(given()).ttl(ttl).fixed_lease().acquire().await?.into_lease());
    assert_eq!(here.code("tenure release order/7 --token 2"), 79);
    assert_eq!(here.code("tenure release order/7 --token 1700000010000"), 0);
    assert!(here.is_free());
    Ok(())
}

#[tokio::test]
async fn lock_here_unlock_there() -> Done {
    let (here, key) = (Here::new(SPRING), "order/7");
    let guard = here.locks().await.mutex(key).ttl(secs(15)).acquire().await?;
    let lease = guard.into_lease();
    let locks = here.locks().await;
    let adopted = locks.adopt(&lease).await?;
    assert_ne!(adopted.token(), lease.owner);
    assert!(matches!(adopted.release().await?, Release::Released));
    let there = r#"tenure release order/7 --token "$TENURE_TOKEN""#;
    let printed = here.sh("tenure acquire -n --ttl 10m order/7");
    assert_eq!((printed.code, here.is_free()), (0, false));
    assert_eq!(here.code(&format!("{}\n{there}", printed.out)), 0);
    assert!(here.is_free());
    Ok(())
}
