//! A password that is changed again and again while locks are in use.

use std::time::{Duration, Instant};

use tenure::store::Credentials;
use tenure::{ErrorKind, Guard, Locker, ReleaseOutcome, State};

const TTL: Duration = Duration::from_secs(60);
/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 6;

/// Changes the password of a store in several rounds, and makes sure that no lease is lost and no wait ends.
///
/// `open` makes a locker with credentials whose first password is `first`. `change` sets another at the server, and ends
/// all connections there. The password file is written before that in one round, and in the next only after the server
/// has refused the old password.
///
/// # Panics
/// If a lease is lost, or a wait fails.
pub async fn rotation<F: Future<Output = Locker>>(first: &str, open: impl FnOnce(Credentials) -> F, change: impl Fn(&str)) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let file = dir.path().join("password");
    let write = |password: &str| std::fs::write(&file, password).expect("the file can be written");
    write(first);
    let locks = open(Credentials::password_file(&file)).await;
    let held = locks.mutex("held").ttl(TTL).acquire().await.expect("it is free");
    for round in 0..ROUNDS {
        let password = format!("password-{round}");
        if round % 2 == 0 {
            write(&password);
        }
        change(&password);
        let brief = locks.mutex("brief").ttl(TTL).wait(PATIENCE);
        let brief = tokio::spawn(async move { brief.acquire().await });
        if round % 2 == 1 {
            let refused = is_extended(&held, |outcome| outcome.is_err_and(|kind| kind == ErrorKind::Unavailable)).await;
            assert!(refused, "the old password was not refused in round {round}: {:?}", held.renewal_error());
            write(&password);
        }
        let brief = brief.await.expect("it does not panic").unwrap_or_else(|error| panic!("round {round}: {error}"));
        brief.release().await.expect("it is not refused");
        assert!(is_extended(&held, |outcome| outcome.is_ok()).await, "round {round}: {:?}", held.renewal_error());
    }
    assert_eq!(held.state(), State::Held);
    assert!(matches!(held.release().await, Ok(ReleaseOutcome::Released)));
}

/// Renews until the outcome is as wished.
async fn is_extended(held: &Guard, is_wished: impl Fn(Result<(), ErrorKind>) -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_wished(held.extend(TTL).await.map_err(|error| error.kind())) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}
