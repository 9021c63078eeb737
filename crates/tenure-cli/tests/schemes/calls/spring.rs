//! `lock(key, value)` and `unlock(key, value)` of articles for Spring: the value at the key, and a deadline at the key.

use tenure::{Lease, Name, Owner, ReleaseOutcome, Share};

use super::{Done, Here, SPRING, secs};

fn given() -> Owner {
    Owner::from_bytes(&b"1700000010000"[..])
}

#[tokio::test]
async fn lock() -> Done {
    for scheme in SPRING {
        let (here, key, timeout) = (Here::new(scheme), "order/7", secs(10));
        let locks = here.locks().await;
        let value = given();
        let guard = locks.mutex(key).token(value).ttl(timeout).fixed_lease().try_acquire().await?.ok_or("it is free")?;
        let at_the_key = here.server.command(&["GET", "order/7"]).text();
        assert_eq!(at_the_key == "1700000010000", scheme == SPRING[0], "{scheme}: {at_the_key}");
        let again = here.locks().await.mutex(key).token(given()).ttl(timeout).fixed_lease().try_acquire().await?;
        assert!(again.is_none(), "{scheme}");
        assert_eq!(here.code("tenure acquire -n --ttl 10s --token 1700000010000 order/7"), 75, "{scheme}");
        assert!(matches!(guard.release().await?, ReleaseOutcome::Released), "{scheme}");
        assert_eq!(here.code("tenure acquire -n --ttl 10s --token 1700000010000 order/7"), 0, "{scheme}");
        assert!(!here.is_free(), "{scheme}");
    }
    Ok(())
}

#[tokio::test]
async fn unlock_elsewhere() -> Done {
    for scheme in SPRING {
        let (here, key, ttl) = (Here::new(scheme), "order/7", secs(10));
        let locks = here.locks().await;
        let guard = here.locks().await.mutex(key).token(given()).ttl(ttl).fixed_lease().acquire().await?;
        drop(guard.into_lease());
        let wrong = Lease::new(Name::new(key)?, Owner::from_bytes(&b"2"[..]), Share::MUTEX, ttl);
        assert!(matches!(locks.release(&wrong).await?, ReleaseOutcome::WasLost), "{scheme}");
        let (name, value) = (Name::new(key)?, given());
        let released = locks.release(&Lease::new(name, value, Share::MUTEX, ttl)).await?;
        assert!(matches!(released, ReleaseOutcome::Released) && here.is_free(), "{scheme}");
        // Once more between the library and the command, in processes that are really two.
        drop(locks.mutex(key).token(given()).ttl(ttl).fixed_lease().acquire().await?.into_lease());
        assert_eq!(here.code("tenure release order/7 --token 2"), 79, "{scheme}");
        assert_eq!(here.code("tenure release order/7 --token 1700000010000"), 0, "{scheme}");
        assert!(here.is_free(), "{scheme}");
    }
    Ok(())
}

#[tokio::test]
async fn lock_here_unlock_there() -> Done {
    for scheme in SPRING {
        let (here, key) = (Here::new(scheme), "order/7");
        let guard = here.locks().await.mutex(key).ttl(secs(15)).acquire().await?;
        let lease = guard.into_lease();
        let locks = here.locks().await;
        let adopted = locks.adopt(&lease).await?;
        assert_ne!(adopted.token(), &lease.owner, "{scheme}");
        assert!(matches!(adopted.release().await?, ReleaseOutcome::Released), "{scheme}");
        let there = r#"tenure release order/7 --token "$TENURE_TOKEN""#;
        let printed = here.sh("tenure acquire -n --ttl 10m order/7");
        assert_eq!((printed.code, here.is_free()), (0, false), "{scheme}");
        assert_eq!(here.code(&format!("{}\n{there}", printed.out)), 0, "{scheme}");
        assert!(here.is_free(), "{scheme}");
    }
    Ok(())
}
